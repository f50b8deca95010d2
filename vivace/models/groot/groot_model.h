// GrootModel: weights, memory and the two graphs behind engine::PolicyModel. Loading is model.cc, a call predict.cc.
#pragma once
#include "vivace/engine/gpu_timer.h"
#include "vivace/exec/plan.h"
#include "vivace/models/groot/frames.h"
#include "vivace/models/groot/pipeline.h"
#include "vivace/models/groot/statistics.h"
#include "vivace/models/layer/model_base.h"
#include "vivace/models/layer/staging.h"
#include "vivace/models/vision/image_rows.h"

namespace vivace::models::groot {

class GrootModel final : public ModelBase<engine::PolicyModel, engine::PolicyOptions> {
 public:
  GrootModel(engine::Checkpoint checkpoint, GrootConfig config, const engine::PolicyOptions& options)
      : ModelBase(config.family(), std::move(checkpoint), options), config_(std::move(config)) {}
  ~GrootModel() override { drain(); }
  Status load();

  engine::Report report() const override;
  engine::PolicyLimits limits() const override { return limits_; }
  Status predict(std::span<const engine::Observation> observations, std::span<float> actions) override;
  Result<std::span<const float>> normalized(int i) const override;
  Result<std::vector<float>> normalized_state(std::span<const float> state) const override;
  Status observe(std::span<const engine::Observation> observations, const Probe& probe) override;
  Result<std::vector<float>> calibrate(std::span<const engine::Observation> observations, double percentile) override;
  Status set_act_scales(std::span<const float> scales) override;
  double device_us() const override { return device_us_; }
  Result<engine::Profile> profile(Stage stage, bool in_step) override;
  Result<engine::WorkTimes> place_gates() override;
  Status use_whole(bool whole) override { return runtime_->use_whole(whole); }

 private:
  using Grid = vision::Grid;
  /// Where a call's rows have got to.
  struct Rows {
    int64_t patches = 0, views = 0, tokens = 0, all = 0, texts = 0;
  };

  Status check_options();
  /// How frames of any size become the network's, and room for what comes out.
  Status read_frames();
  /// Statistics, and which embodiments are loaded.
  Status read_embodiment();
  void declare_context();
  void declare_actions();
  void declare_embodiments();
  Status fill_constants();
  Status make_tables();
  Status capture();
  Status capture_variant();
  /// The graphs' key: there is one for each stream of the machine.
  exec::ShapeKey variant() const { return exec::ShapeKey(1u + static_cast<uint32_t>(runtime_->variant())); }
  GrootContext context(Show show = {}) const {
    return {config_, weights_, buffers_, active_, limits_.batch, horizon_, limits_.steps, std::move(show), nullptr};
  }
  /// The points of one of the two graphs, for its launches.
  engine::GateMarks marks(bool context) const {
    const bool here = gating_ || planned_;
    return {here ? options_.gates : engine::GateSite{},
            gating_ ? nullptr : &gates_[runtime_->variant()][context ? 0 : 1]};
  }
  Status record_context_launches(exec::Stream& s) const;
  Status record_action_launches(exec::Stream& s) const;
  Status record_context_graph(exec::Stream& s) const;
  Status record_action_graph(exec::Stream& s) const;

  Status bad(size_t i, Code code, const std::string& what) const {
    return Status(code, strf("observation %zu: ", i) + what);
  }
  Status check(const engine::Observation& o, size_t i) const;
  Status check_views(const engine::Observation& o, size_t i) const;
  Status check_tokens(const engine::Observation& o, size_t i) const;
  Status check_actions(const engine::Observation& o, size_t i) const;
  static vision::Pixels pixels(const engine::Frame& f) { return {f.data, f.height, f.width, f.stride, f.plane}; }
  /// As the network sees the frame; of a frame that check_views() took.
  Grid grid(const engine::Frame& f) const;
  int64_t tokens_of(const engine::Frame& f) const { return grid(f).patches() / config_.vision.token_patches(); }
  /// Index in weights_.embodiments of what an observation names; -1: not loaded.
  int slot_of(const engine::Observation& o) const;

  Status prepare(std::span<const engine::Observation> observations);
  void write_view(const engine::Frame& f, Rows* at);
  void write_sequence(const engine::Observation& o, int64_t b, Rows* at);
  void write_actions(const engine::Observation& o, int64_t b);
  /// Learned positions of the call's grids, where they are others than before.
  Status place_positions();
  /// The weights of what observation `b` names, where they are others than before.
  Status take_embodiment(int64_t b, int slot);
  Status run();

  GrootConfig config_;
  PrecisionPlan plan_{};
  engine::PolicyLimits limits_;
  int64_t horizon_ = 0;                   // of the network; limits_.horizon is how many of its actions mean something
  GrootStatistics statistics_;
  FrameScaler scaler_;
  GrootWeights weights_;
  GrootBuffers buffers_;
  ContextInputs seen_;
  ActionInputs acted_;
  StagingBuffer seen_in_, acted_in_;
  std::vector<ActiveEmbodiment> active_;  // an observation each
  std::vector<int> slots_, taken_;        // embodiments that are loaded; which of them active_ holds, -1: none
  std::unique_ptr<exec::Graph> context_graph_, action_graph_;
  std::unique_ptr<exec::Plan> runs_[2];   // by variant
  std::unique_ptr<engine::GpuTimer> timer_;
  exec::Buffer result_, positions_in_;    // actions, and positions, where the host reaches them
  std::vector<Grid> grids_, placed_;      // of the call at hand; whose positions are in place
  struct Kept {
    std::string name;
    Shape shape;
    std::vector<float> values;
  };
  std::vector<Kept> kept_;                // what only loading computes, for observe()
  std::vector<float> units_;              // actions in the robot's units, until all are found finite
  double device_us_ = 0;
  size_t answered_ = 0;                   // observations of the last predict(), if it ended well
  engine::GatePlan gates_[2][2];          // of a scheduler's tenant, by variant: of the context, of the actions
  bool gating_ = false, planned_ = false;  // every point is passed, for place_gates() looks; gates_ are known
};

}  // namespace vivace::models::groot
