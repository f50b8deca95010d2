// Loading: options checked, weights placed, memory reserved once, both graphs captured.
#include "vivace/models/groot/model.h"

#include <algorithm>
#include <cmath>

#include "vivace/base/check.h"
#include "vivace/engine/json_text.h"
#include "vivace/models/groot/groot_model.h"
#include "vivace/models/layer/calibration.h"
#include "vivace/models/layer/config_values.h"
#include "vivace/ops/rope_freqs.h"

namespace vivace::models::groot {
namespace {

constexpr int kMostViews = 16, kMostBatch = 64, kMostSteps = 1000, kMostHorizon = 1024, kMostWords = 4096,
              kUsualWords = 128;

}  // namespace

Status GrootModel::check_options() {
  for (const auto& [what, given] : {std::pair{"codec", !options_.codec.empty()},
                                    {"max_action_tokens", options_.max_action_tokens != 0},
                                    {"expert", options_.expert != "bf16"},
                                    {"delta", !options_.delta.empty()}})
    if (given) return Status(Code::kInvalidArgument, std::string(what) + ": not an option of " + family_);
  VV_TRY(read_frames());
  VV_ASSIGN(plan_, pick_plan(options_.precision, runtime_->place()));
  VV_TRY(check_act_scales(plan_, options_.act_scales, QuantizationSites(config_).count()));
  const auto range = [](const char* what, int value, int64_t most) {
    return value >= 0 && value <= most
               ? Status()
               : Status(Code::kInvalidArgument, strf("%s: wanted 1 to %ld, or 0 for the checkpoint's own, got %d", what,
                                                     static_cast<long>(most), value));
  };
  VV_TRY(range("num_views", options_.views, kMostViews));
  VV_TRY(range("action_horizon", options_.horizon, std::min<int64_t>(config_.positions, kMostHorizon)));
  VV_TRY(range("num_steps", options_.steps, kMostSteps));
  VV_TRY(range("prompt_tokens", options_.prompt_tokens, kMostWords));
  if (options_.batch < 1 || options_.batch > kMostBatch)
    return Status(Code::kInvalidArgument, strf("batch: wanted 1 to %d, got %d", kMostBatch, options_.batch));
  const auto own = [](int asked, int64_t fallback) { return asked != 0 ? asked : static_cast<int>(fallback); };
  limits_.views =
      own(options_.views,
          config_.cameras.empty() ? 2 : static_cast<int64_t>(std::min<size_t>(config_.cameras.size(), kMostViews)));
  limits_.horizon = own(options_.horizon, std::min<int64_t>(config_.horizon, kMostHorizon));
  horizon_ = limits_.horizon;
  limits_.steps = own(options_.steps, std::min<int64_t>(config_.steps, kMostSteps));
  limits_.prompt_tokens = own(options_.prompt_tokens, kUsualWords);
  limits_.batch = options_.batch;
  limits_.action_dim = static_cast<int>(config_.action_dim);
  limits_.network_state = static_cast<int>(config_.state_dim);
  limits_.takes_state = limits_.sees_state = true;
  limits_.embodiments = static_cast<int>(config_.embodiments);
  limits_.image_token = static_cast<int>(config_.image_token);
  limits_.image_height = config_.image_height, limits_.image_width = config_.image_width;
  return read_embodiment();
}

Status GrootModel::read_frames() {
  VV_ASSIGN(const FrameRules rules, read_frame_rules(source_.checkpoint(), config_, options_.resize));
  scaler_ = FrameScaler(rules);
  if (!scaler_.on()) return {};
  // What keeps its shape may be as wide as cameras of 16 : 9 are.
  const bool wide = rules.kind == FrameRules::Kind::area && !rules.letterbox;
  const int64_t edge = wide ? rules.edge : 1;
  FrameScaler::Size most{config_.image_height, config_.image_width};
  for (int64_t width = edge; width <= (wide ? edge * 16 / 9 : edge); ++width) {
    const auto size = scaler_.size(edge, width, int64_t{kMostSide} * kMostSide);
    if (!size.has_value() || size->height > kMostSide || size->width > kMostSide)
      return Status(Code::kCorruptData,
                    strf("processor_config.json: images become more than %ld pixels high or wide",
                         static_cast<long>(kMostSide)));
    if (size->height * size->width > most.height * most.width) most = *size;
  }
  config_.image_height = most.height, config_.image_width = most.width;
  return {};
}

Status GrootModel::read_embodiment() {
  if (options_.statistics != "auto" && options_.statistics != "none")
    return Status(Code::kInvalidArgument, "statistics: wanted auto or none, got '" + options_.statistics + "'");
  if (options_.embodiment < -1 || options_.embodiment >= config_.embodiments)
    return Status(Code::kInvalidArgument, strf("embodiment: wanted 0 to %ld, or -1 for all of them, got %d",
                                               static_cast<long>(config_.embodiments - 1), options_.embodiment));
  limits_.robot_dim = static_cast<int>(config_.action_dim);
  int only = options_.embodiment;
  if (!options_.robot.empty() && !options_.random_weights) {
    VV_ASSIGN(only, embodiment_of(source_.checkpoint(), options_.robot));
    if (options_.embodiment >= 0 && only != options_.embodiment)
      return Status(Code::kInvalidArgument,
                    strf("embodiment: %s is number %d, got %d too", options_.robot.c_str(), only, options_.embodiment));
  }
  if (options_.statistics == "auto") {
    VV_ASSIGN(statistics_, read_statistics(source_.checkpoint(), options_.robot, only));
    only = statistics_.embodiment;
    if (statistics_.network_state > config_.state_dim || statistics_.actions.dims > config_.action_dim)
      return Status(Code::kInvalidArgument,
                    strf("statistics: %s has %ld actions and %ld values of state, the network %ld and %ld",
                         statistics_.tag.c_str(), static_cast<long>(statistics_.actions.dims),
                         static_cast<long>(statistics_.network_state), static_cast<long>(config_.action_dim),
                         static_cast<long>(config_.state_dim)));
    limits_.state_dim = static_cast<int>(statistics_.state.dims);
    limits_.robot_dim = static_cast<int>(statistics_.actions.dims);
    if (statistics_.horizon > 0)
      limits_.horizon = static_cast<int>(std::min<int64_t>(limits_.horizon, statistics_.horizon));
    if (config_.cameras.empty()) config_.cameras = statistics_.cameras;
    if (options_.views == 0 && !config_.cameras.empty())
      limits_.views = static_cast<int>(std::min<size_t>(config_.cameras.size(), kMostViews));
  }
  if (only >= config_.embodiments)
    return Status(Code::kCorruptData, strf("embodiment_id.json: number %d, the network has %ld", only,
                                           static_cast<long>(config_.embodiments)));
  for (int e = 0; e < limits_.embodiments; ++e)
    if (only < 0 || e == only) slots_.push_back(e);
  limits_.embodiment = slots_[0];
  // A step of the chunk before is another action once the state that it is a step from has moved.
  limits_.takes_prefix = !statistics_.relative();
  return {};
}

void GrootModel::declare_context() {
  const GrootConfig& c = config_;
  const int64_t B = limits_.batch, V = B * limits_.views, P = V * c.view_patches(), M = P / c.vision.token_patches(),
                T = M + B * limits_.prompt_tokens, H = c.text.width;
  const DType act = plan_.act, i32 = DType::i32, f32 = DType::f32;
  const auto in = [&](const char* name, DType dtype, Shape shape, Tensor* t) {
    seen_in_.declare(arena_, name, dtype, shape, t);
  };
  in("in.pixels", DType::u8, Shape(P, c.vision.patch, c.vision.patch, 3), &seen_.images.pixels);
  for (auto& [name, t, n] : {std::tuple{"in.patch_line", &seen_.images.line, P},
                             {"in.patch_column", &seen_.images.column, P},
                             {"in.view", &seen_.images.image, P},
                             {"in.view_offsets", &seen_.images.image_offsets, V + 1},
                             {"in.words", &seen_.words, T},
                             {"in.source", &seen_.source, T},
                             {"in.level", &seen_.level, T},
                             {"in.turn_time", &seen_.turn[0], T},
                             {"in.turn_line", &seen_.turn[1], T},
                             {"in.turn_column", &seen_.turn[2], T},
                             {"in.place", &seen_.place, T},
                             {"in.slot", &seen_.slot, T},
                             {"in.offsets", &seen_.offsets, B + 1},
                             {"in.text_rows", &seen_.text_rows, T},
                             {"in.image_rows", &seen_.image_rows, M},
                             {"in.text_offsets", &seen_.text_offsets, B + 1},
                             {"in.image_offsets", &seen_.image_offsets, B + 1},
                             {"in.patches", &seen_.images.patches, int64_t{1}},
                             {"in.tokens", &seen_.images.tokens, int64_t{1}},
                             {"in.rows", &seen_.rows, int64_t{1}},
                             {"in.texts", &seen_.texts, int64_t{1}}})
    in(name, i32, Shape(n), t);
  GrootBuffers& b = buffers_;
  const auto declare = [&](const std::string& name, DType dtype, Shape shape, Tensor* t) {
    arena_.declare(name, dtype, shape, t);
  };
  vision::declare_buffers(arena_, c.vision, P, act, &b.vision, &plan_);
  declare_stack(arena_, "text", c.text, T, act, true, &b.text, &plan_);
  if (c.adapter.layers > 0)
    declare_stack(arena_, "adapter", c.adapter, T, act, false, &b.adapter, &plan_);
  else declare("adapter.hidden", act, Shape(T, H), &b.adapter.hidden);
  for (int i = 0; i < 3; ++i) declare(strf("turn_freq.%d", i), f32, Shape(c.text.head_dim / 2), &b.turn_freq[i]);
  declare("mixed", act, Shape(M + T, H), &b.mixed);
  b.deepstack.resize(c.vision.deepstack.size());
  for (size_t i = 0; i < b.deepstack.size(); ++i)
    declare(strf("deepstack.%zu", i), act, Shape(M + 1, H), &b.deepstack[i]);
  declare("branch", act, Shape(T, H), &b.branch);
  declare("text_features", act, Shape(T, H), &b.text_features);
  declare("image_features", act, Shape(M, H), &b.image_features);
  if (plan_.eight)
    for (auto& [name, codes, rows] : {std::tuple{"text_codes", &b.text_codes, T}, {"image_codes", &b.image_codes, M}}) {
      declare(name, DType::e4m3, Shape(rows, H), &codes->quantized);
      if (!plan_.fixed) declare(std::string(name) + ".scale", f32, Shape(rows), &codes->quantized_scale);
    }
  if (plan_.fixed) declare("act_scales", f32, Shape(QuantizationSites(c).count()), &b.act_scales);
  b.cross_k.resize(static_cast<size_t>(c.dit.layers + 1) / 2);
  b.cross_v.resize(b.cross_k.size());
  for (size_t i = 0; i < b.cross_k.size(); ++i) {
    const Shape keys(1, c.sees_text(2 * static_cast<int64_t>(i)) ? T : M, c.dit.heads, c.dit.head_dim);
    declare(strf("cross_k.%zu", i), act, keys, &b.cross_k[i]);
    declare(strf("cross_v.%zu", i), act, keys, &b.cross_v[i]);
  }
}

void GrootModel::declare_actions() {
  const GrootConfig& c = config_;
  const int64_t B = limits_.batch, n = horizon_, R = B * (1 + n), D = c.dit.width;
  const DType act = plan_.act, f32 = DType::f32;
  acted_in_.declare(arena_, "actions.x", f32, Shape(B * n, c.action_dim), &acted_.x);
  acted_in_.declare(arena_, "actions.step_size", f32, Shape(B * n, c.action_dim), &acted_.step_size);
  acted_in_.declare(arena_, "actions.state", f32, Shape(B, c.state_dim), &acted_.state);
  GrootBuffers& b = buffers_;
  const auto declare = [&](const std::string& name, DType dtype, Shape shape, Tensor* t) {
    arena_.declare(name, dtype, shape, t);
  };
  declare_stack(arena_, "dit", c.dit, R, act, false, &b.dit);
  declare("action_slot", DType::i32, Shape(R), &b.action_slot);
  b.scale.resize(static_cast<size_t>(c.dit.layers));
  b.shift.resize(b.scale.size());
  for (size_t i = 0; i < b.scale.size(); ++i) {
    declare(strf("scale.%zu", i), act, Shape(limits_.steps, D), &b.scale[i]);
    declare(strf("shift.%zu", i), act, Shape(limits_.steps, D), &b.shift[i]);
  }
  declare("out_scale", act, Shape(limits_.steps, D), &b.out_scale);
  declare("out_shift", act, Shape(limits_.steps, D), &b.out_shift);
  declare("state_inner", act, Shape(B, c.hidden), &b.state_inner);
  declare("state_features", act, Shape(B, D), &b.state_features);
  declare("action_in", act, Shape(B * n, D), &b.action_in);
  declare("action_mid", act, Shape(B * n, D), &b.action_mid);
  declare("out", act, Shape(R, c.dit_out), &b.out);
  declare("decoded", act, Shape(B * n, c.hidden), &b.decoded);
  declare("shown", f32, Shape(n, std::max(D, c.action_dim)), &b.shown);
}

void GrootModel::declare_embodiments() {
  const Shape table(limits_.steps, config_.dit.width);
  buffers_.time_bias.resize(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i)
    arena_.declare(strf("time_bias.%d", slots_[i]), DType::f32, table, &buffers_.time_bias[i]);
  active_.resize(static_cast<size_t>(limits_.batch));
  taken_.assign(active_.size(), -1);
  for (size_t b = 0; b < active_.size(); ++b) {
    arena_.declare(strf("embodiment.%zu.time_bias", b), DType::f32, table, &active_[b].time_bias);
    for (size_t i = 0; i < std::size(kOwn); ++i) {
      const Linear& like = weights_.embodiments[0].*kOwn[i];
      arena_.declare(strf("embodiment.%zu.%zu.w", b, i), like.w.dtype, like.w.shape, &(active_[b].weights.*kOwn[i]).w);
      if (like.bias.present())
        arena_.declare(strf("embodiment.%zu.%zu.bias", b, i), like.bias.dtype, like.bias.shape,
                       &(active_[b].weights.*kOwn[i]).bias);
    }
  }
}

Status GrootModel::fill_constants() {
  const GrootConfig& c = config_;
  GrootBuffers& b = buffers_;
  VV_TRY(vision::fill_constants(*runtime_, c.vision, b.vision));
  VV_ASSIGN(const ops::RopeFreqs all, ops::rope_freqs(c.rope_theta, c.text.head_dim, {}));
  std::vector<float> turn[3];
  for (auto& t : turn) t.assign(all.inv_freq.size(), 0.0f);
  for (size_t i = 0; i < all.inv_freq.size(); ++i) {
    const size_t axis = i % 3;  // lines and columns take every third pair each, as far as their sections go
    turn[axis != 0 && static_cast<int64_t>(i) < 3 * c.sections[axis] ? axis : 0][i] = all.inv_freq[i];
  }
  std::vector<int32_t> slots(static_cast<size_t>(b.action_slot.shape[0]));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i / static_cast<size_t>(1 + horizon_));
  const auto from = [](const Tensor& to, const auto& values) {
    return engine::Upload{to.data, std::data(values), std::size(values) * sizeof(*std::data(values))};
  };
  const engine::Upload uploads[] = {from(b.turn_freq[0], turn[0]), from(b.turn_freq[1], turn[1]),
                                    from(b.turn_freq[2], turn[2]), from(b.action_slot, slots)};
  VV_TRY(runtime_->upload(uploads));
  if (!plan_.fixed) return {};
  const engine::Upload scales[] = {from(b.act_scales, options_.act_scales)};
  return runtime_->upload(scales);
}

