#include "vivace/device/transfer.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "vivace/base/check.h"

namespace vivace::device {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

struct Ticket::State {
  Transfer transfer;
  // Under the engine's lock: where the next chunk begins, and how many are being worked on.
  size_t next = 0;
  int open_chunks = 0;
  // Under this one: what waiters see.
  std::mutex mutex;
  std::condition_variable changed;
  size_t done_bytes = 0;
  bool cancelled = false, finished = false;
  Status error;
};

Status Ticket::wait() const {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->finished; });
  if (!state_->error.ok()) return state_->error;
  if (state_->done_bytes < state_->transfer.bytes)
    return Status(Code::kCancelled,
                  strf("transfer cancelled after %zu of %zu bytes", state_->done_bytes, state_->transfer.bytes));
  return Status();
}

bool Ticket::done() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->finished;
}

size_t Ticket::bytes_done() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->done_bytes;
}

void Ticket::cancel() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->cancelled = true;
}

Result<std::unique_ptr<TransferEngine>> TransferEngine::create(CopyBackend& backend, TransferOptions options) {
  VV_CHECK_GT(kInvalidArgument, options.chunk_bytes, size_t{0});
  VV_CHECK_GT(kInvalidArgument, options.chunks_in_flight, 0);
  VV_CHECK_GT(kInvalidArgument, options.staging_threads, 0);
  std::unique_ptr<TransferEngine> e(new TransferEngine(backend, options));
  VV_TRY(e->start());
  return e;
}

Status TransferEngine::start() {
  for (int lane = 0; lane < kDirections; ++lane) {
    const bool stages = static_cast<Direction>(lane) == Direction::to_device;
    for (int t = 0; t < (stages ? options_.staging_threads : 1); ++t) {
      slots_.push_back(std::make_unique<std::vector<Slot>>(static_cast<size_t>(options_.chunks_in_flight)));
      for (Slot& s : *slots_.back()) {
        VV_ASSIGN(s.mark, backend_.mark_create());
        if (stages) {
          VV_ASSIGN(s.ring, backend_.host_allocate(options_.chunk_bytes));
        }
      }
      threads_.emplace_back([this, lane, slots = slots_.back().get()] { work(static_cast<Direction>(lane), slots); });
    }
  }
  return Status();
}

TransferEngine::~TransferEngine() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    for (Lane& lane : lanes_)
      for (const auto& s : lane.queue) {
        const std::lock_guard<std::mutex> inner(s->mutex);
        s->cancelled = true;
      }
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
  for (const auto& list : slots_)
    for (const Slot& s : *list) {
      if (s.mark != 0) backend_.mark_destroy(s.mark);
      if (s.ring != nullptr) backend_.host_free(s.ring);
    }
}

Result<Ticket> TransferEngine::submit(Transfer transfer) {
  if (transfer.bytes > 0 && (transfer.to == nullptr || transfer.from == nullptr))
    return Status(Code::kInvalidArgument, strf("transfer of %zu bytes from %p to %p: neither address may be null",
                                               transfer.bytes, transfer.from, transfer.to));
  if (transfer.staged && transfer.direction != Direction::to_device)
    return Status(Code::kInvalidArgument,
                  "only transfers to the device are staged: copy to page-locked memory instead");
  Ticket ticket;
  ticket.state_ = std::make_shared<Ticket::State>();
  ticket.state_->transfer = std::move(transfer);
  if (ticket.state_->transfer.bytes == 0) {
    ticket.state_->finished = true;
    return ticket;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) return Status(Code::kClosed, "the transfer engine is closing");
    Lane& lane = lanes_[static_cast<size_t>(ticket.state_->transfer.direction)];
    const auto place = std::find_if(lane.queue.begin(), lane.queue.end(), [&](const auto& s) {
      return s->transfer.priority < ticket.state_->transfer.priority;
    });
    lane.queue.insert(place, ticket.state_);
    ++lane.stats.transfers;
  }
  wake_.notify_all();
  return ticket;
}

LaneStats TransferEngine::stats(Direction lane) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Lane& l = lanes_[static_cast<size_t>(lane)];
  LaneStats s = l.stats;
  if (l.in_flight > 0) s.busy_seconds += now_seconds() - l.busy_since;
  return s;
}

