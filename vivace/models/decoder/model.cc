// DecoderModel: config + weights + arena + one captured graph a class and bucket, behind engine::TextModel.
#include "vivace/models/decoder/model.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "vivace/base/check.h"
#include "vivace/engine/layer_stream.h"
#include "vivace/exec/graph.h"
#include "vivace/models/decoder/calibrate.h"
#include "vivace/models/decoder/pages.h"
#include "vivace/models/decoder/pipeline.h"
#include "vivace/models/decoder/step_io.h"

namespace vivace::models::decoder {
namespace {

using engine::LoadOptions;
using engine::Sampled;
using engine::Sampling;
using engine::TextLimits;
using engine::TokenRow;

constexpr int kDefaultContext = 4096;  // caps "auto": a slot's KV memory should not surprise a laptop
constexpr int kChunks[] = {128, 512};  // row bounds of prompt steps below the largest, LoadOptions::chunk

class DecoderModel final : public engine::TextModel {
 public:
  DecoderModel(engine::Checkpoint checkpoint, const LoadOptions& options) : source_(std::move(checkpoint)), options_(options) {}
  /// What is in flight on a device holds addresses of this object's memory.
  ~DecoderModel() override {
    if (machine_ != nullptr) static_cast<void>(machine_->stream().synchronize());
  }

  Status load();

  const std::string& family() const override { return family_; }
  engine::Report report() const override;
  std::vector<engine::MemoryLine> memory() const override;
  TextLimits limits() const override { return limits_; }
  Status start(int slot, const Sampling& sampling, int positions) override;
  void release(int slot) override { pages_.release(slot); }
  int free_pages() const override { return pages_.free(); }
  Status set_bias(int slot, std::span<const float> bias) override;
  Status issue(std::span<const TokenRow> rows) override;
  Status repeat() override;
  Status collect(std::span<Sampled> out) override;
  Result<engine::Profile> profile(int rows, int pos, bool decode) override;
  Status observe(std::span<const TokenRow> rows, const Observer& observer) override;
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
  void declare_buffers();
  Status fill_frequencies();
  Status check_fit();
  Status make_variants();
  Status record(exec::Stream& stream, const Variant& v, ops::Recorder::Observer observer = {});
  Status run(const Variant& v);
  /// A step op by op; `seen` gets what each op left, where it lies.
  Status walk(std::span<const TokenRow> rows, const Observer& seen);
  const Variant& pick(bool decode, size_t rows) const;
  Status check_rows(std::span<const TokenRow> rows) const;
  Status check_room() const;
  Status check_slot(const char* call, int slot) const;
  static Status no_place(const char* call, int slot, int pos);
  Status queue(const Variant& v, std::span<const int32_t> slots);

