// How a tactic becomes a kernel on a GPU: named instance -> JIT (cached) -> loaded once a process.
#pragma once
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "vivace/base/dtype.h"
#include "vivace/base/status.h"
#include "vivace/device/kernel.h"
#include "vivace/exec/launch.h"
#include "vivace/jit/binary.h"

namespace vivace::ops {

/// Where a call will run: a device or a partition of it, or the host where it is null.
struct Target {
  const device::Device* device = nullptr;
  int partition = 0;  // multiprocessors of the partition; 0: all
  ChipPart arch() const { return {device ? device->info().arch : Arch::cpu, partition}; }
  int sm_count() const { return partition > 0 ? partition : device ? device->info().sm_count : 0; }
};

/// The kernel `expression` (a template instance, fully qualified) of `header`, loaded on the device.
/// Compiles unless cache or packs have it. Setup phase, thread-safe.
/// Errors: Unsupported (chip, no NVRTC), CompileError, FailedPrecondition (strict mode, after ready).
Result<const device::Kernel*> load_kernel(const device::Device& device, const char* header,
                                          const std::string& expression);
/// The same for a translation unit of the caller's with one expression, which must differ between units.
Result<const device::Kernel*> load_kernel(const device::Device& device, const jit::Source& source);

/// Expressions loaded so far in this process: what tests hold against an op's instances().
std::vector<std::string> loaded_kernels();

/// Says on standard error, once a process for each op, that a composite's parts run since its own kernel cannot be had,
/// and why. Setup phase.
void say_parts_run(std::string_view op, const Status& why);

/// The C++ type of a dtype in kernel expressions: "float", "vivace::kernels::bf16", ...
const char* type_name(DType t);

/// Kernels of one op by key, so that a second use of a tactic costs a short search and builds no string.
template <class Gpu>
class KernelTable {
 public:
  Result<const device::Kernel*> get(const device::Device& device, const typename Gpu::Key& key) {
    const std::lock_guard lock(mutex_);
    for (const Row& r : rows_)
      if (r.device == &device && r.key == key) return r.kernel;
    Result<const device::Kernel*> kernel = load_kernel(device, Gpu::kHeader, Gpu::instance(key));
    if (kernel.ok()) rows_.push_back({&device, key, *kernel});
    return kernel;
  }

 private:
  struct Row {
    const device::Device* device;
    typename Gpu::Key key;
    const device::Kernel* kernel;
  };
  std::mutex mutex_;
  std::vector<Row> rows_;
};

/// One kernel instance, for compile gates, packs and prewarming.
struct Instance {
  const char* header;
  std::string expression;
};

/// printf into a kernel expression: `expr("norm<%s, %d>", ...)` in namespace vivace::kernels.
template <class... A>
std::string kernel_expression(const char* format, A... args) {
  return "vivace::kernels::" + strf(format, args...);
}

/// Whether `p` and a row pitch of `stride` elements allow accesses of `vec` elements of `t`.
inline bool vectorizable(const void* p, int64_t stride, DType t, int vec) {
  const uintptr_t bytes = static_cast<uintptr_t>(vec) * static_cast<uintptr_t>(info(t).bytes);
  const uintptr_t align = bytes < 16 ? bytes : 16;
  return p == nullptr || (reinterpret_cast<uintptr_t>(p) % align == 0 &&
                          static_cast<uintptr_t>(stride) * static_cast<uintptr_t>(info(t).bytes) % align == 0);
}

}  // namespace vivace::ops
