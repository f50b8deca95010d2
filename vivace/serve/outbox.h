// Outbox: a thread that turns what an engine draws into the bytes that clients get. Readers only move bytes.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "vivace/serve/byte_ring.h"
#include "vivace/serve/engine_loop.h"
#include "vivace/serve/reply_wire.h"

namespace vivace::serve {

/// One answer of a request: its handle at the engine, submitted with the outbox's bell(), and how its reply is read.
struct Choice {
  RequestHandle handle;
  ReplyOptions reply;
  std::string echo = {};  // text that goes before the reply
  bool named = false;     // the call was forced by its tool's name
};

struct WireOptions {
  WireForm form = WireForm::records;
  std::string head = {}, tail = {};
  bool logprobs = false;
  bool whole = false;     // nothing is given out until every choice is over
};

/// Seconds between two events, counted. Written by one thread, read by any.
class Latencies {
 public:
  static constexpr std::array<double, 20> kBounds = {50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3,
                                                     10e-3, 25e-3,  50e-3,  0.1,    0.25, 0.5,    1,
                                                     2.5,   5,      10,     30,     60,   300};
  void add(std::chrono::nanoseconds time);
  std::vector<int64_t> counts() const;  // up to each bound, and beyond the last
  double sum() const { return static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) * 1e-9; }
  /// Before the first add(): the first `most` times are kept one by one, for benches.
  void keep(size_t most) { kept_.resize(most); }
  /// These, ns.
  std::vector<int64_t> kept() const;

 private:
  std::array<std::atomic<int64_t>, kBounds.size() + 1> counts_{};
  std::atomic<int64_t> sum_ns_{0};
  std::vector<int64_t> kept_;
  std::atomic<size_t> kept_count_{0};
};

class Outbox;

/// The answers to one request on their way. All calls are for one thread, the reader's, but cancel(). Its end cancels
/// them.
///
/// Who writes to the client is the reader, which reads and sends, or after attach() the outbox, as soon as an event is
/// made. The reader has it back after detach(), which it calls where the outbox has returned it (the client takes no
/// more now, or is gone), and before it writes anything of its own.
class ReplyStream {
 public:
  struct Shared;
  explicit ReplyStream(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  ReplyStream(ReplyStream&&) = default;
  ~ReplyStream();

  /// From now on the outbox writes to this socket, a chunk of HTTP/1.1 each; of a duplicate, so that the caller may
  /// close its own. Nothing that was written to it may still wait in user space. Errors: LimitExceeded (descriptors),
  /// FailedPrecondition while it is attached.
  Status attach(int socket);
  bool attached() const;
  /// What of a chunk that the outbox began is still to be written, as it is. Nothing where it was not attached.
  std::string detach();

  /// Everything that is there. What is not read yet is bounded: the reply then waits. Not while it is attached.
  std::string read();
  /// Whether something can be read, is over, or was returned: what the reader waits for.
  bool unread() const;
  /// Whether nothing comes after what was read.
  bool over() const;
  /// Ends all choices: slots and blocks are free after the step that is on its way. Choices that are cancelled say
  /// nothing more.
  void cancel();
  /// Once it is over: why, where the engine failed.
  Status status() const;
  /// Tokens that were drawn so far.
  int tokens() const;
  /// Of each choice, what of its prompt was found computed, once something of it was read; and once it is over what is
  /// kept.
  std::vector<Job::Cache> cache() const;
  /// When the engine gave what was read last, ns of the steady clock; 0: nothing yet.
  int64_t given_ns() const;
  /// When the outbox wrote to the socket last; 0: never.
  int64_t sent_ns() const;

 private:
  std::shared_ptr<Shared> shared_;
};

/// Thread-safe.
class Outbox {
 public:
  static constexpr size_t kRingBytes = 64 << 10;

  /// `loop` must outlive it. `keep_times`: of to_socket(), for benches. Errors of its making: LimitExceeded (no
  /// thread).
  static Result<std::unique_ptr<Outbox>> make(EngineLoop& loop, TokenBytes tokens, size_t keep_times = 0);
  ~Outbox();
  Outbox(const Outbox&) = delete;

  /// Reads the choices from now on. `reader` rings, once a step at most, when there is something to read. Errors: those
  /// of ReplyParser::make().
  Result<ReplyStream> open(std::vector<Choice> choices, WireOptions wire, std::shared_ptr<Notifier> reader);
  const std::shared_ptr<Notifier>& bell() const { return bell_; }

  struct Counts {
    int64_t tokens = 0, stop = 0, length = 0, calls = 0, cancelled = 0, failed = 0;  // answers by how they ended
  };
  Counts counts() const;
  const Latencies& first_token() const { return first_; }
  const Latencies& between_tokens() const { return between_; }
  /// From the end of the engine's step to the bytes in the socket, of what the outbox wrote there.
  const Latencies& to_socket() const { return to_socket_; }

 private:
  using Shared = ReplyStream::Shared;
  Outbox(EngineLoop& loop, TokenBytes tokens)
      : loop_(loop), tokens_(std::move(tokens)), bell_(std::make_shared<Notifier>()) {}
  void run();
  void take_opened(std::vector<std::shared_ptr<Shared>>* live);
  bool pump(Shared& s);
  void pump_choice(Shared& s, size_t i);
  bool flush(Shared& s);
  bool send(Shared& s);
  void end_choice(Shared& s, size_t i, Finish why);

  EngineLoop& loop_;
  const TokenBytes tokens_;
  const std::shared_ptr<Notifier> bell_;  // news for the thread: events, streams, room
  struct Opened;
  std::atomic<Opened*> opened_{nullptr};  // a stack, the newest first
  std::atomic<bool> stop_{false};
  std::thread thread_;
  Latencies first_, between_, to_socket_;
  std::array<std::atomic<int64_t>, 6> counts_{};
};

}  // namespace vivace::serve
