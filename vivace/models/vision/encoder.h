// ImageEncoder: the vision tower for language models: an image in, its tokens where steps read them.
#pragma once
#include <memory>
#include <vector>

#include "vivace/engine/model.h"
#include "vivace/engine/runtime.h"
#include "vivace/exec/graph.h"
#include "vivace/models/vision/image_rows.h"
#include "vivace/models/vision/pipeline.h"

namespace vivace::models::vision {

class ImageEncoder {
 public:
  struct Options {
    int places = 1;      // images whose tokens steps may read
    int64_t tokens = 0;  // most of an image
    int64_t words = 0;   // rows of a step: room for them behind the images' tokens
    DType act = DType::f32;
    bool stored = true;  // matrices stay as the checkpoint has them
    bool eager = false;
  };
  ImageEncoder(const VisionConfig& config, const Options& options) : config_(config), options_(options) {}

  /// In this order, while its model loads. `at`: what its tensors' names begin with.
  Status load_weights(const engine::WeightSource& source, const std::string& at);
  void declare(engine::Arena& arena);
  /// After the arena's commit.
  Status commit(engine::Runtime& runtime);
  int64_t weight_bytes() const { return uploader_.bytes(); }
  void forms(engine::Forms* forms) const { add_forms(weights_, forms); }

  /// [places * tokens + words, out] act: rows of images' tokens, then room for a step's words.
  const Tensor& mixed() const { return mixed_; }
  /// [places * tokens + 1, out] act each: what deepstack adds behind the language model's first layers; then zeros.
  const std::vector<Tensor>& levels() const { return levels_; }
  int64_t rows() const { return options_.places * options_.tokens; }
  engine::ImageLimits limits(int64_t token) const {
    return {static_cast<int>(token), static_cast<int>(config_.token_side()), static_cast<int>(options_.tokens),
            options_.places};
  }
  /// See engine::TextModel::see().
  Status see(engine::Runtime& runtime, int place, const engine::Image& image);

 private:
  /// A captured run over at most so many patches.
  exec::ShapeKey key(int64_t patches) const { return exec::ShapeKey{static_cast<uint64_t>(patches)}; }
  Status record(exec::Stream& stream, int64_t patches) const;
  Status place_positions(engine::Runtime& runtime, const Grid& grid);

  VisionConfig config_;
  Options options_;
  engine::WeightUploader uploader_;
  OwnedTensors own_;
  VisionWeights weights_;
  VisionBuffers buffers_;
  VisionInputs in_;
  Tensor tokens_, mixed_;  // [M, out] of the image at hand
  std::vector<Tensor> made_, levels_;
  std::vector<int64_t> bounds_;  // of patches, ascending
  std::unique_ptr<exec::Graph> graph_;
  struct Staging {
    exec::Buffer buffer;  // pixels, then line and column of each patch, then counts
    std::unique_ptr<exec::Event> copied;
  };
  std::vector<Staging> staging_;  // in turn
  size_t next_ = 0;
  Staging positions_;
  Grid placed_;  // whose positions are in place
};

}  // namespace vivace::models::vision
