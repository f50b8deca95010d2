#include "vivace/engine/layer_stream.h"

#include <algorithm>

#include "vivace/base/check.h"

namespace vivace::engine {

int64_t LayerStream::region_bytes() const {
  int64_t most = 0;
  for (const WeightUploader& p : layers_) most = std::max(most, p.bytes());
  return most;
}

int64_t LayerStream::host_bytes() const {
  int64_t all = 0;
  for (const WeightUploader& p : layers_) all += p.bytes();
  return all;
}

Status LayerStream::commit(Runtime& runtime) {
  if (layers_.empty()) return {};
  VV_ASSIGN(region_, runtime.reserve("streamed layer", static_cast<size_t>(region_bytes())));
  VV_ASSIGN(host_, runtime.reserve_shared("weights of streamed layers", static_cast<size_t>(host_bytes())));
  int64_t at = 0;
  for (WeightUploader& p : layers_) {
    VV_TRY(p.commit_at(runtime, region_.data()));
    VV_TRY(
        runtime.stream().copy(static_cast<char*>(host_.data()) + at, region_.data(), static_cast<size_t>(p.bytes())));
    VV_TRY(runtime.stream().synchronize());
    offset_.push_back(at);
    at += p.bytes();
  }
  return {};
}

Status LayerStream::bring(exec::Stream& stream, size_t i) const {
  return stream.copy(region_.data(), static_cast<const char*>(host_.data()) + offset_[i],
                     static_cast<size_t>(layers_[i].bytes()));
}

}  // namespace vivace::engine
