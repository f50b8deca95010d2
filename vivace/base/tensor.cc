#include "vivace/base/tensor.h"

namespace vivace {

std::string to_string(const Shape& s) {
  std::string r = "[";
  for (int i = 0; i < s.rank; ++i) r += (i ? ", " : "") + std::to_string(s.dim[i]);
  return r + "]";
}

int64_t Tensor::span_bytes() const {
  int64_t last = 0;
  for (int i = 0; i < shape.rank; ++i) {
    if (shape.dim[i] == 0) return 0;
    last += (shape.dim[i] - 1) * stride[i];
  }
  const int block = info(dtype).block;
  return row_bytes(dtype, (last + block) / block * block);
}

bool Tensor::is_dense() const {
  if (shape.elements() == 0) return true;
  int64_t want = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    if (shape.dim[i] != 1 && stride[i] != want) return false;
    want *= shape.dim[i];
  }
  return true;
}

Tensor tensor(void* data, DType dtype, Shape shape, Place place) {
  Tensor t{data, dtype, place, shape, {}};
  int64_t stride = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    t.stride[i] = stride;
    stride *= shape.dim[i];
  }
  return t;
}

Tensor slice(const Tensor& t, int64_t begin, int64_t count) {
  Tensor r = t;
  r.data = static_cast<char*>(t.data) + row_bytes(t.dtype, begin * t.stride[0]);
  r.shape.dim[0] = count;
  return r;
}

}  // namespace vivace
