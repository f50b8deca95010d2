#include "vivace/array/gpu.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <unordered_map>

#include "vivace/array/work.h"
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

/// Words of bad_place(), by device. Never freed: kernels may write until the process is gone.
struct BadPlaces {
  std::mutex mutex;
  std::unordered_map<int, device::PinnedBuffer> words;
};
BadPlaces& bad_places() {
  static BadPlaces* all = new BadPlaces;
  return *all;
}

template <class Make>
Result<const device::Kernel*> kernel_of(const device::Device& device, std::string key, const Make& make_source,
                                        const Exec& exec) {
  key += static_cast<char>(device.info().ordinal);
  Loaded& l = loaded();
  {
    const std::lock_guard lock(l.mutex);
    if (const auto it = l.kernels.find(key); it != l.kernels.end()) return it->second.second;
  }
  // Without the lock: threads compile different kernels side by side.
  VV_TRY(device.check_arch());
  if (exec.compile == nullptr) return Status(Code::kFailedPrecondition, "array: no compiler came with this call");
  const jit::Source source = make_source(device.info().arch);
  VV_ASSIGN(const jit::BinaryPtr binary, exec.compile(source));
  VV_ASSIGN(const std::string symbol, binary->symbol(source.expressions[0]));
  VV_ASSIGN(device::Module module, device::Module::load(device, std::as_bytes(std::span(binary->cubin)), source.name));
  VV_ASSIGN(const device::Kernel* const kernel, module.kernel(symbol));
  const std::lock_guard lock(l.mutex);  // another thread's copy, if it was first
  return l.kernels.emplace(std::move(key), std::pair(std::move(module), kernel)).first->second.second;
}

/// `work()` says what the launch does, for profiles.
Status launch(const device::Device& device, const device::Kernel* kernel, const device::LaunchShape& shape,
              const void* args, size_t args_bytes, const Exec& exec, const std::function<device::Work()>& work) {
  device::count(device::stream_counts(device.info().ordinal, reinterpret_cast<const void*>(exec.stream)).launches);
  const device::Observed seen([&] {
    device::Work w = work();
    w.kernel = kernel->name, w.device = &device, w.stream = reinterpret_cast<cu::Stream>(exec.stream);
    return w;
  });
  return device::launch(*kernel, shape, reinterpret_cast<cu::Stream>(exec.stream), args, args_bytes);
}

template <class Args, class Say>
Status start(const device::Device& device, const GpuKernel& k, uint32_t x, uint32_t y, const Args& args,
             const Exec& exec, const Say& work) {
  VV_ASSIGN(const device::Kernel* const kernel,
            kernel_of(device, k.key(), [&](Arch arch) { return k.source(arch); }, exec));
  device::LaunchShape shape;
  shape.grid[0] = x, shape.grid[1] = y, shape.block[0] = kernels::kMapThreads;
  return launch(device, kernel, shape, &args, sizeof args, exec, work);
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
  if (const std::optional<TurnedPlan> turned = own == nullptr ? plan_turned(p, s, scalars) : std::nullopt)
    return start(*device, turned->kernel, turned->grid, 1, turned->args, exec, [&] { return work_of(p, s, scalars); });
  MapPlan plan = plan_map(p, s, scalars);
  plan.kernel.own = own;
  if (plan.grid == 0) return {};
  return start(*device, plan.kernel, plan.grid, 1, plan.args, exec, [&] {
    return own != nullptr ? work_of("elementwise", p, s, s.rank, scalars) : work_of(p, s, scalars);
  });
}

Status gpu_fold(const kernels::How& how, const kernels::MapProgram& p, const kernels::FoldSpace& f, uint32_t scalars,
                Elem out, int ordinal, const Exec& exec) {
  VV_ASSIGN(device::Device* const device, bound(ordinal));
  FoldPlan plan = plan_fold(how, p, f, scalars, out);
  const auto folds = [&] { return work_of(how, p, f, scalars); };
  const auto joins = [&] { return device::Work{.op = name_of(how) + " (join)", .bytes = plan.partial_bytes}; };
  if (plan.args.splits == 1) return start(*device, plan.kernel, plan.grid[0], plan.grid[1], plan.args, exec, folds);
  Shape bytes;
  bytes.rank = 1, bytes.dim[0] = plan.partial_bytes;
  VV_ASSIGN(const Array partial, empty(Elem::u8, bytes, ordinal));
  VV_TRY(before_use(partial, exec));
  plan.args.partial = partial.data;
  plan.finish.partial = partial.data;
  VV_TRY(start(*device, plan.kernel, plan.grid[0], plan.grid[1], plan.args, exec, folds));
  VV_TRY(start(*device, plan.last, plan.finish_grid, 1, plan.finish, exec, joins));
  return after_use(partial, exec);  // it is given back when the stream is through
}

Status gpu_order(const OrderKernel& k, const void* args, size_t args_bytes, int ordinal, const Exec& exec) {
  if (k.blocks == 0) return {};
  if (k.blocks > INT32_MAX)
    return Status(Code::kUnsupported, strf("array.%s: %lld blocks of work, at most 2^31 - 1", k.name,
                                           static_cast<long long>(k.blocks)));
  VV_ASSIGN(device::Device* const device, bound(ordinal));
  const auto source = [&](Arch arch) { return k.source(arch); };
  VV_ASSIGN(const device::Kernel* const kernel, kernel_of(*device, k.expression, source, exec));
  device::LaunchShape shape;
  shape.grid[0] = static_cast<uint32_t>(k.blocks), shape.block[0] = static_cast<uint32_t>(k.threads);
  return launch(*device, kernel, shape, args, args_bytes, exec,
                [&] { return device::Work{.op = std::string("array.") + k.name, .bytes = k.bytes}; });
}

Result<int64_t*> bad_place(int ordinal) {
  BadPlaces& all = bad_places();
  const std::lock_guard lock(all.mutex);
  if (const auto it = all.words.find(ordinal); it != all.words.end())
    return reinterpret_cast<int64_t*>(it->second.data());
  VV_ASSIGN(device::Device* const device, bound(ordinal));
  VV_ASSIGN(device::PinnedBuffer made, device::PinnedBuffer::create(*device, 2 * sizeof(int64_t)));
  int64_t* const word = reinterpret_cast<int64_t*>(made.data());
  word[0] = word[1] = 0;
  all.words.emplace(ordinal, std::move(made));
  return word;
}

Status take_bad_place(int ordinal) {
  BadPlaces& all = bad_places();
  const std::lock_guard lock(all.mutex);
  const auto it = all.words.find(ordinal);
  if (it == all.words.end()) return {};  // no such kernel ran
  int64_t* const bad = reinterpret_cast<int64_t*>(it->second.data());
  std::atomic_ref<int64_t> found(bad[1]);
  if (found.load(std::memory_order_acquire) == 0) return {};
  found.store(0);
  return Status(Code::kInvalidArgument,
                strf("array: an index of a take() or a sorter of a searchsorted() before was out of range: %lld on "
                     "cuda:%d; its result holds the nearest element",
                     static_cast<long long>(bad[0]), ordinal));
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
