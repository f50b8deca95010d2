// Models and batching for Python. Thin: every decision is in engine/ and serve/.
#include "model.h"

#include <cstring>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "vivace/base/float_types.h"
#include "vivace/models/models.h"
#include "vivace/serve/batcher.h"
#include "vivace/serve/speculation.h"

namespace vivace::python {
namespace {

struct TextModel {
  std::unique_ptr<engine::Model> owner;
  engine::TextModel* model;
};

std::unique_ptr<TextModel> load_text_model(const std::string& path, const std::string& device, const std::string& precision,
                                           const std::string& kv_dtype, int threads, int context, int max_batch, int chunk, bool eager, int ahead,
                                           bool random_weights, bool logit_bias, int kv_pages, int resident_layers, std::vector<float> act_scales, const std::string& head, const std::string& invariance) {
  Result<std::unique_ptr<engine::Model>> loaded = [&] {
    nb::gil_scoped_release release;
    return models::load_model(path, {device, precision, kv_dtype, threads, context, max_batch, chunk, eager, ahead, random_weights, logit_bias, kv_pages, resident_layers, std::move(act_scales), invariance, head});
  }();
  check(loaded.status());
  auto* text = dynamic_cast<engine::TextModel*>(loaded->get());
  if (text == nullptr) check(Status(Code::kUnsupported, path + ": this checkpoint is no text model"));
  return std::make_unique<TextModel>(TextModel{std::move(loaded).value(), text});
}

nb::dict limits(const TextModel& m) {
  const engine::TextLimits l = m.model->limits();
  nb::dict d;
  d["vocab"] = l.vocab;
  d["context"] = l.context;
  d["max_batch"] = l.max_batch;
  d["chunk"] = l.chunk;
  d["ahead"] = l.ahead;
  return d;
}

/// Batcher plus the reference that keeps its model alive.
struct Batcher {
  explicit Batcher(TextModel& m) : batcher(*m.model) { events.reserve(static_cast<size_t>(2 * m.model->limits().max_batch + 16)); }
  serve::Batcher batcher;
  std::vector<serve::Event> events;
};

/// f32 values as bytes: what NumPy's tobytes() gives, without a copy of each number.
std::vector<float> floats(const nb::bytes& b) {
  if (b.size() % sizeof(float) != 0) check(Status(Code::kInvalidShape, "bias: bytes that are no whole number of f32 values"));
  std::vector<float> values(b.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), b.c_str(), b.size());
  return values;
}

int64_t submit(Batcher& b, std::vector<int32_t> prompt, int max_tokens, float temperature, int top_k, float top_p, float min_p,
               float repetition, float presence, float frequency, int64_t seed, std::vector<int32_t> stop, nb::bytes bias, bool stepwise) {
  engine::Sampling s{temperature, top_p, min_p, top_k, repetition, presence, frequency, seed};
  Result<int64_t> id = b.batcher.submit({std::move(prompt), max_tokens, s, std::move(stop), floats(bias), stepwise});
  check(id.status());
  return *id;
}

/// [(request, token or None, logprob, finish or None)] of a Batcher or a Speculation.
template <class Stepped>
nb::list step_of(Stepped& stepped, std::vector<serve::Event>& events) {
  Status s = [&] {
    nb::gil_scoped_release release;
    return stepped.step(&events);
  }();
  check(s);
  nb::list out;
  for (const serve::Event& e : events) {
    nb::object token = e.token >= 0 ? nb::object(nb::int_(e.token)) : nb::none();
    nb::object finish = e.finish == serve::Finish::none ? nb::none() : nb::object(nb::str(serve::name(e.finish)));
    out.append(nb::make_tuple(e.request, token, e.logprob, finish));
  }
  return out;
}

nb::list step(Batcher& b) { return step_of(b.batcher, b.events); }

/// A drafter and what checks its guesses.
struct Speculation {
  std::unique_ptr<serve::Drafter> drafter;
  std::unique_ptr<serve::Speculation> speculation;
  std::vector<serve::Event> events;
};

std::unique_ptr<Speculation> speculate(TextModel& m, TextModel* draft_model, int drafts, std::vector<int32_t> prompt, int max_tokens, std::vector<int32_t> stop) {
  auto s = std::make_unique<Speculation>();
  if (draft_model != nullptr) s->drafter = std::make_unique<serve::DraftModel>(*draft_model->model);
  else s->drafter = std::make_unique<serve::PromptLookup>();
  serve::Request request;
  request.prompt = std::move(prompt), request.max_tokens = max_tokens, request.stop = std::move(stop);
  Result<serve::Speculation> made = serve::Speculation::start(*m.model, *s->drafter, drafts, std::move(request));
  check(made.status());
  s->speculation = std::make_unique<serve::Speculation>(std::move(made).value());
  return s;
}

/// Logits of the last step as nested lists would be slow: a copy as bytes plus its shape.
nb::tuple logits(TextModel& m) {
  Result<Tensor> last = m.model->logits();
  check(last.status());
  const Tensor& t = *last;
  return nb::make_tuple(nb::bytes(t.data, static_cast<size_t>(t.span_bytes())), t.shape[0], t.shape[1]);
}

/// Steps the model directly: rows of (token, pos, slot, sample) -> [(token, logprob, slot)].
nb::list model_step(TextModel& m, const std::vector<std::tuple<int, int, int, bool>>& rows) {
  std::vector<engine::TokenRow> r;
  size_t sampled = 0;
  for (const auto& [token, pos, slot, sample] : rows) {
    r.push_back({token, pos, slot, sample});
    sampled += sample;
  }
  std::vector<engine::Sampled> out(sampled);
  Status s = [&] {
    nb::gil_scoped_release release;
    return m.model->step(r, out);
  }();
  check(s);
  nb::list result;
  for (const engine::Sampled& x : out) result.append(nb::make_tuple(x.token, x.logprob, x.slot));
  return result;
}

/// Steps like step() and gives [(op, port, bytes, shape, stride)] of every f32 or bf16 value between ops, as f32, rows one behind the
/// other; `stride`: elements from one row to the next where they lay.
nb::list observe(TextModel& m, const std::vector<std::tuple<int, int, int, bool>>& rows) {
  std::vector<engine::TokenRow> r;
  for (const auto& [token, pos, slot, sample] : rows) r.push_back({token, pos, slot, sample});
  nb::list seen;
  check(m.model->observe(r, [&](const char* op, const char* port, const Tensor& t) -> Status {
    if ((t.dtype != DType::f32 && t.dtype != DType::bf16) || t.shape.rank == 0 || t.span_bytes() == 0) return {};
    const int64_t row = Tensor(slice(t, 0, 1)).shape.elements();
    std::vector<float> dense;  // rows may be strided: parts of a wider buffer
    for (int64_t i = 0; i < t.shape[0] * row; ++i) {
      const int64_t at = i / row * t.stride[0] + i % row;
      dense.push_back(t.dtype == DType::f32 ? static_cast<const float*>(t.data)[at] : f32_of_bf16(static_cast<const uint16_t*>(t.data)[at]));
    }
    nb::list shape;
    for (int i = 0; i < t.shape.rank; ++i) shape.append(t.shape[i]);
    seen.append(nb::make_tuple(op, port, nb::bytes(dense.data(), dense.size() * sizeof(float)), shape, t.stride[0]));
    return {};
  }));
  return seen;
}

std::vector<float> calibrate(TextModel& m, const std::vector<std::vector<int32_t>>& prompts, double percentile) {
  Result<std::vector<float>> scales = [&] {
    nb::gil_scoped_release release;
    return m.model->calibrate(prompts, percentile);
  }();
  check(scales.status());
  return std::move(scales).value();
}

nb::dict profile(TextModel& m, int rows, int pos, bool decode, bool in_step) {
  Result<engine::Profile> p = [&] {
    nb::gil_scoped_release release;
    return m.model->profile(rows, pos, decode, in_step);
  }();
  check(p.status());
  return profile_dict(*p);
}

}  // namespace

