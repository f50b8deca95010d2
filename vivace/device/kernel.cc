#include "vivace/device/kernel.h"

#include <map>
#include <mutex>

#include "vivace/device/waits.h"

namespace vivace::device {
namespace {

constexpr uint32_t kMaxGrid[3] = {0x7fffffffu, 65535u, 65535u};
constexpr int kPortableCluster = 8, kLargestCluster = 16;
constexpr int kDefaultDynamicSmem = 48 * 1024;

Status read_attributes(Kernel* k) {
  const struct {
    int attr;
    int* field;
  } rows[] = {{cu::kFuncRegisters, &k->registers},
              {cu::kFuncLocalBytes, &k->local_bytes},
              {cu::kFuncSharedBytes, &k->static_smem},
              {cu::kFuncMaxThreads, &k->max_threads}};
  for (const auto& row : rows) VV_CU(cuKernelGetAttribute, row.field, row.attr, k->handle, k->device->handle());
  k->max_dynamic_smem = kDefaultDynamicSmem - k->static_smem;
  k->max_cluster = k->device->info().clusters ? kPortableCluster : 1;
  k->pdl = k->device->info().major >= 9;
  // The driver ends the list of parameters with an error; that is the only way to count them.
  size_t offset = 0, bytes = 0, first = 0;  // an argument struct aligned to 64 does not start at 0
  while (detail::g_api.cuKernelGetParamInfo(k->handle, static_cast<size_t>(k->param_count), &offset, &bytes) ==
         cu::kSuccess) {
    if (k->param_count == 0) first = offset;
    k->param_bytes = offset + bytes - first;
    ++k->param_count;
  }
  return Status();
}

// Sets `out` to the launch's attributes and returns their number.
unsigned attributes(const Kernel& k, const LaunchShape& s, cu::LaunchAttr* out) {
  unsigned n = 0;
  if (s.cluster[0] * s.cluster[1] * s.cluster[2] > 1) {
    out[n].id = cu::kLaunchClusterDim;
    for (int i = 0; i < 3; ++i) out[n].dim[i] = s.cluster[i];
    ++n;
  }
  if (s.pdl && k.pdl) {
    out[n].id = cu::kLaunchPdl;
    out[n++].flag = 1;
  }
  if (s.cooperative) {
    out[n].id = cu::kLaunchCooperative;
    out[n++].flag = 1;
  }
  return n;
}

Status check_shape(const Kernel& k, const LaunchShape& s) {
  for (int i = 0; i < 3; ++i) {
    if (s.grid[i] == 0 || s.grid[i] > kMaxGrid[i]) [[unlikely]]
      return Status(Code::kInvalidArgument, strf("%s: grid (%u, %u, %u): axis %d must be 1 to %u", k.name.c_str(),
                                                 s.grid[0], s.grid[1], s.grid[2], i, kMaxGrid[i]));
    if (s.cluster[i] == 0 || s.grid[i] % s.cluster[i] != 0) [[unlikely]]
      return Status(Code::kInvalidArgument, strf("%s: grid axis %d is %u, not a multiple of the cluster's %u",
                                                 k.name.c_str(), i, s.grid[i], s.cluster[i]));
  }
  // Each factor is bounded first: the product then fits 64 bits.
  const uint64_t threads = static_cast<uint64_t>(s.block[0]) * s.block[1] * (s.block[2] > 1024 ? 1025u : s.block[2]);
  if (s.block[0] > 1024 || s.block[1] > 1024 || threads == 0 || threads > static_cast<uint64_t>(k.max_threads))
      [[unlikely]]
    return Status(Code::kInvalidArgument,
                  strf("%s: block (%u, %u, %u): 1 to %d threads are possible with its %d registers and launch bounds",
                       k.name.c_str(), s.block[0], s.block[1], s.block[2], k.max_threads, k.registers));
  if (s.smem_bytes > static_cast<uint32_t>(k.max_dynamic_smem)) [[unlikely]]
    return Status(Code::kInvalidArgument,
                  strf("%s: %u bytes of dynamic shared memory, %d are allowed: call allow_dynamic_smem at setup",
                       k.name.c_str(), s.smem_bytes, k.max_dynamic_smem));
  const uint64_t ctas = static_cast<uint64_t>(s.cluster[0]) * s.cluster[1] * s.cluster[2];
  if (ctas > static_cast<uint64_t>(k.max_cluster)) [[unlikely]]
    return Status(Code::kUnsupported,
                  strf("%s: cluster of %llu CTAs, %d are allowed on %s", k.name.c_str(),
                       static_cast<unsigned long long>(ctas), k.max_cluster, k.device->info().name.c_str()));
  return Status();
}

}  // namespace

struct Module::Rep {
  const Device* device = nullptr;
  cu::Library library = nullptr;
  std::string label;
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Kernel>> kernels;
  ~Rep() {
    if (library == nullptr) return;
    when_no_gates([library = library] {
      count_device_wide_wait();
      VV_CU_IGNORE(cuLibraryUnload, library);
    });
  }
};

Result<Module> Module::load(const Device& device, std::span<const std::byte> cubin, std::string label) {
  VV_TRY(device.bind());
  Module m;
  m.rep_ = std::make_shared<Rep>();
  m.rep_->device = &device;
  m.rep_->label = std::move(label);
  const void* image = cubin.data();
  Status s = VV_CU_STATUS(cuLibraryLoadData, &m.rep_->library, image, nullptr, nullptr, 0u, nullptr, nullptr, 0u);
  if (!s.ok()) {
    const DeviceInfo& info = device.info();
    return std::move(s).with_context(strf("load %s (%zu bytes) on %s, compute capability %d.%d", m.rep_->label.c_str(),
                                          cubin.size(), info.name.c_str(), info.major, info.minor));
  }
  return m;
}

Result<Kernel*> Module::kernel(const std::string& symbol) {
  const std::lock_guard<std::mutex> lock(rep_->mutex);
  if (const auto it = rep_->kernels.find(symbol); it != rep_->kernels.end()) return it->second.get();
  VV_TRY(rep_->device->bind());
  auto k = std::make_unique<Kernel>();
  k->name = symbol;
  k->device = rep_->device;
  const char* name = symbol.c_str();
  const cu::Result r = detail::g_api.cuLibraryGetKernel(&k->handle, rep_->library, name);
  if (r == cu::kNotFound) return Status(Code::kNotFound, strf("%s has no kernel %s", rep_->label.c_str(), name));
  if (r != cu::kSuccess) {
    const detail::CallArg arg = detail::call_arg(name);
    return detail::call_failed(r, "cuLibraryGetKernel", "symbol", &arg, 1);
  }
  VV_TRY(read_attributes(k.get()));
  cu::Function resident = nullptr;
  VV_CU(cuKernelGetFunction, &resident, k->handle);
  VV_CU(cuFuncLoad, resident);
  return (rep_->kernels[symbol] = std::move(k)).get();
}

Status Kernel::allow_dynamic_smem(int bytes) {
  const int limit = device->info().smem_per_block - static_smem;
  if (bytes > limit)
    return Status(
        Code::kUnsupported,
        strf("%s needs %d bytes of dynamic shared memory; %s has %d a block (%d less the kernel's static %d)",
             name.c_str(), bytes, device->info().name.c_str(), limit, device->info().smem_per_block, static_smem));
  if (bytes <= max_dynamic_smem) return Status();
  VV_TRY(device->bind());
  VV_CU(cuKernelSetAttribute, static_cast<int>(cu::kFuncMaxDynamicSmem), bytes, handle, device->handle());
  max_dynamic_smem = bytes;
  return Status();
}

Status Kernel::allow_large_clusters() {
  if (!device->info().clusters)
    return Status(Code::kUnsupported, strf("%s: %s has no clusters", name.c_str(), device->info().name.c_str()));
  VV_TRY(device->bind());
  VV_CU(cuKernelSetAttribute, static_cast<int>(cu::kFuncNonPortableCluster), 1, handle, device->handle());
  max_cluster = kLargestCluster;
  return Status();
}

Status check_launch(const Kernel& kernel, const LaunchShape& shape, size_t args_bytes) {
  if (kernel.param_count != 1 || kernel.param_bytes != args_bytes) [[unlikely]]
    return Status(Code::kInvalidArgument,
                  strf("%s takes %d parameters of %zu bytes together; one argument struct of %zu bytes came",
                       kernel.name.c_str(), kernel.param_count, kernel.param_bytes, args_bytes));
  return check_shape(kernel, shape);
}

Status launch(const Kernel& kernel, const LaunchShape& shape, cu::Stream stream, const void* args, size_t args_bytes) {
  if (kernel.param_count != 1 || kernel.param_bytes != args_bytes) [[unlikely]]
    return check_launch(kernel, shape, args_bytes);
  void* params[1] = {const_cast<void*>(args)};  // the driver reads, and copies before it returns
  return launch_params(kernel, shape, stream, params);
}

Status launch_params(const Kernel& kernel, const LaunchShape& s, cu::Stream stream, void** params) {
  VV_TRY(check_shape(kernel, s));
  cu::LaunchAttr attrs[3];
  cu::LaunchConfig config = {{s.grid[0], s.grid[1], s.grid[2]},
                             {s.block[0], s.block[1], s.block[2]},
                             s.smem_bytes, stream, attrs, attributes(kernel, s, attrs)};
  const cu::Result r = detail::g_api.cuLaunchKernelEx(&config, kernel.function(), params, nullptr);
  if (r == cu::kSuccess) [[likely]] return Status();
  const detail::CallArg list[] = {detail::call_arg(kernel.name.c_str()), detail::call_arg(s.grid[0]),
                                  detail::call_arg(s.grid[1]),           detail::call_arg(s.grid[2]),
                                  detail::call_arg(s.block[0]),          detail::call_arg(s.block[1]),
                                  detail::call_arg(s.block[2]),          detail::call_arg(s.smem_bytes),
                                  detail::call_arg(s.cluster[0]),        detail::call_arg(stream)};
  return detail::call_failed(r, "cuLaunchKernelEx", "kernel, grid x y z, block x y z, smem, cluster x, stream", list,
                             10);
}

}  // namespace vivace::device
