#include "vivace/device/memory.h"

#include <algorithm>

#include "vivace/base/check.h"

namespace vivace::device {
namespace {

constexpr size_t kStep = 256, kLargeBytes = 512 * 1024, kSlabBytes = 2 * 1024 * 1024;
constexpr size_t kMostCellBytes =
    kLargeBytes / 8 * 7;  // the class before kLargeBytes: rounded on, a request would look large

size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}
long long ll(int64_t v) {
  return static_cast<long long>(v);
}

}  // namespace

struct Pool::Slab {
  uint64_t address = 0;
  size_t bytes = 0, cell_bytes = 0;
  int live = 0;
  std::vector<Block*> cells;
};

size_t size_class(size_t bytes, size_t granularity) {
  if (bytes > (size_t{1} << 62)) return 0;
  if (bytes > kMostCellBytes) return round_up(std::max(bytes, kLargeBytes), granularity);
  size_t power = kStep;
  while (power * 2 <= bytes) power *= 2;
  return round_up(std::max<size_t>(bytes, 1), std::max(kStep, power / 4));
}

std::string PoolStats::to_string() const {
  std::string s = strf(
      "pool: used %lld (asked %lld), cached %lld (stranded %lld), mapped %lld of %lld, evicted %lld, pinned %lld, "
      "outside %lld, "
      "device free %lld of %lld bytes; fragmentation %.1f %%",
      ll(used), ll(requested), ll(cached), ll(stranded), ll(mapped), ll(capacity), ll(evicted), ll(pinned), ll(outside),
      ll(device_free), ll(device_total), fragmentation() * 100);
  for (const TenantStats& t : tenants)
    s += strf("\n  tenant %s: used %lld, quota %lld, evicted %lld, peak %lld", t.name.c_str(), ll(t.used_bytes),
              ll(t.quota_bytes), ll(t.evicted_bytes), ll(t.peak_bytes));
  return s;
}

Pool::Pool(MemoryBackend& backend, PoolOptions options)
    : backend_(backend), options_(options), granularity_(backend.granularity()) {
  tenants_.push_back({.name = "default"});
}

Result<std::unique_ptr<Pool>> Pool::create(MemoryBackend& backend, PoolOptions options) {
  VV_ASSIGN(const MemoryBackend::Usage usage, backend.usage());
  if (options.capacity <= 0) options.capacity = usage.total_bytes;
  if (options.range_bytes == 0) options.range_bytes = static_cast<size_t>(usage.total_bytes) * 2;
  options.range_bytes = round_up(options.range_bytes, backend.granularity());
  return std::unique_ptr<Pool>(new Pool(backend, options));
}

Pool::~Pool() {
  // Errors cannot be told here; the driver frees what is left with the context.
  for (const auto& block : blocks_) {
    static_cast<void>(idle(block.get(), 0, true));
    for (const Block::Use& u : block->uses_) backend_.event_destroy(u.event);
    if (block->host_ != nullptr)
      backend_.host_free(block->host_);
    else if (block->slab_ == nullptr)
      static_cast<void>(backend_.unmap(block->address_, block->class_bytes_));
  }
  for (const auto& slab : slabs_) static_cast<void>(backend_.unmap(slab->address, slab->bytes));
  for (const auto& [address, bytes] : ranges_) backend_.unreserve(address, bytes);
}

TenantId Pool::add_tenant(const std::string& name, int64_t quota_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TenantStats made;
  made.name = name, made.quota_bytes = quota_bytes;
  for (size_t i = 1; i < tenants_.size(); ++i)
    if (tenants_[i].gone) return tenants_[i] = made, static_cast<TenantId>(i);
  tenants_.push_back(made);
  return static_cast<TenantId>(tenants_.size()) - 1;
}

void Pool::remove_tenant(TenantId tenant) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (tenant <= 0 || static_cast<size_t>(tenant) >= tenants_.size()) return;
  TenantStats& left = tenants_[static_cast<size_t>(tenant)];
  for (const auto& b : blocks_)
    if (b->tenant_ == tenant) b->tenant_ = 0;
  tenants_[0].used_bytes += left.used_bytes, tenants_[0].evicted_bytes += left.evicted_bytes;
  tenants_[0].peak_bytes = std::max(tenants_[0].peak_bytes, tenants_[0].used_bytes);
  left = {};
  left.gone = true;
}

