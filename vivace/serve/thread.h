// start_thread(): threads of serving.
#pragma once
#include <functional>
#include <memory>
#include <thread>

#include "vivace/base/status.h"

namespace vivace::serve {

/// A thread that no signal of the program's is delivered to; faults of its own still are. Errors: LimitExceeded names
/// `who`.
Status start_thread(const char* who, std::unique_ptr<std::thread>* thread, std::function<void()> body);

}  // namespace vivace::serve
