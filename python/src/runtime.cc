#include "runtime.h"

#include <pthread.h>

#include <unordered_map>

#include "errors.h"
#include "gil.h"
#include "gpu_runtime.h"
#include "vivace/base/check.h"

namespace vivace::python {
namespace {

Runtime* instance = nullptr;

/// `with Capture() as c:` records the ops that this thread calls; c.replay() runs them again on the
/// same arrays, which it keeps alive.
struct Capture {
  std::unique_ptr<exec::CpuStream> stream;
  std::unique_ptr<exec::Executable> executable;
  nb::list keep;
  int pool_number = 0;  // Runtime::pool_number at capture
  int64_t number = 0;   // of an entered one

  Capture() = default;
  Capture(const Capture&) = delete;
  ~Capture();
};

/// Entered captures by number; with the GIL. A thread knows its own by number, as one that is dropped without leaving
/// it, on whatever thread, must not be found again.
std::unordered_map<int64_t, Capture*>& entered() {
  static auto* all = new std::unordered_map<int64_t, Capture*>;
  return *all;
}
thread_local int64_t current_number = 0;

Capture* current_capture() {
  if (current_number == 0) [[likely]] return nullptr;
  const auto found = entered().find(current_number);
  if (found != entered().end()) return found->second;
  current_number = 0;
  return nullptr;
}

Capture::~Capture() { entered().erase(number); }

/// Runs f with the pool to itself and without the GIL.
template <class F>
Status alone(F&& f) {
  const NoGil release;
  Runtime& r = Runtime::get();
  const std::lock_guard hold(r.lock);
  return f(r);
}

Status set_threads(int n) {
  if (n < 0 || n > 1024)
    return Status(Code::kInvalidArgument, strf("set_threads: wanted 0 (one a physical core) to 1024, got %d", n));
  if (current_capture() != nullptr) return Status(Code::kFailedPrecondition, "set_threads: not inside a capture");
  return alone([n](Runtime& r) -> Status {
    r.make_pool(n);
    return {};
  });
}

Status enter(Capture& c) {
  if (current_capture() != nullptr)
    return Status(Code::kFailedPrecondition, "capture: this thread is capturing already; captures do not nest");
  if (c.stream != nullptr) return Status(Code::kFailedPrecondition, "capture: already used; make a new Capture");
  VV_TRY(alone([&c](Runtime& r) {
    c.pool_number = r.pool_number;
    c.stream = std::make_unique<exec::CpuStream>(*r.pool);
    return c.stream->begin_capture();
  }));
  static int64_t count = 0;
  c.number = current_number = ++count;
  entered()[c.number] = &c;
  return {};
}

Status leave(Capture& c) {
  if (current_capture() != &c)
    return Status(Code::kFailedPrecondition, "capture: left on another thread than it was entered on");
  entered().erase(c.number);
  current_number = 0;
  auto e = c.stream->end_capture();
  if (!e.ok()) return std::move(e).status();
  c.executable = std::move(e).value();
  return {};
}

Status replay(Capture& c) {
  if (c.executable == nullptr)
    return Status(Code::kFailedPrecondition, "replay: nothing is captured yet; replay after the with block");
  if (current_capture() != nullptr) return Status(Code::kFailedPrecondition, "replay: not inside a capture");
  return alone([&c](Runtime& r) -> Status {
    if (c.pool_number != r.pool_number)
      return Status(Code::kFailedPrecondition, "replay: set_threads made a new pool since the capture; capture again");
    return c.stream->replay(*c.executable);
  });
}

}  // namespace

void Runtime::make_pool(int threads) {
  static int made = 0;
  auto fresh = std::make_unique<cpu::Pool>(threads);
  stream.reset();
  pool = std::move(fresh);
  pool_number = ++made;
  stream = std::make_unique<exec::CpuStream>(*pool);
}

Runtime& Runtime::get() {
  // Leaked on purpose: worker threads must not be joined from static destructors. The GIL does not
  // guard this: two first calls may race.
  static std::mutex making;
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] {
      instance = nullptr;
      new (&making) std::mutex;
    });
  });
  const std::lock_guard hold(making);
  if (instance == nullptr) {
    auto* r = new Runtime;
    r->make_pool(0);
    instance = r;
  }
  return *instance;
}

Status issue(const ops::OpRow& row, ops::Call& call, const Borrowed& from) {
  return issue(call, from, [&](ops::Recorder& recorder) { return recorder.issue(row, call); });
}

Status issue(ops::Call& call, const Borrowed& from, const std::function<Status(ops::Recorder&)>& record) {
  if (from.device >= 0) return issue_on_gpu(call, from, record);
  if (Capture* const current = current_capture()) {
    ops::Recorder recorder(*current->stream);  // records: no work runs, the pool is not touched
    return record(recorder);
  }
  return alone([&](Runtime& r) {
    ops::Recorder recorder(*r.stream);
    return record(recorder);
  });
}

nb::list* capture_keep() {
  Capture* const current = current_capture();
  return current != nullptr ? &current->keep : nullptr;
}

void add_runtime(nb::module_& m) {
  nb::class_<Capture>(
      m, "Capture",
      "Records ops instead of running them: `with Capture() as c: ops.norm(...)`, then c.replay().\n\n"
      "Everything is checked while capturing. Replay reads and writes the same arrays and never allocates.")
      .def(nb::init<>())
      .def("__enter__",
           [](nb::handle self) {
             check(enter(nb::cast<Capture&>(self)));
             return nb::borrow(self);
           })
      .def("__exit__", [](Capture& c, nb::args) { check(leave(c)); })
      .def(
          "replay", [](Capture& c) { check(replay(c)); }, "Runs what was captured.")
      .def_prop_ro(
          "launches", [](const Capture& c) { return c.executable ? c.executable->launches() : 0; },
          "Number of captured launches.");
  m.def("set_threads", [](int n) { check(set_threads(n)); }, nb::arg("n"),
        "Number of threads that CPU ops use, the calling one included; 0 means one a physical core.\n\n"
        "Captures made before it can no longer be replayed.");
  m.def("threads", [] {
    int n = 0;
    check(alone([&n](Runtime& r) { n = r.pool->threads(); return Status(); }));
    return n;
  }, "Number of threads that CPU ops use.");
}

}  // namespace vivace::python
