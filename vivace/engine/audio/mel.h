// What stft_mel takes beside a signal: a window, and triangular bands on the mel scale of Slaney's Auditory Toolbox.
#pragma once
#include <vector>

namespace vivace::engine {

/// [n]: a periodic Hann window.
std::vector<float> hann_window(int n);

/// [bins, n_fft / 2 + 1] row by row: triangles from 0 to rate / 2, even on a scale that is linear to 1 kHz and
/// logarithmic above; each over half its width in Hz, so that all have the same area.
std::vector<float> mel_filters(int bins, int n_fft, int rate);

}  // namespace vivace::engine
