// Whisper as walks over ops: sound to features, features to the keys and values of cross-attention, token rows to
// logits. No backend is known here.
#pragma once
#include "vivace/engine/gate_plan.h"
#include "vivace/models/layer/quantized_rows.h"
#include "vivace/models/whisper/weights.h"
#include "vivace/ops/registry.h"

namespace vivace::models::whisper {

inline constexpr int64_t kHeadsAtOnce = 16;          // whose cross-attention is looked at together
inline constexpr int64_t kWindow = 400, kHop = 160;  // samples of a frame, and from one to the next

/// What the host says of windows, one block of memory written before them. W windows.
struct SoundInputs {
  Tensor samples;  // [W, (frames - 1) * kHop + kWindow] f32: frame f begins at f * kHop
  Tensor peak;     // [W] f32
  Tensor length;   // [W] i32: frames of each that are real
};

/// ... and of a step of T rows, of which some are sampled.
struct TextInputs {
  Tensor tokens, pos, slot, window;  // [T] i32: each row's token, place, line of page_table, and which sound it hears
  Tensor page_table;  // [S, positions] i32: where each place of each line lies: pages of one place, so that candidates
                      // share what they have in common
  Tensor sample_rows;                // [T] i32: the rows whose logits are wanted
  Tensor rows, samples;              // [1] i32: how many are valid
  // Of each of those rows: what may come, as top_logprobs reads it, how many tokens are told, and one that is asked
  // for.
  Tensor spans, mask_slot, told, asked;  // [T, 5] and [T] i32
  Tensor mask;                           // [2 S, vocab / 32] i32: written once a text
};

/// What a step says of the rows that were wanted.
struct TextOutputs {
  Tensor token, logprob;  // [T, K] i32, f32
  Tensor asked;           // [T] f32
};

/// Activation quantization points, in the order in which a window and then a step pass them.
struct QuantizationSites {
  static constexpr int64_t kEncoder = 4;  // of a layer: before attention, after it, before the activation, after it
  static constexpr int64_t kDecoder = 6;  // before self-attention, after it, the same of cross-attention, and as above
  int64_t encoder_layers, decoder_layers;

  explicit QuantizationSites(const WhisperConfig& c)
      : encoder_layers(c.encoder.layers), decoder_layers(c.decoder.layers) {}
  int64_t encoder(size_t layer) const { return kEncoder * static_cast<int64_t>(layer); }
  int64_t sound() const { return kEncoder * encoder_layers; }  // keys and values of cross-attention
  int64_t decoder(size_t layer) const { return sound() + 1 + kDecoder * static_cast<int64_t>(layer); }
  int64_t head() const { return sound() + 1 + kDecoder * decoder_layers; }
  int64_t count() const { return head() + 1; }
};

/// What lies between ops. "act" is the plan's dtype.
struct WhisperBuffers {
  Tensor hann, filters;               // [kWindow], [mels, kWindow / 2 + 1] f32
  Tensor logs, frame_peak;            // [W frames, mels], [W frames] f32
  Tensor mel;                         // [W frames, mels] act
  Tensor patches, thin;               // [W frames, 3 max(mels, H / 2)] and [W frames, H] act: of the convolutions
  Tensor hidden, qkv, attended, inner;  // of W source rows
  CodeBuffers entering;                 // ... on their way into products
  Tensor sound_slot;                  // [W source] i32: t / source
  std::vector<Tensor> cross_k, cross_v;  // a layer: [W, source, Hd, D] act
  struct {
    Tensor hidden, branch, qkv, q, attended, inner, last;  // of T rows
    CodeBuffers entering;
    std::vector<Tensor> cross_q;      // a layer: [T, H], kept for align()
    Tensor logits;                    // [T, V] f32
  } text;
  Tensor decode_words;                   // i32: what decode_layers_cross keeps between steps; or absent
  Tensor attention;                      // [kHeadsAtOnce T, source] f32: weights of some heads, for align()
  std::vector<Tensor> k_cache, v_cache;  // a layer: [S positions, 1, Hd, D] act
  Tensor act_scales;                     // [QuantizationSites::count()] f32, of a plan with fixed scales
};

/// What decode_layers_cross takes of the decoder: a weight of all layers each, and caches, where they lie.
struct CrossStacks {
  Tensor norms, norm_biases, biases;           // [N, 3 H] f32 x 2, [N, 7 H + M] bf16
  Tensor qkv, o, cross_q, cross_o, up, down;   // [N, rows, columns] bf16
  Tensor k_cache, v_cache, cross_k, cross_v, queries;  // queries: [N, 1, H]
};

struct WhisperContext {
  const WhisperConfig& config;
  const PrecisionPlan& plan;
  const WhisperWeights& weights;
  const WhisperBuffers& buffers;
  engine::GateMarks* gates = nullptr;  // where it stands back; null: nowhere
  Enters enters = {};                  // of a calibration
  const CrossStacks* stacks = nullptr;  // steps of one row go through them by one op; null: by the layers' ops
};

/// Log-mel bands of `windows` windows into logs, and the largest of each frame. `rows`: a count that every op is held
/// to, for dry runs; or absent. `rows`: a count that every op is held to, for dry runs; or absent.
Status record_features(ops::Recorder& rec, const WhisperContext& context, const SoundInputs& in, int64_t windows,
                       const Tensor& rows);
/// The same, and the encoder; hidden's rows are its output, cross_k and cross_v what text will see.
Status record_encoder(ops::Recorder& rec, const WhisperContext& context, const SoundInputs& in, int64_t windows,
                      const Tensor& rows);
/// A step of T rows.
Status record_text(ops::Recorder& rec, const WhisperContext& context, const TextInputs& in, const TextOutputs& out,
                   int64_t T);

}  // namespace vivace::models::whisper
