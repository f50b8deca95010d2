// Sound files of any coding: WAV by the reader beside this (wav.h), FLAC, MP3, Ogg and others by libsndfile, which is
// looked for when first such a file comes.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vivace/base/status.h"
#include "vivace/engine/audio/wav.h"

namespace vivace::engine {

struct Sound {
  int rate = 0;                // samples a second
  std::vector<float> samples;  // the mean of all channels, full scale 1, finite
};

/// Errors: Unsupported (neither WAV nor anything that libsndfile knows, or there is no libsndfile: the message says
/// where it was looked for), CorruptData (a header that lies, a sample that is not finite), LimitExceeded names the
/// limit. Nothing is allocated for what a header announces: samples are held as they come.
Result<Sound> read_sound(std::span<const uint8_t> file, const AudioLimits& limits = {});

/// Where libsndfile is, for the next file; "": VIVACE_SNDFILE, else the system's. Thread-safe.
void set_sound_library(std::string path);

/// [up, taps] row by row, a Kaiser-windowed sinc: the phases of `resample` (vivace/ops/resample.h), whose first tap
/// lies 1 - taps / 2 inputs from the one at or before an output. 90 dB; an even number of taps.
std::vector<float> resampling_filter(int up, int down);

/// ceil(n * rate / from.rate) samples at `rate` a second; `from` itself where that is its rate. Errors: LimitExceeded
/// (2^31 samples and more).
Result<Sound> resampled(Sound from, int rate);

}  // namespace vivace::engine