  engine::WeightSource source_;
  LoadOptions options_;
  std::unique_ptr<engine::Machine> machine_;  // before everything that lives on it
  engine::Placement placement_;
  engine::LayerStream stream_;
  engine::Arena arena_;
  std::string family_;
  DecoderConfig config_;
  PrecisionPlan plan_{};
  DType kv_dtype_ = DType::f16;
  TextLimits limits_;
  DecoderWeights weights_;
  StepBuffers buffers_;
  InputBlock decode_, prompt_;
  Pages pages_;
  Flights flights_;
  double attn_factor_ = 1;
  std::vector<std::pair<const char*, double>> phases_;  // of load(), seconds
  std::vector<Variant> variants_;   // by class and rows, ascending
  std::unique_ptr<exec::Graph> graph_;
  std::vector<Sampling> sampling_;  // a slot
  std::vector<int32_t> slots_;      // draws of the step that is being queued
  std::vector<int32_t> decoding_;   // slots of the last decode step's rows, in order
  std::vector<int32_t> decoding_pos_;  // their positions
  std::vector<float> logits_;       // the host's copy, where ops leave them elsewhere
};

Status DecoderModel::check_options() {
  VV_ASSIGN(plan_, pick_plan(options_.precision, options_.head, machine_->place()));
  VV_ASSIGN(kv_dtype_, pick_kv(options_.kv_dtype, plan_, machine_->place()));
  const auto at_least = [](const char* what, int value, int least) {
    return value >= least ? Status() : Status(Code::kInvalidArgument, strf("%s: wanted at least %d, got %d", what, least, value));
  };
  VV_TRY(at_least("context", options_.context, 0));
  VV_TRY(at_least("max_batch", options_.max_batch, 1));
  VV_TRY(at_least("chunk", options_.chunk, 1));
  VV_TRY(at_least("ahead", options_.ahead, 0));
  VV_TRY(at_least("kv_pages", options_.kv_pages, 0));
  VV_TRY(at_least("resident_layers", options_.resident_layers, -1));
  if (options_.context > config_.context)
    return Status(Code::kLimitExceeded, strf("context: the model was trained for %ld positions, got %d", static_cast<long>(config_.context), options_.context));
  const int64_t context = options_.context ? options_.context : std::min<int64_t>(config_.context, kDefaultContext);
  VV_TRY(check_scales());
  const bool host = machine_->place() == Place::host;
  // Apart from the host, a step of prompt rows and one of answers are two products anyway: their classes differ.
  limits_ = TextLimits{static_cast<int>(config_.vocab), static_cast<int>(context), options_.max_batch, std::max(options_.chunk, options_.max_batch),
                       std::max(options_.ahead ? options_.ahead : machine_->ahead(), host ? 1 : 2), host, options_.logit_bias,
                       options_.kv_pages ? Pages::kPlaces : 0, options_.kv_pages};
  return {};
}

Status DecoderModel::check_scales() const {
  const std::vector<float>& scales = options_.act_scales;
  const size_t wanted = plan_.entry == Entry::by_site ? static_cast<size_t>(site_count(config_)) : 0;
  if (scales.size() != wanted)
    return Status(Code::kFailedPrecondition, strf("act_scales: precision %s wants %zu, one a place where activations enter products, got %zu; calibrate() of the checkpoint "
                                                  "loaded in bf16 gives those of fp8_static", plan_.name, wanted, scales.size()));
  for (const float s : scales)
    if (!(s > 0 && std::isfinite(s))) return Status(Code::kInvalidArgument, strf("act_scales: wanted positive finite values, got %g", static_cast<double>(s)));
  return {};
}

void DecoderModel::declare_buffers() {
  const DecoderConfig& c = config_;
  StepBuffers& b = buffers_;
  const int64_t T = limits_.chunk, R = limits_.max_batch, S = limits_.max_batch, L = limits_.context;
  const auto declare = [this](const char* name, DType dtype, Shape shape, Tensor* t) { arena_.declare(name, dtype, shape, t); };
  const DType i32 = DType::i32, f32 = DType::f32, act = plan_.hidden;
  decode_.declare(arena_, "decode", R, R, false);
  prompt_.declare(arena_, "prompt", T, R, true);
  declare("turn", i32, Shape(1), &b.turn);
  declare("counts", i32, Shape(S, c.vocab), &b.counts);
  declare("no_counts", i32, Shape(c.vocab), &b.no_counts);
  if (c.rope_dims > 0) declare("inv_freq", f32, Shape(c.rope_dims / 2), &b.inv_freq);
  if (!c.local.empty()) declare("local_inv_freq", f32, Shape(c.rope_dims / 2), &b.local_inv_freq);
  declare("hidden", act, Shape(T, c.hidden), &b.hidden);
  declare("normed", plan_.eight_in() ? DType::e4m3 : act, Shape(T, c.hidden), &b.normed);
  declare("qkv", act, Shape(T, c.q_width() + 2 * c.kv_width()), &b.qkv);
  declare("q", act, Shape(T, c.heads, c.head_dim), &b.q);
  declare("attended", act, Shape(T, c.heads, c.head_dim), &b.attended);
  const int64_t A = c.has(kExperts) ? T * c.experts_used : T;  // rows of the MLP
  if (!c.has(kPlainMlp)) declare("gate_up", act, Shape(A, 2 * c.mlp), &b.gate_up);
  declare("mlp", act, Shape(A, c.mlp), &b.mlp);
  if (c.has(kExperts)) {
    declare("route_logits", f32, Shape(T, c.experts), &b.route_logits);
    declare("route_weights", f32, Shape(T, c.experts_used), &b.route_weights);
    declare("place", i32, Shape(T, c.experts_used), &b.place);
    declare("token", i32, Shape(A), &b.token);
    declare("offsets", i32, Shape(c.experts + 1), &b.offsets);
    declare("gathered", act, Shape(A, c.hidden), &b.gathered);
    declare("expert_out", act, Shape(A, c.hidden), &b.expert_out);
  }
  declare("last", act, Shape(R, c.hidden), &b.last);
  if (plan_.eight_in()) {
    declare("codes", DType::e4m3, Shape(T, std::max(c.q_width(), c.mlp)), &b.codes);
    declare("last_codes", DType::e4m3, Shape(R, c.hidden), &b.last_codes);
  }
  if (plan_.entry == Entry::by_row) {
    declare("normed_scale", f32, Shape(T), &b.normed_scale);
    declare("codes_scale", f32, Shape(T), &b.codes_scale);
    declare("last_scale", f32, Shape(R), &b.last_scale);
  }
  if (plan_.entry == Entry::by_site) declare("site_scale", f32, Shape(site_count(c)), &b.site_scale);
  if (uses_branch(c)) {
    declare("branch", act, Shape(T, c.hidden), &b.branch);
    declare("last_branch", act, Shape(R, c.hidden), &b.last_branch);
  }
  if (options_.logit_bias) {
    declare("bias", f32, Shape(S, c.vocab), &b.bias);
    declare("row_bias", f32, Shape(R, c.vocab), &b.row_bias);
  }
  declare("logits", f32, Shape(R, c.vocab), &b.logits);
  declare("next", i32, Shape(R), &b.next);
  declare("logprob", f32, Shape(R), &b.logprob);
  pages_.declare(arena_, limits_.max_batch, limits_.context, options_.kv_pages);
  const Shape cache = pages_.used() ? Shape(pages_.count(), Pages::kPlaces, c.kv_heads, c.head_dim) : Shape(S, L, c.kv_heads, c.head_dim);
  b.k_cache.resize(static_cast<size_t>(c.layers));
  b.v_cache.resize(static_cast<size_t>(c.layers));
  for (size_t i = 0; i < b.k_cache.size(); ++i) {
    arena_.declare(strf("k_cache.%zu", i), kv_dtype_, cache, &b.k_cache[i]);
    arena_.declare(strf("v_cache.%zu", i), kv_dtype_, cache, &b.v_cache[i]);
  }
}

Status DecoderModel::fill_frequencies() {
  if (config_.rope_dims == 0) return {};
  const auto* factors = static_cast<const float*>(weights_.rope_factors.data);
  const auto fill = [&](double theta, const ops::RopeScaling& scaling, const Tensor& to, double* attn_factor) -> Status {
    VV_ASSIGN(ops::RopeFreqs freqs, ops::rope_freqs(theta, config_.rope_dims, scaling));
    for (size_t i = 0; factors != nullptr && i < freqs.inv_freq.size(); ++i) freqs.inv_freq[i] /= factors[i];
    if (attn_factor != nullptr) *attn_factor = freqs.attn_factor;
    const engine::Upload one[] = {{to.data, freqs.inv_freq.data(), freqs.inv_freq.size() * sizeof(float)}};
    return machine_->upload(one);
  };
  VV_TRY(fill(config_.rope_theta, config_.rope_scaling, buffers_.inv_freq, &attn_factor_));
  return config_.local.empty() ? Status() : fill(config_.local_theta, {}, buffers_.local_inv_freq, nullptr);
}

/// Before anything is copied: the whole need against what there is.
Status DecoderModel::check_fit() {
  VV_ASSIGN(const int64_t free, machine_->free_bytes());
  const int64_t need = placement_.bytes() + stream_.region_bytes() + arena_.bytes();
  if (machine_->place() == Place::host || need <= free) return {};
  return Status(Code::kOutOfMemory, strf("the model needs %ld bytes (weights %ld, arena %ld), %s has %ld free: %ld too many; lower context or max_batch, use a smaller precision, or set resident_layers below %ld",
                                         static_cast<long>(need), static_cast<long>(placement_.bytes() + stream_.region_bytes()), static_cast<long>(arena_.bytes()), machine_->name(),
                                         static_cast<long>(free), static_cast<long>(need - free), static_cast<long>(config_.layers)));
}

Status DecoderModel::load() {
  VV_ASSIGN(config_, read_config(source_.checkpoint()));
  family_ = config_.family->name;
  if (options_.random_weights) source_.make_synthetic();
  auto last = std::chrono::steady_clock::now();
  const auto phase = [&](const char* name) {
    const auto now = std::chrono::steady_clock::now();
    phases_.emplace_back(name, std::chrono::duration<double>(now - last).count());
    last = now;
  };
  VV_ASSIGN(machine_, engine::Machine::open(options_.device, options_.threads));
  phase("device");
  VV_TRY(check_options());
  VV_TRY(load_weights(source_, config_, &weights_));
  VV_TRY(place_weights(config_, plan_, *machine_, source_.synthetic(), &weights_, &placement_, options_.resident_layers < 0 ? config_.layers : options_.resident_layers, &stream_.layers()));
  declare_buffers();
  VV_TRY(check_fit());
  VV_TRY(placement_.commit(*machine_));
  VV_TRY(stream_.commit(*machine_));
  phase("weights");
  if (!weights_.head.present()) weights_.head = weights_.embed;
  VV_TRY(arena_.commit(*machine_));
  if (machine_->place() == Place::host) source_.touch();
  else logits_.resize(static_cast<size_t>(buffers_.logits.shape.elements()));
  VV_TRY(fill_frequencies());
  VV_TRY(pages_.open(*machine_));
  buffers_.page_table = pages_.table();
  if (plan_.entry == Entry::by_site) {
    const engine::Upload scales[] = {{buffers_.site_scale.data, options_.act_scales.data(), options_.act_scales.size() * sizeof(float)}};
    VV_TRY(machine_->upload(scales));
  }
  for (InputBlock* block : {&decode_, &prompt_}) VV_TRY(block->open(*machine_, limits_.ahead));
  VV_TRY(flights_.open(*machine_, limits_.ahead, limits_.max_batch, &buffers_));
  sampling_.resize(static_cast<size_t>(limits_.max_batch));
  for (std::vector<int32_t>* slots : {&slots_, &decoding_, &decoding_pos_}) slots->reserve(static_cast<size_t>(limits_.max_batch));
  phase("arena");
  VV_TRY(make_variants());
  machine_->finish_uploads();
  phase("graphs");
  return {};
}

Status DecoderModel::make_variants() {
  for (int64_t rows = 1; rows < limits_.max_batch; rows *= 2) variants_.push_back({true, rows});
  variants_.push_back({true, limits_.max_batch});
  for (const int rows : kChunks)
    if (rows < limits_.chunk) variants_.push_back({false, rows});
  variants_.push_back({false, limits_.chunk});
  graph_ = std::make_unique<exec::Graph>("decoder_step", variants_.size());
  exec::Stream& stream = machine_->stream();
  for (const Variant& v : variants_) {
    // A dry step with no valid rows sizes every scratch area and loads every kernel, which a capture must not do.
    VV_TRY(record(stream, v));
    flights_.skip();
    VV_TRY(graph_->capture(v.key(), stream, [&](exec::Stream& s) { return record(s, v); }));
    VV_TRY(graph_->pin(v.key()));
    VV_TRY(run(v));
    flights_.skip();
  }
  return stream.synchronize();
}

Status DecoderModel::record(exec::Stream& stream, const Variant& v, ops::Recorder::Observer observer) {
  ops::Recorder rec(stream, std::move(observer));
  const StepContext context{config_, plan_, weights_, buffers_, attn_factor_, &stream_};
  return record_step(rec, context, (v.decode ? decode_ : prompt_).inputs(), v.rows);
}

Status DecoderModel::run(const Variant& v) {
  return options_.eager ? record(machine_->stream(), v) : graph_->replay(v.key(), machine_->stream());
}

const DecoderModel::Variant& DecoderModel::pick(bool decode, size_t rows) const {
  return *std::find_if(variants_.begin(), variants_.end(), [&](const Variant& v) { return v.decode == decode && static_cast<size_t>(v.rows) >= rows; });
}

Status DecoderModel::start(int slot, const Sampling& sampling, int positions) {
  VV_TRY(check_slot("start", slot));
  VV_TRY(engine::check(sampling));
  if (positions < 0 || positions > limits_.context)
    return Status(Code::kLimitExceeded, strf("start: wanted 1 to %d positions, or 0 for all of them, got %d", limits_.context, positions));
  VV_TRY(pages_.reserve(machine_->stream(), slot, positions ? positions : limits_.context));
  if (options_.logit_bias) VV_TRY(set_bias(slot, {}));
  sampling_[static_cast<size_t>(slot)] = sampling;
  const Tensor counts = slice(buffers_.counts, slot, 1);
  return machine_->stream().copy(counts.data, buffers_.no_counts.data, static_cast<size_t>(counts.span_bytes()));
}

Status DecoderModel::set_bias(int slot, std::span<const float> bias) {
  VV_TRY(check_slot("set_bias", slot));
  if (!options_.logit_bias) return Status(Code::kFailedPrecondition, "set_bias: load the model with logit_bias, so that its steps have room for it");
  if (!bias.empty() && bias.size() != static_cast<size_t>(limits_.vocab))
    return Status(Code::kInvalidShape, strf("set_bias: wanted a value for each of %d tokens, got %zu", limits_.vocab, bias.size()));
  const Tensor to = slice(buffers_.bias, slot, 1);
  VV_TRY(machine_->stream().copy(to.data, bias.empty() ? buffers_.no_counts.data : bias.data(), static_cast<size_t>(to.span_bytes())));
  return bias.empty() ? Status() : machine_->stream().synchronize();  // the caller's memory is free again
}

Status DecoderModel::check_slot(const char* call, int slot) const {
  return slot >= 0 && slot < limits_.max_batch ? Status() : Status(Code::kInvalidArgument, strf("%s: slot %d is outside [0, %d)", call, slot, limits_.max_batch));
}

Status DecoderModel::no_place(const char* call, int slot, int pos) {
  return Status(Code::kFailedPrecondition, strf("%s: position %d of slot %d has no page; start() takes as many as the sequence will hold", call, pos, slot));
}

Status DecoderModel::check_room() const {
  return flights_.full() ? Status(Code::kLimitExceeded, strf("step: %d steps are queued already; collect() the oldest", limits_.ahead)) : Status();
}

Status DecoderModel::check_rows(std::span<const TokenRow> rows) const {
  if (rows.empty() || rows.size() > static_cast<size_t>(limits_.chunk))
    return Status(Code::kLimitExceeded, strf("step: wanted 1 to %d rows, got %zu", limits_.chunk, rows.size()));
  size_t sampled = 0;
  for (const TokenRow& r : rows) {
    if (r.token < 0 || r.token >= limits_.vocab) return Status(Code::kInvalidArgument, strf("step: token %d is outside the vocabulary [0, %d)", r.token, limits_.vocab));
    if (r.pos < 0 || r.pos >= limits_.context) return Status(Code::kLimitExceeded, strf("step: position %d is outside the context of %d", r.pos, limits_.context));
    if (r.slot < 0 || r.slot >= limits_.max_batch) return Status(Code::kInvalidArgument, strf("step: slot %d is outside [0, %d)", r.slot, limits_.max_batch));
    if (!pages_.holds(r.slot, r.pos)) return no_place("step", r.slot, r.pos);
    sampled += r.sample;
  }
  if (sampled > static_cast<size_t>(limits_.max_batch)) return Status(Code::kLimitExceeded, strf("step: at most %d rows may sample, got %zu", limits_.max_batch, sampled));
  return {};
}

Status DecoderModel::queue(const Variant& v, std::span<const int32_t> slots) {
  VV_TRY(run(v));
  return flights_.push(machine_->stream(), slots);
}

Status DecoderModel::issue(std::span<const TokenRow> rows) {
  VV_TRY(check_room());
  VV_TRY(check_rows(rows));
  slots_.clear();
  for (const TokenRow& r : rows)
    if (r.sample) slots_.push_back(r.slot);
  const bool decode = slots_.size() == rows.size();
  VV_TRY((decode ? decode_ : prompt_).write(machine_->stream(), flights_.next(), rows, sampling_));
  if (decode) {
    decoding_ = slots_;
    decoding_pos_.clear();
    for (const TokenRow& r : rows) decoding_pos_.push_back(r.pos);
  }
  return queue(pick(decode, rows.size()), slots_);
}

Status DecoderModel::repeat() {
  VV_TRY(check_room());
  if (decoding_.empty()) return Status(Code::kFailedPrecondition, "repeat: no step of the decode class came before; issue() one");
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const int32_t pos = decoding_pos_[i] + 1;
    if (pos >= limits_.context) return Status(Code::kLimitExceeded, strf("repeat: position %d is outside the context of %d", pos, limits_.context));
    if (!pages_.holds(decoding_[i], pos)) return no_place("repeat", decoding_[i], pos);
  }
  for (int32_t& pos : decoding_pos_) ++pos;
  return queue(pick(true, decoding_.size()), decoding_);
}

Status DecoderModel::collect(std::span<Sampled> out) {
  if (flights_.empty()) return Status(Code::kFailedPrecondition, "collect: no step is queued; issue() one");
  if (out.size() != flights_.draws()) return Status(Code::kInvalidArgument, strf("collect: the step draws %zu tokens but out holds %zu", flights_.draws(), out.size()));
  return flights_.pop(out);
}

Result<engine::Profile> DecoderModel::profile(int rows, int pos, bool decode) {
  if (!flights_.empty()) return Status(Code::kFailedPrecondition, "profile: steps are queued; collect() them first");
  std::vector<TokenRow> all;
  for (int32_t i = 0; i < rows; ++i) all.push_back({i, decode ? pos : pos - rows + 1 + i, decode ? i : 0, decode || i == rows - 1});
  for (int slot = 0; slot < limits_.max_batch; ++slot) pages_.release(slot);
  for (int slot = 0; slot < (decode ? std::min(rows, limits_.max_batch) : 1); ++slot) VV_TRY(pages_.reserve(machine_->stream(), slot, pos + 1));
  VV_TRY(check_rows(all));
  InputBlock& block = decode ? decode_ : prompt_;
  const Variant& v = pick(decode, all.size());
  Result<engine::Profile> p = engine::profile(*machine_, [&](exec::Stream& s) { return record(s, v); }, [&]() -> Status {
    VV_TRY(machine_->stream().synchronize());  // the copy of the inputs is written again
    return block.write(machine_->stream(), 0, all, sampling_);
  });
  VV_TRY(flights_.restart(machine_->stream(), buffers_));
  decoding_.clear();
  return p;
}

Status DecoderModel::observe(std::span<const TokenRow> rows, const Observer& observer) {
  std::vector<std::byte> copy;
  return walk(rows, [&](const char* op, const char* port, const Tensor& there) -> Status {
    if (machine_->place() == Place::host) return observer(op, port, there);
    const size_t bytes = static_cast<size_t>(there.span_bytes());
    copy.resize(bytes);
    VV_TRY(machine_->stream().copy(copy.data(), there.data, bytes));
    VV_TRY(machine_->stream().synchronize());
    Tensor here = there;
    here.data = copy.data();
    here.place = Place::host;
    return observer(op, port, here);
  });
}

Status DecoderModel::walk(std::span<const TokenRow> rows, const Observer& seen) {
  if (!flights_.empty()) return Status(Code::kFailedPrecondition, "observe: steps are queued; collect() them first");
  VV_TRY(check_rows(rows));
  slots_.clear();
  for (const TokenRow& r : rows)
    if (r.sample) slots_.push_back(r.slot);
  const bool decode = slots_.size() == rows.size();
  VV_TRY((decode ? decode_ : prompt_).write(machine_->stream(), flights_.next(), rows, sampling_));
  decoding_.clear();
  VV_TRY(record(machine_->stream(), pick(decode, rows.size()), [&](const ops::Call& call) -> Status {
    VV_TRY(machine_->stream().synchronize());
    for (size_t i = 0; i < call.spec().ports.size(); ++i) {
      const ops::Port& port = call.spec().ports[i];
      const Tensor& value = call.port_at(static_cast<int>(i));
      if (port.io != ops::Io::in && value.present()) VV_TRY(seen(call.spec().name, port.name, value));
    }
    return {};
  }));
  VV_TRY(flights_.push(machine_->stream(), slots_));
  std::vector<Sampled> dropped(slots_.size());
  return flights_.pop(dropped);
}

Result<std::vector<float>> DecoderModel::calibrate(std::span<const std::vector<int32_t>> prompts, double percentile) {
  if (plan_.eight_in()) return Status(Code::kUnsupported, strf("calibrate: precision %s has no unrounded activations to look at; load the model in bf16", plan_.name));
  if (config_.has(kExperts)) return Status(Code::kUnsupported, "calibrate: products of experts take no e4m3 activations");
  SiteHistograms sites(site_count(config_));
  for (const std::vector<int32_t>& prompt : prompts) {
    VV_TRY(start(0, {}, static_cast<int>(std::min<size_t>(prompt.size(), static_cast<size_t>(limits_.context)))));
    for (size_t at = 0; at < prompt.size(); at += static_cast<size_t>(limits_.chunk)) {
      std::vector<TokenRow> rows;
      for (size_t i = at; i < std::min(prompt.size(), at + static_cast<size_t>(limits_.chunk)); ++i) rows.push_back({prompt[i], static_cast<int32_t>(i), 0, false});
      rows.back().sample = true;
      int64_t site = 0;
      VV_TRY(walk(rows, [&](const char* op, const char*, const Tensor& there) -> Status {
        const bool head = site == site_count(config_) - 1;
        const void* const wanted[] = {buffers_.normed.data, buffers_.attended.data, buffers_.normed.data, buffers_.mlp.data};
        const bool final_norm = head && std::string_view(op) == "norm" && (there.data == buffers_.last.data || there.data == buffers_.last_branch.data);
        if (head ? !final_norm : there.data != wanted[site % kSites]) return {};
        Tensor dense = slice(there, 0, head ? 1 : static_cast<int64_t>(rows.size()));
        std::vector<std::byte> copy(static_cast<size_t>(dense.span_bytes()));
        VV_TRY(machine_->stream().copy(copy.data(), dense.data, copy.size()));
        VV_TRY(machine_->stream().synchronize());
        dense.data = copy.data();
        return sites.add(site++, dense);
      }));
      VV_CHECK_EQ(kInternal, site_count(config_), site);
    }
  }
  return sites.scales(percentile);
}

Result<Tensor> DecoderModel::logits() {
  if (!flights_.empty()) return Status(Code::kFailedPrecondition, "logits: steps are queued; collect() them first");
  const Tensor t = slice(buffers_.logits, 0, static_cast<int64_t>(slots_.size()));
  if (machine_->place() == Place::host) return t;
  VV_TRY(machine_->stream().synchronize());
  VV_TRY(machine_->stream().copy(logits_.data(), t.data, static_cast<size_t>(t.span_bytes())));
  VV_TRY(machine_->stream().synchronize());
  return tensor(logits_.data(), t.dtype, t.shape);
}

engine::Report DecoderModel::report() const {
  const auto quoted = [](const std::string& s) { return '"' + s + '"'; };
  const auto number = [](int64_t v) { return std::to_string(v); };
  const DecoderConfig& c = config_;
  std::string phases;
  for (const auto& [name, seconds] : phases_) phases += strf("%s\"%s\": %.4f", phases.empty() ? "" : ", ", name, seconds);
  return {{"family", quoted(family_)},
          {"device", quoted(machine_->name())},
          {"precision", quoted(plan_.name)},
          {"kv_dtype", quoted(name(kv_dtype_))},
          {"threads", number(machine_->threads())},
          {"layers", number(c.layers)},
          {"hidden", number(c.hidden)},
          {"heads", number(c.heads)},
          {"kv_heads", number(c.kv_heads)},
          {"head_dim", number(c.head_dim)},
          {"mlp", number(c.mlp)},
          {"vocab", number(c.vocab)},
          {"context", number(limits_.context)},
          {"trained_context", number(c.context)},
          {"max_batch", number(limits_.max_batch)},
          {"chunk", number(limits_.chunk)},
          {"ahead", number(limits_.ahead)},
          {"weight_dtype", quoted(name(weights_.layers.front().o.dtype))},
          {"head_dtype", quoted(name(weights_.head.dtype))},
          {"tied", c.tied ? "true" : "false"},
          {"experts", number(c.experts)},
          {"experts_used", number(c.experts_used)},
          {"window", number(c.window)},
          {"rope_style", quoted(c.rope_style)},
          {"kv_pages", number(pages_.count())},
          {"streamed_layers", number(static_cast<int64_t>(stream_.layers().size()))},
          {"graphs", number(static_cast<int64_t>(variants_.size()))},
          {"launches", number(static_cast<int64_t>(graph_->executable(variants_.front().key())->launches()))},
          {"weight_bytes", number(placement_.bytes())},
          {"arena_bytes", number(arena_.bytes())},
          {"load_s", "{" + phases + "}"}};
}

std::vector<engine::MemoryLine> DecoderModel::memory() const {
  std::vector<engine::MemoryLine> lines;
  if (placement_.bytes() > 0) lines.push_back({"weights", placement_.bytes()});
  else lines.push_back({"weights (mapped)", source_.bytes()});
  if (!stream_.layers().empty()) {
    lines.push_back({"streamed layer", stream_.region_bytes()});
    lines.push_back({"weights of streamed layers (host)", stream_.host_bytes()});
  }
  if (source_.copied_bytes() > 0) lines.push_back({"weights (copied)", source_.copied_bytes()});
  for (engine::MemoryLine& line : arena_.lines()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace

Result<std::unique_ptr<engine::Model>> load(engine::Checkpoint checkpoint, const LoadOptions& options) {
  auto model = std::make_unique<DecoderModel>(std::move(checkpoint), options);
  VV_TRY(model->load());
  return std::unique_ptr<engine::Model>(std::move(model));
}

}  // namespace vivace::models::decoder
