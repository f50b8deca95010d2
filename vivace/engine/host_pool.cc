#include "vivace/engine/host_pool.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <new>

#include "vivace/base/check.h"

namespace vivace::engine {
namespace {

/// Four sizes a power of two, so that a piece fits more than one.
size_t rounded(size_t bytes) {
  constexpr size_t kLeast = size_t{64} << 10;
  const size_t step = std::max(kLeast, std::bit_floor(bytes) / 4);
  return (bytes + step - 1) / step * step;
}

bool smaller(const exec::Buffer& a, const exec::Buffer& b) {
  return a.bytes() < b.bytes();
}

}  // namespace

HostBytes& HostBytes::operator=(HostBytes&& o) noexcept {
  if (this == &o) return *this;
  if (pool_ != nullptr) pool_->give_back(std::move(buffer_));
  pool_ = std::move(o.pool_), buffer_ = std::move(o.buffer_), plain_ = std::move(o.plain_);
  data_ = std::exchange(o.data_, nullptr), size_ = std::exchange(o.size_, 0);
  return *this;
}

HostBytes::~HostBytes() {
  if (pool_ != nullptr) pool_->give_back(std::move(buffer_));
}

std::shared_ptr<HostPool> HostPool::make(Lock lock, size_t most) {
  return std::shared_ptr<HostPool>(new HostPool(std::move(lock), most));
}

size_t HostPool::share_of_host() {
  constexpr long kParts = 8;
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<size_t>(pages / kParts) * static_cast<size_t>(page) : 0;
}

Result<HostBytes> HostPool::take(size_t bytes) {
  HostBytes made;
  made.size_ = bytes;
  if (bytes == 0) return made;
  const size_t wanted = rounded(bytes);
  bool may_lock = false;
  for (bool done = lock_ == nullptr || wanted > most_; !done;) {
    exec::Buffer gone;
    {
      const std::lock_guard hold(mutex_);
      const auto fit =
          std::find_if(kept_.begin(), kept_.end(), [&](const exec::Buffer& b) { return b.bytes() >= bytes; });
      if (fit != kept_.end() && fit->bytes() <= 2 * wanted) {
        made.buffer_ = std::move(*fit);
        kept_.erase(fit);
        done = true;
      } else if (locked_ + wanted <= most_) {
        locked_ += wanted;
        done = may_lock = true;
      } else if (kept_.empty()) {
        done = true;
      } else {
        gone = std::move(kept_.back());
        kept_.pop_back();
      }
    }
    if (const size_t freed = gone.bytes(); !done) {
      gone = {};  // takes its time, and counts until it is done
      const std::lock_guard hold(mutex_);
      locked_ -= freed;
    }
  }
  if (may_lock) {
    if (Result<exec::Buffer> buffer = lock_(wanted); buffer.ok()) {
      made.buffer_ = std::move(buffer).value();
    } else {
      const std::lock_guard hold(mutex_);
      locked_ -= wanted;
    }
  }
  if (made.buffer_.data() != nullptr) {
    made.pool_ = shared_from_this();
    made.data_ = static_cast<std::byte*>(made.buffer_.data());
    return made;
  }
  made.plain_.reset(new (std::nothrow) std::byte[bytes]);
  if (made.plain_ == nullptr)
    return Status(Code::kOutOfMemory,
                  strf("host pool: %zu bytes of host memory are wanted, and there are not as many", bytes));
  made.data_ = made.plain_.get();
  return made;
}

void HostPool::give_back(exec::Buffer buffer) {
  const std::lock_guard hold(mutex_);
  kept_.insert(std::upper_bound(kept_.begin(), kept_.end(), buffer, smaller), std::move(buffer));
}

HostPool::Stats HostPool::stats() const {
  const std::lock_guard hold(mutex_);
  Stats s{.most = lock_ != nullptr ? most_ : 0, .locked = locked_};
  for (const exec::Buffer& b : kept_) s.kept += b.bytes();
  return s;
}

}  // namespace vivace::engine
