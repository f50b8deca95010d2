#include "vivace/models/vla/base.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/engine/json_text.h"
#include "vivace/models/layer/calibration.h"
#include "vivace/models/vla/model.h"
#include "vivace/models/vla/robots.h"
#include "vivace/ops/rope_freqs.h"

namespace vivace::models::vla {
namespace {

using engine::Observation;
using engine::PolicyOptions;

constexpr int kMostViews = 16, kMostBatch = 64, kMostSteps = 1000, kMostHorizon = 1024, kMostWords = 4096,
              kUsualBatch = 8;
constexpr int64_t kMostSide = 16384;  // of a frame

}  // namespace

Status PolicyBase::check_options() {
  VV_ASSIGN(plan_, pick_plan(options_.precision, runtime_->place()));
  if (plan_.eight && config_.has(kSmolVlm))
    return Status(Code::kInvalidArgument,
                  strf("precision: %s has auto, f32, bf16, got '%s'", family_.c_str(), options_.precision.c_str()));
  const auto range = [](const char* what, int value, int most) {
    return value >= 0 && value <= most
               ? Status()
               : Status(Code::kInvalidArgument,
                        strf("%s: wanted 1 to %d, or 0 for the checkpoint's own, got %d", what, most, value));
  };
  VV_TRY(range("num_views", options_.views, kMostViews));
  VV_TRY(range("action_horizon", options_.horizon, kMostHorizon));
  VV_TRY(range("num_steps", options_.steps, kMostSteps));
  VV_TRY(range("prompt_tokens", options_.prompt_tokens, kMostWords));
  VV_TRY(check_expert());
  VV_TRY(check_act_scales(plan_, options_.act_scales, sites().count()));
  if (options_.batch < 1 || options_.batch > kMostBatch)
    return Status(Code::kInvalidArgument, strf("batch: wanted 1 to %d, got %d", kMostBatch, options_.batch));
  const auto own = [](int asked, int64_t fallback) { return asked != 0 ? asked : static_cast<int>(fallback); };
  limits_.views = options_.views;
  limits_.horizon = own(options_.horizon, std::min<int64_t>(config_.horizon, kMostHorizon));
  limits_.steps = own(options_.steps, std::min<int64_t>(config_.steps, kMostSteps));
  limits_.prompt_tokens = own(options_.prompt_tokens, config_.family->prompt_tokens);
  limits_.batch = options_.batch;
  limits_.action_dim = static_cast<int>(config_.action_dim);
  limits_.network_state = static_cast<int>(config_.state_dim);
  limits_.takes_prefix = config_.has(kAdaNorm);
  limits_.takes_state = config_.has(kStateToken) || config_.has(kStateLast);
  if (options_.resize == "auto") options_.resize = config_.lerobot ? "lerobot" : "openpi";
  if (options_.resize != "openpi" && options_.resize != "lerobot")
    return Status(Code::kInvalidArgument, "resize: wanted auto, openpi or lerobot, got '" + options_.resize + "'");
  if (config_.has(kSmolVlm) && options_.resize != "lerobot")
    return Status(Code::kInvalidArgument, "resize: " + family_ + " has auto and lerobot, got 'openpi'");
  return {};
}

Status PolicyBase::check_expert() {
  const std::string& asked = options_.expert;
  if (asked != "bf16" && asked != "e4m3")
    return Status(Code::kInvalidArgument, "expert: wanted bf16 or e4m3, got '" + asked + "'");
  if (asked == "bf16") return {};
  if (!config_.has(kAdaNorm))
    return Status(Code::kInvalidArgument, "expert: " + family_ + " has bf16 alone; only pi05 takes e4m3");
  if (plan_.eight && !plan_.fixed)
    return Status(Code::kInvalidArgument,
                  strf("expert: e4m3 takes its scales from calibration; load with precision fp8_static, got %s",
                       plan_.name));
  plan_.expert = plan_.eight;
  return {};
}

Status PolicyBase::read_scalers() {
  if (options_.statistics != "auto" && options_.statistics != "none")
    return Status(Code::kInvalidArgument, "statistics: wanted auto or none, got '" + options_.statistics + "'");
  if (options_.statistics == "auto") {
    VV_ASSIGN(statistics_, read_statistics(source_.checkpoint(), options_.robot, config_.has(kQuantiles),
                                           config_.state_dim, config_.action_dim));
  }
  limits_.robot_dim = static_cast<int>(statistics_.actions.kind == Scaler::Kind::identity ? config_.action_dim
                                                                                          : statistics_.actions.size());
  limits_.state_dim = static_cast<int>(statistics_.state.kind == Scaler::Kind::identity ? 0 : statistics_.state.size());
  if (limits_.robot_dim > config_.action_dim || limits_.state_dim > config_.state_dim)
    return Status(
        Code::kInvalidArgument,
        strf("statistics: %s has %d actions and %d values of state, the network %ld and %ld; it is of another robot",
             statistics_.source.c_str(), limits_.robot_dim, limits_.state_dim, static_cast<long>(config_.action_dim),
             static_cast<long>(config_.state_dim)));
  if (static_cast<int>(options_.delta.size()) > limits_.robot_dim)
    return Status(Code::kInvalidArgument,
                  strf("delta: the robot has %d actions, got %zu", limits_.robot_dim, options_.delta.size()));
  return {};
}

void PolicyBase::declare_tower(const char* name, const Tower& t, int64_t rows, bool cached, bool eight,
                               TowerBuffers* b) {
  const auto declare = [&](const char* what, DType dtype, Shape shape, Tensor* to) {
    arena_.declare(std::string(name) + "." + what, dtype, shape, to);
  };
  const DType act = plan_.act, f32 = DType::f32;
  declare("hidden", act, Shape(rows, t.width), &b->hidden);
  declare("normed", eight ? DType::e4m3 : act, Shape(rows, t.width), &b->normed);
  declare("qkv", act, Shape(rows, t.qkv_width()), &b->qkv);
  if (cached) declare("q", act, Shape(rows, t.heads, t.head_dim), &b->q);
  declare("attended", act, Shape(rows, t.heads, t.head_dim), &b->attended);
  declare("mlp", act, Shape(rows, t.mlp), &b->mlp);
  if (!eight) return;
  declare("codes", DType::e4m3, Shape(rows, std::max({t.q_width(), t.mlp, padded_patch(config_)})), &b->quantized);
  if (plan_.fixed) return;
  declare("normed_scale", f32, Shape(rows), &b->normed_scale);
  declare("quantized_scale", f32, Shape(rows), &b->quantized_scale);
}

void PolicyBase::declare_context() {
  const PolicyConfig& c = config_;
  const int64_t B = limits_.batch, pictures = B * limits_.views * c.view_patches(),
                M = B * limits_.views * c.view_tokens(), states = c.has(kStateLast) ? 1 : 0,
                T = M + B * (limits_.prompt_tokens + states);
  const int64_t L = limits_.views * c.view_tokens() + limits_.prompt_tokens + states + suffix();
  const DType act = plan_.act, i32 = DType::i32, f32 = DType::f32;
  const DType pixel = options_.resize == "openpi" ? DType::u8 : act;
  arena_.declare("in.pixels", pixel, Shape(B * limits_.views, c.image, c.image, 3), &context_.pixels);
  context_in_.declare(arena_, "in.ids", i32, Shape(T), &context_.ids);
  context_in_.declare(arena_, "in.pos", i32, Shape(T), &context_.pos);
  context_in_.declare(arena_, "in.slot", i32, Shape(T), &context_.slot);
  context_in_.declare(arena_, "in.view_rows", i32, Shape(1), &context_.view_rows);
  context_in_.declare(arena_, "in.rows", i32, Shape(1), &context_.rows);
  context_in_.declare(arena_, "in.length", i32, Shape(B), &context_.length);
  if (c.has(kSmolVlm)) context_in_.declare(arena_, "in.patch_rows", i32, Shape(1), &context_.patch_rows);
  if (c.has(kStateLast)) {
    context_in_.declare(arena_, "in.state", f32, Shape(B, c.state_dim), &context_.state);
    context_in_.declare(arena_, "in.state_place", i32, Shape(B), &context_.state_place);
  }

  PolicyBuffers& b = buffers_;
  const auto declare = [this](const char* name, DType dtype, Shape shape, Tensor* t) {
    arena_.declare(name, dtype, shape, t);
  };
  declare_tower("vision", c.vision, pictures, false, plan_.eight, &b.vision);
  declare_tower("prefix", c.text, T, true, plan_.eight, &b.text);
  declare("patches", act, Shape(pictures, padded_patch(c)), &b.patches);
  declare("view_slot", i32, Shape(pictures), &b.view_slot);
  if (pixel == DType::u8) {
    declare("pixel_scale", f32, Shape(3), &b.pixel_scale);
    declare("pixel_offset", f32, Shape(3), &b.pixel_offset);
  }
  if (plan_.fixed) declare("act_scales", f32, Shape(sites().count()), &b.act_scales);
  declare("inv_freq", f32, Shape(c.text.head_dim / 2), &b.inv_freq);
  if (c.has(kSmolVlm)) {
    declare("shuffle", i32, Shape(pictures), &b.shuffle);
    declare("in_order", i32, Shape(M), &b.in_order);
    declare("connected", act, Shape(M, c.text.width), &b.connected);
  }
  const auto layers = static_cast<size_t>(c.text.layers);
  if (c.has(kCrosses)) b.cross_k.resize(layers), b.cross_v.resize(layers);
  b.k_cache.resize(layers);
  b.v_cache.resize(layers);
  for (size_t i = 0; i < layers; ++i) {
    arena_.declare(strf("k_cache.%zu", i), act, Shape(B, L, c.text.kv_heads, c.text.head_dim), &b.k_cache[i]);
    arena_.declare(strf("v_cache.%zu", i), act, Shape(B, L, c.text.kv_heads, c.text.head_dim), &b.v_cache[i]);
    if (!c.crosses(i)) continue;
    arena_.declare(strf("cross_k.%zu", i), act, Shape(B, L, c.text.kv_heads, c.text.head_dim), &b.cross_k[i]);
    arena_.declare(strf("cross_v.%zu", i), act, Shape(B, L, c.text.kv_heads, c.text.head_dim), &b.cross_v[i]);
  }
}

Status PolicyBase::fill_constants() {
  VV_ASSIGN(const ops::RopeFreqs freqs, ops::rope_freqs(config_.rope_theta, config_.text.head_dim, {}));
  std::vector<int32_t> slots(static_cast<size_t>(buffers_.view_slot.shape[0]));
  for (size_t i = 0; i < slots.size(); ++i)
    slots[i] = static_cast<int32_t>(static_cast<int64_t>(i) / config_.view_patches());
  const engine::Upload both[] = {{buffers_.inv_freq.data, freqs.inv_freq.data(), freqs.inv_freq.size() * sizeof(float)},
                                 {buffers_.view_slot.data, slots.data(), slots.size() * sizeof(int32_t)}};
  VV_TRY(runtime_->upload(both));
  if (plan_.fixed) {
    const engine::Upload scales[] = {
        {buffers_.act_scales.data, options_.act_scales.data(), options_.act_scales.size() * sizeof(float)}};
    VV_TRY(runtime_->upload(scales));
  }
  if (config_.has(kSmolVlm)) {
    std::vector<int32_t> shuffle, in_order(static_cast<size_t>(buffers_.in_order.shape[0]));
    const int64_t s = config_.shuffle, side = config_.image / config_.patch;
    for (int64_t v = 0; v < limits_.batch * limits_.views; ++v)
      for (int64_t token = 0; token < config_.view_tokens(); ++token)
        for (int64_t k = 0; k < s * s; ++k) {
          const int64_t line = token / (side / s) * s + k / s, column = token % (side / s) * s + k % s;
          shuffle.push_back(static_cast<int32_t>(v * config_.view_patches() + line * side + column));
        }
    for (size_t i = 0; i < in_order.size(); ++i) in_order[i] = static_cast<int32_t>(i);
    const engine::Upload orders[] = {{buffers_.shuffle.data, shuffle.data(), shuffle.size() * sizeof(int32_t)},
                                     {buffers_.in_order.data, in_order.data(), in_order.size() * sizeof(int32_t)}};
    VV_TRY(runtime_->upload(orders));
  }
  if (!buffers_.pixel_scale.present()) return {};
  constexpr float kScale[] = {2.0f / 255, 2.0f / 255, 2.0f / 255}, kOffset[] = {-1, -1, -1};
  const engine::Upload pixels[] = {{buffers_.pixel_scale.data, kScale, sizeof(kScale)},
                                   {buffers_.pixel_offset.data, kOffset, sizeof(kOffset)}};
  return runtime_->upload(pixels);
}

Status PolicyBase::load() {
  if (options_.random_weights) options_.statistics = "none";
  VV_TRY(open());
  phase("device");
  VV_TRY(check_options());
  VV_TRY(read_scalers());
  if (robot_ = robot_of(statistics_.source); robot_.empty()) robot_ = "any";
  if (limits_.views == 0)
    limits_.views = robot_ != "any"           ? Robot::slots(robot_, config_.has(kCodes))
                    : config_.cameras.empty() ? 3
                                              : static_cast<int>(std::min<size_t>(config_.cameras.size(), kMostViews));
  // openpi trained its pi0.5 for LIBERO without the state in the prompt, and its checkpoint does not say so.
  if (robot_ == "libero" && !config_.lerobot) config_.state_words = false;
  limits_.sees_state = limits_.takes_state || (config_.has(kStateInPrompt) && config_.state_words);
  VV_TRY(check_own());
  engine::WeightUploader tables;
  std::vector<std::unique_ptr<std::byte[]>> own;
  VV_TRY(load_weights(source_, config_, plan_, limits_.views, limits_.batch, &uploader_, &tables, &own, &weights_));
  declare_context();
  declare_own();
  VV_TRY(
      check_fit("policy", uploader_.bytes() + tables.bytes(), "lower num_views or batch, or use a smaller precision"));
  VV_TRY(uploader_.commit(*runtime_));
  VV_TRY(tables.commit(*runtime_));
  phase("weights");
  VV_TRY(arena_.commit(*runtime_));
  VV_TRY(context_in_.open(*runtime_, "context inputs"));
  // Room for the frames of a usual call; larger ones find it when they come.
  VV_TRY(images_.open(*runtime_, context_.pixels,
                      options_.resize == "openpi" ? Resize::openpi
                      : config_.has(kSmolVlm)     ? Resize::smolvla
                                                  : Resize::lerobot,
                      limits_.views * std::min(limits_.batch, kUsualBatch)));
  VV_TRY(fill_constants());
  units_.resize(static_cast<size_t>(limits_.batch) * static_cast<size_t>(limits_.horizon * limits_.robot_dim));
  phase("arena");
  VV_TRY(start());
  phase("tables");
  VV_TRY(capture());
  phase("graphs");
  return close_load();
}

Status PolicyBase::record_launches(exec::Stream& s, bool) const {
  ops::Recorder rec(s, ops::Weights::constant);
  engine::GateMarks marks = this->marks(true);
  PolicyContext c = context();
  c.gates = &marks;
  return record_context(rec, c, context_);
}

Status PolicyBase::record_context_graph(exec::Stream& s) const {
  VV_TRY(context_in_.copy_in(s));
  return record_launches(s, true);
}

Status PolicyBase::capture() {
  const size_t bound = 2 * static_cast<size_t>(runtime_->variants());
  context_graph_ = std::make_unique<exec::Graph>("context", bound);
  own_graph_ = std::make_unique<exec::Graph>(config_.has(kFlow) ? "actions" : "codes", bound);
  return for_each_variant([this] { return capture_variant(); });
}

Status PolicyBase::capture_variant() {
  exec::Stream& stream = runtime_->stream();
  // A dry run without rows sizes every scratch area and loads every kernel, which a capture must not do.
  full_ = false;
  VV_TRY(record_context_graph(stream));
  VV_TRY(record_own(stream));
  VV_TRY(stream.synchronize());
  for (const bool full : {false, true}) {
    full_ = full;
    VV_TRY(context_graph_->capture(form(true, full), stream, [&](exec::Stream& s) { return record_context_graph(s); }));
  }
  VV_TRY(own_graph_->capture(first_form(), stream, [&](exec::Stream& s) { return record_own(s); }));
  return captured();
}

Status PolicyBase::check(const Observation& o, size_t i) const {
  if (o.views.size() != static_cast<size_t>(limits_.views))
    return bad(i, Code::kInvalidArgument,
               strf("wanted a frame, or none, for each of %d cameras, got %zu; load with num_views", limits_.views,
                    o.views.size()));
  if (std::none_of(o.views.begin(), o.views.end(), [](const engine::Frame& f) { return f.data != nullptr; }))
    return bad(i, Code::kInvalidArgument, "no camera is on");
  for (const engine::Frame& f : o.views)
    if (f.data != nullptr && (f.height < 1 || f.width < 1 || f.height > kMostSide || f.width > kMostSide ||
                              f.plane < 0 || f.stride < (f.plane == 0 ? f.width * 3 : f.width)))
      return bad(i, Code::kInvalidShape,
                 strf("a frame has 1 to %ld rows and columns of RGB, got %ld x %ld with %ld bytes a row",
                      static_cast<long>(kMostSide), static_cast<long>(f.height), static_cast<long>(f.width),
                      static_cast<long>(f.stride)));
  if (o.tokens.size() > static_cast<size_t>(limits_.prompt_tokens))
    return bad(
        i, Code::kLimitExceeded,
        strf("the prompt has %zu tokens, at most %d; load with prompt_tokens", o.tokens.size(), limits_.prompt_tokens));
  for (const int32_t t : o.tokens)
    if (t < 0 || t >= config_.vocab)
      return bad(i, Code::kInvalidArgument,
                 strf("token %d is outside the vocabulary [0, %ld)", t, static_cast<long>(config_.vocab)));
  if (o.embodiment >= 0)
    return bad(i, Code::kInvalidArgument,
               strf("embodiment: %s is of one kind of robot, got %d", family_.c_str(), o.embodiment));
  if (!o.prev_actions.empty() || o.overlap != 0 || o.frozen != 0)
    return bad(i, Code::kUnsupported, "prev_actions: " + family_ + " continues a chunk by action_prefix");
  const bool adds = std::find(options_.delta.begin(), options_.delta.end(), true) != options_.delta.end();
  if (o.state.empty() && (limits_.takes_state || adds))
    return bad(
        i, Code::kInvalidArgument,
        limits_.takes_state ? "this policy reads the state; give it" : "actions are steps from the state; give it");
  if (!o.state.empty() && (limits_.state_dim > 0 ? o.state.size() != static_cast<size_t>(limits_.state_dim)
                                                 : o.state.size() > static_cast<size_t>(config_.state_dim)))
    return bad(i, Code::kInvalidShape,
               strf("the state has %zu values, wanted %d", o.state.size(),
                    limits_.state_dim > 0 ? limits_.state_dim : static_cast<int>(config_.state_dim)));
  if (adds && o.state.size() < options_.delta.size())
    return bad(i, Code::kInvalidShape,
               strf("the state has %zu values, actions are steps from %zu", o.state.size(), options_.delta.size()));
  if (!std::all_of(o.state.begin(), o.state.end(), [](float v) { return std::isfinite(v); }))
    return bad(i, Code::kInvalidArgument, "state is not finite");
  if (limits_.takes_state)
    for (size_t d = 0; d < o.state.size(); ++d)
      if (!std::isfinite(statistics_.state.normalize(o.state[d], d)))
        return bad(i, Code::kInvalidArgument,
                   strf("state: value %zu is %g, which is not finite once it is normalised", d,
                        static_cast<double>(o.state[d])));
  return check_own(o, i);
}

Status PolicyBase::write(std::span<const Observation> observations) {
  const int64_t n = config_.view_tokens();
  auto *const ids = context_in_.host<int32_t>(context_.ids), *const pos = context_in_.host<int32_t>(context_.pos),
              *const slot = context_in_.host<int32_t>(context_.slot);
  size_t bytes = 0;
  for (const Observation& o : observations)
    for (const engine::Frame& f : o.views)
      if (f.data != nullptr) bytes += static_cast<size_t>(f.height * f.width * 3);
  VV_TRY(images_.begin(bytes));
  int64_t row = 0;
  const auto place = [&](int32_t id, int64_t at, size_t whose) {
    ids[row] = id;
    pos[row] = static_cast<int32_t>(at);
    slot[row++] = static_cast<int32_t>(whose);
  };
  // Where states are tokens, theirs come first, one an observation, also of those that nobody asked for.
  const int64_t states = config_.has(kStateLast) ? limits_.batch : 0;
  for (int64_t b = 0; b < states; ++b) place(0, 0, static_cast<size_t>(b));
  for (size_t b = 0; b < observations.size(); ++b) {
    int64_t at = 0;
    for (const engine::Frame& f : observations[b].views) {
      if (f.data == nullptr) continue;
      VV_TRY(images_.add(f));
      for (int64_t i = 0; i < n; ++i) place(0, at++, b);
    }
  }
  VV_TRY(images_.scale());  // while it does, the rest is written
  const int64_t pictures = row - states, square = config_.shuffle * config_.shuffle;
  context_in_.host<int32_t>(context_.view_rows)[0] = static_cast<int32_t>(pictures);
  if (config_.has(kSmolVlm))
    context_in_.host<int32_t>(context_.patch_rows)[0] = static_cast<int32_t>(pictures * square);
  full_ = pictures * square == buffers_.view_slot.shape[0];
  for (size_t b = 0; b < static_cast<size_t>(limits_.batch); ++b) {
    const Observation& o = observations[std::min(b, observations.size() - 1)];
    int64_t at =
        std::count_if(o.views.begin(), o.views.end(), [](const engine::Frame& f) { return f.data != nullptr; }) * n;
    if (b < observations.size())
      for (const int32_t t : o.tokens) place(t, at++, b);
    if (states > 0) {
      context_in_.host<int32_t>(context_.state_place)[b] = b < observations.size() ? static_cast<int32_t>(at) : 0;
      if (b < observations.size()) pos[b] = static_cast<int32_t>(at++);
      float* const state = context_in_.host<float>(context_.state) + static_cast<int64_t>(b) * config_.state_dim;
      std::fill_n(state, config_.state_dim, 0.0f);
      for (size_t i = 0; i < o.state.size(); ++i) state[i] = statistics_.state.normalize(o.state[i], i);
    }
    // Slots that nobody asked for run over an empty prefix; their actions are dropped.
    const int64_t prefix = b < observations.size() ? at : 0;
    context_in_.host<int32_t>(context_.length)[b] = static_cast<int32_t>(prefix);
    write_own(o, static_cast<int64_t>(b), prefix);
  }
  context_in_.host<int32_t>(context_.rows)[0] = static_cast<int32_t>(row);
  return {};
}

Status PolicyBase::prepare(std::span<const Observation> observations) {
  answered_ = 0;
  if (runtime_->place() == Place::host) VV_TRY(source_.check_files());
  if (observations.empty() || observations.size() > static_cast<size_t>(limits_.batch))
    return Status(Code::kInvalidArgument, strf("predict: wanted 1 to %d observations, got %zu; load with batch",
                                               limits_.batch, observations.size()));
  for (size_t i = 0; i < observations.size(); ++i) VV_TRY(check(observations[i], i));
  return settled(write(observations));
}

Status PolicyBase::settled(Status status) {
  if (!status.ok()) static_cast<void>(runtime_->stream().synchronize());
  return status;
}

Status PolicyBase::predict(std::span<const Observation> observations, std::span<float> actions) {
  const int64_t n = limits_.horizon, D = limits_.action_dim, R = limits_.robot_dim;
  answered_ = 0;
  if (const size_t want = observations.size() * static_cast<size_t>(n * R); actions.size() != want)
    return Status(Code::kInvalidShape, strf("predict: wanted room for %zu values, got %zu", want, actions.size()));
  VV_TRY(prepare(observations));
  const auto ran = run(observations.size());
  VV_TRY(settled(ran.status()));
  const std::span<const float> x = *ran;
  if (runtime_->place() == Place::host) VV_TRY(source_.check_lost());
  if (!std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); }))
    return Status(Code::kCorruptData,
                  "predict: the network's actions are not finite: the checkpoint is broken, or an input lies far "
                  "outside what it was trained on; no action was given");
  for (int64_t row = 0; row < static_cast<int64_t>(observations.size()) * n; ++row)
    for (int64_t d = 0; d < R; ++d) {
      const float normal = x[static_cast<size_t>(row * D + d)];
      float v = statistics_.actions.unnormalize(normal, static_cast<size_t>(d));
      if (d < static_cast<int64_t>(options_.delta.size()) && options_.delta[static_cast<size_t>(d)])
        v += observations[static_cast<size_t>(row / n)].state[static_cast<size_t>(d)];
      if (!std::isfinite(v))  // the robot's units are what leaves
        return Status(
            Code::kCorruptData,
            strf("predict: action %ld of observation %ld, dimension %ld: %g of the network is %g in the robot's units: "
                 "the checkpoint is broken, or an input lies far outside what it was trained on; no action was given",
                 static_cast<long>(row % n), static_cast<long>(row / n), static_cast<long>(d),
                 static_cast<double>(normal), static_cast<double>(v)));
      units_[static_cast<size_t>(row * R + d)] = v;
    }
  std::copy_n(units_.begin(), actions.size(), actions.begin());
  answered_ = observations.size();
  return {};
}

