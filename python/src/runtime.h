// The process's CPU pool and the stream that ops called from Python run on.
#pragma once
#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <mutex>

#include "tensor.h"
#include "vivace/cpu/pool.h"
#include "vivace/exec/cpu_stream.h"
#include "vivace/ops/registry.h"

namespace vivace::python {

namespace nb = nanobind;

/// One pool for all Python threads; `lock` makes them take turns, as the pool demands. It is only
/// taken without the GIL, so a thread that waits for it never blocks the others.
struct Runtime {
  std::mutex lock;
  std::unique_ptr<cpu::Pool> pool;
  int pool_number = 0;  // counts the pools of this process and its parents: addresses repeat
  std::unique_ptr<exec::CpuStream> stream;  // eager work

  void make_pool(int threads);
  /// The one instance; after a fork the child makes its own, as threads do not survive it.
  static Runtime& get();
};

/// Checks, prepares and launches a bound call. Host tensors: on the capture this thread is in, else at
/// once. Device tensors: on the stream of use_stream(), else where their producer works; the call returns
/// before the work is done. Called with the GIL held.
Status issue(const ops::OpRow& row, ops::Call& call, const Borrowed& from);
/// The same with what is done with the recorder left to the caller. `call` is for errors only.
Status issue(ops::Call& call, const Borrowed& from, const std::function<Status(ops::Recorder&)>& record);

/// The list that keeps captured arguments alive, or null outside a capture.
nb::list* capture_keep();

/// vivace.Capture, set_threads, threads.
void add_runtime(nb::module_& m);

}  // namespace vivace::python
