// Text models for Python; their requests are request.cc. Thin: every decision is in engine/ and serve/.
#include "model.h"

#include <algorithm>
#include <chrono>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "gil.h"
#include "sched.h"
#include "text_model.h"
#include "vivace/base/check.h"
#include "vivace/base/float_types.h"
#include "vivace/models/models.h"

namespace vivace::python {
namespace {

std::unique_ptr<TextModel> load_text_model(
    const std::string& path, const std::string& device, const std::string& precision, const std::string& kv_dtype,
    int threads, int context, int max_batch, int prefill_chunk, bool eager, int max_in_flight_steps,
    bool random_weights, bool logit_bias, int num_kv_blocks, int gpu_layers, std::vector<float> act_scales,
    const std::string& lm_head_dtype, const std::string& invariance, int max_waiting, int64_t max_waiting_tokens,
    double priority_ageing, const Tenant* tenant, int max_image_tokens, std::optional<int64_t> state_cache_bytes,
    int mtp, const std::string& decode_layers) {
  if (max_waiting < 0 || max_waiting > 65536)
    check(Status(Code::kInvalidArgument, strf("max_waiting: wanted 0 to 65536, got %d", max_waiting)));
  if (max_waiting_tokens < 1)
    check(Status(Code::kInvalidArgument,
                 strf("max_waiting_tokens: wanted at least 1, got %ld", static_cast<long>(max_waiting_tokens))));
  constexpr double kMostAgeing = 1e6;  // seconds
  if (!(priority_ageing >= 0 && priority_ageing <= kMostAgeing))
    check(Status(Code::kInvalidArgument,
                 strf("priority_ageing: wanted 0 to %g seconds, got %g", kMostAgeing, priority_ageing)));
  if (tenant != nullptr) check(sched::check_text(*tenant->tenant));
  Result<std::unique_ptr<engine::Model>> loaded = [&] {
    const NoGil release;
    return models::load_model(path, {device,
                                     precision,
                                     kv_dtype,
                                     threads,
                                     context,
                                     max_batch,
                                     prefill_chunk,
                                     eager,
                                     max_in_flight_steps,
                                     random_weights,
                                     logit_bias,
                                     num_kv_blocks,
                                     gpu_layers,
                                     std::move(act_scales),
                                     invariance,
                                     lm_head_dtype,
                                     tenant != nullptr ? tenant->tenant->gates() : engine::GateSite(),
                                     max_image_tokens,
                                     tenant != nullptr ? tenant->tenant->most_bytes() : 0,
                                     state_cache_bytes.value_or(engine::LoadOptions::kStatesAuto),
                                     mtp,
                                     decode_layers});
  }();
  check(loaded.status());
  auto* text = dynamic_cast<engine::TextModel*>(loaded->get());
  if (text == nullptr) check(Status(Code::kUnsupported, path + ": this checkpoint is no text model"));
  serve::EngineOptions options{max_waiting, max_waiting_tokens};
  options.ageing.after =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(priority_ageing));
  if (tenant != nullptr) {
    check(sched::admit_text(*tenant->tenant, *text, tenant->worst_us));
    options.account = tenant->tenant;
  }
  return std::make_unique<TextModel>(std::make_shared<ServedModel>(std::move(loaded).value(), *text, options));
}

/// Bytes and seconds. While it sleeps its requests are refused.
nb::tuple moved_text(TextModel& m, const Tenant& tenant, bool to_sleep) {
  return moved([&]() -> Result<engine::Moved> {
    const NoGil release;
    ServedModel& s = *m.served;
    const std::lock_guard hold(s.moving);
    if (!to_sleep) {
      VV_ASSIGN(const engine::Moved back, tenant.tenant->wake(*s.owner));
      s.asleep.reset();
      return back;
    }
    if (s.asleep) return tenant.tenant->sleep(*s.owner);  // which says so
    VV_ASSIGN(auto lease, s.loop.lease("the model sleeps, its memory is on the host; wake() it with its scheduler"));
    VV_ASSIGN(const engine::Moved gone, tenant.tenant->sleep(*s.owner));
    s.asleep.emplace(std::move(lease));
    return gone;
  }());
}

nb::dict limits(const TextModel& m) {
  const engine::TextLimits l = m.model().limits();
  nb::dict d;
  d["vocab"] = l.vocab;
  d["context"] = l.context;
  d["max_batch"] = l.max_batch;
  d["prefill_chunk"] = l.prefill_chunk;
  d["max_in_flight_steps"] = l.max_in_flight_steps;
  if (l.images.tokens > 0) {
    nb::dict images;
    images["token"] = l.images.token, images["side"] = l.images.side, images["tokens"] = l.images.tokens,
    images["places"] = l.images.places;
    d["images"] = images;
  }
  return d;
}

/// Runs f(model), which keeps the GIL, while no request uses the model.
template <class F>
auto direct(TextModel& m, F&& f) {
  const auto alone = [&] {
    const NoGil release;
    return m.served->loop.direct();
  }();
  check(alone.status());
  return f(m.model());
}

/// A sequence that was started directly must not go on after requests used its slot.
void start(TextModel& m, int slot, float temperature, int64_t seed) {
  engine::Sampling s;
  s.temperature = temperature;
  s.seed = seed;
  direct(m, [&](engine::TextModel& model) {
    check(model.start(slot, s));
    m.started.at(static_cast<size_t>(slot)) = m.served->loop.submitted();
  });
}

/// (token, pos, slot, sample) each, of guesses (..., True), and of models that see (..., image, time, line, column),
/// TokenRow's last two.
std::vector<engine::TokenRow> rows_of(TextModel& m, const std::vector<nb::tuple>& rows) {
  std::vector<engine::TokenRow> r;
  for (const nb::tuple& row : rows) {
    if (row.size() != 4 && row.size() != 5 && row.size() != 8)
      check(Status(Code::kInvalidArgument,
                   strf("step: a row has 4 values, 5 of a guess, or 8 with an image's, got %zu", row.size())));
    const auto number = [&](size_t i) { return nb::cast<int32_t>(row[i]); };
    const int32_t token = number(0), pos = number(1), slot = number(2);
    const bool sample = nb::cast<bool>(row[3]);
    if (slot >= 0 && static_cast<size_t>(slot) < m.started.size() &&
        m.started[static_cast<size_t>(slot)] != m.served->loop.submitted())
      check(Status(Code::kFailedPrecondition,
                   strf("step: requests have used slot %d since its sequence began; start(%d) another", slot, slot)));
    r.push_back({token, pos, slot, sample});
    if (row.size() == 5) r.back().guess = nb::cast<bool>(row[4]);
    if (row.size() == 8) r.back().image = number(4), r.back().shift = {number(5), number(6), number(7)};
  }
  return r;
}

/// Logits of the last step as nested lists would be slow: a copy as bytes plus its shape.
nb::tuple logits(TextModel& m) {
  return direct(m, [](engine::TextModel& model) {
    Result<Tensor> last = model.logits();
    check(last.status());
    const Tensor& t = *last;
    return nb::make_tuple(nb::bytes(t.data, static_cast<size_t>(t.span_bytes())), t.shape[0], t.shape[1]);
  });
}

/// Steps the model directly: rows of (token, pos, slot, sample) -> [(token, logprob, slot)].
nb::list model_step(TextModel& m, const std::vector<nb::tuple>& rows) {
  return direct(m, [&](engine::TextModel& model) {
    const std::vector<engine::TokenRow> r = rows_of(m, rows);
    std::vector<engine::Sampled> out(
        static_cast<size_t>(std::count_if(r.begin(), r.end(), [](const engine::TokenRow& row) { return row.sample; })));
    const Status s = [&] {
      const NoGil release;
      return model.step(r, out);
    }();
    check(s);
    nb::list result;
    for (const engine::Sampled& x : out) result.append(nb::make_tuple(x.token, x.logprob, x.slot));
    return result;
  });
}

/// TextModel::copy_state(), `times` times one behind the other; does not wait.
void copy_state(TextModel& m, int from, int to, int times) {
  direct(m, [&](engine::TextModel& model) {
    for (int i = 0; i < times; ++i) check(model.copy_state(from, to));
  });
}

/// TextModel::draft(): `count` guesses of each row that asks.
std::vector<std::vector<int32_t>> model_draft(TextModel& m, const std::vector<nb::tuple>& rows, int count) {
  return direct(m, [&](engine::TextModel& model) {
    const std::vector<engine::TokenRow> r = rows_of(m, rows);
    const auto asking = static_cast<size_t>(
        std::count_if(r.begin(), r.end(), [](const engine::TokenRow& row) { return row.sample; }));
    std::vector<int32_t> out(asking * static_cast<size_t>(std::max(count, 0)));
    const Status s = [&] {
      const NoGil release;
      return model.draft(r, count, out);
    }();
    check(s);
    std::vector<std::vector<int32_t>> all(asking);
    for (size_t i = 0; i < out.size(); ++i) all[i % asking].push_back(out[i]);
    return all;
  });
}

/// Steps like step() and gives [(op, port, bytes, shape, stride)] of every f32 or bf16 value between ops, as f32, rows
/// one behind the other; `stride`: elements from one row to the next where they lay. `wanted`: the (op, port) to give;
/// none: all of them, whole key/value caches among them.
nb::list observe(TextModel& m, const std::vector<nb::tuple>& rows,
                 const std::vector<std::pair<std::string, std::string>>& wanted) {
  nb::list seen;
  direct(m, [&](engine::TextModel& model) {
    check(model.observe(
        rows_of(m, rows),
        [&](const char* op, const char* port, const Tensor& t) -> Status {
          if ((t.dtype != DType::f32 && t.dtype != DType::bf16) || t.shape.rank == 0 || t.span_bytes() == 0) return {};
          const int64_t row = Tensor(slice(t, 0, 1)).shape.elements();
          std::vector<float> dense;  // rows may be strided: parts of a wider buffer
          dense.reserve(static_cast<size_t>(t.shape[0] * row));
          for (int64_t i = 0; i < t.shape[0] * row; ++i) {
            const int64_t at = i / row * t.stride[0] + i % row;
            dense.push_back(t.dtype == DType::f32 ? static_cast<const float*>(t.data)[at]
                                                  : f32_of_bf16(static_cast<const uint16_t*>(t.data)[at]));
          }
          nb::list shape;
          for (int i = 0; i < t.shape.rank; ++i) shape.append(t.shape[i]);
          seen.append(
              nb::make_tuple(op, port, nb::bytes(dense.data(), dense.size() * sizeof(float)), shape, t.stride[0]));
          return {};
        },
        [&](const char* op, const char* port) {
          return wanted.empty() ||
                 std::find(wanted.begin(), wanted.end(), std::pair<std::string, std::string>(op, port)) != wanted.end();
        }));
  });
  return seen;
}

std::vector<float> calibrate(TextModel& m, const std::vector<std::vector<int32_t>>& prompts, double percentile) {
  return direct(m, [&](engine::TextModel& model) {
    Result<std::vector<float>> scales = [&] {
      const NoGil release;
      return model.calibrate(prompts, percentile);
    }();
    check(scales.status());
    return std::move(scales).value();
  });
}

nb::dict profile(TextModel& m, int rows, int pos, bool decode, bool in_step) {
  return direct(m, [&](engine::TextModel& model) {
    Result<engine::Profile> p = [&] {
      const NoGil release;
      return model.profile(rows, pos, decode, in_step);
    }();
    check(p.status());
    return profile_dict(*p);
  });
}

}  // namespace

