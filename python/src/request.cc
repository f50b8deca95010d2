// Requests for Python: handles at the engine's loop, their notifiers, and a Batcher of one's own. Thin: see serve/.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "gil.h"
#include "model.h"
#include "text_model.h"
#include "vivace/base/check.h"
#include "vivace/serve/snapshot.h"

namespace vivace::python {
namespace {

using serve::Event;
using serve::Notifier;
using serve::RequestHandle;

/// f32 values as bytes: what NumPy's tobytes() gives, without a copy of each number.
std::vector<float> floats(const nb::bytes& b) {
  if (b.size() % sizeof(float) != 0)
    check(Status(Code::kInvalidShape, "bias: bytes that are no whole number of f32 values"));
  std::vector<float> values(b.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), b.c_str(), b.size());
  return values;
}

/// The bits of a mask, as bytes.
std::vector<uint32_t> words(const nb::bytes& b) {
  if (b.size() % sizeof(uint32_t) != 0)
    check(Status(Code::kInvalidShape, "mask: bytes that are no whole number of 32-bit words"));
  std::vector<uint32_t> values(b.size() / sizeof(uint32_t));
  if (!values.empty()) std::memcpy(values.data(), b.c_str(), b.size());
  return values;
}

serve::Request request(std::vector<int32_t> prompt, int max_tokens, float temperature, int top_k, float top_p,
                       float min_p, float repetition, float presence, float frequency, int64_t seed,
                       std::vector<int32_t> stop, nb::bytes bias, bool stepwise, nb::bytes mask, int min_tokens) {
  const engine::Sampling s{temperature, top_p, min_p, top_k, repetition, presence, frequency, seed};
  serve::Request r{std::move(prompt), max_tokens, s, std::move(stop), floats(bias), stepwise};
  r.mask = words(mask);
  r.min_tokens = min_tokens;
  return r;
}

/// Images of a prompt: (RGB bytes, height, width, first of its tokens) each.
void show(serve::Request* r, const nb::list& images) {
  for (const nb::handle one : images) {
    const auto image = nb::cast<nb::tuple>(one);
    const auto pixels = nb::cast<nb::bytes>(image[0]);
    const auto height = nb::cast<int32_t>(image[1]), width = nb::cast<int32_t>(image[2]),
               first = nb::cast<int32_t>(image[3]);
    auto made = [&] {
      const std::string_view bytes(pixels.c_str(), pixels.size());
      const NoGil release;
      return serve::prompt_image({bytes.begin(), bytes.end()}, height, width, first);
    }();
    check(made.status());
    r->images.push_back(std::move(made).value());
  }
}

/// `priority`: "robot", "interactive" or "batch"; `deadline`: seconds from now, 0: none.
void schedule(serve::Request* r, const std::string& priority, double deadline) {
  static constexpr const char* kNames[] = {"robot", "interactive", "batch"};
  const auto at = std::find(std::begin(kNames), std::end(kNames), priority);
  if (at == std::end(kNames))
    check(Status(Code::kInvalidArgument,
                 "generate: priority: wanted robot, interactive or batch, got '" + priority + "'"));
  if (!(deadline >= 0))
    check(Status(Code::kInvalidArgument, strf("generate: deadline: wanted seconds from now, got %g", deadline)));
  r->priority = static_cast<serve::Priority>(at - std::begin(kNames));
  constexpr double kFar = 1e9;  // seconds; later is none
  if (deadline > 0 && deadline < kFar)
    r->deadline = std::chrono::steady_clock::now() +
                  std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(deadline));
}

constexpr std::string_view kNoDrafts = "off";

bool is_off(nb::handle draft) { return nb::isinstance<nb::str>(draft) && nb::cast<std::string>(draft) == kNoDrafts; }

