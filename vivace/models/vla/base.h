// PolicyBase: what every policy has: a machine, weights, the context's inputs and graph. Families add what follows it.
#pragma once
#include "vivace/exec/plan.h"
#include "vivace/models/layer/model_base.h"
#include "vivace/models/layer/staging.h"
#include "vivace/models/vla/image.h"
#include "vivace/models/vla/pipeline.h"
#include "vivace/models/vla/statistics.h"

namespace vivace::models::vla {

class PolicyBase : public ModelBase<engine::PolicyModel, engine::PolicyOptions> {
 public:
  PolicyBase(engine::Checkpoint checkpoint, PolicyConfig config, const engine::PolicyOptions& options)
      : ModelBase(config.family->name, std::move(checkpoint), options), config_(std::move(config)) {}
  ~PolicyBase() override { drain(); }
  Status load();

  engine::Report report() const override;
  std::vector<engine::MemoryLine> memory() const override;
  engine::PolicyLimits limits() const override { return limits_; }
  Status predict(std::span<const engine::Observation> observations, std::span<float> actions) override;
  Result<std::span<const float>> normalized(int i) const override;
  Result<std::vector<float>> normalized_state(std::span<const float> state) const override;
  Result<std::vector<float>> calibrate(std::span<const engine::Observation> observations, double percentile) override;
  Status set_act_scales(std::span<const float> scales) override;
  Result<engine::Profile> profile(Stage stage, bool in_step) override;
  Result<engine::WorkTimes> place_gates() override;
  Status use_whole(bool whole) override { return runtime_->use_whole(whole); }

 protected:
  static constexpr uint32_t kForms = 4;
  /// What varies lies in memory, but that there are forms: of actions that are at one time (even) or at several, of all
  /// cameras (full) or some. All of them for each stream of the machine; these are of the one in use.
  exec::ShapeKey form(bool even, bool full) const {
    return exec::ShapeKey((even ? 1u : 2u) + (full ? 0u : 2u) + kForms * static_cast<uint32_t>(runtime_->variant()));
  }
  exec::ShapeKey first_form() const { return form(true, true); }

  // What a family adds.
  /// QuantizationSites of the cache behind a prefix.
  virtual int64_t suffix() const = 0;
  virtual Status check_own() = 0;
  virtual void declare_own() = 0;
  /// After all memory is there: constants, tables.
  virtual Status start() = 0;
  virtual Status check_own(const engine::Observation& o, size_t i) const = 0;
  /// The host's side of observation `b`, whose prefix has `prefix` places; 0 for one that nobody asked for.
  virtual void write_own(const engine::Observation& o, int64_t b, int64_t prefix) = 0;
  virtual Status record_own(exec::Stream& s) const = 0;
  /// The launches of one of the two graphs without the copies around them.
  virtual Status record_launches(exec::Stream& s, bool context) const;
  /// Both graphs are there, for the stream in use.
  virtual Status captured() = 0;
  /// They go: what refers to them must not stay.
  virtual void uncapture() {}
  /// Runs what prepare() wrote op by op; `enters` sees what enters products.
  virtual Status calibrate_one(const Enters& enters) = 0;
  /// Everything after write(): normalised actions [observations, horizon, action_dim].
  virtual Result<std::span<const float>> run(size_t observations) = 0;
  /// Where run() leaves them: [batch, horizon, action_dim].
  virtual const float* answers() const = 0;

  virtual Status record_context_graph(exec::Stream& s) const;
  /// Checks observations and writes the host's side of them. Errors: as predict().
  Status prepare(std::span<const engine::Observation> observations);
  /// `status`; where it is an error, after all that was queued: frames are the caller's again.
  Status settled(Status status);
  PolicyContext context(Show show = {}) const {
    return {config_,       plan_,           weights_, buffers_, limits_.batch, limits_.views,
            limits_.steps, std::move(show), {},       false,    full_};
  }
  /// The points of one of the two graphs, for its launches.
  engine::GateMarks marks(bool context) const {
    const bool here = gating_ || planned_;
    return {here ? options_.gates : engine::GateSite{},
            gating_ ? nullptr : &gates_[runtime_->variant()][context ? 0 : 1]};
  }
  /// Activation quantization points of this policy, those of its expert where the options say so.
  QuantizationSites sites() const { return {config_, options_.expert == "e4m3"}; }
  void declare_tower(const char* name, const Tower& t, int64_t rows, bool cached, bool eight, TowerBuffers* b);
  /// Runs the context as observe() must: op by op, all values shown.
  Status observe_context(const Show& show);
  Status bad(size_t i, Code code, const std::string& what) const {
    return Status(code, strf("observation %zu: ", i) + what);
  }

  std::string robot_;  // the row of robots.h that the statistics are of, or "any"
  PolicyConfig config_;
  PrecisionPlan plan_{};
  engine::PolicyLimits limits_;
  Statistics statistics_;
  PolicyWeights weights_;
  PolicyBuffers buffers_;
  ContextInputs context_;
  StagingBuffer context_in_;
  std::unique_ptr<exec::Graph> context_graph_, own_graph_;
  bool full_ = true;  // every observation at hand has all its cameras, and there are as many as there may be
  size_t answered_ = 0;             // observations of the last predict(), if it ended well
  engine::GatePlan gates_[2][2];    // of a scheduler's tenant, by variant: of the context, of what follows
  bool gating_ = false, planned_ = false;  // every point is passed, for place_gates() looks; gates_ are known

 private:
  Status check_options();
  Status check_expert();
  Status read_scalers();
  void declare_context();
  Status fill_constants();
  Status capture();
  Status capture_variant();
  Status check(const engine::Observation& o, size_t i) const;
  Status write(std::span<const engine::Observation> observations);

  std::vector<float> units_;                            // actions in the robot's units, until all are found finite
  ImagePreprocessor images_;
};

/// The two kinds of policy, not loaded yet.
std::unique_ptr<PolicyBase> make_flow(engine::Checkpoint checkpoint, PolicyConfig config,
                                      const engine::PolicyOptions& options);
std::unique_ptr<PolicyBase> make_fast(engine::Checkpoint checkpoint, PolicyConfig config,
                                      const engine::PolicyOptions& options);

}  // namespace vivace::models::vla
