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

/// NVRTC's --gpu-architecture value; "cpu" for the host.
constexpr const char* name(Arch a) {
  switch (a) {
    case Arch::cpu: return "cpu";
    case Arch::sm80: return "sm_80";
    case Arch::sm86: return "sm_86";
    case Arch::sm87: return "sm_87";
    case Arch::sm89: return "sm_89";
    case Arch::sm90a: return "sm_90a";
    case Arch::sm100a: return "sm_100a";
    case Arch::sm103a: return "sm_103a";
    case Arch::sm110a: return "sm_110a";
    case Arch::sm120a: return "sm_120a";
    case Arch::sm121a: return "sm_121a";
  }
  return "?";
}

/// The supported Arch of a device with this compute capability, or cpu if there is none.
constexpr Arch arch_of(int major, int minor) {
  for (Arch a : kGpuArchs)
    if (static_cast<int>(a) == major * 10 + minor) return a;
  return Arch::cpu;
}

constexpr bool has_fp8_mma(Arch a) { return a >= Arch::sm89; }
constexpr bool has_pdl(Arch a) { return a >= Arch::sm90a; }    // programmatic dependent launch
constexpr bool has_wgmma(Arch a) { return a == Arch::sm90a; }  // Hopper only, not its successors
constexpr bool has_fp4_mma(Arch a) { return a >= Arch::sm100a; }

}  // namespace vivace
