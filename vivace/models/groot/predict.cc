// A call: observations checked, their rows written, both graphs run.
#include <algorithm>
#include <cmath>

#include "vivace/base/check.h"
#include "vivace/engine/urgent.h"
#include "vivace/models/groot/groot_model.h"
#include "vivace/models/layer/calibration.h"
#include "vivace/models/layer/config_values.h"
#include "vivace/models/vla/noise.h"

namespace vivace::models::groot {
namespace {

using engine::Frame;
using engine::Observation;

constexpr double kRamp = 6;  // how fast the old chunk's hold fades: Isaac-GR00T's rtc_ramp_rate

bool finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

}  // namespace

int GrootModel::slot_of(const Observation& o) const {
  const int wanted = o.embodiment >= 0 ? o.embodiment : slots_.size() == 1 ? slots_[0] : -1;
  const auto found = std::find(slots_.begin(), slots_.end(), wanted);
  return found == slots_.end() ? -1 : static_cast<int>(found - slots_.begin());
}

GrootModel::Grid GrootModel::grid(const Frame& f) const {
  if (!scaler_.on()) return vision::grid_of(pixels(f), config_.vision);
  const FrameScaler::Size s = *scaler_.size(f.height, f.width, config_.image_height * config_.image_width);
  return vision::grid_of({nullptr, s.height, s.width, 0, 0}, config_.vision);
}

Status GrootModel::check_views(const Observation& o, size_t i) const {
  if (o.views.size() != static_cast<size_t>(limits_.views))
    return bad(i, Code::kInvalidArgument,
               strf("wanted a frame, or none, for each of %d cameras, got %zu; load with num_views", limits_.views,
                    o.views.size()));
  if (std::none_of(o.views.begin(), o.views.end(), [](const Frame& f) { return f.data != nullptr; }))
    return bad(i, Code::kInvalidArgument, "no camera is on");
  const int64_t side = config_.vision.token_side(), most = config_.image_height * config_.image_width;
  for (const Frame& f : o.views) {
    if (f.data == nullptr) continue;
    if (f.height < 1 || f.width < 1 || f.height > kMostSide || f.width > kMostSide || f.plane < 0 ||
        f.stride < (f.plane == 0 ? f.width * 3 : f.width))
      return bad(i, Code::kInvalidShape,
                 strf("a frame has 1 to %ld rows and columns of RGB, got %ld x %ld with %ld bytes a row",
                      static_cast<long>(kMostSide), static_cast<long>(f.height), static_cast<long>(f.width),
                      static_cast<long>(f.stride)));
    if (scaler_.on()) {
      if (!scaler_.size(f.height, f.width, most).has_value())
        return bad(i, Code::kInvalidShape,
                   strf("a frame of %ld x %ld becomes more pixels than %ld x %ld once the checkpoint's processor has "
                        "scaled it: crop it to a shape between that of its cameras and a square",
                        static_cast<long>(f.height), static_cast<long>(f.width),
                        static_cast<long>(config_.image_height), static_cast<long>(config_.image_width)));
      continue;
    }
    if (f.height % side != 0 || f.width % side != 0 || f.height * f.width > most)
      return bad(i, Code::kInvalidShape,
                 strf("a frame's height and width are multiples of %ld, with no more pixels than %ld x %ld, got %ld x "
                      "%ld: scale it as the checkpoint's processor does, or put its processor_config.json beside it",
                      static_cast<long>(side), static_cast<long>(config_.image_height),
                      static_cast<long>(config_.image_width), static_cast<long>(f.height), static_cast<long>(f.width)));
  }
  return {};
}

Status GrootModel::check_tokens(const Observation& o, size_t i) const {
  int64_t pads = 0, on = 0, all = 0;
  for (const int32_t t : o.tokens) {
    if (t < 0 || t >= config_.vocab)
      return bad(i, Code::kInvalidArgument,
                 strf("token %d is outside the vocabulary [0, %ld)", t, static_cast<long>(config_.vocab)));
    pads += t == config_.image_token;
  }
  for (const Frame& f : o.views)
    if (f.data != nullptr) ++on, all += tokens_of(f);
  if (pads != on && pads != all)
    return bad(i, Code::kInvalidArgument,
               strf("the prompt has token %ld %ld times: it stands once for each of the %ld images, or for each of "
                    "their %ld tokens",
                    static_cast<long>(config_.image_token), static_cast<long>(pads), static_cast<long>(on),
                    static_cast<long>(all)));
  if (const auto words = static_cast<int64_t>(o.tokens.size()) - pads; words > limits_.prompt_tokens)
    return bad(i, Code::kLimitExceeded,
               strf("the prompt has %ld tokens beside images, at most %d; load with prompt_tokens",
                    static_cast<long>(words), limits_.prompt_tokens));
  if (pads == on) return {};
  size_t at = 0;
  for (const Frame& f : o.views) {
    if (f.data == nullptr) continue;
    while (o.tokens[at] != config_.image_token) ++at;
    for (int64_t k = 0; k < tokens_of(f); ++k, ++at)
      if (at == o.tokens.size() || o.tokens[at] != config_.image_token)
        return bad(i, Code::kInvalidArgument,
                   "the prompt's image tokens do not lie together, as many as each image has");
  }
  return {};
}

Status GrootModel::check_actions(const Observation& o, size_t i) const {
  const auto row = static_cast<size_t>(limits_.action_dim), whole = static_cast<size_t>(limits_.horizon) * row,
             most_noise = static_cast<size_t>(horizon_) * row;
  if (!o.action_prefix.empty()) {
    if (!limits_.takes_prefix)
      return bad(i, Code::kUnsupported,
                 "action_prefix: this embodiment's actions are steps from the state, which has moved since; join "
                 "chunks by blend or swap");
    if (o.action_prefix.size() % row != 0 || o.action_prefix.size() >= whole)
      return bad(i, Code::kInvalidShape,
                 strf("action_prefix: wanted fewer than %d actions of %d values, got %zu values", limits_.horizon,
                      limits_.action_dim, o.action_prefix.size()));
    if (!o.prev_actions.empty())
      return bad(i, Code::kInvalidArgument, "action_prefix and prev_actions: give one of the two");
  }
  if (!o.noise.empty() && o.noise.size() != whole && o.noise.size() != most_noise)
    return bad(i, Code::kInvalidShape,
               strf("noise: wanted [%d, %d], got %zu values", limits_.horizon, limits_.action_dim, o.noise.size()));
  if (o.prev_actions.size() % row != 0)
    return bad(
        i, Code::kInvalidShape,
        strf("prev_actions: wanted actions of %d values, got %zu values", limits_.action_dim, o.prev_actions.size()));
  const auto most = std::min<int64_t>(static_cast<int64_t>(o.prev_actions.size() / row), limits_.horizon);
  if (o.prev_actions.empty() ? o.overlap != 0 || o.frozen != 0
                             : o.overlap < 1 || o.overlap > most || o.frozen < 0 || o.frozen > o.overlap)
    return bad(i, Code::kInvalidArgument,
               strf("overlap and frozen: wanted 1 to %ld actions of prev_actions to begin with, of which 0 to that "
                    "many are frozen, and neither without prev_actions; got %d and %d",
                    static_cast<long>(most), o.overlap, o.frozen));
  for (const auto& [what, values] :
       {std::pair{"noise", o.noise}, {"prev_actions", o.prev_actions}, {"action_prefix", o.action_prefix}})
    if (!finite(values)) return bad(i, Code::kInvalidArgument, strf("%s is not finite", what));
  return {};
}

Status GrootModel::check(const Observation& o, size_t i) const {
  VV_TRY(check_views(o, i));
  VV_TRY(check_tokens(o, i));
  if (o.state.empty()) return bad(i, Code::kInvalidArgument, "this policy reads the state; give it");
  if (limits_.state_dim > 0 ? o.state.size() != static_cast<size_t>(limits_.state_dim)
                            : o.state.size() > static_cast<size_t>(config_.state_dim))
    return bad(i, Code::kInvalidShape,
               strf("the state has %zu values, wanted %d", o.state.size(),
                    limits_.state_dim > 0 ? limits_.state_dim : static_cast<int>(config_.state_dim)));
  if (!finite(o.state)) return bad(i, Code::kInvalidArgument, "state is not finite");
  if (statistics_.present())
    for (size_t d = 0; d < o.state.size(); ++d)
      if (!std::isfinite(statistics_.normalize(o.state[d], d)))
        return bad(i, Code::kInvalidArgument,
                   strf("state: value %zu is %g, which is not finite once it is normalised", d,
                        static_cast<double>(o.state[d])));
  if (slot_of(o) < 0) {
    if (o.embodiment < -1 || o.embodiment >= limits_.embodiments || slots_.size() > 1)
      return bad(i, Code::kInvalidArgument,
                 strf("embodiment: wanted one of 0 to %d, got %d; name it here or at load", limits_.embodiments - 1,
                      o.embodiment));
    return bad(i, Code::kInvalidArgument,
               strf("embodiment: the policy was loaded for %d alone, got %d", slots_[0], o.embodiment));
  }
  return check_actions(o, i);
}

void GrootModel::write_view(const Frame& f, Rows* at) {
  const vision::VisionInputs& in = seen_.images;
  const Grid g = grid(f);
  const int64_t first = at->patches;
  vision::write_patches(scaler_.on() ? scaler_.scale(pixels(f)) : pixels(f), config_.vision,
                        seen_in_.host<uint8_t>(in.pixels) + first * config_.vision.patch_values(),
                        seen_in_.host<int32_t>(in.line) + first, seen_in_.host<int32_t>(in.column) + first);
  std::fill_n(seen_in_.host<int32_t>(in.image) + first, g.patches(), static_cast<int32_t>(at->views));
  at->patches += g.patches();
  grids_.push_back(g);
  seen_in_.host<int32_t>(in.image_offsets)[++at->views] = static_cast<int32_t>(at->patches);
}

void GrootModel::write_sequence(const Observation& o, int64_t b, Rows* at) {
  const auto host = [&](const Tensor& t) { return seen_in_.host<int32_t>(t); };
  int32_t *const words = host(seen_.words), *const source = host(seen_.source), *const level = host(seen_.level),
                 *const place = host(seen_.place), *const slot = host(seen_.slot);
  int32_t* const turn[] = {host(seen_.turn[0]), host(seen_.turn[1]), host(seen_.turn[2])};
  const auto images = static_cast<int32_t>(seen_.image_rows.shape[0]);
  int32_t in_sequence = 0, now = 0;  // a row's place, and where M-RoPE has got to
  const auto add = [&](int32_t word, int32_t from, int32_t lvl, int32_t line, int32_t column) {
    const int64_t row = at->all++;
    words[row] = word, source[row] = from, level[row] = lvl, place[row] = in_sequence++,
    slot[row] = static_cast<int32_t>(b);
    turn[0][row] = now, turn[1][row] = now + line, turn[2][row] = now + column;
  };
  // One token stands for an image, or each of its own does.
  const auto on = std::count_if(o.views.begin(), o.views.end(), [](const Frame& f) { return f.data != nullptr; });
  const bool each_stands = std::count(o.tokens.begin(), o.tokens.end(), config_.image_token) != on;
  auto frame = o.views.begin();
  for (size_t i = 0; i < o.tokens.size();) {
    if (o.tokens[i] != config_.image_token) {
      host(seen_.text_rows)[at->texts++] = static_cast<int32_t>(at->all);
      add(o.tokens[i++], images + static_cast<int32_t>(at->all), images, 0, 0);
      ++now;
      continue;
    }
    while (frame->data == nullptr) ++frame;
    const Grid g = grid(*frame);
    const auto m = static_cast<int32_t>(config_.vision.merge), columns = g.columns / m,
               tokens = static_cast<int32_t>(tokens_of(*frame));
    for (int32_t k = 0; k < tokens; ++k) {
      const auto image = static_cast<int32_t>(at->tokens);
      host(seen_.image_rows)[at->tokens++] = static_cast<int32_t>(at->all);
      if (config_.n16) add(0, image, image, 0, 0), ++now;
      else add(0, image, image, k / columns, k % columns);
    }
    if (!config_.n16) now += std::max(g.lines / m, columns);
    i += static_cast<size_t>(each_stands ? tokens : 1);
    ++frame;
  }
}

void GrootModel::write_actions(const Observation& o, int64_t b) {
  const int64_t n = horizon_, D = limits_.action_dim;
  float *const x = acted_in_.host<float>(acted_.x) + b * n * D,
               *const size = acted_in_.host<float>(acted_.step_size) + b * n * D,
               *const state = acted_in_.host<float>(acted_.state) + b * config_.state_dim;
  if (o.noise.size() < static_cast<size_t>(n * D))
    vla::draw_noise(o.seed, {x, static_cast<size_t>(n * D)});  // also of actions that nobody asks for
  std::copy(o.noise.begin(), o.noise.end(), x);
  // A prefix is a chunk of which all stays.
  const bool hard = !o.action_prefix.empty();
  const int64_t overlap = hard ? static_cast<int64_t>(o.action_prefix.size()) / D : o.overlap,
                frozen = hard ? overlap : o.frozen;
  const std::span<const float> begun = hard ? o.action_prefix : o.prev_actions;
  std::copy(begun.end() - overlap * D, begun.end(), x);
  std::fill_n(size, n * D, static_cast<float>(1.0 / limits_.steps));
  const auto ramp = [](double t) { return 1 - std::exp(-kRamp * t); };
  for (int64_t r = 0; r < overlap; ++r) {
    const double hold =
        r < frozen ? 0
                   : ramp(static_cast<double>(r - frozen + 1) / static_cast<double>(overlap - frozen + 1)) / ramp(1);
    std::fill_n(size + r * D, D, static_cast<float>(hold / limits_.steps));
  }
  std::fill_n(state, config_.state_dim, 0.0f);
  if (statistics_.present()) statistics_.normalize(o.state, state);
  else std::copy(o.state.begin(), o.state.end(), state);
}

Status GrootModel::place_positions() {
  if (grids_ == placed_) return {};
  placed_.clear();  // until the copy is under way
  char* to = static_cast<char*>(positions_in_.data());
  for (const Grid& g : grids_)
    to = vision::write_positions(g, config_.vision, weights_.vision.positions, plan_.act, to);
  const auto bytes = static_cast<size_t>(to - static_cast<char*>(positions_in_.data()));
  VV_TRY(runtime_->stream().copy(buffers_.vision.positions.data, positions_in_.data(), bytes));
  placed_.assign(grids_.begin(), grids_.end());
  return {};
}

Status GrootModel::take_embodiment(int64_t b, int slot) {
  int& taken = taken_[static_cast<size_t>(b)];
  if (taken == slot) return {};
  taken = -1;
  const Embodiment& from = weights_.embodiments[static_cast<size_t>(slot)];
  ActiveEmbodiment& to = active_[static_cast<size_t>(b)];
  exec::Stream& stream = runtime_->stream();
  const auto copy = [&](const Tensor& into, const Tensor& of) {
    return into.present() ? stream.copy(into.data, of.data, static_cast<size_t>(of.span_bytes())) : Status();
  };
  for (const auto own : kOwn) {
    VV_TRY(copy((to.weights.*own).w, (from.*own).w));
    VV_TRY(copy((to.weights.*own).bias, (from.*own).bias));
  }
  VV_TRY(copy(to.time_bias, buffers_.time_bias[static_cast<size_t>(slot)]));
  VV_TRY(stream.synchronize());  // the graph's kernels read weights ahead of what is queued
  taken = slot;
  return {};
}

Status GrootModel::prepare(std::span<const Observation> observations) {
  answered_ = 0;
  if (runtime_->place() == Place::host) VV_TRY(source_.check_files());
  if (observations.empty() || observations.size() > static_cast<size_t>(limits_.batch))
    return Status(Code::kInvalidArgument, strf("predict: wanted 1 to %d observations, got %zu; load with batch",
                                               limits_.batch, observations.size()));
  for (size_t i = 0; i < observations.size(); ++i) VV_TRY(check(observations[i], i));
  Rows at;
  grids_.clear();
  const auto host = [&](const Tensor& t) { return seen_in_.host<int32_t>(t); };
  host(seen_.images.image_offsets)[0] = host(seen_.offsets)[0] = host(seen_.text_offsets)[0] =
      host(seen_.image_offsets)[0] = 0;
  for (int64_t b = 0; b < limits_.batch; ++b) {
    const bool asked = static_cast<size_t>(b) < observations.size();
    const Observation& o = observations[asked ? static_cast<size_t>(b) : observations.size() - 1];
    if (asked) {
      for (const Frame& f : o.views)
        if (f.data != nullptr) write_view(f, &at);
      write_sequence(o, b, &at);
    }
    // Slots that nobody asked for see nothing; their actions are dropped.
    host(seen_.offsets)[b + 1] = static_cast<int32_t>(at.all);
    host(seen_.text_offsets)[b + 1] = static_cast<int32_t>(at.texts);
    host(seen_.image_offsets)[b + 1] = static_cast<int32_t>(at.tokens);
    write_actions(o, b);
    if (asked) VV_TRY(take_embodiment(b, slot_of(o)));
  }
  for (int64_t v = at.views; v + 1 < seen_.images.image_offsets.shape[0]; ++v)
    host(seen_.images.image_offsets)[v + 1] = static_cast<int32_t>(at.patches);
  *host(seen_.images.patches) = static_cast<int32_t>(at.patches);
  *host(seen_.images.tokens) = static_cast<int32_t>(at.tokens);
  *host(seen_.rows) = static_cast<int32_t>(at.all);
  *host(seen_.texts) = static_cast<int32_t>(at.texts);
  return place_positions();
}

Status GrootModel::run() {
  exec::Stream& stream = runtime_->stream();
  engine::GatedCall call(options_.urgent.get(), options_.gates, stream);
  VV_TRY(call.begin());
  VV_TRY(timer_->start(stream));
  if (options_.eager) {
    VV_TRY(record_context_graph(stream));
    VV_TRY(record_action_graph(stream));
  } else {
    VV_TRY(runs_[runtime_->variant()]->run());
  }
  VV_TRY(timer_->stop(stream));
  VV_TRY(call.end());
  VV_TRY(stream.synchronize());
  VV_ASSIGN(device_us_, timer_->us());
  return {};
}

Status GrootModel::predict(std::span<const Observation> observations, std::span<float> actions) {
  const auto n = static_cast<size_t>(limits_.horizon), D = static_cast<size_t>(limits_.action_dim),
             R = static_cast<size_t>(limits_.robot_dim);
  answered_ = 0;
  if (const size_t want = observations.size() * n * R; actions.size() != want)
    return Status(Code::kInvalidShape, strf("predict: wanted room for %zu values, got %zu", want, actions.size()));
  VV_TRY(prepare(observations));
  VV_TRY(run());
  if (runtime_->place() == Place::host) VV_TRY(source_.check_lost());
  const std::span<const float> x(static_cast<const float*>(result_.data()),
                                 observations.size() * static_cast<size_t>(horizon_) * D);
  if (!finite(x))
    return Status(Code::kCorruptData,
                  "predict: the network's actions are not finite: the checkpoint is broken, or an input lies far "
                  "outside what it was trained on; no action was given");
  for (size_t b = 0; b < observations.size(); ++b)
    for (size_t row = 0; row < n; ++row) {
      const float* const normal = x.data() + (b * static_cast<size_t>(horizon_) + row) * D;
      float* const out = units_.data() + (b * n + row) * R;
      if (statistics_.present()) statistics_.unnormalize(normal, row, observations[b].state.data(), out);
      else std::copy_n(normal, R, out);
      if (!finite({out, R}))
        return Status(Code::kCorruptData,
                      strf("predict: action %zu of observation %zu is not finite in the robot's units: the "
                           "checkpoint's statistics or the state mean nothing; no action was given",
                           row, b));
    }
  std::copy_n(units_.begin(), actions.size(), actions.begin());
  answered_ = observations.size();
  return {};
}

Result<std::span<const float>> GrootModel::normalized(int i) const {
  if (answered_ == 0) return Status(Code::kFailedPrecondition, "normalized: no predict() ended well before");
  if (i < 0 || static_cast<size_t>(i) >= answered_)
    return Status(Code::kInvalidArgument,
                  strf("normalized: observation %d is outside the %zu of the last predict()", i, answered_));
  const auto one = static_cast<size_t>(limits_.horizon) * static_cast<size_t>(limits_.action_dim);
  return std::span<const float>(static_cast<const float*>(result_.data()) +
                                    static_cast<size_t>(i) * static_cast<size_t>(horizon_ * limits_.action_dim),
                                one);
}

Result<std::vector<float>> GrootModel::normalized_state(std::span<const float> state) const {
  if (limits_.state_dim > 0 && state.size() != static_cast<size_t>(limits_.state_dim))
    return Status(Code::kInvalidShape, strf("the state has %zu values, wanted %d", state.size(), limits_.state_dim));
  if (!statistics_.present()) return std::vector<float>(state.begin(), state.end());
  std::vector<float> out(static_cast<size_t>(statistics_.network_state));
  statistics_.normalize(state, out.data());
  return out;
}

Status GrootModel::observe(std::span<const Observation> observations, const Probe& probe) {
  std::vector<float> dropped(observations.size() * static_cast<size_t>(limits_.horizon * limits_.robot_dim));
  VV_TRY(predict(observations, dropped));
  for (Kept& k : kept_) VV_TRY(probe(k.name.c_str(), -1, tensor(k.values.data(), DType::f32, k.shape)));
  exec::Stream& stream = runtime_->stream();
  const Show show = host_show(stream, probe);
  VV_TRY(show("positions", -1, seen_.turn[0]));
  VV_TRY(show("positions", 0, seen_.turn[1]));
  VV_TRY(show("positions", 1, seen_.turn[2]));
  ops::Recorder rec(stream, ops::Weights::constant);
  VV_TRY(seen_in_.copy_in(stream));
  VV_TRY(show("pixels", -1, seen_.images.pixels));
  VV_TRY(record_context(rec, context(show), seen_));
  VV_TRY(acted_in_.copy_in(stream));
  VV_TRY(show("noise", -1, acted_.x));
  return record_actions(rec, context(show), seen_, acted_);
}

Result<std::vector<float>> GrootModel::calibrate(std::span<const Observation> observations, double percentile) {
  VV_TRY(check_calibration(plan_, observations.size(), percentile));
  Calibration calibration(QuantizationSites(config_).count());
  exec::Stream& stream = runtime_->stream();
  GrootContext seeing = context();
  seeing.enters = [&](int64_t place, const Tensor& x, const Tensor& rows) -> Status {
    for (const Tensor* count : {&seen_.images.patches, &seen_.images.tokens, &seen_.rows, &seen_.texts})
      if (rows.data == count->data) return calibration.see(stream, place, x, *seen_in_.host<int32_t>(*count));
    return Status(Code::kInternal, "calibrate: rows that nobody counts");
  };
  for (const Observation& o : observations) {
    VV_TRY(prepare({&o, 1}));
    calibration.begin();
    ops::Recorder rec(stream, ops::Weights::constant);
    VV_TRY(seen_in_.copy_in(stream));
    VV_TRY(record_context(rec, seeing, seen_));
    VV_TRY(stream.synchronize());
  }
  return calibration.scales(percentile);
}

Status GrootModel::set_act_scales(std::span<const float> scales) {
  return upload_act_scales(*runtime_, plan_, scales, QuantizationSites(config_).count(), buffers_.act_scales);
}

Result<engine::Profile> GrootModel::profile(Stage stage, bool in_step) {
  const auto record = [&](exec::Stream& s) -> Status {
    if (stage != Stage::actions) VV_TRY(record_context_launches(s));
    return stage != Stage::context ? record_action_launches(s) : Status();
  };
  return engine::profile(*runtime_, record, [&] { return runtime_->stream().synchronize(); }, in_step);
}

Result<engine::WorkTimes> GrootModel::place_gates() {
  if (options_.gates.gate == nullptr)
    return Status(Code::kFailedPrecondition, "place_gates: nobody schedules this policy");
  gating_ = true;
  engine::WorkTimes work;  // the worst of what it may run on
  Status planned = for_each_variant([&]() -> Status {
    VV_ASSIGN(const engine::WorkTimes here,
              engine::plan_call(*runtime_, options_.gates.stretch_us, gates_[runtime_->variant()],
                                [&](exec::Stream& stream, size_t i) {
                                  return i == 0 ? record_context_launches(stream) : record_action_launches(stream);
                                }));
    work.take_worst(here);
    return {};
  });
  gating_ = false;
  VV_TRY(std::move(planned));
  planned_ = true;
  for (auto& run : runs_) run.reset();
  VV_TRY(capture());
  return work;
}

}  // namespace vivace::models::groot
