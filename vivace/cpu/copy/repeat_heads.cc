#include "vivace/kernels/copy/repeat_heads.h"

#include <cstring>

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void repeat_heads(const kernels::RepeatHeadsArgs& a, Pool& pool) {
  const int64_t head = int64_t{a.D} * a.bytes, heads = int64_t{a.Hkv} * a.repeats;
  for_rows(pool, valid_rows(a.rows, a.T), heads * a.D, [&](int64_t t) {
    const char* x = static_cast<const char*>(a.x) + t * a.x_stride * a.bytes;
    char* out = static_cast<char*>(a.out) + t * a.out_stride * a.bytes;
    for (int64_t h = 0; h < heads; ++h)
      std::memcpy(out + h * head, x + h / a.repeats * head, static_cast<size_t>(head));
  });
}

}  // namespace vivace::cpu
