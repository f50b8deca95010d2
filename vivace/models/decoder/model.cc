// Loading: options checked, weights placed, memory reserved once, every step captured.
#include "vivace/models/decoder/model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "vivace/base/check.h"
#include "vivace/models/decoder/decoder_model.h"

namespace vivace::models::decoder {
namespace {

constexpr int kDefaultContext = 4096;  // caps "auto": a slot's KV memory should not surprise a laptop
constexpr int kStrictBatch = 64;  // rows that products, and attention over several slots, take as answers
constexpr int kStrictAlone = 16;  // the same over one slot
constexpr int kImageTokens = 1280, kMostImageTokens = 16384;  // of an image: the usual most, and what may be asked for
constexpr int64_t kStates = 16, kStatesOfSequence = 4, kLeastStates = 2, kStatesBytes = int64_t{1} << 30;  // "auto"
constexpr int64_t kOneLaunchWidth = 2048;  // hidden values up to which one launch of all layers was seen to win
constexpr int64_t kStatesOfBlock = 2;  // more find no blocks that they could be kept beside
constexpr int kImagePlaces = 4;        // images that steps may read: several prompts begin, or one has several
// Row bounds of prompt steps below the largest, LoadOptions::prefill_chunk: a step takes what its bound takes, nearly.
constexpr int kChunks[] = {128, 256, 384, 512, 768};
// That where LoadOptions leaves it open. Alone on a GPU nobody waits for a prompt's step. Of several sequences the
// others stand still meanwhile, and a scheduler's tenant as a whole between its gates.
constexpr int kChunk = 128, kChunkOfSeveral = 256, kChunkAlone = 1024;

}  // namespace

using engine::LoadOptions;
using engine::TextLimits;

Status DecoderModel::check_options() {
  VV_ASSIGN(plan_, pick_plan(options_.precision, options_.lm_head_dtype, runtime_->place()));
  VV_ASSIGN(kv_dtype_, pick_kv(options_.kv_dtype, plan_, runtime_->place()));
  const auto at_least = [](const char* what, int value, int least) {
    return value >= least ? Status()
                          : Status(Code::kInvalidArgument, strf("%s: wanted at least %d, got %d", what, least, value));
  };
  VV_TRY(at_least("context", options_.context, 0));
  VV_TRY(at_least("max_batch", options_.max_batch, 1));
  VV_TRY(at_least("prefill_chunk", options_.prefill_chunk, 0));
  VV_TRY(at_least("max_in_flight_steps", options_.max_in_flight_steps, 0));
  VV_TRY(at_least("num_kv_blocks", options_.num_kv_blocks, LoadOptions::kPagesAuto));
  VV_TRY(at_least("gpu_layers", options_.gpu_layers, -1));
  if (options_.context > config_.context)
    return Status(Code::kLimitExceeded, strf("context: the model was trained for %ld positions, got %d",
                                             static_cast<long>(config_.context), options_.context));
  const int64_t context = options_.context ? options_.context : std::min<int64_t>(config_.context, kDefaultContext);
  const bool host = runtime_->place() == Place::host;
  if (options_.prefill_chunk == 0) {
    const int most = host || options_.gates.gate != nullptr ? kChunk
                     : options_.max_batch > 1               ? kChunkOfSeveral
                                                            : kChunkAlone;
    options_.prefill_chunk = std::max(kChunk, static_cast<int>(std::min<int64_t>(context, most)));
  }
  VV_TRY(find_scales());
  VV_TRY(check_invariance());
  VV_TRY(check_drafts());
  VV_TRY(check_decode_layers());
  const bool mixed = host && options_.mtp == 0;  // guesses are rows of steps of answers alone
  // On the host tables cost nothing: SmolLM2-135M's steps take as long, 7.3 ms for 7.7, and prompts too.
  if (options_.num_kv_blocks == LoadOptions::kPagesAuto && !host) options_.num_kv_blocks = 0;
  if (options_.num_kv_blocks < 0)
    options_.num_kv_blocks = options_.max_batch * Pages::needed(static_cast<int>(context));
  // Apart from the host, a step of prompt rows and one of answers are two products anyway: their classes differ.
  limits_ =
      TextLimits{static_cast<int>(config_.vocab),
                 static_cast<int>(context),
                 options_.max_batch,
                 std::max(options_.prefill_chunk, options_.max_batch),
                 std::max(options_.max_in_flight_steps ? options_.max_in_flight_steps : runtime_->max_in_flight_steps(),
                          mixed ? 1 : 2),
                 mixed,
                 options_.logit_bias,
                 options_.num_kv_blocks ? Pages::kPlaces : 0,
                 options_.num_kv_blocks,
                 (host && !launches_.empty()) || options_.invariance == "strict",
                 {},
                 config_.recurrent_layers() > 0};
  VV_ASSIGN(limits_.states, pick_states());
  limits_.mtp = options_.mtp;
  return {};
}

Result<int> DecoderModel::pick_states() const {
  const int64_t given = options_.state_cache_bytes, each = config_.state_width() * static_cast<int64_t>(sizeof(float));
  if (given < LoadOptions::kStatesAuto)
    return Status(Code::kInvalidArgument,
                  strf("state_cache_bytes: wanted at least 0, got %ld", static_cast<long>(given)));
  if (given > 0 && !limits_.recurrent)
    return Status(Code::kInvalidArgument,
                  "state_cache_bytes: " + family_ + " carries no recurrent state; leave it out");
  if (given > 0 && limits_.pages == 0)
    return Status(Code::kInvalidArgument,
                  "state_cache_bytes: states are kept beside KV blocks, and there are none; load with "
                  "num_kv_blocks=\"full\", or leave it out");
  if (given > 0 && given < each)
    return Status(Code::kInvalidArgument, strf("state_cache_bytes: a state takes %ld bytes, got %ld; wanted 0 or more",
                                               static_cast<long>(each), static_cast<long>(given)));
  if (!limits_.recurrent || limits_.pages == 0 || given == 0) return 0;
  int64_t count = given / each;
  if (given < 0)
    count =
        std::min<int64_t>(kStates + kStatesOfSequence * limits_.max_batch, std::max(kLeastStates, kStatesBytes / each));
  return static_cast<int>(std::min<int64_t>(count, kStatesOfBlock * int64_t{limits_.pages}));
}

/// One class: steps of prompts so small that every op takes their rows as it takes those of answers.
Status DecoderModel::check_invariance() {
  if (options_.invariance == "class") return {};
  if (options_.invariance != "strict")
    return Status(Code::kInvalidArgument, "invariance: wanted class or strict, got '" + options_.invariance + "'");
  if (options_.max_batch > kStrictBatch)
    return Status(Code::kUnsupported, strf("invariance strict: at most %d sequences share a class, got max_batch %d",
                                           kStrictBatch, options_.max_batch));
  options_.prefill_chunk = std::min(options_.prefill_chunk, options_.max_batch > 1 ? kStrictBatch : kStrictAlone);
  return {};
}

Status DecoderModel::decode_by_launches(const Status& why) {
  launches_ = why.message();
  return options_.decode_layers == "on" ? Status(why.code(), "decode_layers on: " + launches_) : Status();
}

Status DecoderModel::check_decode_layers() {
  const std::string& wanted = options_.decode_layers;
  if (wanted != "auto" && wanted != "on" && wanted != "off")
    return Status(Code::kInvalidArgument, "decode_layers: wanted auto, on or off, got '" + wanted + "'");
  const auto launches = [&](const std::string& why) { return decode_by_launches(Status(Code::kUnsupported, why)); };
  if (wanted == "off") return launches("off");
  if (options_.max_batch != 1) return launches(strf("max_batch is %d", options_.max_batch));
  if (options_.mtp != 0) return launches("steps check guesses");
  if (options_.invariance == "strict") return launches("invariance is strict");
  if (options_.gates.gate != nullptr) return launches("a scheduler's gates stand between launches");
  if (options_.gpu_layers >= 0 && options_.gpu_layers < config_.layers) return launches("layers take turns");
  if (Status s = may_stack(config_, plan_, kv_dtype_); !s.ok()) return decode_by_launches(s);
  if (wanted == "on") return {};
  if (!ops::decode_layers.has_kernel(runtime_->arch())) return launches("no kernel for this device");
  if (config_.hidden > kOneLaunchWidth)
    return launches(strf("hidden is %ld; above %ld it has not been measured", static_cast<long>(config_.hidden),
                         static_cast<long>(kOneLaunchWidth)));
  return {};
}

Status DecoderModel::open_decode_layers() {
  if (!launches_.empty()) return {};
  Result<LayerStacks> stacks = stack_layers(config_, weights_, buffers_);
  if (!stacks.ok()) return decode_by_launches(stacks.status());
  stacks_ = *stacks;
  // A step without a row loads the kernel, or says why there is none.
  Status s = record(runtime_->stream(), {true, 1});
  if (s.ok()) in_flight_.skip();
  return s.code() == Code::kUnsupported ? decode_by_launches(s) : s;
}

Status DecoderModel::find_scales() {
  std::vector<float>& scales = options_.act_scales;
  const bool fixed = plan_.entry == ActQuant::per_tensor;
  const size_t wanted = fixed ? static_cast<size_t>(site_count(config_)) : 0;
  if (fixed && scales.empty() && !options_.random_weights) {
    VV_ASSIGN(input_scales_, read_input_scales(source_.checkpoint(), config_));
    scales = input_scales_.sites;
  }
  if (scales.size() != wanted)
    return Status(Code::kFailedPrecondition, strf("act_scales: precision %s wants %zu, one an activation quantization "
                                                  "point, got %zu; calibrate() of the checkpoint "
                                                  "loaded in bf16 gives those of fp8_static",
                                                  plan_.name, wanted, scales.size()));
  for (const float s : scales)
    if (!(s > 0 && std::isfinite(s)))
      return Status(Code::kInvalidArgument,
                    strf("act_scales: wanted positive finite values, got %g", static_cast<double>(s)));
  return {};
}

Status DecoderModel::open_encoder() {
  if (!config_.has(kVision)) {
    return options_.max_image_tokens == 0
               ? Status()
               : Status(Code::kInvalidArgument, "max_image_tokens: " + family_ + " takes no images; leave it out");
  }
  const int64_t tokens =
      options_.max_image_tokens != 0 ? options_.max_image_tokens : std::min<int64_t>(kImageTokens, limits_.context);
  if (tokens < 1 || tokens > kMostImageTokens)
    return Status(Code::kInvalidArgument,
                  strf("max_image_tokens: wanted 1 to %ld, or 0 for %ld, got %ld", static_cast<long>(kMostImageTokens),
                       static_cast<long>(kImageTokens), static_cast<long>(tokens)));
  encoder_ = std::make_unique<vision::ImageEncoder>(
      config_.vision,
      vision::ImageEncoder::Options{std::min(limits_.max_batch, kImagePlaces), tokens, limits_.prefill_chunk,
                                    plan_.hidden, plan_.hidden == DType::f32, options_.eager});
  VV_TRY(encoder_->load_weights(source_, "model.visual."));
  limits_.images = encoder_->limits(config_.image_token);
  return {};
}

Status DecoderModel::fill_frequencies() {
  if (config_.rope_dims == 0) return {};
  if (encoder_ != nullptr) {
    std::vector<int32_t> axis(static_cast<size_t>(config_.rope_dims / 2));
    for (size_t i = 0; i < axis.size(); ++i)  // lines and columns take every third pair each, as far as they go
      axis[i] = i % 3 != 0 && static_cast<int64_t>(i) < 3 * config_.sections[i % 3] ? static_cast<int32_t>(i % 3) : 0;
    const engine::Upload one[] = {{buffers_.axis.data, axis.data(), axis.size() * sizeof(int32_t)}};
    VV_TRY(runtime_->upload(one));
  }
  const auto* factors = static_cast<const float*>(weights_.rope_factors.data);
  const auto fill = [&](double theta, const ops::RopeScaling& scaling, const Tensor& to,
                        double* attn_factor) -> Status {
    VV_ASSIGN(ops::RopeFreqs freqs, ops::rope_freqs(theta, config_.rope_dims, scaling));
    for (size_t i = 0; factors != nullptr && i < freqs.inv_freq.size(); ++i) freqs.inv_freq[i] /= factors[i];
    if (attn_factor != nullptr) *attn_factor = freqs.attn_factor;
    const engine::Upload one[] = {{to.data, freqs.inv_freq.data(), freqs.inv_freq.size() * sizeof(float)}};
    return runtime_->upload(one);
  };
  VV_TRY(fill(config_.rope_theta, config_.rope_scaling, buffers_.inv_freq, &attn_factor_));
  return config_.local.empty() ? Status() : fill(config_.local_theta, {}, buffers_.local_inv_freq, nullptr);
}

Status DecoderModel::fill_scales() {
  const auto upload = [&](const Tensor& to, const std::vector<float>& values) -> Status {
    const engine::Upload one[] = {{to.data, values.data(), values.size() * sizeof(float)}};
    return runtime_->upload(one);
  };
  std::vector<float> sites = options_.act_scales, caches;
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const LayerWeights& w = weights_.layers[i];
    // What attention gives is less by v_scale until the product behind it, which has that as its factor.
    if (plan_.entry == ActQuant::per_tensor) sites[i * size_t{kSites} + size_t{kAttended}] /= w.v_scale;
    if (!config_.is_recurrent(i)) caches.insert(caches.end(), {w.k_scale, w.v_scale});
  }
  if (config_.drafts) caches.insert(caches.end(), {weights_.draft.layer.k_scale, weights_.draft.layer.v_scale});
  if (kv_scales_ == KvScales::used) VV_TRY(upload(buffers_.kv_scale, caches));
  return plan_.entry == ActQuant::per_tensor ? upload(buffers_.site_scale, sites) : Status();
}

