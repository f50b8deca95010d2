// Backend: where streams, events and buffers of one kind come from.
#pragma once
#include <memory>
#include <string>

#include "vivace/exec/buffer.h"
#include "vivace/exec/gate.h"
#include "vivace/exec/stream.h"

namespace vivace::exec {

/// Makes the objects of one backend; they must not outlive it, nor be mixed with another's: a stream
/// refuses foreign events and executables. Setup phase only: every call may allocate.
class Backend {
 public:
  virtual ~Backend() = default;
  /// "cpu", "cuda:0": static for the life of the backend.
  virtual const char* name() const = 0;
  /// Stream priorities run from 0, the least urgent, to levels - 1.
  virtual int priority_levels() const = 0;
  /// Errors: InvalidArgument names the range of levels.
  virtual Result<std::unique_ptr<Stream>> make_stream(int level = 0) = 0;
  virtual Result<std::unique_ptr<Event>> make_event() = 0;
  /// Errors: InvalidArgument; Unsupported where the driver has no stream memory operations.
  virtual Result<std::unique_ptr<Gate>> make_gate(int stream_words, int host_words) = 0;
  /// `bytes` > 0 of zeroed memory that this backend's launches reach, aligned to 256 bytes.
  /// Errors: InvalidArgument, OutOfMemory with name and size.
  virtual Result<Buffer> make_buffer(std::string name, size_t bytes) = 0;
};

}  // namespace vivace::exec
