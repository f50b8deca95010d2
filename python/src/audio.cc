// WAV files for Python: what a file is, and its samples into an array of the caller's. What stft_mel takes beside them.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "gil.h"
#include "model.h"
#include "tensor.h"
#include "vivace/base/check.h"
#include "vivace/engine/audio/mel.h"
#include "vivace/engine/audio/wav.h"

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
  m.def("hann_window", &engine::hann_window, nb::arg("n"));
  m.def("mel_filters", &engine::mel_filters, nb::arg("bins"), nb::arg("n_fft") = 400, nb::arg("rate") = 16000);
}

}  // namespace vivace::python
