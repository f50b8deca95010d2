// The messages of PolicyConnection: what a robot asks, and what it is told.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/base/printable.h"
#include "vivace/serve/policy_connection.h"

namespace vivace::serve {
namespace {

using engine::Field;
using wire::Value;
using Kind = Value::Kind;

constexpr size_t kMostNames = 16 << 10;   // bytes of joined names
constexpr size_t kMostPrompt = 4 << 10;   // bytes
constexpr double kMostDeadline = 3600;    // s
constexpr size_t kMostEpisode = 64;       // bytes of what names an episode

std::string shown(std::string_view name) { return strf("'%s'", printable(name.substr(0, 60)).c_str()); }
Status wanted(std::string_view key, const char* what) {
  return Status(Code::kInvalidDType, printable(key.substr(0, 60)) + ": wanted " + what);
}

Result<uint64_t> whole(const Value& v, std::string_view key) {
  if (v.kind != Kind::whole || (v.whole < 0 && !v.above)) return wanted(key, "a whole number from 0 on");
  return static_cast<uint64_t>(v.whole);
}

/// Rows of `width` finite values.
Status rows(const Value& v, std::string_view key, int width, std::vector<float>* out) {
  if (v.kind != Kind::array || !info(v.array.dtype).is_float) return wanted(key, "an array of floats");
  if (v.array.rank != 2 || v.array.shape[1] != width)
    return Status(Code::kInvalidShape, strf("%s: wanted rows of %d values", std::string(key).c_str(), width));
  out->resize(static_cast<size_t>(v.array.elements()));
  for (size_t i = 0; i < out->size(); ++i) {
    (*out)[i] = static_cast<float>(engine::value_at(v.array, static_cast<int64_t>(i)));
    if (!std::isfinite((*out)[i])) return Status(Code::kInvalidArgument, std::string(key) + ": a value is not finite");
  }
  return {};
}

/// Adds the fields of a map; what has a text key is one, or more under its name.
Status add_fields(const wire::Message& m, uint32_t map, std::string_view before, bool top, std::string* names,
                  std::vector<Field>* out) {
  for (uint32_t e = map + 1, i = 0; i < m[map].count; ++i, e = m[e + 1].end) {
    const Value &key = m[e], &v = m[e + 1];
    if (key.kind != Kind::text)
      return Status(Code::kInvalidArgument, "a field's name is a text, got bytes " + shown(key.text));
    if (top && (key.text == "vivace" || key.text == "endpoint" || key.text == "session_id")) continue;
    std::string_view name = key.text;
    if (!before.empty()) {
      if (names->size() + before.size() + name.size() + 1 > kMostNames)
        return Status(Code::kLimitExceeded, "names of fields are too long");
      const size_t at = names->size();
      names->append(before).append("/").append(name);
      name = std::string_view(*names).substr(at);
    }
    Field f;
    f.name = name;
    switch (v.kind) {
      case Kind::map: VV_TRY(add_fields(m, e + 1, name, false, names, out)); continue;
      case Kind::nil: break;
      case Kind::flag: f.kind = Field::Kind::flag, f.number = v.flag; break;
      case Kind::whole:
        f.kind = Field::Kind::number,
        f.number = v.above ? static_cast<double>(static_cast<uint64_t>(v.whole)) : static_cast<double>(v.whole);
        break;
      case Kind::number: f.kind = Field::Kind::number, f.number = v.number; break;
      case Kind::text: f.kind = Field::Kind::text, f.text = v.text; break;
      case Kind::array: f.kind = Field::Kind::array, f.array = v.array; break;
      default: return wanted(name, "an array, a number or a text, got a list or bytes");
    }
    out->push_back(f);
  }
  return {};
}

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t z = a + 0x9e3779b97f4a7c15ull * (b + 1);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

double milliseconds(PolicyRequest::Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

}  // namespace

void PolicyConnection::take_message() {
  held_ = !greeted_;
  if (held_) return;
  message_began_ = {};
  PolicyRequest& r = door_.queue->place(place_);
  r.arrived = Clock::now();
  ++requests_;
  Status s = message_.read(receiver_->message());
  if (s.ok() && message_.root().kind != Kind::map) s = Status(Code::kInvalidArgument, "wanted a map of fields");
  if (s.ok())
    if (const uint32_t at = message_.find(0, "endpoint"); at != 0) {
      const Value& endpoint = message_[at];
      if (endpoint.kind == Kind::text && endpoint.text == "reset") return write_reset();
      if (endpoint.kind != Kind::text || endpoint.text != "infer")
        s = Status(Code::kInvalidArgument, "endpoint: wanted 'infer' or 'reset'");
    }
  if (s.ok()) s = read_request(&r);
  if (!s.ok()) {
    door_.metrics->failed.fetch_add(1, std::memory_order_relaxed);
    return fail(s);
  }
  door_.queue->submit(r);
}

Status PolicyConnection::read_request(PolicyRequest* r) {
  const engine::PolicyLimits limits = door_.model->limits();
  fields_.clear(), names_.clear();
  names_.reserve(kMostNames);  // fields point into it
  VV_TRY(add_fields(message_, 0, {}, true, &names_, &fields_));
  VV_TRY(door_.robot->read(fields_, limits, &r->inputs));
  if (receiver_->page_locked())  // frames that were made of others' values, or of none, lie elsewhere
    for (engine::Frame& f : r->inputs.views) {
      const std::span<std::byte> own = receiver_->message();
      const auto* const at = reinterpret_cast<const std::byte*>(f.data);
      f.page_locked = at >= own.data() && at < own.data() + own.size();
    }
  r->noise.clear(), r->action_prefix.clear(), r->future_actions.clear();
  r->strict = r->wants_normalized = r->future_steps = false;
  number_ = requests_, episode_.clear();
  seed_ = mixed(mixed(door_.seed, static_cast<uint64_t>(serial_)), static_cast<uint64_t>(requests_));
  auto deadline =
      r->arrived + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(door_.deadline_s));
  if (const uint32_t own = message_.find(0, "vivace"); own != 0) {
    VV_TRY(read_own(own, r));
    if (const uint32_t at = message_.find(own, "deadline_ms"); at != 0) {
      const Value& v = message_[at];
      const double ms = v.kind == Kind::number              ? v.number
                        : v.kind == Kind::whole && !v.above ? static_cast<double>(v.whole)
                                                            : -1;
      if (!(ms > 0 && ms <= kMostDeadline * 1e3))
        return wanted("vivace/deadline_ms", "a number above 0, of an hour at most");
      deadline =
          r->arrived + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(ms));
      r->strict = true;
    }
  }
  r->deadline.store(deadline.time_since_epoch().count(), std::memory_order_relaxed);
  const std::string_view prompt = r->inputs.has_prompt ? r->inputs.prompt : std::string_view(door_.prompt);
  if (!r->inputs.has_prompt && door_.prompt.empty())
    return Status(Code::kInvalidArgument, "prompt: it is missing, and this host has no default");
  if (!r->future_actions.empty()) {
    if (!limits.sees_state)
      return Status(Code::kUnsupported, std::string("vivace/future_actions: this ") + door_.model->family() +
                                            " takes no state; join chunks by prefix, blend or swap");
    VV_TRY(door_.robot->roll(r->future_actions, door_.robot->dims(limits.robot_dim), r->future_steps, &r->inputs));
  }
  if (prompt.size() > kMostPrompt)
    return Status(Code::kLimitExceeded, strf("prompt: %zu bytes, at most %zu", prompt.size(), kMostPrompt));
  std::vector<float> state;
  if (!r->inputs.state.empty()) {
    VV_ASSIGN(state, door_.model->normalized_state(r->inputs.state));
  }
  VV_ASSIGN(r->tokens, door_.encode(prompt, state));
  r->observation = {r->inputs.views, r->tokens, r->inputs.state, r->noise, seed_, 1, r->action_prefix};
  return {};
}

