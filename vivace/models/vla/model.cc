// FlowPolicy: weights, arena and two captured graphs, context and actions, behind engine::PolicyModel.
#include "vivace/models/vla/model.h"

#include <algorithm>
#include <cmath>

#include "vivace/base/check.h"
#include "vivace/base/float_types.h"
#include "vivace/exec/plan.h"
#include "vivace/models/vla/image.h"
#include "vivace/models/vla/io.h"
#include "vivace/models/vla/noise.h"
#include "vivace/models/vla/pipeline.h"
#include "vivace/models/vla/statistics.h"
#include "vivace/ops/rope_freqs.h"

namespace vivace::models::vla {
namespace {

using engine::Observation;
using engine::PolicyLimits;
using engine::PolicyOptions;

constexpr exec::ShapeKey kOnly{1};  // one variant a graph: what varies lies in memory
constexpr int kMostViews = 16, kMostBatch = 64, kMostSteps = 1000, kMostHorizon = 1024, kMostWords = 4096;
constexpr int64_t kMostSide = 16384;  // of a frame

class FlowPolicy final : public engine::PolicyModel {
 public:
  FlowPolicy(engine::Checkpoint checkpoint, const PolicyOptions& options) : source_(std::move(checkpoint)), options_(options) {}
  /// What is in flight holds addresses of this object's memory.
  ~FlowPolicy() override {
    if (machine_ != nullptr) static_cast<void>(machine_->stream().synchronize());
  }
  Status load();

  const std::string& family() const override { return family_; }
  engine::Report report() const override;
  std::vector<engine::MemoryLine> memory() const override;
  PolicyLimits limits() const override { return limits_; }
  Status predict(std::span<const Observation> observations, std::span<float> actions) override;
  Result<std::span<const float>> normalized(int i) const override;
  Result<std::vector<float>> normalized_state(std::span<const float> state) const override;
  Status observe(std::span<const Observation> observations, const Probe& probe) override;
  Result<engine::Profile> profile(bool context) override;

 private:
  Status check_options();
  Status read_scalers();
  void declare_buffers();
  void declare_tower(const char* name, const Tower& t, int64_t rows, bool cached, TowerBuffers* b);
  Status fill_constants();
  Status make_tables();
  Status make_graphs();
  Status check(const Observation& o, size_t i) const;
  void write(std::span<const Observation> observations);
  void write_pixels(const engine::Frame& frame, int64_t slot);
  void write_actions(const Observation& o, int64_t b, int64_t prefix);
  Status finish(std::span<const Observation> observations, std::span<float> actions);
  PolicyContext context(Show show = {}) const { return {config_, plan_, weights_, buffers_, limits_.batch, limits_.views, limits_.steps, std::move(show)}; }
  Status record_context_graph(exec::Stream& s) const;
  Status record_action_graph(exec::Stream& s) const;
  int64_t suffix() const { return limits_.horizon + (config_.has(kStateToken) ? 1 : 0); }

