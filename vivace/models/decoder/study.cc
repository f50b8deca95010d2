// What looks into a step: times of its launches, values of its ops, magnitudes for calibration. Setup phase.
#include <algorithm>
#include <string_view>

#include "vivace/base/check.h"
#include "vivace/models/decoder/calibrate.h"
#include "vivace/models/decoder/decoder_model.h"

namespace vivace::models::decoder {

using engine::Sampled;
using engine::TokenRow;

Result<engine::Profile> DecoderModel::profile(int rows, int pos, bool decode, bool in_step) {
  if (!flights_.empty()) return Status(Code::kFailedPrecondition, "profile: steps are queued; collect() them first");
  const auto forget = [&] {
    for (int slot = 0; slot < limits_.max_batch; ++slot) pages_.release(slot);
  };
  forget();
  Result<engine::Profile> p = time_step(rows, pos, decode, in_step);
  forget();  // a page that stayed would be missing to the sequences behind it
  return p;
}

Result<engine::Profile> DecoderModel::time_step(int rows, int pos, bool decode, bool in_step) {
  std::vector<TokenRow> all;
  for (int32_t i = 0; i < rows; ++i) all.push_back({i, decode ? pos : pos - rows + 1 + i, decode ? i : 0, decode || i == rows - 1});
  for (int slot = 0; slot < (decode ? std::min(rows, limits_.max_batch) : 1); ++slot) VV_TRY(pages_.reserve(machine_->stream(), slot, pos + 1));
  VV_TRY(check_rows(all));
  InputBlock& block = decode ? decode_ : prompt_;
  const Variant& v = pick(decode, all.size());
  // Replayed hundreds of times: rows keep their positions, so that none runs past the places it has. What moves on are the
  // other class's inputs, which its next step writes anew.
  Result<engine::Profile> p = engine::profile(*machine_, [&](exec::Stream& s) { return record(s, v, {}, &prompt_.inputs()); }, [&]() -> Status {
    VV_TRY(machine_->stream().synchronize());  // the copy of the inputs is written again
    return block.write(machine_->stream(), 0, all, sampling_);
  }, in_step);
  VV_TRY(flights_.restart(machine_->stream(), buffers_));
  decoding_.clear();
  return p;
}

Status DecoderModel::observe(std::span<const TokenRow> rows, const Observer& observer) {
  std::vector<std::byte> copy;
  return walk(rows, [&](const char* op, const char* port, const Tensor& there) -> Status {
    if (machine_->place() == Place::host) return observer(op, port, there);
    const size_t bytes = static_cast<size_t>(there.span_bytes());
    copy.resize(bytes);
    VV_TRY(machine_->stream().copy(copy.data(), there.data, bytes));
    VV_TRY(machine_->stream().synchronize());
    Tensor here = there;
    here.data = copy.data();
    here.place = Place::host;
    return observer(op, port, here);
  });
}

Status DecoderModel::walk(std::span<const TokenRow> rows, const Observer& seen, bool normed) {
  if (!flights_.empty()) return Status(Code::kFailedPrecondition, "observe: steps are queued; collect() them first");
  VV_ASSIGN(const bool decode, write(rows));
  decoding_.clear();
  VV_TRY(record(machine_->stream(), pick(decode, rows.size()), [&](const ops::Call& call) -> Status {
    VV_TRY(machine_->stream().synchronize());
    for (size_t i = 0; i < call.spec().ports.size(); ++i) {
      const ops::Port& port = call.spec().ports[i];
      const Tensor& value = call.port_at(static_cast<int>(i));
      if (port.io != ops::Io::in && value.present()) VV_TRY(seen(call.spec().name, port.name, value));
    }
    return {};
  }, nullptr, normed));
  VV_TRY(flights_.push(machine_->stream(), slots_));
  std::vector<Sampled> dropped(slots_.size());
  return flights_.pop(dropped);
}

Result<std::vector<float>> DecoderModel::calibrate(std::span<const std::vector<int32_t>> prompts, double percentile) {
  if (plan_.eight_in()) return Status(Code::kUnsupported, strf("calibrate: precision %s has no unrounded activations to look at; load the model in bf16", plan_.name));
  if (config_.has(kExperts)) return Status(Code::kUnsupported, "calibrate: products of experts take no e4m3 activations");
  SiteHistograms sites(site_count(config_));
  for (const std::vector<int32_t>& prompt : prompts) {
    VV_TRY(start(0, {}, static_cast<int>(std::min<size_t>(prompt.size(), static_cast<size_t>(limits_.context)))));
    for (size_t at = 0; at < prompt.size(); at += static_cast<size_t>(limits_.chunk)) {
      std::vector<TokenRow> rows;
      for (size_t i = at; i < std::min(prompt.size(), at + static_cast<size_t>(limits_.chunk)); ++i) rows.push_back({prompt[i], static_cast<int32_t>(i), 0, false});
      rows.back().sample = true;
      int64_t site = 0;
      VV_TRY(walk(rows, [&](const char* op, const char*, const Tensor& there) -> Status {
        const bool head = site == site_count(config_) - 1;
        const void* const wanted[] = {buffers_.normed.data, buffers_.attended.data, buffers_.normed.data, buffers_.mlp.data};
        const bool final_norm = head && std::string_view(op) == "norm" && (there.data == buffers_.normed.data || there.data == buffers_.last.data || there.data == buffers_.last_branch.data);
        if (head ? !final_norm : there.data != wanted[site % kSites]) return {};
        Tensor dense = slice(there, 0, head ? 1 : static_cast<int64_t>(rows.size()));
        std::vector<std::byte> copy(static_cast<size_t>(dense.span_bytes()));
        VV_TRY(machine_->stream().copy(copy.data(), dense.data, copy.size()));
        VV_TRY(machine_->stream().synchronize());
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
