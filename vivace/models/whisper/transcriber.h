// Transcriber: sound of any length to segments of text, from C++. Windows follow each other as docs/speech.md says, at
// temperature 0; what Python has beyond that (fallback, words, guards, streams) is not here.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "vivace/engine/speech.h"
#include "vivace/engine/text/tokenizer.h"

namespace vivace::models::whisper {

struct TranscribeOptions {
  std::string language;    // a code such as "en"; empty: that of the first 30 seconds
  bool translate = false;  // into English
  bool condition = true;   // text so far is a prompt for what follows
  int beams = 1;           // at most the rows of the load
};

struct TextSegment {
  double start = 0, end = 0;  // seconds
  std::string text;
  std::vector<int32_t> tokens;
  double avg_logprob = 0, no_speech = 0;  // of its window
};

struct Transcription {
  std::string language;
  std::vector<TextSegment> segments;
};

class Transcriber {
 public:
  /// A hub folder with its tokenizer. Errors: those of load_speech() and Tokenizer::load(); Unsupported, InvalidShape
  /// where the two do not belong together.
  static Result<Transcriber> load(const std::string& path, const engine::SpeechOptions& options);

  /// `samples`: one channel, full scale 1, 16,000 a second. Errors: InvalidArgument (samples that are not finite, an
  /// unknown language, beams), LimitExceeded (beams beyond rows), Unsupported (translating with a model of one
  /// language).
  Result<Transcription> transcribe(std::span<const float> samples, const TranscribeOptions& options);
  /// The same of a WAV file of 16,000 samples a second. Errors: also those of Wav::parse().
  Result<Transcription> transcribe_wav(std::span<const uint8_t> file, const TranscribeOptions& options);
  engine::SpeechModel& model() { return *model_; }

 private:
  Transcriber(std::unique_ptr<engine::SpeechModel> model, engine::text::Tokenizer tokenizer)
      : model_(std::move(model)), tokenizer_(std::move(tokenizer)) {}
  /// The codes of the languages and their tokens' places.
  Status find_languages();
  Result<std::vector<int32_t>> lead(std::span<const float> samples, float peak, const TranscribeOptions& options,
                                    std::string* language);
  /// Segments of a window at frame `seek`; where the next one begins.
  Result<int64_t> take(const engine::Transcript& said, int64_t seek, int64_t frames,
                       std::vector<TextSegment>* out) const;

  std::unique_ptr<engine::SpeechModel> model_;
  engine::text::Tokenizer tokenizer_;
  std::vector<std::string> languages_;                   // in the order of their tokens
  std::vector<int32_t> suppress_, suppress_first_;       // of the checkpoint
};

}  // namespace vivace::models::whisper