Result<uint64_t> Pool::take_addresses(size_t bytes) {
  if (auto it = addresses_.find(bytes); it != addresses_.end() && !it->second.empty()) {
    const uint64_t a = it->second.back();
    it->second.pop_back();
    return a;
  }
  if (bytes > end_ - next_) {
    const size_t range = std::max(options_.range_bytes, bytes);
    VV_ASSIGN(const uint64_t base, backend_.reserve(range));
    ranges_.emplace_back(base, range);
    next_ = base;
    end_ = base + range;
  }
  next_ += bytes;
  return next_ - bytes;
}

Status Pool::map_counted(uint64_t address, size_t bytes) {
  if (counters_.mapped + static_cast<int64_t>(bytes) > options_.capacity)
    return Status(Code::kOutOfMemory, strf("the pool's capacity of %lld bytes is reached", ll(options_.capacity)));
  VV_TRY(backend_.map(address, bytes));
  counters_.mapped += static_cast<int64_t>(bytes);
  ++counters_.maps;
  return Status();
}

Status Pool::unmap_counted(uint64_t address, size_t bytes) {
  VV_TRY(backend_.unmap(address, bytes));
  counters_.mapped -= static_cast<int64_t>(bytes);
  return Status();
}

void Pool::count_live(TenantId tenant, int64_t bytes, int64_t requested) {
  counters_.used += bytes;
  counters_.requested += requested;
  counters_.peak_used = std::max(counters_.peak_used, counters_.used);
  TenantStats& t = tenants_[static_cast<size_t>(tenant)];
  t.used_bytes += bytes;
  t.peak_bytes = std::max(t.peak_bytes, t.used_bytes);
}

// Whether `stream` may use the block now; with `wait` it is made so (stream 0: the host waits).
Result<bool> Pool::idle(Block* block, StreamId stream, bool wait) {
  const std::lock_guard<std::mutex> lock(block->uses_mutex_);  // free() adds to it before it has the pool's lock
  for (const Block::Use& u : block->uses_) {
    if (stream != 0 && u.stream == stream) continue;
    VV_ASSIGN(const bool done, backend_.event_done(u.event));
    if (done) continue;
    if (!wait) return false;
    VV_TRY(stream == 0 ? backend_.event_wait(u.event) : backend_.stream_wait(stream, u.event));
  }
  return true;
}

// `wait`: memory is short. Then a pending block is taken, with its stream waiting for the other, and a
// cell may be any larger one.
Block* Pool::reuse(size_t bytes, StreamId stream, bool wait) {
  // Large blocks may be up to a quarter larger than asked; cells have their class exactly.
  const size_t most = bytes >= kLargeBytes ? bytes + bytes / 4 : wait ? kLargeBytes - 1 : bytes;
  for (auto it = free_.lower_bound(bytes); it != free_.end() && it->first <= most; ++it) {
    std::vector<Block*>& list = it->second;
    for (size_t i = list.size(); i-- > 0;) {
      Block* b = list[i];
      const Result<bool> usable = idle(b, stream, wait);
      if (!usable.ok() || !*usable) continue;
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
      ++counters_.reuses;
      return b;
    }
  }
  return nullptr;
}

Result<Block*> Pool::grow(size_t bytes) {
  const bool small = bytes < kLargeBytes;
  const size_t span = small ? round_up(kSlabBytes, granularity_) : bytes;
  VV_ASSIGN(const uint64_t address, take_addresses(span));
  if (Status s = map_counted(address, span); !s.ok()) {
    addresses_[span].push_back(address);
    return s;
  }
  const auto add = [&](uint64_t at, Slab* slab) {
    auto block = std::make_unique<Block>();
    block->address_ = at;
    block->class_bytes_ = bytes;
    block->slab_ = slab;
    blocks_.push_back(std::move(block));
    blocks_.back()->self_ = std::prev(blocks_.end());
    return blocks_.back().get();
  };
  if (!small) return add(address, nullptr);
  slabs_.push_back(std::make_unique<Slab>(Slab{address, span, bytes, 0, {}}));
  Slab* slab = slabs_.back().get();
  for (size_t at = 0; at + bytes <= span; at += bytes) slab->cells.push_back(add(address + at, slab));
  std::vector<Block*>& list = free_[bytes];
  list.insert(list.end(), slab->cells.rbegin(), slab->cells.rend() - 1);  // low addresses first
  return slab->cells[0];
}

// Tries, and while it fails for want of memory, frees some: cached, then pending, then cold blocks.
Status Pool::with_room(const std::function<Status()>& attempt) {
  Status s = attempt();
  for (const bool wait : {false, true}) {
    if (s.ok() || s.code() != Code::kOutOfMemory) return s;
    VV_ASSIGN(const int64_t freed, trim_locked(wait));
    if (freed > 0) s = attempt();
  }
  Status why;
  while (!s.ok() && s.code() == Code::kOutOfMemory && evict_coldest(-1, &why)) s = attempt();
  if (!s.ok() && !why.ok()) return std::move(s).with_context("eviction failed (" + why.message() + ")");
  return s;
}