/// Time as the DiT (cosines, then sines) and the action encoder (sines, then cosines) take it, of each step; then
/// everything made of it.
Status GrootModel::make_tables() {
  const int64_t S = limits_.steps, D = config_.dit.width, half = 128, own = D / 2;
  std::vector<float> sines(static_cast<size_t>(S * 2 * half)), tau(static_cast<size_t>(S * D));
  for (int64_t s = 0; s < S; ++s) {
    const double t = std::floor(static_cast<double>(s * config_.buckets) / static_cast<double>(S));
    for (int64_t i = 0; i < half; ++i) {
      const double angle = t * std::exp(-std::log(10000.0) * static_cast<double>(i) / static_cast<double>(half - 1));
      sines[static_cast<size_t>(s * 2 * half + i)] = static_cast<float>(std::cos(angle));
      sines[static_cast<size_t>(s * 2 * half + half + i)] = static_cast<float>(std::sin(angle));
    }
    for (int64_t i = 0; i < own; ++i) {
      const double angle = t * std::exp(-std::log(10000.0) * static_cast<double>(i) / static_cast<double>(own));
      tau[static_cast<size_t>(s * D + i)] = static_cast<float>(std::sin(angle));
      tau[static_cast<size_t>(s * D + own + i)] = static_cast<float>(std::cos(angle));
    }
  }
  engine::Arena scratch("time tables");
  Tensor part[3], of_time, of_tau;
  scratch.declare("sines", DType::f32, Shape(S, 2 * half), &of_time);
  scratch.declare("tau", DType::f32, Shape(S, D), &of_tau);
  for (Tensor& t : part) scratch.declare("scratch", DType::f32, Shape(S, 2 * D), &t);
  VV_TRY(scratch.commit(*runtime_));
  const engine::Upload both[] = {{of_time.data, sines.data(), sines.size() * sizeof(float)},
                                 {of_tau.data, tau.data(), tau.size() * sizeof(float)}};
  VV_TRY(runtime_->upload(both));
  exec::Stream& stream = runtime_->stream();
  ops::Recorder rec(stream);
  const Show keep = [&](const std::string& name, int, const Tensor& value) -> Status {
    kept_.push_back({name, value.shape, std::vector<float>(static_cast<size_t>(value.shape.elements()))});
    VV_TRY(stream.copy(kept_.back().values.data(), value.data, static_cast<size_t>(value.span_bytes())));
    return stream.synchronize();
  };
  VV_TRY(record_tables(rec, context(keep), of_time, of_tau, part));
  return stream.synchronize();  // before the scratch goes
}

