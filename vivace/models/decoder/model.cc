// DecoderModel: config + weights + arena + one captured graph a bucket, behind engine::TextModel.
#include "vivace/models/decoder/model.h"

#include <algorithm>

#include "vivace/cpu/pool.h"
#include "vivace/engine/arena.h"
#include "vivace/exec/cpu_stream.h"
#include "vivace/exec/graph.h"
#include "vivace/models/decoder/pipeline.h"

namespace vivace::models::decoder {
namespace {

using engine::LoadOptions;
using engine::Sampled;
using engine::Sampling;
using engine::TextLimits;
using engine::TokenRow;

constexpr PrecisionPlan kPlans[] = {
    {"q8", "q8"},    // activations as int8 blocks against block-quantised weights, f32 elsewhere
    {"f32", "f32"},  // weights widened, every product in f32
};

constexpr int kDefaultContext = 4096;  // caps "auto": a slot's KV memory should not surprise a laptop

Result<PrecisionPlan> pick_plan(const std::string& precision) {
  if (precision == "auto") return kPlans[0];
  for (const PrecisionPlan& p : kPlans)
    if (precision == p.name) return p;
  return Status(Code::kInvalidArgument, "precision: wanted auto, q8 or f32, got '" + precision + "'");
}

Result<DType> pick_kv(const std::string& kv) {
  if (kv == "auto" || kv == "f16") return DType::f16;
  if (kv == "f32") return DType::f32;
  if (kv == "bf16") return DType::bf16;
  return Status(Code::kInvalidArgument, "kv_dtype: wanted auto, f32, f16 or bf16, got '" + kv + "'");
}

class DecoderModel final : public engine::TextModel {
 public:
  DecoderModel(engine::Checkpoint checkpoint, const LoadOptions& options)
      : source_(std::move(checkpoint)), options_(options), pool_(options.threads), stream_(pool_), graph_("decoder_step", 2) {}

  Status load();

  const std::string& family() const override { return family_; }
  engine::Report report() const override;
  std::vector<engine::MemoryLine> memory() const override;
  TextLimits limits() const override { return limits_; }
  Status start(int slot, const Sampling& sampling) override;
  Status step(std::span<const TokenRow> rows, std::span<Sampled> out) override;
  Tensor logits() const override { return slice(buffers_.logits, 0, *samples()); }

 private:
  Status check_options();
  void declare_buffers();
  Status fill_frequencies();
  Status record(exec::Stream& stream, int64_t T);
  Status capture(int64_t T);
  Status run(int64_t T);
  Status check_rows(std::span<const TokenRow> rows, std::span<Sampled> out) const;
  int32_t* samples() const { return static_cast<int32_t*>(buffers_.samples.data); }

