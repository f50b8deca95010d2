// Slots, steps that are queued, and what they drew.
#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/models/decoder/decoder_model.h"

namespace vivace::models::decoder {

using engine::Sampled;
using engine::Sampling;
using engine::TokenRow;

const DecoderModel::Variant& DecoderModel::pick(bool decode, size_t rows, bool guesses) const {
  return *std::find_if(variants_.begin(), variants_.end(), [&](const Variant& v) {
    return v.decode == decode && v.guesses == guesses && static_cast<size_t>(v.rows) >= rows;
  });
}

Status DecoderModel::start(int slot, const Sampling& sampling, int positions) {
  VV_TRY(check_slot("start", slot));
  VV_TRY(engine::check(sampling));
  if (runtime_->place() == Place::host) VV_TRY(source_.check_files());
  if (positions < 0 || positions > limits_.context)
    return Status(Code::kLimitExceeded,
                  strf("start: wanted 1 to %d positions, or 0 for all of them, got %d", limits_.context, positions));
  VV_TRY(pages_.reserve(runtime_->stream(), slot, positions ? positions : limits_.context));
  return begin(slot, sampling, {});
}

Status DecoderModel::begin(int slot, const Sampling& sampling, std::span<const int32_t> fed) {
  masks_.clear(slot);
  if (!state_pos_.empty()) state_pos_[static_cast<size_t>(slot)] = 0;
  if (!heard_.empty()) heard_[static_cast<size_t>(slot)] = {};
  if (options_.logit_bias) VV_TRY(set_bias(slot, {}));
  sampling_[static_cast<size_t>(slot)] = sampling;
  const Tensor counts = slice(buffers_.counts, slot, 1);
  const auto bytes = static_cast<size_t>(counts.span_bytes());
  const bool counted = sampling.repetition != 1 || sampling.presence != 0 || sampling.frequency != 0;
  if (fed.empty() || !counted) return runtime_->stream().copy(counts.data, buffers_.no_counts.data, bytes);
  std::fill(fed_counts_.begin(), fed_counts_.end(), 0);
  for (const int32_t t : fed)
    if (t >= 0 && t < limits_.vocab) ++fed_counts_[static_cast<size_t>(t)];
  VV_TRY(runtime_->stream().copy(counts.data, fed_counts_.data(), bytes));
  return runtime_->stream().synchronize();  // the next call writes fed_counts_ again
}

Status DecoderModel::set_bias(int slot, std::span<const float> bias) {
  VV_TRY(check_slot("set_bias", slot));
  if (!options_.logit_bias)
    return Status(Code::kFailedPrecondition,
                  "set_bias: load the model with logit_bias, so that its steps have room for it");
  if (!bias.empty() && bias.size() != static_cast<size_t>(limits_.vocab))
    return Status(Code::kInvalidShape,
                  strf("set_bias: wanted a value for each of %d tokens, got %zu", limits_.vocab, bias.size()));
  const Tensor to = slice(buffers_.bias, slot, 1);
  VV_TRY(runtime_->stream().copy(to.data, bias.empty() ? buffers_.no_counts.data : bias.data(),
                                 static_cast<size_t>(to.span_bytes())));
  return bias.empty() ? Status() : runtime_->stream().synchronize();  // the caller's memory is free again
}

Status DecoderModel::set_mask(int slot, std::span<const uint32_t> words) {
  VV_TRY(check_slot("set_mask", slot));
  return masks_.set(runtime_->stream(), slot, words);
}

Status DecoderModel::check_slot(const char* call, int slot) const {
  return slot >= 0 && slot < limits_.max_batch
             ? Status()
             : Status(Code::kInvalidArgument, strf("%s: slot %d is outside [0, %d)", call, slot, limits_.max_batch));
}

Status DecoderModel::no_place(const char* call, int slot, int pos) {
  return Status(
      Code::kFailedPrecondition,
      strf("%s: position %d of slot %d has no page; start() takes as many as the sequence will hold", call, pos, slot));
}

Status DecoderModel::check_room() const {
  return in_flight_.full()
             ? Status(Code::kLimitExceeded,
                      strf("step: %d steps are queued already; collect() the oldest", limits_.max_in_flight_steps))
             : Status();
}

Status DecoderModel::check_rows(std::span<const TokenRow> rows) const {
  if (rows.empty() || rows.size() > static_cast<size_t>(limits_.prefill_chunk))
    return Status(Code::kLimitExceeded, strf("step: wanted 1 to %d rows, got %zu", limits_.prefill_chunk, rows.size()));
  size_t sampled = 0;
  for (const TokenRow& r : rows) {
    if (r.token < 0 || r.token >= limits_.vocab)
      return Status(Code::kInvalidArgument,
                    strf("step: token %d is outside the vocabulary [0, %d)", r.token, limits_.vocab));
    if (r.pos < 0 || r.pos >= limits_.context)
      return Status(Code::kLimitExceeded,
                    strf("step: position %d is outside the context of %d", r.pos, limits_.context));
    if (r.slot < 0 || r.slot >= limits_.max_batch)
      return Status(Code::kInvalidArgument, strf("step: slot %d is outside [0, %d)", r.slot, limits_.max_batch));
    if (!pages_.holds(r.slot, r.pos)) return no_place("step", r.slot, r.pos);
    if (r.image < -1 || r.image >= (encoder_ != nullptr ? encoder_->rows() : 0))
      return Status(Code::kInvalidArgument, strf("step: row %d of the images' tokens is outside [0, %ld)", r.image,
                                                 static_cast<long>(encoder_ != nullptr ? encoder_->rows() : 0)));
    sampled += r.sample;
  }
  if (sampled > static_cast<size_t>(limits_.max_batch))
    return Status(Code::kLimitExceeded, strf("step: at most %d rows may sample, got %zu", limits_.max_batch, sampled));
  return {};
}

Status DecoderModel::check_order(std::span<const TokenRow> rows) const {
  for (size_t i = 0; i < rows.size(); ++i) {
    const TokenRow& r = rows[i];
    const bool goes_on = i > 0 && rows[i - 1].slot == r.slot && rows[i - 1].guess == r.guess;
    const auto before = rows.first(i);
    const auto same = [&](const TokenRow& b) { return b.slot == r.slot && b.guess == r.guess; };
    if (!goes_on && std::any_of(before.begin(), before.end(), same))
      return Status(
          Code::kInvalidArgument,
          strf("step: rows of slot %d lie apart; of a model with recurrent layers they follow each other", r.slot));
    if (!r.guess && i > 0 && rows[i - 1].guess)
      return Status(Code::kInvalidArgument, "step: rows of guesses lie behind all others");
    int32_t next = goes_on ? rows[i - 1].pos + 1 : state_pos_[static_cast<size_t>(r.slot)];
    if (!goes_on && r.guess)
      for (const TokenRow& b : before)
        if (b.slot == r.slot) next = b.pos + 1;
    if (r.pos != next && (goes_on || r.guess || r.pos != 0))
      return Status(Code::kFailedPrecondition,
                    strf("step: position %d of slot %d does not follow its recurrent state, which is at %d; it goes "
                         "forward by one, or begins again at 0",
                         r.pos, r.slot, next));
  }
  return {};
}

void DecoderModel::advance(std::span<const TokenRow> rows) {
  if (state_pos_.empty()) return;
  for (const TokenRow& r : rows)
    if (!r.guess) state_pos_[static_cast<size_t>(r.slot)] = r.pos + 1;
}

Status DecoderModel::queue(const Variant& v, std::span<const int32_t> slots) {
  VV_TRY(run(v));
  return in_flight_.push(runtime_->stream(), slots);
}

Result<DecoderModel::Class> DecoderModel::write(std::span<const TokenRow> rows) {
  VV_TRY(check_rows(rows));
  slots_.clear();
  for (const TokenRow& r : rows)
    if (r.sample) slots_.push_back(r.slot);
  // A state begins at zero in the prefill class alone: a step that is repeated begins no sequence.
  const bool carries = !state_pos_.empty();
  if (carries) VV_TRY(check_order(rows));
  const auto twice = [&](const TokenRow& r) { return std::count(slots_.begin(), slots_.end(), r.slot) > 1; };
  Class c;
  c.guesses = carries && std::any_of(rows.begin(), rows.end(), twice);
  c.decode = slots_.size() == rows.size() && !(c.guesses && limits_.mtp == 0) &&
             std::none_of(rows.begin(), rows.end(), [&](const TokenRow& r) {
               return r.prompt || (carries && r.pos == 0) || r.image >= 0 || r.shift[0] != r.shift[1] ||
                      r.shift[0] != r.shift[2];
             });
  if (!c.decode && std::any_of(rows.begin(), rows.end(), [](const TokenRow& r) { return r.guess; }))
    return Status(Code::kInvalidArgument,
                  "step: rows of guesses are for steps all of whose rows sample and none is a prompt's");
  VV_TRY((c.decode ? decode_ : prompt_).write(runtime_->stream(), in_flight_.next(), rows, sampling_, masks_));
  advance(rows);
  if (!heard_.empty()) hear(rows, c.decode);
  return c;
}

Status DecoderModel::see(int place, const engine::Image& image) {
  if (encoder_ == nullptr) return TextModel::see(place, image);
  return encoder_->see(*runtime_, place, image);
}

Status DecoderModel::issue(std::span<const TokenRow> rows) {
  VV_TRY(check_room());
  VV_ASSIGN(const Class c, write(rows));
  if (c.decode) {
    decoding_ = slots_;
    decoding_pos_.clear();
    for (const TokenRow& r : rows) decoding_pos_.push_back(r.pos);
  }
  return queue(pick(c.decode, rows.size(), c.decode && c.guesses), slots_);
}

Status DecoderModel::repeat() {
  VV_TRY(check_room());
  if (decoding_.empty())
    return Status(Code::kFailedPrecondition, "repeat: no step of the decode class came before; issue() one");
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const int32_t pos = decoding_pos_[i] + 1;
    if (pos >= limits_.context)
      return Status(Code::kLimitExceeded,
                    strf("repeat: position %d is outside the context of %d", pos, limits_.context));
    if (!pages_.holds(decoding_[i], pos)) return no_place("repeat", decoding_[i], pos);
    if (!state_pos_.empty() && state_pos_[static_cast<size_t>(decoding_[i])] != pos)
      return Status(Code::kFailedPrecondition,
                    strf("repeat: the recurrent state of slot %d is at %d, not at %d; issue() its next step",
                         decoding_[i], state_pos_[static_cast<size_t>(decoding_[i])], pos));
  }
  for (int32_t& pos : decoding_pos_) ++pos;
  for (size_t i = 0; !heard_.empty() && i < decoding_.size(); ++i) {  // the same rows, of one position further on
    Row& r = heard_[static_cast<size_t>(decoding_[i])];
    ++r.first, ++r.past;
  }
  for (size_t i = 0; !state_pos_.empty() && i < decoding_.size(); ++i)
    state_pos_[static_cast<size_t>(decoding_[i])] = decoding_pos_[i] + 1;
  return queue(pick(true, decoding_.size()), decoding_);
}

Status DecoderModel::collect(std::span<Sampled> out) {
  if (in_flight_.empty()) return Status(Code::kFailedPrecondition, "collect: no step is queued; issue() one");
  if (out.size() != in_flight_.draws())
    return Status(Code::kInvalidArgument,
                  strf("collect: the step draws %zu tokens but out holds %zu", in_flight_.draws(), out.size()));
  VV_TRY(in_flight_.pop(out));
  return runtime_->place() == Place::host ? source_.check_lost() : Status();
}

Result<Tensor> DecoderModel::logits() {
  if (!in_flight_.empty()) return Status(Code::kFailedPrecondition, "logits: steps are queued; collect() them first");
  const Tensor t = slice(buffers_.logits, 0, static_cast<int64_t>(slots_.size()));
  if (runtime_->place() == Place::host) return t;
  VV_TRY(runtime_->stream().synchronize());
  VV_TRY(runtime_->stream().copy(logits_.data(), t.data, static_cast<size_t>(t.span_bytes())));
  VV_TRY(runtime_->stream().synchronize());
  return tensor(logits_.data(), t.dtype, t.shape);
}

}  // namespace vivace::models::decoder
