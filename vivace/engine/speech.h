// Speech models: sound in windows of 30 seconds to tokens of text. What callers see; text, segments and languages'
// names are theirs.
#pragma once
#include "vivace/engine/model.h"

namespace vivace::engine {

struct SpeechOptions {
  std::string device = "auto";
  std::string precision = "auto";  // | f32 | bf16 | f16 | w8a16 | fp8 | fp8_static | q8
  int threads = 0;
  int windows = 1;              // encoded together
  int rows = 5;                 // that decode together: candidates of all windows
  bool eager = false;           // ops one by one instead of captured graphs: for debugging, same bits
  bool random_weights = false;  // of the shapes that config.json says
  std::string decode_layers = "auto";  // with one row: whether a step's layers are one launch: auto | on | off
  GateSite gates = {};          // of a scheduler's tenant: where the encoder and steps stand back
  std::shared_ptr<StepAccount> account = {};  // ... and who is told of them
  int64_t most_bytes = 0;       // of the device's memory that it may take; 0: as many as there are
  std::vector<float> act_scales = {};  // of fp8_static and no other plan: what calibrate() gave
};

struct SpeechLimits {
  int rate = 16000, hop = 160;  // samples a second, and a frame
  int vocab = 0, mels = 0, frames = 0, encoded = 0, positions = 0, windows = 0, rows = 0;
  int layers = 0, heads = 0;    // of the decoder
};

/// Ids of what is no text. Timestamps go up in steps of 20 ms.
struct SpeechTokens {
  int32_t eot = 0, sot = 0, first_language = 0, languages = 0, translate = 0, transcribe = 0, sot_lm = 0, sot_prev = 0,
          no_speech = 0, no_timestamps = 0, first_timestamp = 0, timestamps = 0;
  bool multilingual = false;
};

/// Sound that is encoded: frames [first, first + frames) of `samples`, of which there are at most SpeechLimits::frames.
/// Before the first sample the signal is reflected, behind the last it is silent; frames up to the window's end that
/// are not of it are 0 features.
struct SpeechWindow {
  std::span<const float> samples;
  int64_t first = 0, frames = 0;
  float peak = 0;  // of SpeechModel::peak(), over whatever counts
};

/// Text of sound that goes on (AlignAtt): decoding ends with the token that hears the last of what there is, for what
/// follows may change it.
struct SpeechFollow {
  std::vector<std::pair<int, int>>
      heads;  // (layer, head) of cross-attention that follow the sound; none: decoding does not look
  int content = 0;                         // places of 20 ms that are heard
  int margin = 25;                         // as many at the end are too near to it
  int rewind = 200;  // a token that hears a place as far before that of the token in front has lost its way
};

/// One window's decoding.
struct SpeechRequest {
  int window = 0;
  std::vector<int32_t> prompt;            // ends where text begins
  std::vector<int32_t> suppress, suppress_first;  // tokens that never come, and not at the start
  bool timestamps = true;                 // rules of timestamps hold
  int max_first_timestamp = 50;           // steps of 20 ms; -1: none
  float temperature = 0;                  // 0: the most likely; else drawn
  int candidates = 1;                     // temperature 0: beams; else draws, of which the best counts
  float patience = 1;                     // of beams: finished ones wanted, over candidates
  float length_penalty = -1;              // below 0: by mean log-probability; else over ((5 + n) / 6)^length_penalty
  int most = 224;                         // tokens
  uint64_t seed = 0;
  SpeechFollow follow;                    // of one candidate
};

/// Why text ended: the network says so; most; or, followed, at a token that lies within the margin or behind a rewind.
enum class SpeechEnd { eot, most, margin, rewind };

struct Transcript {
  std::vector<int32_t> tokens;  // without the end
  std::vector<float> logprobs;  // of each, among all that may follow, at temperature 1
  double logprob = 0;           // of all of them and the end
  float no_speech = 0;          // probability where text begins that there is none
  std::vector<int32_t> places;  // followed: the 20 ms that each token hears the most
  SpeechEnd end = SpeechEnd::eot;
};

/// Where text was said: of each token of `align`'s text and the end, the first 20 ms step that its path touches, and
/// its probability among text.
struct Alignment {
  std::vector<int32_t> start;        // one more than tokens
  std::vector<float> probability;
};

class SpeechModel : public Model {
 public:
  virtual SpeechLimits limits() const = 0;
  virtual const SpeechTokens& tokens() const = 0;
  /// The largest log-mel band of all frames. Errors: InvalidArgument for samples that are not finite.
  virtual Result<float> peak(std::span<const float> samples) = 0;
  /// Windows 0 to n - 1 from now on. Errors: LimitExceeded, InvalidArgument.
  virtual Status encode(std::span<const SpeechWindow> windows) = 0;
  /// [encoded, width] of a window, f32 in host memory.
  virtual Result<std::vector<float>> encoded(int window) = 0;
  /// Probabilities of the languages of a window.
  virtual Result<std::vector<float>> languages(int window) = 0;
  /// Errors: LimitExceeded where candidates are more than rows or a prompt leaves no place, InvalidArgument names the
  /// value, CorruptData where the network's logits are NaN.
  virtual Status decode(std::span<const SpeechRequest> requests, std::vector<Transcript>* out) = 0;
  /// Logits [tokens, vocab] after each token of `tokens`, teacher-forced.
  virtual Result<std::vector<float>> logits(int window, std::span<const int32_t> tokens) = 0;
  /// Where `text` lies in the first `frames` frames of a window, by cross-attention of `heads` (layer, head). `lead`:
  /// what comes before text.
  virtual Result<Alignment> align(int window, std::span<const int32_t> lead, std::span<const int32_t> text, int frames,
                                  std::span<const std::pair<int, int>> heads) = 0;
  /// SpeechOptions::act_scales from what sounds bring to each activation quantization point, each window of 30 seconds
  /// of `samples` with the text that is heard in it: over all windows, the percentile of its largest magnitude becomes
  /// e4m3's largest. Forgets what was encoded. Setup phase. Errors: FailedPrecondition of a plan whose activations are
  /// no bf16 or f32 between products, InvalidArgument without sound, CorruptData for activations that are not finite.
  virtual Result<std::vector<float>> calibrate(std::span<const std::span<const float>> sounds, double percentile) = 0;
  /// What the launches cost of encoding `windows` windows or, where that is 0, of a step of `rows` rows at the last
  /// places of text. `in_step`: see engine::profile(). Forgets what was encoded. Errors: InvalidArgument.
  virtual Result<Profile> profile(int windows, int rows, bool in_step = false) = 0;
  /// Of a model that was loaded with gates: the longest of its encoder and its steps, and its longest stretch, as timed
  /// at load. Errors: FailedPrecondition without gates.
  virtual Result<WorkTimes> work_times() const {
    return Status(Code::kFailedPrecondition, "work_times: this model was loaded without gates");
  }
};

}  // namespace vivace::engine