  engine::WeightSource source_;
  LoadOptions options_;
  cpu::Pool pool_;
  exec::CpuStream stream_;
  exec::Graph graph_;
  engine::Arena arena_;
  std::string family_;
  DecoderConfig config_;
  PrecisionPlan plan_{};
  DType kv_dtype_ = DType::f16;
  TextLimits limits_;
  DecoderWeights weights_;
  StepBuffers buffers_;
  double attn_factor_ = 1;
  std::vector<Sampling> sampling_;  // a slot
};

Status DecoderModel::check_options() {
  if (options_.device != "auto" && options_.device != "cpu")
    return Status(Code::kUnsupported, "device: this version runs decoders on 'cpu' only, got '" + options_.device + "'");
  VV_ASSIGN(plan_, pick_plan(options_.precision));
  VV_ASSIGN(kv_dtype_, pick_kv(options_.kv_dtype));
  const auto at_least = [](const char* what, int value, int least) {
    return value >= least ? Status() : Status(Code::kInvalidArgument, strf("%s: wanted at least %d, got %d", what, least, value));
  };
  VV_TRY(at_least("context", options_.context, 0));
  VV_TRY(at_least("max_batch", options_.max_batch, 1));
  VV_TRY(at_least("chunk", options_.chunk, 1));
  if (options_.context > config_.context)
    return Status(Code::kLimitExceeded, strf("context: the model was trained for %ld positions, got %d", static_cast<long>(config_.context), options_.context));
  const int64_t context = options_.context ? options_.context : std::min<int64_t>(config_.context, kDefaultContext);
  limits_ = TextLimits{static_cast<int>(config_.vocab), static_cast<int>(context), options_.max_batch, std::max(options_.chunk, options_.max_batch)};
  return {};
}

void DecoderModel::declare_buffers() {
  const DecoderConfig& c = config_;
  StepBuffers& b = buffers_;
  const int64_t T = limits_.chunk, R = limits_.max_batch, S = limits_.max_batch, L = limits_.context;
  const auto declare = [this](const char* name, DType dtype, Shape shape, Tensor* t) { arena_.declare(name, dtype, shape, t); };
  const DType i32 = DType::i32, f32 = DType::f32;
  declare("tokens", i32, Shape(T), &b.tokens);
  declare("pos", i32, Shape(T), &b.pos);
  declare("slot", i32, Shape(T), &b.slot);
  declare("rows", i32, Shape(1), &b.rows);
  declare("sample_rows", i32, Shape(R), &b.sample_rows);
  declare("samples", i32, Shape(1), &b.samples);
  declare("sample_slot", i32, Shape(R), &b.sample_slot);
  declare("sample_step", i32, Shape(R), &b.sample_step);
  declare("temperature", f32, Shape(R), &b.temperature);
  declare("top_p", f32, Shape(R), &b.top_p);
  declare("min_p", f32, Shape(R), &b.min_p);
  declare("repetition", f32, Shape(R), &b.repetition);
  declare("presence", f32, Shape(R), &b.presence);
  declare("frequency", f32, Shape(R), &b.frequency);
  declare("top_k", i32, Shape(R), &b.top_k);
  declare("seed", DType::i64, Shape(R), &b.seed);
  declare("counts", i32, Shape(S, c.vocab), &b.counts);
  if (c.rope_dims > 0) declare("inv_freq", f32, Shape(c.rope_dims / 2), &b.inv_freq);
  if (!c.local.empty()) declare("local_inv_freq", f32, Shape(c.rope_dims / 2), &b.local_inv_freq);
  declare("hidden", f32, Shape(T, c.hidden), &b.hidden);
  declare("normed", f32, Shape(T, c.hidden), &b.normed);
  declare("qkv", f32, Shape(T, c.q_width() + 2 * c.kv_width()), &b.qkv);
  declare("q", f32, Shape(T, c.heads, c.head_dim), &b.q);
  declare("attended", f32, Shape(T, c.heads, c.head_dim), &b.attended);
  const int64_t A = c.has(kExperts) ? T * c.experts_used : T;  // rows of the MLP
  if (!c.has(kPlainMlp)) declare("gate_up", f32, Shape(A, 2 * c.mlp), &b.gate_up);
  declare("mlp", f32, Shape(A, c.mlp), &b.mlp);
  if (c.has(kExperts)) {
    declare("route_logits", f32, Shape(T, c.experts), &b.route_logits);
    declare("route_weights", f32, Shape(T, c.experts_used), &b.route_weights);
    declare("place", i32, Shape(T, c.experts_used), &b.place);
    declare("token", i32, Shape(A), &b.token);
    declare("offsets", i32, Shape(c.experts + 1), &b.offsets);
    declare("gathered", f32, Shape(A, c.hidden), &b.gathered);
    declare("expert_out", f32, Shape(A, c.hidden), &b.expert_out);
  }
  declare("last", f32, Shape(R, c.hidden), &b.last);
  if (uses_branch(c)) {
    declare("branch", f32, Shape(T, c.hidden), &b.branch);
    declare("last_branch", f32, Shape(R, c.hidden), &b.last_branch);
  }
  declare("logits", f32, Shape(R, c.vocab), &b.logits);
  declare("next", i32, Shape(R), &b.next);
  declare("logprob", f32, Shape(R), &b.logprob);
  b.k_cache.resize(static_cast<size_t>(c.layers));
  b.v_cache.resize(static_cast<size_t>(c.layers));
  for (size_t i = 0; i < b.k_cache.size(); ++i) {
    arena_.declare(strf("k_cache.%zu", i), kv_dtype_, Shape(S, L, c.kv_heads, c.head_dim), &b.k_cache[i]);
    arena_.declare(strf("v_cache.%zu", i), kv_dtype_, Shape(S, L, c.kv_heads, c.head_dim), &b.v_cache[i]);
  }
}

Status DecoderModel::fill_frequencies() {
  if (config_.rope_dims == 0) return {};
  const auto* factors = static_cast<const float*>(weights_.rope_factors.data);
  const auto fill = [&](double theta, const ops::RopeScaling& scaling, const Tensor& to, double* attn_factor) -> Status {
    VV_ASSIGN(const ops::RopeFreqs freqs, ops::rope_freqs(theta, config_.rope_dims, scaling));
    auto* inv_freq = static_cast<float*>(to.data);
    for (size_t i = 0; i < freqs.inv_freq.size(); ++i) inv_freq[i] = factors ? freqs.inv_freq[i] / factors[i] : freqs.inv_freq[i];
    if (attn_factor != nullptr) *attn_factor = freqs.attn_factor;
    return {};
  };
  VV_TRY(fill(config_.rope_theta, config_.rope_scaling, buffers_.inv_freq, &attn_factor_));
  return config_.local.empty() ? Status() : fill(config_.local_theta, {}, buffers_.local_inv_freq, nullptr);
}

Status DecoderModel::load() {
  VV_ASSIGN(config_, read_config(source_.checkpoint()));
  family_ = config_.family->name;
  VV_TRY(check_options());
  VV_TRY(load_weights(source_, config_, &weights_));
  declare_buffers();
  VV_TRY(arena_.commit());
  source_.touch();
  VV_TRY(fill_frequencies());
  sampling_.resize(static_cast<size_t>(limits_.max_batch));
  VV_TRY(capture(limits_.max_batch));
  if (limits_.chunk != limits_.max_batch) VV_TRY(capture(limits_.chunk));
  // One dry step with no valid rows sizes every scratch area; after that nothing allocates.
  for (int64_t T : {int64_t{limits_.max_batch}, int64_t{limits_.chunk}}) VV_TRY(run(T));
  return {};
}

Status DecoderModel::record(exec::Stream& stream, int64_t T) {
  ops::Recorder rec(stream);
  return record_step(rec, config_, plan_, weights_, buffers_, T, attn_factor_);
}

Status DecoderModel::capture(int64_t T) {
  const exec::ShapeKey key{static_cast<uint64_t>(T)};
  VV_TRY(graph_.capture(key, stream_, [&](exec::Stream& stream) { return record(stream, T); }));
  return graph_.pin(key);
}

Status DecoderModel::run(int64_t T) {
  return options_.eager ? record(stream_, T) : graph_.replay(exec::ShapeKey{static_cast<uint64_t>(T)}, stream_);
}

Status DecoderModel::start(int slot, const Sampling& sampling) {
  if (slot < 0 || slot >= limits_.max_batch) return Status(Code::kInvalidArgument, strf("start: slot %d is outside [0, %d)", slot, limits_.max_batch));
  VV_TRY(engine::check(sampling));
  sampling_[static_cast<size_t>(slot)] = sampling;
  const Tensor counts = slice(buffers_.counts, slot, 1);
  std::fill_n(static_cast<int32_t*>(counts.data), limits_.vocab, 0);
  return {};
}

Status DecoderModel::check_rows(std::span<const TokenRow> rows, std::span<Sampled> out) const {
  if (rows.empty() || rows.size() > static_cast<size_t>(limits_.chunk))
    return Status(Code::kLimitExceeded, strf("step: wanted 1 to %d rows, got %zu", limits_.chunk, rows.size()));
  size_t sampled = 0;
  for (const TokenRow& r : rows) {
    if (r.token < 0 || r.token >= limits_.vocab) return Status(Code::kInvalidArgument, strf("step: token %d is outside the vocabulary [0, %d)", r.token, limits_.vocab));
    if (r.pos < 0 || r.pos >= limits_.context) return Status(Code::kLimitExceeded, strf("step: position %d is outside the context of %d", r.pos, limits_.context));
    if (r.slot < 0 || r.slot >= limits_.max_batch) return Status(Code::kInvalidArgument, strf("step: slot %d is outside [0, %d)", r.slot, limits_.max_batch));
    sampled += r.sample;
  }
  if (sampled > static_cast<size_t>(limits_.max_batch)) return Status(Code::kLimitExceeded, strf("step: at most %d rows may sample, got %zu", limits_.max_batch, sampled));
  if (out.size() != sampled) return Status(Code::kInvalidArgument, strf("step: %zu rows sample but out holds %zu", sampled, out.size()));
  return {};
}

Status DecoderModel::step(std::span<const TokenRow> rows, std::span<Sampled> out) {
  VV_TRY(check_rows(rows, out));
  const StepBuffers& b = buffers_;
  const auto put = []<class V>(const Tensor& t, size_t i, V v) { static_cast<V*>(t.data)[i] = v; };
  size_t n = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const TokenRow& r = rows[i];
    put(b.tokens, i, r.token);
    put(b.pos, i, r.pos);
    put(b.slot, i, r.slot);
    if (!r.sample) continue;
    const Sampling& s = sampling_[static_cast<size_t>(r.slot)];
    put(b.sample_rows, n, static_cast<int32_t>(i));
    put(b.sample_slot, n, r.slot);
    put(b.sample_step, n, r.pos + 1);  // the drawn token's position: the same draw alone or in a batch
    put(b.temperature, n, s.temperature);
    put(b.top_p, n, s.top_p);
    put(b.min_p, n, s.min_p);
    put(b.repetition, n, s.repetition);
    put(b.presence, n, s.presence);
    put(b.frequency, n, s.frequency);
    put(b.top_k, n, s.top_k);
    put(b.seed, n, s.seed);
    out[n++].slot = r.slot;
  }
  put(b.rows, 0, static_cast<int32_t>(rows.size()));
  put(b.samples, 0, static_cast<int32_t>(n));
  VV_TRY(run(rows.size() <= static_cast<size_t>(limits_.max_batch) ? limits_.max_batch : limits_.chunk));
  for (size_t i = 0; i < n; ++i) {
    out[i].token = static_cast<const int32_t*>(b.next.data)[i];
    out[i].logprob = static_cast<const float*>(b.logprob.data)[i];
  }
  return {};
}

engine::Report DecoderModel::report() const {
  const auto quoted = [](const std::string& s) { return '"' + s + '"'; };
  const auto number = [](int64_t v) { return std::to_string(v); };
  const DecoderConfig& c = config_;
  return {{"family", quoted(family_)},
          {"device", quoted("cpu")},
          {"precision", quoted(plan_.name)},
          {"kv_dtype", quoted(name(kv_dtype_))},
          {"threads", number(pool_.threads())},
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
          {"weight_dtype", quoted(name(weights_.layers.front().o.dtype))},
          {"head_dtype", quoted(name(weights_.head.dtype))},
          {"experts", number(c.experts)},
          {"experts_used", number(c.experts_used)},
          {"window", number(c.window)},
          {"rope_style", quoted(c.rope_style)},
          {"arena_bytes", number(arena_.bytes())}};
}

std::vector<engine::MemoryLine> DecoderModel::memory() const {
  std::vector<engine::MemoryLine> lines = {{"weights (mapped)", source_.bytes()}};
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
