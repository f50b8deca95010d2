// Pool: device memory at stable addresses, for many tenants, that can say exactly where each byte is.
#pragma once
#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "vivace/device/memory_backend.h"

namespace vivace::device {

/// Rounds a request up to its size class: 256-byte steps, then four classes a power of two (at most
/// 25 % is lost) up to 448 KiB, and beyond, whole multiples of `granularity` of at least 512 KiB. 0 on overflow.
size_t size_class(size_t bytes, size_t granularity);

struct TenantStats {
  std::string name;
  int64_t quota_bytes = 0;    // 0: no limit of its own
  int64_t used_bytes = 0;     // resident, size classes
  int64_t evicted_bytes = 0;  // on the host
  int64_t peak_bytes = 0;     // of used_bytes
  bool gone = false;          // stats() leaves it out
};

/// All sizes in bytes. Always mapped = used + cached, and used = requested + rounding.
struct PoolStats {
  int64_t capacity = 0;
  int64_t mapped = 0;     // device memory that the pool holds
  int64_t used = 0;       // in live resident blocks
  int64_t requested = 0;  // the same, as callers asked for it
  int64_t cached = 0;     // mapped but free
  int64_t stranded = 0;   // the part of cached in slabs with a live cell: trim() cannot return it
  int64_t evicted = 0;    // of live blocks, now in host memory
  int64_t pinned = 0;     // in blocks with leases
  int64_t peak_used = 0;
  int64_t outside = 0;  // used on the device by others: frameworks, contexts, other processes
  int64_t device_free = 0, device_total = 0;
  int64_t allocations = 0, reuses = 0, maps = 0, evictions = 0, restores = 0, failures = 0;
  std::vector<TenantStats> tenants;
  /// Share of mapped memory lost to rounding and to stranded cells.
  double fragmentation() const {
    return mapped == 0 ? 0.0 : static_cast<double>(used - requested + stranded) / static_cast<double>(mapped);
  }
  std::string to_string() const;
};

/// A live block.
struct BlockStats {
  std::string name, tenant;
  int64_t requested = 0, bytes = 0;  // as asked for; what it takes
  bool resident = true, leased = false;
};

using TenantId = int;

struct PoolOptions {
  int64_t capacity = 0;    // most device memory the pool may hold; 0: all of the device
  size_t range_bytes = 0;  // addresses reserved at a time; 0: twice the device's memory
};

struct Allocation {
  size_t bytes = 0;
  TenantId tenant = 0;
  StreamId stream = 0;     // the stream that uses it first; 0: none yet known
  std::string name;        // for errors and reports
  bool evictable = false;  // may move to the host while nobody holds a lease; needs acquire(); has pages of its own
};

class Block;

/// Thread-safe. Blocks and leases must not outlive it.
class Pool {
 public:
  static Result<std::unique_ptr<Pool>> create(MemoryBackend& backend, PoolOptions options);
  ~Pool();
  Pool(const Pool&) = delete;

  /// Tenant 0 exists from the start and has no quota. `quota_bytes` 0: none.
  TenantId add_tenant(const std::string& name, int64_t quota_bytes);
  /// Its number may be another's from here on. Blocks it still has become tenant 0's.
  void remove_tenant(TenantId tenant);

  /// Taken, in this order, from: a free block of the class that the stream can use at once, new device
  /// memory, a free block that another stream is about to finish with (this stream then waits for it)
  /// or a larger cell, trim(), evicted cold blocks (of any tenant; to keep a quota, of this one).
  /// Errors: OutOfMemory names all sizes involved; no block is lost by it, and other requests go on.
  Result<Block*> allocate(const Allocation& request);
  /// Gives the block back once `stream` has reached this point. Errors: FailedPrecondition with leases.
  Status free(Block* block, StreamId stream);

  /// Makes the block resident, contents intact, and keeps it so until release(). The touch to make
  /// before work on an evictable block is queued; for a resident block it takes no lock.
  /// Errors: OutOfMemory. Pin for the life of a graph by holding the lease.
  /// `pause`, where given: while it is true, the copy stands still at its next chunk.
  Status acquire(Block* block, const std::atomic<bool>* pause = nullptr);
  /// `stream`: where the block was used under the lease; eviction waits for that work.
  Status release(Block* block, StreamId stream);
  /// Until what `stream` has queued so far is done.
  Status wait(StreamId stream);
  /// `stream` uses the block too: what follows its end waits for what the stream has queued so far.
  Status mark_used(Block* block, StreamId stream);
  /// Moves a cold block to the host now. Errors: FailedPrecondition if it is leased or not evictable.
  Status evict(Block* block, const std::atomic<bool>* pause = nullptr);

  /// Returns free memory to the device; answers how many bytes.
  Result<int64_t> trim();
  Result<PoolStats> stats() const;
  /// peak_used and the tenants' peaks are what is used now.
  void reset_peak();
  /// The capacity from now on; 0: all of the device. Free memory beyond it goes back to the device; live blocks stay,
  /// and requests that need more device memory fail until it fits. Errors: InvalidArgument if negative.
  Status set_capacity(int64_t bytes);
  /// Every block that somebody has, in no order.
  std::vector<BlockStats> blocks() const;