/// `draft`: None, "off", "lookup" or a smaller model, with which `m` then guesses `num_speculative_tokens` tokens.
std::shared_ptr<serve::Drafter> drafter(const TextModel& m, nb::handle draft) {
  if (draft.is_none() || is_off(draft)) return nullptr;
  if (nb::isinstance<nb::str>(draft)) return std::make_shared<serve::PromptLookup>();
  const std::shared_ptr<ServedModel> small = nb::cast<TextModel&>(draft).served;
  auto made = [&] {
    const NoGil release;
    return small->loop.drafter_for(m.served->loop, small);
  }();
  check(made.status());
  return std::move(made).value();
}

nb::object submit(TextModel& m, std::vector<int32_t> prompt, int max_tokens, float temperature, int top_k, float top_p,
                  float min_p, float repetition, float presence, float frequency, int64_t seed,
                  std::vector<int32_t> stop, nb::bytes bias, bool stepwise, nb::bytes mask, int min_tokens,
                  nb::object draft, int num_speculative_tokens, const std::string& priority, double deadline,
                  nb::bytes salt, bool reuse, bool deterministic, bool resumed, int top_logprobs, int n,
                  nb::list images, std::shared_ptr<Notifier> notifier, std::shared_ptr<Notifier> masks, int64_t parent,
                  int64_t leader) {
  serve::Request r = request(std::move(prompt), max_tokens, temperature, top_k, top_p, min_p, repetition, presence,
                             frequency, seed, std::move(stop), bias, stepwise, mask, min_tokens);
  r.num_speculative_tokens = num_speculative_tokens;
  r.mtp = !is_off(draft);
  schedule(&r, priority, deadline);
  r.salt.assign(salt.c_str(), salt.size());
  r.reuse = reuse;
  r.deterministic = deterministic;
  r.resumed = resumed;
  r.top_logprobs = top_logprobs;
  show(&r, images);
  serve::EngineLoop::Submit how{std::move(notifier), drafter(m, draft), std::move(masks), parent, leader};
  if (n == 0) {
    auto made = [&] {
      const NoGil release;
      return m.served->loop.submit(std::move(r), std::move(how));
    }();
    check(made.status());
    return nb::cast(std::move(made).value());
  }
  auto made = [&] {
    const NoGil release;
    return m.served->loop.submit_n(r, n, how);
  }();
  check(made.status());
  nb::list all;
  for (RequestHandle& h : *made) all.append(nb::cast(std::move(h)));
  return all;
}

}  // namespace

nb::tuple cache_of(const serve::Job::Cache& c) {
  static constexpr const char* kNames[] = {"", "off", "cold", "evicted", "diverged", "short", "class", "recurrent"};
  std::string miss = kNames[static_cast<size_t>(c.miss)];
  if (c.miss == engine::KvBlocks::Miss::diverged) miss = strf("diverged@%d", c.diverged);
  return nb::make_tuple(c.cached, c.written, miss);
}

