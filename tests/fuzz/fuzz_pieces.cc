// Any bytes as a SentencePiece model: an error, or a vocabulary that cuts text into ids of its own and puts them
// together.
#include "tests/fuzz/fuzz.h"
#include "vivace/engine/checkpoint/parse.h"
#include "vivace/engine/text/pieces.h"

using namespace vivace;
using engine::text::Pieces;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto pieces = [&] {
    const fuzz::MemoryBound bound(size);
    return Pieces::from_model(bytes);
  }();
  if (!pieces.ok()) {
    fuzz::require(!pieces.status().message().empty(), "errors say why");
    return 0;
  }
  // Words that many vocabularies know, what rules change, and the model's own bytes where they are text.
  const std::string_view own = bytes.substr(size / 2, 200);
  for (const std::string_view text : {std::string_view("put the  red_block\n\u3000\uff21 \u2581<s>\u0301 "), own}) {
    std::vector<int32_t> ids;
    const Status encoded = pieces->encode(text, size % 2 == 0, &ids);
    fuzz::require(encoded.ok() == engine::is_utf8(text), "what is UTF-8 is encoded, and nothing else");
    for (const int32_t id : ids) fuzz::require(id >= 0 && id < pieces->size(), "ids are of the vocabulary");
    std::string back;
    fuzz::require(pieces->decode(ids, &back).ok(), "its own ids are decoded");
  }
  return 0;
}
