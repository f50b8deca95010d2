// Module and Kernel: a loaded cubin and its entries; launch(): the one way to start a kernel.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "vivace/device/device.h"

namespace vivace::device {

inline constexpr size_t kMaxParamBytes = 4096;  // of one kernel, on every supported chip

/// One entry of a module, ready to launch. Owned by its Module; its address is stable.
struct Kernel {
  std::string name;              // as the caller asked for it
  cu::Kernel handle = nullptr;
  const Device* device = nullptr;
  int registers = 0, local_bytes = 0;  // local_bytes > 0: spills or stack
  int static_smem = 0;
  int max_threads = 0;           // a block, from the launch bounds and registers
  int max_dynamic_smem = 0;      // what launch() accepts now; see allow_dynamic_smem()
  int max_cluster = 1;           // CTAs, what launch() accepts now
  bool pdl = false;              // the chip has programmatic dependent launch
  int param_count = 0;
  size_t param_bytes = 0;        // from the first parameter's start to the last one's end

  /// What a driver entry that takes a CUfunction wants; valid in every context of the device,
  /// green ones too: the stream decides.
  cu::Function function() const { return reinterpret_cast<cu::Function>(handle); }
  /// Raises the dynamic shared memory limit. Errors: Unsupported names the chip's limit.
  Status allow_dynamic_smem(int bytes);
  /// Allows clusters of up to 16 CTAs, which not every partition of a chip can hold.
  Status allow_large_clusters();
};

/// A cubin loaded for a device. Copies share it; the last one unloads it.
class Module {
 public:
  Module() = default;
  /// `label` names the code in errors. Errors: Unsupported (cubin for another chip), CudaError.
  static Result<Module> load(const Device& device, std::span<const std::byte> cubin, std::string label);
  /// The entry with this symbol, loaded onto the chip now, so that the first launch and a capture
  /// find it resident. Errors: NotFound names the module. Thread-safe.
  Result<Kernel*> kernel(const std::string& symbol);

 private:
  struct Rep;
  std::shared_ptr<Rep> rep_;
};

/// Geometry of one launch.
struct LaunchShape {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t smem_bytes = 0;           // dynamic shared memory
  uint32_t cluster[3] = {1, 1, 1};   // CTAs
  bool pdl = false;                  // may start before the previous kernel in the stream ends; ignored before Hopper
  bool cooperative = false;          // grid-wide barriers: all CTAs resident at once
};

/// All that can be checked before the driver sees it: grid, block, shared memory, clusters, size of
/// the argument struct. Errors name the kernel, the limit and the value.
Status check_launch(const Kernel& kernel, const LaunchShape& shape, size_t args_bytes);

/// Checks, then launches with `args`, a host copy of the kernel's one __grid_constant__ parameter.
/// Neither allocates nor formats unless it fails. Works inside a capture. A context of the device
/// must be current on this thread (Device::bind).
Status launch(const Kernel& kernel, const LaunchShape& shape, cu::Stream stream, const void* args, size_t args_bytes);

template <class Args>
Status launch(const Kernel& kernel, const LaunchShape& shape, cu::Stream stream, const Args& args) {
  static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= kMaxParamBytes);
  return launch(kernel, shape, stream, &args, sizeof(Args));
}

/// For kernels with several parameters (user kernels): `params[i]` points at parameter i, whose
/// sizes the caller has checked.
Status launch_params(const Kernel& kernel, const LaunchShape& shape, cu::Stream stream, void** params);

}  // namespace vivace::device
