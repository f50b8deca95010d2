// Speech of the C ABI: vivace/capi/speech.h over models::whisper::Transcriber.
#include "vivace/capi/speech.h"

#include <algorithm>
#include <cstddef>
#include <mutex>

#include "vivace/capi/guard.h"
#include "vivace/engine/text/unicode.h"
#include "vivace/models/whisper/transcriber.h"

using vivace::Code;
using vivace::Status;
using vivace::capi::Filled;
using vivace::capi::guard;
using vivace::models::whisper::TranscribeOptions;
using vivace::models::whisper::Transcriber;
using vivace::models::whisper::Transcription;

struct vv_speech : vivace::capi::Tagged<vivace::capi::Kind::speech> {
  explicit vv_speech(Transcriber t) : transcriber(std::move(t)) {}
  Transcriber transcriber;
  std::mutex turn;  // of the caller whose transcription it is
};
struct vv_transcript : vivace::capi::Tagged<vivace::capi::Kind::transcript> {
  Transcription said;
};

namespace {

constexpr size_t kFirstSpeech = offsetof(vv_speech_options, act_scales),
                 kFirstTranscribe = offsetof(vv_transcribe_options, no_timestamps),
                 kFirstInfo = sizeof(vv_transcript_info), kFirstSegment = offsetof(vv_segment_info, compression_ratio),
                 kFirstWord = sizeof(vv_word_info);
constexpr size_t kMostTemperatures = 64;
constexpr int kMostScales = 1 << 20;

/// A caller's text, which may be NULL.
Status read_text(const char* name, const char* from, std::string* to) {
  if (from == nullptr) return {};
  *to = from;
  std::string valid;
  vivace::engine::text::append_valid_utf8(*to, &valid);
  return valid == *to ? Status() : Status(Code::kInvalidArgument, std::string(name) + ": it is no UTF-8");
}

/// Options of the caller's, which may be NULL. f(transcriber, options) -> Result<Transcription>.
template <class F>
Status transcribed(vv_speech* speech, const vv_transcribe_options* given, vv_transcript** out, F&& f) {
  vv_transcribe_options read{};
  if (given != nullptr) VV_TRY(vivace::capi::read_struct(given, kFirstTranscribe, &read));
  TranscribeOptions options;
  if (read.language != nullptr) options.language = read.language;
  options.translate = read.translate != 0;
  options.condition = read.no_condition == 0;
  options.beams = read.beams == 0 ? 1 : read.beams;
  options.timestamps = read.no_timestamps == 0;
  options.words = read.words != 0;
  VV_TRY(read_text("prompt", read.prompt, &options.prompt));
  VV_TRY(read_text("hotwords", read.hotwords, &options.hotwords));
  if (read.temperatures != nullptr) {
    if (read.temperature_count > kMostTemperatures)
      return Status(Code::kInvalidArgument, vivace::strf("temperature_count: wanted at most %zu, got %zu",
                                                         kMostTemperatures, read.temperature_count));
    options.temperatures.assign(read.temperatures, read.temperatures + read.temperature_count);
  }
  options.seed = read.seed;
  const std::lock_guard hold(speech->turn);
  options.best_of = read.best_of == 0 ? speech->transcriber.model().limits().rows : read.best_of;
  auto made = std::make_unique<vv_transcript>();
  VV_ASSIGN(made->said, f(speech->transcriber, options));
  *out = made.release();
  return {};
}

}  // namespace

vv_status vv_speech_load(const vv_speech_options* options, vv_speech** out) {
  return guard("vv_speech_load", [&]() -> Status {
    VV_NOT_NULL(out);
    vv_speech_options o{};
    VV_TRY(vivace::capi::read_struct(options, kFirstSpeech, &o));
    if (o.path == nullptr) return vivace::capi::null("path");
    vivace::engine::SpeechOptions s;
    if (o.device != nullptr) s.device = o.device;
    if (o.precision != nullptr) s.precision = o.precision;
    s.threads = o.threads;
    s.rows = o.most_beams == 0 ? 1 : o.most_beams;
    s.random_weights = o.random_weights != 0;
    if (o.act_scale_count < 0 || o.act_scale_count > kMostScales || (o.act_scale_count > 0 && o.act_scales == nullptr))
      return Status(Code::kInvalidArgument, vivace::strf("options.act_scales: NULL, or a count outside [0, %d], got %d",
                                                         kMostScales, o.act_scale_count));
    if (o.act_scales != nullptr) s.act_scales.assign(o.act_scales, o.act_scales + o.act_scale_count);
    VV_ASSIGN(Transcriber loaded, Transcriber::load(o.path, s));
    *out = new vv_speech(std::move(loaded));
    return {};
  }, out);
}