Status DecoderModel::open_states() {
  state_pos_.assign(static_cast<size_t>(limits_.max_batch + limits_.states), 0);
  std::vector<int32_t> rows(static_cast<size_t>(buffers_.each_row.shape[0]));
  std::iota(rows.begin(), rows.end(), 0);
  const engine::Upload one[] = {{buffers_.each_row.data, rows.data(), rows.size() * sizeof(int32_t)}};
  return runtime_->upload(one);
}

Status DecoderModel::load() {
  VV_ASSIGN(config_, read_config(source_.checkpoint()));
  if (options_.mtp != 0) VV_TRY(read_drafts(source_.checkpoint(), options_.random_weights, &config_));
  family_ = config_.family->name;
  VV_TRY(open());
  phase("device");
  VV_TRY(check_options());
  if (plan_.keeps_fp4()) source_.keep_fp4();
  if (plan_.keeps_e4m3()) source_.keep_e4m3();
  VV_TRY(load_weights(source_, config_, &weights_));
  VV_ASSIGN(kv_scales_, read_kv_scales(source_.checkpoint(), config_, kv_dtype_, &weights_));
  VV_TRY(open_encoder());
  VV_TRY(upload_weights(config_, plan_, *runtime_, source_, &weights_, &uploader_,
                        options_.gpu_layers < 0 ? config_.layers : options_.gpu_layers, &stream_.layers()));
  declare_buffers();
  VV_TRY(check_fit("model",
                   uploader_.bytes() + stream_.region_bytes() + (encoder_ != nullptr ? encoder_->weight_bytes() : 0),
                   strf("lower context or max_batch, use a smaller precision, or set gpu_layers below %ld",
                        static_cast<long>(config_.layers))));
  VV_TRY(uploader_.commit(*runtime_));
  VV_TRY(stream_.commit(*runtime_));
  phase("weights");
  if (!weights_.head.present()) weights_.head = weights_.embed;
  norms_behind_ = deferred_norms(config_, plan_, weights_, runtime_->arch()) &&
                  !(encoder_ != nullptr && limits_.one_class);  // steps with images take them as they come
  VV_TRY(arena_.commit(*runtime_));
  if (encoder_ != nullptr) {
    VV_TRY(encoder_->commit(*runtime_));
    buffers_.mixed = encoder_->mixed();
    buffers_.levels = encoder_->levels();
  }
  if (runtime_->place() == Place::host) source_.touch();
  else logits_.resize(static_cast<size_t>(buffers_.logits.shape.elements()));
  VV_TRY(fill_frequencies());
  if (limits_.recurrent) VV_TRY(open_states());
  VV_TRY(pages_.open(*runtime_, limits_.recurrent ? limits_.states : engine::KvBlocks::kNoState));
  VV_TRY(masks_.open(*runtime_));
  buffers_.masks = masks_.table();
  buffers_.page_table = pages_.table();
  VV_TRY(fill_scales());
  for (InputBlock* block : {&decode_, &prompt_}) VV_TRY(block->open(*runtime_, limits_.max_in_flight_steps));
  VV_TRY(in_flight_.open(*runtime_, "rings of draws", limits_.max_in_flight_steps, limits_.max_batch, &buffers_));
  if (config_.drafts) VV_TRY(open_drafts());
  sampling_.resize(static_cast<size_t>(limits_.max_batch));
  if (pages_.used()) fed_counts_.resize(static_cast<size_t>(limits_.vocab));
  for (std::vector<int32_t>* slots : {&slots_, &decoding_, &decoding_pos_})
    slots->reserve(static_cast<size_t>(limits_.max_batch));
  VV_TRY(open_decode_layers());
  phase("arena");
  VV_TRY(make_variants());
  if (config_.drafts) VV_TRY(make_draft_variants());
  phase("graphs");
  return close_load();
}

