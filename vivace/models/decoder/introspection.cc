// What looks into a step: times of its launches, values of its ops, magnitudes for calibration. Setup phase.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "vivace/base/check.h"
#include "vivace/models/decoder/calibrate.h"
#include "vivace/models/decoder/decoder_model.h"

namespace vivace::models::decoder {
namespace {

constexpr double kMostHeadParts = 8;

}  // namespace

using engine::Sampled;
using engine::TokenRow;

Result<engine::Profile> DecoderModel::profile(int rows, int pos, bool decode, bool in_step) {
  if (!in_flight_.empty()) return Status(Code::kFailedPrecondition, "profile: steps are queued; collect() them first");
  Result<engine::Profile> p = Status(Code::kInternal, "profile: no step was timed");
  VV_TRY(with_step(rows, pos, decode, [&](const Variant& v, const std::function<Status()>& reset) -> Status {
    p = engine::profile(
        *runtime_, [&](exec::Stream& s) { return record(s, v, {}, &prompt_.inputs()); }, reset, in_step);
    return {};
  }));
  return p;
}

Status DecoderModel::with_step(int rows, int pos, bool decode,
                               const std::function<Status(const Variant&, const std::function<Status()>&)>& f) {
  const auto forget = [&] {  // a page that stayed would be missing to the sequences behind it
    for (int slot = 0; slot < limits_.max_batch; ++slot) pages_.release(slot);
    for (size_t slot = 0; limits_.recurrent && slot < static_cast<size_t>(limits_.max_batch); ++slot)
      state_pos_[slot] = 0;  // those behind are kept ones
    for (Row& r : heard_) r = {};
  };
  const auto run = [&]() -> Status {
    std::vector<TokenRow> all;
    for (int32_t i = 0; i < rows; ++i)
      all.push_back({i, decode ? pos : pos - rows + 1 + i, decode ? i : 0, decode || i == rows - 1});
    for (int slot = 0; slot < (decode ? std::min(rows, limits_.max_batch) : 1); ++slot)
      VV_TRY(pages_.reserve(runtime_->stream(), slot, pos + 1));
    VV_TRY(check_rows(all));
    const std::vector<std::byte> zeros(limits_.recurrent ? static_cast<size_t>(buffers_.state.span_bytes()) : 0);
    InputBlock& block = decode ? decode_ : prompt_;
    // Replayed hundreds of times: rows keep their positions, so that none runs past the places it has. What moves on
    // are the other class's inputs, which its next step writes anew.
    const Status s = f(pick(decode, all.size()), [&]() -> Status {
      VV_TRY(runtime_->stream().synchronize());  // the copy of the inputs is written again
      if (limits_.recurrent) {                   // the same step gives the same logits each time
        const engine::Upload none[] = {{buffers_.state.data, zeros.data(), zeros.size()}};
        VV_TRY(runtime_->upload(none));
      }
      return block.write(runtime_->stream(), 0, all, sampling_, masks_);
    });
    VV_TRY(in_flight_.restart(runtime_->stream(), buffers_));
    decoding_.clear();
    return s;
  };
  forget();
  Status s = run();
  forget();
  return s;
}

Status DecoderModel::plan_gates(Variant* v) {
  // As many rows, and as far in the context, as there are places for: attention takes longest there.
  const auto least = [](auto a, auto b) { return static_cast<int>(std::min<int64_t>(a, b)); };
  int rows = least(v->rows, limits_.vocab), places = limits_.context;
  if (v->decode && limits_.pages != 0) rows = least(rows, limits_.pages);
  if (limits_.pages != 0) places = least(places, limits_.pages / (v->decode ? rows : 1) * limits_.page);
  if (!v->decode) rows = least(rows, places);
  return with_step(rows, places - 1, v->decode, [&](const Variant&, const std::function<Status()>& reset) -> Status {
    const auto time = [&] {
      return engine::time_launches(
          *runtime_, [&](exec::Stream& s) { return record(s, *v, {}, &prompt_.inputs(), false, true); }, reset);
    };
    VV_ASSIGN(engine::StepTimes times, time());
    const size_t points = times.points.size();
    const auto* const us = times.us.data();
    const double head_us = std::accumulate(us + times.points[points - 2], us + times.points[points - 1], 0.0);
    if (head_us > options_.gates.stretch_us) {  // one launch that no gate divides
      Variant parts = *v;
      parts.head_parts =
          static_cast<int>(std::min(kMostHeadParts, std::ceil(1.1 * head_us / options_.gates.stretch_us)));
      if (same_logits(*v, parts, v->decode ? rows : 1, reset)) {
        v->head_parts = parts.head_parts;
        VV_ASSIGN(times, time());
      }
    }
    v->gates = engine::plan_gates(times, options_.gates.stretch_us);
    work_.worst_us = std::max(work_.worst_us, std::accumulate(times.us.begin(), times.us.end(), 0.0));
    work_.stretch_us = std::max(work_.stretch_us, v->gates.stretch_us);
    work_.gates = std::max(work_.gates, v->gates.gates);
    return {};
  });
}

bool DecoderModel::same_logits(const Variant& whole, const Variant& v, int64_t rows,
                               const std::function<Status()>& reset) {
  const Tensor logits = slice(buffers_.logits, 0, rows);
  const auto bytes = static_cast<size_t>(logits.span_bytes());
  exec::Stream& stream = runtime_->stream();
  const auto run = [&](const Variant& step, std::vector<std::byte>* seen) -> Status {
    seen->assign(bytes, std::byte{0xff});  // what a part leaves out differs
    VV_TRY(reset());
    VV_TRY(stream.copy(logits.data, seen->data(), bytes));
    VV_TRY(stream.synchronize());
    VV_TRY(record(stream, step, {}, &prompt_.inputs(), false, true));
    VV_TRY(stream.synchronize());
    VV_TRY(stream.copy(seen->data(), logits.data, bytes));
    return stream.synchronize();
  };
  std::vector<std::byte> one, parts;
  return run(whole, &one).ok() && run(v, &parts).ok() && one == parts &&
         std::any_of(one.begin(), one.end(), [](std::byte b) { return b != std::byte{0xff}; });
}

Result<engine::WorkTimes> DecoderModel::work_times() const {
  return options_.gates.gate != nullptr ? Result<engine::WorkTimes>(work_) : TextModel::work_times();
}

Status DecoderModel::observe(std::span<const TokenRow> rows, const Observer& observer, const Wanted& wanted) {
  std::vector<std::byte> copy;
  return observe_ops(rows, [&](const char* op, const char* port, const Tensor& there) -> Status {
    if (wanted && !wanted(op, port)) return {};
    if (runtime_->place() == Place::host) return observer(op, port, there);
    const size_t bytes = static_cast<size_t>(there.span_bytes());
    copy.resize(bytes);
    VV_TRY(runtime_->stream().copy(copy.data(), there.data, bytes));
    VV_TRY(runtime_->stream().synchronize());
    Tensor here = there;
    here.data = copy.data();
    here.place = Place::host;
    return observer(op, port, here);
  });
}

Status DecoderModel::observe_ops(std::span<const TokenRow> rows, const Observer& seen, bool normed) {
  if (!in_flight_.empty()) return Status(Code::kFailedPrecondition, "observe: steps are queued; collect() them first");
  VV_ASSIGN(const Class c, write(rows));
  decoding_.clear();
  const Variant& v = pick(c.decode, rows.size(), c.decode && c.guesses);
  VV_TRY(record(runtime_->stream(), v, [&](const ops::Call& call) -> Status {
    VV_TRY(runtime_->stream().synchronize());
    for (size_t i = 0; i < call.spec().ports.size(); ++i) {
      const ops::Port& port = call.spec().ports[i];
      const Tensor& value = call.port_at(static_cast<int>(i));
      if (port.io != ops::Io::in && value.present()) VV_TRY(seen(call.spec().name, port.name, value));
    }
    return {};
  }, nullptr, normed));
  VV_TRY(in_flight_.push(runtime_->stream(), slots_));
  std::vector<Sampled> dropped(slots_.size());
  return in_flight_.pop(dropped);
}

Result<std::vector<float>> DecoderModel::calibrate(std::span<const std::vector<int32_t>> prompts, double percentile) {
  if (plan_.eight_in())
    return Status(
        Code::kUnsupported,
        strf("calibrate: precision %s has no unrounded activations to look at; load the model in bf16", plan_.name));
  if (kv_scales_ == KvScales::used)
    return Status(Code::kUnsupported,
                  "calibrate: with scales of an e4m3 cache what attention gives is not what it is without; load the "
                  "model with kv_dtype auto");
  SiteHistograms sites(site_count(config_));
  for (const std::vector<int32_t>& prompt : prompts) {
    VV_TRY(start(0, {}, static_cast<int>(std::min<size_t>(prompt.size(), static_cast<size_t>(limits_.context)))));
    for (size_t at = 0; at < prompt.size(); at += static_cast<size_t>(limits_.prefill_chunk)) {
      std::vector<TokenRow> rows;
      for (size_t i = at; i < std::min(prompt.size(), at + static_cast<size_t>(limits_.prefill_chunk)); ++i)
        rows.push_back({prompt[i], static_cast<int32_t>(i), 0, false});
      rows.back().sample = true;
      int64_t site = 0;
      VV_TRY(observe_ops(rows, [&](const char* op, const char*, const Tensor& there) -> Status {
        const int64_t last = site_count(config_) - 1;
        if (config_.has(kExperts) && site % kSites == kInner) ++site;  // products of experts take 16 bits
        const bool head = site == last;
        const bool carries = !head && config_.is_recurrent(static_cast<size_t>(site / kSites));
        const void* const wanted[] = {buffers_.normed.data, (carries ? buffers_.delta : buffers_.attended).data,
                                      buffers_.normed.data, buffers_.mlp.data};
        // What attention gave is written again by its gate, a delta rule's heads by theirs.
        if (!head && site % kSites == kAttended && (carries || config_.has(kGatedAttention)) &&
            std::string_view(op) != "gate_heads")
          return {};
        const bool final_norm = head && std::string_view(op) == "norm" &&
                                (there.data == buffers_.normed.data || there.data == buffers_.last.data ||
                                 there.data == buffers_.last_branch.data);
        if (head ? !final_norm : there.data != wanted[site % kSites]) return {};
        Tensor dense = slice(there, 0, head ? 1 : static_cast<int64_t>(rows.size()));
        std::vector<std::byte> copy(static_cast<size_t>(dense.span_bytes()));
        VV_TRY(runtime_->stream().copy(copy.data(), dense.data, copy.size()));
        VV_TRY(runtime_->stream().synchronize());
        dense.data = copy.data();
        return sites.add(site++, dense);
      }, true));
      VV_CHECK_EQ(kInternal, site_count(config_), site);
    }
    release(0);
  }
  return sites.scales(percentile);
}

}  // namespace vivace::models::decoder
