// WhisperConfig: the numbers of a Whisper, from config.json in transformers' words or OpenAI's, and the ids of its
// special tokens.
#pragma once
#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/engine/checkpoint/json.h"
#include "vivace/engine/speech.h"

namespace vivace::models::whisper {

/// One stack of layers.
struct Stack {
  int64_t layers = 0, heads = 0, mlp = 0;
};

struct WhisperConfig {
  int64_t width = 0, mels = 0, vocab = 0;
  int64_t source = 0, positions = 0;  // places of the encoder's output, of text
  Stack encoder, decoder;
  bool tied = true;
  double eps = 1e-5;
  engine::SpeechTokens tokens;

  int64_t frames() const { return 2 * source; }  // the second convolution takes every other
  int64_t head_dim(const Stack& s) const { return width / s.heads; }
};

/// Whether config.json has OpenAI's dimensions (n_audio_state and its like), at its top or in "dims".
bool has_dims(const engine::JsonValue& root);
/// Reads and checks the configuration. Errors: NotFound, CorruptData, Unsupported, InvalidArgument name the field.
Result<WhisperConfig> read_config(const engine::Checkpoint& checkpoint);

}  // namespace vivace::models::whisper
