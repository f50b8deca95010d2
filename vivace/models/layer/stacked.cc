#include "vivace/models/layer/stacked.h"

#include "vivace/base/check.h"

namespace vivace::models {

Result<Tensor> stacked(const char* name, const std::vector<const Tensor*>& all) {
  const Tensor& first = *all.front();
  Tensor t = first;
  t.shape.rank = first.shape.rank + 1;
  for (int i = 0; i < first.shape.rank; ++i) t.shape.dim[i + 1] = first.shape.dim[i], t.stride[i + 1] = first.stride[i];
  t.shape.dim[0] = std::ssize(all);
  t.stride[0] = first.shape.elements();
  const auto at = [](const Tensor* x) { return static_cast<const std::byte*>(x->data); };
  const int64_t bytes = info(first.dtype).bytes, apart = all.size() > 1 ? at(all[1]) - at(all[0]) : 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i]->present() || all[i]->dtype != first.dtype || all[i]->shape != first.shape)
      return Status(Code::kUnsupported, strf("layer %zu's %s is unlike layer 0's", i, name));
    if (i > 0 && (at(all[i]) - at(all[i - 1]) != apart || apart % bytes != 0 || apart < t.stride[0] * bytes))
      return Status(Code::kUnsupported, strf("%s of the layers do not lie at one distance", name));
  }
  if (all.size() > 1) t.stride[0] = apart / bytes;
  return t;
}

}  // namespace vivace::models
