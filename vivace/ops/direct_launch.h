// What the generated <op>_launch.h share: an op's kernels compiled by the caller's own nvcc, launched through
// the CUDA runtime. No JIT, no cache. For files that nvcc compiles.
#pragma once
#include <cuda_runtime.h>

#include <initializer_list>
#include <mutex>
#include <span>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/ops/registry.h"

namespace vivace::launch {

/// A kernel of this program and the name by which the op's table knows it.
struct Entry {
  const char* expression;
  const void* kernel;
};

inline Status cuda_status(cudaError_t e, const char* op, const char* call) {
  if (e == cudaSuccess) return {};
  return Status(Code::kCudaError, strf("%s: %s: %s", op, call, cudaGetErrorString(e)));
}

/// The entry that serves `key`, ready to launch. One search and one string a key and device, then a short scan.
template <class Op>
Result<const void*> entry_of(const typename Op::Gpu::Key& key, std::span<const Entry> entries, int device,
                             int smem_per_block) {
  struct Row {
    int device;
    typename Op::Gpu::Key key;
    const void* kernel;
  };
  static std::mutex mutex;
  static std::vector<Row> rows;
  const std::lock_guard lock(mutex);
  for (const Row& r : rows)
    if (r.device == device && r.key == key) return r.kernel;
  const std::string expression = Op::Gpu::instance(key);
  for (const Entry& e : entries) {
    if (expression != e.expression) continue;
    cudaFuncAttributes attributes;
    VV_TRY(cuda_status(cudaFuncGetAttributes(&attributes, e.kernel), Op::spec.name, "cudaFuncGetAttributes"));
    VV_TRY(cuda_status(cudaFuncSetAttribute(e.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            smem_per_block - static_cast<int>(attributes.sharedSizeBytes)),
                       Op::spec.name, "cudaFuncSetAttribute"));
    rows.push_back({device, key, e.kernel});
    return e.kernel;
  }
  return Status(Code::kUnsupported, strf("%s: %s is not compiled in: set VV_LAUNCH_<type> to 1 for its first type, or "
                                         "call the op of the library, which compiles at run time",
                                         Op::spec.name, expression.c_str()));
}

/// Launches on the current device. `args` is not checked: see the overload below. Errors: Unsupported, CudaError.
template <class Op>
Status direct(const typename Op::Args& args, std::span<const Entry> entries, cudaStream_t stream) {
  static_assert(!Op::spec.reads_ahead(), "a direct launch lets nothing be read ahead of the stream's order");
  const char* const op = Op::spec.name;
  int device = 0, major = 0, minor = 0, smem = 0;
  VV_TRY(cuda_status(cudaGetDevice(&device), op, "cudaGetDevice"));
  VV_TRY(cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), op,
                     "cudaDeviceGetAttribute"));
  VV_TRY(cuda_status(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), op,
                     "cudaDeviceGetAttribute"));
  VV_TRY(cuda_status(cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), op,
                     "cudaDeviceGetAttribute"));
  const Arch arch = arch_of(major, minor);
  if (arch == Arch::cpu)
    return Status(Code::kUnsupported, strf("%s: no kernels for compute capability %d.%d", op, major, minor));
  Result<typename Op::Gpu::Key> key = Op::Gpu::pick(args, arch);
  if (!key.ok()) return std::move(key).status().with_context(op);
  Result<const void*> kernel = entry_of<Op>(*key, entries, device, smem);
  if (!kernel.ok()) return std::move(kernel).status();
  exec::Launch launch;
  Op::Gpu::shape(args, *key, &launch);
  if (launch.grid[0] == 0) return {};  // no rows
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(launch.grid[0], launch.grid[1], launch.grid[2]);
  config.blockDim = dim3(launch.block[0], launch.block[1], launch.block[2]);
  config.dynamicSmemBytes = launch.smem_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (launch.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim = {launch.cluster, 1, 1};
    ++config.numAttrs;
  }
  if (launch.pdl && major >= 9) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
    ++config.numAttrs;
  }
  void* parameters[] = {const_cast<typename Op::Args*>(&args)};
  return cuda_status(cudaLaunchKernelExC(&config, *kernel, parameters), op, "cudaLaunchKernelExC");
}

/// The same with ports and attributes by name, checked as everywhere. Tensors are in device memory.
template <class Op>
Status direct(std::initializer_list<ops::PortArg> ports, std::initializer_list<ops::AttrArg> attrs,
              std::span<const Entry> entries, cudaStream_t stream) {
  ops::Call call(Op::spec);
  VV_TRY(ops::bind(call, ports, attrs));
  VV_TRY(call.check());
  if (call.place() != Place::device)
    return call.error(Code::kInvalidDevice, "the tensors are in host memory, the kernels run on the device");
  typename Op::Args args{};
  VV_TRY(Op::bind(call, &args));
  return direct<Op>(args, entries, stream);
}

}  // namespace vivace::launch
