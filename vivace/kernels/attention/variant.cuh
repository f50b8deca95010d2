// Variants of attention: what may be changed between q k^T and the output, and how every kernel asks for it.
// A kernel takes a variant V as its last template argument and calls variant_row(), variant_scores(),
// variant_output() and the k... constants below; Standard changes nothing and costs nothing.
#pragma once
#include "vivace/kernels/attention/attention.h"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Where a score stands: query t at position pos, head h, which reads kv head kv; key at position j of a slot.
struct AttentionAt {
  int t, pos, slot, h, kv, j;
};

/// What a hook that a variant leaves alone returns.
struct Unchanged {};

/// Base of variants: every hook as it is if a variant does not say otherwise. Hooks are static; a variant's
/// own take the same arguments, with its struct Extra in place of AttentionExtra.
struct AttentionVariant {
  /// Whether probabilities are exp(logit) over their sum; otherwise a logit is itself the weight.
  static constexpr bool kSoftmax = true;
  /// Element d of a query or key head, before the product.
  __device__ static Unchanged query(const AttentionExtra&, float, const AttentionAt&, int) { return {}; }
  __device__ static Unchanged key(const AttentionExtra&, float, const AttentionAt&, int) { return {}; }
  /// The score of a key: scale * q . k with the call's per-head scale, ALiBi and soft cap.
  __device__ static Unchanged logit(const AttentionExtra&, float, const AttentionAt&) { return {}; }
  /// Whether a key that the call's mask lets through is visible.
  __device__ static Unchanged visible(const AttentionExtra&, const AttentionAt&) { return {}; }
  /// Element d of the output, before it is rounded.
  __device__ static Unchanged output(const AttentionExtra&, float, const AttentionAt&, int) { return {}; }
};

struct Standard : AttentionVariant {};  // spans, scale and soft cap
struct Terms : AttentionVariant {};     // and the arguments' per-head scales, ALiBi slopes and bits

template <class A, class B>
inline constexpr bool kSameType = false;
template <class A>
inline constexpr bool kSameType<A, A> = true;

template <class V>
struct Hooks {
  static const AttentionExtra& extra();  // for types only
  static const AttentionAt& at();
  static_assert(
      requires { V::query(extra(), 0.0f, at(), 0); },
      "hook query: wanted float query(const Extra&, float x, const At&, int d)");
  static_assert(
      requires { V::key(extra(), 0.0f, at(), 0); },
      "hook key: wanted float key(const Extra&, float x, const At&, int d)");
  static_assert(
      requires { V::logit(extra(), 0.0f, at()); }, "hook logit: wanted float logit(const Extra&, float s, const At&)");
  static_assert(requires { V::visible(extra(), at()); }, "hook visible: wanted bool visible(const Extra&, const At&)");
  static_assert(
      requires { V::output(extra(), 0.0f, at(), 0); },
      "hook output: wanted float output(const Extra&, float x, const At&, int d)");
  static constexpr bool kEdits = !kSameType<V, Standard>;  // scores or visibility
  static constexpr bool kSoftmax = V::kSoftmax;
  static constexpr bool kQuery = !kSameType<decltype(V::query(extra(), 0.0f, at(), 0)), Unchanged>;
  static constexpr bool kKey = !kSameType<decltype(V::key(extra(), 0.0f, at(), 0)), Unchanged>;
  static constexpr bool kLogit = !kSameType<decltype(V::logit(extra(), 0.0f, at())), Unchanged>;
  static constexpr bool kVisible = !kSameType<decltype(V::visible(extra(), at())), Unchanged>;
  static constexpr bool kOutput = !kSameType<decltype(V::output(extra(), 0.0f, at(), 0)), Unchanged>;
};

/// What a row's scores have in common.
struct VariantRow {
  AttentionAt at;
  float scale, slope;
  int first, end;  // keys that the mask's span lets through
};
template <class V>
__device__ __forceinline__ VariantRow variant_row(const AttentionArgs& a, int t, int h, int kv, int first, int end) {
  VariantRow r{{t, t, 0, h, kv, 0}, a.scale, 0, first, end};
  if (end <= first) return r;  // nothing will be asked, and t may be no row
  if (a.pos != nullptr) r.at.pos = a.pos[t];
  if (a.slot != nullptr) r.at.slot = a.slot[t];
  if (a.head_scale != nullptr) r.scale *= a.head_scale[h];
  if (a.slopes != nullptr) r.slope = a.slopes[h];
  return r;
}