namespace {

nb::object token_of(const Event& e) { return e.token >= 0 ? nb::object(nb::int_(e.token)) : nb::none(); }
nb::object finish_of(const Event& e) {
  return e.finish == serve::Finish::none ? nb::none() : nb::object(nb::str(serve::name(e.finish)));
}

/// Waits for events; raises what a signal's handler raises, KeyboardInterrupt among it.
void wait(RequestHandle& h) {
  for (bool news = false; !news;) {
    {
      const NoGil release;
      news = h.wait(std::chrono::milliseconds(200));
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

/// Waits for news of any request with the same notifier since its now() gave `seen`, or a moment.
void wait_since(RequestHandle& h, uint32_t seen) {
  {
    const NoGil release;
    h.wait(std::chrono::milliseconds(200), seen);
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

/// ((token, logprob), ...): the likeliest in a draw's place.
nb::tuple top_of(const Event& e) {
  nb::list out;
  for (const serve::TopLogprob& t : e.top) out.append(nb::make_tuple(t.token, t.logprob));
  return nb::tuple(out);
}

/// [(token or None, logprob, finish or None, the likeliest where they were asked for)] that were not read yet.
nb::list read(RequestHandle& h) {
  nb::list out;
  Event events[64];
  while (const size_t n = h.read(events))
    for (size_t i = 0; i < n; ++i)
      out.append(nb::make_tuple(token_of(events[i]), events[i].logprob, finish_of(events[i]), top_of(events[i])));
  return out;
}

/// A snapshot, and the model whose blocks it holds.
struct Held {
  std::shared_ptr<ServedModel> served;
  std::unique_ptr<serve::Snapshot> snapshot;
};

/// Token ids of a list, of which a long conversation has many; what no i32 holds becomes -1, which nobody finds.
std::vector<int32_t> ids(const nb::list& list) {
  const size_t count = nb::len(list);
  std::vector<int32_t> out(count);
  for (size_t i = 0; i < count; ++i) {
    const long value = PyLong_AsLong(PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(i)));
    if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    out[i] = value == static_cast<int32_t>(value) ? static_cast<int32_t>(value) : -1;
  }
  return out;
}

Held take_snapshot(const TextModel& m, nb::bytes salt, const nb::list& list, int64_t request, bool keep) {
  const std::vector<int32_t> tokens = ids(list);
  auto made = [&] {
    const std::string_view whose(salt.c_str(), salt.size());
    const NoGil release;
    return serve::Snapshot::take(m.served->loop, whose, tokens, request, keep);
  }();
  check(made.status());
  return {m.served, std::move(made).value()};
}

Held write_snapshot(const TextModel& m, nb::bytes salt, const std::vector<int32_t>& tokens, int positions, int pure,
                    const engine::HostBytes& bytes) {
  auto made = [&] {
    const std::string_view whose(salt.c_str(), salt.size());
    const NoGil release;
    return serve::Snapshot::write(m.served->loop, whose, tokens, positions, pure, bytes);
  }();
  check(made.status());
  return {m.served, std::move(made).value()};
}

engine::HostBytes read_snapshot(const Held& h) {
  auto got = [&] {
    const NoGil release;
    return h.snapshot->read();
  }();
  check(got.status());
  return std::move(got).value();
}

/// `bytes` where copies to the model's memory are fast.
engine::HostBytes host_bytes(const TextModel& m, nb::bytes bytes) {
  auto made = [&]() -> Result<engine::HostBytes> {
    const std::string_view from(bytes.c_str(), bytes.size());
    const NoGil release;
    VV_ASSIGN(engine::HostBytes to, m.served->loop.host_pool().take(from.size()));
    std::copy(from.begin(), from.end(), reinterpret_cast<char*>(to.data()));
    return to;
  }();
  check(made.status());
  return std::move(made).value();
}

/// A Batcher of one's own, for who steps by hand: it has the model's lease.
struct Batcher {
  explicit Batcher(TextModel& m)
      : served(m.served), lease([&] {
          auto got = [&] {
            const NoGil release;
            return m.served->loop.lease();
          }();
          check(got.status());
          return std::move(got).value();
        }()),
        batcher(m.model()) {
    events.reserve(static_cast<size_t>(2 * m.model().limits().max_batch + 16));
  }
  std::shared_ptr<ServedModel> served;
  serve::EngineLoop::Lease lease;
  serve::Batcher batcher;
  std::vector<Event> events;
};

/// [(request, token or None, logprob, finish or None)]
nb::list step(Batcher& b) {
  const Status s = [&] {
    const NoGil release;
    return b.batcher.step(&b.events);
  }();
  check(s);
  nb::list out;
  for (const Event& e : b.events) out.append(nb::make_tuple(e.request, token_of(e), e.logprob, finish_of(e)));
  return out;
}

}  // namespace

void add_request(nb::module_& m) {
  nb::class_<Notifier>(m, "Notifier")
      .def(nb::init<>())
      .def("now", &Notifier::now)
      .def("ring", &Notifier::ring)
      .def("wait", [](Notifier& n, uint32_t seen, double seconds) {
        const NoGil release;
        n.wait(seen, std::chrono::microseconds(static_cast<int64_t>(1e6 * seconds)));
      }, nb::arg("seen"), nb::arg("seconds"))
      .def_static("with_descriptor", [] {
        auto made = Notifier::with_descriptor();
        check(made.status());
        return std::move(made).value();
      })
      .def("descriptor", &Notifier::descriptor)
      .def("acknowledge", &Notifier::acknowledge);
  nb::class_<RequestHandle>(m, "Request")
      .def_prop_ro("number", &RequestHandle::number)
      .def("wait", &wait)
      .def("wait_since", &wait_since)
      .def("read", &read)
      .def("unread", &RequestHandle::unread)
      .def("over", &RequestHandle::over)
      .def("cancel", &RequestHandle::cancel)
      .def("set_bias", [](RequestHandle& h, nb::bytes bias) { check(h.set_bias(floats(bias))); })
      .def("set_mask", [](RequestHandle& h, nb::bytes mask) { check(h.set_mask(words(mask))); })
      .def("masks", &RequestHandle::masks)
      .def("check", [](const RequestHandle& h) { check(h.status()); })
      .def("cache", [](const RequestHandle& h) { return cache_of(h.cache()); })
      .def("drafts", [](const RequestHandle& h) {
        return nb::make_tuple(h.drafts().steps, h.drafts().drafted, h.drafts().accepted);
      });
  nb::class_<serve::MaskHandle>(m, "MaskHandle")
      .def("read",
           [](serve::MaskHandle& h) {
             std::vector<int32_t> tokens(16);
             tokens.resize(h.read(tokens));
             return tokens;
           })
      .def("over", &serve::MaskHandle::over)
      .def(
          "set_mask",
          [](serve::MaskHandle& h, nb::bytes mask, const std::vector<int32_t>& forced) {
            check(h.set_mask(words(mask), forced));
          },
          nb::arg("mask"), nb::arg("forced"))
      .def(
          "fail",
          [](serve::MaskHandle& h, bool limit, std::string why) {
            h.fail(Status(limit ? Code::kLimitExceeded : Code::kInvalidArgument, std::move(why)));
          },
          nb::arg("limit"), nb::arg("why"));
  m.def("submit", &submit, nb::arg("model"), nb::kw_only(), nb::arg("prompt"), nb::arg("max_tokens"),
        nb::arg("temperature") = 0.0f, nb::arg("top_k") = 0, nb::arg("top_p") = 1.0f, nb::arg("min_p") = 0.0f,
        nb::arg("repetition") = 1.0f, nb::arg("presence") = 0.0f, nb::arg("frequency") = 0.0f, nb::arg("seed") = 0,
        nb::arg("stop") = std::vector<int32_t>(), nb::arg("bias") = nb::bytes("", 0), nb::arg("stepwise") = false,
        nb::arg("mask") = nb::bytes("", 0), nb::arg("min_tokens") = 0, nb::arg("draft").none() = nb::none(),
        nb::arg("num_speculative_tokens") = 0, nb::arg("priority") = "interactive", nb::arg("deadline") = 0.0,
        nb::arg("salt") = nb::bytes("", 0), nb::arg("reuse") = true, nb::arg("deterministic") = false,
        nb::arg("resumed") = false, nb::arg("top_logprobs") = 0, nb::arg("n") = 0, nb::arg("images") = nb::list(),
        nb::arg("notifier").none() = nb::none(), nb::arg("masks").none() = nb::none(), nb::arg("parent") = 0,
        nb::arg("leader") = 0);
  m.def("set_leak_warnings", &nb::set_leak_warnings, nb::arg("on"));
  m.def(
      "check_request",
      [](const TextModel& t, std::vector<int32_t> prompt, int max_tokens, float temperature, int top_k, float top_p,
         float min_p, float repetition, float presence, float frequency, int64_t seed, std::vector<int32_t> stop,
         nb::bytes bias, bool stepwise, nb::bytes mask, int min_tokens, nb::list images) {
        serve::Request r = request(std::move(prompt), max_tokens, temperature, top_k, top_p, min_p, repetition,
                                   presence, frequency, seed, std::move(stop), bias, stepwise, mask, min_tokens);
        show(&r, images);
        check(serve::check(r, t.model().limits()));
      },
      nb::arg("model"), nb::kw_only(), nb::arg("prompt"), nb::arg("max_tokens"), nb::arg("temperature"),
      nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"), nb::arg("repetition"), nb::arg("presence"),
      nb::arg("frequency"), nb::arg("seed"), nb::arg("stop"), nb::arg("bias"), nb::arg("stepwise"),
      nb::arg("mask") = nb::bytes("", 0), nb::arg("min_tokens") = 0, nb::arg("images") = nb::list());
  nb::class_<engine::HostBytes>(m, "HostBytes")
      .def("__len__", &engine::HostBytes::size)
      .def_prop_ro("page_locked", &engine::HostBytes::page_locked)
      .def("copy", [](const engine::HostBytes& h) { return nb::bytes(h.data(), h.size()); });
  m.def("host_bytes", &host_bytes, nb::arg("model"), nb::arg("bytes"));
  nb::class_<Held>(m, "Snapshot")
      .def_prop_ro("positions", [](const Held& h) { return h.snapshot->positions(); })
      .def_prop_ro("pure", [](const Held& h) { return h.snapshot->pure(); })
      .def_prop_ro("bytes", [](const Held& h) { return h.snapshot->bytes(); })
      .def("read", &read_snapshot);
  m.def("take_snapshot", &take_snapshot, nb::arg("model"), nb::arg("salt"), nb::arg("tokens"), nb::arg("request") = 0,
        nb::arg("keep") = false);
  m.def("write_snapshot", &write_snapshot, nb::arg("model"), nb::arg("salt"), nb::arg("tokens"), nb::arg("positions"),
        nb::arg("pure"), nb::arg("bytes"));
  nb::class_<Batcher>(m, "Batcher")
      .def(nb::init<TextModel&>())
      .def(
          "submit",
          [](Batcher& b, std::vector<int32_t> prompt, int max_tokens, float temperature, int top_k, float top_p,
             float min_p, float repetition, float presence, float frequency, int64_t seed, std::vector<int32_t> stop,
             nb::bytes bias, bool stepwise, nb::bytes mask, int min_tokens) {
            Result<int64_t> id =
                b.batcher.submit(request(std::move(prompt), max_tokens, temperature, top_k, top_p, min_p, repetition,
                                         presence, frequency, seed, std::move(stop), bias, stepwise, mask, min_tokens));
            check(id.status());
            return *id;
          },
          nb::kw_only(), nb::arg("prompt"), nb::arg("max_tokens"), nb::arg("temperature"), nb::arg("top_k"),
          nb::arg("top_p"), nb::arg("min_p"), nb::arg("repetition"), nb::arg("presence"), nb::arg("frequency"),
          nb::arg("seed"), nb::arg("stop"), nb::arg("bias") = nb::bytes("", 0), nb::arg("stepwise") = false,
          nb::arg("mask") = nb::bytes("", 0), nb::arg("min_tokens") = 0)
      .def(
          "set_mask",
          [](Batcher& b, int64_t id, nb::bytes mask, const std::vector<int32_t>& forced) {
            check(b.batcher.set_mask(id, words(mask), forced));
          },
          nb::arg("request"), nb::arg("mask"), nb::arg("forced") = std::vector<int32_t>())
      .def("set_bias", [](Batcher& b, int64_t id, nb::bytes bias) { check(b.batcher.set_bias(id, floats(bias))); })
      .def("cancel", [](Batcher& b, int64_t id) { check(b.batcher.cancel(id)); })
      .def("idle", [](const Batcher& b) { return b.batcher.idle(); })
      .def("step", &step);
}

}  // namespace vivace::python
