// WhisperModel: weights, memory, a captured graph for each number of windows and of rows, behind engine::SpeechModel.
// Loading is model.cc, sound sound.cc, text text.cc.
#pragma once
#include <chrono>
#include <map>
#include <optional>

#include "vivace/engine/runtime.h"
#include "vivace/exec/graph.h"
#include "vivace/models/layer/model_base.h"
#include "vivace/models/layer/staging.h"
#include "vivace/models/whisper/alignment.h"
#include "vivace/models/whisper/candidates.h"
#include "vivace/models/whisper/pipeline.h"

namespace vivace::models::whisper {

class WhisperModel final : public ModelBase<engine::SpeechModel, engine::SpeechOptions> {
 public:
  WhisperModel(engine::Checkpoint checkpoint, WhisperConfig config, engine::SpeechOptions options)
      : ModelBase("whisper", std::move(checkpoint), std::move(options)), config_(std::move(config)) {}
  ~WhisperModel() override { drain(); }
  Status load();

  engine::Report report() const override;
  engine::SpeechLimits limits() const override { return limits_; }
  const engine::SpeechTokens& tokens() const override { return config_.tokens; }
  Result<float> peak(std::span<const float> samples) override;
  Status encode(std::span<const engine::SpeechWindow> windows) override;
  Result<std::vector<float>> encoded(int window) override;
  Result<std::vector<float>> languages(int window) override;
  Status decode(std::span<const engine::SpeechRequest> requests, std::vector<engine::Transcript>* out) override;
  Result<std::vector<float>> logits(int window, std::span<const int32_t> tokens) override;
  Result<engine::Alignment> align(int window, std::span<const int32_t> lead, std::span<const int32_t> text, int frames,
                                  std::span<const std::pair<int, int>> heads) override;
  Result<std::vector<float>> calibrate(std::span<const std::span<const float>> sounds, double percentile) override;
  Result<engine::Profile> profile(int windows, int rows, bool in_step) override;
  Result<engine::WorkTimes> work_times() const override;

 private:
  /// What runs until its end is told to the tenant's account, if there is one.
  class Accounted {
   public:
    explicit Accounted(engine::StepAccount* account) : account_(account) {
      if (account_ != nullptr) account_->want(true);
    }
    Accounted(const Accounted&) = delete;
    ~Accounted() {
      if (account_ == nullptr) return;
      account_->charge(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun_).count());
      account_->want(false);
    }

