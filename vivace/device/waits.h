// Calls of the driver that end only when every stream of a device has: how many there were, and when none may be made.
#pragma once
#include <cstdint>
#include <functional>

namespace vivace::device {

/// Such calls so far. Streams that stand at a shut gate are waited for too, so after models are ready none may happen
/// while somebody has gates: neither by who runs nor by who is closed.
uint64_t device_wide_waits();
void count_device_wide_wait();

/// As long as one lives, streams of this process may stand at a gate: for as long as an urgent call takes, or until
/// somebody goes on who is paused. Thread-safe.
class GatesAlive {
 public:
  GatesAlive();
  /// The last one's end makes the calls that were put off.
  ~GatesAlive();
  GatesAlive(const GatesAlive&) = delete;
};
bool gates_alive();

/// Makes `call`, which may wait for a whole device and fails silently: now, or, while gates are alive, when the last
/// of them has gone. For what frees things.
void when_no_gates(std::function<void()> call);

}  // namespace vivace::device
