#include "vivace/models/decoder/pages.h"

#include <algorithm>

#include "vivace/base/check.h"

namespace vivace::models::decoder {

void Pages::declare(engine::Arena& arena, int slots, int context, int pages) {
  count_ = pages, slots_ = slots;
  if (pages > 0) arena.declare("page_table", DType::i32, Shape(slots, needed(context)), &table_);
}

Status Pages::open(engine::Runtime& runtime, int states) {
  if (count_ == 0) return {};
  VV_ASSIGN(staging_, runtime.reserve_shared("page table", static_cast<size_t>(table_.span_bytes())));
  Hash128 key;
  VV_TRY(random_bytes(&key, sizeof key));
  blocks_ = std::make_unique<engine::KvBlocks>(count_, kPlaces, key, states);
  mapped_.resize(static_cast<size_t>(slots_));
  written_.resize(static_cast<size_t>(slots_));
  own_.resize(static_cast<size_t>(slots_));
  for (std::vector<int32_t>& o : own_) o.reserve(static_cast<size_t>(table_.shape[1]));
  auto* const rows = static_cast<int32_t*>(staging_.data());
  std::fill_n(rows, table_.shape.elements(), -1);  // no page: writes go nowhere
  VV_TRY(runtime.stream().copy(table_.data, rows, static_cast<size_t>(table_.span_bytes())));
  return runtime.stream().synchronize();
}

Status Pages::reserve(exec::Stream& stream, int slot, int positions) {
  if (!used()) return {};
  release(slot);
  const int wanted = needed(positions);
  if (wanted > blocks_->available())
    return Status(Code::kLimitExceeded, strf("num_kv_blocks: %d positions need %d pages of %d, %d of %d are free; wait "
                                             "until a sequence ends, or load with more num_kv_blocks",
                                             positions, wanted, kPlaces, blocks_->available(), count_));
  std::vector<int32_t>& mine = own_[static_cast<size_t>(slot)];
  for (int i = 0; i < wanted; ++i) mine.push_back(blocks_->take());
  return map(stream, slot, 0, mine);
}

Status Pages::map(exec::Stream& stream, int slot, int first, std::span<const int32_t> blocks) {
  int& mapped = mapped_[static_cast<size_t>(slot)];
  int& written = written_[static_cast<size_t>(slot)];
  const int64_t width = table_.shape[1], end = first + static_cast<int64_t>(blocks.size());
  if (first < 0 || first > mapped || end > width)
    return Status(Code::kInvalidArgument, strf("map: blocks [%d, %ld) of slot %d, which has %d of at most %ld", first,
                                               static_cast<long>(end), slot, mapped, static_cast<long>(width)));
  auto* const stage = static_cast<int32_t*>(staging_.data()) + slot * width;
  std::copy(blocks.begin(), blocks.end(), stage + first);
  const int64_t changed = std::max<int64_t>(end, written);
  std::fill(stage + end, stage + changed, -1);
  mapped = written = static_cast<int>(end);
  if (changed == first) return {};
  return stream.copy(static_cast<int32_t*>(table_.data) + slot * width + first, stage + first,
                     static_cast<size_t>(changed - first) * sizeof(int32_t));
}

void Pages::release(int slot) {
  if (!used()) return;
  blocks_->drop(&own_[static_cast<size_t>(slot)]);
  mapped_[static_cast<size_t>(slot)] = 0;
}

}  // namespace vivace::models::decoder
