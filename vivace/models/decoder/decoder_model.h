// DecoderModel: config + weights + arena + one captured graph a class and bucket, behind engine::TextModel. The class
// alone; loading is model.cc, its buffers buffers.cc, steps steps.cc, the draft layer draft.cc, blocks of its caches
// state.cc, what looks into a step introspection.cc, reports report.cc.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vivace/engine/gate_plan.h"
#include "vivace/engine/layer_stream.h"
#include "vivace/engine/model.h"
#include "vivace/engine/runtime.h"
#include "vivace/exec/graph.h"
#include "vivace/models/decoder/input_scales.h"
#include "vivace/models/decoder/kv_scales.h"
#include "vivace/models/decoder/layer_stacks.h"
#include "vivace/models/decoder/masks.h"
#include "vivace/models/decoder/pages.h"
#include "vivace/models/decoder/pipeline.h"
#include "vivace/models/decoder/step_io.h"
#include "vivace/models/layer/model_base.h"
#include "vivace/models/vision/encoder.h"

namespace vivace::models::decoder {

class DecoderModel final : public ModelBase<engine::TextModel, engine::LoadOptions> {
 public:
  DecoderModel(engine::Checkpoint checkpoint, const engine::LoadOptions& options)
      : ModelBase("", std::move(checkpoint), options) {}
  ~DecoderModel() override { drain(); }

  Status load();

  engine::Report report() const override;
  std::vector<engine::MemoryLine> memory() const override;
  engine::TextLimits limits() const override { return limits_; }
  Status start(int slot, const engine::Sampling& sampling, int positions) override;
  void release(int slot) override { pages_.release(slot); }
  engine::KvBlocks* blocks() override { return pages_.blocks(); }
  Status resume(int slot, const engine::Sampling& sampling, std::span<const int32_t> fed) override;
  Status map(int slot, int first, std::span<const int32_t> blocks) override;
  int64_t block_bytes() const override;
  Status copy_block(int32_t from, int32_t to) override;
  Status read_blocks(std::span<const int32_t> blocks, std::span<std::byte> to) override;
  Status write_blocks(std::span<const int32_t> blocks, std::span<const std::byte> from) override;
  int64_t state_bytes() const override;
  Status copy_state(int from, int to) override;
  Status read_state(int state, std::span<std::byte> to) override;
  Status write_state(int state, int position, std::span<const std::byte> from) override;
  Status set_bias(int slot, std::span<const float> bias) override;
  Status set_mask(int slot, std::span<const uint32_t> words) override;
  Heard heard(int slot) const override;
  Status draft(std::span<const engine::TokenRow> rows, int count, std::span<int32_t> out) override;
  void note_drafts(int64_t checked, int64_t right) override;
  Status see(int place, const engine::Image& image) override;
  Status issue(std::span<const engine::TokenRow> rows) override;
  Status repeat() override;
  Status collect(std::span<engine::Sampled> out) override;
  Result<engine::Profile> profile(int rows, int pos, bool decode, bool in_step) override;
  Result<engine::WorkTimes> work_times() const override;
  Status observe(std::span<const engine::TokenRow> rows, const Observer& observer, const Wanted& wanted) override;
  Result<std::vector<float>> calibrate(std::span<const std::vector<int32_t>> prompts, double percentile) override;
  int queued() const override { return in_flight_.size(); }
  Result<Tensor> logits() override;

