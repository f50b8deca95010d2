// How outputs of attention become memory's: rounded to the queries' type and, where `out` is e4m3, quantized from there
// as `quantize` does it, so that the codes are those of the two ops one after the other.
#pragma once
#include "vivace/kernels/attention/variant.cuh"
#include "vivace/kernels/tile/divide.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Of codes: made once a thread, behind the dependency wait and not in front of anything that hurries: it waits for
/// their scale.
template <class Q, class Out>
struct AttentionEpilogue {
  static constexpr bool kCodes = !kSameType<Q, Out>;
  Divider by;

  __device__ __forceinline__ explicit AttentionEpilogue(const AttentionArgs& a) : by(kCodes ? *a.out_scale : 1.0f) {}
  /// x in f32 to `to`, in accesses of kAccess elements.
  template <int kAccess, int N>
  __device__ __forceinline__ void store_as(Out* to, float (&x)[N]) const {
    if constexpr (kCodes) {
#pragma unroll
      for (float& v : x) v = to_float(from_float<Q>(v));
      by.template divide<false>(x);
    }
    store_by<kAccess, N>(to, x);
  }
  /// Four values that are rounded already, two a word.
  __device__ __forceinline__ void store_words(Out* to, uint32_t low, uint32_t high) const {
    const Vec<uint32_t, 2> words = {low, high};
    if constexpr (kCodes) {
      float x[4];
      to_floats(*reinterpret_cast<const Vec<Q, 4>*>(&words), x);
      by.template divide<false>(x);
      store<4>(to, x);
    } else {
      *reinterpret_cast<Vec<uint32_t, 2>*>(to) = words;
    }
  }
};

}  // namespace vivace::kernels
