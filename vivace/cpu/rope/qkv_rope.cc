#include "vivace/kernels/rope/qkv_rope.h"

#include "vivace/cpu/rope/rotate.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {
namespace {

using kernels::QkvShiftedArgs;

/// Where one token's heads of q, k or v go: nowhere if `base` is null.
struct Sink {
  void* base;
  DType dtype;
  int64_t first;  // element of the token's first head
  int64_t pitch;  // elements to its next
};

Sink kv_sink(const QkvShiftedArgs& a, int64_t t, void* out, int64_t out_stride, void* cache, int64_t block_stride) {
  if (out != nullptr) return {out, a.dtype, t * out_stride, a.D};
  const kernels::KvCache::Place place = a.cache.place(a.cache.slot ? a.cache.slot[t] : 0, a.pos[t]);
  if (place.block < 0) return {nullptr, a.cache.dtype, 0, 0};
  return {cache, a.cache.dtype, a.cache.element(place, block_stride), a.cache.head_pitch()};
}

void rms_norm(float* head, int64_t D, const float* factor, float eps) {
  float part[16] = {}, sum = 0;  // sixteen partial sums: a fixed order that vectorises
  for (int64_t i = 0; i < D; ++i) part[i % 16] += head[i] * head[i];
  for (float p : part) sum += p;
  const float inv = 1.0f / std::sqrt(sum / static_cast<float>(D) + eps);
  for (int64_t i = 0; i < D; ++i) head[i] = head[i] * inv * factor[i];
}

void qkv_token(const QkvShiftedArgs& a, int64_t t) {
  const Rotation rotation = a.angles != nullptr
                                ? Rotation(a.angles + t * a.angles_stride, a.R, a.style)
                                : Rotation(a.inv_freq, a.inv_freq ? a.R : 0, a.attn_factor, a.style,
                                           [&](int i) { return a.shift ? a.turned(t, i) : a.pos[t]; });
  float head[kernels::kMaxRopeHeadDim], factor[kernels::kMaxRopeHeadDim];
  int64_t from = t * a.qkv_stride;  // q, k and v heads follow one another
  const auto heads = [&](int64_t count, const void* norm, DType norm_dtype, bool rotate, const Sink& to) {
    if (norm != nullptr) {
      load_f32(norm, norm_dtype, 0, a.D, factor);
      if (a.norm_plus_one)
        for (int64_t i = 0; i < a.D; ++i) factor[i] += 1.0f;
    }
    for (int64_t n = 0; n < count && to.base != nullptr; ++n) {
      load_f32(a.qkv, a.dtype, from + n * a.D, a.D, head);
      if (norm != nullptr) rms_norm(head, a.D, factor, a.eps);
      if (rotate) rotation.apply(head);
      store_f32(to.base, to.dtype, to.first + n * to.pitch, a.D, head);
    }
    from += count * a.D;
  };
  heads(a.Hq, a.q_norm, a.q_norm_dtype, true, {a.q, a.dtype, t * a.q_stride, a.D});
  heads(a.Hkv, a.k_norm, a.k_norm_dtype, true, kv_sink(a, t, a.k_out, a.k_stride, a.cache.k, a.cache.k_stride));
  heads(a.Hkv, nullptr, a.dtype, false, kv_sink(a, t, a.v_out, a.v_stride, a.cache.v, a.cache.v_stride));
}

}  // namespace

void qkv_rope(const QkvShiftedArgs& a, Pool& pool) {
  const int64_t work = (a.Hq + int64_t{2} * a.Hkv) * a.D;
  for_rows(pool, valid_rows(a.rows, a.T), work, [&](int64_t t) { qkv_token(a, t); });
}

}  // namespace vivace::cpu
