// FlowPolicy: the actions of pi0 and pi0.5 behind a context: inputs, time tables and the flow's graph.
#include <algorithm>
#include <cmath>

#include "vivace/base/check.h"
#include "vivace/engine/gpu_timer.h"
#include "vivace/models/vla/base.h"
#include "vivace/models/vla/noise.h"

namespace vivace::models::vla {
namespace {

using engine::Observation;

class FlowPolicy final : public PolicyBase {
 public:
  using PolicyBase::PolicyBase;
  Status observe(std::span<const Observation> observations, const Probe& probe) override;

 private:
  int64_t suffix() const override { return limits_.horizon + (config_.has(kStateToken) ? 1 : 0); }
  Status check_own() override;
  void declare_own() override;
  Status start() override;
  Status check_own(const Observation& o, size_t i) const override;
  void write_own(const Observation& o, int64_t b, int64_t prefix) override;
  Status record_launches(exec::Stream& s, bool context) const override;
  Status record_own(exec::Stream& s) const override;
  Status captured() override;
  void uncapture() override {
    for (auto& run : runs_) run.reset();
  }
  Result<std::span<const float>> run(size_t observations) override;
  Status calibrate_one(const Enters& enters) override;
  double device_us() const override { return device_us_; }
  const float* answers() const override { return static_cast<const float*>(result_.data()); }
  Status make_tables();
  /// context() of the observations that were written last.
  PolicyContext at_hand(Show show = {}) const;

