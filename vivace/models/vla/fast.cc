// FastPolicy: pi0-FAST. The language model writes a chunk as codes, one a step, and the codec reads them.
#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/models/vla/base.h"
#include "vivace/models/vla/codec.h"

namespace vivace::models::vla {
namespace {

using engine::Observation;

constexpr int64_t kReserved = 128;  // tokens at the vocabulary's end that codes leave alone
constexpr int kAhead = 2;           // steps in flight: the host reads a token while the next is made

class FastPolicy final : public PolicyBase {
 public:
  using PolicyBase::PolicyBase;
  Result<std::span<const int32_t>> tokens(int i) const override;
  Status generate(std::span<const Observation> observations) override;
  Status observe(std::span<const Observation> observations, const Probe& probe) override;

 private:
  int64_t suffix() const override { return limits_.max_action_tokens; }
  Status check_own() override;
  void declare_own() override;
  Status start() override;
  Status check_own(const Observation& o, size_t i) const override;
  void write_own(const Observation& o, int64_t b, int64_t prefix) override;
  Status record_launches(exec::Stream& s, bool context) const override;
  Status record_context_graph(exec::Stream& s) const override;
  Status record_own(exec::Stream& s) const override { return record_launches(s, false); }
  Status captured() override { return {}; }
  Result<std::span<const float>> run(size_t observations) override;
  Status calibrate_one(const Enters& enters) override;
  const float* answers() const override { return actions_.data(); }
  Status write_action_tokens(size_t observations);
  /// Takes over what step `s` made; true where every observation has ended.
  bool collect(int s, size_t observations);