Result<std::span<const float>> PolicyBase::normalized(int i) const {
  if (answered_ == 0) return Status(Code::kFailedPrecondition, "normalized: no predict() ended well before");
  if (i < 0 || static_cast<size_t>(i) >= answered_)
    return Status(Code::kInvalidArgument,
                  strf("normalized: observation %d is outside the %zu of the last predict()", i, answered_));
  const size_t one = static_cast<size_t>(limits_.horizon * limits_.action_dim);
  return std::span<const float>(answers() + static_cast<size_t>(i) * one, one);
}

Result<std::vector<float>> PolicyBase::normalized_state(std::span<const float> state) const {
  if (limits_.state_dim > 0 && state.size() != static_cast<size_t>(limits_.state_dim))
    return Status(Code::kInvalidShape, strf("the state has %zu values, wanted %d", state.size(), limits_.state_dim));
  std::vector<float> out;
  for (size_t i = 0; i < state.size(); ++i) out.push_back(statistics_.state.normalize(state[i], i));
  return out;
}

Status PolicyBase::observe_context(const Show& show) {
  ops::Recorder rec(runtime_->stream(), ops::Weights::constant);
  VV_TRY(context_in_.copy_in(runtime_->stream()));
  VV_TRY(record_context(rec, context(show), context_));
  for (size_t i = 0; i < buffers_.k_cache.size(); ++i) {
    VV_TRY(show("k_cache", static_cast<int>(i), buffers_.k_cache[i]));
    VV_TRY(show("v_cache", static_cast<int>(i), buffers_.v_cache[i]));
  }
  return {};
}