  ActionInputs action_;
  StagingBuffer action_in_;
  exec::Buffer result_;
  std::unique_ptr<exec::Plan> runs_[2 * kForms];  // by form() less 1
  std::unique_ptr<engine::GpuTimer> timer_;
  double device_us_ = 0;
  bool even_ = true;                // no observation at hand has actions that are given
  struct Kept {
    std::string name;
    Shape shape;
    std::vector<float> values;
  };
  std::vector<Kept> kept_;          // what only loading computes, for observe()
};

Status FlowPolicy::check_own() {
  if (config_.text.layers != config_.expert.layers || config_.text.kv_width() != config_.expert.kv_width() ||
      config_.text.head_dim != config_.expert.head_dim)
    return Status(Code::kInvalidArgument,
                  "config.json: language model and action expert must agree in layers and in heads of keys");
  return {};
}

void FlowPolicy::declare_own() {
  const PolicyConfig& c = config_;
  const int64_t B = limits_.batch, A = suffix(), n = limits_.horizon, H = c.expert.width;
  const DType act = plan_.act, i32 = DType::i32, f32 = DType::f32;
  action_in_.declare(arena_, "actions.x", f32, Shape(B * n, c.action_dim), &action_.x);
  action_in_.declare(arena_, "actions.step_size", f32, Shape(B * n, c.action_dim), &action_.step_size);
  if (c.has(kStateToken)) action_in_.declare(arena_, "actions.state", f32, Shape(B, c.state_dim), &action_.state);
  if (c.has(kCrosses)) action_in_.declare(arena_, "actions.own_pos", i32, Shape(B * A), &action_.own_pos);
  if (c.has(kAdaNorm))
    action_in_.declare(arena_, "actions.time_row", i32, Shape(limits_.steps, B * A), &action_.time_row);
  action_in_.declare(arena_, "actions.pos", i32, Shape(B * A), &action_.pos);
  action_in_.declare(arena_, "actions.slot", i32, Shape(B * A), &action_.slot);
  action_in_.declare(arena_, "actions.prefix", i32, Shape(B), &action_.prefix);
  action_in_.declare(arena_, "actions.length", i32, Shape(B), &action_.length);

  PolicyBuffers& b = buffers_;
  const auto declare = [this](const char* name, DType dtype, Shape shape, Tensor* t) {
    arena_.declare(name, dtype, shape, t);
  };
  declare_tower("expert", c.expert, B * A, true, plan_.expert, &b.expert);
  if (plan_.expert)  // where norms come before products
    declare("expert.normed_scale", f32, Shape(B * A), &b.expert.normed_scale);
  declare("expert.out", act, Shape(B * A, H), &b.out);
  if (!c.has(kAdaNorm)) {
    declare("mixed", act, Shape(n, H), &b.mixed);
    declare("embedded", act, Shape(n, H), &b.embedded);
    declare("time_bias", f32, Shape(limits_.steps, H), &b.time_bias);
    return;
  }
  declare("expert.gates", act, Shape(B * A, H), &b.expert.gates);
  b.attn_ada.resize(static_cast<size_t>(c.expert.layers));
  b.mlp_ada.resize(b.attn_ada.size());
  const Shape table(limits_.steps + 1, 3 * H);
  for (size_t i = 0; i < b.attn_ada.size(); ++i) {
    arena_.declare(strf("attn_ada.%zu", i), act, table, &b.attn_ada[i]);
    arena_.declare(strf("mlp_ada.%zu", i), act, table, &b.mlp_ada[i]);
  }
  declare("final_ada", act, table, &b.final_ada);
  const bool folds = B * A <= kFoldedRows && info(act).bytes == 2;
  if (folds || options_.expert == "e4m3")
    declare("expert.squares", f32, Shape(B * A, (H + 7) / 8), &b.expert.squares);
  if (!folds) return;
  declare("expert.row_scale", f32, Shape(B * A), &b.expert.row_scale);
  declare("unturned", f32, Shape(B * A, 1, c.expert.head_dim), &b.unturned);
  declare("angles", f32, Shape(B * A, 2, c.expert.head_dim / 2), &b.angles);
  b.attn_shift.resize(b.attn_ada.size());
  b.mlp_shift.resize(b.attn_ada.size());
  for (size_t i = 0; i < b.attn_ada.size(); ++i) {
    arena_.declare(strf("attn_shift.%zu", i), f32, Shape(limits_.steps + 1, c.expert.qkv_width()), &b.attn_shift[i]);
    arena_.declare(strf("mlp_shift.%zu", i), f32, Shape(limits_.steps + 1, 2 * c.expert.mlp), &b.mlp_shift[i]);
  }
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
      const double angle =
          2 * M_PI / period * static_cast<double>(static_cast<float>(1.0 - static_cast<double>(s) / limits_.steps));
      time[static_cast<size_t>(s * H + i)] = static_cast<float>(std::sin(angle));
      time[static_cast<size_t>(s * H + half + i)] = static_cast<float>(std::cos(angle));
    }
  engine::Arena scratch("time tables");
  Tensor rows_of_time, part[3];
  scratch.declare("time", DType::f32, Shape(rows, H), &rows_of_time);
  for (int i = 0; i < 3; ++i) scratch.declare("scratch", DType::f32, Shape(rows, i < 2 ? H : 3 * H), &part[i]);
  VV_TRY(scratch.commit(*runtime_));
  const engine::Upload one[] = {{rows_of_time.data, time.data(), time.size() * sizeof(float)}};
  VV_TRY(runtime_->upload(one));
  exec::Stream& stream = runtime_->stream();
  ops::Recorder rec(stream);
  const Show keep = [&](const std::string& name, int, const Tensor& value) -> Status {
    kept_.push_back({name, value.shape, std::vector<float>(static_cast<size_t>(value.shape.elements()))});
    VV_TRY(stream.copy(kept_.back().values.data(), value.data, static_cast<size_t>(value.span_bytes())));
    return stream.synchronize();
  };
  VV_TRY(record_tables(rec, context(keep), rows_of_time, part));
  return stream.synchronize();  // before the scratch goes
}

Status FlowPolicy::start() {
  VV_TRY(action_in_.open(*runtime_, "action inputs"));
  VV_ASSIGN(timer_, engine::GpuTimer::open(runtime_->stream()));
  VV_ASSIGN(result_, runtime_->reserve_shared("actions", static_cast<size_t>(action_.x.span_bytes())));
  if (const Tensor& t = buffers_.unturned; t.present()) {
    std::vector<float> rows(static_cast<size_t>(t.shape.elements()));
    const int64_t D = t.shape[2];
    for (int64_t row = 0; row < t.shape[0]; ++row) std::fill_n(rows.begin() + row * D, D / 2, 1.0f);
    const engine::Upload one[] = {{t.data, rows.data(), rows.size() * sizeof(float)}};
    VV_TRY(runtime_->upload(one));
  }
  return make_tables();
}

Status FlowPolicy::check_own(const Observation& o, size_t i) const {
  const size_t whole = static_cast<size_t>(limits_.horizon * limits_.action_dim);
  if (!o.noise.empty() && o.noise.size() != whole)
    return bad(i, Code::kInvalidShape,
               strf("noise: wanted [%d, %d], got %zu values", limits_.horizon, limits_.action_dim, o.noise.size()));
  if (o.action_prefix.size() % static_cast<size_t>(limits_.action_dim) != 0 || o.action_prefix.size() >= whole)
    return bad(i, Code::kInvalidShape,
               strf("action_prefix: wanted fewer than %d actions of %d values, got %zu values", limits_.horizon,
                    limits_.action_dim, o.action_prefix.size()));
  if (!o.action_prefix.empty() && !config_.has(kAdaNorm))
    return bad(i, Code::kUnsupported,
               "action_prefix: " + family_ + " has one time for all actions; only pi05 takes a hard prefix");
  for (const auto& [what, values] : {std::pair{"noise", o.noise}, std::pair{"action_prefix", o.action_prefix}})
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }))
      return bad(i, Code::kInvalidArgument, strf("%s is not finite", what));
  return {};
}

void FlowPolicy::write_own(const Observation& o, int64_t b, int64_t prefix) {
  const int64_t n = limits_.horizon, D = limits_.action_dim, A = suffix(),
                fixed = static_cast<int64_t>(o.action_prefix.size()) / D;
  float* const x = action_in_.host<float>(action_.x) + b * n * D;
  if (o.noise.empty()) draw_noise(o.seed, {x, static_cast<size_t>(n * D)});
  else std::copy(o.noise.begin(), o.noise.end(), x);
  std::copy(o.action_prefix.begin(), o.action_prefix.end(), x);
  float* const size = action_in_.host<float>(action_.step_size) + b * n * D;
  std::fill_n(size, fixed * D, 0.0f);
  std::fill(size + fixed * D, size + n * D, static_cast<float>(-1.0 / limits_.steps));
  even_ = (b == 0 || even_) && fixed == 0;
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
    if (config_.has(kCrosses)) action_in_.host<int32_t>(action_.own_pos)[b * A + t] = static_cast<int32_t>(t);
  }
  action_in_.host<int32_t>(action_.prefix)[b] = static_cast<int32_t>(prefix);
  action_in_.host<int32_t>(action_.length)[b] = static_cast<int32_t>(prefix + A);
}

