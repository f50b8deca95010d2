#include "vivace/serve/robot_client.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "vivace/base/check.h"
#include "vivace/serve/thread.h"

namespace vivace::serve {
namespace {

using std::chrono::duration;
using wire::Value;

constexpr double kAgainSeconds = 2;  // of a try to connect anew

double steady() { return duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// A positive whole number of the host's map; 0 where there is none.
int number_of(const wire::Message& m, uint32_t map, std::string_view key) {
  const uint32_t at = map == 0 ? 0 : m.find(map, key);
  return at == 0 || m[at].kind != Value::Kind::whole || m[at].above || m[at].whole < 1 ||
                 m[at].whole > ChunkOptions::kMost
             ? 0
             : static_cast<int>(m[at].whole);
}

/// Rows of an array of floats. Errors: CorruptData.
Status rows(const wire::Message& m, std::string_view key, int height, int width, std::vector<float>* out) {
  const uint32_t at = m.find(0, key);
  const std::string name(key);
  if (at == 0 || m[at].kind != Value::Kind::array || m[at].array.rank != 2 || m[at].array.shape[0] != height ||
      m[at].array.shape[1] != width)
    return Status(Code::kCorruptData, strf("answer: %s: wanted an array of %d x %d", name.c_str(), height, width));
  out->resize(static_cast<size_t>(height) * static_cast<size_t>(width));
  for (size_t i = 0; i < out->size(); ++i)
    (*out)[i] = static_cast<float>(engine::value_at(m[at].array, static_cast<int64_t>(i)));
  return {};
}

}  // namespace

void RobotMessage::picture(std::string_view name, const uint8_t* data, int64_t height, int64_t width) {
  writer_.text(name);
  writer_.array(DType::u8, std::array<int64_t, 3>{height, width, 3}, data);
  ++entries_;
}

void RobotMessage::numbers(std::string_view name, std::span<const float> values) {
  writer_.text(name);
  writer_.array(DType::f32, std::array<int64_t, 1>{static_cast<int64_t>(values.size())}, values.data());
  ++entries_;
}

void RobotMessage::text(std::string_view name, std::string_view value) {
  writer_.text(name), writer_.text(value);
  ++entries_;
}

void RobotMessage::packed(uint32_t entries, std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  entries_ += entries;
}

Result<std::unique_ptr<RobotClient>> RobotClient::start(const RobotClientOptions& o) {
  for (const double s : {o.connect_s, o.answer_s, o.wait_s, o.most_wait_s})
    if (!(s > 0 && s <= 1e9)) return Status(Code::kInvalidArgument, strf("a time limit is above 0 seconds, got %g", s));
  std::unique_ptr<RobotClient> c(new RobotClient(o));
  const double until = steady() + o.connect_s;
  double wait = o.wait_s;
  while (c->link_ == nullptr) {
    auto link = wire::Client::connect(o.link);
    if (link.ok()) c->link_ = std::move(link).value();
    // A host that is not there yet may come; one that refuses will refuse again.
    else if (link.status().code() != Code::kIoError || steady() + wait > until) return std::move(link).status();
    else std::this_thread::sleep_for(duration<double>(wait)), wait = std::min(2 * wait, o.most_wait_s);
  }
  c->connections_ = 1;
  VV_TRY(c->learn());
  RobotClient* const raw = c.get();
  VV_TRY(start_thread("the robot's client", &c->thread_, [raw] { raw->run(); }));
  return c;
}

/// The sizes of chunks, of the metadata where the options leave them open.
Status RobotClient::learn() {
  metadata_.assign(link_->metadata().begin(), link_->metadata().end());
  wire::Message m;
  VV_TRY(m.read(metadata_));
  const uint32_t own = m.find(0, "vivace");
  chunks_ = options_.chunks;
  if (chunks_.horizon == 0) chunks_.horizon = number_of(m, own, "action_horizon");
  if (chunks_.dims == 0) chunks_.dims = number_of(m, own, "action_dim");
  if (chunks_.network_dims == 0) chunks_.network_dims = number_of(m, own, "network_dim");
  if (chunks_.horizon == 0 || chunks_.dims == 0)
    return Status(Code::kInvalidArgument, "horizon, dims: this host does not say them; give them");
  const uint32_t prefix = own == 0 ? 0 : m.find(own, "action_prefix");
  if (chunks_.join == ChunkOptions::Join::prefix && prefix != 0 && m[prefix].kind == Value::Kind::flag &&
      !m[prefix].flag)
    return Status(Code::kUnsupported,
                  "join: this host's policy takes no prefix of actions; join chunks by blend or swap");
  const uint32_t future = own == 0 ? 0 : m.find(own, "future_actions");
  if (chunks_.join == ChunkOptions::Join::future &&
      (future == 0 || m[future].kind != Value::Kind::flag || !m[future].flag))
    return Status(Code::kUnsupported,
                  "join: this host's policy takes no state, or its robot's actions do not lead to one; join chunks by "
                  "prefix, blend or swap");
  VV_ASSIGN(runner_, ChunkRunner::make(chunks_));
  if (chunks_.join == ChunkOptions::Join::prefix)
    begun_with_.resize(static_cast<size_t>(chunks_.horizon - 1) * static_cast<size_t>(chunks_.network_dims));
  if (chunks_.join == ChunkOptions::Join::future)
    begun_with_.resize(static_cast<size_t>(chunks_.horizon) * static_cast<size_t>(chunks_.dims));
  return {};
}

Status RobotClient::begin(std::span<const float> position, double now, std::string_view episode, uint64_t seed) {
  VV_TRY(runner_->start(position, now));
  ++generation_;
  episode_ = episode.substr(0, 64), seed_ = seed, in_episode_ = 0, interrupted_ = false, begun_ = true;
  const std::lock_guard hold(mutex_);
  newest_.reset();
  return {};
}

Status RobotClient::next(double now, std::span<float> action, Tick* tick) { return runner_->next(now, action, tick); }
bool RobotClient::wants(double now) const { return begun_ && (interrupted_ || runner_->needs_inference(now)); }

void RobotClient::interrupt() {
  interrupted_ = true;
  ++generation_;
}

Status RobotClient::ask(double now, const RobotMessage& observation) {
  if (!begun_) return Status(Code::kFailedPrecondition, "ask: no episode has begun");
  if (observation.entries() + 1 > wire::kMostEntries)
    return Status(Code::kLimitExceeded,
                  strf("ask: %u fields, at most %u", observation.entries(), wire::kMostEntries - 1));
  Question q;
  VV_TRY(runner_->start_request(now, &q.request, begun_with_));
  interrupted_ = false;
  q.generation = generation_.load(), q.asked = now;
  const bool prefix = chunks_.join == ChunkOptions::Join::prefix;
  wire::Writer w(&q.message);
  w.map(observation.entries() + 1);
  q.message.insert(q.message.end(), observation.bytes().begin(), observation.bytes().end());
  w.text("vivace");
  const bool ahead = q.request.ahead > 0, steps = ahead && options_.future_steps;
  w.map(2u + !episode_.empty() + prefix + (q.request.prefix_length > 0) + ahead + steps);
  w.text("request"), w.whole(++asked_);
  // Of the episode's seed and the question's number in it: the same however often the link broke.
  w.text("seed"), w.whole_u64((seed_ * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(++in_episode_)) & INT64_MAX);
  if (!episode_.empty()) w.text("episode"), w.text(episode_);
  if (prefix) w.text("normalized"), w.flag(true);
  if (q.request.prefix_length > 0)
    w.text("action_prefix"), w.array(DType::f32, std::array<int64_t, 2>{q.request.prefix_length, chunks_.network_dims},
                                     begun_with_.data());
  if (ahead)
    w.text("future_actions"),
        w.array(DType::f32, std::array<int64_t, 2>{q.request.ahead, chunks_.dims}, begun_with_.data());
  if (steps) w.text("future_steps"), w.flag(true);
  const std::lock_guard hold(mutex_);
  newest_ = std::move(q);  // one that was not sent yet is of no use any more
  news_.notify_one();
  return {};
}

std::string RobotClient::error() const {
  const std::lock_guard hold(mutex_);
  return error_;
}

std::vector<RobotRecord> RobotClient::take_records() {
  const std::lock_guard hold(mutex_);
  std::vector<RobotRecord> out(std::make_move_iterator(records_.begin()), std::make_move_iterator(records_.end()));
  records_.clear(), recorded_ = 0;
  return out;
}

void RobotClient::close() {
  {
    const std::lock_guard hold(mutex_);
    stop_ = true;
    if (shut_ != nullptr) shut_->shut();
    news_.notify_all();
  }
  if (thread_ != nullptr) thread_->join();
  thread_.reset();
}

void RobotClient::run() {
  pthread_setname_np(pthread_self(), "vivace-link");
  while (true) {
    Question q;
    {
      std::unique_lock hold(mutex_);
      shut_ = link_.get();
      news_.wait(hold, [&] { return stop_ || newest_; });
      if (stop_) return;
      q = std::move(*newest_);
      newest_.reset();
    }
    answer(q);
  }
}

void RobotClient::record(const Question& q, std::span<const std::byte> answer, const std::string& error) {
  const std::lock_guard hold(mutex_);
  if (!error.empty()) error_ = error;
  if (options_.most_recorded == 0) return;
  const size_t bytes = q.message.size() + answer.size();
  if (recorded_ + bytes > options_.most_recorded) {
    ++dropped_;
    return;
  }
  recorded_ += bytes;
  records_.push_back({q.message, {answer.begin(), answer.end()}, error, q.asked, steady()});
}

void RobotClient::answer(const Question& q) {
  Status s;
  if (link_ == nullptr && !connect()) {
    s = Status(Code::kClosed, error());
  } else {
    const auto got = link_->ask(q.message, options_.answer_s);
    if (got.ok()) {
      const auto used = deliver(q, *got);
      record(q, *got, used.ok() ? "" : used.status().to_string());
      if (used.ok() && *used) {
        ++answered_;
        return;
      }
      s = used.ok() ? Status() : used.status();
    } else {
      s = got.status();
      record(q, {}, s.to_string());
    }
  }
  // The runner asks anew; what is wrong with an observation says error().
  static_cast<void>(runner_->cancel(q.request));
  ++failed_;
  if (link_ != nullptr && !link_->open()) {
    const std::lock_guard hold(mutex_);
    shut_ = nullptr;
    link_.reset();
  }
}

/// Whether the answer became the runner's. False: nobody wants it any more.
Result<bool> RobotClient::deliver(const Question& q, std::span<const std::byte> bytes) {
  VV_TRY(message_.read(bytes));
  if (q.generation != generation_.load()) return false;
  VV_TRY(rows(message_, "actions", chunks_.horizon, chunks_.dims, &actions_));
  normalized_.clear();
  if (chunks_.join == ChunkOptions::Join::prefix)
    VV_TRY(rows(message_, "normalized", chunks_.horizon, chunks_.network_dims, &normalized_));
  VV_TRY(runner_->complete(q.request, actions_, normalized_));
  return true;
}

/// Tries until it has a link, the client ends, or a newer question is there, whose observation is fresher.
bool RobotClient::connect() {
  double wait = options_.wait_s;
  wire::ClientOptions again = options_.link;  // close() waits for one try at most
  again.connect_s = std::min(again.connect_s, kAgainSeconds),
  again.metadata_s = std::min(again.metadata_s, kAgainSeconds);
  while (true) {
    auto link = wire::Client::connect(again);
    std::unique_lock hold(mutex_);
    if (stop_) return false;
    if (link.ok()) {
      link_ = std::move(link).value();
      shut_ = link_.get();
      ++connections_;
      return true;
    }
    error_ = link.status().to_string();
    if (news_.wait_for(hold, duration<double>(wait), [&] { return stop_ || newest_; })) return false;
    wait = std::min(2 * wait, options_.most_wait_s);
  }
}

}  // namespace vivace::serve
