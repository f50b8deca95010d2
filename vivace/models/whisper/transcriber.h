// Transcriber: sound of any length to segments of text, from C++. Windows follow each other as docs/speech.md says,
// with the fallback to higher temperatures, prompts and words' times. Voice activity, streams and several sounds at
// once are Python's.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "vivace/engine/speech.h"
#include "vivace/engine/text/tokenizer.h"
#include "vivace/models/whisper/words.h"

namespace vivace::models::whisper {

struct TranscribeOptions {
  std::string language;                     // a code such as "en"; empty: that of the first 30 seconds
  bool translate = false;                   // into English
  bool condition = true;                    // text so far is a prompt for what follows
  bool timestamps = true;                   // segments as the network says them; without, one a window
  bool words = false;                       // when each word was said
  std::string prompt, hotwords;             // text before all, and before every window
  std::vector<float> temperatures{0};       // tried in turn while text repeats itself or is unlikely
  int beams = 1;                            // at temperature 0; at most the rows of the load
  int best_of = 5;                          // draws at others; at most the rows
  float patience = 1, length_penalty = -1;  // of beams, as SpeechRequest has them
  double compression_limit = 2.4;           // text that repeats itself more is tried again
  double logprob_limit = -1;                // text less likely, in the mean of its tokens, too
  double no_speech_limit = 0.6;  // a window more surely silent is left out, unless its text is likelier than that
  uint64_t seed = 0;
};

struct TextSegment {
  double start = 0, end = 0;  // seconds
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of tokens
  std::vector<TextWord> words;
  double avg_logprob = 0, no_speech = 0, compression_ratio = 0, temperature = 0;  // of its window
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
  /// unknown language, a value of the options), LimitExceeded (beams or best_of beyond rows, prompts that are too
  /// long), Unsupported (translating with a model of one language).
  Result<Transcription> transcribe(std::span<const float> samples, const TranscribeOptions& options);
  /// The same of a sound file of any rate: WAV, and where libsndfile is, FLAC, MP3, Ogg and others. Errors: also those
  /// of read_sound().
  Result<Transcription> transcribe_file(std::span<const uint8_t> file, const TranscribeOptions& options);
  engine::SpeechModel& model() { return *model_; }

 private:
  Transcriber(std::unique_ptr<engine::SpeechModel> model, engine::text::Tokenizer tokenizer)
      : model_(std::move(model)), tokenizer_(std::move(tokenizer)) {}
  /// The codes of the languages and their tokens' places.
  Status find_languages();
  Result<std::vector<int32_t>> lead(std::span<const float> samples, float peak, const TranscribeOptions& options,
                                    std::string* language);
  Result<std::vector<int32_t>> told(const char* name, const std::string& text) const;
  struct Heard;  // a transcription on its way
  struct Tried;  // a window's text at one temperature
  /// The window at `frame` of h: the first text that is good enough, or the best.
  Result<Tried> decode(const Heard& h, int64_t seek, int64_t frames);
  Result<Tried> attempt(const Heard& h, engine::SpeechRequest request, int64_t seek, int64_t frames);
  /// Its segments between timestamps, and where the next window begins.
  int64_t cut(const engine::Transcript& said, int64_t seek, int64_t frames, std::vector<Part>* parts) const;
  /// The same for text without timestamps: sentences, by alignment.
  Result<int64_t> aligned(const Heard& h, const engine::Transcript& said, int64_t seek, int64_t frames,
                          std::vector<Part>* parts);
  Result<bool> too_fast(const std::vector<Part>& parts) const;
  Status add_words(const Heard& h, std::vector<Part>* parts, int64_t seek, int64_t frames, double* spoken);
  Result<std::string> text_of(std::span<const int32_t> ids) const;

  std::unique_ptr<engine::SpeechModel> model_;
  engine::text::Tokenizer tokenizer_;
  std::vector<std::string> languages_;                   // in the order of their tokens
  std::vector<int32_t> suppress_, suppress_first_;       // of the checkpoint
  std::vector<std::pair<int, int>> heads_;               // (layer, head) that follow the sound
};

}  // namespace vivace::models::whisper
