// Sound: samples to frames, windows to what text hears.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/base/float_types.h"
#include "vivace/models/whisper/whisper_model.h"

namespace vivace::models::whisper {

using engine::SpeechWindow;

void WhisperModel::write_samples(size_t i, const SpeechWindow& w) {
  const int64_t n = sound_.samples.shape[1], N = static_cast<int64_t>(w.samples.size()),
                from = w.first * kHop - kWindow / 2;
  float* const to = sound_in_.host<float>(sound_.samples) + static_cast<int64_t>(i) * n;
  const int64_t mirrored = std::clamp<int64_t>(-from, 0, n), held = std::clamp<int64_t>(N - from, mirrored, n);
  for (int64_t k = 0; k < mirrored; ++k) to[k] = -(from + k) < N ? w.samples[static_cast<size_t>(-(from + k))] : 0.0f;
  if (held > mirrored)
    std::memcpy(to + mirrored, w.samples.data() + from + mirrored,
                static_cast<size_t>(held - mirrored) * sizeof(float));
  std::fill(to + held, to + n, 0.0f);
}

Result<float> WhisperModel::peak(std::span<const float> samples) {
  if (!std::all_of(samples.begin(), samples.end(), [](float v) { return std::isfinite(v); }))
    return Status(Code::kInvalidArgument, "peak: a sample is not finite");
  const int64_t frames = static_cast<int64_t>(samples.size()) / kHop + 1;
  std::vector<float> each(static_cast<size_t>(config_.frames()));
  float most = -INFINITY;
  exec::Stream& stream = runtime_->stream();
  for (int64_t first = 0; first < frames; first += config_.frames()) {
    const int64_t n = std::min(config_.frames(), frames - first);
    write_samples(0, {samples, first, n, 0});
    const Accounted step(options_.account.get());
    VV_TRY(run(kFeatures, [&](exec::Stream& s) { return record_sound(s, 1, true, {}); }));
    VV_TRY(stream.copy(each.data(), buffers_.frame_peak.data, static_cast<size_t>(n) * sizeof(float)));
    VV_TRY(stream.synchronize());
    most = std::max(most, *std::max_element(each.begin(), each.begin() + n));
  }
  return most;
}

Status WhisperModel::encode(std::span<const SpeechWindow> windows) {
  windows_ = 0;
  if (runtime_->place() == Place::host) VV_TRY(source_.check_files());
  if (windows.empty() || windows.size() > static_cast<size_t>(limits_.windows))
    return Status(Code::kLimitExceeded,
                  strf("encode: wanted 1 to %d windows, got %zu; load with windows", limits_.windows, windows.size()));
  for (size_t i = 0; i < windows.size(); ++i) {
    const SpeechWindow& w = windows[i];
    const auto bad = [&](const char* what, double value) {
      return Status(Code::kInvalidArgument, strf("encode: window %zu: %s, got %g", i, what, value));
    };
    if (w.first < 0 || w.first > INT32_MAX) return bad("wanted a first frame from 0 on", static_cast<double>(w.first));
    if (w.frames < 0 || w.frames > config_.frames())
      return bad(strf("wanted 0 to %ld frames", static_cast<long>(config_.frames())).c_str(),
                 static_cast<double>(w.frames));
    if (!std::isfinite(w.peak)) return bad("wanted a finite peak", static_cast<double>(w.peak));
    write_samples(i, w);
    sound_in_.host<float>(sound_.peak)[i] = w.peak;
    sound_in_.host<int32_t>(sound_.length)[i] = static_cast<int32_t>(w.frames);
  }
  const auto n = static_cast<int64_t>(windows.size());
  const Accounted step(options_.account.get());
  VV_TRY(run(sound_key(n), [&](exec::Stream& s) { return record_sound(s, n, false, {}); }));
  windows_ = static_cast<int>(n);
  return runtime_->stream().synchronize();
}

Status WhisperModel::check_window(const char* call, int window) const {
  if (window >= 0 && window < windows_) return {};
  return Status(windows_ == 0 ? Code::kFailedPrecondition : Code::kInvalidArgument,
                strf("%s: window %d is not one of the %d that encode() was given", call, window, windows_));
}

Result<std::vector<float>> WhisperModel::encoded(int window) {
  VV_TRY(check_window("encoded", window));
  const Tensor rows = slice(buffers_.hidden, window * config_.source, config_.source);
  std::vector<std::byte> raw(static_cast<size_t>(rows.span_bytes()));
  VV_TRY(runtime_->stream().copy(raw.data(), rows.data, raw.size()));
  VV_TRY(runtime_->stream().synchronize());
  std::vector<float> values(static_cast<size_t>(rows.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (rows.dtype == DType::f32) std::memcpy(&values[i], raw.data() + 4 * i, 4);
    else {
      uint16_t bits;
      std::memcpy(&bits, raw.data() + 2 * i, 2);
      values[i] = rows.dtype == DType::bf16 ? f32_of_bf16(bits) : f32_of_f16(bits);
    }
  }
  return values;
}

}  // namespace vivace::models::whisper