  engine::WeightSource source_;
  PolicyOptions options_;
  std::unique_ptr<engine::Machine> machine_;  // before everything that lives on it
  engine::Placement placement_;
  engine::Arena arena_;
  std::string family_;
  PolicyConfig config_;
  PrecisionPlan plan_{};
  PolicyLimits limits_;
  Statistics statistics_;
  PolicyWeights weights_;
  PolicyBuffers buffers_;
  ContextInputs context_;
  ActionInputs action_;
  Stretch context_in_, action_in_;
  exec::Buffer result_;
  std::unique_ptr<exec::Graph> context_graph_, action_graph_;
  std::unique_ptr<exec::Plan> runs_;
  std::vector<Resizer> resizers_;   // a camera slot
  std::vector<float> picture_;      // lerobot's, where activations are not f32
  struct Kept {
    const char* name;
    Shape shape;
    std::vector<float> values;
  };
  std::vector<Kept> kept_;          // what only loading computes, for observe()
  bool answered_ = false;           // result_ is that of a predict() that ended well
};

Status FlowPolicy::check_options() {
  VV_ASSIGN(plan_, pick_plan(options_.precision, machine_->place()));
  const auto range = [](const char* what, int value, int most) {
    return value >= 0 && value <= most ? Status() : Status(Code::kInvalidArgument, strf("%s: wanted 1 to %d, or 0 for the checkpoint's own, got %d", what, most, value));
  };
  VV_TRY(range("num_views", options_.views, kMostViews));
  VV_TRY(range("action_horizon", options_.horizon, kMostHorizon));
  VV_TRY(range("num_steps", options_.steps, kMostSteps));
  VV_TRY(range("prompt_tokens", options_.prompt_tokens, kMostWords));
  if (options_.batch < 1 || options_.batch > kMostBatch) return Status(Code::kInvalidArgument, strf("batch: wanted 1 to %d, got %d", kMostBatch, options_.batch));
  const auto own = [](int asked, int64_t fallback) { return asked != 0 ? asked : static_cast<int>(fallback); };
  limits_.views = own(options_.views, 3);
  limits_.horizon = own(options_.horizon, std::min<int64_t>(config_.horizon, kMostHorizon));
  limits_.steps = own(options_.steps, std::min<int64_t>(config_.steps, kMostSteps));
  limits_.prompt_tokens = own(options_.prompt_tokens, config_.family->prompt_tokens);
  limits_.batch = options_.batch;
  limits_.action_dim = static_cast<int>(config_.action_dim);
  limits_.takes_state = config_.has(kStateToken);
  if (options_.resize == "auto") options_.resize = config_.lerobot ? "lerobot" : "openpi";
  if (options_.resize != "openpi" && options_.resize != "lerobot") return Status(Code::kInvalidArgument, "resize: wanted auto, openpi or lerobot, got '" + options_.resize + "'");
  resizers_.assign(static_cast<size_t>(limits_.views), Resizer(options_.resize == "openpi" ? Resize::openpi : Resize::lerobot, config_.image));
  return {};
}

Status FlowPolicy::read_scalers() {
  if (options_.statistics != "auto" && options_.statistics != "none") return Status(Code::kInvalidArgument, "statistics: wanted auto or none, got '" + options_.statistics + "'");
  if (options_.statistics == "auto") {
    VV_ASSIGN(statistics_, read_statistics(source_.checkpoint(), options_.robot, config_.has(kQuantiles)));
  }
  limits_.robot_dim = static_cast<int>(statistics_.actions.kind == Scaler::Kind::identity ? config_.action_dim : statistics_.actions.size());
  limits_.state_dim = static_cast<int>(statistics_.state.kind == Scaler::Kind::identity ? 0 : statistics_.state.size());
  if (limits_.robot_dim > config_.action_dim || limits_.state_dim > config_.state_dim)
    return Status(Code::kInvalidArgument, strf("statistics: %s has %d actions and %d values of state, the network %ld and %ld; it is of another robot", statistics_.source.c_str(), limits_.robot_dim, limits_.state_dim,
                                               static_cast<long>(config_.action_dim), static_cast<long>(config_.state_dim)));
  if (static_cast<int>(options_.delta.size()) > limits_.robot_dim)
    return Status(Code::kInvalidArgument, strf("delta: the robot has %d actions, got %zu", limits_.robot_dim, options_.delta.size()));
  return {};
}

void FlowPolicy::declare_tower(const char* name, const Tower& t, int64_t rows, bool cached, TowerBuffers* b) {
  const auto declare = [&](const char* what, DType dtype, Shape shape, Tensor* to) { arena_.declare(std::string(name) + "." + what, dtype, shape, to); };
  const DType act = plan_.act, f32 = DType::f32;
  declare("hidden", act, Shape(rows, t.width), &b->hidden);
  declare("normed", plan_.eight ? DType::e4m3 : act, Shape(rows, t.width), &b->normed);
  declare("qkv", act, Shape(rows, t.qkv_width()), &b->qkv);
  declare("q", act, Shape(rows, t.heads, t.head_dim), &b->q);
  declare("attended", act, Shape(rows, t.heads, t.head_dim), &b->attended);
  declare("mlp", act, Shape(rows, t.mlp), &b->mlp);
  if (!cached) {
    declare("k", act, Shape(rows, t.kv_heads, t.head_dim), &b->k);
    declare("v", act, Shape(rows, t.kv_heads, t.head_dim), &b->v);
  }
  if (!plan_.eight) return;
  declare("codes", DType::e4m3, Shape(rows, std::max({t.q_width(), t.mlp, padded_patch(config_)})), &b->codes);
  declare("normed_scale", f32, Shape(rows), &b->normed_scale);
  declare("codes_scale", f32, Shape(rows), &b->codes_scale);
}

void FlowPolicy::declare_buffers() {
  const PolicyConfig& c = config_;
  const int64_t B = limits_.batch, pictures = B * limits_.views * c.view_tokens(), T = pictures + B * limits_.prompt_tokens, A = suffix(), n = limits_.horizon, H = c.expert.width;
  const int64_t L = limits_.views * c.view_tokens() + limits_.prompt_tokens + A;
  const DType act = plan_.act, i32 = DType::i32, f32 = DType::f32;
  const DType pixel = options_.resize == "openpi" ? DType::u8 : act;
  context_in_.declare(arena_, "in.pixels", pixel, Shape(B * limits_.views, c.image, c.image, 3), &context_.pixels);
  context_in_.declare(arena_, "in.ids", i32, Shape(T), &context_.ids);
  context_in_.declare(arena_, "in.pos", i32, Shape(T), &context_.pos);
  context_in_.declare(arena_, "in.slot", i32, Shape(T), &context_.slot);
  context_in_.declare(arena_, "in.view_rows", i32, Shape(1), &context_.view_rows);
  context_in_.declare(arena_, "in.rows", i32, Shape(1), &context_.rows);
  context_in_.declare(arena_, "in.length", i32, Shape(B), &context_.length);
  action_in_.declare(arena_, "actions.x", f32, Shape(B * n, c.action_dim), &action_.x);
  action_in_.declare(arena_, "actions.step_size", f32, Shape(B * n, c.action_dim), &action_.step_size);
  if (c.has(kStateToken)) action_in_.declare(arena_, "actions.state", f32, Shape(B, c.state_dim), &action_.state);
  if (c.has(kAdaNorm)) action_in_.declare(arena_, "actions.time_row", i32, Shape(limits_.steps, B * A), &action_.time_row);
  action_in_.declare(arena_, "actions.pos", i32, Shape(B * A), &action_.pos);
  action_in_.declare(arena_, "actions.slot", i32, Shape(B * A), &action_.slot);
  action_in_.declare(arena_, "actions.prefix", i32, Shape(B), &action_.prefix);
  action_in_.declare(arena_, "actions.length", i32, Shape(B), &action_.length);

  PolicyBuffers& b = buffers_;
  const auto declare = [this](const char* name, DType dtype, Shape shape, Tensor* t) { arena_.declare(name, dtype, shape, t); };
  declare_tower("vision", c.vision, pictures, false, &b.vision);
  declare_tower("prefix", c.text, T, true, &b.text);
  declare_tower("expert", c.expert, B * A, true, &b.expert);
  declare("patches", act, Shape(pictures, padded_patch(c)), &b.patches);
  declare("view_slot", i32, Shape(pictures), &b.view_slot);
  if (pixel == DType::u8) {
    declare("pixel_scale", f32, Shape(3), &b.pixel_scale);
    declare("pixel_offset", f32, Shape(3), &b.pixel_offset);
  }
  declare("inv_freq", f32, Shape(c.text.head_dim / 2), &b.inv_freq);
  declare("expert.out", f32, Shape(B * A, H), &b.out);
  const auto layers = static_cast<size_t>(c.text.layers);
  b.k_cache.resize(layers);
  b.v_cache.resize(layers);
  for (size_t i = 0; i < layers; ++i) {
    arena_.declare(strf("k_cache.%zu", i), act, Shape(B, L, c.text.kv_heads, c.text.head_dim), &b.k_cache[i]);
    arena_.declare(strf("v_cache.%zu", i), act, Shape(B, L, c.text.kv_heads, c.text.head_dim), &b.v_cache[i]);
  }
  if (!c.has(kAdaNorm)) {
    declare("mixed", f32, Shape(n, H), &b.mixed);
    declare("embedded", f32, Shape(n, H), &b.embedded);
    declare("time_bias", f32, Shape(limits_.steps, H), &b.time_bias);
    return;
  }
  declare("expert.branch", act, Shape(B * A, H), &b.expert.branch);
  b.attn_ada.resize(static_cast<size_t>(c.expert.layers));
  b.mlp_ada.resize(b.attn_ada.size());
  const Shape table(limits_.steps + 1, 3 * H);
  for (size_t i = 0; i < b.attn_ada.size(); ++i) {
    arena_.declare(strf("attn_ada.%zu", i), act, table, &b.attn_ada[i]);
    arena_.declare(strf("mlp_ada.%zu", i), act, table, &b.mlp_ada[i]);
  }
  declare("final_ada", act, table, &b.final_ada);
}

Status FlowPolicy::fill_constants() {
  VV_ASSIGN(const ops::RopeFreqs freqs, ops::rope_freqs(config_.rope_theta, config_.text.head_dim, {}));
  std::vector<int32_t> slots(static_cast<size_t>(buffers_.view_slot.shape[0]));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(static_cast<int64_t>(i) / config_.view_tokens());
  const engine::Upload both[] = {{buffers_.inv_freq.data, freqs.inv_freq.data(), freqs.inv_freq.size() * sizeof(float)}, {buffers_.view_slot.data, slots.data(), slots.size() * sizeof(int32_t)}};
  VV_TRY(machine_->upload(both));
  if (!buffers_.pixel_scale.present()) return {};
  constexpr float kScale[] = {2.0f / 255, 2.0f / 255, 2.0f / 255}, kOffset[] = {-1, -1, -1};
  const engine::Upload pixels[] = {{buffers_.pixel_scale.data, kScale, sizeof(kScale)}, {buffers_.pixel_offset.data, kOffset, sizeof(kOffset)}};
  return machine_->upload(pixels);
}

/// [sin, cos] of each step's time, and of time 0 for actions that are given: then everything made of them. Times are
/// counted from 1, not added up, and their angles are f64, as lerobot has it; openpi's f32 is 2e-4 off at worst.
Status FlowPolicy::make_tables() {
  const int64_t rows = limits_.steps + 1, H = config_.expert.width, half = H / 2;
  std::vector<float> time(static_cast<size_t>(rows * H));
  for (int64_t s = 0; s < rows; ++s)
    for (int64_t i = 0; i < half; ++i) {
      const double share = half > 1 ? static_cast<double>(i) / static_cast<double>(half - 1) : 0.0;
      const double period = config_.min_period * std::pow(config_.max_period / config_.min_period, share);
      const double angle = 2 * M_PI / period * static_cast<double>(static_cast<float>(1.0 - static_cast<double>(s) / limits_.steps));
      time[static_cast<size_t>(s * H + i)] = static_cast<float>(std::sin(angle));
      time[static_cast<size_t>(s * H + half + i)] = static_cast<float>(std::cos(angle));
    }
  engine::Arena scratch("time tables");
  Tensor rows_of_time, part[3];
  scratch.declare("time", DType::f32, Shape(rows, H), &rows_of_time);
  for (int i = 0; i < 3; ++i) scratch.declare("scratch", DType::f32, Shape(rows, i < 2 ? H : 3 * H), &part[i]);
  VV_TRY(scratch.commit(*machine_));
  const engine::Upload one[] = {{rows_of_time.data, time.data(), time.size() * sizeof(float)}};
  VV_TRY(machine_->upload(one));
  exec::Stream& stream = machine_->stream();
  ops::Recorder rec(stream);
  const Show keep = [&](const char* name, int, const Tensor& value) -> Status {
    kept_.push_back({name, value.shape, std::vector<float>(static_cast<size_t>(value.shape.elements()))});
    VV_TRY(stream.copy(kept_.back().values.data(), value.data, static_cast<size_t>(value.span_bytes())));
    return stream.synchronize();
  };
  VV_TRY(record_tables(rec, context(keep), rows_of_time, part));
  return stream.synchronize();  // before the scratch goes
}

Status FlowPolicy::load() {
  VV_ASSIGN(config_, read_config(source_.checkpoint(), options_));
  family_ = config_.family->name;
  if (!config_.has(kFlow)) return Status(Code::kUnsupported, "config " + family_ + ": its actions are tokens; this loader serves flows");
  if (config_.text.layers != config_.expert.layers || config_.text.kv_width() != config_.expert.kv_width() || config_.text.head_dim != config_.expert.head_dim)
    return Status(Code::kInvalidArgument, "config.json: language model and action expert must agree in layers and in heads of keys");
  if (options_.random_weights) {
    source_.make_synthetic();
    options_.statistics = "none";
  }
  VV_ASSIGN(machine_, engine::Machine::open(options_.device, options_.threads));
  VV_TRY(check_options());
  VV_TRY(read_scalers());
  engine::Placement tables;
  std::vector<std::unique_ptr<std::byte[]>> own;
  VV_TRY(load_weights(source_, config_, plan_, limits_.views, limits_.batch, &placement_, &tables, &own, &weights_));
  declare_buffers();
  VV_ASSIGN(const int64_t free, machine_->free_bytes());
  if (const int64_t need = placement_.bytes() + tables.bytes() + arena_.bytes(); machine_->place() != Place::host && need > free)
    return Status(Code::kOutOfMemory, strf("the policy needs %ld bytes, %s has %ld free: lower num_views or batch, or use a smaller precision", static_cast<long>(need), machine_->name(), static_cast<long>(free)));
  VV_TRY(placement_.commit(*machine_));
  VV_TRY(tables.commit(*machine_));
  VV_TRY(arena_.commit(*machine_));
  VV_TRY(context_in_.open(*machine_, "context inputs"));
  VV_TRY(action_in_.open(*machine_, "action inputs"));
  VV_ASSIGN(result_, machine_->reserve_shared("actions", static_cast<size_t>(action_.x.span_bytes())));
  picture_.resize(static_cast<size_t>(config_.image * config_.image * 3));
  VV_TRY(fill_constants());
  VV_TRY(make_tables());
  VV_TRY(make_graphs());
  machine_->finish_uploads();
  return {};
}

Status FlowPolicy::record_context_graph(exec::Stream& s) const {
  VV_TRY(context_in_.copy_in(s));
  ops::Recorder rec(s);
  return record_context(rec, context(), context_);
}

Status FlowPolicy::record_action_graph(exec::Stream& s) const {
  VV_TRY(action_in_.copy_in(s));
  ops::Recorder rec(s);
  VV_TRY(record_actions(rec, context(), action_));
  return s.copy(result_.data(), action_.x.data, static_cast<size_t>(action_.x.span_bytes()));
}

Status FlowPolicy::make_graphs() {
  exec::Stream& stream = machine_->stream();
  context_graph_ = std::make_unique<exec::Graph>("context", 1);
  action_graph_ = std::make_unique<exec::Graph>("actions", 1);
  runs_ = std::make_unique<exec::Plan>("policy", machine_->backend());
  // A dry run without rows sizes every scratch area and loads every kernel, which a capture must not do.
  VV_TRY(record_context_graph(stream));
  VV_TRY(record_action_graph(stream));
  VV_TRY(context_graph_->capture(kOnly, stream, [&](exec::Stream& s) { return record_context_graph(s); }));
  VV_TRY(action_graph_->capture(kOnly, stream, [&](exec::Stream& s) { return record_action_graph(s); }));
  for (exec::Graph* g : {context_graph_.get(), action_graph_.get()}) {
    VV_ASSIGN(const exec::Plan::Step step, runs_->add(*g, kOnly, stream));
    static_cast<void>(step);
  }
  VV_TRY(runs_->freeze());
  return stream.synchronize();
}

Status FlowPolicy::check(const Observation& o, size_t i) const {
  const auto bad = [&](Code code, const std::string& what) { return Status(code, strf("observation %zu: ", i) + what); };
  if (o.views.size() != static_cast<size_t>(limits_.views)) return bad(Code::kInvalidArgument, strf("wanted a frame, or none, for each of %d cameras, got %zu; load with num_views", limits_.views, o.views.size()));
  if (std::none_of(o.views.begin(), o.views.end(), [](const engine::Frame& f) { return f.data != nullptr; })) return bad(Code::kInvalidArgument, "no camera is on");
  for (const engine::Frame& f : o.views)
    if (f.data != nullptr && (f.height < 1 || f.width < 1 || f.height > kMostSide || f.width > kMostSide || f.stride < f.width * 3))
      return bad(Code::kInvalidShape, strf("a frame has 1 to %ld rows and columns of RGB, got %ld x %ld with %ld bytes a row", static_cast<long>(kMostSide), static_cast<long>(f.height), static_cast<long>(f.width), static_cast<long>(f.stride)));
  if (o.tokens.size() > static_cast<size_t>(limits_.prompt_tokens)) return bad(Code::kLimitExceeded, strf("the prompt has %zu tokens, at most %d; load with prompt_tokens", o.tokens.size(), limits_.prompt_tokens));
  for (const int32_t t : o.tokens)
    if (t < 0 || t >= config_.vocab) return bad(Code::kInvalidArgument, strf("token %d is outside the vocabulary [0, %ld)", t, static_cast<long>(config_.vocab)));
  const bool adds = std::find(options_.delta.begin(), options_.delta.end(), true) != options_.delta.end();
  if (o.state.empty() && (limits_.takes_state || adds)) return bad(Code::kInvalidArgument, limits_.takes_state ? "this policy reads the state; give it" : "actions are steps from the state; give it");
  if (!o.state.empty() && (limits_.state_dim > 0 ? o.state.size() != static_cast<size_t>(limits_.state_dim) : o.state.size() > static_cast<size_t>(config_.state_dim)))
    return bad(Code::kInvalidShape, strf("the state has %zu values, wanted %d", o.state.size(), limits_.state_dim > 0 ? limits_.state_dim : static_cast<int>(config_.state_dim)));
  if (adds && o.state.size() < options_.delta.size()) return bad(Code::kInvalidShape, strf("the state has %zu values, actions are steps from %zu", o.state.size(), options_.delta.size()));
  const size_t whole = static_cast<size_t>(limits_.horizon * limits_.action_dim);
  if (!o.noise.empty() && o.noise.size() != whole) return bad(Code::kInvalidShape, strf("noise: wanted [%d, %d], got %zu values", limits_.horizon, limits_.action_dim, o.noise.size()));
  if (o.frozen.size() % static_cast<size_t>(limits_.action_dim) != 0 || o.frozen.size() >= whole)
    return bad(Code::kInvalidShape, strf("frozen: wanted fewer than %d actions of %d values, got %zu values", limits_.horizon, limits_.action_dim, o.frozen.size()));
  if (!o.frozen.empty() && !config_.has(kAdaNorm)) return bad(Code::kUnsupported, "frozen: " + family_ + " has one time for all actions; only pi05 takes a hard prefix");
  for (const auto& [what, values] : {std::pair{"state", o.state}, std::pair{"noise", o.noise}, std::pair{"frozen", o.frozen}})
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) return bad(Code::kInvalidArgument, strf("%s is not finite", what));
  return {};
}

void FlowPolicy::write_pixels(const engine::Frame& frame, int64_t slot) {
  const int64_t n = config_.image * config_.image * 3, first = slot * n;
  Resizer& resizer = resizers_[static_cast<size_t>(slot % limits_.views)];
  switch (context_.pixels.dtype) {
    case DType::u8: return resizer.run(frame, context_in_.host<uint8_t>(context_.pixels) + first);
    case DType::f32: return resizer.run(frame, context_in_.host<float>(context_.pixels) + first);
    default: break;
  }
  resizer.run(frame, picture_.data());
  uint16_t* const to = context_in_.host<uint16_t>(context_.pixels) + first;
  for (size_t i = 0; i < picture_.size(); ++i) to[i] = bf16_of_f32(picture_[i]);
}

void FlowPolicy::write_actions(const Observation& o, int64_t b, int64_t prefix) {
  const int64_t n = limits_.horizon, D = limits_.action_dim, A = suffix(), fixed = static_cast<int64_t>(o.frozen.size()) / D;
  float* const x = action_in_.host<float>(action_.x) + b * n * D;
  if (o.noise.empty()) draw_noise(o.seed, {x, static_cast<size_t>(n * D)});
  else std::copy(o.noise.begin(), o.noise.end(), x);
  std::copy(o.frozen.begin(), o.frozen.end(), x);
  float* const size = action_in_.host<float>(action_.step_size) + b * n * D;
  std::fill_n(size, fixed * D, 0.0f);
  std::fill(size + fixed * D, size + n * D, static_cast<float>(-1.0 / limits_.steps));
  if (config_.has(kAdaNorm))
    for (int s = 0; s < limits_.steps; ++s) {
      int32_t* const row = action_in_.host<int32_t>(action_.time_row) + (s * limits_.batch + b) * A;
      std::fill_n(row, fixed, limits_.steps);  // an action that is given is at time 0
      std::fill(row + fixed, row + A, s);
    }
  if (config_.has(kStateToken)) {
    float* const state = action_in_.host<float>(action_.state) + b * config_.state_dim;
    std::fill_n(state, config_.state_dim, 0.0f);
    for (size_t i = 0; i < o.state.size(); ++i) state[i] = statistics_.state.normalize(o.state[i], i);
  }
  for (int64_t t = 0; t < A; ++t) {
    action_in_.host<int32_t>(action_.pos)[b * A + t] = static_cast<int32_t>(prefix + t);
    action_in_.host<int32_t>(action_.slot)[b * A + t] = static_cast<int32_t>(b);
  }
  action_in_.host<int32_t>(action_.prefix)[b] = static_cast<int32_t>(prefix);
  action_in_.host<int32_t>(action_.length)[b] = static_cast<int32_t>(prefix + A);
}

void FlowPolicy::write(std::span<const Observation> observations) {
  const int64_t n = config_.view_tokens();
  auto *const ids = context_in_.host<int32_t>(context_.ids), *const pos = context_in_.host<int32_t>(context_.pos), *const slot = context_in_.host<int32_t>(context_.slot);
  int64_t row = 0, picture = 0;
  const auto place = [&](int32_t id, int64_t at, size_t whose) {
    ids[row] = id;
    pos[row] = static_cast<int32_t>(at);
    slot[row++] = static_cast<int32_t>(whose);
  };
  for (size_t b = 0; b < observations.size(); ++b) {
    int64_t at = 0;
    for (const engine::Frame& f : observations[b].views) {
      if (f.data == nullptr) continue;
      write_pixels(f, picture++);
      for (int64_t i = 0; i < n; ++i) place(0, at++, b);
    }
  }
  context_in_.host<int32_t>(context_.view_rows)[0] = static_cast<int32_t>(row);
  for (size_t b = 0; b < static_cast<size_t>(limits_.batch); ++b) {
    const Observation& o = observations[std::min(b, observations.size() - 1)];
    int64_t at = std::count_if(o.views.begin(), o.views.end(), [](const engine::Frame& f) { return f.data != nullptr; }) * n;
    if (b < observations.size())
      for (const int32_t t : o.tokens) place(t, at++, b);
    // Slots that nobody asked for run over an empty prefix; their actions are dropped.
    const int64_t prefix = b < observations.size() ? at : 0;
    context_in_.host<int32_t>(context_.length)[b] = static_cast<int32_t>(prefix);
    write_actions(o, static_cast<int64_t>(b), prefix);
  }
  context_in_.host<int32_t>(context_.rows)[0] = static_cast<int32_t>(row);
}

Status FlowPolicy::finish(std::span<const Observation> observations, std::span<float> actions) {
  VV_TRY(machine_->stream().synchronize());
  const auto* const x = static_cast<const float*>(result_.data());
  const int64_t n = limits_.horizon, D = limits_.action_dim, R = limits_.robot_dim;
  for (int64_t i = 0; i < static_cast<int64_t>(observations.size()) * n * D; ++i)
    if (!std::isfinite(x[i])) return Status(Code::kInternal, "predict: the network's actions are not finite: the checkpoint or this machine's arithmetic is broken; no action was given");
  for (size_t b = 0; b < observations.size(); ++b)
    for (int64_t t = 0; t < n; ++t)
      for (int64_t d = 0; d < R; ++d) {
        float v = statistics_.actions.unnormalize(x[(static_cast<int64_t>(b) * n + t) * D + d], static_cast<size_t>(d));
        if (d < static_cast<int64_t>(options_.delta.size()) && options_.delta[static_cast<size_t>(d)]) v += observations[b].state[static_cast<size_t>(d)];
        actions[static_cast<size_t>((static_cast<int64_t>(b) * n + t) * R + d)] = v;
      }
  answered_ = true;
  return {};
}

Status FlowPolicy::predict(std::span<const Observation> observations, std::span<float> actions) {
  answered_ = false;
  if (observations.empty() || observations.size() > static_cast<size_t>(limits_.batch))
    return Status(Code::kInvalidArgument, strf("predict: wanted 1 to %d observations, got %zu; load with batch", limits_.batch, observations.size()));
  for (size_t i = 0; i < observations.size(); ++i) VV_TRY(check(observations[i], i));
  if (const size_t want = observations.size() * static_cast<size_t>(limits_.horizon * limits_.robot_dim); actions.size() != want)
    return Status(Code::kInvalidShape, strf("predict: wanted room for %zu values, got %zu", want, actions.size()));
  write(observations);
  if (options_.eager) {
    VV_TRY(record_context_graph(machine_->stream()));
    VV_TRY(record_action_graph(machine_->stream()));
  } else {
    VV_TRY(runs_->run());
  }
  return finish(observations, actions);
}

Result<std::span<const float>> FlowPolicy::normalized(int i) const {
  if (!answered_) return Status(Code::kFailedPrecondition, "normalized: no predict() ended well before");
  if (i < 0 || i >= limits_.batch) return Status(Code::kInvalidArgument, strf("normalized: observation %d is outside [0, %d)", i, limits_.batch));
  const size_t one = static_cast<size_t>(limits_.horizon * limits_.action_dim);
  return std::span<const float>(static_cast<const float*>(result_.data()) + static_cast<size_t>(i) * one, one);
}

Result<std::vector<float>> FlowPolicy::normalized_state(std::span<const float> state) const {
  if (limits_.state_dim > 0 && state.size() != static_cast<size_t>(limits_.state_dim)) return Status(Code::kInvalidShape, strf("the state has %zu values, wanted %d", state.size(), limits_.state_dim));
  std::vector<float> out;
  for (size_t i = 0; i < state.size(); ++i) out.push_back(statistics_.state.normalize(state[i], i));
  return out;
}

Status FlowPolicy::observe(std::span<const Observation> observations, const Probe& probe) {
  std::vector<float> dropped(observations.size() * static_cast<size_t>(limits_.horizon * limits_.robot_dim));
  VV_TRY(predict(observations, dropped));
  for (Kept& k : kept_) VV_TRY(probe(k.name, -1, tensor(k.values.data(), DType::f32, k.shape)));
  exec::Stream& stream = machine_->stream();
  std::vector<std::byte> copy;
  const Show show = [&](const char* name, int step, const Tensor& value) -> Status {
    VV_TRY(stream.synchronize());
    const auto bytes = static_cast<size_t>(value.span_bytes());
    copy.resize(bytes);
    VV_TRY(stream.copy(copy.data(), value.data, bytes));
    VV_TRY(stream.synchronize());
    Tensor seen = value;
    seen.data = copy.data();
    seen.place = Place::host;
    return probe(name, step, seen);
  };
  ops::Recorder rec(stream);
  VV_TRY(context_in_.copy_in(stream));
  VV_TRY(record_context(rec, context(show), context_));
  for (size_t i = 0; i < buffers_.k_cache.size(); ++i) {
    VV_TRY(show("k_cache", static_cast<int>(i), buffers_.k_cache[i]));
    VV_TRY(show("v_cache", static_cast<int>(i), buffers_.v_cache[i]));
  }
  VV_TRY(action_in_.copy_in(stream));
  VV_TRY(show("noise", -1, action_.x));
  return record_actions(rec, context(show), action_);
}

Result<engine::Profile> FlowPolicy::profile(bool context) {
  const auto record = [&](exec::Stream& s) { return context ? record_context_graph(s) : record_action_graph(s); };
  return engine::profile(*machine_, record, [&] { return machine_->stream().synchronize(); });
}

engine::Report FlowPolicy::report() const {
  const auto quoted = [](const std::string& s) { return '"' + s + '"'; };
  const auto number = [](int64_t v) { return std::to_string(v); };
  const auto tower = [&](const Tower& t) {
    return strf("{\"width\": %ld, \"layers\": %ld, \"mlp\": %ld, \"heads\": %ld, \"kv_heads\": %ld, \"head_dim\": %ld}", static_cast<long>(t.width), static_cast<long>(t.layers), static_cast<long>(t.mlp),
                static_cast<long>(t.heads), static_cast<long>(t.kv_heads), static_cast<long>(t.head_dim));
  };
  return {{"family", quoted(family_)},
          {"device", quoted(machine_->name())},
          {"precision", quoted(plan_.name)},
          {"threads", number(machine_->threads())},
          {"resize", quoted(options_.resize)},
          {"statistics", quoted(statistics_.source)},
          {"vision", tower(config_.vision)},
          {"text", tower(config_.text)},
          {"expert", tower(config_.expert)},
          {"vocab", number(config_.vocab)},
          {"num_views", number(limits_.views)},
          {"action_horizon", number(limits_.horizon)},
          {"num_steps", number(limits_.steps)},
          {"batch", number(limits_.batch)},
          {"prompt_tokens", number(limits_.prompt_tokens)},
          {"action_dim", number(limits_.action_dim)},
          {"robot_dim", number(limits_.robot_dim)},
          {"state_dim", number(limits_.state_dim)},
          {"context_launches", number(static_cast<int64_t>(context_graph_->executable(kOnly)->launches()))},
          {"action_launches", number(static_cast<int64_t>(action_graph_->executable(kOnly)->launches()))},
          {"weight_bytes", number(placement_.bytes())},
          {"arena_bytes", number(arena_.bytes())}};
}

std::vector<engine::MemoryLine> FlowPolicy::memory() const {
  std::vector<engine::MemoryLine> lines{{"weights", placement_.bytes()}};
  for (engine::MemoryLine& line : arena_.lines()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace

Result<std::unique_ptr<engine::PolicyModel>> load_policy(const std::string& path, const PolicyOptions& options) {
  const auto build = [&]() -> Result<std::unique_ptr<engine::PolicyModel>> {
    VV_ASSIGN(engine::Checkpoint checkpoint, options.random_weights ? engine::Checkpoint::open_config(path) : engine::Checkpoint::open(path));
    auto policy = std::make_unique<FlowPolicy>(std::move(checkpoint), options);
    VV_TRY(policy->load());
    return std::unique_ptr<engine::PolicyModel>(std::move(policy));
  };
  auto built = build();
  if (!built.ok()) return std::move(built).status().with_context(path);
  return built;
}

}  // namespace vivace::models::vla
