// Page-locked memory that is none, for tests of HostPool's users: it counts what is held and spoils what was freed.
#pragma once
#include <atomic>
#include <cstring>

#include "vivace/engine/host_pool.h"

namespace vivace::engine::testing {

struct FakeLock {
  std::atomic<size_t> held{0}, most{0};
  std::atomic<int> calls{0};
  std::atomic<bool> fails{false};

  HostPool::Lock lock() {
    return [this](size_t bytes) -> Result<exec::Buffer> {
      ++calls;
      if (fails) return Status(Code::kOutOfMemory, "planned");
      const size_t now = held.fetch_add(bytes) + bytes;
      for (size_t seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
      }
      auto* data = new std::byte[bytes];
      return exec::Buffer(
          "locked", data, bytes, Place::host,
          [](void* p, size_t size, void* fake) {
            std::memset(p, 0xee, size);
            delete[] static_cast<std::byte*>(p);
            static_cast<FakeLock*>(fake)->held -= size;
          },
          this);
    };
  }
};

}  // namespace vivace::engine::testing