nb::dict profile_dict(const engine::Profile& profile) {
  nb::list groups;
  for (const engine::LaunchGroup& g : profile.groups) {
    nb::dict d;
    d["op"] = g.op, d["launches"] = g.launches, d["bytes"] = g.bytes, d["flops"] = g.flops, d["us"] = g.us, d["in_step_us"] = g.in_step_us;
    groups.append(d);
  }
  nb::dict d;
  d["step_us"] = profile.step_us, d["groups"] = groups, d["order"] = profile.order;
  return d;
}

std::vector<std::pair<std::string, int64_t>> memory_lines(const engine::Model& model) {
  std::vector<std::pair<std::string, int64_t>> lines;
  for (const engine::MemoryLine& l : model.memory()) lines.emplace_back(l.name, l.bytes);
  return lines;
}

void add_model(nb::module_& m) {
  nb::class_<TextModel>(m, "TextModel")
      .def("report", [](const TextModel& t) { return t.model->report(); })
      .def("memory", [](const TextModel& t) { return memory_lines(*t.model); })
      .def("limits", &limits)
      .def("start", [](TextModel& t, int slot, float temperature, int64_t seed) {
        engine::Sampling s;
        s.temperature = temperature;
        s.seed = seed;
        check(t.model->start(slot, s));
      }, nb::arg("slot"), nb::arg("temperature") = 0.0f, nb::arg("seed") = 0)
      .def("step", &model_step)
      .def("observe", &observe, nb::arg("rows"))
      .def("calibrate", &calibrate, nb::arg("prompts"), nb::arg("percentile"))
      .def("profile", &profile, nb::arg("rows"), nb::arg("pos"), nb::arg("decode"), nb::arg("in_step") = false)
      .def("logits", &logits);
  nb::class_<Batcher>(m, "Batcher")
      .def(nb::init<TextModel&>(), nb::keep_alive<1, 2>())
      .def("submit", &submit, nb::kw_only(), nb::arg("prompt"), nb::arg("max_tokens"), nb::arg("temperature"), nb::arg("top_k"),
           nb::arg("top_p"), nb::arg("min_p"), nb::arg("repetition"), nb::arg("presence"), nb::arg("frequency"), nb::arg("seed"), nb::arg("stop"),
           nb::arg("bias") = nb::bytes("", 0), nb::arg("stepwise") = false)
      .def("set_bias", [](Batcher& b, int64_t id, nb::bytes bias) { check(b.batcher.set_bias(id, floats(bias))); })
      .def("cancel", [](Batcher& b, int64_t id) { check(b.batcher.cancel(id)); })
      .def("idle", [](const Batcher& b) { return b.batcher.idle(); })
      .def("step", &step);
  nb::class_<Speculation>(m, "Speculation")
      .def("idle", [](const Speculation& s) { return s.speculation->idle(); })
      .def("step", [](Speculation& s) { return step_of(*s.speculation, s.events); })
      .def("counts", [](const Speculation& s) { return nb::make_tuple(s.speculation->steps(), s.speculation->drafted(), s.speculation->accepted()); });
  m.def("speculate", &speculate, nb::arg("model"), nb::arg("draft_model").none(), nb::kw_only(), nb::arg("drafts"), nb::arg("prompt"), nb::arg("max_tokens"),
        nb::arg("stop"), nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>());
  m.def("load_text_model", &load_text_model, nb::arg("path"), nb::kw_only(), nb::arg("device"), nb::arg("precision"), nb::arg("kv_dtype"),
        nb::arg("threads"), nb::arg("context"), nb::arg("max_batch"), nb::arg("chunk"), nb::arg("eager") = false, nb::arg("ahead") = 0, nb::arg("random_weights") = false, nb::arg("logit_bias") = false,
        nb::arg("kv_pages") = 0, nb::arg("resident_layers") = -1, nb::arg("act_scales") = std::vector<float>(), nb::arg("head") = "auto", nb::arg("invariance") = "class");
}

}  // namespace vivace::python
