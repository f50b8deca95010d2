// GpuTimer: how long a device took between two points of a stream, by its own clock.
#pragma once
#include <memory>

#include "vivace/exec/stream.h"

namespace vivace::engine {

/// Neither call allocates. Not thread-safe: as the stream.
class GpuTimer {
 public:
  /// Of the host's streams, whose calls return when their work is done: counts nothing.
  static Result<std::unique_ptr<GpuTimer>> open(exec::Stream& stream);
  virtual ~GpuTimer() = default;
  /// On any stream of the device that it was opened for, both on the same.
  virtual Status start(exec::Stream&) { return {}; }
  virtual Status stop(exec::Stream&) { return {}; }
  /// Microseconds from the last start() to the last stop(), after the stream was waited for; 0 on the host.
  virtual Result<double> us() const { return 0.0; }
};

}  // namespace vivace::engine