// The next chunk of the most urgent transfer. Without `block`, false if there is none now; with it,
// false only when the engine closes and the queue is empty.
bool TransferEngine::next_chunk(Direction direction, bool block, Chunk* chunk) {
  std::unique_lock<std::mutex> lock(mutex_);
  Lane& lane = lanes_[static_cast<size_t>(direction)];
  for (;;) {
    while (!lane.queue.empty()) {
      const std::shared_ptr<Ticket::State> s = lane.queue.front();
      bool stop = false;
      {
        const std::lock_guard<std::mutex> inner(s->mutex);
        stop = s->cancelled || !s->error.ok();
        // With chunks in flight, the last of them ends the transfer; with none, nobody else will.
        if (stop && s->open_chunks == 0) s->finished = true;
      }
      if (stop) {
        s->changed.notify_all();
        s->next = s->transfer.bytes;
        lane.queue.pop_front();
        continue;
      }
      // Who is most urgent is of the background: all are. Nobody rings when the pause ends, so it is looked for.
      if (s->transfer.priority < 0 && !closing_ && options_.pause != nullptr &&
          options_.pause->load(std::memory_order_acquire)) {
        if (!block) return false;
        wake_.wait_for(lock, std::chrono::microseconds(50));
        continue;
      }
      *chunk = {s, s->next, std::min(options_.chunk_bytes, s->transfer.bytes - s->next)};
      s->next += chunk->bytes;
      ++s->open_chunks;
      if (s->next == s->transfer.bytes) lane.queue.pop_front();
      if (lane.in_flight++ == 0) lane.busy_since = now_seconds();
      return true;
    }
    if (closing_ || !block) return false;
    wake_.wait(lock);
  }
}

Status TransferEngine::issue(Direction lane, Slot* slot, const Chunk& c) {
  const Transfer& t = c.owner->transfer;
  const void* from = static_cast<const std::byte*>(t.from) + c.offset;
  if (t.staged) {
    std::memcpy(slot->ring, from, c.bytes);
    from = slot->ring;
  }
  VV_TRY(backend_.copy(lane, static_cast<std::byte*>(t.to) + c.offset, from, c.bytes));
  return backend_.mark_set(lane, slot->mark);
}

void TransferEngine::finish(Direction direction, const Chunk& c, Status status) {
  Ticket::State& s = *c.owner;
  const bool ok = status.ok();
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (ok) s.done_bytes += c.bytes;
    else if (s.error.ok()) s.error = std::move(status);
    if (s.transfer.on_progress) s.transfer.on_progress(s.done_bytes, s.transfer.bytes);
  }
  bool last = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Lane& lane = lanes_[static_cast<size_t>(direction)];
    if (ok) lane.stats.bytes += static_cast<int64_t>(c.bytes);
    if (--lane.in_flight == 0) lane.stats.busy_seconds += now_seconds() - lane.busy_since;
    last = --s.open_chunks == 0 && s.next == s.transfer.bytes;
  }
  if (!last) return;
  // Only now, after the last progress call, may waiters return.
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.finished = true;
  s.changed.notify_all();
}

void TransferEngine::work(Direction lane, std::vector<Slot>* slots) {
  const Status attached = backend_.attach_thread();
  size_t oldest = 0, count = 0;  // the slots in flight, a ring
  const auto retire = [&] {
    Slot& s = (*slots)[oldest];
    Status status = backend_.mark_wait(s.mark);
    finish(lane, s.chunk, std::move(status));
    s.chunk = {};
    oldest = (oldest + 1) % slots->size();
    --count;
  };
  for (;;) {
    if (count == slots->size()) retire();
    Chunk chunk;
    if (!next_chunk(lane, count == 0, &chunk)) {
      if (count == 0) return;  // closing, and nothing is left
      retire();
      continue;
    }
    Slot& slot = (*slots)[(oldest + count) % slots->size()];
    Status s = attached.ok() ? issue(lane, &slot, chunk) : attached;
    if (!s.ok()) {
      finish(lane, chunk, std::move(s));
      continue;
    }
    slot.chunk = std::move(chunk);
    ++count;
  }
}

}  // namespace vivace::device