  ActionTokenInputs code_;
  StagingBuffer token_in_;
  exec::Buffer ring_;
  std::vector<std::unique_ptr<exec::Event>> done_;
  ActionCodec codec_;
  std::vector<std::vector<int32_t>> tokens_;  // an observation, up to and with the end
  std::vector<char> ended_;
  std::vector<int32_t> ends_;                 // an observation: the token that ends it
  std::vector<int32_t> codes_;
  size_t written_ = 0;                        // observations whose tokens_ are good
  std::vector<float> actions_;
};

Status FastPolicy::check_own() {
  if (options_.max_action_tokens < 0 || options_.max_action_tokens > 4096)
    return Status(Code::kInvalidArgument,
                  strf("max_action_tokens: wanted 1 to 4096, or 0 for 256, got %d", options_.max_action_tokens));
  limits_.max_action_tokens = options_.max_action_tokens ? options_.max_action_tokens : 256;
  limits_.steps = 1;
  limits_.action_dim = limits_.robot_dim;
  if (options_.codec.empty()) return {};
  VV_ASSIGN(codec_, ActionCodec::open(options_.codec));
  return {};
}

void FastPolicy::declare_own() {
  const int64_t B = limits_.batch;
  const DType i32 = DType::i32, f32 = DType::f32;
  token_in_.declare(arena_, "codes.last", i32, Shape(B), &code_.last);
  token_in_.declare(arena_, "codes.pos", i32, Shape(B), &code_.pos);
  token_in_.declare(arena_, "codes.slot", i32, Shape(B), &code_.slot);
  token_in_.declare(arena_, "codes.token", i32, Shape(B), &code_.token);
  token_in_.declare(arena_, "codes.turn", i32, Shape(1), &code_.turn);
  declare_tower("codes", config_.text, B, true, plan_.eight, &buffers_.expert);
  arena_.declare("prefix.out", plan_.act,
                 Shape(B * (limits_.views * config_.view_tokens() + limits_.prompt_tokens), config_.text.width),
                 &buffers_.out);
  arena_.declare("logits", f32, Shape(B, config_.vocab), &buffers_.logits);
  arena_.declare("next", i32, Shape(B), &buffers_.next);
}

Status FastPolicy::start() {
  VV_TRY(token_in_.open(*runtime_, "code inputs"));
  const int64_t B = limits_.batch, N = limits_.max_action_tokens;
  VV_ASSIGN(ring_, runtime_->reserve_shared("ring of codes", static_cast<size_t>(N * B) * sizeof(int32_t)));
  code_.ring = tensor(ring_.data(), DType::i32, Shape(N, B), runtime_->place());
  for (int i = 0; i < kAhead; ++i) {
    VV_ASSIGN(auto event, runtime_->backend().make_event());
    done_.push_back(std::move(event));
  }
  tokens_.resize(static_cast<size_t>(B));
  for (auto& t : tokens_) t.reserve(static_cast<size_t>(N));
  codes_.reserve(static_cast<size_t>(N));
  ended_.resize(static_cast<size_t>(B));
  ends_.resize(static_cast<size_t>(B));
  actions_.resize(static_cast<size_t>(B * limits_.horizon * limits_.action_dim));
  return {};
}

Status FastPolicy::check_own(const Observation& o, size_t i) const {
  if (!o.noise.empty()) return bad(i, Code::kUnsupported, "noise: codes come from no noise; leave it out");
  if (!o.action_prefix.empty()) return bad(i, Code::kUnsupported, "action_prefix: only pi05 takes a hard prefix");
  if (o.end_token < -1 || o.end_token >= config_.vocab)
    return bad(i, Code::kInvalidArgument,
               strf("end token %d is outside the vocabulary [0, %ld)", o.end_token, static_cast<long>(config_.vocab)));
  return {};
}

void FastPolicy::write_own(const Observation& o, int64_t b, int64_t prefix) {
  ends_[static_cast<size_t>(b)] = o.end_token;
  const int32_t* const slot = context_in_.host<int32_t>(context_.slot);
  const int32_t* const pos = context_in_.host<int32_t>(context_.pos);
  int32_t last = 0;  // of one that nobody asked for: any row
  const auto rows = static_cast<int32_t>(context_.slot.shape[0]);
  // The first that fits: rows behind those of this run are of runs before.
  for (int32_t row = 0; row < rows && prefix > 0; ++row)
    if (slot[row] == static_cast<int32_t>(b) && pos[row] == static_cast<int32_t>(prefix) - 1) {
      last = row;
      break;
    }
  token_in_.host<int32_t>(code_.last)[b] = last;
  // advance moves it on to the first code's place
  token_in_.host<int32_t>(code_.pos)[b] = static_cast<int32_t>(prefix) - 1;
  token_in_.host<int32_t>(code_.slot)[b] = static_cast<int32_t>(b);
  token_in_.host<int32_t>(code_.token)[b] = 0;
  token_in_.host<int32_t>(code_.turn)[0] = 0;
}

Status FastPolicy::record_launches(exec::Stream& s, bool context) const {
  ops::Recorder rec(s, ops::Weights::constant);
  engine::GateMarks marks = this->marks(context);
  PolicyContext c = this->context();
  c.gates = &marks;
  if (!context) return record_action_token(rec, c, code_);
  VV_TRY(record_context(rec, c, context_));
  return record_first_action_token(rec, c, code_);
}

Status FastPolicy::record_context_graph(exec::Stream& s) const {
  VV_TRY(token_in_.copy_in(s));
  return PolicyBase::record_context_graph(s);
}

bool FastPolicy::collect(int s, size_t observations) {
  const auto* const row =
      static_cast<const int32_t*>(ring_.data()) + static_cast<size_t>(s) * static_cast<size_t>(limits_.batch);
  bool all = true;
  for (size_t b = 0; b < observations; ++b) {
    if (!ended_[b]) tokens_[b].push_back(row[b]);
    ended_[b] |= row[b] == ends_[b] || row[b] < 0;
    all &= ended_[b] != 0;
  }
  return all;
}

Status FastPolicy::write_action_tokens(size_t observations) {
  exec::Stream& stream = runtime_->stream();
  engine::GatedCall call(options_.urgent.get(), options_.gates,
                         stream);  // the host reads codes meanwhile: how many there will be is not known before
  VV_TRY(call.begin());
  written_ = 0;
  for (size_t b = 0; b < observations; ++b) {
    tokens_[b].clear();
    ended_[b] = 0;
  }
  const auto issue = [&](int s) -> Status {
    if (options_.eager) VV_TRY(s == 0 ? record_context_graph(stream) : record_own(stream));
    else VV_TRY((s == 0 ? context_graph_ : own_graph_)->replay(form(true, s > 0 || full_), stream));
    return stream.record(*done_[static_cast<size_t>(s % kAhead)]);
  };
  int queued = 0;
  for (int s = 0; s < limits_.max_action_tokens; ++s) {
    while (queued < limits_.max_action_tokens && queued < s + kAhead) VV_TRY(issue(queued++));
    VV_TRY(done_[static_cast<size_t>(s % kAhead)]->synchronize());
    if (collect(s, observations)) break;
  }
  VV_TRY(call.end());
  VV_TRY(stream.synchronize());
  for (size_t b = 0; b < observations; ++b)
    if (!tokens_[b].empty() && tokens_[b].back() < 0)
      return Status(Code::kCorruptData,
                    "the network's logits are NaN: the checkpoint is broken, or an input lies far outside what it was "
                    "trained on; no action was given");
  written_ = observations;
  return {};
}

Result<std::span<const float>> FastPolicy::run(size_t observations) {
  if (codec_.size() == 0)
    return Status(Code::kFailedPrecondition,
                  "predict: codes without a codec are no actions; load with codec=<folder>, or ask for tokens()");
  VV_TRY(write_action_tokens(observations));
  const auto chunk = static_cast<size_t>(limits_.horizon * limits_.action_dim);
  const int64_t first = config_.vocab - 1 - kReserved;  // code 0
  for (size_t b = 0; b < observations; ++b) {
    codes_.clear();
    for (const int32_t t : tokens_[b])
      if (first - t >= 0 && first - t < static_cast<int64_t>(codec_.size()))
        codes_.push_back(static_cast<int32_t>(first - t));
    VV_TRY(codec_.decode(codes_, limits_.horizon, limits_.action_dim, false,
                         std::span<float>(actions_).subspan(b * chunk, chunk)));
  }
  return std::span<const float>(actions_).first(observations * chunk);
}

Status FastPolicy::generate(std::span<const Observation> observations) {
  VV_TRY(prepare(observations));
  VV_TRY(write_action_tokens(observations.size()));
  return runtime_->place() == Place::host ? source_.check_lost() : Status();
}

Result<std::span<const int32_t>> FastPolicy::tokens(int i) const {
  if (i < 0 || static_cast<size_t>(i) >= written_)
    return Status(Code::kInvalidArgument,
                  strf("tokens: observation %d is outside the %zu of the last run that ended well", i, written_));
  return std::span<const int32_t>(tokens_[static_cast<size_t>(i)]);
}

Status FastPolicy::calibrate_one(const Enters& enters) {
  exec::Stream& stream = runtime_->stream();
  PolicyContext seen = context();
  seen.enters = enters;
  ops::Recorder rec(stream, ops::Weights::constant);
  VV_TRY(context_in_.copy_in(stream));
  VV_TRY(record_context(rec, seen, context_));
  VV_TRY(token_in_.copy_in(stream));
  VV_TRY(record_first_action_token(rec, seen, code_));
  for (int s = 1; s < limits_.max_action_tokens; ++s) VV_TRY(record_action_token(rec, seen, code_));
  return stream.synchronize();
}

Status FastPolicy::observe(std::span<const Observation> observations, const Probe& probe) {
  VV_TRY(generate(observations));
  const Show show = host_show(runtime_->stream(), probe);
  VV_TRY(observe_context(show));
  exec::Stream& stream = runtime_->stream();
  ops::Recorder rec(stream, ops::Weights::constant);
  const TowerBuffers& b = buffers_.text;
  VV_TRY(rec(ops::norm,
             {{"x", b.hidden}, {"weight", weights_.text_norm}, {"out", buffers_.out}, {"rows", context_.rows}},
             {{"eps", config_.eps}, {"weight_plus_one", 1.0}}));
  VV_TRY(show("prefix_out", -1, buffers_.out));
  VV_TRY(token_in_.copy_in(stream));
  VV_TRY(record_first_action_token(rec, context(show), code_));
  for (size_t s = 1; s < tokens_[0].size(); ++s) VV_TRY(record_action_token(rec, context(show), code_));
  return stream.synchronize();
}

}  // namespace

std::unique_ptr<PolicyBase> make_fast(engine::Checkpoint checkpoint, PolicyConfig config,
                                      const engine::PolicyOptions& options) {
  return std::make_unique<FastPolicy>(std::move(checkpoint), std::move(config), options);
}

}  // namespace vivace::models::vla