Status GrootModel::load() {
  if (options_.random_weights) options_.statistics = "none";
  VV_TRY(open());
  VV_TRY(check_options());
  engine::WeightUploader tables;
  OwnedTensors own;
  VV_TRY(load_weights(source_, config_, plan_, horizon_, slots_, &uploader_, &tables, &own, &weights_));
  declare_context();
  declare_actions();
  VV_TRY(check_fit("policy", uploader_.bytes() + tables.bytes(), "lower num_views or batch, or name an embodiment"));
  VV_TRY(uploader_.commit(*runtime_));
  VV_TRY(tables.commit(*runtime_));
  declare_embodiments();  // as weights became
  VV_TRY(arena_.commit(*runtime_));
  VV_TRY(seen_in_.open(*runtime_, "context inputs"));
  VV_TRY(acted_in_.open(*runtime_, "action inputs"));
  VV_ASSIGN(result_, runtime_->reserve_shared("actions", static_cast<size_t>(acted_.x.span_bytes())));
  VV_ASSIGN(positions_in_,
            runtime_->reserve_shared("positions", static_cast<size_t>(buffers_.vision.positions.span_bytes())));
  VV_ASSIGN(timer_, engine::GpuTimer::open(runtime_->stream()));
  VV_TRY(fill_constants());
  const auto views = static_cast<size_t>(seen_.images.image_offsets.shape[0]);
  grids_.reserve(views);
  placed_.reserve(views);
  units_.resize(static_cast<size_t>(limits_.batch * limits_.horizon) * static_cast<size_t>(limits_.robot_dim));
  VV_TRY(make_tables());
  for (int64_t b = 0; b < limits_.batch; ++b) VV_TRY(take_embodiment(b, 0));
  VV_TRY(capture());
  return close_load();
}

