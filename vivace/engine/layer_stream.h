// LayerStream: weights of layers that do not stay where ops read them: they wait in host memory and take turns in one
// region. For models larger than the device; a step costs at least their bytes over the link's rate.
#pragma once
#include <vector>

#include "vivace/engine/weight_uploader.h"

namespace vivace::engine {

class LayerStream {
 public:
  /// One a layer; all are laid out alike if they have the same weights.
  std::vector<WeightUploader>& layers() { return layers_; }
  const std::vector<WeightUploader>& layers() const { return layers_; }
  /// Fills every layer in turn in the region and keeps it in page-locked host memory. Errors: OutOfMemory; those of
  /// WeightUploader.
  Status commit(Runtime& runtime);
  /// Queues the copy of layer `i` into the region, behind what reads the one before.
  Status bring(exec::Stream& stream, size_t i) const;
  int64_t region_bytes() const;  // where ops read
  int64_t host_bytes() const;

 private:
  std::vector<WeightUploader> layers_;
  std::vector<int64_t> offset_;  // of a layer in host_
  exec::Buffer region_, host_;
};

}  // namespace vivace::engine
