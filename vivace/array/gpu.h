// Maps and folds of arrays on a GPU: kernels by key, launched in the order of streams. Nothing here waits.
#pragma once
#include "vivace/array/array.h"
#include "vivace/array/gpu_plan.h"
#include "vivace/kernels/map/order.h"

namespace vivace::array {

/// Runs a collapsed map on the device. `scalars` as in plan_map. Errors: Unsupported (chip, no NVRTC), CompileError,
/// those of the driver.
Status gpu_map(const kernels::MapProgram& p, const kernels::MapSpace& s, uint32_t scalars, int device, const Exec& exec,
               const Expression* own = nullptr);
/// The same for a collapsed fold with at least one output.
Status gpu_fold(const kernels::How& how, const kernels::MapProgram& p, const kernels::FoldSpace& f, uint32_t scalars,
                Elem out, int device, const Exec& exec);

/// A kernel of kernels/map/order.cuh.
struct OrderKernel {
  const char* name;        // of the function, for errors and profiles
  std::string expression;  // within vivace::kernels
  int64_t blocks = 0;
  int threads = kernels::kMapThreads;
  int64_t bytes = 0;       // the least that it moves

  jit::Source source(Arch arch) const;
};
Status gpu_order(const OrderKernel& k, const void* args, size_t args_bytes, int device, const Exec& exec);

/// Host memory that kernels write when an index is out of range: {the index, 1}.
Result<int64_t*> bad_place(int device);
/// Once the device was waited for: InvalidArgument if one was, which is told once.
Status take_bad_place(int device);

// What linear.cc does on a CPU by cpu/map/linear.h: of dense arrays, rows along the last axis, all on one device.
/// Rows added up or multiplied, in x's type. `x` may be the result: it is written in place.
Status gpu_scan(bool product, const Array& x, const Exec& exec);
/// Stable, NaNs last: the elements in order, or with `order` their places as i64.
Result<Array> gpu_sort(const Array& x, bool descending, bool order, const Exec& exec);
/// `x` [n] and `values` of one type; `sorter` i64 [n], or null.
Result<Array> gpu_searchsorted(const Array& x, const Array& values, bool right, const Array* sorter, const Exec& exec);
/// Into `to`: g's sizes in elements of `bytes`; `at` i64, or u32 places of gpu_sort, which are not looked at.
Status gpu_gather(const Array& x, const Array& at, const Array& to, kernels::GatherLaunch g, int bytes, bool along,
                  const Exec& exec);

/// Lets work that is queued on exec.stream next see what other streams have last done with the memory. Nothing on a
/// CPU.
Status before_use(const Array& a, const Exec& exec);
/// Remembers that work queued on exec.stream uses the memory.
Status after_use(const Array& a, const Exec& exec);

}  // namespace vivace::array
