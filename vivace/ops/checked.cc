#include "vivace/ops/checked.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/exec/cuda_stream.h"
#include "vivace/ops/registry.h"

namespace vivace::ops {
namespace {

std::atomic<bool>& mode() {
  static std::atomic<bool> on = [] {
    const char* v = std::getenv("VIVACE_CHECKED");
    return v != nullptr && v[0] != '\0' && std::strcmp(v, "0") != 0;
  }();
  return on;
}

/// Whether work on the stream is being captured, by us or by a framework whose stream this is.
Result<bool> in_capture(exec::Stream& stream) {
  if (stream.capturing()) return true;
  const auto* cuda = dynamic_cast<const exec::CudaStream*>(&stream);
  return cuda == nullptr ? Result<bool>(false) : cuda->in_capture();
}

}  // namespace

void set_checked(bool on) { mode() = on; }
bool checked() { return mode(); }

template <class T>
Result<std::vector<T>> Contents::elements(Name port) const {
  static_assert(sizeof(T) == 4);
  const Tensor& t = call_[port];
  std::vector<T> values;
  if (!t.present()) return values;
  const int64_t rows = t.shape.dim[0], row = rows == 0 ? 0 : t.shape.elements() / rows;
  values.resize(static_cast<size_t>(rows * row));
  for (int64_t i = 0; i < rows && row > 0; ++i) {
    const void* from = static_cast<const T*>(t.data) + i * t.stride[0];
    if (t.place == Place::host) std::memcpy(values.data() + i * row, from, static_cast<size_t>(row) * 4);
    else VV_TRY(stream_.copy(values.data() + i * row, from, static_cast<size_t>(row) * 4));
  }
  if (t.place == Place::device) VV_TRY(stream_.synchronize());
  return values;
}

Result<std::vector<int32_t>> Contents::operator()(Name port) const { return elements<int32_t>(port); }
Result<std::vector<float>> Contents::floats(Name port) const { return elements<float>(port); }

Result<int64_t> Contents::rows() const {
  const int64_t T = call_.dim("T");
  VV_ASSIGN(const std::vector<int32_t> said, (*this)("rows"));
  return said.empty() ? T : std::clamp<int64_t>(said[0], 0, T);
}

Status check_contents(const Call& call, exec::Stream& stream) {
  const OpRow* row = find(call.spec().name);
  if (row == nullptr || row->inspect == nullptr) return {};
  VV_ASSIGN(const bool captured, in_capture(stream));
  return captured ? Status() : row->inspect(call, Contents(call, stream));
}

}  // namespace vivace::ops
