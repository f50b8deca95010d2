// Maps and folds of arrays on a GPU: kernels by key, launched in the order of streams. Nothing here waits.
#pragma once
#include "vivace/array/array.h"
#include "vivace/array/gpu_plan.h"

namespace vivace::array {

/// Runs a collapsed map on the device. `scalars` as in plan_map. Errors: Unsupported (chip, no NVRTC), CompileError,
/// those of the driver.
Status gpu_map(const kernels::MapProgram& p, const kernels::MapSpace& s, uint32_t scalars, int device, const Exec& exec,
               const Expression* own = nullptr);
/// The same for a collapsed fold with at least one output.
Status gpu_fold(const kernels::How& how, const kernels::MapProgram& p, const kernels::FoldSpace& f, uint32_t scalars,
                Elem out, int device, const Exec& exec);

/// Lets work that is queued on exec.stream next see what other streams have last done with the memory. Nothing on a
/// CPU.
Status before_use(const Array& a, const Exec& exec);
/// Remembers that work queued on exec.stream uses the memory.
Status after_use(const Array& a, const Exec& exec);

}  // namespace vivace::array