Status Pool::fit_quota(TenantId tenant, size_t bytes) {
  const auto over = [&] {
    const TenantStats& t = tenants_[static_cast<size_t>(tenant)];
    return t.quota_bytes > 0 && t.used_bytes + static_cast<int64_t>(bytes) > t.quota_bytes;
  };
  Status why;
  while (over())
    if (!evict_coldest(tenant, &why))
      return Status(Code::kOutOfMemory,
                    "its quota is used up" + (why.ok() ? "" : " and eviction failed: " + why.message()));
  return Status();
}

Status Pool::fail(const std::string& name, size_t bytes, TenantId tenant, const Status& cause) {
  ++counters_.failures;
  if (cause.code() != Code::kOutOfMemory) return cause;
  const TenantStats& t = tenants_[static_cast<size_t>(tenant)];
  int64_t evictable = 0;
  for (const auto& b : blocks_)
    if (b->live_ && b->evictable_ && b->leases_.load() == 0) evictable += static_cast<int64_t>(b->class_bytes_);
  MemoryBackend::Usage usage;
  if (Result<MemoryBackend::Usage> u = backend_.usage(); u.ok()) usage = *u;
  return Status(Code::kOutOfMemory,
                strf("%s: %zu bytes for tenant %s: %s. Tenant: %lld used, quota %lld. Pool: %lld used, %lld cached, "
                     "%lld of %lld mapped, %lld cold. "
                     "Device: %lld free of %lld, %lld outside the pool",
                     name.empty() ? "allocation" : name.c_str(), bytes, t.name.c_str(), cause.message().c_str(),
                     ll(t.used_bytes), ll(t.quota_bytes), ll(counters_.used), ll(counters_.mapped - counters_.used),
                     ll(counters_.mapped), ll(options_.capacity), ll(evictable), ll(usage.free_bytes),
                     ll(usage.total_bytes), ll(usage.total_bytes - usage.free_bytes - counters_.mapped)));
}

Result<Block*> Pool::allocate(const Allocation& r) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (r.tenant < 0 || static_cast<size_t>(r.tenant) >= tenants_.size() || tenants_[static_cast<size_t>(r.tenant)].gone)
    return Status(Code::kInvalidArgument,
                  strf("%s: tenant %d does not exist, there are %zu", r.name.c_str(), r.tenant, tenants_.size()));
  const size_t bytes = size_class(r.evictable ? std::max(r.bytes, kLargeBytes) : r.bytes, granularity_);
  if (r.bytes == 0 || bytes == 0)
    return Status(Code::kInvalidArgument, strf("%s: %zu bytes cannot be allocated", r.name.c_str(), r.bytes));
  Block* block = nullptr;
  Status s = fit_quota(r.tenant, bytes);
  if (s.ok()) block = reuse(bytes, r.stream, false);
  bool waited = false;
  if (s.ok() && block == nullptr)
    s = with_room([&]() -> Status {
      Result<Block*> b = grow(bytes);
      if (b.ok()) {
        block = *b;
        return Status();
      }
      if (!waited && b.status().code() == Code::kOutOfMemory) {
        waited = true;
        block = reuse(bytes, r.stream, true);
        if (block != nullptr) return Status();
      }
      return b.status();
    });
  // A reused large block may be a little larger than asked, and the quota a little too small for it.
  if (s.ok() && block->class_bytes_ > bytes) {
    s = fit_quota(r.tenant, block->class_bytes_);
    if (!s.ok()) free_[block->class_bytes_].push_back(block);
  }
  if (!s.ok()) return fail(r.name, r.bytes, r.tenant, s);
  block->requested_ = r.bytes;
  block->tenant_ = r.tenant;
  block->name_ = r.name;
  block->evictable_ = r.evictable;
  block->live_ = true;
  block->leases_.store(0);
  block->last_touch_.store(++clock_);
  if (block->slab_ != nullptr) ++block->slab_->live;
  count_live(r.tenant, static_cast<int64_t>(block->class_bytes_), static_cast<int64_t>(r.bytes));
  ++counters_.allocations;
  return block;
}

