#include "vivace/device/residence.h"

#include <algorithm>
#include <chrono>

#include "vivace/base/check.h"

namespace vivace::device {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

std::shared_ptr<Residence> Residence::create(Pool& pool, const std::string& name, int64_t quota_bytes) {
  return std::shared_ptr<Residence>(new Residence(pool, name, quota_bytes));
}

Residence::~Residence() {
  for (Held& h : blocks_) {
    if (h.leased) static_cast<void>(unlease(&h));
    static_cast<void>(pool_.free(h.block, 0));
  }
  pool_.remove_tenant(tenant_);
}

void Residence::add_stream(StreamId stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.push_back(stream);
}

void Residence::remove_stream(StreamId stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase(streams_, stream);
}

Status Residence::wait() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const StreamId s : streams_) VV_TRY(pool_.wait(s));
  return {};
}

Status Residence::lease(Held* held, const std::atomic<bool>* pause) {
  VV_TRY(pool_.acquire(held->block, pause));
  held->leased = true;
  return {};
}

/// Each stream's work up to here is what eviction and reuse wait for.
Status Residence::unlease(Held* held) {
  for (size_t i = 1; i < streams_.size(); ++i) VV_TRY(pool_.mark_used(held->block, streams_[i]));
  VV_TRY(pool_.release(held->block, streams_.empty() ? 0 : streams_[0]));
  held->leased = false;
  return {};
}

Status Residence::move_out(Held* held, const std::atomic<bool>* pause) {
  if (held->leased) VV_TRY(unlease(held));
  // Somebody who is short of memory may have moved it in between.
  if (Status s = pool_.evict(held->block, pause); !s.ok() && held->block->resident()) return s;
  return {};
}

Status Residence::fits(const std::string& name, size_t bytes) const {
  int64_t left = quota_;
  for (const Held& h : blocks_) left -= static_cast<int64_t>(h.block->bytes());
  if (quota_ == 0 || static_cast<int64_t>(bytes) <= left) return {};
  return Status(Code::kLimitExceeded,
                strf("%s: %zu bytes are wanted, %lld of a limit of %lld are left; raise bytes, or lower context or "
                     "max_batch",
                     name.c_str(), bytes, static_cast<long long>(left), static_cast<long long>(quota_)));
}

Status Residence::check_quota(const std::string& name, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return fits(name, bytes);
}

Result<Block*> Residence::allocate(const std::string& name, size_t bytes, StreamId first) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (asleep())
    return Status(Code::kFailedPrecondition, strf("%s: %s sleeps; wake it first", name.c_str(), name_.c_str()));
  VV_TRY(fits(name, bytes));
  const Allocation wanted{bytes, tenant_, first, name, true};
  VV_ASSIGN(Block* const block, pool_.allocate(wanted));
  Held held{block, false};
  if (Status s = lease(&held); !s.ok()) {  // between the two calls it was cold
    static_cast<void>(pool_.free(block, first));
    return s;
  }
  blocks_.push_back(held);
  return block;
}

Status Residence::free(Block* block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = std::find_if(blocks_.begin(), blocks_.end(), [&](const Held& h) { return h.block == block; });
  if (it == blocks_.end()) return Status(Code::kInvalidArgument, name_ + ": a block of somebody else's is freed");
  if (it->leased) VV_TRY(unlease(&*it));
  blocks_.erase(it);
  return pool_.free(block, 0);  // its uses were marked
}

Result<Residence::Moved> Residence::sleep(const std::atomic<bool>* pause) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (asleep()) return Status(Code::kFailedPrecondition, name_ + " sleeps already");
  const auto start = Clock::now();
  Moved moved;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Held& h = blocks_[i];
    Status s = move_out(&h, pause);
    if (s.ok()) {
      moved.bytes += static_cast<int64_t>(h.block->bytes());
      continue;
    }
    Status back;
    for (size_t k = 0; k <= i; ++k)
      if (Held& gone = blocks_[k]; !gone.leased)
        if (Status b = lease(&gone); !b.ok()) back = std::move(b);
    // Others have taken its place meanwhile: it cannot run before wake() finds room.
    asleep_.store(!back.ok(), std::memory_order_release);
    return std::move(s).with_context(name_ + (back.ok() ? " cannot sleep" : " sleeps in part; wake it"));
  }
  asleep_.store(true, std::memory_order_release);
  moved.seconds = seconds_since(start);
  return moved;
}

Result<Residence::Moved> Residence::wake(const std::atomic<bool>* pause) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!asleep()) return Status(Code::kFailedPrecondition, name_ + " does not sleep");
  const auto start = Clock::now();
  Moved moved;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Held& h = blocks_[i];
    if (h.leased) continue;
    if (Status s = lease(&h, pause); !s.ok()) {
      for (size_t k = 0; k < i; ++k) static_cast<void>(move_out(&blocks_[k]));  // what cannot go stays: no harm
      return std::move(s).with_context(name_ + " cannot wake");
    }
    moved.bytes += static_cast<int64_t>(h.block->bytes());
  }
  asleep_.store(false, std::memory_order_release);
  moved.seconds = seconds_since(start);
  return moved;
}

}  // namespace vivace::device