Status GrootModel::record_context_launches(exec::Stream& s) const {
  ops::Recorder rec(s, ops::Weights::constant);
  engine::GateMarks marks = this->marks(true);
  GrootContext c = context();
  c.gates = &marks;
  return record_context(rec, c, seen_);
}

Status GrootModel::record_action_launches(exec::Stream& s) const {
  ops::Recorder rec(s, ops::Weights::constant);
  engine::GateMarks marks = this->marks(false);
  GrootContext c = context();
  c.gates = &marks;
  return record_actions(rec, c, seen_, acted_);
}

Status GrootModel::record_context_graph(exec::Stream& s) const {
  VV_TRY(seen_in_.copy_in(s));
  return record_context_launches(s);
}

Status GrootModel::record_action_graph(exec::Stream& s) const {
  VV_TRY(acted_in_.copy_in(s));
  VV_TRY(record_action_launches(s));
  return s.copy(result_.data(), acted_.x.data, static_cast<size_t>(acted_.x.span_bytes()));
}

Status GrootModel::capture() {
  const auto bound = static_cast<size_t>(runtime_->variants());
  context_graph_ = std::make_unique<exec::Graph>("context", bound);
  action_graph_ = std::make_unique<exec::Graph>("actions", bound);
  return for_each_variant([this] { return capture_variant(); });
}

