#include "vivace/engine/audio/sound.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numbers>
#include <numeric>

#include "vivace/base/check.h"
#include "vivace/base/printable.h"
#include "vivace/cpu/pool.h"
#include "vivace/kernels/audio/resample.h"

namespace vivace::cpu {
void resample(const kernels::ResampleArgs& a, Pool& pool);
}

namespace vivace::engine {
namespace {

constexpr size_t kBlock = 1 << 16;  // samples at a time, of all channels together

// libsndfile's own types; its ABI has been the same since 1.0.
using Count = int64_t;
struct SfInfo {
  Count frames;
  int samplerate, channels, format, sections, seekable;
};
struct SfVirtual {
  Count (*length)(void*);
  Count (*seek)(Count, int, void*);
  Count (*read)(void*, Count, void*);
  Count (*write)(const void*, Count, void*);
  Count (*tell)(void*);
};
constexpr int kRead = 0x10, kUnrecognised = 1;

struct Library {
  void* (*sf_open_virtual)(SfVirtual*, int, SfInfo*, void*) = nullptr;
  Count (*sf_readf_float)(void*, float*, Count) = nullptr;
  int (*sf_close)(void*) = nullptr;
  int (*sf_error)(void*) = nullptr;
  const char* (*sf_strerror)(void*) = nullptr;
};

std::mutex g_mutex;
std::string& chosen_path() {
  static std::string path;
  return path;
}

/// Loads the library, or finds it loaded; it stays.
Result<Library> library() {
  const std::lock_guard hold(g_mutex);
  std::vector<std::string> names;
  if (!chosen_path().empty()) names = {chosen_path()};
  else if (const char* e = std::getenv("VIVACE_SNDFILE"); e != nullptr && *e != 0) names = {e};
  else names = {"libsndfile.so.1", "libsndfile.so"};
  void* handle = nullptr;
  for (const std::string& n : names)
    if (handle == nullptr) handle = dlopen(n.c_str(), RTLD_NOW | RTLD_LOCAL);
  Library lib;
  const auto find = [&](const char* name, auto* f) {
    *f = handle == nullptr ? nullptr : reinterpret_cast<std::remove_pointer_t<decltype(f)>>(dlsym(handle, name));
    return *f != nullptr;
  };
  if (find("sf_open_virtual", &lib.sf_open_virtual) && find("sf_readf_float", &lib.sf_readf_float) &&
      find("sf_close", &lib.sf_close) && find("sf_error", &lib.sf_error) && find("sf_strerror", &lib.sf_strerror))
    return lib;
  return Status(Code::kUnsupported,
                "sound: no WAV file; FLAC, MP3, Ogg and others are read by libsndfile, and " + names[0] +
                    " was not found: install it (in Python: vivace[audio]), name it in VIVACE_SNDFILE, or convert the "
                    "file to WAV first");
}

/// A file in memory, as libsndfile reads one.
struct View {
  std::span<const uint8_t> file;
  Count at = 0;

