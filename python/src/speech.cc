// Speech models for Python. Thin: every decision is in models/whisper.
#include <mutex>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "gil.h"
#include "model.h"
#include "sched.h"
#include "tensor.h"
#include "vivace/base/check.h"
#include "vivace/engine/speech.h"
#include "vivace/models/whisper/model.h"
#include "vivace/models/whisper/repeats.h"

namespace vivace::python {
namespace {

using engine::SpeechRequest;

struct Speech {
  explicit Speech(std::unique_ptr<engine::SpeechModel> m) : model(std::move(m)) {}
  ~Speech() { let_go(&model); }
  std::unique_ptr<engine::SpeechModel> model;
  std::mutex turn;  // of the caller whose call it is
};

/// f(model) without the GIL: calls of several threads take turns.
template <class F>
auto in_turn(Speech& s, F&& f) {
  const NoGil release;
  const std::lock_guard hold(s.turn);
  return f(*s.model);
}

std::unique_ptr<Speech> load_speech(const std::string& path, const std::string& device, const std::string& precision,
                                    int threads, int windows, int rows, bool eager, bool random_weights,
                                    std::vector<float> act_scales, const Tenant* tenant,
                                    const std::string& decode_layers) {
  engine::SpeechOptions options{device, precision,      threads,       windows, rows,
                                eager,  random_weights, decode_layers, {},      {}};
  options.act_scales = std::move(act_scales);
  if (tenant != nullptr)
    options.gates = tenant->tenant->gates(), options.account = tenant->tenant,
    options.most_bytes = tenant->tenant->most_bytes();
  auto loaded = [&]() -> Result<std::unique_ptr<engine::SpeechModel>> {
    const NoGil release;
    if (tenant != nullptr) VV_TRY(sched::check_speech(*tenant->tenant));
    VV_ASSIGN(std::unique_ptr<engine::SpeechModel> model, models::whisper::load_speech(path, options));
    if (tenant != nullptr) VV_TRY(sched::admit_speech(*tenant->tenant, *model, tenant->worst_us));
    return model;
  }();
  check(loaded.status());
  return std::make_unique<Speech>(std::move(loaded).value());
}

nb::dict limits(const Speech& s) {
  const engine::SpeechLimits l = s.model->limits();
  nb::dict d;
  for (const auto& [name, value] : {std::pair{"rate", l.rate},
                                    {"hop", l.hop},
                                    {"vocab", l.vocab},
                                    {"mels", l.mels},
                                    {"frames", l.frames},
                                    {"encoded", l.encoded},
                                    {"positions", l.positions},
                                    {"windows", l.windows},
                                    {"rows", l.rows},
                                    {"layers", l.layers},
                                    {"heads", l.heads}})
    d[name] = value;
  return d;
}

nb::dict tokens(const Speech& s) {
  const engine::SpeechTokens& t = s.model->tokens();
  nb::dict d;
  for (const auto& [name, value] : {std::pair{"eot", t.eot},
                                    {"sot", t.sot},
                                    {"first_language", t.first_language},
                                    {"languages", t.languages},
                                    {"translate", t.translate},
                                    {"transcribe", t.transcribe},
                                    {"sot_lm", t.sot_lm},
                                    {"sot_prev", t.sot_prev},
                                    {"no_speech", t.no_speech},
                                    {"no_timestamps", t.no_timestamps},
                                    {"first_timestamp", t.first_timestamp},
                                    {"timestamps", t.timestamps}})
    d[name] = value;
  d["multilingual"] = t.multilingual;
  return d;
}

std::span<const float> samples(nb::handle o, Borrowed* from) {
  Tensor t;
  check(to_tensor(o.ptr(), false, &t, from).with_context("samples"));
  if (t.dtype != DType::f32 || t.place != Place::host || !t.is_dense() || t.shape.rank != 1)
    check(Status(Code::kInvalidDType, "samples: wanted dense f32 [N] in host memory"));
  return {static_cast<const float*>(t.data), static_cast<size_t>(t.shape.elements())};
}

nb::bytes floats(const std::vector<float>& values) { return nb::bytes(values.data(), values.size() * sizeof(float)); }

/// Each window: (samples, first frame, frames, peak).
void encode(Speech& s, nb::list windows) {
  Borrowed from;
  std::vector<engine::SpeechWindow> all;
  for (nb::handle h : windows) {
    const auto w = nb::cast<nb::tuple>(h);
    all.push_back({samples(w[0], &from), nb::cast<int64_t>(w[1]), nb::cast<int64_t>(w[2]), nb::cast<float>(w[3])});
  }
  check(in_turn(s, [&](engine::SpeechModel& m) { return m.encode(all); }));
}

SpeechRequest request_of(const nb::dict& d) {
  SpeechRequest r;
  const auto get = [&](const char* key, auto* to) {
    if (d.contains(key)) *to = nb::cast<std::remove_pointer_t<decltype(to)>>(d[key]);
  };
  get("window", &r.window);
  get("prompt", &r.prompt);
  get("suppress", &r.suppress);
  get("suppress_first", &r.suppress_first);
  get("timestamps", &r.timestamps);
  get("max_first_timestamp", &r.max_first_timestamp);
  get("temperature", &r.temperature);
  get("candidates", &r.candidates);
  get("patience", &r.patience);
  get("length_penalty", &r.length_penalty);
  get("most", &r.most);
  get("seed", &r.seed);
  get("heads", &r.follow.heads);
  get("content", &r.follow.content);
  get("margin", &r.follow.margin);
  get("rewind", &r.follow.rewind);
  return r;
}

/// (tokens, places, how it ended, no_speech) of a request that has heads.
nb::tuple followed(const engine::Transcript& t) {
  static constexpr const char* kEnds[] = {"eot", "most", "margin", "rewind"};
  return nb::make_tuple(t.tokens, t.places, kEnds[static_cast<int>(t.end)], t.no_speech);
}

/// [(tokens, logprob, no_speech)] of requests, each a dict with the fields of SpeechRequest; where it has `logprobs`,
/// those of each token are a fourth; where it has heads, as followed() says.
nb::list decode(Speech& s, nb::list requests) {
  std::vector<SpeechRequest> all;
  for (nb::handle h : requests) all.push_back(request_of(nb::cast<nb::dict>(h)));
  std::vector<engine::Transcript> out;
  check(in_turn(s, [&](engine::SpeechModel& m) { return m.decode(all, &out); }));
  nb::list result;
  for (size_t i = 0; i < out.size(); ++i) {
    const engine::Transcript& t = out[i];
    if (!all[i].follow.heads.empty())
      result.append(followed(t));
    else if (nb::cast<nb::dict>(requests[i]).contains("logprobs"))
      result.append(nb::make_tuple(t.tokens, t.logprob, t.no_speech, t.logprobs));
    else
      result.append(nb::make_tuple(t.tokens, t.logprob, t.no_speech));
  }
  return result;
}

/// One request that has heads, alone.
nb::tuple follow(Speech& s, const nb::dict& request) {
  const SpeechRequest one = request_of(request);
  std::vector<engine::Transcript> out;
  check(in_turn(s, [&](engine::SpeechModel& m) { return m.decode({&one, 1}, &out); }));
  return followed(out[0]);
}

/// f(model) -> Result<std::vector<float>>, as bytes.
template <class F>
nb::bytes values_of(Speech& s, F&& f) {
  auto got = in_turn(s, f);
  check(got.status());
  return floats(*got);
}

}  // namespace

void add_speech(nb::module_& m) {
  nb::class_<Speech>(m, "Speech")
      .def("report", [](const Speech& s) { return s.model->report(); })
      .def("memory", [](const Speech& s) { return memory_lines(*s.model); })
      .def(
          "sleep",
          [](Speech& s, const Tenant& t) { return moved(in_turn(s, [&](auto& m) { return t.tenant->sleep(m); })); },
          nb::arg("tenant"))
      .def(
          "wake",
          [](Speech& s, const Tenant& t) { return moved(in_turn(s, [&](auto& m) { return t.tenant->wake(m); })); },
          nb::arg("tenant"))
      .def("limits", &limits)
      .def("tokens", &tokens)
      .def(
          "peak",
          [](Speech& s, nb::handle given) {
            Borrowed from;
            const std::span<const float> all = samples(given, &from);
            auto peak = in_turn(s, [&](engine::SpeechModel& model) { return model.peak(all); });
            check(peak.status());
            return *peak;
          },
          nb::arg("samples"))
      .def("encode", &encode, nb::arg("windows"))
      .def(
          "encoded",
          [](Speech& s, int window) {
            return values_of(s, [&](engine::SpeechModel& model) { return model.encoded(window); });
          },
          nb::arg("window") = 0)
      .def(
          "languages",
          [](Speech& s, int window) {
            return values_of(s, [&](engine::SpeechModel& model) { return model.languages(window); });
          },
          nb::arg("window") = 0)
      .def(
          "logits",
          [](Speech& s, int window, const std::vector<int32_t>& ids) {
            return values_of(s, [&](engine::SpeechModel& model) { return model.logits(window, ids); });
          },
          nb::arg("window"), nb::arg("tokens"))
      .def("decode", &decode, nb::arg("requests"))
      .def("follow", &follow, nb::arg("request"))
      .def(
          "align",
          [](Speech& s, int window, const std::vector<int32_t>& lead, const std::vector<int32_t>& text, int frames,
             const std::vector<std::pair<int, int>>& heads) {
            auto got =
                in_turn(s, [&](engine::SpeechModel& model) { return model.align(window, lead, text, frames, heads); });
            check(got.status());
            return std::pair(got->start, got->probability);
          },
          nb::arg("window"), nb::arg("lead"), nb::arg("text"), nb::arg("frames"), nb::arg("heads"))
      .def(
          "calibrate",
          [](Speech& s, nb::list sounds, double percentile) {
            Borrowed from;
            std::vector<std::span<const float>> all;
            for (nb::handle h : sounds) all.push_back(samples(h, &from));
            auto scales = in_turn(s, [&](engine::SpeechModel& model) { return model.calibrate(all, percentile); });
            check(scales.status());
            return *scales;
          },
          nb::arg("sounds"), nb::arg("percentile") = 100.0)
      .def(
          "profile",
          [](Speech& s, int windows, int rows, bool in_step) {
            auto got = in_turn(s, [&](engine::SpeechModel& model) { return model.profile(windows, rows, in_step); });
            check(got.status());
            return profile_dict(*got);
          },
          nb::arg("windows"), nb::arg("rows"), nb::arg("in_step") = false,
          "What the launches of encoding `windows` windows cost, or of a step of `rows` rows where that is 0.");
  m.def(
      "compression_ratio", [](std::string_view text) { return models::whisper::compression_ratio(text); },
      nb::arg("text"));
  m.def("load_speech", &load_speech, nb::arg("path"), nb::kw_only(), nb::arg("device") = "auto",
        nb::arg("precision") = "auto", nb::arg("threads") = 0, nb::arg("windows") = 1, nb::arg("rows") = 5,
        nb::arg("eager") = false, nb::arg("random_weights") = false, nb::arg("act_scales") = std::vector<float>(),
        nb::arg("tenant") = nb::none(), nb::arg("decode_layers") = "auto");
}

}  // namespace vivace::python
