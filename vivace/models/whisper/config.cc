#include "vivace/models/whisper/config.h"

#include <optional>

#include "vivace/base/check.h"
#include "vivace/engine/registry.h"

namespace vivace::models::whisper {
namespace {

using engine::JsonValue;
using engine::SpeechTokens;

constexpr int64_t kMostLayers = 256, kMostWidth = 16384, kMostPlaces = 65536, kMostVocab = 1 << 20, kMostMels = 1024;
constexpr int32_t kTimestamps = 1501;  // 0 to 30 s in steps of 20 ms
constexpr int32_t kTasks = 6;          // translate, transcribe, sot_lm, sot_prev, no_speech, no_timestamps
constexpr int64_t kEnglish =
    51864;  // a vocabulary without languages: the others have a token more for each, and one of text

/// The ids follow each other from the end of the text tokens on.
Result<SpeechTokens> tokens_of(const JsonValue& root, int64_t vocab) {
  VV_ASSIGN(const int64_t eot, root.get_int("eos_token_id", vocab == kEnglish ? 50256 : 50257));
  const int64_t languages = vocab - eot - 2 - kTasks - kTimestamps;
  if (eot < 1 || languages < 1)
    return root.error(Code::kInvalidArgument, strf("a vocabulary of %ld and eos_token_id %ld leave no room for "
                                                   "languages, tasks and timestamps: no Whisper's vocabulary",
                                                   static_cast<long>(vocab), static_cast<long>(eot)));
  SpeechTokens t;
  t.eot = static_cast<int32_t>(eot);
  t.sot = t.eot + 1;
  t.first_language = t.sot + 1;
  t.languages = static_cast<int32_t>(languages);
  t.translate = t.first_language + t.languages;
  t.transcribe = t.translate + 1;
  t.sot_lm = t.translate + 2;
  t.sot_prev = t.translate + 3;
  t.no_speech = t.translate + 4;
  t.no_timestamps = t.translate + 5;
  t.first_timestamp = t.translate + kTasks;
  t.timestamps = kTimestamps;
  t.multilingual = vocab != kEnglish;
  return t;
}

/// Where OpenAI's dimensions are; none in transformers' configurations.
std::optional<JsonValue> dims_of(const JsonValue& root) {
  if (!root.is_object()) return {};
  if (const auto inside = root.find("dims")) return inside;
  return root.find("n_audio_state") ? std::optional(root) : std::nullopt;
}

/// A whole number from 1 on.
Status read_whole(const JsonValue& from, const char* key, int64_t most, int64_t* to) {
  VV_ASSIGN(*to, from.get_int(key));
  return *to >= 1 && *to <= most
             ? Status()
             : from.error(Code::kInvalidArgument,
                          strf("%s: wanted 1 to %ld, got %ld", key, static_cast<long>(most), static_cast<long>(*to)));
}

Status read_hub(const JsonValue& root, WhisperConfig* c) {
  const auto get = [&](const char* key, int64_t most, int64_t* to) { return read_whole(root, key, most, to); };
  VV_TRY(get("d_model", kMostWidth, &c->width));
  VV_TRY(get("num_mel_bins", kMostMels, &c->mels));
  VV_TRY(get("vocab_size", kMostVocab, &c->vocab));
  VV_TRY(get("max_source_positions", kMostPlaces, &c->source));
  VV_TRY(get("max_target_positions", kMostPlaces, &c->positions));
  VV_TRY(get("encoder_layers", kMostLayers, &c->encoder.layers));
  VV_TRY(get("decoder_layers", kMostLayers, &c->decoder.layers));
  VV_TRY(get("encoder_attention_heads", kMostWidth, &c->encoder.heads));
  VV_TRY(get("decoder_attention_heads", kMostWidth, &c->decoder.heads));
  VV_TRY(get("encoder_ffn_dim", 4 * kMostWidth, &c->encoder.mlp));
  VV_TRY(get("decoder_ffn_dim", 4 * kMostWidth, &c->decoder.mlp));
  VV_ASSIGN(const std::string_view act, root.get_string("activation_function", "gelu"));
  if (act != "gelu") return root.error(Code::kUnsupported, "activation_function: wanted gelu, got " + std::string(act));
  VV_ASSIGN(const bool scaled, root.get_bool("scale_embedding", false));
  if (scaled) return root.error(Code::kUnsupported, "scale_embedding: embeddings that are scaled are not served");
  VV_ASSIGN(c->tied, root.get_bool("tie_word_embeddings", true));
  return {};
}

/// OpenAI's: one width of both stacks, whose inner layers are four times as wide; the head is the embedding.
Status read_dims(const JsonValue& dims, WhisperConfig* c) {
  const auto get = [&](const char* key, int64_t most, int64_t* to) { return read_whole(dims, key, most, to); };
  int64_t text_width = 0;
  VV_TRY(get("n_audio_state", kMostWidth, &c->width));
  VV_TRY(get("n_text_state", kMostWidth, &text_width));
  VV_TRY(get("n_mels", kMostMels, &c->mels));
  VV_TRY(get("n_vocab", kMostVocab, &c->vocab));
  VV_TRY(get("n_audio_ctx", kMostPlaces, &c->source));
  VV_TRY(get("n_text_ctx", kMostPlaces, &c->positions));
  VV_TRY(get("n_audio_layer", kMostLayers, &c->encoder.layers));
  VV_TRY(get("n_text_layer", kMostLayers, &c->decoder.layers));
  VV_TRY(get("n_audio_head", kMostWidth, &c->encoder.heads));
  VV_TRY(get("n_text_head", kMostWidth, &c->decoder.heads));
  if (text_width != c->width)
    return dims.error(Code::kInvalidArgument, strf("n_audio_state is %ld and n_text_state %ld: wanted one width",
                                                   static_cast<long>(c->width), static_cast<long>(text_width)));
  c->encoder.mlp = c->decoder.mlp = 4 * c->width;
  return {};
}

}  // namespace

bool has_dims(const JsonValue& root) { return dims_of(root).has_value(); }

Result<WhisperConfig> read_config(const engine::Checkpoint& checkpoint) {
  VV_ASSIGN(const engine::Json json, engine::hub_config(checkpoint));
  const JsonValue root = json.root();
  const std::optional<JsonValue> dims = dims_of(root);
  WhisperConfig c;
  VV_TRY(dims ? read_dims(*dims, &c) : read_hub(root, &c));
  for (const Stack* s : {&c.encoder, &c.decoder})
    if (c.width % s->heads != 0)
      return dims.value_or(root).error(Code::kInvalidArgument,
                                       strf("%s %ld is no multiple of %ld heads", dims ? "n_audio_state" : "d_model",
                                            static_cast<long>(c.width), static_cast<long>(s->heads)));
  VV_ASSIGN(c.tokens, tokens_of(root, c.vocab));
  return c;
}

}  // namespace vivace::models::whisper