Status PolicyConnection::read_own(uint32_t map, PolicyRequest* r) {
  if (message_[map].kind != Kind::map) return wanted("vivace", "a map");
  const engine::PolicyLimits limits = door_.model->limits();
  for (uint32_t e = map + 1, i = 0; i < message_[map].count; ++i, e = message_[e + 1].end) {
    const std::string_view key = message_[e].text;
    const Value& v = message_[e + 1];
    if (key == "seed") {
      VV_ASSIGN(seed_, whole(v, "vivace/seed"));
    } else if (key == "request") {
      VV_ASSIGN(const uint64_t n, whole(v, "vivace/request"));
      if (n > INT64_MAX) return wanted("vivace/request", "a whole number below 2^63");
      number_ = static_cast<int64_t>(n);
    } else if (key == "noise") {
      VV_TRY(rows(v, "vivace/noise", limits.action_dim, &r->noise));
      if (v.array.shape[0] != limits.horizon)
        return Status(Code::kInvalidShape, strf("vivace/noise: wanted %d rows, got %ld", limits.horizon,
                                                static_cast<long>(v.array.shape[0])));
    } else if (key == "action_prefix") {
      VV_TRY(rows(v, "vivace/action_prefix", limits.action_dim, &r->action_prefix));
    } else if (key == "future_actions") {
      VV_TRY(rows(v, "vivace/future_actions", door_.robot->dims(limits.robot_dim), &r->future_actions));
      if (v.array.shape[0] > limits.horizon)
        return Status(Code::kInvalidShape, strf("vivace/future_actions: wanted at most %d rows, got %ld",
                                                limits.horizon, static_cast<long>(v.array.shape[0])));
    } else if (key == "future_steps") {
      if (v.kind != Kind::flag) return wanted("vivace/future_steps", "true or false");
      r->future_steps = v.flag;
    } else if (key == "normalized") {
      if (v.kind != Kind::flag) return wanted("vivace/normalized", "true or false");
      r->wants_normalized = v.flag;
    } else if (key == "episode" || key == "session_id") {
      if (v.kind != Kind::text || v.text.size() > kMostEpisode)
        return wanted(key == "episode" ? "vivace/episode" : "vivace/session_id", "a text of 64 bytes at most");
      if (key == "episode") episode_ = v.text;
    } else if (key != "deadline_ms") {
      return Status(
          Code::kInvalidArgument,
          "vivace/" + printable(key.substr(0, 60)) +
              ": no such key; keys: request, seed, noise, action_prefix, future_actions, future_steps, normalized, "
              "deadline_ms, episode, session_id");
    }
  }
  return {};
}

