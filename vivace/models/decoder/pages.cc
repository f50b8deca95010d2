#include "vivace/models/decoder/pages.h"

#include <algorithm>

#include "vivace/base/check.h"

namespace vivace::models::decoder {

void Pages::declare(engine::Arena& arena, int slots, int context, int pages) {
  count_ = pages, slots_ = slots;
  if (pages > 0) arena.declare("page_table", DType::i32, Shape(slots, needed(context)), &table_);
}

Status Pages::open(engine::Machine& machine) {
  if (!used()) return {};
  VV_ASSIGN(staging_, machine.reserve_shared("page table", static_cast<size_t>(table_.span_bytes())));
  for (int32_t page = count_; page-- > 0;) free_.push_back(page);
  taken_.resize(static_cast<size_t>(slots_));
  for (std::vector<int32_t>& t : taken_) t.reserve(static_cast<size_t>(table_.shape[1]));
  auto* const rows = static_cast<int32_t*>(staging_.data());
  std::fill_n(rows, table_.shape.elements(), -1);  // no page: writes go nowhere
  VV_TRY(machine.stream().copy(table_.data, rows, static_cast<size_t>(table_.span_bytes())));
  return machine.stream().synchronize();
}

Status Pages::reserve(exec::Stream& stream, int slot, int positions) {
  if (!used()) return {};
  release(slot);
  const int wanted = needed(positions);
  if (wanted > free())
    return Status(Code::kLimitExceeded, strf("kv_pages: %d positions need %d pages of %d, %d of %d are free; wait until a sequence ends, or load with more kv_pages", positions, wanted,
                                             kPlaces, free(), count_));
  std::vector<int32_t>& mine = taken_[static_cast<size_t>(slot)];
  mine.assign(free_.end() - wanted, free_.end());
  free_.resize(free_.size() - static_cast<size_t>(wanted));
  const Tensor row = slice(table_, slot, 1);
  auto* const stage = static_cast<int32_t*>(staging_.data()) + slot * table_.shape[1];
  for (int64_t i = 0; i < table_.shape[1]; ++i) stage[i] = i < wanted ? mine[static_cast<size_t>(i)] : -1;
  return stream.copy(row.data, stage, static_cast<size_t>(row.span_bytes()));
}

void Pages::release(int slot) {
  if (!used()) return;
  std::vector<int32_t>& mine = taken_[static_cast<size_t>(slot)];
  free_.insert(free_.end(), mine.rbegin(), mine.rend());
  mine.clear();
}

}  // namespace vivace::models::decoder
