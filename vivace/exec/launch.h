// Launch: one prepared piece of work. POD; made at setup, issued at replay without allocation.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace vivace::cpu {
class Pool;
}
namespace vivace::device {
struct Kernel;
}

namespace vivace::exec {

inline constexpr size_t kMaxArgsBytes = 896;  // largest argument struct of any op, TMA maps included

/// Host entry: `args` is a copy of the op's argument struct.
using HostFn = void (*)(const void* args, cpu::Pool& pool);

struct Launch {
  const char* op = "";        // static string: profiles and errors
  HostFn host = nullptr;      // set for the CPU backend
  const device::Kernel* kernel = nullptr;  // set for the CUDA backend; outlives all captures of it
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t smem_bytes = 0;    // dynamic shared memory
  uint32_t cluster = 1;       // CTAs a cluster along x
  bool pdl = true;            // may start while the launch before still runs: the kernel executes the dependency wait
  bool cooperative = false;   // all CTAs stand at once, or the launch is refused: they wait for each other
  int64_t bytes = 0, flops = 0;  // least traffic and arithmetic, for profiles; 0 where nobody said
  uint32_t args_bytes = 0;
  alignas(64) std::byte args[kMaxArgsBytes];

  template <class Args>
  void set_args(const Args& a) {
    static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= kMaxArgsBytes);
    args_bytes = sizeof(Args);
    std::memcpy(args, &a, sizeof(Args));
  }
};

}  // namespace vivace::exec
