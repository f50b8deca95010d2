// Shapes of the models and how the persistent kernel cuts their K.
#pragma once

namespace lab {

struct SmolLM2 {  // 135M
  static constexpr const char* kName = "SmolLM2-135M";
  static constexpr int kLayers = 30, kD = 576, kHeads = 9, kKvHeads = 3, kHead = 64, kFfn = 1536, kVocab = 49152;
  static constexpr bool kQkNorm = false;
  static constexpr float kEpsilon = 1e-5f;
  // columns of a stage of 8 rows, of products over d, over the heads and over the hidden row
  static constexpr int kCut = 576, kCutO = 576, kCutDown = 512, kSlotBytes = 8 * (576 * 2 + 64);
  // stages that a warp multiplies at once: q, k and v; o; gate and up; down
  static constexpr int kStagesQkv = 1, kStagesO = 1, kStagesUp = 3, kStagesDown = 3;
};
struct Qwen3_06B {
  static constexpr const char* kName = "Qwen3-0.6B";
  static constexpr int kLayers = 28, kD = 1024, kHeads = 16, kKvHeads = 8, kHead = 128, kFfn = 3072, kVocab = 151936;
  static constexpr bool kQkNorm = true;
  static constexpr float kEpsilon = 1e-6f;
  static constexpr int kCut = 1024, kCutO = 1024, kCutDown = 1024, kSlotBytes = 8 * (1024 * 2 + 64);
  static constexpr int kStagesQkv = 2, kStagesO = 2, kStagesUp = 3, kStagesDown = 3;
};
struct Llama32_1B {
  static constexpr const char* kName = "Llama-3.2-1B";
  static constexpr int kLayers = 16, kD = 2048, kHeads = 32, kKvHeads = 8, kHead = 64, kFfn = 8192, kVocab = 128256;
  static constexpr bool kQkNorm = false;
  static constexpr float kEpsilon = 1e-5f;
  static constexpr int kCut = 1024, kCutO = 1024, kCutDown = 1024, kSlotBytes = 8 * (1024 * 2 + 64);
  static constexpr int kStagesQkv = 2, kStagesO = 2, kStagesUp = 2, kStagesDown = 2;
};

}  // namespace lab
