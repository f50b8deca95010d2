// "nod": the robot's state and the words of a task to a chunk of actions, in one pass. The ops of a call, and the model
// around them; what every model has is ModelBase's.
#pragma once
#include <algorithm>

#include "tests/models/new_family/weights.h"
#include "vivace/engine/json_text.h"
#include "vivace/engine/profile.h"
#include "vivace/exec/graph.h"
#include "vivace/models/layer/model_base.h"
#include "vivace/models/layer/stack_recorder.h"
#include "vivace/models/layer/staging.h"

namespace vivace::models::nod {

/// Rows of a call: the state, then the prompt's words, which have no order. T is the most.
struct NodBuffers : StackBuffers {
  Tensor words, slot, offsets, rows;  // [T], [T], [2], [1] i32: row 0 of words is nobody's
  Tensor state;                       // [1, state_dim] f32
  Tensor last;                        // [1, H] act
  Tensor actions;                     // [1, horizon * action_dim] f32
};

class NodGraph : private StackRecorder {
 public:
  NodGraph(ops::Recorder& rec, const NodWeights& w, const NodBuffers& b, const Show& show)
      : StackRecorder(rec, kEps, show, nullptr, kNone, kNobody), w_(w), b_(b) {}

  Status record() {
    const Tensor first = top(b_.hidden, 1);
    op_.rows = b_.rows;
    VV_TRY(op_.gather(w_.words, b_.words, b_.hidden));
    op_.rows = {};
    VV_TRY(op_.linear({b_.state}, w_.state, first));
    op_.rows = b_.rows;
    for (size_t i = 0; i < w_.layers.size(); ++i) {
      VV_TRY(layer(b_, w_.layers[i], kEps, {b_.slot, b_.offsets, {}}, 4 * static_cast<int64_t>(i)));
      VV_TRY(show("layer" + std::to_string(i) + "_out", -1, b_.hidden));
    }
    op_.rows = {};
    VV_TRY(op_.norm(first, layer_norm(w_.norm), {b_.last}));
    VV_TRY(op_.linear({b_.last}, w_.actions, b_.actions));
    return show("actions", -1, b_.actions);
  }

 private:
  static constexpr double kEps = 1e-5;
  static inline const Tensor kNone = {};  // no calibrated scales
  static inline const Enters kNobody = {};
  const NodWeights& w_;
  const NodBuffers& b_;
};

class NodModel final : public ModelBase<engine::PolicyModel, engine::PolicyOptions> {
 public:
  NodModel(engine::Checkpoint checkpoint, const NodConfig& config, const engine::PolicyOptions& options)
      : ModelBase(kNames[0], std::move(checkpoint), options), config_(config) {}
  ~NodModel() override { drain(); }

  Status load() {
    static constexpr PrecisionPlan kPlans[] = {{"f32", DType::f32, true, false, false},
                                               {"bf16", DType::bf16, false, false, false},
                                               {"fp8", DType::bf16, false, true, false}};
    VV_TRY(open());
    VV_ASSIGN(plan_, pick_plan(kPlans, options_.precision, runtime_->place()));
    if (options_.batch != 1 || options_.views != 0)
      return Status(Code::kInvalidArgument, "nod: one observation a call, and no cameras");
    limits_ = {.horizon = static_cast<int>(config_.horizon),
               .steps = 1,
               .batch = 1,
               .prompt_tokens = options_.prompt_tokens != 0 ? options_.prompt_tokens : 32,
               .action_dim = static_cast<int>(config_.action_dim),
               .robot_dim = static_cast<int>(config_.action_dim),
               .state_dim = static_cast<int>(config_.state_dim),
               .network_state = static_cast<int>(config_.state_dim),
               .takes_state = true};
    OwnedTensors own;
    VV_TRY(NodLoader(source_, plan_.act, plan_.stored, &uploader_, &own, plan_.eight).load(config_, &weights_));
    declare();
    VV_TRY(check_fit("policy", uploader_.bytes(), "lower prompt_tokens"));
    VV_TRY(uploader_.commit(*runtime_));
    VV_TRY(arena_.commit(*runtime_));
    VV_TRY(in_.open(*runtime_, "inputs"));
    VV_TRY(out_.open(*runtime_, "actions"));
    exec::Stream& stream = runtime_->stream();
    VV_TRY(record(stream));
    VV_TRY(stream.synchronize());
    VV_TRY(graph_.capture(kOnly, stream, [this](exec::Stream& s) { return record(s); }));
    return close_load();
  }

