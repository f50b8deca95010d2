#include "vivace/serve/thread.h"

#include <csignal>
#include <pthread.h>

#include <system_error>

namespace vivace::serve {

Status start_thread(const char* who, std::unique_ptr<std::thread>* thread, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    *thread = std::make_unique<std::thread>(std::move(body));
  } catch (const std::system_error& e) {
    status = Status(Code::kLimitExceeded, std::string(who) + ": no thread for it: " + e.what() + "; raise `ulimit -u`");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

}  // namespace vivace::serve