Status Pool::free(Block* block, StreamId stream) {
  VV_TRY(block->mark_used(backend_, stream));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!block->live_) return Status(Code::kFailedPrecondition, "block freed twice");
  const int leases = block->leases_.load();
  if (leases > 0)
    return Status(Code::kFailedPrecondition,
                  strf("%s (%zu bytes) is freed while %d leases hold it: a live graph or request uses it",
                       block->name_.c_str(), block->requested_, leases));
  block->live_ = false;
  if (leases == Block::kAway) {
    counters_.evicted -= static_cast<int64_t>(block->requested_);
    tenants_[static_cast<size_t>(block->tenant_)].evicted_bytes -= static_cast<int64_t>(block->requested_);
    return drop(block);
  }
  count_live(block->tenant_, -static_cast<int64_t>(block->class_bytes_), -static_cast<int64_t>(block->requested_));
  if (block->slab_ != nullptr) --block->slab_->live;
  free_[block->class_bytes_].push_back(block);
  return Status();
}

Result<PoolStats> Pool::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  PoolStats s = counters_;
  s.capacity = options_.capacity;
  s.cached = s.mapped - s.used;
  for (const auto& slab : slabs_)
    if (slab->live > 0)
      s.stranded += static_cast<int64_t>(slab->bytes - static_cast<size_t>(slab->live) * slab->cell_bytes);
  for (const auto& b : blocks_)
    if (b->live_ && b->leases_.load() > 0) s.pinned += static_cast<int64_t>(b->class_bytes_);
  for (const TenantStats& t : tenants_)
    if (!t.gone) s.tenants.push_back(t);
  VV_ASSIGN(const MemoryBackend::Usage usage, backend_.usage());
  s.device_free = usage.free_bytes;
  s.device_total = usage.total_bytes;
  s.outside = usage.total_bytes - usage.free_bytes - s.mapped;
  return s;
}

void Pool::reset_peak() {
  const std::lock_guard<std::mutex> lock(mutex_);
  counters_.peak_used = counters_.used;
  for (TenantStats& t : tenants_) t.peak_bytes = t.used_bytes;
}

Status Pool::set_capacity(int64_t bytes) {
  if (bytes < 0)
    return Status(Code::kInvalidArgument, strf("a pool's limit is 0 (none) or more bytes, got %lld", ll(bytes)));
  VV_ASSIGN(const MemoryBackend::Usage usage, backend_.usage());
  const std::lock_guard<std::mutex> lock(mutex_);
  options_.capacity = bytes == 0 ? usage.total_bytes : bytes;
  if (counters_.mapped <= options_.capacity) return {};
  return trim_locked(true).status();
}

std::vector<BlockStats> Pool::blocks() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<BlockStats> out;
  for (const auto& b : blocks_) {
    if (!b->live_) continue;
    const int leases = b->leases_.load();
    out.push_back({.name = b->name_,
                   .tenant = tenants_[static_cast<size_t>(b->tenant_)].name,
                   .requested = static_cast<int64_t>(b->requested_),
                   .bytes = static_cast<int64_t>(b->class_bytes_),
                   .resident = leases >= 0,
                   .leased = leases > 0});
  }
  return out;
}

Result<int64_t> Pool::trim() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return trim_locked(true);
}

Result<int64_t> Pool::trim_locked(bool wait) {
  const int64_t before = counters_.mapped;
  for (auto& [bytes, list] : free_) {
    if (bytes < kLargeBytes) continue;
    for (size_t i = list.size(); i-- > 0;) {
      VV_ASSIGN(const bool ready, idle(list[i], 0, wait));
      if (!ready) continue;
      VV_TRY(unmap_counted(list[i]->address_, bytes));
      VV_TRY(drop(list[i]));
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  for (auto it = slabs_.begin(); it != slabs_.end();) {
    Slab& slab = **it;
    bool ready = slab.live == 0;
    for (size_t i = 0; ready && i < slab.cells.size(); ++i) {
      VV_ASSIGN(ready, idle(slab.cells[i], 0, wait));
    }
    if (!ready) {
      ++it;
      continue;
    }
    VV_TRY(unmap_counted(slab.address, slab.bytes));
    std::vector<Block*>& list = free_[slab.cell_bytes];
    list.erase(std::remove_if(list.begin(), list.end(), [&](Block* b) { return b->slab_ == &slab; }), list.end());
    for (Block* b : slab.cells) VV_TRY(drop(b));
    addresses_[slab.bytes].push_back(slab.address);
    it = slabs_.erase(it);
  }
  return before - counters_.mapped;
}

// Forgets a block whose memory is not mapped any more (or, for a cell, goes with its slab).
Status Pool::drop(Block* block) {
  for (const Block::Use& u : block->uses_) backend_.event_destroy(u.event);
  if (block->host_ != nullptr) backend_.host_free(block->host_);
  if (block->slab_ == nullptr) addresses_[block->class_bytes_].push_back(block->address_);
  blocks_.erase(block->self_);
  return Status();
}

}  // namespace vivace::device
