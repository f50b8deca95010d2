// Policies for Python. Thin: every decision is in models/vla.
#include <cstring>
#include <mutex>
#include <optional>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "gil.h"
#include "model.h"
#include "policy.h"
#include "sched.h"
#include "tensor.h"
#include "vivace/base/check.h"
#include "vivace/models/groot/prompt.h"
#include "vivace/models/policies.h"
#include "vivace/models/vla/codec.h"
#include "vivace/models/vla/image.h"
#include "vivace/models/vla/prompt.h"
#include "vivace/models/vla/statistics.h"

namespace vivace::python {
namespace {

using engine::Frame;
using engine::Observation;

/// f(model) without the GIL: calls of several threads take turns. Raises FailedPrecondition while a host has the
/// policy.
template <class F>
auto in_turn(Policy& p, F&& f) {
  std::optional<decltype(f(*p.model))> answer;
  {
    const NoGil release;
    const std::lock_guard hold(p.turn);
    if (!p.served) answer.emplace(f(*p.model));
  }
  if (!answer)
    check(Status(Code::kFailedPrecondition,
                 "a policy host serves this policy, and has it for itself; close that, or load the policy once more"));
  return std::move(*answer);
}

std::unique_ptr<Policy> load_policy(const std::string& path, const std::string& config, const std::string& device,
                                    const std::string& precision, const std::string& resize,
                                    const std::string& statistics, std::vector<bool> delta, const std::string& robot,
                                    int threads, int views, int horizon, int steps, int batch, int prompt_tokens,
                                    int codes, const std::string& codec, std::vector<float> act_scales, bool eager,
                                    double partition, bool random_weights, int embodiment, const Tenant* tenant,
                                    bool keep_partition, const std::string& expert) {
  engine::PolicyOptions options{
      config,  device,    precision,     resize, statistics, std::move(delta), robot, std::move(act_scales),
      threads, views,     horizon,       steps,  batch,      prompt_tokens,    codes, codec,
      eager,   partition, random_weights};
  options.embodiment = embodiment;
  options.expert = expert;
  if (tenant != nullptr) options.urgent = tenant->tenant->urgent(), options.gates = tenant->tenant->gates(),
    options.most_bytes = tenant->tenant->most_bytes(), options.switches = partition != 0 && !keep_partition;
  auto loaded = [&]() -> Result<std::unique_ptr<engine::PolicyModel>> {
    const NoGil release;
    VV_ASSIGN(std::unique_ptr<engine::PolicyModel> policy, models::load_policy(path, options));
    if (tenant == nullptr) return policy;
    return sched::admit_policy(std::move(policy), tenant->tenant, tenant->worst_us, sched::partition_of(options));
  }();
  check(loaded.status());
  return std::make_unique<Policy>(std::move(loaded).value(), path);
}

/// What the spans of observations point to while a call lasts.
struct Given {
  std::vector<std::vector<Frame>> views;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<Observation> observations;
  Borrowed from;
};

Status frame_of(nb::handle o, Given* given, Frame* frame) {
  if (o.is_none()) return {};
  Tensor t;
  if (Status s = to_tensor(o.ptr(), false, &t, &given->from); !s.ok()) return s;
  if (t.dtype != DType::u8)
    return Status(Code::kInvalidDType, std::string("a frame is u8, got ") + name(t.dtype) + "; scale it to 0..255");
  if (t.place != Place::host) return Status(Code::kInvalidDevice, "a frame is in host memory; copy it there");
  if (t.shape.rank != 3 || t.shape[2] != 3)
    return Status(Code::kInvalidShape, "a frame is [height, width, 3], got " + to_string(t.shape));
  if (t.shape.elements() > 0 && (t.stride[2] != 1 || t.stride[1] != 3))
    return Status(Code::kInvalidLayout, "a frame's rows are dense; copy it with numpy.ascontiguousarray");
  *frame = {static_cast<const uint8_t*>(t.data), t.shape[0], t.shape[1], t.stride[0]};
  return {};
}

/// f32 values of any shape, dense.
std::span<const float> floats(nb::handle o, const char* what, Given* given) {
  if (o.is_none()) return {};
  Tensor t;
  check(to_tensor(o.ptr(), false, &t, &given->from).with_context(what));
  if (t.dtype != DType::f32 || t.place != Place::host || !t.is_dense())
    check(Status(Code::kInvalidDType,
                 std::string(what) + ": wanted dense f32 values in host memory, got " + name(t.dtype)));
  return {static_cast<const float*>(t.data), static_cast<size_t>(t.shape.elements())};
}

/// Each a dict: frames, tokens, state, noise, seed, end_token, action_prefix; embodiment, prev_actions, overlap and
/// frozen where they are given.
void read(nb::list all, Given* given) {
  given->views.resize(nb::len(all));
  given->tokens.resize(nb::len(all));
  for (size_t i = 0; i < nb::len(all); ++i) {
    const nb::dict d = nb::cast<nb::dict>(all[i]);
    for (nb::handle o : nb::cast<nb::list>(d["frames"])) {
      Frame f;
      check(frame_of(o, given, &f).with_context("camera " + std::to_string(given->views[i].size())));
      given->views[i].push_back(f);
    }
    given->tokens[i] = nb::cast<std::vector<int32_t>>(d["tokens"]);
    given->observations.push_back({given->views[i], given->tokens[i], floats(d["state"], "state", given),
                                   floats(d["noise"], "noise", given), nb::cast<uint64_t>(d["seed"]),
                                   nb::cast<int32_t>(d["end_token"]),
                                   floats(d["action_prefix"], "action_prefix", given)});
    Observation& o = given->observations.back();
    for (const auto& [name, to] :
         {std::pair{"embodiment", &o.embodiment}, {"overlap", &o.overlap}, {"frozen", &o.frozen}})
      if (d.contains(name)) *to = nb::cast<int32_t>(d[name]);
    if (d.contains("prev_actions")) o.prev_actions = floats(d["prev_actions"], "prev_actions", given);
  }
}

/// Actions as bytes of f32 [observations, horizon, robot_dim].
nb::bytes predict(Policy& p, nb::list observations) {
  Given given;
  read(observations, &given);
  const engine::PolicyLimits l = p.model->limits();
  std::vector<float> actions(given.observations.size() * static_cast<size_t>(l.horizon * l.robot_dim));
  check(in_turn(p, [&](engine::PolicyModel& model) { return model.predict(given.observations, actions); }));
  return nb::bytes(actions.data(), actions.size() * sizeof(float));
}

/// [(name, step, dtype, bytes, shape)] of every value that the policy shows.
nb::list observe(Policy& p, nb::list observations) {
  Given given;
  read(observations, &given);
  nb::list seen;
  check(in_turn(p, [&](engine::PolicyModel& model) {
    return model.observe(given.observations, [&](const char* name, int step, const Tensor& t) -> Status {
      const nb::gil_scoped_acquire gil;
      nb::list shape;
      for (int i = 0; i < t.shape.rank; ++i) shape.append(t.shape[i]);
      seen.append(nb::make_tuple(name, step, vivace::name(t.dtype),
                                 nb::bytes(t.data, static_cast<size_t>(t.span_bytes())), shape));
      return {};
    });
  }));
  return seen;
}

nb::dict limits(const Policy& p) {
  const engine::PolicyLimits l = p.model->limits();
  nb::dict d;
  d["views"] = l.views, d["horizon"] = l.horizon, d["steps"] = l.steps, d["batch"] = l.batch,
  d["prompt_tokens"] = l.prompt_tokens;
  d["codes"] = l.max_action_tokens, d["action_dim"] = l.action_dim, d["robot_dim"] = l.robot_dim,
  d["state_dim"] = l.state_dim, d["takes_state"] = l.takes_state, d["sees_state"] = l.sees_state;
  d["embodiments"] = l.embodiments;
  return d;
}

nb::dict profile(Policy& p, int stage, bool in_step) {
  auto got = in_turn(p, [&](engine::PolicyModel& model) {
    return model.profile(static_cast<engine::PolicyModel::Stage>(stage), in_step);
  });
  check(got.status());
  return profile_dict(*got);
}

std::vector<float> scale(const std::string& kind, const std::string& flavour, std::vector<double> low,
                         std::vector<double> high, const std::vector<float>& x, bool inverse) {
  using models::vla::Scaler;
  Scaler s;
  s.kind = kind == "mean_std"    ? Scaler::Kind::mean_std
           : kind == "quantiles" ? Scaler::Kind::quantiles
                                 : Scaler::Kind::min_max;
  s.flavour = flavour == "openpi" ? Scaler::Flavour::openpi : Scaler::Flavour::lerobot;
  if (low.empty() || low.size() != high.size())
    check(Status(Code::kInvalidShape, "low and high: wanted as many of one as of the other"));
  s.low = std::move(low), s.high = std::move(high);
  std::vector<float> out;
  for (size_t i = 0; i < x.size(); ++i)
    out.push_back(inverse ? s.unnormalize(x[i], i % s.low.size()) : s.normalize(x[i], i % s.low.size()));
  return out;
}

}  // namespace

void add_policy(nb::module_& m) {
  using models::vla::ActionCodec;
  nb::class_<ActionCodec>(m, "ActionCodec")
      .def_static(
          "open",
          [](const std::string& tokenizer, double scale, int min_token) {
            auto codec = ActionCodec::open(tokenizer, scale, min_token);
            check(codec.status());
            return std::move(codec).value();
          },
          nb::arg("tokenizer"), nb::arg("scale"), nb::arg("min_token"))
      .def(
          "decode",
          [](const ActionCodec& c, const std::vector<int32_t>& codes, int64_t horizon, int64_t dims, bool strict) {
            if (horizon < 1 || dims < 1 || horizon > 4096 || dims > 4096)
              check(Status(Code::kInvalidShape, "decode: wanted 1 to 4096 steps and dimensions"));
            std::vector<float> out(static_cast<size_t>(horizon * dims));
            check(c.decode(codes, horizon, dims, strict, out));
            return out;
          },
          nb::arg("codes"), nb::arg("horizon"), nb::arg("dims"), nb::arg("strict") = false);
  m.def(
      "prompt_parts",
      [](const std::string& family, const std::string& task, const std::vector<float>& state, bool state_words) {
        auto parts = models::vla::prompt_parts(family, task, state, state_words);
        check(parts.status());
        return std::move(parts).value();
      },
      nb::arg("family"), nb::arg("task"), nb::arg("state"), nb::arg("state_words") = true);
  using models::groot::Prompter;
  nb::class_<Prompter>(m, "GrootPrompter")
      .def_static("open", [](const std::string& tokenizer, const std::string& family) {
        auto prompter = Prompter::open(tokenizer, family);
        check(prompter.status());
        return std::move(prompter).value();
      }, nb::arg("tokenizer"), nb::arg("family") = "groot_n17")
      .def("tokens", [](const Prompter& p, const std::string& task, int images) {
        auto ids = p.tokens(task, images);
        check(ids.status());
        return std::move(ids).value();
      }, nb::arg("task"), nb::arg("images"));
  nb::class_<Policy>(m, "Policy")
      .def("report", [](const Policy& p) { return p.model->report(); })
      .def("memory", [](const Policy& p) { return memory_lines(*p.model); })
      .def("limits", &limits)
      .def(
          "sleep",
          [](Policy& p, const Tenant& t) { return moved(in_turn(p, [&](auto& m) { return t.tenant->sleep(m); })); },
          nb::arg("tenant"))
      .def(
          "wake",
          [](Policy& p, const Tenant& t) { return moved(in_turn(p, [&](auto& m) { return t.tenant->wake(m); })); },
          nb::arg("tenant"))
      .def("predict", &predict, nb::arg("observations"))
      .def(
          "generate",
          [](Policy& p, nb::list observations) {
            Given given;
            read(observations, &given);
            std::vector<std::vector<int32_t>> all;
            check(in_turn(p, [&](engine::PolicyModel& model) -> Status {
              VV_TRY(model.generate(given.observations));
              for (size_t i = 0; i < given.observations.size(); ++i) {
                VV_ASSIGN(const auto got, model.tokens(static_cast<int>(i)));
                all.emplace_back(got.begin(), got.end());
              }
              return {};
            }));
            return all;
          },
          nb::arg("observations"))
      .def("device_us",
           [](Policy& p) { return in_turn(p, [](engine::PolicyModel& model) { return model.device_us(); }); })
      .def(
          "normalized",
          [](Policy& p, int i) {
            std::vector<float> values;
            check(in_turn(p, [&](engine::PolicyModel& model) -> Status {
              VV_ASSIGN(const auto got, model.normalized(i));
              values.assign(got.begin(), got.end());
              return {};
            }));
            return nb::bytes(values.data(), values.size() * sizeof(float));
          },
          nb::arg("observation"))
      .def(
          "normalize_state",
          [](const Policy& p, const std::vector<float>& state) {
            auto got = p.model->normalized_state(state);
            check(got.status());
            return *got;
          },
          nb::arg("state"))
      .def("observe", &observe, nb::arg("observations"))
      .def(
          "calibrate",
          [](Policy& p, nb::list observations, double percentile) {
            Given given;
            read(observations, &given);
            auto scales =
                in_turn(p, [&](engine::PolicyModel& model) { return model.calibrate(given.observations, percentile); });
            check(scales.status());
            return std::move(scales).value();
          },
          nb::arg("observations"), nb::arg("percentile"))
      .def(
          "set_act_scales",
          [](Policy& p, const std::vector<float>& scales) {
            check(in_turn(p, [&](engine::PolicyModel& model) { return model.set_act_scales(scales); }));
          },
          nb::arg("scales"))
      .def("profile", &profile, nb::arg("stage"), nb::arg("in_step") = false);
  m.def("load_policy", &load_policy, nb::arg("path"), nb::kw_only(), nb::arg("config") = "auto",
        nb::arg("device") = "auto", nb::arg("precision") = "auto", nb::arg("resize") = "auto",
        nb::arg("statistics") = "auto", nb::arg("delta") = std::vector<bool>(), nb::arg("robot") = "",
        nb::arg("threads") = 0, nb::arg("num_views") = 0, nb::arg("action_horizon") = 0, nb::arg("num_steps") = 0,
        nb::arg("batch") = 1, nb::arg("prompt_tokens") = 0, nb::arg("max_action_tokens") = 0, nb::arg("codec") = "",
        nb::arg("act_scales") = std::vector<float>(), nb::arg("eager") = false, nb::arg("partition") = 0.0,
        nb::arg("random_weights") = false, nb::arg("embodiment") = -1, nb::arg("tenant").none() = nb::none(),
        nb::arg("keep_partition") = false, nb::arg("expert") = "bf16");
  m.def("policy_family", [](const std::string& path) {
    auto family = models::policy_family(path);
    check(family.status());
    return *family;
  }, nb::arg("path"));
  m.def("scale_values", &scale, nb::arg("kind"), nb::arg("flavour"), nb::arg("low"), nb::arg("high"), nb::arg("x"),
        nb::arg("inverse"));
}

}  // namespace vivace::python
