// Any bytes as JSON: an error, or a tree that every getter and path() can walk.
#include "tests/fuzz/fuzz.h"
#include "vivace/engine/checkpoint/json.h"
#include "vivace/engine/checkpoint/parse.h"

using namespace vivace;
using engine::JsonValue;

namespace {

/// Values below and including `v`.
size_t walk(const JsonValue& v, int depth) {
  fuzz::require(depth <= 65, "depth is bounded");
  const bool any = v.as_bool().ok() || v.as_int().ok() || v.as_string().ok() || v.as_array().ok() ||
                   v.as_object().ok() || v.as_double().ok();
  fuzz::require(any != v.is_null(), "exactly the non-null values have a typed getter");
  fuzz::require(engine::is_utf8(v.key()), "keys are UTF-8");
  if (v.is_string()) fuzz::require(engine::is_utf8(*v.as_string()), "strings are UTF-8");
  if (depth < 3) fuzz::require(!v.path().empty(), "every value has a path");
  size_t members = 0, values = 1;
  for (JsonValue child : v) {
    ++members;
    values += walk(child, depth + 1);
    if (v.is_object() && members <= 8)
      fuzz::require(v.find(child.key()).has_value(), "members are found");
  }
  fuzz::require(members == v.size(), "size() counts the members");
  return values;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::MemoryBound bound(size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto json = engine::Json::parse(text, "fuzz.json"); json.ok()) {
    fuzz::require(walk(json->root(), 0) <= size, "every value takes a byte at least");
  } else {
    fuzz::require(json.status().message().starts_with("fuzz.json: "), "errors name the document");
  }
  return 0;
}
