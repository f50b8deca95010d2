// GrootConfig: the numbers of a GR00T, N1.6 or N1.7, from config.json.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "vivace/engine/policy.h"
#include "vivace/engine/weights.h"
#include "vivace/models/vision/config.h"

namespace vivace::models::groot {

inline constexpr const char *kN16 = "groot_n16", *kN17 = "groot_n17";

/// As N1.7 has it, where nothing else is said.
struct GrootConfig {
  /// SigLIP2 and Qwen3, each token turned by its place, and features behind the language model's last norm.
  bool n16 = false;
  vision::VisionConfig vision;
  Stack text{2048, 16, 6144, 16, 8, 128};     // of its layers, those that are kept
  int64_t vocab = 151936, image_token = 151655;
  double eps = 1e-6, rope_theta = 5e6;
  std::array<int64_t, 3> sections{24, 20, 20};  // rotated pairs that turn by time, line, column; of N1.6: all by place

  Stack adapter{2048, 4, 8192, 32, 32, 64};   // self-attention over the language model's output
  Stack dit{1536, 32, 6144, 32, 32, 48};
  int64_t text_every = 2;                     // of cross-attention blocks, every so many sees text, the others images
  int64_t dit_out = 1024, hidden = 1024;      // what the DiT puts out; inside state encoder and action decoder
  int64_t state_dim = 132, action_dim = 132, horizon = 40, positions = 1024, embodiments = 32;
  int64_t steps = 4, buckets = 1000;          // of the flow; of the time, as encoders count it
  int64_t image_height = 256, image_width = 256;  // of a camera's image, as the network takes it at most

  std::string top, visual, language;          // what tensor names begin with
  std::string embedding;                      // the tensor of words
  std::vector<std::string> cameras;

  const char* family() const { return n16 ? kN16 : kN17; }
  int64_t view_patches() const { return image_height * image_width / (vision.patch * vision.patch); }
  bool crosses(int64_t block) const { return block % 2 == 0; }
  bool sees_text(int64_t block) const { return block % (2 * text_every) == 0; }
};

/// Reads and checks the configuration. `family`: of kFamilies, or empty or "auto" for the checkpoint's own. Errors:
/// CorruptData, Unsupported, InvalidArgument name the field, or say that the checkpoint is of another family.
Result<GrootConfig> read_config(const engine::Checkpoint& checkpoint, const std::string& family, bool random_weights);

}  // namespace vivace::models::groot
