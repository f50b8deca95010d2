// Whether streams of a device run beside one that waits at a gate.
#pragma once
#include "vivace/exec/gate.h"

namespace vivace::exec {

/// A device has so many hardware queues, and streams share them: one that waits at a shut gate holds up whatever lies
/// behind it in its queue, also who was to open the gate. Makes `streams` streams of the gate's device, lets one wait,
/// and returns how many of the others do nothing meanwhile; 0 on the host, which has no queues. Setup phase, and takes
/// some milliseconds. Errors: InvalidArgument for fewer than 2.
Result<int> held_streams(const Gate& gate, int streams);

}  // namespace vivace::exec
