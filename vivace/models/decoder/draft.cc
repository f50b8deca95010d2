// The draft layer of multi-token prediction: one layer that attends, with keys and values of its own, over what the
// model made of each position and the token behind it. Its guesses are checked by a step of the model like anybody's.
#include <algorithm>
#include <utility>

#include "vivace/base/check.h"
#include "vivace/models/decoder/decoder_model.h"

namespace vivace::models::decoder {

using engine::LoadOptions;
using engine::Sampled;
using engine::TokenRow;

namespace {

constexpr int kInFlight = 2 * LoadOptions::kMostDrafts;  // of its steps, which prompts queue without waiting

}  // namespace

Status DecoderModel::check_drafts() const {
  const int mtp = options_.mtp;
  if (mtp < 0 || mtp > LoadOptions::kMostDrafts)
    return Status(Code::kInvalidArgument,
                  strf("mtp: wanted 0 to %d guesses a step, got %d", LoadOptions::kMostDrafts, mtp));
  if (mtp == 0) return {};
  if (mtp >= options_.max_batch)
    return Status(Code::kLimitExceeded, strf("mtp: %d guesses a step and the token before them want max_batch %d or "
                                             "more, got %d",
                                             mtp, mtp + 1, options_.max_batch));
  if (options_.gates.gate != nullptr)
    return Status(Code::kUnsupported, "mtp: the draft layer has no gates; leave it out in a scheduler's tenant");
  return {};
}

void DecoderModel::declare_drafts() {
  const int64_t T = limits_.prefill_chunk, R = limits_.max_batch, H = config_.hidden;
  draft_.declare(arena_, "draft", T, R, true, 0, 0, 0, InputBlock::Kind::draft);
  drafts_on_.declare(arena_, "drafts_on", R, R, false, 0, 0, 0, InputBlock::Kind::drafts_on);
  arena_.declare("heard", plan_.hidden, Shape(2 * R + T, H), &buffers_.heard);
  arena_.declare("draft_in", plan_.hidden, Shape(T, 2 * H), &buffers_.draft_in);
  arena_.declare("draft_turn", DType::i32, Shape(1), &draft_turn_);
}

Status DecoderModel::open_drafts() {
  draft_buffers_ = buffers_;
  draft_buffers_.turn = draft_turn_;
  VV_TRY(draft_.open(*runtime_, kInFlight));
  VV_TRY(drafts_on_.open(*runtime_, 1));
  VV_TRY(drafting_.open(*runtime_, "rings of guesses", kInFlight, limits_.max_batch, &draft_buffers_));
  const auto slots = static_cast<size_t>(limits_.max_batch);
  heard_.resize(slots);
  drafted_slots_.reserve(slots);
  draft_source_.reserve(static_cast<size_t>(limits_.prefill_chunk));
  draft_rows_.reserve(slots);
  drafted_.reserve(slots);
  return {};
}

Status DecoderModel::record_draft(exec::Stream& stream, int64_t rows, bool further) {
  ops::Recorder rec(stream, ops::Weights::constant);
  const StepContext context{.config = config_,
                            .plan = plan_,
                            .weights = weights_,
                            .buffers = draft_buffers_,
                            .attn_factor = attn_factor_,
                            .moved = &drafts_on_.inputs(),
                            .captured = !options_.eager};
  return decoder::record_draft(rec, context, (further ? drafts_on_ : draft_).inputs(), rows);
}

Status DecoderModel::make_draft_variants() {
  for (const Variant& v : variants_)
    if (!v.decode || v.rows == limits_.max_batch) draft_bounds_.push_back(v.rows);
  std::sort(draft_bounds_.begin(), draft_bounds_.end());
  draft_bounds_.erase(std::unique(draft_bounds_.begin(), draft_bounds_.end()), draft_bounds_.end());
  draft_graph_ = std::make_unique<exec::Graph>("draft_step", draft_bounds_.size() + 1);
  exec::Stream& stream = runtime_->stream();
  const auto make = [&](int64_t rows, bool further) -> Status {
    const exec::ShapeKey key{static_cast<uint64_t>(rows) << 1 | static_cast<uint64_t>(further)};
    VV_TRY(record_draft(stream, rows, further));  // no valid row: see make_variants()
    drafting_.skip();
    VV_TRY(draft_graph_->capture(key, stream, [&](exec::Stream& s) { return record_draft(s, rows, further); }));
    VV_TRY(draft_graph_->pin(key));
    VV_TRY(run_draft(rows, further));
    drafting_.skip();
    return {};
  };
  for (const int64_t rows : draft_bounds_) VV_TRY(make(rows, false));
  VV_TRY(make(limits_.max_batch, true));
  return stream.synchronize();
}

Status DecoderModel::run_draft(int64_t rows, bool further) {
  const exec::ShapeKey key{static_cast<uint64_t>(rows) << 1 | static_cast<uint64_t>(further)};
  return options_.eager ? record_draft(runtime_->stream(), rows, further)
                        : draft_graph_->replay(key, runtime_->stream());
}

void DecoderModel::hear(std::span<const TokenRow> rows, bool decode) {
  for (Row& r : heard_)
    if (r.decode == decode) r = {};  // its rows are written again
  for (size_t i = 0; i < rows.size(); ++i) {
    const TokenRow& t = rows[i];
    Row& r = heard_[static_cast<size_t>(t.slot)];
    const int64_t at = static_cast<int64_t>(i) + (decode ? 0 : limits_.max_batch);
    if (t.guess) continue;  // where they are right they come once more
    if (r.past != t.pos || r.decode != decode || r.past == r.first) r = {t.pos, t.pos, at, decode};
    ++r.past;
  }
}

engine::TextModel::Heard DecoderModel::heard(int slot) const {
  if (heard_.empty() || slot < 0 || slot >= limits_.max_batch) return {};
  const Row& r = heard_[static_cast<size_t>(slot)];
  return {r.first, r.past};
}

Status DecoderModel::check_drafted(std::span<const TokenRow> rows, int count, std::span<int32_t> out) const {
  if (rows.empty() || rows.size() > static_cast<size_t>(limits_.prefill_chunk))
    return Status(Code::kLimitExceeded,
                  strf("draft: wanted 1 to %d rows, got %zu", limits_.prefill_chunk, rows.size()));
  const auto asking = std::count_if(rows.begin(), rows.end(), [](const TokenRow& r) { return r.sample; });
  if (count < 1 || count > limits_.mtp)
    return Status(Code::kLimitExceeded, strf("draft: wanted 1 to mtp = %d guesses, got %d", limits_.mtp, count));
  if (asking > limits_.max_batch || out.size() != static_cast<size_t>(asking * count))
    return Status(Code::kInvalidArgument, strf("draft: %ld rows ask for %d guesses each but out holds %zu",
                                               static_cast<long>(asking), count, out.size()));
  for (const TokenRow& r : rows) {
    if (r.token < 0 || r.token >= limits_.vocab)
      return Status(Code::kInvalidArgument,
                    strf("draft: token %d is outside the vocabulary [0, %d)", r.token, limits_.vocab));
    VV_TRY(check_slot("draft", r.slot));
    const Heard h = heard(r.slot);
    if (r.pos < h.first || r.pos >= h.past)
      return Status(Code::kFailedPrecondition, strf("draft: position %d of slot %d is none of its last step's [%d, %d)",
                                                    r.pos, r.slot, h.first, h.past));
    const int32_t last = r.pos + (r.sample ? count - 1 : 0);
    if (last >= limits_.context)
      return Status(Code::kLimitExceeded,
                    strf("draft: position %d is outside the context of %d", last, limits_.context));
    if (!pages_.holds(r.slot, last)) return no_place("draft", r.slot, last);
  }
  return {};
}

Status DecoderModel::draft(std::span<const TokenRow> rows, int count, std::span<int32_t> out) {
  if (!config_.drafts) return TextModel::draft(rows, count, out);
  VV_TRY(check_drafted(rows, count, out));
  draft_source_.clear();
  drafted_slots_.clear();
  draft_rows_.clear();
  for (const TokenRow& r : rows) {
    const Row& h = heard_[static_cast<size_t>(r.slot)];
    draft_source_.push_back(static_cast<int32_t>(h.at + r.pos - h.first));
    if (r.sample) drafted_slots_.push_back(r.slot), draft_rows_.push_back(r);
  }
  const auto collect = [&](int32_t* to) -> Status {
    drafted_.resize(drafting_.draws());
    VV_TRY(drafting_.pop(drafted_));
    for (size_t i = 0; i < drafted_.size(); ++i) to[i] = drafted_[i].token;
    return {};
  };
  while (drafting_.full()) VV_TRY(collect(nullptr));  // of prompts, which draw nothing
  exec::Stream& stream = runtime_->stream();
  VV_TRY(draft_.write(stream, drafting_.next(), rows, sampling_, masks_, draft_source_));
  if (!draft_rows_.empty()) VV_TRY(drafts_on_.write(stream, 0, draft_rows_, sampling_, masks_));
  const auto bound = *std::lower_bound(draft_bounds_.begin(), draft_bounds_.end(), static_cast<int64_t>(rows.size()));
  VV_TRY(run_draft(bound, false));
  VV_TRY(drafting_.push(stream, drafted_slots_));
  if (draft_rows_.empty()) return {};
  while (drafting_.draws() == 0) VV_TRY(collect(nullptr));
  for (int n = 1; n < count; ++n) {
    VV_TRY(run_draft(limits_.max_batch, true));
    VV_TRY(drafting_.push(stream, drafted_slots_));
  }
  for (size_t at = 0; at < out.size(); at += drafted_slots_.size()) VV_TRY(collect(out.data() + at));
  slots_ = drafted_slots_;  // whose logits are there
  return {};
}

void DecoderModel::note_drafts(int64_t checked, int64_t right) {
  guesses_checked_ += checked;
  guesses_right_ += right;
}

}  // namespace vivace::models::decoder
