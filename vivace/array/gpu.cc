#include "vivace/array/gpu.h"

#include <mutex>
#include <unordered_map>

#include "vivace/base/check.h"
#include "vivace/device/kernel.h"
#include "vivace/device/stream.h"

namespace vivace::array {
namespace {

/// Kernels of this process, by device and key. Never unloaded.
struct Loaded {
  std::mutex mutex;
  std::unordered_map<std::string, std::pair<device::Module, const device::Kernel*>> kernels;
};
Loaded& loaded() {
  static Loaded* all = new Loaded;  // outlives every static that might launch
  return *all;
}

Result<const device::Kernel*> kernel_of(const device::Device& device, const GpuKernel& k, const Exec& exec) {
  std::string key = k.key();
  key += static_cast<char>(device.info().ordinal);
  Loaded& l = loaded();
  {
    const std::lock_guard lock(l.mutex);
    if (const auto it = l.kernels.find(key); it != l.kernels.end()) return it->second.second;
  }
  // Without the lock: threads compile different kernels side by side.
  VV_TRY(device.check_arch());
  if (exec.compile == nullptr) return Status(Code::kFailedPrecondition, "array: no compiler came with this call");
  const jit::Source source = k.source(device.info().arch);
  VV_ASSIGN(const jit::BinaryPtr binary, exec.compile(source));
  VV_ASSIGN(const std::string symbol, binary->symbol(source.expressions[0]));
  VV_ASSIGN(device::Module module, device::Module::load(device, std::as_bytes(std::span(binary->cubin)), source.name));
  VV_ASSIGN(const device::Kernel* const kernel, module.kernel(symbol));
  const std::lock_guard lock(l.mutex);  // another thread's copy, if it was first
  return l.kernels.emplace(std::move(key), std::pair(std::move(module), kernel)).first->second.second;
}

template <class Args>
Status start(const device::Device& device, const GpuKernel& k, uint32_t x, uint32_t y, const Args& args,
             const Exec& exec) {
  VV_ASSIGN(const device::Kernel* const kernel, kernel_of(device, k, exec));
  device::LaunchShape shape;
  shape.grid[0] = x, shape.grid[1] = y, shape.block[0] = kernels::kMapThreads;
  return device::launch(*kernel, shape, reinterpret_cast<cu::Stream>(exec.stream), args);
}

Result<device::Device*> bound(int ordinal) {
  VV_ASSIGN(device::Device* const device, device::Device::get(ordinal));
  VV_TRY(device->bind());
  return device;
}

}  // namespace

Status gpu_map(const kernels::MapProgram& p, const kernels::MapSpace& s, uint32_t scalars, int ordinal,
               const Exec& exec, const Expression* own) {
  VV_ASSIGN(device::Device* const device, bound(ordinal));
  MapPlan plan = plan_map(p, s, scalars);
  plan.kernel.own = own;
  if (plan.grid == 0) return {};
  return start(*device, plan.kernel, plan.grid, 1, plan.args, exec);
}

Status gpu_fold(const kernels::How& how, const kernels::MapProgram& p, const kernels::FoldSpace& f, uint32_t scalars,
                Elem out, int ordinal, const Exec& exec) {
  VV_ASSIGN(device::Device* const device, bound(ordinal));
  FoldPlan plan = plan_fold(how, p, f, scalars, out);
  if (plan.args.splits == 1) return start(*device, plan.kernel, plan.grid[0], plan.grid[1], plan.args, exec);
  Shape bytes;
  bytes.rank = 1, bytes.dim[0] = plan.partial_bytes;
  VV_ASSIGN(const Array partial, empty(Elem::u8, bytes, ordinal));
  VV_TRY(before_use(partial, exec));
  plan.args.partial = partial.data;
  plan.finish.partial = partial.data;
  VV_TRY(start(*device, plan.kernel, plan.grid[0], plan.grid[1], plan.args, exec));
  VV_TRY(start(*device, plan.last, plan.finish_grid, 1, plan.finish, exec));
  return after_use(partial, exec);  // it is given back when the stream is through
}

Status before_use(const Array& a, const Exec& exec) {
  if (a.device() == kHost || a.storage->stream == exec.stream || a.size() == 0) return {};
  Storage& s = *a.storage;
  VV_ASSIGN(device::Device* const device, bound(s.device));
  if (s.stream == kLegacyStream) {  // recorded now: after all that it has done with the memory
    VV_ASSIGN(s.used, device::Event::create(*device));
    VV_TRY(s.used.record(reinterpret_cast<cu::Stream>(kLegacyStream)));
  }
  return device::Stream::borrow(*device, reinterpret_cast<cu::Stream>(exec.stream)).wait(s.used);
}

Status after_use(const Array& a, const Exec& exec) {
  if (a.device() == kHost || a.size() == 0) return {};
  Storage& s = *a.storage;
  s.stream = exec.stream;
  if (s.stream == kLegacyStream) return {};
  if (s.used.handle() == nullptr) {
    VV_ASSIGN(device::Device* const device, bound(s.device));
    VV_ASSIGN(s.used, device::Event::create(*device));
  }
  return s.used.record(reinterpret_cast<cu::Stream>(exec.stream));
}

}  // namespace vivace::array
