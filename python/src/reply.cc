// Replies for Python: what a model wrote, apart by kind. Thin: see serve/reply_parser.h.
#include "vivace/serve/reply_parser.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "model.h"

namespace vivace::python {
namespace {

using serve::ReplyDelta;
using serve::ReplyParser;
using serve::ValueKind;

/// The row of this name, or null for None.
template <class Row>
const Row* row(const std::optional<std::string>& name, const Row* (*find)(std::string_view), const char* what) {
  if (!name) return nullptr;
  const Row* found = find(*name);
  if (found == nullptr)
    check(Status(Code::kInvalidArgument, strf("reply: no form of %s is called %s", what, name->c_str())));
  return found;
}

ValueKind value_kind(const std::string& name) {
  if (name == "string") return ValueKind::string;
  if (name == "either") return ValueKind::either;
  if (name != "other")
    check(Status(Code::kInvalidArgument, "reply: a parameter is of kind string, other or either, got " + name));
  return ValueKind::other;
}

using Tools = std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>>;

serve::ReplyOptions options(const std::optional<std::string>& calls, const std::optional<std::string>& reasoning,
                            bool in_reasoning, bool one_call, const Tools& tools, std::vector<std::string> stop,
                            std::string id_prefix) {
  serve::ReplyOptions o{row(calls, &serve::call_format, "calls"),
                        row(reasoning, &serve::reasoning_format, "reasoning"),
                        in_reasoning,
                        one_call,
                        {},
                        std::move(stop),
                        std::move(id_prefix)};
  for (const auto& [name, parameters] : tools) {
    o.tools.push_back({name, {}});
    for (const auto& [key, kind] : parameters) o.tools.back().parameters.emplace_back(key, value_kind(kind));
  }
  return o;
}

std::unique_ptr<ReplyParser> make(const std::optional<std::string>& calls, const std::optional<std::string>& reasoning,
                                  bool in_reasoning, bool one_call, const Tools& tools, std::vector<std::string> stop,
                                  std::string id_prefix) {
  auto made = ReplyParser::make(
      options(calls, reasoning, in_reasoning, one_call, tools, std::move(stop), std::move(id_prefix)));
  check(made.status());
  return std::move(made).value();
}

/// ("text", text), ("reasoning", text), ("call", index, id, name), ("arguments", index, text)
nb::list tuples(const std::vector<ReplyDelta>& deltas) {
  nb::list out;
  for (const ReplyDelta& d : deltas) switch (d.kind) {
      case ReplyDelta::Kind::text: out.append(nb::make_tuple("text", d.text)); break;
      case ReplyDelta::Kind::reasoning: out.append(nb::make_tuple("reasoning", d.text)); break;
      case ReplyDelta::Kind::call: out.append(nb::make_tuple("call", d.index, d.id, d.text)); break;
      case ReplyDelta::Kind::arguments: out.append(nb::make_tuple("arguments", d.index, d.text)); break;
    }
  return out;
}

nb::list feed(ReplyParser& p, const nb::bytes& bytes) {
  std::vector<ReplyDelta> deltas;
  p.feed({bytes.c_str(), bytes.size()}, &deltas);
  return tuples(deltas);
}

nb::tuple finish(ReplyParser& p, const std::string& why, bool named) {
  std::vector<ReplyDelta> deltas;
  const std::string said = p.finish(why, named, &deltas);
  return nb::make_tuple(tuples(deltas), said);
}

nb::bytes stop_feed(serve::StopStrings& s, const nb::bytes& bytes) {
  std::string text;
  s.feed({bytes.c_str(), bytes.size()}, &text);
  return nb::bytes(text.data(), text.size());
}

/// Of a row of calls: what it is made of.
nb::dict form_of(const std::string& name) {
  const serve::CallFormat* f = row(std::optional(name), &serve::call_format, "calls");
  static constexpr const char* kForms[] = {"json", "xml", "braces"};
  nb::dict d;
  d["form"] = kForms[static_cast<int>(f->form)];
  d["open"] = f->open;
  d["close"] = f->close;
  d["quote"] = f->quote;
  d["arguments"] = f->arguments;
  d["bare"] = f->bare;
  return d;
}

nb::object name_of(const auto* found) { return found == nullptr ? nb::none() : nb::object(nb::str(found->name)); }

}  // namespace

void add_reply(nb::module_& m) {
  const auto takes = [](auto& made, auto* function) {
    return made.def(nb::new_(function), nb::kw_only(), nb::arg("calls").none() = nb::none(),
                    nb::arg("reasoning").none() = nb::none(), nb::arg("in_reasoning") = false,
                    nb::arg("one_call") = false, nb::arg("tools") = nb::list(),
                    nb::arg("stop") = std::vector<std::string>(), nb::arg("id_prefix") = "call_");
  };
  nb::class_<serve::ReplyOptions> asked(m, "ReplyOptions");
  takes(asked, &options);
  nb::class_<ReplyParser> parser(m, "ReplyParser");
  takes(parser, &make)
      .def("feed", &feed, nb::arg("bytes"))
      .def("over", &ReplyParser::over)
      .def("finish", &finish, nb::arg("why"), nb::arg("named") = false)
      .def("given", &ReplyParser::given)
      .def("calls", &ReplyParser::calls)
      .def("whole_calls", &ReplyParser::whole_calls);
  m.def("reply_format", [](const std::string& chat_template) {
    const serve::ReplyFormat f = serve::reply_format(chat_template);
    return nb::make_tuple(name_of(f.calls), name_of(f.reasoning));
  }, nb::arg("chat_template"));
  m.def("call_form", &form_of, nb::arg("name"));
  m.def("reasoning_markers", [](const std::string& name) {
    const serve::ReasoningFormat* f = row(std::optional(name), &serve::reasoning_format, "reasoning");
    return nb::make_tuple(f->open, f->close);
  }, nb::arg("name"));
  m.def(
      "ends_in_reasoning",
      [](const std::string& prompt, const std::string& name) {
        return serve::ends_in_reasoning(prompt, *row(std::optional(name), &serve::reasoning_format, "reasoning"));
      },
      nb::arg("prompt"), nb::arg("name"));
  nb::class_<serve::StopStrings>(m, "StopStrings")
      .def(nb::init<std::vector<std::string>>(), nb::arg("stops"))
      .def("feed", &stop_feed, nb::arg("bytes"))
      .def("met", &serve::StopStrings::met);
}

}  // namespace vivace::python
