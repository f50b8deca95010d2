#include "vivace/models/decoder/step_io.h"

#include <algorithm>
#include <string>

#include "vivace/base/check.h"

namespace vivace::models::decoder {

using engine::Sampled;
using engine::Sampling;
using engine::TokenRow;

void InputBlock::declare(engine::Arena& arena, const char* prefix, int64_t T, int64_t R, bool gathers, int64_t axes,
                         int64_t images, int64_t runs, Kind kind) {
  const auto declare = [&](const char* name, DType dtype, int64_t n, Tensor* t) {
    arena.declare(std::string(prefix) + "." + name, dtype, Shape(n), t);
  };
  gathers_ = gathers;
  kind_ = kind;
  images_ = images;
  declare("tokens", DType::i32, T, &in_.tokens);
  declare("pos", DType::i32, T, &in_.pos);
  declare("slot", DType::i32, T, &in_.slot);
  declare("rows", DType::i32, 1, &in_.rows);
  if (axes > 0) arena.declare(std::string(prefix) + ".shift", DType::i32, Shape(axes, T), &in_.shift);
  if (runs > 0) {
    declare("run_offsets", DType::i32, runs + 1, &in_.run_offsets);
    declare("run_slot", DType::i32, runs, &in_.run_slot);
    declare("run_fresh", DType::i32, runs, &in_.run_fresh);
  }
  if (kind == Kind::guesses) {
    declare("guess_offsets", DType::i32, runs + 1, &in_.guess_offsets);
    declare("guess_slot", DType::i32, runs, &in_.guess_slot);
  }
  if (kind == Kind::draft) declare("source", DType::i32, T, &in_.source);
  if (axes > 1) {
    declare("image", DType::i32, T, &in_.image);
    declare("level", DType::i32, T, &in_.level);
  }
  if (gathers) {
    declare("sample_rows", DType::i32, R, &in_.sample_rows);
    declare("samples", DType::i32, 1, &in_.samples);
    declare("sample_slot", DType::i32, R, &in_.sample_slot);
  }
  declare("sample_step", DType::i32, R, &in_.sample_step);
  declare("mask_slot", DType::i32, R, &in_.mask_slot);
  declare("temperature", DType::f32, R, &in_.temperature);
  declare("top_p", DType::f32, R, &in_.top_p);
  declare("min_p", DType::f32, R, &in_.min_p);
  declare("repetition", DType::f32, R, &in_.repetition);
  declare("presence", DType::f32, R, &in_.presence);
  declare("frequency", DType::f32, R, &in_.frequency);
  declare("top_k", DType::i32, R, &in_.top_k);
  declare("seed", DType::i64, R, &in_.seed);
}

Status InputBlock::open(engine::Runtime& runtime, int max_in_flight_steps) {
  begin_ = static_cast<char*>(in_.tokens.data);
  bytes_ = static_cast<size_t>(static_cast<char*>(in_.seed.data) + in_.seed.span_bytes() - begin_);
  bytes_ = (bytes_ + 15) / 16 * 16;
  if (!gathers_) {
    in_.samples = in_.rows;
    in_.sample_slot = in_.slot;
  }
  VV_ASSIGN(staging_, runtime.reserve_shared("step inputs", bytes_ * static_cast<size_t>(max_in_flight_steps)));
  return {};
}

Status InputBlock::write(exec::Stream& stream, int flight, std::span<const TokenRow> rows,
                         std::span<const Sampling> of_slot, const Masks& masks, std::span<const int32_t> source) {
  stage_ = static_cast<char*>(staging_.data()) + static_cast<size_t>(flight) * bytes_;
  size_t n = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const TokenRow& r = rows[i];
    put(in_.tokens, i, r.token);
    put(in_.pos, i, r.pos);
    put(in_.slot, i, r.slot);
    for (int64_t a = 0; in_.shift.present() && a < in_.shift.shape[0]; ++a)
      put(in_.shift, static_cast<size_t>(a * in_.shift.shape[1]) + i, r.shift[static_cast<size_t>(a)]);
    if (in_.image.present()) {
      put(in_.image, i, r.image >= 0 ? r.image : static_cast<int32_t>(images_) + static_cast<int32_t>(i));
      put(in_.level, i, r.image >= 0 ? r.image : static_cast<int32_t>(images_));
    }
    if (in_.source.present()) put(in_.source, i, source[i]);
    if (!r.sample) continue;
    const Sampling& s = of_slot[static_cast<size_t>(r.slot)];
    if (gathers_) {
      put(in_.sample_rows, n, static_cast<int32_t>(i));
      put(in_.sample_slot, n, r.slot);
    }
    // The drawn token's position: the same draw alone or in a batch, and guessed with the noise that will draw it.
    put(in_.sample_step, n, r.pos + (kind_ == Kind::draft || kind_ == Kind::drafts_on ? 2 : 1));
    put(in_.mask_slot, n, masks.row(r.slot));
    put(in_.temperature, n, s.temperature);
    put(in_.top_p, n, s.top_p);
    put(in_.min_p, n, s.min_p);
    put(in_.repetition, n, s.repetition);
    put(in_.presence, n, s.presence);
    put(in_.frequency, n, s.frequency);
    put(in_.top_k, n, s.top_k);
    put(in_.seed, n, s.seed);
    ++n;
  }
  if (in_.run_offsets.present()) put_runs(rows, false, in_.run_offsets, in_.run_slot);
  if (in_.guess_offsets.present()) put_runs(rows, true, in_.guess_offsets, in_.guess_slot);
  put(in_.rows, 0, static_cast<int32_t>(rows.size()));
  if (gathers_) put(in_.samples, 0, static_cast<int32_t>(n));
  return stream.copy(begin_, stage_, bytes_);
}