Status DecoderModel::make_variants() {
  for (int64_t rows = 1; rows < limits_.max_batch; rows *= 2) variants_.push_back({true, rows});
  variants_.push_back({true, limits_.max_batch});
  if (config_.drafts)
    for (size_t i = 0, n = variants_.size(); i < n; ++i) variants_.push_back({true, variants_[i].rows, true});
  for (const int rows : kChunks)
    if (rows < limits_.prefill_chunk) variants_.push_back({false, rows});
  variants_.push_back({false, limits_.prefill_chunk});
  graph_ = std::make_unique<exec::Graph>("decoder_step", variants_.size());
  exec::Stream& stream = runtime_->stream();
  for (Variant& v : variants_) {
    // A dry step with no valid rows sizes every scratch area and loads every kernel, which a capture must not do.
    VV_TRY(record(stream, v));
    in_flight_.skip();
    if (options_.gates.gate != nullptr) VV_TRY(plan_gates(&v));
    VV_TRY(graph_->capture(v.key(), stream, [&](exec::Stream& s) { return record(s, v); }));
    VV_TRY(graph_->pin(v.key()));
    VV_TRY(run(v));
    in_flight_.skip();
  }
  return stream.synchronize();
}

Status DecoderModel::record(exec::Stream& stream, const Variant& v, ops::Recorder::Observer observer,
                            const StepInputs* moved, bool normed, bool every_point) {
  ops::Recorder rec(stream, ops::Weights::constant, std::move(observer));
  const engine::GateWalk walk{options_.gates, every_point ? nullptr : &v.gates};
  const bool gated = options_.gates.gate != nullptr && (every_point || !v.gates.at.empty());
  const StepContext context{config_,
                            plan_,
                            weights_,
                            buffers_,
                            attn_factor_,
                            &stream_,
                            norms_behind_ && !normed,
                            v.guesses,
                            moved,
                            gated ? &walk : nullptr,
                            gated ? v.head_parts : 1,
                            launches_.empty() && v.decode && v.rows == 1 && !normed ? &stacks_ : nullptr,
                            !options_.eager};
  return record_step(rec, context, (v.decode ? decode_ : prompt_).inputs(), v.rows);
}

Status DecoderModel::run(const Variant& v) {
  return options_.eager ? record(runtime_->stream(), v) : graph_->replay(v.key(), runtime_->stream());
}

Result<std::unique_ptr<engine::Model>> load(engine::Checkpoint checkpoint, const LoadOptions& options) {
  return load_family<DecoderModel, engine::Model>(std::move(checkpoint), options);
}

}  // namespace vivace::models::decoder