Result<std::vector<float>> PolicyBase::calibrate(std::span<const Observation> observations, double percentile) {
  if (config_.has(kSmolVlm)) return Status(Code::kUnsupported, "calibrate: " + family_ + " has no plan in 8 bits");
  VV_TRY(check_calibration(plan_, observations.size(), percentile));
  Calibration calibration(sites().count());
  const Enters enters = [&](int64_t place, const Tensor& x, const Tensor& rows) -> Status {
    int64_t valid = x.shape[0];
    for (const Tensor* count : {&context_.view_rows, &context_.rows})
      if (rows.data == count->data) valid = context_in_.host<int32_t>(*count)[0];
    return calibration.see(runtime_->stream(), place, x, valid);
  };
  for (const Observation& o : observations) {
    VV_TRY(prepare({&o, 1}));
    calibration.begin();
    VV_TRY(calibrate_one(enters));
  }
  return calibration.scales(percentile);
}

Status PolicyBase::set_act_scales(std::span<const float> scales) {
  return upload_act_scales(*runtime_, plan_, scales, sites().count(), buffers_.act_scales);
}

Result<engine::Profile> PolicyBase::profile(Stage stage, bool in_step) {
  const auto record = [&](exec::Stream& s) -> Status {
    if (stage != Stage::actions) VV_TRY(record_launches(s, true));
    return stage != Stage::context ? record_launches(s, false) : Status();
  };
  return engine::profile(*runtime_, record, [&] { return runtime_->stream().synchronize(); }, in_step);
}