  engine::PolicyLimits limits() const override { return limits_; }
  engine::Report report() const override {
    return {{"family", engine::json_string(family_)},
            {"device", engine::json_string(runtime_->name())},
            {"precision", engine::json_string(plan_.name)}};
  }
  Status predict(std::span<const engine::Observation> observations, std::span<float> actions) override {
    if (const auto n = static_cast<size_t>(config_.horizon * config_.action_dim); actions.size() != n)
      return Status(Code::kInvalidShape, strf("predict: wanted room for %zu values, got %zu", n, actions.size()));
    VV_TRY(write(observations));
    exec::Stream& stream = runtime_->stream();
    VV_TRY(options_.eager ? record(stream) : graph_.replay(kOnly, stream));
    VV_TRY(stream.synchronize());
    std::copy_n(out_.host<float>(buffers_.actions), actions.size(), actions.begin());
    return {};
  }
  Result<std::span<const float>> normalized(int) const override {
    return std::span<const float>(out_.host<float>(buffers_.actions),
                                  static_cast<size_t>(config_.horizon * config_.action_dim));
  }
  Result<std::vector<float>> normalized_state(std::span<const float> state) const override {
    return std::vector<float>(state.begin(), state.end());
  }
  Status observe(std::span<const engine::Observation> observations, const Probe& probe) override {
    VV_TRY(write(observations));
    exec::Stream& stream = runtime_->stream();
    VV_TRY(in_.copy_in(stream));
    return launch(stream, host_show(stream, probe));
  }
  Result<engine::Profile> profile(Stage, bool in_step) override {
    return engine::profile(
        *runtime_, [this](exec::Stream& s) { return launch(s); }, [this] { return runtime_->stream().synchronize(); },
        in_step);
  }

 private:
  static constexpr exec::ShapeKey kOnly{1};

  void declare() {
    const int64_t T = 1 + limits_.prompt_tokens;
    NodBuffers& b = buffers_;
    in_.declare(arena_, "in.words", DType::i32, Shape(T), &b.words);
    in_.declare(arena_, "in.slot", DType::i32, Shape(T), &b.slot);
    in_.declare(arena_, "in.offsets", DType::i32, Shape(2), &b.offsets);
    in_.declare(arena_, "in.rows", DType::i32, Shape(1), &b.rows);
    in_.declare(arena_, "in.state", DType::f32, Shape(1, config_.state_dim), &b.state);
    out_.declare(arena_, "actions", DType::f32, Shape(1, config_.horizon * config_.action_dim), &b.actions);
    arena_.declare("last", plan_.act, Shape(1, config_.width), &b.last);
    declare_stack(arena_, "layers", config_, T, plan_.act, false, &b, &plan_);
  }
  Status write(std::span<const engine::Observation> observations) {
    if (observations.size() != 1) return Status(Code::kInvalidArgument, "predict: wanted one observation");
    const engine::Observation& o = observations[0];
    if (o.state.size() != static_cast<size_t>(config_.state_dim))
      return Status(Code::kInvalidShape, strf("observation 0: the state has %zu values, wanted %ld", o.state.size(),
                                              static_cast<long>(config_.state_dim)));
    if (o.tokens.size() > static_cast<size_t>(limits_.prompt_tokens))
      return Status(Code::kLimitExceeded, strf("observation 0: the prompt has %zu tokens, at most %d; load with "
                                               "prompt_tokens",
                                               o.tokens.size(), limits_.prompt_tokens));
    std::copy(o.state.begin(), o.state.end(), in_.host<float>(buffers_.state));
    std::copy(o.tokens.begin(), o.tokens.end(), in_.host<int32_t>(buffers_.words) + 1);
    in_.host<int32_t>(buffers_.offsets)[1] = *in_.host<int32_t>(buffers_.rows) =
        static_cast<int32_t>(1 + o.tokens.size());
    return {};
  }
  Status launch(exec::Stream& s, const Show& show = {}) {
    ops::Recorder rec(s, ops::Weights::constant);
    return NodGraph(rec, weights_, buffers_, show).record();
  }
  Status record(exec::Stream& s) {
    VV_TRY(in_.copy_in(s));
    VV_TRY(launch(s));
    return out_.copy_out(s);
  }

  NodConfig config_;
  PrecisionPlan plan_{};
  engine::PolicyLimits limits_;
  NodWeights weights_;
  NodBuffers buffers_;
  StagingBuffer in_, out_;
  exec::Graph graph_{"nod", 1};
};

inline Result<std::unique_ptr<engine::PolicyModel>> load(engine::Checkpoint checkpoint,
                                                         const engine::PolicyOptions& options) {
  VV_ASSIGN(const NodConfig config, read_config(checkpoint));
  return load_family<NodModel, engine::PolicyModel>(std::move(checkpoint), config, options);
}

}  // namespace vivace::models::nod