void InputBlock::put_runs(std::span<const TokenRow> rows, bool guesses, const Tensor& offsets, const Tensor& slots) {
  size_t n = 0, past = rows.size();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].guess != guesses) {  // guesses lie behind all others
      if (!guesses) past = std::min(past, i);
      continue;
    }
    if (i > 0 && rows[i].slot == rows[i - 1].slot && rows[i].guess == rows[i - 1].guess) continue;
    put(offsets, n, static_cast<int32_t>(i));
    put(slots, n, rows[i].slot);
    if (!guesses) put(in_.run_fresh, n, rows[i].pos == 0 ? 1 : 0);
    ++n;
  }
  for (; n < static_cast<size_t>(offsets.shape[0]); ++n) put(offsets, n, static_cast<int32_t>(past));
}

Status InFlightSteps::open(engine::Runtime& runtime, const char* name, int max_in_flight_steps, int64_t R,
                           StepBuffers* buffers) {
  in_flight_.resize(static_cast<size_t>(max_in_flight_steps));
  for (InFlightStep& f : in_flight_) {
    VV_ASSIGN(f.done, runtime.backend().make_event());
    f.slots.reserve(static_cast<size_t>(R));
  }
  const size_t half = static_cast<size_t>(max_in_flight_steps * R) * 4;
  VV_ASSIGN(rings_, runtime.reserve_shared(name, 2 * half));
  ring_ = tensor(rings_.data(), DType::i32, Shape(max_in_flight_steps, R), runtime.place());
  logprob_ =
      tensor(static_cast<char*>(rings_.data()) + half, DType::f32, Shape(max_in_flight_steps, R), runtime.place());
  buffers->ring = ring_;
  buffers->ring_logprob = logprob_;
  return {};
}

Status InFlightSteps::push(exec::Stream& stream, std::span<const int32_t> slots) {
  InFlightStep& f = in_flight_[static_cast<size_t>(next())];
  VV_TRY(stream.record(*f.done));
  f.slots.assign(slots.begin(), slots.end());
  f.row = row_;
  skip();
  ++count_;
  return {};
}

Status InFlightSteps::restart(exec::Stream& stream, const StepBuffers& buffers) {
  row_ = 0;
  return stream.copy(buffers.turn.data, buffers.no_counts.data, static_cast<size_t>(buffers.turn.span_bytes()));
}

Status InFlightSteps::pop(std::span<Sampled> out) {
  InFlightStep& f = in_flight_[static_cast<size_t>(first_)];
  VV_TRY(f.done->synchronize());
  const auto row = static_cast<size_t>(f.row) * static_cast<size_t>(ring_.shape[1]);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = {static_cast<const int32_t*>(ring_.data)[row + i], f.slots[i],
              static_cast<const float*>(logprob_.data)[row + i]};
  first_ = (first_ + 1) % static_cast<int>(in_flight_.size());
  --count_;
  return {};
}

}  // namespace vivace::models::decoder