Result<engine::WorkTimes> PolicyBase::place_gates() {
  if (options_.gates.gate == nullptr)
    return Status(Code::kFailedPrecondition, "place_gates: nobody schedules this policy");
  gating_ = true;
  engine::WorkTimes work;  // the worst of what it may run on
  Status planned = for_each_variant([&]() -> Status {
    VV_ASSIGN(const engine::WorkTimes here,
              engine::plan_call(*runtime_, options_.gates.stretch_us, gates_[runtime_->variant()],
                                [&](exec::Stream& stream, size_t i) { return record_launches(stream, i == 0); }));
    work.take_worst(here);
    return {};
  });
  gating_ = false;
  VV_TRY(std::move(planned));
  planned_ = true;
  uncapture();
  VV_TRY(capture());
  return work;
}

engine::Report PolicyBase::report() const {
  const auto number = [](int64_t v) { return std::to_string(v); };
  const auto tower = [&](const Tower& t) {
    return strf("{\"width\": %ld, \"layers\": %ld, \"mlp\": %ld, \"heads\": %ld, \"kv_heads\": %ld, \"head_dim\": %ld}",
                static_cast<long>(t.width), static_cast<long>(t.layers), static_cast<long>(t.mlp),
                static_cast<long>(t.heads), static_cast<long>(t.kv_heads), static_cast<long>(t.head_dim));
  };
  std::string cameras = "[";
  for (const std::string& c : config_.cameras) cameras += (cameras.size() > 1 ? ", " : "") + engine::json_string(c);
  cameras += "]";
  return {{"family", engine::json_string(family_)},
          {"device", engine::json_string(runtime_->name())},
          {"precision", engine::json_string(plan_.name)},
          {"forms", forms_of(weights_).json()},
          {"activations", engine::json_string(name(plan_.act))},
          {"activations_to_e4m3", plan_.eight ? engine::json_string(plan_.fixed ? "calibrated" : "by token") : "null"},
          {"threads", number(runtime_->threads())},
          {"multiprocessors", number(runtime_->multiprocessors())},
          {"resize", engine::json_string(options_.resize)},
          {"statistics", engine::json_string(statistics_.source)},
          {"robot", engine::json_string(robot_)},
          {"cameras", cameras},
          {"state_in_prompt", config_.has(kStateInPrompt) && config_.state_words ? "true" : "false"},
          {"vision", tower(config_.vision)},
          {"text", tower(config_.text)},
          {"expert", tower(config_.expert)},
          {"vocab", number(config_.vocab)},
          {"num_views", number(limits_.views)},
          {"action_horizon", number(limits_.horizon)},
          {"num_steps", number(limits_.steps)},
          {"batch", number(limits_.batch)},
          {"prompt_tokens", number(limits_.prompt_tokens)},
          {"action_dim", number(limits_.action_dim)},
          {"robot_dim", number(limits_.robot_dim)},
          {"state_dim", number(limits_.state_dim)},
          {"switches", runtime_->variants() > 1 ? "true" : "false"},
          {"gates", number(gates_[0][0].gates + gates_[0][1].gates)},
          {"context_launches", number(static_cast<int64_t>(context_graph_->executable(first_form())->launches()))},
          {"action_launches", number(static_cast<int64_t>(own_graph_->executable(first_form())->launches()))},
          {"weight_bytes", number(uploader_.bytes())},
          {"arena_bytes", number(arena_.bytes())},
          {"load_s", phases_json()}};
}

std::vector<engine::MemoryLine> PolicyBase::memory() const {
  std::vector<engine::MemoryLine> lines = ModelBase::memory();
  lines.insert(lines.begin() + 1, {"frames", static_cast<int64_t>(images_.bytes())});
  return lines;
}

const char* policy_family(const engine::Checkpoint& checkpoint) {
  const Family* const family = family_of(checkpoint);
  return family != nullptr ? family->name : nullptr;
}

Result<std::unique_ptr<engine::PolicyModel>> load_policy(engine::Checkpoint checkpoint, const PolicyOptions& options) {
  if (options.embodiment >= 0)
    return Status(Code::kInvalidArgument,
                  "embodiment: the checkpoint is of one kind of robot; this is an option of GR00T's");
  VV_ASSIGN(PolicyConfig config, read_config(checkpoint, options));
  std::unique_ptr<PolicyBase> policy =
      (config.has(kFlow) ? make_flow : make_fast)(std::move(checkpoint), std::move(config), options);
  VV_TRY(policy->load());
  return std::unique_ptr<engine::PolicyModel>(std::move(policy));
}

}  // namespace vivace::models::vla
