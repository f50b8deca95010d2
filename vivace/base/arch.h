// Arch: the chips kernels are compiled for, and what each can do.
#pragma once
#include "vivace/base/int.h"

namespace vivace {

/// Compute capability x 10; `cpu` is the host backend.
enum class Arch : uint16_t {
  cpu = 0, sm80 = 80, sm86 = 86, sm87 = 87, sm89 = 89, sm90a = 90, sm100a = 100, sm103a = 103,
  sm110a = 110, sm120a = 120, sm121a = 121,
};
inline constexpr Arch kGpuArchs[] = {Arch::sm80,   Arch::sm86,   Arch::sm87,   Arch::sm89,   Arch::sm90a,
                                     Arch::sm100a, Arch::sm103a, Arch::sm110a, Arch::sm120a, Arch::sm121a};

/// A chip, of the largest product where they differ. Constants in ops/ were measured on that of sm90a, an H200.
struct Chip {
  Arch arch;
  const char* target;  // NVRTC's --gpu-architecture value
  int sm_count;        // a launch asks the device at hand for its own
  int sm_smem_kib;     // shared memory of an SM; a block takes 1 KiB of it besides what it asks for
  bool tma;            // TMA, thread block clusters, programmatic dependent launch (PDL): Hopper and its successors
  bool wgmma;          // Hopper alone
  bool fp8_mma, fp4_mma;

  /// Bytes of shared memory that each of so many blocks on an SM may have.
  constexpr int smem_bytes(int blocks = 1) const { return sm_smem_kib == 0 ? 0 : (sm_smem_kib / blocks - 1) * 1024; }
};
inline constexpr Chip kChips[] = {
    //                  SMs  KiB   tma   wgmma   fp8    fp4
    {Arch::cpu, "cpu", 0, 0, false, false, false, false},
    {Arch::sm80, "sm_80", 108, 164, false, false, false, false},   // A100
    {Arch::sm86, "sm_86", 84, 100, false, false, false, false},    // A40, RTX 3090
    {Arch::sm87, "sm_87", 16, 164, false, false, false, false},    // Jetson Orin
    {Arch::sm89, "sm_89", 142, 100, false, false, true, false},    // L40S, RTX 4090
    {Arch::sm90a, "sm_90a", 132, 228, true, true, true, false},    // H100, H200
    {Arch::sm100a, "sm_100a", 148, 228, true, false, true, true},  // B200
    {Arch::sm103a, "sm_103a", 160, 228, true, false, true, true},  // B300
    {Arch::sm110a, "sm_110a", 20, 228, true, false, true, true},   // Jetson Thor
    {Arch::sm120a, "sm_120a", 188, 100, true, false, true, true},  // RTX PRO 6000, RTX 5090
    {Arch::sm121a, "sm_121a", 48, 100, true, false, true, true},   // GB10
};
constexpr const Chip& chip(Arch a) {
  for (const Chip& c : kChips)
    if (c.arch == a) return c;
  return kChips[0];
}
inline constexpr const Chip& kHopper = chip(Arch::sm90a);

/// What a tactic is chosen for: a chip, or a partition of one.
struct ChipPart {
  Arch arch;
  int multiprocessors = 0;  // of the partition; 0: all of the chip
  constexpr ChipPart(Arch a, int partition = 0) : arch(a), multiprocessors(partition) {}
  constexpr operator Arch() const { return arch; }
};

/// NVRTC's --gpu-architecture value; "cpu" for the host.
constexpr const char* name(Arch a) {
  return chip(a).target;
}

/// The supported Arch of a device with this compute capability, or cpu if there is none.
constexpr Arch arch_of(int major, int minor) {
  for (Arch a : kGpuArchs)
    if (static_cast<int>(a) == major * 10 + minor) return a;
  return Arch::cpu;
}

}  // namespace vivace
