// NoGil: runs without the GIL, also on threads that the interpreter's end meets.
#pragma once
#include <Python.h>

namespace vivace::python {

/// PyEval_RestoreThread(); where it would end the thread, the thread sleeps until the process is gone.
void take_gil(PyThreadState* state) noexcept;

/// nb::gil_scoped_release, but for daemon threads: where the interpreter ends meanwhile, taking the GIL ends the thread
/// by unwinding its stack, which C++ frames do not let pass (std::terminate, or an abort in the unwinder).
class NoGil {
 public:
  NoGil() : state_(PyEval_SaveThread()) {}
  NoGil(const NoGil&) = delete;
  ~NoGil() { take_gil(state_); }

 private:
  PyThreadState* state_;
};

/// For destructors of objects whose end takes long, a model's say: others go on meanwhile.
template <class T>
void let_go(T* object) {
  if (*object == nullptr) return;
  if (!PyGILState_Check()) return object->reset();
  const NoGil release;
  object->reset();
}

}  // namespace vivace::python