   private:
    engine::StepAccount* account_;
    std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  };
  /// One token that enters a step, in a line of the cache.
  struct Row {
    int32_t token, pos, line, window;
  };
  /// A window's candidates while they decode.
  struct Group {
    Group(const engine::SpeechTokens& tokens, const engine::SpeechRequest& r, int first)
        : candidates(tokens, r), request(&r), line(first) {}
    Candidates candidates;
    const engine::SpeechRequest* request;
    int line;               // the first of its lines
    int32_t said = 0;       // tokens since the prompt
    bool over = false;
    size_t row = 0, rows = 0;  // of the last step
    std::optional<Follower> follower;
    std::vector<int32_t> places;
    engine::SpeechEnd end = engine::SpeechEnd::eot;
  };
  /// A row of a step of which something is told.
  struct Wanted {
    int32_t row;
    Spans spans;         // what may come
    int32_t mask = -1;   // ... and the row of masks; -1: none
    int32_t told = 0;    // likeliest tokens
    int32_t asked = -1;  // a token whose log-probability is wanted
  };
  static exec::ShapeKey step_key(int64_t rows) { return exec::ShapeKey{static_cast<uint64_t>(rows) << 2}; }
  static exec::ShapeKey sound_key(int64_t windows) { return exec::ShapeKey{static_cast<uint64_t>(windows) << 2 | 1}; }
  static constexpr exec::ShapeKey kFeatures{2};
  Status check_options();
  void declare_buffers();
  Status fill_constants();
  Status capture();
  /// While a calibration looks, steps are launches: what enters products stays inside the one launch.
  WhisperContext context() const {
    return {config_, plan_, weights_, buffers_, nullptr, enters_, launches_.empty() && !enters_ ? &stacks_ : nullptr};
  }
  /// Whether steps of one row may be decode_layers_cross's, as far as options and configuration say; else `launches_`
  /// says why not, and a load that asked for it fails.
  Status check_decode_layers();
  Status decode_by_launches(const Status& why);
  /// The stacks, once weights and caches lie where they stay, and the kernel.
  Status open_decode_layers();
  Result<CrossStacks> stack_layers() const;
  /// The points of a graph, none before place_gates() has looked.
  engine::GateMarks marks(exec::ShapeKey key) const;
  /// Times the launches of a graph with all its rows, and finds its gates.
  Status place_gates(exec::ShapeKey key, const std::function<Status(exec::Stream&)>& launches);
  /// Inputs of a step of so many rows, as far in the text as there are places.
  void write_full(int64_t rows);
  Status run(exec::ShapeKey key, const std::function<Status(exec::Stream&)>& record);
  Status record_sound(exec::Stream& s, int64_t windows, bool features_only, const Tensor& rows) const;
  Status record_step(exec::Stream& s, int64_t rows) const;
  Status launch_sound(exec::Stream& s, int64_t windows, bool features_only, const Tensor& rows) const;
  Status launch_step(exec::Stream& s, int64_t rows) const;
  /// Writes the samples that the frames of `w` are made of into line `i` of the inputs.
  void write_samples(size_t i, const engine::SpeechWindow& w);
  /// Runs rows; of `wanted`'s i-th it is then told what seen(i) and asked(i) say, and fetch_logits() may be called.
  Status step(std::span<const Row> rows, std::span<const Wanted> wanted);
  void want(size_t i, const Wanted& wanted);
  Candidates::Seen seen(size_t i) const;
  double asked(size_t i) const { return static_cast<double>(text_out_.host<float>(told_.asked)[i]); }
  /// Logits of the last step's wanted rows [first, first + n), which logits_row() then gives.
  Status fetch_logits(size_t first, size_t n);
  std::span<float> logits_row(size_t i) const {
    return {host_logits_ + i * static_cast<size_t>(config_.vocab), static_cast<size_t>(config_.vocab)};
  }
  Spans every() const { return every_token(config_.vocab); }
  /// What of a live candidate of `g` is wanted, which is row `row` of a step.
  Wanted choice(const Group& g, size_t candidate, size_t row) const;
  /// The first `count` places of each line are of its own.
  void own_places(int line);
  /// Feeds `tokens` to line 0 from place 0 on; asked_of(place) is the token that is asked for there, among those of
  /// `spans`; each(first place, rows) sees every part.
  Status feed(int window, std::span<const int32_t> tokens, const Spans& spans,
              const std::function<int32_t(size_t)>& asked_of, const std::function<Status(size_t, size_t)>& each);
  Status check(const engine::SpeechRequest& r) const;
  /// A window and its greedy text, for calibrate().
  Status show_window(std::span<const float> samples, int64_t first, float peak);
  Status check_window(const char* call, int window) const;
  /// Runs the prompts; the first token of every candidate.
  Status begin(std::vector<Group>& groups, std::vector<engine::Transcript>* out);
  Status advance(std::vector<Group>& groups);
  /// Candidates choose by wanted rows [first, first + n) of the last step; their lines of the cache follow.
  Status take(Group& g, size_t first, size_t n);
  /// Rows [row, row + rows) of a step are a group's.
  struct Part {
    size_t group;
    int64_t row, rows;
  };
  /// Shows those who follow their rows of the last step.
  Status see(std::vector<Group>& groups, std::span<const Part> parts);
  /// Ends a text whose newest token hears what is too near to the end.
  void look(Group& g);
  Status check_heads(const char* call, std::span<const std::pair<int, int>> heads) const;
  /// Attention weights of heads, at most kHeadsAtOnce, of rows [row, row + n) of the last step over the first `columns`
  /// places of a window: [heads, n, columns], from element `at` of the buffer on.
  Status record_weights(ops::Recorder& rec, int window, std::span<const std::pair<int, int>> heads, int64_t row,
                        int64_t n, int64_t columns, int64_t at) const;
  /// The first `count` of them in host memory, until the next call.
  Result<const float*> fetch_weights(int64_t count);

  WhisperConfig config_;
  PrecisionPlan plan_{};
  engine::SpeechLimits limits_;
  WhisperWeights weights_;
  WhisperBuffers buffers_;
  CrossStacks stacks_;
  std::string launches_;  // why steps of one row are launches of the layers' ops; empty: they are one of all layers
  SoundInputs sound_;
  TextInputs text_;
  TextOutputs told_;
  StagingBuffer sound_in_, text_in_, mask_in_, text_out_, scores_out_;
  std::unique_ptr<exec::Graph> graph_;
  std::vector<int64_t> steps_;      // bounds of rows, ascending
  std::map<uint64_t, engine::GatePlan> gates_;  // of a scheduler's tenant, by graph
  engine::WorkTimes work_;
  bool gating_ = false;             // every point is passed: place_gates() looks
  int windows_ = 0;                 // that are encoded
  Enters enters_;                   // while calibrate() looks: nothing is replayed
  std::vector<float> logits_;       // the host's copy, where ops leave them elsewhere
  float* host_logits_ = nullptr;
  std::vector<int32_t> lines_;      // of page tables, while candidates change places
};

}  // namespace vivace::models::whisper
