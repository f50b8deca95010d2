// Loading: options checked, weights placed, memory reserved once, every graph captured.
#include "vivace/models/whisper/model.h"

#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/engine/audio/mel.h"
#include "vivace/engine/json_text.h"
#include "vivace/engine/registry.h"
#include "vivace/models/layer/calibration.h"
#include "vivace/models/whisper/whisper_model.h"
#include "vivace/ops/decode_layers_cross.h"

namespace vivace::models::whisper {
namespace {

constexpr int kMostWindows = 64, kMostRows = 64;
constexpr int64_t kChunk = 64;  // rows of a prompt's step: as many as share the class of answers

}  // namespace

Status WhisperModel::check_options() {
  VV_ASSIGN(plan_, pick_plan(options_.precision, runtime_->place()));
  VV_TRY(check_act_scales(plan_.name, plan_.fixed, options_.act_scales, QuantizationSites(config_).count()));
  for (const auto& [what, value, most] :
       {std::tuple{"windows", options_.windows, kMostWindows}, {"rows", options_.rows, kMostRows}})
    if (value < 1 || value > most)
      return Status(Code::kInvalidArgument, strf("%s: wanted 1 to %d, got %d", what, most, value));
  limits_.vocab = static_cast<int>(config_.vocab);
  limits_.mels = static_cast<int>(config_.mels);
  limits_.frames = static_cast<int>(config_.frames());
  limits_.encoded = static_cast<int>(config_.source);
  limits_.positions = static_cast<int>(config_.positions);
  limits_.windows = options_.windows;
  limits_.rows = options_.rows;
  limits_.layers = static_cast<int>(config_.decoder.layers);
  limits_.heads = static_cast<int>(config_.decoder.heads);
  for (int64_t n = 1; n < kChunk; n *= 2) steps_.push_back(n);
  steps_.push_back(kChunk);
  // A row a line, exactly: attention on a GPU then takes lines side by side, not one after the other in a larger step.
  if (const auto at = std::lower_bound(steps_.begin(), steps_.end(), int64_t{limits_.rows});
      limits_.rows < kChunk && *at != limits_.rows)
    steps_.insert(at, limits_.rows);
  return check_decode_layers();
}

void WhisperModel::declare_buffers() {
  const WhisperConfig& c = config_;
  WhisperBuffers& b = buffers_;
  const int64_t W = limits_.windows, F = W * c.frames(), T = W * c.source, H = c.width, R = kChunk, S = limits_.rows,
                D = c.head_dim(c.decoder);
  const DType act = plan_.hidden, f32 = DType::f32, i32 = DType::i32;
  const auto declare = [this](const std::string& name, DType dtype, Shape shape, Tensor* t) {
    arena_.declare(name, dtype, shape, t);
  };
  sound_in_.declare(arena_, "in.samples", f32, Shape(W, (c.frames() - 1) * kHop + kWindow), &sound_.samples);
  sound_in_.declare(arena_, "in.peak", f32, Shape(W), &sound_.peak);
  sound_in_.declare(arena_, "in.length", i32, Shape(W), &sound_.length);
  for (auto& [name, t] : {std::pair{"in.tokens", &text_.tokens},
                          {"in.pos", &text_.pos},
                          {"in.slot", &text_.slot},
                          {"in.window", &text_.window},
                          {"in.sample_rows", &text_.sample_rows}})
    text_in_.declare(arena_, name, i32, Shape(R), t);
  for (auto& [name, t] :
       {std::pair{"in.mask_slot", &text_.mask_slot}, {"in.told", &text_.told}, {"in.asked", &text_.asked}})
    text_in_.declare(arena_, name, i32, Shape(R), t);
  text_in_.declare(arena_, "in.spans", i32, Shape(R, 5), &text_.spans);
  text_in_.declare(arena_, "in.page_table", i32, Shape(S, c.positions), &text_.page_table);
  text_in_.declare(arena_, "in.rows", i32, Shape(1), &text_.rows);
  text_in_.declare(arena_, "in.samples_wanted", i32, Shape(1), &text_.samples);
  mask_in_.declare(arena_, "in.mask", i32, Shape(2 * S, (c.vocab + 31) / 32), &text_.mask);
  text_out_.declare(arena_, "out.token", i32, Shape(R, S + 1), &told_.token);
  text_out_.declare(arena_, "out.logprob", f32, Shape(R, S + 1), &told_.logprob);
  text_out_.declare(arena_, "out.asked", f32, Shape(R), &told_.asked);
  declare("hann", f32, Shape(kWindow), &b.hann);
  declare("filters", f32, Shape(c.mels, kWindow / 2 + 1), &b.filters);
  declare("logs", f32, Shape(F, c.mels), &b.logs);
  declare("frame_peak", f32, Shape(F), &b.frame_peak);
  declare("mel", act, Shape(F, c.mels), &b.mel);
  declare("patches", act, Shape(std::max(F * 3 * c.mels, c.source * 3 * H)), &b.patches);
  declare("thin", act, Shape(F, H), &b.thin);
  declare("sound_slot", i32, Shape(T), &b.sound_slot);
  for (auto& [name, t, width] : {std::tuple{"hidden", &b.hidden, H},
                                 {"qkv", &b.qkv, 3 * H},
                                 {"attended", &b.attended, H},
                                 {"inner", &b.inner, c.encoder.mlp}})
    declare(name, act, Shape(T, width), t);
  auto& x = b.text;
  for (auto& [name, t, width] : {std::tuple{"text.hidden", &x.hidden, H},
                                 {"text.branch", &x.branch, H},
                                 {"text.qkv", &x.qkv, 3 * H},
                                 {"text.q", &x.q, H},
                                 {"text.attended", &x.attended, H},
                                 {"text.inner", &x.inner, c.decoder.mlp},
                                 {"text.last", &x.last, H}})
    declare(name, act, Shape(R, width), t);
  const auto entering = [&](const std::string& name, int64_t rows, int64_t mlp, CodeBuffers* to) {
    declare(name + "normed", plan_.eight ? DType::e4m3 : act, Shape(rows, H), &to->normed);
    if (!plan_.eight) return;
    declare(name + "codes", DType::e4m3, Shape(rows, std::max(H, mlp)), &to->quantized);
    if (plan_.fixed) return;
    declare(name + "normed_scale", f32, Shape(rows), &to->normed_scale);
    declare(name + "codes_scale", f32, Shape(rows), &to->quantized_scale);
  };
  entering("", T, c.encoder.mlp, &b.entering);
  entering("text.", R, c.decoder.mlp, &x.entering);
  if (plan_.fixed) declare("act_scales", f32, Shape(QuantizationSites(c).count()), &b.act_scales);
  if (launches_.empty())
    declare("text.decode_words", i32, Shape(ops::defs::decode_layers_cross::words_of(H, c.decoder.mlp)),
            &b.decode_words);
  declare("text.logits", f32, Shape(R, c.vocab), &x.logits);
  scores_out_.declare(arena_, "attention", f32, Shape(kHeadsAtOnce * R, c.source), &b.attention);
  const auto layers = static_cast<size_t>(c.decoder.layers);
  for (std::vector<Tensor>* all : {&b.cross_k, &b.cross_v, &b.k_cache, &b.v_cache, &x.cross_q}) all->resize(layers);
  for (size_t i = 0; i < layers; ++i) {
    declare(strf("cross_k.%zu", i), act, Shape(W, c.source, c.decoder.heads, D), &b.cross_k[i]);
    declare(strf("cross_v.%zu", i), act, Shape(W, c.source, c.decoder.heads, D), &b.cross_v[i]);
    declare(strf("k_cache.%zu", i), act, Shape(S * c.positions, 1, c.decoder.heads, D), &b.k_cache[i]);
    declare(strf("v_cache.%zu", i), act, Shape(S * c.positions, 1, c.decoder.heads, D), &b.v_cache[i]);
    declare(strf("cross_q.%zu", i), act, Shape(R, H), &x.cross_q[i]);
  }
}

Status WhisperModel::fill_constants() {
  const std::vector<float> hann = engine::hann_window(static_cast<int>(kWindow)),
                           filters = engine::mel_filters(static_cast<int>(config_.mels), static_cast<int>(kWindow),
                                                         limits_.rate);
  std::vector<int32_t> slots(static_cast<size_t>(buffers_.sound_slot.shape[0]));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(static_cast<int64_t>(i) / config_.source);
  const engine::Upload all[] = {{buffers_.hann.data, hann.data(), hann.size() * sizeof(float)},
                                {buffers_.filters.data, filters.data(), filters.size() * sizeof(float)},
                                {buffers_.sound_slot.data, slots.data(), slots.size() * sizeof(int32_t)}};
  VV_TRY(runtime_->upload(all));
  if (!plan_.fixed) return {};
  const std::vector<float>& scales = options_.act_scales;
  const engine::Upload own[] = {{buffers_.act_scales.data, scales.data(), scales.size() * sizeof(float)}};
  return runtime_->upload(own);
}

Status WhisperModel::load() {
  VV_TRY(open());
  VV_TRY(check_options());
  std::vector<std::unique_ptr<std::byte[]>> own;
  VV_TRY(load_weights(source_, config_, plan_, &uploader_, &own, launches_.empty(), &weights_));
  declare_buffers();
  VV_TRY(check_fit("model", uploader_.bytes(), "lower windows or rows"));
  VV_TRY(uploader_.commit(*runtime_));
  VV_TRY(arena_.commit(*runtime_));
  VV_TRY(fill_constants());
  VV_TRY(sound_in_.open(*runtime_, "sound inputs"));
  VV_TRY(text_in_.open(*runtime_, "text inputs"));
  VV_TRY(mask_in_.open(*runtime_, "text masks"));
  VV_TRY(text_out_.open(*runtime_, "text outputs"));
  VV_TRY(scores_out_.open(*runtime_, "attention weights"));
  lines_.resize(static_cast<size_t>(text_.page_table.shape.elements()));
  if (runtime_->place() == Place::host) {
    host_logits_ = static_cast<float*>(buffers_.text.logits.data);
  } else {
    logits_.resize(static_cast<size_t>(buffers_.text.logits.shape.elements()));
    host_logits_ = logits_.data();
  }
  VV_TRY(open_decode_layers());
  VV_TRY(capture());
  return close_load();
}

Status WhisperModel::capture() {
  exec::Stream& stream = runtime_->stream();
  graph_ = std::make_unique<exec::Graph>("whisper", steps_.size() + static_cast<size_t>(limits_.windows) + 1);
  // A dry run over no rows sizes every scratch area and loads every kernel, which a capture must not do.
  const Tensor none = text_.rows;
  *text_in_.host<int32_t>(none) = 0;
  *text_in_.host<int32_t>(text_.samples) = 0;
  VV_TRY(text_in_.copy_in(stream));
  const auto keep = [&](exec::ShapeKey key, const std::function<Status(exec::Stream&)>& record) -> Status {
    VV_TRY(graph_->capture(key, stream, record));
    return graph_->pin(key);
  };
  const bool gated = options_.gates.gate != nullptr;
  for (const int64_t rows : steps_) {
    VV_TRY(record_step(stream, rows));
    if (gated) {
      write_full(rows);
      VV_TRY(text_in_.copy_in(stream));
      VV_TRY(place_gates(step_key(rows), [&](exec::Stream& s) { return launch_step(s, rows); }));
    }
    VV_TRY(keep(step_key(rows), [&](exec::Stream& s) { return record_step(s, rows); }));
  }
  *text_in_.host<int32_t>(none) = 0;
  *text_in_.host<int32_t>(text_.samples) = 0;
  VV_TRY(text_in_.copy_in(stream));
  VV_TRY(record_sound(stream, 1, true, none));
  if (gated) VV_TRY(place_gates(kFeatures, [&](exec::Stream& s) { return launch_sound(s, 1, true, {}); }));
  VV_TRY(keep(kFeatures, [&](exec::Stream& s) { return record_sound(s, 1, true, {}); }));
  for (int64_t n = 1; n <= limits_.windows; ++n) {
    VV_TRY(record_sound(stream, n, false, none));
    if (gated) VV_TRY(place_gates(sound_key(n), [&](exec::Stream& s) { return launch_sound(s, n, false, {}); }));
    VV_TRY(keep(sound_key(n), [&](exec::Stream& s) { return record_sound(s, n, false, {}); }));
  }
  return stream.synchronize();
}

Status WhisperModel::record_sound(exec::Stream& s, int64_t windows, bool features_only, const Tensor& rows) const {
  VV_TRY(sound_in_.copy_in(s));
  return launch_sound(s, windows, features_only, rows);
}

Status WhisperModel::record_step(exec::Stream& s, int64_t rows) const {
  VV_TRY(text_in_.copy_in(s));
  VV_TRY(launch_step(s, rows));
  return text_out_.copy_out(s);
}

Status WhisperModel::launch_sound(exec::Stream& s, int64_t windows, bool features_only, const Tensor& rows) const {
  ops::Recorder rec(s, ops::Weights::constant);
  engine::GateMarks marks = this->marks(features_only ? kFeatures : sound_key(windows));
  WhisperContext c = context();
  c.gates = &marks;
  return (features_only ? record_features : record_encoder)(rec, c, sound_, windows, rows);
}

Status WhisperModel::launch_step(exec::Stream& s, int64_t rows) const {
  ops::Recorder rec(s, ops::Weights::constant);
  engine::GateMarks marks = this->marks(step_key(rows));
  WhisperContext c = context();
  c.gates = &marks;
  return record_text(rec, c, text_, told_, rows);
}

engine::GateMarks WhisperModel::marks(exec::ShapeKey key) const {
  const auto plan = gates_.find(key.value);
  if (gating_) return {options_.gates, nullptr};
  return plan != gates_.end() ? engine::GateMarks(options_.gates, &plan->second) : engine::GateMarks({}, nullptr);
}

Status WhisperModel::place_gates(exec::ShapeKey key, const std::function<Status(exec::Stream&)>& launches) {
  engine::GatePlan plan;
  gating_ = true;
  const Result<engine::WorkTimes> work = engine::plan_call(
      *runtime_, options_.gates.stretch_us, {&plan, 1}, [&](exec::Stream& stream, size_t) { return launches(stream); });
  gating_ = false;
  VV_TRY(work.status());
  work_.worst_us = std::max(work_.worst_us, work->worst_us);
  work_.stretch_us = std::max(work_.stretch_us, work->stretch_us);
  work_.gates = std::max(work_.gates, work->gates);
  gates_[key.value] = std::move(plan);
  return {};
}

void WhisperModel::write_full(int64_t rows) {
  // Rows of a line follow one another, as those of a prompt do: attention takes rows of one slot together.
  const int64_t lines = limits_.rows, each = (rows + lines - 1) / lines,
                first = std::max<int64_t>(config_.positions - each, 0);
  for (int64_t line = 0; line < lines; ++line) own_places(static_cast<int>(line));
  for (int64_t i = 0; i < rows; ++i) {
    text_in_.host<int32_t>(text_.tokens)[i] = 0;
    text_in_.host<int32_t>(text_.pos)[i] = static_cast<int32_t>((first + i % each) % config_.positions);
    text_in_.host<int32_t>(text_.slot)[i] = static_cast<int32_t>(i / each);
    text_in_.host<int32_t>(text_.window)[i] = 0;
    want(static_cast<size_t>(i), {.row = static_cast<int32_t>(i), .spans = every_token(config_.vocab)});
  }
  *text_in_.host<int32_t>(text_.rows) = *text_in_.host<int32_t>(text_.samples) = static_cast<int32_t>(rows);
}

Result<engine::Profile> WhisperModel::profile(int windows, int rows, bool in_step) {
  const bool step = windows == 0;
  if (windows < 0 || windows > limits_.windows || rows < (step ? 1 : 0) || rows > (step ? kChunk : 0))
    return Status(Code::kInvalidArgument,
                  strf("profile: wanted 1 to %d windows and no rows, or none and 1 to %ld rows, "
                       "got %d and %d",
                       limits_.windows, static_cast<long>(kChunk), windows, rows));
  windows_ = 0;
  const int64_t bound = step ? *std::lower_bound(steps_.begin(), steps_.end(), int64_t{rows}) : 0;
  return engine::profile(
      *runtime_, [&](exec::Stream& s) { return step ? launch_step(s, bound) : launch_sound(s, windows, false, {}); },
      [&] {
        if (!step) return sound_in_.copy_in(runtime_->stream());
        write_full(rows);
        return text_in_.copy_in(runtime_->stream());
      },
      in_step);
}

Result<engine::WorkTimes> WhisperModel::work_times() const {
  return options_.gates.gate != nullptr ? Result<engine::WorkTimes>(work_) : SpeechModel::work_times();
}

Status WhisperModel::run(exec::ShapeKey key, const std::function<Status(exec::Stream&)>& record) {
  return options_.eager || enters_ ? record(runtime_->stream()) : graph_->replay(key, runtime_->stream());
}

engine::Report WhisperModel::report() const {
  const auto number = [](int64_t v) { return std::to_string(v); };
  const auto stack = [&](const Stack& s) {
    return strf("{\"layers\": %ld, \"heads\": %ld, \"mlp\": %ld}", static_cast<long>(s.layers),
                static_cast<long>(s.heads), static_cast<long>(s.mlp));
  };
  return {{"family", engine::json_string(family_)},
          {"device", engine::json_string(runtime_->name())},
          {"precision", engine::json_string(plan_.name)},
          {"forms", forms_of(weights_).json()},
          {"activations", engine::json_string(name(plan_.hidden))},
          {"activations_to_e4m3",
           plan_.eight ? engine::json_string(plan_.fixed ? "calibrated" : "by token") : std::string("null")},
          {"threads", number(runtime_->threads())},
          {"width", number(config_.width)},
          {"encoder", stack(config_.encoder)},
          {"decoder", stack(config_.decoder)},
          {"mels", number(config_.mels)},
          {"vocab", number(config_.vocab)},
          {"multilingual", config_.tokens.multilingual ? "true" : "false"},
          {"languages", number(config_.tokens.languages)},
          {"windows", number(limits_.windows)},
          {"rows", number(limits_.rows)},
          {"decode_layers", engine::json_string(launches_.empty() ? "used" : "launches: " + launches_)},
          {"gates", number(work_.gates)},
          {"encoder_launches", number(static_cast<int64_t>(graph_->executable(sound_key(1))->launches()))},
          {"step_launches", number(static_cast<int64_t>(graph_->executable(step_key(1))->launches()))},
          {"weight_bytes", number(uploader_.bytes())},
          {"arena_bytes", number(arena_.bytes())}};
}

Result<std::unique_ptr<engine::SpeechModel>> load_speech(const std::string& path,
                                                         const engine::SpeechOptions& options) {
  const auto build = [&]() -> Result<std::unique_ptr<engine::SpeechModel>> {
    VV_ASSIGN(engine::Checkpoint checkpoint,
              options.random_weights ? engine::Checkpoint::open_config(path) : engine::Checkpoint::open(path));
    VV_ASSIGN(const engine::Json json, engine::hub_config(checkpoint));
    if (!has_dims(json.root())) {
      VV_ASSIGN(const std::string architecture, engine::architecture(checkpoint));
      if (architecture != "WhisperForConditionalGeneration")
        return Status(Code::kUnsupported,
                      "architecture '" + architecture +
                          "' is no speech model; this version serves WhisperForConditionalGeneration");
    }
    VV_ASSIGN(WhisperConfig config, read_config(checkpoint));
    return load_family<WhisperModel, engine::SpeechModel>(std::move(checkpoint), std::move(config), options);
  };
  auto built = build();
  if (!built.ok()) return std::move(built).status().with_context(path);
  return built;
}

}  // namespace vivace::models::whisper
