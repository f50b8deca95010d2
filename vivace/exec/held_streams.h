// Whether streams of a device run beside one that waits at a gate.
#pragma once
#include "vivace/exec/gate.h"

namespace vivace::exec {

struct HeldStreams {
  int count = 0;        // that do nothing while one waits
  bool urgent = false;  // whether the most urgent one is among them
};

/// A device has so many hardware queues, and streams share them: one that waits at a shut gate holds up whatever lies
/// behind it in its queue, also who was to open the gate. Makes `streams` streams of the gate's device, lets one wait,
/// and tells which of the others, of which one is most urgent, do nothing meanwhile; none on the host. Setup phase,
/// and takes some milliseconds. Errors: InvalidArgument for fewer than 2.
Result<HeldStreams> held_streams(const Gate& gate, int streams);

}  // namespace vivace::exec