constexpr float kHidden = -__builtin_bit_cast(float, 0x7f800000u);

/// Scores from products q . k. key(n, e): the position of s[n][e]; s[n][e + 2] is another row's. What one pass does is
/// decided once for all of them, so that a call pays for what it uses. A hook may be asked for keys that are not
/// seen; what it says of those is dropped. The score of such a key is -inf, or 0 where there is no softmax.
template <class V, int N, class Key>
__device__ __forceinline__ void variant_scores(const AttentionArgs& a, const VariantRow& r, bool all_in_span,
                                               float (&s)[N][2], Key&& key) {
  const auto each = [&](auto&& f) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) f(s[n][e], key(n, e));
  };
  const float hidden = Hooks<V>::kSoftmax ? kHidden : 0.0f;
  AttentionAt at = r.at;
  const int pos = max(r.at.pos, -(1 << 30));  // a distance to any place of a cache has 32 bits then
  each([&](float& x, int j) { x = x * r.scale + r.slope * static_cast<float>(j - pos); });
  if (a.softcap > 0) each([&](float& x, int) { x = a.softcap * tanhf(x / a.softcap); });
  if constexpr (Hooks<V>::kLogit) each([&](float& x, int j) { at.j = j, x = V::logit(a.extra, x, at); });
  if (!all_in_span) each([&](float& x, int j) { x = j >= r.first && j < r.end ? x : hidden; });
  if (a.bits != nullptr && r.end > r.first)
    each([&](float& x, int j) { x = a.bit(r.at.t, r.at.slot, j) ? x : hidden; });
  if constexpr (Hooks<V>::kVisible) each([&](float& x, int j) { at.j = j, x = V::visible(a.extra, at) ? x : hidden; });
}

template <class V>
__device__ __forceinline__ float variant_output(const AttentionArgs& a, int t, int h, int d, float y) {
  if constexpr (Hooks<V>::kOutput) {
    const AttentionAt at{t, a.pos ? a.pos[t] : t, a.slot ? a.slot[t] : 0, h, h / a.group(), 0};
    return V::output(a.extra, y, at, d);
  }
  return y;
}

/// Elements [d, d + N) of a query head, or of the key head at position j, as the variant wants them; in place.
template <class V, int N>
__device__ __forceinline__ void variant_query(const AttentionArgs& a, int t, int h, int d, float (&x)[N]) {
  if constexpr (Hooks<V>::kQuery) {
    const AttentionAt at{t, a.pos ? a.pos[t] : t, a.slot ? a.slot[t] : 0, h, h / a.group(), 0};
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (d + i < a.D) x[i] = V::query(a.extra, x[i], at, d + i);
  }
}
template <class V, int N>
__device__ __forceinline__ void variant_key(const AttentionArgs& a, int64_t slot, int kv, int64_t j, int d,
                                            float (&x)[N]) {
  if constexpr (Hooks<V>::kKey) {
    const AttentionAt at{-1, -1, static_cast<int>(slot), -1, kv, static_cast<int>(j)};  // a key serves many queries
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (d + i < a.D) x[i] = V::key(a.extra, x[i], at, d + i);
  }
}

/// An extra tensor as hooks read it: bias(h, j). Outside of its shape it is 0.
template <class T>
struct ExtraTensor : AttentionExtraTensor {
  __device__ float operator()(int i, int j = 0, int k = 0) const {
    if (static_cast<uint32_t>(i) >= static_cast<uint32_t>(dim[0]) ||
        static_cast<uint32_t>(j) >= static_cast<uint32_t>(dim[1]) ||
        static_cast<uint32_t>(k) >= static_cast<uint32_t>(dim[2]))
      return 0;
    return to_float(static_cast<const T*>(data)[(int64_t{i} * dim[1] + j) * dim[2] + k]);
  }
};
template <>
struct ExtraTensor<int32_t> : AttentionExtraTensor {
  __device__ int operator()(int i, int j = 0, int k = 0) const {
    if (static_cast<uint32_t>(i) >= static_cast<uint32_t>(dim[0]) ||
        static_cast<uint32_t>(j) >= static_cast<uint32_t>(dim[1]) ||
        static_cast<uint32_t>(k) >= static_cast<uint32_t>(dim[2]))
      return 0;
    return static_cast<const int32_t*>(data)[(int64_t{i} * dim[1] + j) * dim[2] + k];
  }
};

}  // namespace vivace::kernels
