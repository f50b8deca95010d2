// Device: one GPU of this process, its capabilities and its primary context.
#pragma once
#include <string>

#include "vivace/base/arch.h"
#include "vivace/device/driver.h"
#include "vivace/device/nvml.h"

namespace vivace::device {

/// What the chip is. Read once; never changes.
struct DeviceInfo {
  int ordinal = 0;
  std::string name;            // "NVIDIA H200"
  std::string pci;             // "00000000:01:00.0"
  std::string uuid;            // 32 hex digits
  int major = 0, minor = 0;    // compute capability
  Arch arch = Arch::cpu;       // cpu: a chip that Vivace has no kernels for
  int sm_count = 0;
  int64_t memory_bytes = 0;
  int l2_bytes = 0;
  int smem_per_block = 0;      // bytes, opt-in maximum of dynamic plus static
  int smem_per_sm = 0;
  int registers_per_sm = 0, threads_per_sm = 0, threads_per_block = 0;
  int sm_khz = 0, memory_khz = 0, memory_bus_bits = 0;  // maxima
  int async_engines = 0;       // copy engines
  bool integrated = false;     // shares memory with the host (Jetson)
  bool virtual_memory = false; // reserve/map at stable addresses
  bool clusters = false;
  bool green_contexts = false; // shares of the chip: see green.h

  /// Peak DRAM rate by the memory clock and bus (double data rate), bytes a second.
  double peak_bytes_per_s() const { return 2.0 * memory_khz * 1e3 * memory_bus_bits / 8; }
};

struct MemoryInfo {
  int64_t free_bytes = 0, total_bytes = 0;
};

class Device {
 public:
  /// Number of GPUs; Unsupported when there is no usable driver.
  static Result<int> count();
  /// The one Device object for `ordinal`; retains its primary context, shared with every other
  /// library in the process, until the process ends. Errors: InvalidArgument names the range.
  static Result<Device*> get(int ordinal);

  const DeviceInfo& info() const { return info_; }
  cu::Context context() const { return context_; }
  cu::Device handle() const { return handle_; }
  /// OK if kernels exist for this chip, else Unsupported with the list of chips that have them.
  Status check_arch() const;
  /// Makes the context current on this thread. Nearly free when it already is.
  Status bind() const;
  Result<MemoryInfo> memory() const;
  /// Waits for everything in the context. Setup and tests only.
  Status synchronize() const;
  Result<BoardState> board() const { return board_state(info_.pci); }

  Result<bool> can_access(const Device& peer) const;
  /// Lets this device read and write `peer`'s memory. OK if it already can.
  Status enable_peer(const Device& peer) const;

  /// Stream priorities run from 0, the least urgent, to levels - 1.
  int priority_levels() const { return least_priority_ - greatest_priority_ + 1; }
  /// CUDA's number for a level. Errors: InvalidArgument names the range.
  Result<int> priority(int level) const;

 private:
  Device() = default;
  static Result<Device*> open(int ordinal);
  DeviceInfo info_;
  cu::Device handle_ = 0;
  cu::Context context_ = nullptr;
  int least_priority_ = 0, greatest_priority_ = 0;
};

/// Which device `ptr` belongs to. Errors: InvalidDevice for host memory and unknown addresses; driver()'s.
Result<int> device_of(const void* ptr);

}  // namespace vivace::device
