// The tokenizers of engine/text for Python, where their tests are.
#include "vivace/engine/text/tokenizer.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "model.h"
#include "vivace/models/vla/prompt.h"

namespace vivace::python {
namespace {

using engine::text::BytePairs;
using engine::text::Tokenizer;

template <class T>
std::vector<int32_t> encode(const T& t, const nb::bytes& text, bool special) {
  std::vector<int32_t> ids;
  check(t.encode({text.c_str(), text.size()}, special, &ids));
  return ids;
}

nb::bytes decode(const BytePairs& t, const std::vector<int32_t>& ids, bool streamed) {
  std::string text;
  if (!streamed) {
    check(t.decode(ids, &text));
  } else {
    engine::text::TextStream stream(t);
    for (const int32_t id : ids) check(stream.next(id, &text));
    stream.finish(&text);
  }
  return nb::bytes(text.data(), text.size());
}

nb::bytes decode_all(const Tokenizer& t, const std::vector<int32_t>& ids) {
  std::string text;
  check(t.decode(ids, &text));
  return nb::bytes(text.data(), text.size());
}

/// What the C ABI makes of a task: `state` is normalised.
std::vector<int32_t> prompt_tokens(const std::string& tokenizer, const std::string& family, const nb::bytes& task,
                                   const std::vector<float>& state) {
  const auto prompter = models::vla::Prompter::open(tokenizer, family);
  check(prompter.status());
  auto tokens = prompter->tokens({task.c_str(), task.size()}, state);
  check(tokens.status());
  return std::move(tokens).value();
}

}  // namespace

void add_bpe(nb::module_& m) {
  nb::class_<BytePairs>(m, "BytePairs")
      .def("encode", &encode<BytePairs>, nb::arg("text"), nb::arg("special") = false)
      .def("decode", &decode, nb::arg("ids"), nb::arg("streamed") = false)
      .def("find", [](const BytePairs& t, const std::string& token) { return t.find(token); })
      .def("size", &BytePairs::size);
  nb::class_<Tokenizer>(m, "Tokenizer")
      .def("encode", &encode<Tokenizer>, nb::arg("text"), nb::arg("special") = false)
      .def("decode", &decode_all, nb::arg("ids"))
      .def("find", [](const Tokenizer& t, const std::string& token) { return t.find(token); })
      .def("size", &Tokenizer::size);
  m.def("load_tokenizer", [](const std::string& path) {
    Result<Tokenizer> t = Tokenizer::load(path);
    check(t.status());
    return std::move(t).value();
  });
  m.def("prompt_tokens", &prompt_tokens, nb::arg("tokenizer"), nb::arg("family"), nb::arg("task"), nb::arg("state"));
  m.def("load_byte_pairs", [](const std::string& path) {
    Result<BytePairs> t = BytePairs::load(path);
    check(t.status());
    return std::move(t).value();
  });
}

}  // namespace vivace::python
