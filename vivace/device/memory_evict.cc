// Leases, eviction to the host and the way back, and arenas.
#include <algorithm>
#include <chrono>
#include <thread>

#include "vivace/base/check.h"
#include "vivace/device/memory.h"

namespace vivace::device {
namespace {

/// So that a small urgent copy of somebody else's waits for one chunk and not for all of it.
constexpr size_t kChunk = size_t{4} << 20;
constexpr std::chrono::microseconds kPause{20};

template <class Copy>
Status in_chunks(size_t bytes, const std::atomic<bool>* pause, Copy&& copy) {
  for (size_t at = 0; at < bytes; at += kChunk) {
    while (pause != nullptr && pause->load(std::memory_order_acquire)) std::this_thread::sleep_for(kPause);
    VV_TRY(copy(at, std::min(kChunk, bytes - at)));
  }
  return {};
}

}  // namespace

Status Block::mark_used(MemoryBackend& backend, StreamId stream) {
  if (stream == 0) return Status();
  const std::lock_guard<std::mutex> lock(uses_mutex_);
  for (const Use& u : uses_)
    if (u.stream == stream) return backend.event_record(u.event, stream);
  VV_ASSIGN(const MemoryBackend::Event event, backend.event_create());
  uses_.push_back({stream, event});
  return backend.event_record(event, stream);
}

Status Pool::acquire(Block* block, const std::atomic<bool>* pause) {
  block->last_touch_.store(++clock_, std::memory_order_relaxed);
  // Resident: count up without the lock. An eviction claims the block by turning 0 into kAway.
  int leases = block->leases_.load(std::memory_order_acquire);
  while (leases >= 0)
    if (block->leases_.compare_exchange_weak(leases, leases + 1, std::memory_order_acq_rel)) return Status();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!block->live_) return Status(Code::kFailedPrecondition, "acquire of a freed block");
  // Another thread may have brought it back while this one waited for the lock.
  leases = block->leases_.load(std::memory_order_acquire);
  while (leases >= 0)
    if (block->leases_.compare_exchange_weak(leases, leases + 1, std::memory_order_acq_rel)) return Status();
  if (Status s = restore_locked(block, pause); !s.ok())
    return fail("acquire " + block->name_, block->requested_, block->tenant_, s);
  block->leases_.store(1, std::memory_order_release);
  return Status();
}

Status Pool::release(Block* block, StreamId stream) {
  VV_TRY(block->mark_used(backend_, stream));
  int leases = block->leases_.load(std::memory_order_acquire);
  while (leases > 0)
    if (block->leases_.compare_exchange_weak(leases, leases - 1, std::memory_order_acq_rel)) return Status();
  return Status(Code::kFailedPrecondition, block->name_ + ": release without a lease");
}

Status Pool::wait(StreamId stream) {
  VV_ASSIGN(const MemoryBackend::Event event, backend_.event_create());
  Status s = backend_.event_record(event, stream);
  if (s.ok()) s = backend_.event_wait(event);
  backend_.event_destroy(event);
  return s;
}

Status Pool::mark_used(Block* block, StreamId stream) { return block->mark_used(backend_, stream); }

Status Pool::evict(Block* block, const std::atomic<bool>* pause) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!block->live_ || !block->evictable_)
    return Status(Code::kFailedPrecondition, strf("%s (%zu bytes) is not evictable: allocate it with evictable = true",
                                                  block->name_.c_str(), block->requested_));
  return evict_locked(block, pause);
}

Status Pool::evict_locked(Block* block, const std::atomic<bool>* pause) {
  int none = 0;
  if (!block->leases_.compare_exchange_strong(none, Block::kAway, std::memory_order_acq_rel))
    return Status(Code::kFailedPrecondition, strf("%s (%zu bytes) %s", block->name_.c_str(), block->requested_,
                                                  none > 0 ? "is leased: it cannot be evicted" : "is evicted already"));
  const auto to_host = [&]() -> Status {
    VV_ASSIGN(const bool ready, idle(block, 0, true));
    VV_CHECK_EQ(kInternal, ready, true);
    VV_ASSIGN(void* host, backend_.host_allocate(block->requested_));
    Status s = in_chunks(block->requested_, pause, [&](size_t at, size_t n) {
      return backend_.copy_out(static_cast<std::byte*>(host) + at, block->address_ + at, n);
    });
    if (s.ok()) s = unmap_counted(block->address_, block->class_bytes_);
    if (s.ok()) block->host_ = host;
    else backend_.host_free(host);
    return s;
  };
  if (Status s = to_host(); !s.ok()) {
    block->leases_.store(0, std::memory_order_release);  // nothing was lost: it is still resident
    return s;
  }
  const auto requested = static_cast<int64_t>(block->requested_);
  count_live(block->tenant_, -static_cast<int64_t>(block->class_bytes_), -requested);
  counters_.evicted += requested;
  tenants_[static_cast<size_t>(block->tenant_)].evicted_bytes += requested;
  ++counters_.evictions;
  return Status();
}

