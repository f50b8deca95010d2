// MappingGuard: reads of a mapped file whose bytes have gone give zeros and a mark instead of SIGBUS.
#pragma once
#include <cstddef>

namespace vivace::engine {

/// Of one mapping, for as long as it lives; move-only. A page that the system cannot give (the file was cut short in
/// place, the disk fails) is replaced, with all behind it, by zeros, and lost() says so from then on: who used the
/// mapping meanwhile has wrong results and must ask before giving them away. The signal's handler is installed with the
/// first guard and passes other faults on to the one before it; a program that replaces it, or maps more than 4096
/// files at a time, has SIGBUS as ever.
class MappingGuard {
 public:
  MappingGuard() = default;
  MappingGuard(const void* data, size_t bytes);
  MappingGuard(MappingGuard&& o) noexcept;
  MappingGuard& operator=(MappingGuard&& o) noexcept;
  ~MappingGuard() { release(); }

  bool lost() const;
  /// Before the mapping goes.
  void release();

 private:
  int slot_ = -1;
};

}  // namespace vivace::engine
