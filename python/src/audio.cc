// WAV files for Python: what a file is, and its samples into an array of the caller's. What stft_mel takes beside them.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "errors.h"
#include "gil.h"
#include "model.h"
#include "tensor.h"
#include "vivace/base/check.h"
#include "vivace/engine/audio/mel.h"
#include "vivace/engine/audio/sound.h"

namespace vivace::python {
namespace {

using engine::Wav;

struct OpenWav {
  nb::object memory;
  Borrowed from;
  Wav wav;
};

OpenWav* open_wav(nb::object memory, double most_seconds) {
  Borrowed from;
  Tensor t;
  check(to_tensor(memory.ptr(), false, &t, &from).with_context("wav"));
  if (t.dtype != DType::u8 || t.place != Place::host || !t.is_dense())
    check(Status(Code::kInvalidDType, "wav: wanted the file's bytes, dense u8 in host memory"));
  engine::AudioLimits limits;
  limits.most_seconds = most_seconds;
  auto wav = Wav::parse({static_cast<const uint8_t*>(t.data), static_cast<size_t>(t.shape.elements())}, limits);
  check(wav.status());
  return new OpenWav{std::move(memory), std::move(from), std::move(wav).value()};
}

void mono(const OpenWav& w, int64_t first, nb::handle out) {
  Borrowed from;
  Tensor t;
  check(to_tensor(out.ptr(), true, &t, &from).with_context("wav"));
  if (t.dtype != DType::f32 || t.place != Place::host || !t.is_dense())
    check(Status(Code::kInvalidDType, "wav: wanted dense f32 in host memory to write samples to"));
  const auto done = [&] {
    const NoGil release;
    return w.wav.mono(first, {static_cast<float*>(t.data), static_cast<size_t>(t.shape.elements())});
  }();
  check(done);
}

/// A whole file of another coding.
engine::Sound* read_sound(nb::handle memory, double most_seconds) {
  Borrowed from;
  Tensor t;
  check(to_tensor(memory.ptr(), false, &t, &from).with_context("sound"));
  if (t.dtype != DType::u8 || t.place != Place::host || !t.is_dense())
    check(Status(Code::kInvalidDType, "sound: wanted the file's bytes, dense u8 in host memory"));
  engine::AudioLimits limits;
  limits.most_seconds = most_seconds;
  auto sound = [&] {
    const NoGil release;
    return engine::read_sound({static_cast<const uint8_t*>(t.data), static_cast<size_t>(t.shape.elements())}, limits);
  }();
  check(sound.status());
  return new engine::Sound(std::move(sound).value());
}

/// Into memory of the caller's, all of it.
void copy_floats(std::span<const float> from, nb::handle out) {
  Borrowed held;
  Tensor t;
  check(to_tensor(out.ptr(), true, &t, &held).with_context("sound"));
  if (t.dtype != DType::f32 || t.place != Place::host || !t.is_dense() ||
      t.shape.elements() != static_cast<int64_t>(from.size()))
    check(Status(Code::kInvalidShape, strf("sound: wanted dense f32 in host memory for %zu samples", from.size())));
  std::ranges::copy(from, static_cast<float*>(t.data));
}

}  // namespace

void add_audio(nb::module_& m) {
  const engine::AudioLimits limits;
  m.attr("audio_limits") =
      nb::make_tuple(limits.least_rate, limits.most_rate, limits.most_channels, limits.most_seconds);
  nb::class_<OpenWav>(m, "Wav")
      .def_prop_ro("rate", [](const OpenWav& w) { return w.wav.rate(); })
      .def_prop_ro("channels", [](const OpenWav& w) { return w.wav.channels(); })
      .def_prop_ro("frames", [](const OpenWav& w) { return w.wav.frames(); })
      .def("mono", &mono, nb::arg("first"), nb::arg("out"));
  m.def("open_wav", &open_wav, nb::arg("memory"), nb::arg("most_seconds") = limits.most_seconds,
        nb::rv_policy::take_ownership);
  nb::class_<engine::Sound>(m, "Sound")
      .def_prop_ro("rate", [](const engine::Sound& s) { return s.rate; })
      .def_prop_ro("frames", [](const engine::Sound& s) { return s.samples.size(); })
      .def("copy_to", [](const engine::Sound& s, nb::handle out) { copy_floats(s.samples, out); }, nb::arg("out"));
  m.def("read_sound", &read_sound, nb::arg("memory"), nb::arg("most_seconds") = limits.most_seconds,
        nb::rv_policy::take_ownership);
  m.def("set_sound_library", &engine::set_sound_library, nb::arg("path"));
  m.def("resampling_filter", &engine::resampling_filter, nb::arg("up"), nb::arg("down"));
  m.def("hann_window", &engine::hann_window, nb::arg("n"));
  m.def("mel_filters", &engine::mel_filters, nb::arg("bins"), nb::arg("n_fft") = 400, nb::arg("rate") = 16000);
}

}  // namespace vivace::python
