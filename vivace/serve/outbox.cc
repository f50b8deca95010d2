#include "vivace/serve/outbox.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>

#include <algorithm>
#include <cstring>
#include <deque>
#include <system_error>

#include "vivace/base/check.h"
#include "vivace/engine/text/unicode.h"

namespace vivace::serve {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::microseconds kSleep{1'000'000};  // only a bound, every piece of news rings
constexpr int kTogether = 16;  // events that are written as one, where the reader is behind

size_t characters(std::string_view s) {
  std::string valid;
  engine::text::append_valid_utf8(s, &valid);
  return static_cast<size_t>(
      std::count_if(valid.begin(), valid.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// Joins what follows of the same kind.
void merge(std::vector<ReplyDelta>* deltas) {
  size_t last = 0;
  for (size_t i = 1; i < deltas->size(); ++i) {
    ReplyDelta& to = (*deltas)[last];
    ReplyDelta& from = (*deltas)[i];
    if (from.kind == to.kind && from.index == to.index && from.kind != ReplyDelta::Kind::call) {
      to.text += from.text;
    } else if (++last != i) {
      (*deltas)[last] = std::move(from);
    }
  }
  if (!deltas->empty()) deltas->resize(last + 1);
}

}  // namespace

void Latencies::add(std::chrono::nanoseconds time) {
  const double seconds = std::chrono::duration<double>(time).count();
  const auto at = static_cast<size_t>(std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin());
  counts_[at].fetch_add(1, std::memory_order_relaxed);
  sum_ns_.fetch_add(time.count(), std::memory_order_relaxed);
  if (const size_t i = kept_count_.load(std::memory_order_relaxed); i < kept_.size()) {
    kept_[i] = time.count();
    kept_count_.store(i + 1, std::memory_order_release);
  }
}

std::vector<int64_t> Latencies::kept() const {
  return {kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(kept_count_.load(std::memory_order_acquire))};
}

std::vector<int64_t> Latencies::counts() const {
  std::vector<int64_t> out;
  for (const auto& c : counts_) out.push_back(c.load(std::memory_order_relaxed));
  return out;
}

struct ReplyStream::Shared {
  struct Choice {
    RequestHandle handle;
    std::unique_ptr<ReplyParser> parser;
    std::string echo;
    bool named = false;
    // The outbox's.
    std::deque<DrawnToken> drawn;        // whose text was not given out
    std::vector<ReplyDelta> kept;        // of a whole reply
    std::vector<DrawnToken> kept_drawn;
    size_t fed = 0, offset = 0;          // bytes, characters
    int tokens = 0;
    steady_clock::time_point last{};
    bool begun = false, over = false;
    // For the reader: Job::Cache.
    std::atomic<int> cached{0}, written{0}, diverged{0};
    std::atomic<engine::KvBlocks::Miss> miss{engine::KvBlocks::Miss::off};
  };

  Shared(size_t ring_bytes, ReplyWire w, bool all_at_once, std::shared_ptr<Notifier> r, std::shared_ptr<Notifier> b)
      : ring(ring_bytes), wire(std::move(w)), whole(all_at_once), reader(std::move(r)), bell(std::move(b)) {}

  ByteRing ring;
  const ReplyWire wire;
  const bool whole;
  const std::shared_ptr<Notifier> reader, bell;
  const steady_clock::time_point began = steady_clock::now();
  std::deque<Choice> choices;
  std::string pending;                  // the outbox's: what the ring has no room for
  Status status;                        // the outbox's until `over`, then the reader's
  std::atomic<bool> waits{false};       // for room
  std::atomic<bool> left{false};        // the reader is gone
  std::atomic<bool> over{false};
  std::atomic<int> tokens{0};
  std::atomic<int64_t> given_ns{0}, sent_ns{0};
  bool wrote = false;                   // the outbox's: to the ring, since it last looked

  // Who writes to the client. `outbox` becomes `writing` for the time of a write, so that detach() has it whole;
  // `returned`: the reader is to take it back.
  enum class Writer : uint8_t { reader, outbox, writing, returned };
  std::atomic<Writer> writer{Writer::reader};
  int socket = -1;   // a duplicate, while it is attached
  std::string rest;  // the writer's: what of a chunk did not go
};

struct Outbox::Opened {
  std::shared_ptr<Shared> stream;
  Opened* next = nullptr;
};

ReplyStream::~ReplyStream() {
  if (shared_ == nullptr) return;
  detach();
  cancel();
  shared_->left.store(true, std::memory_order_release);
  shared_->bell->ring();
}

Status ReplyStream::attach(int socket) {
  if (attached()) return Status(Code::kFailedPrecondition, "a stream's socket: it has one already; detach it first");
  shared_->socket = fcntl(socket, F_DUPFD_CLOEXEC, 0);
  if (shared_->socket < 0)
    return Status(Code::kLimitExceeded,
                  std::string("a stream's socket: ") + std::strerror(errno) + "; close files, or raise `ulimit -n`");
  shared_->waits.store(false, std::memory_order_relaxed);
  shared_->writer.store(Shared::Writer::outbox, std::memory_order_release);
  shared_->bell->ring();  // it may hold what came meanwhile
  return {};
}

bool ReplyStream::attached() const {
  return shared_->writer.load(std::memory_order_acquire) != Shared::Writer::reader;
}

std::string ReplyStream::detach() {
  using Writer = Shared::Writer;
  for (Writer now = shared_->writer.load(std::memory_order_acquire); now != Writer::reader;) {
    if (now == Writer::writing) {  // a write that does not wait
      std::this_thread::yield();
      now = shared_->writer.load(std::memory_order_acquire);
    } else if (shared_->writer.compare_exchange_weak(now, Writer::reader, std::memory_order_acq_rel,
                                                     std::memory_order_acquire)) {
      close(std::exchange(shared_->socket, -1));
      shared_->bell->ring();  // what is pending goes to the ring
      break;
    }
  }
  return std::exchange(shared_->rest, {});
}

std::string ReplyStream::read() {
  std::string out = shared_->ring.read();
  if (shared_->waits.exchange(false, std::memory_order_seq_cst)) shared_->bell->ring();
  return out;
}

bool ReplyStream::over() const { return shared_->over.load(std::memory_order_acquire) && shared_->ring.used() == 0; }
bool ReplyStream::unread() const {
  using Writer = Shared::Writer;
  if (shared_->over.load(std::memory_order_acquire)) return true;
  const Writer now = shared_->writer.load(std::memory_order_acquire);
  return now == Writer::returned || (now == Writer::reader && shared_->ring.used() > 0);
}
Status ReplyStream::status() const { return over() ? shared_->status : Status(); }
int ReplyStream::tokens() const { return shared_->tokens.load(std::memory_order_relaxed); }
int64_t ReplyStream::given_ns() const { return shared_->given_ns.load(std::memory_order_relaxed); }
int64_t ReplyStream::sent_ns() const {
  return shared_->sent_ns.load(std::memory_order_relaxed);
}

std::vector<Job::Cache> ReplyStream::cache() const {
  std::vector<Job::Cache> out;
  for (const Shared::Choice& c : shared_->choices)
    out.push_back({c.cached.load(std::memory_order_relaxed), c.written.load(std::memory_order_relaxed),
                   c.miss.load(std::memory_order_relaxed), c.diverged.load(std::memory_order_relaxed)});
  return out;
}

void ReplyStream::cancel() {
  for (Shared::Choice& c : shared_->choices) c.handle.cancel();
}

Result<std::unique_ptr<Outbox>> Outbox::make(EngineLoop& loop, TokenBytes tokens, size_t keep_times) {
  std::unique_ptr<Outbox> made(new Outbox(loop, std::move(tokens)));
  made->to_socket_.keep(keep_times);
  sigset_t all, before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    made->thread_ = std::thread([box = made.get()] { box->run(); });
  } catch (const std::system_error& e) {
    status = Status(Code::kLimitExceeded, std::string("outbox: no thread: ") + e.what() + "; raise `ulimit -u`");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  VV_TRY(status);
  return made;
}

Outbox::~Outbox() {
  stop_.store(true, std::memory_order_release);
  bell_->ring();
  if (thread_.joinable()) thread_.join();
  std::vector<std::shared_ptr<Shared>> never;
  take_opened(&never);
}

Result<ReplyStream> Outbox::open(std::vector<Choice> choices, WireOptions wire, std::shared_ptr<Notifier> reader) {
  auto shared = std::make_shared<Shared>(
      kRingBytes, ReplyWire(wire.form, std::move(wire.head), std::move(wire.tail), wire.logprobs, tokens_), wire.whole,
      std::move(reader), bell_);
  for (Choice& from : choices) {
    Shared::Choice& c = shared->choices.emplace_back();
    c.handle = std::move(from.handle);
    VV_ASSIGN(c.parser, ReplyParser::make(std::move(from.reply)));
    c.echo = std::move(from.echo);
    c.named = from.named;
    c.last = shared->began;
  }
  auto* node = new Opened{shared};
  node->next = opened_.load(std::memory_order_relaxed);
  while (!opened_.compare_exchange_weak(node->next, node, std::memory_order_release, std::memory_order_relaxed)) {
  }
  bell_->ring();
  return ReplyStream(std::move(shared));
}

Outbox::Counts Outbox::counts() const {
  const auto at = [this](size_t i) { return counts_[i].load(std::memory_order_relaxed); };
  return {at(0), at(1), at(2), at(3), at(4), at(5)};
}

void Outbox::take_opened(std::vector<std::shared_ptr<Shared>>* live) {
  for (Opened* node = opened_.exchange(nullptr, std::memory_order_acquire); node != nullptr;) {
    live->push_back(std::move(node->stream));
    delete std::exchange(node, node->next);
  }
}

void Outbox::run() {
  pthread_setname_np(pthread_self(), "vivace-outbox");
  std::vector<std::shared_ptr<Shared>> live;
  std::vector<Notifier*> ring;
  while (!stop_.load(std::memory_order_acquire)) {
    const uint32_t seen = bell_->now();
    take_opened(&live);
    for (const auto& s : live)
      if (pump(*s) && std::find(ring.begin(), ring.end(), s->reader.get()) == ring.end())
        ring.push_back(s->reader.get());
    for (Notifier* n : ring) n->ring();
    ring.clear();
    std::erase_if(live, [](const auto& s) {
      return s->over.load(std::memory_order_relaxed) || s->left.load(std::memory_order_acquire);
    });
    bell_->wait(seen, kSleep);
  }
}

/// Whether there is news for the reader.
bool Outbox::pump(Shared& s) {
  s.wrote = false;
  if (flush(s))
    for (size_t i = 0; i < s.choices.size(); ++i) pump_choice(s, i);
  const bool done = s.pending.empty() &&
                    std::all_of(s.choices.begin(), s.choices.end(), [](const Shared::Choice& c) { return c.over; });
  if (done) s.over.store(true, std::memory_order_release);
  return done || s.wrote;
}

/// Moves what is pending to the socket or the ring; whether all of it went.
bool Outbox::flush(Shared& s) {
  if (send(s)) return s.pending.empty();
  while (!s.pending.empty()) {
    const size_t count = s.ring.write(s.pending);
    s.wrote |= count > 0;
    s.pending.erase(0, count);
    if (s.pending.empty()) break;
    s.waits.store(true, std::memory_order_seq_cst);
    if (s.ring.used() == s.ring.capacity()) return false;  // its reader sees `waits` once it has read, and rings
  }
  return true;
}

/// Whether the outbox is the one who writes. What does not go at once it returns with the socket: who waits for a
/// client is the reader.
bool Outbox::send(Shared& s) {
  using Writer = Shared::Writer;
  Writer was = Writer::outbox;
  if (!s.writer.compare_exchange_strong(was, Writer::writing, std::memory_order_acq_rel, std::memory_order_acquire))
    return was == Writer::returned;
  std::string data = s.ring.read();  // of before it was attached
  data += std::exchange(s.pending, {});
  Writer next = Writer::outbox;
  if (!data.empty()) {
    std::string chunk = strf("%zx\r\n", data.size());
    chunk += data;
    chunk += "\r\n";
    const ssize_t count = ::send(s.socket, chunk.data(), chunk.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    const auto now = steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    if (count == static_cast<ssize_t>(chunk.size())) {
      s.sent_ns.store(now, std::memory_order_relaxed);
      to_socket_.add(std::chrono::nanoseconds(now - s.given_ns.load(std::memory_order_relaxed)));
    } else {
      s.rest = chunk.substr(count > 0 ? static_cast<size_t>(count) : 0);
      next = Writer::returned;
      s.wrote = true;
    }
  }
  s.writer.store(next, std::memory_order_release);
  return true;
}

void Outbox::pump_choice(Shared& s, size_t i) {
  Shared::Choice& c = s.choices[i];
  std::vector<ReplyDelta> deltas;
  std::array<Event, kTogether> events;
  while (!c.over && s.pending.empty()) {
    const bool behind = s.whole || s.ring.used() > s.ring.capacity() / 2;
    const size_t count = c.handle.read(std::span(events).first(behind ? events.size() : 1));
    if (count == 0) return;
    const auto now = steady_clock::now();
    s.given_ns.store(loop_.last_step_ns(), std::memory_order_relaxed);
    const Job::Cache cache = c.handle.cache();
    c.cached.store(cache.cached, std::memory_order_relaxed), c.written.store(cache.written, std::memory_order_relaxed);
    c.diverged.store(cache.diverged, std::memory_order_relaxed), c.miss.store(cache.miss, std::memory_order_relaxed);
    deltas.clear();
    Finish finish = Finish::none;
    for (size_t k = 0; k < count && !c.parser->over(); ++k) {
      finish = events[k].finish;
      if (events[k].token < 0) continue;
      std::string_view bytes = tokens_.of(events[k].token);
      if (c.fed == 0 && tokens_.drop_space() && bytes.starts_with(' ')) bytes.remove_prefix(1);
      (c.tokens++ == 0 ? first_ : between_).add(now - c.last);
      c.last = now;
      counts_[0].fetch_add(1, std::memory_order_relaxed);
      s.tokens.fetch_add(1, std::memory_order_relaxed);
      c.drawn.push_back({c.fed, c.offset, events[k].token, events[k].logprob, events[k].top});
      c.fed += bytes.size();
      if (s.wire.logprobs()) c.offset += characters(bytes);
      c.parser->feed(bytes, &deltas);
    }
    std::string said;
    if (c.parser->over()) finish = Finish::stop;
    const bool ended = finish != Finish::none;
    const bool failed = finish == Finish::cancelled || finish == Finish::error || finish == Finish::nan_logits;
    if (ended && !failed) said = c.parser->finish(name(finish), c.named, &deltas);
    if (!failed) {
      // A token goes with the first of its bytes that is given out; where the reply ended by itself, all that are left
      // go.
      std::vector<DrawnToken> drawn;
      const bool rest = ended && !c.parser->over();
      while (!c.drawn.empty() && (rest || c.drawn.front().at < c.parser->given())) {
        drawn.push_back(c.drawn.front());
        c.drawn.pop_front();
      }
      if (s.whole) {
        c.kept.insert(c.kept.end(), std::make_move_iterator(deltas.begin()), std::make_move_iterator(deltas.end()));
        c.kept_drawn.insert(c.kept_drawn.end(), drawn.begin(), drawn.end());
        merge(&c.kept);
        if (ended) std::swap(deltas, c.kept), std::swap(drawn, c.kept_drawn);
      }
      if (!s.whole || ended) {
        if (!std::exchange(c.begun, true)) s.wire.begin(static_cast<int>(i), c.echo, &s.pending);
        merge(&deltas);
        std::span<const DrawnToken> with = drawn;
        if (deltas.empty() && s.wire.wants(with)) deltas.push_back({});
        for (const ReplyDelta& d : deltas) s.wire.say(static_cast<int>(i), d, std::exchange(with, {}), &s.pending);
        if (ended) s.wire.end(static_cast<int>(i), said, c.parser->stop(), c.tokens, &s.pending);
      }
    }
    if (ended) {
      end_choice(s, i, finish);
      counts_[finish == Finish::cancelled ? 4
              : failed                    ? 5
              : said == "tool_calls"      ? 3
              : finish == Finish::length  ? 2
                                          : 1]
          .fetch_add(1, std::memory_order_relaxed);
    }
    flush(s);
  }
}

void Outbox::end_choice(Shared& s, size_t i, Finish why) {
  Shared::Choice& c = s.choices[i];
  c.over = true;
  c.handle.cancel();  // nothing where the engine ended it
  if (!s.status.ok()) return;
  if (why == Finish::nan_logits)
    s.status = Status(
        Code::kCorruptData,
        "the model's logits are NaN: its weights are broken, or too large for this precision; try precision='f32'");
  if (why == Finish::error) s.status = c.handle.status();
}

}  // namespace vivace::serve