void PolicyConnection::look() {
  if (place_ < 0 || state_ == State::dead) return;
  PolicyRequest& r = door_.queue->place(place_);
  if (r.state.load(std::memory_order_acquire) != PolicyRequest::answered) return;
  r.state.store(PolicyRequest::idle, std::memory_order_relaxed);
  if (state_ != State::open) {
    door_.metrics->abandoned.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  auto& counted = r.missed ? door_.metrics->missed : r.status.ok() ? door_.metrics->answered : door_.metrics->failed;
  counted.fetch_add(1, std::memory_order_relaxed);
  // A device that is lost stays lost: the client tries again once the host was started anew.
  if (!r.status.ok())
    return fail(r.status, r.status.code() == Code::kCudaError ? wire::kCloseRestart : wire::kCloseError);
  write_answer(r);
  receiver_->release();
  take_frames();
}

void PolicyConnection::send_payload() {
  wire::write_header(wire::Opcode::binary, payload_.size(), &out_);
  out_.insert(out_.end(), payload_.begin(), payload_.end());
  flush();
}

void PolicyConnection::write_own_numbers(const PolicyRequest& r, wire::Writer* w) {
  w->text("vivace");
  w->map(episode_.empty() ? 9 : 10);
  w->text("request"), w->whole(number_);
  w->text("chunk"), w->whole(requests_);
  w->text("seed"), w->whole_u64(seed_);
  w->text("age_ms"), w->number(milliseconds(Clock::now() - r.arrived));
  w->text("queue_ms"), w->number(r.queue_s * 1e3);
  w->text("infer_ms"), w->number(r.infer_s * 1e3);
  w->text("device_ms"), w->number(r.device_s * 1e3);
  w->text("together"), w->whole(r.together);
  w->text("missed"), w->flag(r.missed);
  if (!episode_.empty()) w->text("episode"), w->text(episode_);
}

void PolicyConnection::write_answer(const PolicyRequest& r) {
  payload_.clear();
  wire::Writer w(&payload_);
  const engine::PolicyLimits limits = door_.model->limits();
  if (r.missed) {
    w.map(1);
    write_own_numbers(r, &w);
    return send_payload();
  }
  const int64_t dims = door_.robot->dims(limits.robot_dim);
  w.map(r.wants_normalized ? 5 : 4);
  w.text("actions");
  w.array(DType::f32, std::array<int64_t, 2>{limits.horizon, dims}, r.actions.data());
  if (r.wants_normalized)
    w.text("normalized"),
        w.array(DType::f32, std::array<int64_t, 2>{limits.horizon, limits.action_dim}, r.normalized.data());
  w.text("policy_timing");
  w.map(1);
  w.text("infer_ms"), w.number(r.infer_s * 1e3);
  w.text("server_timing");
  w.map(total_ms_ < 0 ? 1 : 2);
  w.text("infer_ms"), w.number((r.queue_s + r.infer_s) * 1e3);
  if (total_ms_ >= 0) w.text("prev_total_ms"), w.number(total_ms_);
  write_own_numbers(r, &w);
  send_payload();
  const auto total = Clock::now() - r.arrived;
  total_ms_ = milliseconds(total);
  door_.metrics->total.add(std::chrono::duration<double>(total).count());
}

void PolicyConnection::write_reset() {
  payload_.clear();
  wire::Writer w(&payload_);
  w.map(1);
  w.text("reset"), w.flag(true);
  total_ms_ = -1;
  send_payload();
  receiver_->release();
}

}  // namespace vivace::serve