void vv_speech_destroy(vv_speech* speech) { vivace::capi::destroy(speech); }

vv_status vv_speech_calibrate(vv_speech* speech, const float* samples, size_t count, double percentile, float* scales,
                              size_t capacity, size_t* scale_count) {
  return guard("vv_speech_calibrate", [&]() -> Status {
    VV_NOT_NULL(speech);
    VV_NOT_NULL(scale_count);
    if (samples == nullptr && count > 0) return vivace::capi::null("samples");
    VV_TRY(vivace::capi::check_bytes("count", count > SIZE_MAX / sizeof *samples ? SIZE_MAX : count * sizeof *samples));
    const std::span<const float> sound{samples, count};
    const std::lock_guard hold(speech->turn);
    VV_ASSIGN(const std::vector<float> all, speech->transcriber.model().calibrate({&sound, 1}, percentile));
    if (scales != nullptr) std::copy_n(all.begin(), std::min(capacity, all.size()), scales);
    *scale_count = all.size();
    return {};
  }, scale_count);
}

vv_status vv_speech_transcribe(vv_speech* speech, const float* samples, size_t count,
                               const vv_transcribe_options* options, vv_transcript** out) {
  return guard("vv_speech_transcribe", [&]() -> Status {
    VV_NOT_NULL(speech);
    VV_NOT_NULL(out);
    if (samples == nullptr && count > 0) return vivace::capi::null("samples");
    VV_TRY(vivace::capi::check_bytes("count", count > SIZE_MAX / sizeof *samples ? SIZE_MAX : count * sizeof *samples));
    return transcribed(speech, options, out,
                       [&](Transcriber& t, const TranscribeOptions& o) { return t.transcribe({samples, count}, o); });
  }, out);
}

vv_status vv_speech_transcribe_file(vv_speech* speech, const void* file, size_t bytes,
                                    const vv_transcribe_options* options, vv_transcript** out) {
  return guard("vv_speech_transcribe_file", [&]() -> Status {
    VV_NOT_NULL(speech);
    VV_NOT_NULL(out);
    if (file == nullptr && bytes > 0) return vivace::capi::null("file");
    VV_TRY(vivace::capi::check_bytes("bytes", bytes));
    return transcribed(speech, options, out, [&](Transcriber& t, const TranscribeOptions& o) {
      return t.transcribe_file({static_cast<const uint8_t*>(file), bytes}, o);
    });
  }, out);
}

void vv_transcript_destroy(vv_transcript* transcript) { vivace::capi::destroy(transcript); }

vv_status vv_transcript_get_info(const vv_transcript* transcript, vv_transcript_info* info) {
  return guard("vv_transcript_get_info", [&]() -> Status {
    VV_NOT_NULL(transcript);
    return vivace::capi::write_struct(
        vv_transcript_info{0, transcript->said.language.c_str(), transcript->said.segments.size()}, kFirstInfo, info);
  }, Filled<vv_transcript_info>{info, kFirstInfo});
}

vv_status vv_transcript_get_segment(const vv_transcript* transcript, size_t segment, vv_segment_info* info) {
  return guard("vv_transcript_get_segment", [&]() -> Status {
    VV_NOT_NULL(transcript);
    const auto& all = transcript->said.segments;
    if (segment >= all.size())
      return Status(Code::kInvalidArgument, vivace::strf("segment %zu, there are %zu", segment, all.size()));
    const auto& s = all[segment];
    return vivace::capi::write_struct(
        vv_segment_info{0, s.start, s.end, s.text.c_str(), s.tokens.data(), s.tokens.size(), s.avg_logprob, s.no_speech,
                        s.compression_ratio, s.temperature, s.logprobs.data(), s.words.size()},
        kFirstSegment, info);
  }, Filled<vv_segment_info>{info, kFirstSegment});
}

vv_status vv_transcript_get_word(const vv_transcript* transcript, size_t segment, size_t word, vv_word_info* info) {
  return guard(
      "vv_transcript_get_word",
      [&]() -> Status {
        VV_NOT_NULL(transcript);
        const auto& all = transcript->said.segments;
        if (segment >= all.size())
          return Status(Code::kInvalidArgument, vivace::strf("segment %zu, there are %zu", segment, all.size()));
        const auto& words = all[segment].words;
        if (word >= words.size())
          return Status(Code::kInvalidArgument,
                        vivace::strf("word %zu of segment %zu, there are %zu", word, segment, words.size()));
        const auto& w = words[word];
        return vivace::capi::write_struct(vv_word_info{0, w.start, w.end, w.probability, w.text.c_str()}, kFirstWord,
                                          info);
      },
      Filled<vv_word_info>{info, kFirstWord});
}
