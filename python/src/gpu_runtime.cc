#include "gpu_runtime.h"

#include <algorithm>
#include <vector>

#include "array.h"
#include "errors.h"
#include "gil.h"
#include "vivace/base/check.h"
#include "vivace/ops/kernel_store.h"

namespace vivace::python {
namespace {

struct Seen {
  int device;
  void* handle;
  std::unique_ptr<exec::CudaStream> stream;
};

/// Wrappers of streams that others own, by handle. A program works on a handful; guarded by the GIL.
std::vector<Seen> seen;
/// Streams that Vivace owns; guarded by the GIL.
std::vector<exec::CudaStream*> lent;

Result<exec::CudaStream*> stream_of(int ordinal, void* handle) {
  for (exec::CudaStream* const s : lent)
    if (s->handle() == handle && s->device()->info().ordinal == ordinal) return s;
  for (const Seen& s : seen)
    if (s.device == ordinal && s.handle == handle) return s.stream.get();
  VV_ASSIGN(device::Device* const device, device::Device::get(ordinal));
  // The first use of a GPU, or nearly: kernels that no cache has are compiled with this environment's NVRTC.
  nb::module_::import_("vivace.jit").attr("find_nvrtc")();
  seen.push_back(
      {ordinal, handle,
       std::make_unique<exec::CudaStream>(device::Stream::borrow(*device, static_cast<cu::Stream>(handle)))});
  return seen.back().stream.get();
}

thread_local bool overridden = false;
thread_local void* override_handle = nullptr;
thread_local bool constant_weights = false;

}  // namespace

Status issue_on_gpu(ops::Call& call, const Borrowed& from, const std::function<Status(ops::Recorder&)>& record) {
  const Result<exec::CudaStream*> stream = stream_of(from.device, overridden ? override_handle : from.stream);
  if (!stream.ok()) {
    VV_TRY(call.check());  // what is wrong with the call itself comes first, with or without a GPU
    return stream.status();
  }
  ops::Recorder recorder(**stream, constant_weights ? ops::Weights::constant : ops::Weights::ordered);
  return record(recorder);
}

bool stream_is_overridden() { return overridden; }

void lend_stream(exec::CudaStream& stream) {
  if (std::find(lent.begin(), lent.end(), &stream) == lent.end()) lent.push_back(&stream);
}
void take_back(const exec::CudaStream& stream) { std::erase(lent, &stream); }

array::Exec exec_on_gpu() {
  array::Exec exec;
  if (overridden && override_handle != nullptr) exec.stream = reinterpret_cast<uintptr_t>(override_handle);
  exec.compile = [](const jit::Source& source) -> Result<jit::BinaryPtr> {
    nb::module_::import_("vivace.jit").attr("find_nvrtc")();
    const NoGil release;
    VV_ASSIGN(jit::Compiler* const all, ops::compiler());
    return all->get(source);
  };
  exec.gemm = [](const Tensor& x, const Tensor& w, const Tensor& out, int device, uintptr_t handle) -> Status {
    VV_ASSIGN(exec::CudaStream* const stream, stream_of(device, reinterpret_cast<void*>(handle)));
    ops::Recorder recorder(*stream, ops::Weights::ordered);
    return recorder(x.shape.rank == 2 ? ops::gemm : ops::batched_gemm, {{"x", x}, {"w", w}, {"out", out}}, {});
  };
  return exec;
}

void add_gpu_runtime(nb::module_& m) {
  m.def(
      "set_stream",
      [](nb::object handle) {
        overridden = !handle.is_none();
        override_handle = overridden ? reinterpret_cast<void*>(nb::cast<uintptr_t>(handle)) : nullptr;
      },
      nb::arg("handle").none(),
      "CUDA stream (an integer handle) of this thread's ops on device tensors; None follows the tensors' framework.");
  m.def(
      "constant_weights", [] { return constant_weights; },
      "Whether this thread's ops may read weights ahead of the stream's order.");
  m.def(
      "set_constant_weights", [](bool on) { constant_weights = on; }, nb::arg("on"),
      "See vivace.ops.constant_weights().");
}

}  // namespace vivace::python
