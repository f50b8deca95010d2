// How often this process has waited for a whole device.
#pragma once
#include <cstdint>

namespace vivace::device {

/// Calls of Device::synchronize() so far. Such a wait ends only when every stream has, also those that stand at a shut
/// gate: after models are ready none may happen until one is closed.
uint64_t device_wide_waits();

}  // namespace vivace::device
