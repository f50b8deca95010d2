// Stream and Event: ordered queues of work, and ordering between them.
#pragma once
#include <memory>

#include "vivace/base/status.h"
#include "vivace/exec/launch.h"

namespace vivace::exec {

/// What a backend captured: an executable list of work. Opaque to everything above exec.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual size_t launches() const = 0;
};

/// A point in a stream's order. Waiting for an event that was never recorded is no wait, as in CUDA.
class Event {
 public:
  virtual ~Event() = default;
  /// Blocks the host until the recorded work is done.
  virtual Status synchronize() = 0;
};

/// An ordered queue. Eager by default: launch() issues at once. Between begin_capture() and
/// end_capture() it records and nothing runs. Not thread-safe: one thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Status launch(const Launch& launch) = 0;
  /// Copies `bytes` between any two places this backend can reach. The ranges must not overlap.
  virtual Status copy(void* to, const void* from, size_t bytes) = 0;
  virtual Status begin_capture() = 0;
  virtual Result<std::unique_ptr<Executable>> end_capture() = 0;
  virtual bool capturing() const = 0;
  /// Issues captured work; never allocates. `executable` must come from this stream's backend.
  virtual Status replay(Executable& executable) = 0;
  virtual Status record(Event& event) = 0;
  virtual Status wait(Event& event) = 0;
  virtual Status synchronize() = 0;
};

}  // namespace vivace::exec
