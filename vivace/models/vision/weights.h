// The vision tower's weights: where each comes from, and in which form products and norms read it.
#pragma once
#include <string>
#include <vector>

#include "vivace/engine/forms.h"
#include "vivace/models/layer/part_loader.h"
#include "vivace/models/vision/config.h"

namespace vivace::models::vision {

/// Patches of a token's square to a token.
struct Merger {
  Norm norm;
  Linear up, down;
};

struct VisionWeights {
  Linear patches;                // [H, patch columns]: its equal frames added up
  std::vector<float> positions;  // [grid * grid, H] on the host; empty: zeros
  std::vector<Layer> layers;
  Norm norm;                     // of SigLIP2: of patches, before the merger
  Merger merger;
  std::vector<Merger> deepstack;
};

class VisionLoader : public PartLoader {
 public:
  using PartLoader::PartLoader;
  /// `at`: what its tensors' names begin with; of SigLIP2 those of the model that holds tower and merger.
  Status load(const std::string& at, const VisionConfig& config, VisionWeights* weights);

 private:
  Status siglip2(const std::string& at, const VisionConfig& config, VisionWeights* weights);
  /// Eagle's mlp1, whose rows hold a channel of each of a token's patches side by side: turned to patches side by side.
  Status connector(const std::string& name, const VisionConfig& config, Merger* to);
  Tensor by_patch(const Tensor& by_channel, int64_t rows, const VisionConfig& config);
  /// Patches whose weights lie as pixels do.
  Status pixels(const std::string& name, const VisionConfig& config, Linear* to);
  Status merger(const std::string& name, const VisionConfig& config, int64_t normed, Merger* to);
  Status patches(const std::string& name, const VisionConfig& config, Linear* to);
  Status positions(const std::string& name, const VisionConfig& config, std::vector<float>* to);
};

/// Of which dtypes the products' matrices are, once they are placed.
void add_forms(const VisionWeights& weights, engine::Forms* forms);

}  // namespace vivace::models::vision
