// Shape and Tensor: a typed, strided view of memory that somebody else owns.
#pragma once
#include <string>

#include "vivace/base/dtype.h"

namespace vivace {

inline constexpr int kMaxRank = 6;

/// Dimensions, outermost first.
struct Shape {
  int rank = 0;
  int64_t dim[kMaxRank] = {};

  Shape() = default;
  template <class... D>
  explicit constexpr Shape(D... d) : rank(sizeof...(d)), dim{static_cast<int64_t>(d)...} {
    static_assert(sizeof...(d) <= kMaxRank);
  }
  int64_t operator[](int i) const { return dim[i]; }
  /// Product of all dimensions; -1 on overflow of int64.
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i)
      if (__builtin_mul_overflow(n, dim[i], &n)) return -1;
    return n;
  }
  bool operator==(const Shape& o) const {
    if (rank != o.rank) return false;
    for (int i = 0; i < rank; ++i)
      if (dim[i] != o.dim[i]) return false;
    return true;
  }
};

/// "[2, 64]".
std::string to_string(const Shape& s);

enum class Place : uint8_t { host, device };

/// A view. `stride[i]` counts elements of `dtype` (for block formats: elements, a multiple of the
/// block, except the last axis, which is always dense). POD: copying it copies no data.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Place place = Place::host;
  Shape shape;
  int64_t stride[kMaxRank] = {};

  bool present() const { return data != nullptr || shape.rank != 0; }
  /// Bytes from the first to one past the last element that the view can touch; 0 if it is empty.
  int64_t span_bytes() const;
  bool is_dense() const;  // row-major without gaps
};

/// Dense row-major view of `data`.
Tensor tensor(void* data, DType dtype, Shape shape, Place place = Place::host);

/// Rows [begin, begin + count) of the outermost axis.
Tensor slice(const Tensor& t, int64_t begin, int64_t count);

}  // namespace vivace
