// Residence: what one owner, a model say, has in the pool, as a whole that is on the device or sleeps on the host.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "vivace/device/memory.h"

namespace vivace::device {

/// Blocks of one tenant of the pool. While it is awake it holds a lease on each, so that nothing of it is evicted;
/// while it sleeps all of them are in page-locked host memory, and their device memory is anybody's. Each has pages of
/// its own. Addresses stay, so captured graphs do. Thread-safe; whoever uses the memory does not while it sleeps.
class Residence {
 public:
  struct Moved {
    int64_t bytes = 0;   // as they were asked for
    double seconds = 0;
  };
  /// `quota_bytes`: most that it may ask for in all; 0: any. `pool` outlives it.
  static std::shared_ptr<Residence> create(Pool& pool, const std::string& name, int64_t quota_bytes);
  /// Its blocks are gone.
  ~Residence();
  Residence(const Residence&) = delete;

  /// Streams that use its blocks: what is freed, or sleeps, waits for their work and for nobody else's. One that is
  /// removed has done all of its work.
  void add_stream(StreamId stream);
  void remove_stream(StreamId stream);

  /// Until they have done what is queued on them: for memory beside its blocks that they use.
  Status wait();

  /// Whether its quota lets it have so many more. Errors: LimitExceeded with the numbers.
  Status check_quota(const std::string& name, size_t bytes);
  /// Errors: Pool::allocate()'s; check_quota()'s; FailedPrecondition while it sleeps.
  Result<Block*> allocate(const std::string& name, size_t bytes, StreamId first);
  /// Also while it sleeps. Errors: Pool::free()'s.
  Status free(Block* block);
  /// All of it, or, where an error comes, none: then it is awake as before. Errors: FailedPrecondition (it sleeps);
  /// OutOfMemory (of the host).
  /// `pause`, where given: while it is true, copies stand still at their next chunk.
  Result<Moved> sleep(const std::atomic<bool>* pause = nullptr);
  /// The reverse; after an error it sleeps as before. Errors: FailedPrecondition (it is awake); OutOfMemory (of the
  /// device).
  Result<Moved> wake(const std::atomic<bool>* pause = nullptr);
  bool asleep() const { return asleep_.load(std::memory_order_acquire); }

 private:
  struct Held {
    Block* block;
    bool leased;
  };
  Residence(Pool& pool, std::string name, int64_t quota_bytes)
      : pool_(pool), name_(std::move(name)), quota_(quota_bytes), tenant_(pool.add_tenant(name_, 0)) {}
  // All of these want mutex_ held.
  Status lease(Held* held, const std::atomic<bool>* pause = nullptr);
  Status unlease(Held* held);
  Status move_out(Held* held, const std::atomic<bool>* pause = nullptr);
  Status fits(const std::string& name, size_t bytes) const;

  Pool& pool_;
  const std::string name_;
  const int64_t quota_;
  const TenantId tenant_;
  std::mutex mutex_;
  std::vector<StreamId> streams_;
  std::vector<Held> blocks_;
  std::atomic<bool> asleep_{false};
};

}  // namespace vivace::device