 private:
  /// One captured step: a class and its bound of rows.
  struct Variant {
    bool decode;
    int64_t rows;
    bool guesses = false;  // of a decode class: see StepContext
    engine::GatePlan gates = {};  // of a scheduler's tenant
    int head_parts = 1;           // see StepContext
    exec::ShapeKey key() const {
      return exec::ShapeKey{static_cast<uint64_t>(rows) << 2 | static_cast<uint64_t>(guesses) << 1 |
                            static_cast<uint64_t>(decode)};
    }
  };
  Status check_options();
  /// Of activations: those that the caller gave, else the checkpoint's.
  Status find_scales();
  /// Whether rows of the head have scales of their own beside static ones: the checkpoint says none of it.
  bool head_by_row() const { return !input_scales_.sites.empty() && !input_scales_.head; }
  Status check_invariance();
  /// Whether steps of one row may be decode_layers', as far as options and configuration say; else `launches_` says why
  /// not.
  Status check_decode_layers();
  /// The same once weights and caches lie where they stay.
  Status open_decode_layers();
  /// Launches it is, because of `why`. Errors: why, where the caller insists.
  Status decode_by_launches(const Status& why);
  /// How many states are kept.
  Result<int> pick_states() const;
  void declare_buffers();
  Status fill_frequencies();
  /// Scales of caches and of activations, to where ops read them.
  Status fill_scales();
  /// Of a model with recurrent layers: nobody's states.
  Status open_states();
  /// The vision tower of a model that has one.
  Status open_encoder();
  Status make_variants();
  // draft.cc
  Status check_drafts() const;
  void declare_drafts();
  Status open_drafts();
  Status make_draft_variants();
  Status record_draft(exec::Stream& stream, int64_t rows, bool further);
  Status run_draft(int64_t rows, bool further);
  Status check_drafted(std::span<const engine::TokenRow> rows, int count, std::span<int32_t> out) const;
  /// Notes where the rows of a step lie for draft().
  void hear(std::span<const engine::TokenRow> rows, bool decode);
  /// `moved`: see StepContext. `normed`: every norm leaves its rows. `every_point` passes the gate, whatever the plan
  /// says.
  Status record(exec::Stream& stream, const Variant& v, ops::Recorder::Observer observer = {},
                const StepInputs* moved = nullptr, bool normed = false, bool every_point = false);
  /// Times a step of so many rows, the longest that the model has room for, and finds its gates.
  Status plan_gates(Variant* v);
  /// Whether the step whose inputs reset() writes has the logits of `whole` also as `v`, bit for bit.
  bool same_logits(const Variant& whole, const Variant& v, int64_t rows, const std::function<Status()>& reset);
  Status run(const Variant& v);
  /// A step op by op; `seen` gets what each op left, where it lies. `normed`: see record().
  Status observe_ops(std::span<const engine::TokenRow> rows, const Observer& seen, bool normed = false);
  /// f(variant, reset) with the inputs of a step of `rows` rows, which reset() writes anew; see profile(). Forgets all
  /// sequences.
  Status with_step(int rows, int pos, bool decode,
                   const std::function<Status(const Variant&, const std::function<Status()>&)>& f);
  const Variant& pick(bool decode, size_t rows, bool guesses = false) const;
  Status check_rows(std::span<const engine::TokenRow> rows) const;
  /// Which variants a step's rows are for.
  struct Class {
    bool decode = false;   // each row samples, none is a prompt's
    bool guesses = false;  // of those, several are of one slot of a model with recurrent layers
  };
  /// Checks a step's rows and writes what they say for it.
  Result<Class> write(std::span<const engine::TokenRow> rows);
  Status check_room() const;
  /// Of a model with recurrent layers: rows of a slot follow each other, and its state.
  Status check_order(std::span<const engine::TokenRow> rows) const;
  void advance(std::span<const engine::TokenRow> rows);
  Status check_slot(const char* call, int slot) const;
  Status check_blocks(const char* call, std::span<const int32_t> blocks) const;
  Status check_state(const char* call, int state) const;
  /// Where a slot's state lies, or a kept one.
  Tensor state_of(int state) const;
  /// f(tensor, offset) for all that blocks have in the caches: a layer after the other, and neighbours as one.
  template <class F>
  Status each_run(std::span<const int32_t> blocks, F&& f);
  /// Sampling parameters, no bias, counts of `fed`.
  Status begin(int slot, const engine::Sampling& sampling, std::span<const int32_t> fed);
  static Status no_place(const char* call, int slot, int pos);
  Status queue(const Variant& v, std::span<const int32_t> slots);

  std::unique_ptr<vision::ImageEncoder> encoder_;  // of a model that sees
  engine::LayerStream stream_;
  DecoderConfig config_;
  PrecisionPlan plan_{};
  DType kv_dtype_ = DType::f16;
  KvScales kv_scales_ = KvScales::none;
  InputScales input_scales_;  // where they are used
  engine::TextLimits limits_;
  DecoderWeights weights_;
  StepBuffers buffers_;
  InputBlock decode_, prompt_;
  Pages pages_;
  Masks masks_;
  InFlightSteps in_flight_;
  // Of the draft layer.
  struct Row {
    int32_t first = 0, past = 0;  // positions
    int64_t at = 0;               // row of `heard` of the first
    bool decode = false;
  };
  StepBuffers draft_buffers_;     // with rings of its own
  Tensor draft_turn_;
  InputBlock draft_, drafts_on_;  // the first guess after a step; those after it
  InFlightSteps drafting_;
  std::vector<Row> heard_;        // a slot
  std::vector<int32_t> drafted_slots_, draft_source_;
  std::vector<engine::TokenRow> draft_rows_;
  std::vector<engine::Sampled> drafted_;
  std::vector<int64_t> draft_bounds_;  // rows, ascending
  std::unique_ptr<exec::Graph> draft_graph_;
  std::atomic<int64_t> guesses_checked_ = 0, guesses_right_ = 0;
  double attn_factor_ = 1;
  bool norms_behind_ = false;
  std::string launches_;  // why steps of one row are launches of the layers' ops; empty: they are one of decode_layers
  LayerStacks stacks_;
  std::vector<Variant> variants_;   // by class and rows, ascending
  engine::WorkTimes work_;          // of a scheduler's tenant
  std::unique_ptr<exec::Graph> graph_;
  std::vector<engine::Sampling> sampling_;  // a slot
  std::vector<int32_t>
      state_pos_;  // a slot, then a kept one: positions that a recurrent state holds; empty: there is none
  std::vector<int32_t> slots_;      // draws of the step that is being queued
  std::vector<int32_t> decoding_;   // slots of the last decode step's rows, in order
  std::vector<int32_t> decoding_pos_;  // their positions
  std::vector<int32_t> fed_counts_; // of begin(): a token of the vocabulary
  std::vector<float> logits_;       // the host's copy, where ops leave them elsewhere
};

}  // namespace vivace::models::decoder
