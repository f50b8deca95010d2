// RobotClient: a robot's loop over a policy at the other end of a wire. docs/robots.md has an arm that it moves.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "vivace/serve/chunks.h"
#include "vivace/serve/wire/client.h"

namespace vivace::serve {

struct RobotClientOptions {
  wire::ClientOptions link;
  ChunkOptions chunks;          // horizon, dims, network_dims: 0 is what the host says
  bool future_steps = false;    // with Join::future: actions are added to the state; else they are where it goes
  double connect_s = 600;       // for the first connection, tries and the policy's load together
  double answer_s = 1;          // for an answer; then the link is closed and made anew
  double wait_s = 0.1;          // before a second try to connect; each one after waits twice as long
  double most_wait_s = 5;
  size_t most_recorded =
      0;  // bytes of questions and answers that are kept for take_records(); what is beyond is counted and dropped
};

/// An observation on its way: fields under the names of docs/robots.md.
class RobotMessage {
 public:
  RobotMessage() : writer_(&bytes_) {}
  void clear() { bytes_.clear(), entries_ = 0; }
  /// RGB, u8, rows dense.
  void picture(std::string_view name, const uint8_t* data, int64_t height, int64_t width);
  void numbers(std::string_view name, std::span<const float> values);
  void text(std::string_view name, std::string_view value);
  /// Entries that are packed already.
  void packed(uint32_t entries, std::span<const std::byte> bytes);
  uint32_t entries() const { return entries_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  wire::Writer writer_;
  uint32_t entries_ = 0;
};

struct RobotRecord {
  std::vector<std::byte> question, answer;  // whole messages; no answer: empty, and `error` says why
  std::string error;
  double asked = 0, answered = 0;           // s of the caller's clock; of this process's steady clock
};

/// All calls are the robot's thread's, but for close(), which any may make. None of them waits for the link: a thread
/// of its own connects, asks and tries again. Whatever happens on the link, an action differs from the one before by
/// max_step at most, and is held where nothing fresh is there.
class RobotClient {
 public:
  /// Connects, and waits for the metadata. Errors: those of wire::Client::connect() and ChunkRunner::make().
  static Result<std::unique_ptr<RobotClient>> start(const RobotClientOptions& options);
  ~RobotClient() { close(); }
  RobotClient(const RobotClient&) = delete;

  std::span<const std::byte> metadata() const { return metadata_; }
  const ChunkOptions& chunks() const { return chunks_; }

  /// An episode begins: the robot stands at `position`. The same seed and observations have the same actions. What was
  /// asked before is dropped.
  Status begin(std::span<const float> position, double now, std::string_view episode, uint64_t seed);
  /// The action of this tick.
  Status next(double now, std::span<float> action, Tick* tick);
  /// Whether an observation should be sent now: ask() it.
  bool wants(double now) const;
  /// Sends it off. Errors: FailedPrecondition before begin(), InvalidArgument (a field `vivace`, which is the client's
  /// own).
  Status ask(double now, const RobotMessage& observation);
  /// The task changed: what is on its way counts no more, and wants() is true at once; until its answer comes the chunk
  /// at hand goes on.
  void interrupt();
  /// Questions so far; how many were answered, failed; connections that were made.
  int64_t asked() const { return asked_; }
  int64_t answered() const { return answered_.load(); }
  int64_t failed() const { return failed_.load(); }
  int64_t connections() const { return connections_.load(); }
  /// The newest error of the link; empty where there was none.
  std::string error() const;
  std::vector<RobotRecord> take_records();
  int64_t dropped_records() const { return dropped_.load(); }
  /// Ends the thread; what is on its way is dropped.
  void close();

 private:
  struct Question {
    ChunkRequest request;
    std::vector<std::byte> message;
    int64_t generation = 0;
    double asked = 0;
  };
  explicit RobotClient(const RobotClientOptions& options) : options_(options) {}
  Status learn();
  void run();
  void answer(const Question& question);
  Result<bool> deliver(const Question& question, std::span<const std::byte> bytes);
  bool connect();
  void record(const Question& question, std::span<const std::byte> answer, const std::string& error);

  const RobotClientOptions options_;
  ChunkOptions chunks_;
  std::vector<std::byte> metadata_;
  std::unique_ptr<ChunkRunner> runner_;
  std::unique_ptr<wire::Client> link_;   // the link's thread, once there is one
  std::unique_ptr<std::thread> thread_;

  // The robot's thread.
  std::vector<float> begun_with_;        // of a question: its prefix, or the actions that come before its chunk
  std::string episode_;
  uint64_t seed_ = 0;
  int64_t asked_ = 0, in_episode_ = 0;
  bool interrupted_ = false, begun_ = false;

  // The link's thread.
  std::vector<float> actions_, normalized_;
  wire::Message message_;

  mutable std::mutex mutex_;             // held for moments by either side: no call of the link lies within
  std::condition_variable news_;
  std::optional<Question> newest_;
  std::deque<RobotRecord> records_;
  size_t recorded_ = 0;
  std::string error_;
  bool stop_ = false;
  wire::Client* shut_ = nullptr;         // what close() has to interrupt
  std::atomic<int64_t> generation_{0}, answered_{0}, failed_{0}, connections_{0}, dropped_{0};
};

}  // namespace vivace::serve