Status FlowPolicy::record_launches(exec::Stream& s, bool context) const {
  if (context) return PolicyBase::record_launches(s, true);
  ops::Recorder rec(s, ops::Weights::constant);
  engine::GateMarks marks = this->marks(false);
  PolicyContext c = at_hand();
  c.gates = &marks;
  return record_actions(rec, c, action_);
}

PolicyContext FlowPolicy::at_hand(Show show) const {
  PolicyContext c = context(std::move(show));
  c.even = even_;
  return c;
}

Status FlowPolicy::record_own(exec::Stream& s) const {
  VV_TRY(action_in_.copy_in(s));
  VV_TRY(record_launches(s, false));
  return s.copy(result_.data(), action_.x.data, static_cast<size_t>(action_.x.span_bytes()));
}

Status FlowPolicy::captured() {
  exec::Stream& stream = runtime_->stream();
  for (const bool even : {true, false}) {
    if (!even) {
      if (!config_.has(kAdaNorm)) break;
      even_ = false;
      VV_TRY(record_own(stream));  // as in capture(): kernels and scratch areas, which a capture must not bring
      VV_TRY(stream.synchronize());
      VV_TRY(own_graph_->capture(form(false, true), stream, [&](exec::Stream& s) { return record_own(s); }));
    }
    for (const bool full : {true, false}) {
      auto& plan = runs_[form(even, full).value - 1] = std::make_unique<exec::Plan>("policy", runtime_->backend());
      for (const auto& [graph, key] :
           {std::pair{context_graph_.get(), form(true, full)}, {own_graph_.get(), form(even, true)}}) {
        VV_ASSIGN(const exec::Plan::Step step, plan->add(*graph, key, stream));
        static_cast<void>(step);
      }
      VV_TRY(plan->freeze());
    }
  }
  even_ = true;
  return {};
}

Result<std::span<const float>> FlowPolicy::run(size_t observations) {
  exec::Stream& stream = runtime_->stream();
  engine::GatedCall call(options_.urgent.get(), options_.gates, stream);
  VV_TRY(call.begin());
  VV_TRY(timer_->start(stream));
  if (options_.eager) {
    VV_TRY(record_context_graph(stream));
    VV_TRY(record_own(stream));
  } else {
    VV_TRY(runs_[form(even_, full_).value - 1]->run());
  }
  VV_TRY(timer_->stop(stream));
  VV_TRY(call.end());
  VV_TRY(stream.synchronize());
  VV_ASSIGN(device_us_, timer_->us());
  return std::span<const float>(static_cast<const float*>(result_.data()),
                                observations * static_cast<size_t>(limits_.horizon * limits_.action_dim));
}

Status FlowPolicy::calibrate_one(const Enters& enters) {
  exec::Stream& stream = runtime_->stream();
  PolicyContext seen = at_hand();
  seen.enters = enters;
  ops::Recorder rec(stream, ops::Weights::constant);
  VV_TRY(context_in_.copy_in(stream));
  VV_TRY(record_context(rec, seen, context_));
  if (options_.expert != "e4m3") return stream.synchronize();
  seen.even = true;  // the form whose rows enter products in 8 bits by these scales
  seen.enters = [&](int64_t place, const Tensor& x, const Tensor& rows) {
    return enters(place, slice(x, 0, suffix()), rows);  // of this observation
  };
  VV_TRY(action_in_.copy_in(stream));
  VV_TRY(record_actions(rec, seen, action_));
  return stream.synchronize();
}

Status FlowPolicy::observe(std::span<const Observation> observations, const Probe& probe) {
  std::vector<float> dropped(observations.size() * static_cast<size_t>(limits_.horizon * limits_.robot_dim));
  VV_TRY(predict(observations, dropped));
  for (Kept& k : kept_) VV_TRY(probe(k.name.c_str(), -1, tensor(k.values.data(), DType::f32, k.shape)));
  const Show show = host_show(runtime_->stream(), probe);
  VV_TRY(observe_context(show));
  VV_TRY(action_in_.copy_in(runtime_->stream()));
  VV_TRY(show("noise", -1, action_.x));
  ops::Recorder rec(runtime_->stream(), ops::Weights::constant);
  return record_actions(rec, at_hand(show), action_);
}

}  // namespace

std::unique_ptr<PolicyBase> make_flow(engine::Checkpoint checkpoint, PolicyConfig config,
                                      const engine::PolicyOptions& options) {
  return std::make_unique<FlowPolicy>(std::move(checkpoint), std::move(config), options);
}

}  // namespace vivace::models::vla
