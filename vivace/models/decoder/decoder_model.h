// DecoderModel: config + weights + arena + one captured graph a class and bucket, behind engine::TextModel. The class alone;
// loading is model.cc, its buffers buffers.cc, steps steps.cc, what looks into a step study.cc, reports report.cc.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vivace/engine/arena.h"
#include "vivace/engine/layer_stream.h"
#include "vivace/engine/machine.h"
#include "vivace/engine/model.h"
#include "vivace/engine/placement.h"
#include "vivace/engine/weights.h"
#include "vivace/exec/graph.h"
#include "vivace/models/decoder/pages.h"
#include "vivace/models/decoder/pipeline.h"
#include "vivace/models/decoder/step_io.h"

namespace vivace::models::decoder {

class DecoderModel final : public engine::TextModel {
 public:
  DecoderModel(engine::Checkpoint checkpoint, const engine::LoadOptions& options) : source_(std::move(checkpoint)), options_(options) {}
  /// What is in flight on a device holds addresses of this object's memory.
  ~DecoderModel() override {
    if (machine_ != nullptr) static_cast<void>(machine_->stream().synchronize());
  }

  Status load();

  const std::string& family() const override { return family_; }
  engine::Report report() const override;
  std::vector<engine::MemoryLine> memory() const override;
  engine::TextLimits limits() const override { return limits_; }
  Status start(int slot, const engine::Sampling& sampling, int positions) override;
  void release(int slot) override { pages_.release(slot); }
  int free_pages() const override { return pages_.free(); }
  Status set_bias(int slot, std::span<const float> bias) override;
  Status issue(std::span<const engine::TokenRow> rows) override;
  Status repeat() override;
  Status collect(std::span<engine::Sampled> out) override;
  Result<engine::Profile> profile(int rows, int pos, bool decode, bool in_step) override;
  Status observe(std::span<const engine::TokenRow> rows, const Observer& observer) override;
  Result<std::vector<float>> calibrate(std::span<const std::vector<int32_t>> prompts, double percentile) override;
  int queued() const override { return flights_.size(); }
  Result<Tensor> logits() override;

 private:
  /// One captured step: a class and its bound of rows.
  struct Variant {
    bool decode;
    int64_t rows;
    exec::ShapeKey key() const { return exec::ShapeKey{static_cast<uint64_t>(rows) << 1 | static_cast<uint64_t>(decode)}; }
  };
  Status check_options();
  Status check_scales() const;
  Status check_invariance();
  void declare_buffers();
  Status fill_frequencies();
  Status check_fit();
  Status make_variants();
  /// `moved`: see StepContext. `normed`: every norm leaves its rows.
  Status record(exec::Stream& stream, const Variant& v, ops::Recorder::Observer observer = {}, const StepInputs* moved = nullptr, bool normed = false);
  Status run(const Variant& v);
  /// A step op by op; `seen` gets what each op left, where it lies. `normed`: see record().
  Status walk(std::span<const engine::TokenRow> rows, const Observer& seen, bool normed = false);
  /// profile() without its care for pages.
  Result<engine::Profile> time_step(int rows, int pos, bool decode, bool in_step);
  const Variant& pick(bool decode, size_t rows) const;
  Status check_rows(std::span<const engine::TokenRow> rows) const;
  /// Checks a step's rows and writes what they say for it; true: each samples, so that it is of the decode class.
  Result<bool> write(std::span<const engine::TokenRow> rows);
  Status check_room() const;
  Status check_slot(const char* call, int slot) const;
  static Status no_place(const char* call, int slot, int pos);
  Status queue(const Variant& v, std::span<const int32_t> slots);

  engine::WeightSource source_;
  engine::LoadOptions options_;
  std::unique_ptr<engine::Machine> machine_;  // before everything that lives on it
  engine::Placement placement_;
  engine::LayerStream stream_;
  engine::Arena arena_;
  std::string family_;
  DecoderConfig config_;
  PrecisionPlan plan_{};
  DType kv_dtype_ = DType::f16;
  engine::TextLimits limits_;
  DecoderWeights weights_;
  StepBuffers buffers_;
  InputBlock decode_, prompt_;
  Pages pages_;
  Flights flights_;
  double attn_factor_ = 1;
  bool norms_behind_ = false;
  std::vector<std::pair<const char*, double>> phases_;  // of load(), seconds
  std::vector<Variant> variants_;   // by class and rows, ascending
  std::unique_ptr<exec::Graph> graph_;
  std::vector<engine::Sampling> sampling_;  // a slot
  std::vector<int32_t> slots_;      // draws of the step that is being queued
  std::vector<int32_t> decoding_;   // slots of the last decode step's rows, in order
  std::vector<int32_t> decoding_pos_;  // their positions
  std::vector<float> logits_;       // the host's copy, where ops leave them elsewhere
};

}  // namespace vivace::models::decoder
