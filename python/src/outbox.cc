// The outbox for Python: bytes of replies, ready to be sent. Thin: see serve/outbox.h.
#include "vivace/serve/outbox.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "gil.h"
#include "model.h"
#include "text_model.h"

namespace vivace::python {
namespace {

using serve::ReplyStream;

struct Outbox {
  Outbox(const TextModel& m, const nb::list& tokens, bool drop_space, size_t keep_times) : served(m.served) {
    std::vector<std::string> bytes;
    bytes.reserve(nb::len(tokens));
    for (nb::handle t : tokens) {
      const auto b = nb::cast<nb::bytes>(t);
      bytes.emplace_back(b.c_str(), b.size());
    }
    auto made = serve::Outbox::make(served->loop, serve::TokenBytes(bytes, drop_space), keep_times);
    check(made.status());
    box = std::move(made).value();
  }
  std::shared_ptr<ServedModel> served;
  std::unique_ptr<serve::Outbox> box;
};

/// `choices`: (handle, which is the outbox's from now on, ReplyOptions, text that goes before, whether a call was
/// forced by name)
ReplyStream open(Outbox& b, const nb::list& choices, const std::string& form, nb::bytes head, nb::bytes tail,
                 bool logprobs, bool whole, std::shared_ptr<serve::Notifier> reader) {
  serve::WireOptions wire{form == "chat"         ? serve::WireForm::chat
                          : form == "completion" ? serve::WireForm::completion
                                                 : serve::WireForm::records,
                          {head.c_str(), head.size()},
                          {tail.c_str(), tail.size()},
                          logprobs,
                          whole};
  std::vector<serve::Choice> taken;
  for (nb::handle c : choices) {
    const auto of = nb::cast<nb::tuple>(c);
    taken.push_back({std::move(nb::cast<serve::RequestHandle&>(of[0])), nb::cast<serve::ReplyOptions&>(of[1]),
                     nb::cast<std::string>(of[2]), nb::cast<bool>(of[3])});
  }
  auto made = b.box->open(std::move(taken), std::move(wire), std::move(reader));
  check(made.status());
  return std::move(made).value();
}

nb::bytes of_string(const std::string& bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

nb::tuple latencies(const serve::Latencies& l) { return nb::make_tuple(l.counts(), l.sum()); }

nb::dict stats(const Outbox& b) {
  const serve::Outbox::Counts c = b.box->counts();
  nb::dict d;
  d["tokens"] = c.tokens, d["stop"] = c.stop, d["length"] = c.length, d["tool_calls"] = c.calls,
  d["cancelled"] = c.cancelled, d["failed"] = c.failed;
  d["first"] = latencies(b.box->first_token()), d["between"] = latencies(b.box->between_tokens());
  d["sent"] = latencies(b.box->to_socket());
  return d;
}

}  // namespace

void add_outbox(nb::module_& m) {
  nb::class_<ReplyStream>(m, "ReplyStream")
      .def("read", [](ReplyStream& s) { return of_string(s.read()); })
      .def("attach", [](ReplyStream& s, int socket) { check(s.attach(socket)); })
      .def("attached", &ReplyStream::attached)
      .def("detach",
           [](ReplyStream& s) {
             std::string rest;
             {
               const NoGil release;
               rest = s.detach();
             }
             return of_string(rest);
           })
      .def("unread", &ReplyStream::unread)
      .def("over", &ReplyStream::over)
      .def("cancel", &ReplyStream::cancel)
      .def("check", [](const ReplyStream& s) { check(s.status()); })
      .def("tokens", &ReplyStream::tokens)
      .def("cache",
           [](const ReplyStream& s) {
             nb::list out;
             for (const serve::Job::Cache& c : s.cache()) out.append(cache_of(c));
             return out;
           })
      .def("given_ns", &ReplyStream::given_ns)
      .def("sent_ns", &ReplyStream::sent_ns);
  nb::class_<Outbox>(m, "Outbox")
      .def(nb::init<const TextModel&, const nb::list&, bool, size_t>(), nb::arg("model"), nb::arg("tokens"),
           nb::arg("drop_space"), nb::arg("keep_times") = 0)
      .def("open", &open, nb::arg("choices"), nb::kw_only(), nb::arg("form"), nb::arg("head") = nb::bytes("", 0),
           nb::arg("tail") = nb::bytes("", 0), nb::arg("logprobs") = false, nb::arg("whole") = false, nb::arg("reader"))
      .def_prop_ro("bell", [](const Outbox& b) { return b.box->bell(); })
      .def("stats", &stats)
      .def("times_to_socket", [](const Outbox& b) { return b.box->to_socket().kept(); })
      .def("close", [](Outbox& b) {
        const NoGil release;
        b.box.reset();
      });
  m.attr("latency_bounds") =
      nb::cast(std::vector<double>(serve::Latencies::kBounds.begin(), serve::Latencies::kBounds.end()));
}

}  // namespace vivace::python
