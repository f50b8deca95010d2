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

 private:
  std::array<std::atomic<int64_t>, kBounds.size() + 1> counts_{};
  std::atomic<int64_t> sum_ns_{0};
};

class Outbox;

/// The answers to one request on their way. All calls are for one thread, the reader's, but cancel(). Its end cancels
/// them.
class ReplyStream {
 public:
  struct Shared;
  explicit ReplyStream(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  ReplyStream(ReplyStream&&) = default;
  ~ReplyStream();

  /// Everything that is there. What is not read yet is bounded: the reply then waits.
  std::string read();
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

 private:
  std::shared_ptr<Shared> shared_;
};

/// Thread-safe.
class Outbox {
 public:
  static constexpr size_t kRingBytes = 64 << 10;

  /// `loop` must outlive it. Errors of its making: LimitExceeded (no thread).
  static Result<std::unique_ptr<Outbox>> make(EngineLoop& loop, TokenBytes tokens);
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

 private:
  using Shared = ReplyStream::Shared;
  Outbox(EngineLoop& loop, TokenBytes tokens)
      : loop_(loop), tokens_(std::move(tokens)), bell_(std::make_shared<Notifier>()) {}
  void run();
  void take_opened(std::vector<std::shared_ptr<Shared>>* live);
  bool pump(Shared& s);
  void pump_choice(Shared& s, size_t i);
  bool flush(Shared& s);
  void end_choice(Shared& s, size_t i, Finish why);

  EngineLoop& loop_;
  const TokenBytes tokens_;
  const std::shared_ptr<Notifier> bell_;  // news for the thread: events, streams, room
  struct Opened;
  std::atomic<Opened*> opened_{nullptr};  // a stack, the newest first
  std::atomic<bool> stop_{false};
  std::thread thread_;
  Latencies first_, between_;
  std::array<std::atomic<int64_t>, 6> counts_{};
};

}  // namespace vivace::serve
