// Tokenizers of the C ABI: vivace/capi/text.h over engine::text::Tokenizer.
#include "vivace/capi/text.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "vivace/capi/guard.h"
#include "vivace/engine/text/tokenizer.h"

using vivace::Code;
using vivace::Status;
using vivace::capi::guard;
using vivace::engine::text::Tokenizer;

struct vv_tokenizer : vivace::capi::Tagged<vivace::capi::Kind::tokenizer> {
  Tokenizer tokenizer;
};

namespace {

/// The first `capacity` entries of `from` to `to`, which may be NULL, and their whole number.
template <class From, class To>
void give(const From& from, To* to, size_t capacity, size_t* count) {
  if (to != nullptr) std::copy_n(from.begin(), std::min(capacity, from.size()), to);
  *count = from.size();
}

}  // namespace

vv_status vv_tokenizer_load(const char* checkpoint, vv_tokenizer** out) {
  return guard("vv_tokenizer_load", [&]() -> Status {
    VV_NOT_NULL(checkpoint);
    VV_NOT_NULL(out);
    VV_ASSIGN(Tokenizer loaded, Tokenizer::load(checkpoint));
    *out = new vv_tokenizer{{}, std::move(loaded)};
    return {};
  }, out);
}

void vv_tokenizer_destroy(vv_tokenizer* tokenizer) { vivace::capi::destroy(tokenizer); }

vv_status vv_tokenizer_encode(const vv_tokenizer* tokenizer, const char* text, size_t bytes, int special, int32_t* ids,
                              size_t capacity, size_t* count) {
  return guard("vv_tokenizer_encode", [&]() -> Status {
    VV_NOT_NULL(tokenizer);
    VV_NOT_NULL(count);
    if (text == nullptr && bytes > 0) return vivace::capi::null("text");
    VV_TRY(vivace::capi::check_bytes("bytes", bytes));
    std::vector<int32_t> all;
    VV_TRY(tokenizer->tokenizer.encode({text, bytes}, special != 0, &all));
    give(all, ids, capacity, count);
    return {};
  }, count);
}

vv_status vv_tokenizer_decode(const vv_tokenizer* tokenizer, const int32_t* ids, size_t count, char* text,
                              size_t capacity, size_t* bytes) {
  return guard("vv_tokenizer_decode", [&]() -> Status {
    VV_NOT_NULL(tokenizer);
    VV_NOT_NULL(bytes);
    if (ids == nullptr && count > 0) return vivace::capi::null("ids");
    VV_TRY(vivace::capi::check_bytes("count", count > SIZE_MAX / sizeof *ids ? SIZE_MAX : count * sizeof *ids));
    std::string all;
    VV_TRY(tokenizer->tokenizer.decode({ids, count}, &all));
    give(all, text, capacity, bytes);
    return {};
  }, bytes);
}

vv_status vv_tokenizer_find(const vv_tokenizer* tokenizer, const char* token, int32_t* id) {
  return guard("vv_tokenizer_find", [&]() -> Status {
    VV_NOT_NULL(tokenizer);
    VV_NOT_NULL(token);
    VV_NOT_NULL(id);
    const int32_t found = tokenizer->tokenizer.find(token);
    if (found < 0) return Status(Code::kNotFound, std::string("no token '") + token + "' in this vocabulary");
    *id = found;
    return {};
  }, id);
}
