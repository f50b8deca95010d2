// Speech of the C ABI: vivace/capi/speech.h over models::whisper::Transcriber.
#include "vivace/capi/speech.h"

#include <mutex>

#include "vivace/capi/guard.h"
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

constexpr size_t kFirstSpeech = sizeof(vv_speech_options), kFirstTranscribe = sizeof(vv_transcribe_options),
                 kFirstInfo = sizeof(vv_transcript_info), kFirstSegment = sizeof(vv_segment_info);

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
  const std::lock_guard hold(speech->turn);
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
    VV_ASSIGN(Transcriber loaded, Transcriber::load(o.path, s));
    *out = new vv_speech(std::move(loaded));
    return {};
  }, out);
}

void vv_speech_destroy(vv_speech* speech) { vivace::capi::destroy(speech); }

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

vv_status vv_speech_transcribe_wav(vv_speech* speech, const void* file, size_t bytes,
                                   const vv_transcribe_options* options, vv_transcript** out) {
  return guard("vv_speech_transcribe_wav", [&]() -> Status {
    VV_NOT_NULL(speech);
    VV_NOT_NULL(out);
    if (file == nullptr && bytes > 0) return vivace::capi::null("file");
    VV_TRY(vivace::capi::check_bytes("bytes", bytes));
    return transcribed(speech, options, out, [&](Transcriber& t, const TranscribeOptions& o) {
      return t.transcribe_wav({static_cast<const uint8_t*>(file), bytes}, o);
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
    return vivace::capi::write_struct(vv_segment_info{0, s.start, s.end, s.text.c_str(), s.tokens.data(),
                                                      s.tokens.size(), s.avg_logprob, s.no_speech},
                                      kFirstSegment, info);
  }, Filled<vv_segment_info>{info, kFirstSegment});
}