bool Pool::evict_coldest(TenantId only, Status* why) {
  Block* coldest = nullptr;
  for (const auto& b : blocks_) {
    if (!b->live_ || !b->evictable_ || b->leases_.load() != 0 || (only >= 0 && b->tenant_ != only)) continue;
    if (coldest == nullptr || b->last_touch_.load() < coldest->last_touch_.load()) coldest = b.get();
  }
  if (coldest == nullptr) return false;
  Status s = evict_locked(coldest);
  if (s.ok()) return true;
  *why = std::move(s);
  return false;
}

Status Pool::restore_locked(Block* block, const std::atomic<bool>* pause) {
  VV_TRY(fit_quota(block->tenant_, block->class_bytes_));
  VV_TRY(with_room([&] { return map_counted(block->address_, block->class_bytes_); }));
  Status s = in_chunks(block->requested_, pause, [&](size_t at, size_t n) {
    return backend_.copy_in(block->address_ + at, static_cast<const std::byte*>(block->host_) + at, n);
  });
  if (!s.ok()) {
    VV_TRY(unmap_counted(block->address_, block->class_bytes_));  // the host copy is still whole
    return s;
  }
  backend_.host_free(block->host_);
  block->host_ = nullptr;
  const auto requested = static_cast<int64_t>(block->requested_);
  counters_.evicted -= requested;
  tenants_[static_cast<size_t>(block->tenant_)].evicted_bytes -= requested;
  count_live(block->tenant_, static_cast<int64_t>(block->class_bytes_), requested);
  ++counters_.restores;
  return Status();
}

Result<std::unique_ptr<Arena>> Arena::create(Pool& pool, TenantId tenant, size_t max_bytes, std::string name) {
  std::unique_ptr<Arena> a(new Arena(pool, tenant, std::move(name)));
  const std::lock_guard<std::mutex> lock(pool.mutex_);
  if (tenant < 0 || static_cast<size_t>(tenant) >= pool.tenants_.size())
    return Status(Code::kInvalidArgument, strf("tenant %d does not exist", tenant));
  a->max_bytes_ = (max_bytes + pool.granularity_ - 1) / pool.granularity_ * pool.granularity_;
  VV_ASSIGN(a->base_, pool.take_addresses(a->max_bytes_));
  return a;
}

Arena::~Arena() {
  const std::lock_guard<std::mutex> lock(pool_.mutex_);
  for (const auto& [address, bytes] : pieces_) {
    static_cast<void>(pool_.unmap_counted(address, bytes));
    pool_.count_live(tenant_, -static_cast<int64_t>(bytes), -static_cast<int64_t>(bytes));
  }
  if (base_ != 0) pool_.addresses_[max_bytes_].push_back(base_);
}

Result<void*> Arena::allocate(size_t bytes, size_t align) {
  if (align == 0 || (align & (align - 1)) != 0 || align > pool_.granularity_)
    return Status(Code::kInvalidArgument, strf("arena %s: alignment %zu: a power of two up to %zu is wanted",
                                               name_.c_str(), align, pool_.granularity_));
  const size_t begin = (used_ + align - 1) / align * align;
  if (bytes > max_bytes_ || begin > max_bytes_ - bytes)
    return Status(Code::kLimitExceeded,
                  strf("arena %s: %zu bytes at %zu exceed its %zu bytes", name_.c_str(), bytes, begin, max_bytes_));
  if (begin + bytes > mapped_) {
    if (frozen_)
      return Status(Code::kFailedPrecondition,
                    strf("arena %s is frozen at %zu bytes: %zu bytes at %zu would grow it; size it before capture",
                         name_.c_str(), mapped_, bytes, begin));
    const std::lock_guard<std::mutex> lock(pool_.mutex_);
    const size_t grow = (begin + bytes - mapped_ + pool_.granularity_ - 1) / pool_.granularity_ * pool_.granularity_;
    Status s = pool_.fit_quota(tenant_, grow);
    if (s.ok()) s = pool_.with_room([&] { return pool_.map_counted(base_ + mapped_, grow); });
    if (!s.ok()) return pool_.fail("arena " + name_, bytes, tenant_, s);
    pieces_.emplace_back(base_ + mapped_, grow);
    mapped_ += grow;
    pool_.count_live(tenant_, static_cast<int64_t>(grow), static_cast<int64_t>(grow));
  }
  used_ = begin + bytes;
  return reinterpret_cast<void*>(base_ + begin);
}

}  // namespace vivace::device
