#include "vivace/models/decoder/masks.h"

#include <cstring>

#include "vivace/base/check.h"
#include "vivace/engine/runtime.h"

namespace vivace::models::decoder {

Status Masks::open(engine::Runtime& runtime) {
  VV_ASSIGN(staging_, runtime.reserve_shared("token masks", static_cast<size_t>(table_.span_bytes())));
  masked_.resize(static_cast<size_t>(table_.shape[0]));
  copied_.resize(masked_.size());
  for (auto& event : copied_) {
    VV_ASSIGN(event, runtime.backend().make_event());
  }
  return {};
}

Status Masks::set(exec::Stream& stream, int slot, std::span<const uint32_t> words) {
  clear(slot);
  if (words.empty()) return {};
  const auto width = static_cast<size_t>(table_.shape[1]);
  if (words.size() != width)
    return Status(Code::kInvalidShape, strf("set_mask: wanted %zu words, a bit a token, got %zu", width, words.size()));
  const auto at = static_cast<size_t>(slot);
  VV_TRY(copied_[at]->synchronize());
  auto* const stage = static_cast<uint32_t*>(staging_.data()) + at * width;
  std::memcpy(stage, words.data(), words.size_bytes());
  VV_TRY(stream.copy(slice(table_, slot, 1).data, stage, words.size_bytes()));
  VV_TRY(stream.record(*copied_[at]));
  masked_[at] = true;
  return {};
}

}  // namespace vivace::models::decoder
