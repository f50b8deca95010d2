// Calibration: how large activations get where they enter products, from sound and the text that is heard in it.
#include "vivace/models/layer/calibration.h"

#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/models/whisper/whisper_model.h"

namespace vivace::models::whisper {

Result<std::vector<float>> WhisperModel::calibrate(std::span<const std::span<const float>> sounds, double percentile) {
  if (plan_.eight || plan_.hidden == DType::f16)
    return Status(Code::kFailedPrecondition,
                  strf("calibrate: precision %s has no activations of bf16 or f32 to look at; load with bf16 or f32",
                       plan_.name));
  const bool none = std::all_of(sounds.begin(), sounds.end(), [](const auto& s) { return s.size() < kHop; });
  if (none || !(percentile > 0 && percentile <= 100))
    return Status(Code::kInvalidArgument, strf("calibrate: wanted sound and a percentile in (0, 100], got %zu sounds%s "
                                               "and %g",
                                               sounds.size(), none ? " shorter than a frame" : "", percentile));
  Calibration seen(QuantizationSites(config_).count());
  const Tensor* const counts[] = {&text_.rows, &text_.samples};
  enters_ = [&](int64_t place, const Tensor& x, const Tensor& rows) -> Status {
    int64_t valid = x.shape[0];  // of a window all
    for (const Tensor* count : counts)
      if (rows.present() && rows.data == count->data) valid = *text_in_.host<int32_t>(*count);
    return seen.see(runtime_->stream(), place, x, valid);
  };
  const auto all = [&]() -> Status {
    for (const std::span<const float> samples : sounds) {
      const auto frames = static_cast<int64_t>(samples.size()) / kHop;
      if (frames == 0) continue;
      VV_ASSIGN(const float most, peak(samples));
      for (int64_t first = 0; first < frames; first += config_.frames()) {
        seen.begin();
        VV_TRY(show_window(samples, first, most));
      }
    }
    return {};
  };
  Status done = all();
  enters_ = nullptr;
  windows_ = 0;
  VV_TRY(std::move(done));
  return seen.scales(percentile);
}

Status WhisperModel::show_window(std::span<const float> samples, int64_t first, float most) {
  const engine::SpeechTokens& t = config_.tokens;
  const int64_t frames = std::min(config_.frames(), static_cast<int64_t>(samples.size()) / kHop - first);
  const engine::SpeechWindow window{samples, first, frames, most};
  VV_TRY(encode({&window, 1}));
  engine::SpeechRequest request;
  request.prompt = {t.sot};
  if (t.multilingual) {
    VV_ASSIGN(const std::vector<float> p, languages(0));
    const auto best = std::max_element(p.begin(), p.end()) - p.begin();
    request.prompt.insert(request.prompt.end(), {t.first_language + static_cast<int32_t>(best), t.transcribe});
  }
  std::vector<engine::Transcript> text;
  return decode({&request, 1}, &text);
}

}  // namespace vivace::models::whisper