Status GrootModel::capture_variant() {
  exec::Stream& stream = runtime_->stream();
  // A dry run without rows sizes every scratch area and loads every kernel, which a capture must not do.
  VV_TRY(record_context_graph(stream));
  VV_TRY(record_action_graph(stream));
  VV_TRY(stream.synchronize());
  VV_TRY(context_graph_->capture(variant(), stream, [&](exec::Stream& s) { return record_context_graph(s); }));
  VV_TRY(action_graph_->capture(variant(), stream, [&](exec::Stream& s) { return record_action_graph(s); }));
  auto& run = runs_[runtime_->variant()] = std::make_unique<exec::Plan>("policy", runtime_->backend());
  for (exec::Graph* graph : {context_graph_.get(), action_graph_.get()}) {
    VV_ASSIGN(const exec::Plan::Step step, run->add(*graph, variant(), stream));
    static_cast<void>(step);
  }
  return run->freeze();
}

engine::Report GrootModel::report() const {
  const auto number = [](int64_t v) { return std::to_string(v); };
  const auto stack = [&](const Stack& s) {
    return strf("{\"width\": %ld, \"layers\": %ld, \"mlp\": %ld, \"heads\": %ld, \"kv_heads\": %ld, \"head_dim\": %ld}",
                static_cast<long>(s.width), static_cast<long>(s.layers), static_cast<long>(s.mlp),
                static_cast<long>(s.heads), static_cast<long>(s.kv_heads), static_cast<long>(s.head_dim));
  };
  std::string cameras = "[";
  for (const std::string& c : config_.cameras) cameras += (cameras.size() > 1 ? ", " : "") + engine::json_string(c);
  cameras += "]";
  return {
      {"family", engine::json_string(family_)},
      {"device", engine::json_string(runtime_->name())},
      {"precision", engine::json_string(plan_.name)},
      {"forms", forms_of(weights_).json()},
      {"activations", engine::json_string(name(plan_.act))},
      {"activations_to_e4m3", plan_.eight ? engine::json_string(plan_.fixed ? "calibrated" : "by token") : "null"},
      {"threads", number(runtime_->threads())},
      {"multiprocessors", number(runtime_->multiprocessors())},
      {"resize", engine::json_string(name(scaler_.rules().kind))},
      {"statistics", engine::json_string(statistics_.source)},
      {"robot", engine::json_string("any")},
      {"cameras", cameras},
      {"state_in_prompt", "false"},
      {"vision", stack(config_.vision)},
      {"text", stack(config_.text)},
      {"adapter", stack(config_.adapter)},
      {"dit", stack(config_.dit)},
      {"vocab", number(config_.vocab)},
      {"image_token", number(config_.image_token)},
      {"image", strf("[%ld, %ld]", static_cast<long>(config_.image_height), static_cast<long>(config_.image_width))},
      {"embodiments", number(config_.embodiments)},
      {"embodiment", slots_.size() > 1 ? "null" : number(slots_[0])},
      {"embodiment_name", engine::json_string(!statistics_.tag.empty() ? statistics_.tag : options_.robot)},
      {"num_views", number(limits_.views)},
      {"action_horizon", number(limits_.horizon)},
      {"network_horizon", number(horizon_)},
      {"num_steps", number(limits_.steps)},
      {"batch", number(limits_.batch)},
      {"prompt_tokens", number(limits_.prompt_tokens)},
      {"action_dim", number(limits_.action_dim)},
      {"robot_dim", number(limits_.robot_dim)},
      {"state_dim", number(limits_.state_dim)},
      {"switches", runtime_->variants() > 1 ? "true" : "false"},
      {"gates", number(gates_[0][0].gates + gates_[0][1].gates)},
      {"context_launches", number(static_cast<int64_t>(context_graph_->executable(variant())->launches()))},
      {"action_launches", number(static_cast<int64_t>(action_graph_->executable(variant())->launches()))},
      {"weight_bytes", number(uploader_.bytes())},
      {"arena_bytes", number(arena_.bytes())}};
}

Result<std::unique_ptr<engine::PolicyModel>> load_groot(engine::Checkpoint checkpoint,
                                                        const engine::PolicyOptions& options) {
  VV_ASSIGN(GrootConfig config, read_config(checkpoint, options.config, options.random_weights));
  return load_family<GrootModel, engine::PolicyModel>(std::move(checkpoint), std::move(config), options);
}

}  // namespace vivace::models::groot
