// Stream and Event: ordered queues of work, and ordering between them.
#pragma once
#include <memory>

#include "vivace/base/status.h"
#include "vivace/exec/launch.h"

namespace vivace::device {
class Device;
}

namespace vivace::exec {

class Gate;

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
///
/// A capture holds launches, copies and gates of one stream. replay(), record(), wait() and synchronize()
/// answer FailedPrecondition while capturing: order between captured graphs is a Plan's. Executables
/// and events of another backend are refused with InvalidArgument. A refused call changes nothing.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Status launch(const Launch& launch) = 0;
  /// Copies `bytes` between any two places this backend can reach. Host memory must stay as it is
  /// until the copy has run. Errors: AliasError if the ranges overlap, InvalidArgument for null.
  virtual Status copy(void* to, const void* from, size_t bytes) = 0;
  /// Errors: FailedPrecondition when already capturing.
  virtual Status begin_capture() = 0;
  /// Capturing ends, whatever the answer. Errors: FailedPrecondition without begin_capture().
  virtual Result<std::unique_ptr<Executable>> end_capture() = 0;
  virtual bool capturing() const = 0;
  /// The GPU this stream runs on; nullptr for the CPU backend.
  virtual const device::Device* device() const { return nullptr; }
  /// Multiprocessors of the partition that its work stays on; 0: all of the device's.
  virtual int partition() const { return 0; }
  /// Issues captured work; never allocates. `executable` must come from this stream's backend.
  virtual Status replay(Executable& executable) = 0;
  virtual Status record(Event& event) = 0;
  virtual Status wait(Event& event) = 0;
  /// What follows on this stream runs once every word of `mask` is 0; a capture records the wait, and each replay waits
  /// anew. A word may be shut again behind a wait that is through. Errors: InvalidArgument for a mask without words of
  /// the gate.
  virtual Status pass(Gate& gate, uint32_t mask) = 0;
  /// Shuts or opens a stream word of the gate once what was queued before is done. Errors: InvalidArgument.
  virtual Status set(Gate& gate, int word, bool shut) = 0;
  virtual Status synchronize() = 0;
};

/// For backends: FailedPrecondition "<backend> stream: <call>: <why>".
Status wrong_time(const char* backend, const char* call, const char* why);
/// For backends: the argument checks of copy(), the same in all of them.
Status check_copy(const char* backend, const void* to, const void* from, size_t bytes);

}  // namespace vivace::exec