nb::dict profile_dict(const engine::Profile& profile) {
  nb::list groups;
  for (const engine::LaunchGroup& g : profile.groups) {
    nb::dict d;
    d["op"] = g.op, d["launches"] = g.launches, d["bytes"] = g.bytes, d["flops"] = g.flops, d["us"] = g.us,
    d["in_step_us"] = g.in_step_us;
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
      .def("report", [](const TextModel& t) { return t.model().report(); })
      .def("memory", [](const TextModel& t) { return memory_lines(t.model()); })
      .def("limits", &limits)
      .def(
          "sleep", [](TextModel& m, const Tenant& t) { return moved_text(m, t, true); }, nb::arg("tenant"))
      .def(
          "wake", [](TextModel& m, const Tenant& t) { return moved_text(m, t, false); }, nb::arg("tenant"))
      .def("start", &start, nb::arg("slot"), nb::arg("temperature") = 0.0f, nb::arg("seed") = 0)
      .def("step", &model_step)
      .def("draft", &model_draft, nb::arg("rows"), nb::arg("count"))
      .def("copy_state", &copy_state, nb::arg("from_state"), nb::arg("to_state"), nb::arg("times") = 1)
      .def("see",
           [](TextModel& m, int place, nb::bytes pixels, int height, int width) {
             if (height < 1 || width < 1 || static_cast<int64_t>(pixels.size()) != int64_t{height} * width * 3)
               check(Status(Code::kInvalidShape,
                            strf("see: %d x %d of RGB, got %zu bytes", height, width, pixels.size())));
             direct(m, [&](engine::TextModel& model) {
               check(model.see(place, {reinterpret_cast<const uint8_t*>(pixels.c_str()), height, width}));
             });
           })
      .def("observe", &observe, nb::arg("rows"), nb::arg("wanted") = std::vector<std::pair<std::string, std::string>>())
      .def("calibrate", &calibrate, nb::arg("prompts"), nb::arg("percentile"))
      .def("profile", &profile, nb::arg("rows"), nb::arg("pos"), nb::arg("decode"), nb::arg("in_step") = false)
      .def("logits", &logits)
      .def("steps",
           [](const TextModel& t) { return nb::make_tuple(t.served->loop.steps(), t.served->loop.last_step_ns()); })
      .def("pending", [](const TextModel& t) { return t.served->loop.pending(); })
      .def("blocks",
           [](const TextModel& t) {
             const serve::EngineLoop::Blocks b = t.served->loop.blocks();
             return nb::make_tuple(b.count, b.available, b.remembered);
           })
      .def("block",
           [](const TextModel& t) {
             return nb::make_tuple(t.model().limits().page, t.model().block_bytes(), t.model().state_bytes());
           })  // its positions and bytes, and bytes of the state beside blocks
      .def("rates",
           [](const TextModel& t) {
             const serve::EngineLoop::Rates r = t.served->loop.rates();
             return nb::make_tuple(r.prefill, r.restore, r.restores);
           })
      .def("host_pool",
           [](const TextModel& t) {
             const engine::HostPool::Stats s = t.served->loop.host_pool().stats();
             return nb::make_tuple(s.most, s.locked, s.kept);
           })  // bytes: that may be page-locked, that are, of these those that nobody has
      .def("parked", [](const TextModel& t) { return t.served->loop.parked(); })
      .def("retry_after",
           [](const TextModel& t) { return std::chrono::duration<double>(t.served->loop.retry_after()).count(); })
      .def("close", [](TextModel& t) {
        const NoGil release;
        t.served->loop.close();
      });
  m.def("load_text_model", &load_text_model, nb::arg("path"), nb::kw_only(), nb::arg("device"), nb::arg("precision"),
        nb::arg("kv_dtype"), nb::arg("threads"), nb::arg("context"), nb::arg("max_batch"), nb::arg("prefill_chunk"),
        nb::arg("eager") = false, nb::arg("max_in_flight_steps") = 0, nb::arg("random_weights") = false,
        nb::arg("logit_bias") = false, nb::arg("num_kv_blocks") = 0, nb::arg("gpu_layers") = -1,
        nb::arg("act_scales") = std::vector<float>(), nb::arg("lm_head_dtype") = "auto",
        nb::arg("invariance") = "class", nb::arg("max_waiting") = 256, nb::arg("max_waiting_tokens") = 1 << 22,
        nb::arg("priority_ageing") = 10.0, nb::arg("tenant").none() = nb::none(), nb::arg("max_image_tokens") = 0,
        nb::arg("state_cache_bytes").none() = nb::none(), nb::arg("mtp") = 0,
        nb::arg("decode_layers") = "auto");
}

}  // namespace vivace::python
