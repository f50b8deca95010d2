// Compiled without exceptions (CMakeLists.txt): pthread_cleanup_push() is then a jump that is taken before the unwinder
// comes to this frame, and not an object whose destructor the unwinder would call.
#include "gil.h"

#include <pthread.h>
#include <unistd.h>

namespace vivace::python {
namespace {

void sleep_for_good(void*) {
  for (;;) pause();
}

}  // namespace

void take_gil(PyThreadState* state) noexcept {
  pthread_cleanup_push(sleep_for_good, nullptr);
  PyEval_RestoreThread(state);
  pthread_cleanup_pop(0);
}

}  // namespace vivace::python
