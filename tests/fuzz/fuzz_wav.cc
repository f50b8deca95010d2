// Any bytes as a WAV file: an error, or as many finite samples as it says, none of them from elsewhere.
#include <cmath>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "vivace/engine/audio/wav.h"

using namespace vivace;
using engine::Wav;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::MemoryBound bound(size);
  const engine::AudioLimits limits{1000, 384000, 8, 60};
  const auto wav = Wav::parse({data, size}, limits);
  if (!wav.ok()) {
    fuzz::require(!wav.status().message().empty(), "errors say why");
    return 0;
  }
  fuzz::require(wav->frames() >= 0 && static_cast<size_t>(wav->frames()) <= size, "a frame has a byte at least");
  fuzz::require(wav->rate() >= limits.least_rate && wav->rate() <= limits.most_rate && wav->channels() >= 1 &&
                    wav->channels() <= limits.most_channels,
                "limits hold");
  fuzz::require(static_cast<double>(wav->frames()) <= limits.most_seconds * wav->rate(),
                "a file is no longer than allowed");
  std::vector<float> samples(static_cast<size_t>(wav->frames()));
  const Status read = wav->mono(0, samples);
  fuzz::require(read.ok() || read.code() == Code::kCorruptData, "samples are there, or one is not finite");
  if (read.ok())
    for (const float s : samples) fuzz::require(std::isfinite(s), "samples are finite");
  fuzz::require(
      !wav->mono(wav->frames(), std::span<float>(samples.data(), samples.empty() ? 0 : 1)).ok() || samples.empty(),
      "nothing lies beyond the last frame");
  return 0;
}
