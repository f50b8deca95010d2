#include "vivace/engine/audio/wav.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "vivace/base/check.h"
#include "vivace/base/printable.h"

namespace vivace::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "samples are read as they lie");

constexpr uint16_t kPcm = 1, kFloat = 3, kExtensible = 0xfffe;
/// What writers to a pipe say of a data chunk whose end they do not know: FFmpeg, SoX and espeak-ng.
constexpr bool unknown(uint32_t size) { return size == 0xffffffff || size == 0x7ffff000; }
/// What follows the coding's number in an extensible header's GUID.
constexpr uint8_t kGuidTail[14] = {0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71};

template <class V>
V load(const uint8_t* at) {
  V v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

int bytes_of(SampleForm f) {
  constexpr int kBytes[] = {1, 2, 3, 4, 4, 8};
  return kBytes[static_cast<int>(f)];
}

/// One sample, full scale 1.
double sample(SampleForm f, const uint8_t* at) {
  switch (f) {
    case SampleForm::u8: return (*at - 128) / 128.0;
    case SampleForm::i16: return load<int16_t>(at) / 32768.0;
    case SampleForm::i24:
      return (static_cast<int32_t>(static_cast<uint32_t>(at[0]) << 8 | static_cast<uint32_t>(at[1]) << 16 |
                                   static_cast<uint32_t>(at[2]) << 24) >>
              8) /
             8388608.0;
    case SampleForm::i32: return load<int32_t>(at) / 2147483648.0;
    case SampleForm::f32: return static_cast<double>(load<float>(at));
    case SampleForm::f64: return load<double>(at);
  }
  return 0;
}

Status corrupt(const std::string& what) { return Status(Code::kCorruptData, "wav: " + what); }

struct Format {
  int rate = 0, channels = 0;
  SampleForm form = SampleForm::i16;
};

Result<Format> format_of(std::span<const uint8_t> chunk, const AudioLimits& limits) {
  if (chunk.size() < 16) return corrupt(strf("the fmt chunk has %zu bytes, 16 at least are wanted", chunk.size()));
  uint16_t coding = load<uint16_t>(chunk.data());
  const uint16_t channels = load<uint16_t>(chunk.data() + 2), block = load<uint16_t>(chunk.data() + 12),
                 bits = load<uint16_t>(chunk.data() + 14);
  const uint32_t rate = load<uint32_t>(chunk.data() + 4);
  if (coding == kExtensible) {
    if (chunk.size() < 40)
      return corrupt(strf("the fmt chunk of an extensible file has %zu bytes, 40 at least are wanted", chunk.size()));
    if (std::memcmp(chunk.data() + 26, kGuidTail, sizeof kGuidTail) != 0)
      return Status(Code::kUnsupported, "wav: an extensible file of a coding of its own; PCM and float are read");
    coding = load<uint16_t>(chunk.data() + 24);
  }
  std::optional<SampleForm> form;
  if (coding == kPcm) {
    if (bits == 8) form = SampleForm::u8;
    if (bits == 16) form = SampleForm::i16;
    if (bits == 24) form = SampleForm::i24;
    if (bits == 32) form = SampleForm::i32;
  } else if (coding == kFloat) {
    if (bits == 32) form = SampleForm::f32;
    if (bits == 64) form = SampleForm::f64;
  }
  if (!form)
    return Status(Code::kUnsupported, strf("wav: coding %u with %u bits a sample; PCM of 8, 16, 24, 32 and float of "
                                           "32, 64 bits are read: convert the file first",
                                           coding, bits));
  if (channels == 0) return corrupt("a file without channels");
  if (channels > limits.most_channels)
    return Status(Code::kLimitExceeded, strf("wav: %u channels, at most %d are read", channels, limits.most_channels));
  if (rate < static_cast<uint32_t>(limits.least_rate) || rate > static_cast<uint32_t>(limits.most_rate))
    return Status(Code::kLimitExceeded,
                  strf("wav: %u samples a second, %d to %d are read", rate, limits.least_rate, limits.most_rate));
  if (block != channels * bytes_of(*form))
    return corrupt(strf("%u channels of %u bits are %d bytes a frame, the header says %u", channels, bits,
                        channels * bytes_of(*form), block));
  return Format{static_cast<int>(rate), channels, *form};
}

}  // namespace

Result<Wav> Wav::parse(std::span<const uint8_t> file, const AudioLimits& limits) {
  if (file.size() < 12 || std::memcmp(file.data(), "RIFF", 4) != 0 || std::memcmp(file.data() + 8, "WAVE", 4) != 0)
    return corrupt(
        strf("no RIFF file of form WAVE: it has %zu bytes and begins with \"%s\"", file.size(),
             printable(std::string_view(reinterpret_cast<const char*>(file.data()), std::min<size_t>(file.size(), 4)))
                 .c_str()));
  std::optional<Format> format;
  size_t at = 12;
  while (file.size() - at >= 8) {
    const uint8_t* const head = file.data() + at;
    const uint32_t said = load<uint32_t>(head + 4);
    const size_t left = file.size() - at - 8;
    const std::string_view id(reinterpret_cast<const char*>(head), 4);
    if (id == "data") {
      if (!format) return corrupt("the data chunk comes before the fmt chunk");
      if (said > left && !unknown(said))
        return corrupt(strf("the data chunk says %u bytes, the file ends after %zu", said, left));
      const int64_t frame = int64_t{format->channels} * bytes_of(format->form),
                    bytes = static_cast<int64_t>(std::min<size_t>(said, left));
      if (bytes % frame != 0 && !unknown(said))
        return corrupt(
            strf("the data chunk has %ld bytes, a frame has %ld", static_cast<long>(bytes), static_cast<long>(frame)));
      Wav wav;
      wav.rate_ = format->rate, wav.channels_ = format->channels, wav.form_ = format->form, wav.frames_ = bytes / frame;
      wav.data_ = file.subspan(at + 8, static_cast<size_t>(wav.frames_ * frame));
      if (static_cast<double>(wav.frames_) > limits.most_seconds * wav.rate_)
        return Status(Code::kLimitExceeded, strf("wav: %.0f seconds, at most %.0f are read: cut the file into parts",
                                                 static_cast<double>(wav.frames_) / wav.rate_, limits.most_seconds));
      return wav;
    }
    if (said > left)
      return corrupt(strf("chunk \"%s\" says %u bytes, the file ends after %zu", printable(id).c_str(), said, left));
    if (id == "fmt ") {
      if (format) return corrupt("two fmt chunks");
      VV_ASSIGN(format, format_of(file.subspan(at + 8, said), limits));
    }
    at += 8 + std::min<size_t>(left, size_t{said} + said % 2);
  }
  return corrupt(format ? "no data chunk" : "no fmt chunk");
}

Status Wav::mono(int64_t first, std::span<float> out) const {
  const auto n = static_cast<int64_t>(out.size());
  if (first < 0 || first > frames_ || n > frames_ - first)
    return Status(Code::kInvalidArgument, strf("wav: frames [%ld, %ld) of %ld", static_cast<long>(first),
                                               static_cast<long>(first + n), static_cast<long>(frames_)));
  const int size = bytes_of(form_);
  const uint8_t* at = data_.data() + first * channels_ * size;
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int c = 0; c < channels_; ++c, at += size) sum += sample(form_, at);
    const auto mean = static_cast<float>(sum / channels_);
    if (!std::isfinite(mean)) return corrupt(strf("frame %ld is not finite", static_cast<long>(first + i)));
    out[static_cast<size_t>(i)] = mean;
  }
  return {};
}

}  // namespace vivace::engine
