// Ops called from Python on device tensors: which stream they run on.
#pragma once
#include <nanobind/nanobind.h>

#include "tensor.h"
#include "vivace/exec/cuda_stream.h"
#include "vivace/ops/registry.h"

namespace vivace::python {

/// Lets `record` launch `call` on the GPU of `from`. Does not wait for the work. GIL held.
Status issue_on_gpu(ops::Call& call, const Borrowed& from, const std::function<Status(ops::Recorder&)>& record);

/// Whether set_stream() sends this thread's ops to a stream of the caller's choice.
bool stream_is_overridden();

/// Ops that are sent to `stream`'s handle go through it, and so heed the gates that it passes, until take_back(). GIL
/// held.
void lend_stream(exec::CudaStream& stream);
void take_back(const exec::CudaStream& stream);

/// use_stream.
void add_gpu_runtime(nb::module_& m);

}  // namespace vivace::python
