// Which instruction set the CPU kernels use: chosen once, or forced by VIVACE_CPU_ISA.
#pragma once
#include "vivace/base/status.h"

namespace vivace::cpu {

/// avx2: with FMA and F16C. avx512: F, BW, VL, DQ and VNNI.
enum class Isa { portable, avx2, avx512 };

const char* name(Isa isa);
/// Whether this build and this CPU have it.
bool has(Isa isa);

/// The level in use: the best this CPU has, or what VIVACE_CPU_ISA=portable|avx2|avx512 asked for when
/// the process first called this. Results are bit-exact within a level, not across levels.
Isa isa();
/// InvalidArgument if VIVACE_CPU_ISA names no level, Unsupported if this CPU lacks the level it names.
Status check_isa();

/// Forces a level for its lifetime; for tests. Not for use while kernels run. `level` must be had.
class ScopedIsa {
 public:
  explicit ScopedIsa(Isa level);
  ~ScopedIsa();
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;

 private:
  Isa before_;
};

}  // namespace vivace::cpu
