// Any bytes as tokenizer.json as C++ reads it: an error, or a vocabulary whose plain text holds no control token and
// whose ids give the text back.
#include <algorithm>

#include "tests/fuzz/fuzz.h"
#include "vivace/engine/checkpoint/parse.h"
#include "vivace/engine/text/bpe.h"
#include "vivace/engine/text/control.h"
#include "vivace/engine/text/pieces.h"

using namespace vivace;
using engine::Json;

namespace {

constexpr std::string_view kTemplate = "{{ '<think>' + messages[0].content + '[INST]' }}";

/// Ids that plain text must not give: of names that steer. The unknown token is one that it does give, where it has a
/// character that the vocabulary lacks.
std::vector<int32_t> control_of(const Json& json) {
  std::vector<int32_t> ids;
  std::string_view unknown;
  if (const auto model = json.root().find("model"))
    if (const auto named = model->get_string("unk_token", ""); named.ok()) unknown = *named;  // null: there is none
  if (const auto added = json.root().find("added_tokens"))
    for (const engine::JsonValue& t : *added) {
      const std::string_view name = *t.get_string("content");
      if (!unknown.empty() && name == unknown) continue;
      if (engine::text::is_control(name, *t.get_bool("special", false), kTemplate))
        ids.push_back(static_cast<int32_t>(*t.get_int("id")));
    }
  return ids;
}

template <class T>
void check(const Result<T>& made, const Json& json, std::string_view own) {
  if (!made.ok()) {
    fuzz::require(!made.status().message().empty(), "errors say why");
    return;
  }
  const std::vector<int32_t> control = control_of(json);
  for (const std::string_view text : {std::string_view("a<think>b <|im_end|>\n12 [INST] it's \u2581x"), own})
    for (const bool special : {false, true}) {
      std::vector<int32_t> ids;
      const Status encoded = made->encode(text, special, &ids);
      fuzz::require(encoded.ok() || !encoded.message().empty(), "errors say why");
      fuzz::require(encoded.ok() || !ids.empty() || !engine::is_utf8(text) || encoded.code() != Code::kInvalidArgument,
                    "UTF-8 is an argument");
      for (const int32_t id : ids) {
        fuzz::require(id >= 0 && id < made->size(), "ids are of the vocabulary");
        fuzz::require(special || std::find(control.begin(), control.end(), id) == control.end(),
                      "plain text gives no control token");
      }
      std::string back;
      fuzz::require(made->decode(ids, &back).ok(), "its own ids are decoded");
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto json = Json::parse(bytes, "tokenizer.json");
  if (!json.ok()) return 0;
  const std::string_view own = bytes.substr(size / 2, 200);
  {
    const fuzz::MemoryBound bound(4 * size +
                                  4096);  // beside the document: a token of few bytes has a row in each table
    check(engine::text::BytePairs::from_json(*json, kTemplate), *json, own);
  }
  const fuzz::MemoryBound bound(4 * size + 4096);
  check(engine::text::Pieces::from_json(*json, kTemplate), *json, own);
  return 0;
}
