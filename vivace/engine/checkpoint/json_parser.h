// The tree behind Json, and the parser that fills it. Only json*.cc include this.
#pragma once
#include <string>
#include <vector>

#include "vivace/engine/checkpoint/json.h"

namespace vivace::engine {

/// One value, in the order of its first byte; a container's members follow it up to `next`.
struct JsonNode {
  uint32_t key_begin = 0, key_bytes = 0;  // in JsonDoc::text
  uint32_t next = 0;                      // the node after this value and everything inside it
  uint32_t parent = 0;
  union {
    int64_t integer = 0;
    double number;
    bool boolean;
    struct {
      uint32_t begin, bytes;
    } string;        // in JsonDoc::text
    uint32_t count;  // members or elements
  };
  JsonKind kind = JsonKind::null;
};

struct JsonDoc {
  std::string name;
  std::string text;  // strings are unescaped in place: no escape is shorter than what it stands for
  std::vector<JsonNode> nodes;

  std::string_view key(const JsonNode& n) const {
    return std::string_view(text).substr(n.key_begin, n.key_bytes);
  }
};

/// Fills doc->nodes from doc->text.
Status parse_json(JsonDoc* doc, const JsonLimits& limits);

}  // namespace vivace::engine