 private:
  friend class Arena;
  friend class Block;
  struct Slab;  // device memory cut into cells of one class
  Pool(MemoryBackend& backend, PoolOptions options);
  // All of these want mutex_ held.
  Result<uint64_t> take_addresses(size_t bytes);
  Block* reuse(size_t bytes, StreamId stream, bool wait);
  Result<Block*> grow(size_t bytes);
  Status map_counted(uint64_t address, size_t bytes);
  Status unmap_counted(uint64_t address, size_t bytes);
  Status with_room(const std::function<Status()>& attempt);
  Status fit_quota(TenantId tenant, size_t bytes);
  bool evict_coldest(TenantId only, Status* why);
  Status evict_locked(Block* block, const std::atomic<bool>* pause = nullptr);
  Status restore_locked(Block* block, const std::atomic<bool>* pause);
  Result<int64_t> trim_locked(bool wait);
  Status drop(Block* block);
  void count_live(TenantId tenant, int64_t bytes, int64_t requested);
  Status fail(const std::string& name, size_t bytes, TenantId tenant, const Status& cause);
  Result<bool> idle(Block* block, StreamId stream, bool wait);

  MemoryBackend& backend_;
  PoolOptions options_;
  size_t granularity_ = 0;
  mutable std::mutex mutex_;
  PoolStats counters_;  // the additive fields
  std::vector<TenantStats> tenants_;
  std::vector<std::pair<uint64_t, size_t>> ranges_;    // reserved
  uint64_t next_ = 0, end_ = 0;                        // unused part of the last range
  std::map<size_t, std::vector<uint64_t>> addresses_;  // returned address spans, by size
  std::map<size_t, std::vector<Block*>> free_;         // mapped, by class; the last is used first
  std::list<std::unique_ptr<Block>> blocks_;
  std::list<std::unique_ptr<Slab>> slabs_;
  std::atomic<uint64_t> clock_{0};  // counts acquires
};

/// One piece of the pool's memory. Its address never changes.
class Block {
 public:
  uint64_t address() const { return address_; }
  void* data() const { return reinterpret_cast<void*>(address_); }
  size_t bytes() const { return requested_; }
  const std::string& name() const { return name_; }
  bool resident() const { return leases_.load(std::memory_order_acquire) >= 0; }

 private:
  friend class Pool;
  static constexpr int kAway = -1;  // leases_ of a block that is not resident
  struct Use {
    StreamId stream;
    MemoryBackend::Event event;
  };
  /// Remembers the stream's work up to now as the last that used this block.
  Status mark_used(MemoryBackend& backend, StreamId stream);

  uint64_t address_ = 0;
  size_t class_bytes_ = 0, requested_ = 0;
  TenantId tenant_ = 0;
  std::string name_;
  bool evictable_ = false, live_ = false;
  Pool::Slab* slab_ = nullptr;           // of a small block
  std::atomic<int> leases_{0};           // kAway while it is not resident
  std::atomic<uint64_t> last_touch_{0};  // the pool's clock at the last acquire, for LRU
  std::mutex uses_mutex_;
  std::vector<Use> uses_;  // last work on each stream that used it
  void* host_ = nullptr;   // contents while evicted
  std::list<std::unique_ptr<Block>>::iterator self_;
};

/// Addresses from one stable range, handed out in order: the workspace of captured graphs. Never
/// evicted. Grows until freeze(); after it growth is an error, so that nothing allocates in replay.
class Arena {
 public:
  /// `max_bytes`: addresses to reserve. Memory is mapped as it is needed and counts as the tenant's.
  static Result<std::unique_ptr<Arena>> create(Pool& pool, TenantId tenant, size_t max_bytes, std::string name);
  ~Arena();
  /// `align`: a power of two up to the granularity. Errors: FailedPrecondition when frozen and
  /// LimitExceeded beyond max_bytes name the sizes; OutOfMemory.
  Result<void*> allocate(size_t bytes, size_t align = 256);
  /// Starts again at the first byte: for work that never overlaps. What was handed out is void.
  void reset() { used_ = 0; }
  void freeze() { frozen_ = true; }
  size_t used_bytes() const { return used_; }
  size_t mapped_bytes() const { return mapped_; }

 private:
  Arena(Pool& pool, TenantId tenant, std::string name) : pool_(pool), tenant_(tenant), name_(std::move(name)) {}
  Pool& pool_;
  TenantId tenant_;
  std::string name_;
  uint64_t base_ = 0;
  size_t max_bytes_ = 0, used_ = 0, mapped_ = 0;
  std::vector<std::pair<uint64_t, size_t>> pieces_;  // as they were mapped
  bool frozen_ = false;
};

}  // namespace vivace::device
