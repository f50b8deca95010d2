// SipHash-2-4 with 128 bits: a keyed hash, whose collisions nobody finds who does not know the key.
#pragma once
#include <cstddef>
#include <cstdint>

#include "vivace/base/status.h"

namespace vivace {

struct Hash128 {
  uint64_t lo = 0, hi = 0;
  bool operator==(const Hash128&) const = default;
};

Hash128 siphash(const Hash128& key, const void* data, size_t bytes);

/// `bytes` of the system's randomness. Errors: IoError.
Status random_bytes(void* to, size_t bytes);

}  // namespace vivace
