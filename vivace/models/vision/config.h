// VisionConfig: the numbers of a vision tower, Qwen3-VL's or SigLIP2's, from config.json.
#pragma once
#include <vector>

#include "vivace/engine/registry.h"
#include "vivace/models/layer/parts.h"

namespace vivace::models::vision {

struct VisionConfig : Stack {
  VisionConfig() : Stack{1024, 24, 4096, 16, 16, 64} {}
  int64_t patch = 16, merge = 2;              // pixels of a patch's side, patches of a token's side
  int64_t frames = 2;                         // equal frames of a patch
  int64_t grid = 48;                          // of learned positions, a side
  std::vector<int64_t> deepstack{5, 11, 17};  // layers whose output joins the language model's first layers
  int64_t out = 2048;                         // width of a token, as the language model takes it
  /// SigLIP2 as Eagle joins it to a language model: no patch turns by its place, a grid's learned positions are the
  /// table scaled as an image is, patches pass a norm before they are merged, and a merger narrows at once.
  bool siglip2 = false;

  int64_t patch_values() const { return 3 * patch * patch; }
  int64_t patch_columns() const { return (patch_values() + 7) / 8 * 8; }  // as products take them
  int64_t token_side() const { return patch * merge; }
  int64_t token_patches() const { return merge * merge; }
};

/// SigLIP2 So400m with patches of 14, as GR00T N1.6 has it.
VisionConfig siglip2_so400m();

/// Reads and checks `vision_config`, of SigLIP2 where `c` is one; what it does not say stays as it is. `c->out` is the
/// language model's width. Errors: CorruptData, Unsupported name the field.
Status read_vision(const engine::JsonValue& v, VisionConfig* c);

}  // namespace vivace::models::vision