  static View& of(void* v) { return *static_cast<View*>(v); }
  static Count length(void* v) { return static_cast<Count>(of(v).file.size()); }
  static Count seek(Count to, int whence, void* v) {
    const Count size = length(v), from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? of(v).at : size;
    return of(v).at = to < -from ? 0 : to > size - from ? size : from + to;
  }
  static Count read(void* to, Count bytes, void* v) {
    View& view = of(v);
    const Count n = std::clamp<Count>(bytes, 0, length(v) - view.at);
    if (n > 0) std::memcpy(to, view.file.data() + view.at, static_cast<size_t>(n));
    view.at += n;
    return n;
  }
  static Count write(const void*, Count, void*) { return 0; }
  static Count tell(void* v) { return of(v).at; }
};

Status beyond(const char* what, double value, double least, double most) {
  if (value >= least && value <= most) return {};
  return Status(Code::kLimitExceeded, strf("sound: %g %s, %g to %g are read", value, what, least, most));
}

Result<Sound> by_library(std::span<const uint8_t> file, const AudioLimits& limits) {
  VV_ASSIGN(const Library lib, library());
  View view{file};
  SfVirtual io{View::length, View::seek, View::read, View::write, View::tell};
  SfInfo info{};
  const auto refused = [&](void* of) {
    return Status(Code::kCorruptData, "sound: libsndfile refuses it: " + printable(lib.sf_strerror(of)));
  };
  std::unique_lock hold(g_mutex);  // why a file does not open, libsndfile keeps for all threads together
  const std::unique_ptr<void, int (*)(void*)> open(lib.sf_open_virtual(&io, kRead, &info, &view), lib.sf_close);
  if (open == nullptr && lib.sf_error(nullptr) == kUnrecognised)
    return Status(Code::kUnsupported, "sound: no WAV file, and no other that libsndfile knows");
  if (open == nullptr) return refused(nullptr);
  hold.unlock();
  VV_TRY(beyond("channels", info.channels, 1, limits.most_channels));
  VV_TRY(beyond("samples a second", info.samplerate, limits.least_rate, limits.most_rate));
  VV_TRY(beyond("seconds", static_cast<double>(info.frames) / info.samplerate, 0, limits.most_seconds));
  Sound out{info.samplerate, {}};
  const size_t channels = static_cast<size_t>(info.channels), most = kBlock / channels;
  std::vector<float> block(most * channels);
  while (true) {
    const Count got = lib.sf_readf_float(open.get(), block.data(), static_cast<Count>(most));
    if (got <= 0) break;
    for (size_t i = 0; i < static_cast<size_t>(got); ++i) {
      double sum = 0;
      for (size_t c = 0; c < channels; ++c) sum += block[i * channels + c];
      const float mean = static_cast<float>(sum / static_cast<double>(channels));
      if (!std::isfinite(mean))
        return Status(Code::kCorruptData, strf("sound: sample %zu is not finite", out.samples.size()));
      out.samples.push_back(mean);
    }
    // The header may have said less.
    VV_TRY(beyond("seconds", static_cast<double>(out.samples.size()) / info.samplerate, 0, limits.most_seconds));
  }
  if (lib.sf_error(open.get()) != 0) return refused(open.get());
  return out;
}

}  // namespace

void set_sound_library(std::string path) {
  const std::lock_guard hold(g_mutex);
  chosen_path() = std::move(path);
}

Result<Sound> read_sound(std::span<const uint8_t> file, const AudioLimits& limits) {
  if (file.empty()) return Status(Code::kCorruptData, "sound: an empty file");
  if (file.size() < 4 || std::memcmp(file.data(), "RIFF", 4) != 0) return by_library(file, limits);
  VV_ASSIGN(const Wav wav, Wav::parse(file, limits));
  Sound out{wav.rate(), std::vector<float>(static_cast<size_t>(wav.frames()))};
  VV_TRY(wav.mono(0, out.samples));
  return out;
}

std::vector<float> resampling_filter(int up, int down) {
  constexpr double kZeros = 24;       // crossings on either side of the middle
  constexpr double kKaiser = 9;       // 90 dB
  constexpr double kRollOff = 0.945;  // where it begins to fall, as a share of the narrower band
  const double share = std::min(1.0, static_cast<double>(up) / down);  // of the inputs' band that is kept
  const int half = static_cast<int>(std::ceil(kZeros / share));
  const double band = share * kRollOff, whole = std::cyl_bessel_i(0.0, kKaiser);
  std::vector<float> taps;
  taps.reserve(static_cast<size_t>(up) * 2 * static_cast<size_t>(half));
  for (int phase = 0; phase < up; ++phase) {
    for (int i = 1 - half; i <= half; ++i) {
      const double at = i - static_cast<double>(phase) / up, x = at / half, y = std::numbers::pi * at * band;
      const double sinc = y == 0 ? 1 : std::sin(y) / y;
      const double window = std::cyl_bessel_i(0.0, kKaiser * std::sqrt(std::max(0.0, 1 - x * x))) / whole;
      taps.push_back(static_cast<float>(sinc * band * window));
    }
  }
  return taps;
}

Result<Sound> resampled(Sound from, int rate) {
  if (from.rate == rate || from.samples.empty()) return Sound{rate, std::move(from.samples)};
  const int common = std::gcd(from.rate, rate), up = rate / common, down = from.rate / common;
  const int64_t n = static_cast<int64_t>(from.samples.size()), outputs = (n * up + down - 1) / down;
  if (std::max(n, outputs) >= INT32_MAX)
    return Status(Code::kLimitExceeded,
                  strf("sound: %lld samples, below 2^31 are resampled", static_cast<long long>(n)));
  const std::vector<float> filter = resampling_filter(up, down);
  const int64_t taps = static_cast<int64_t>(filter.size()) / up;
  Sound out{rate, std::vector<float>(static_cast<size_t>(outputs))};
  cpu::Pool pool(1);
  cpu::resample({.x = from.samples.data(),
                 .filter = filter.data(),
                 .out = out.samples.data(),
                 .x_stride = n,
                 .filter_stride = taps,
                 .out_stride = outputs,
                 .down = down,
                 .first = 1 - taps / 2,
                 .B = 1,
                 .N = static_cast<int32_t>(n),
                 .O = static_cast<int32_t>(outputs),
                 .up = up,
                 .K = static_cast<int32_t>(taps)},
                pool);
  return out;
}

}  // namespace vivace::engine
