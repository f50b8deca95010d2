#include <algorithm>

#include "vivace/cpu/map/block.h"
#include "vivace/cpu/map/linear.h"

namespace vivace::cpu {
namespace {

namespace math = kernels::math;
constexpr int64_t kRows = 32, kColumns = 256, kDepth = 128;  // of a tile: x 16 KiB, y 128 KiB, out 32 KiB in f32

template <Elem E>
void typed(const Matmul& a, Pool* pool) {
  using C = typename Stored<E>::C;
  constexpr int64_t kSize = sizeof(typename Stored<E>::S);
  int64_t batches = 1;
  for (int i = 0; i < a.rank; ++i) batches *= a.batch[i];
  const int64_t row_tiles = (a.m + kRows - 1) / kRows, column_tiles = (a.n + kColumns - 1) / kColumns;
  const auto one = [&](int64_t job) {
    const int64_t m0 = job % row_tiles * kRows, n0 = job / row_tiles % column_tiles * kColumns;
    int64_t b = job / (row_tiles * column_tiles);
    const char *x = static_cast<const char*>(a.x), *y = static_cast<const char*>(a.y);
    char* const out = static_cast<char*>(a.out) + b * a.out_batch * kSize;
    for (int i = a.rank - 1; i >= 0; --i) {
      x += b % a.batch[i] * a.x_batch[i] * kSize, y += b % a.batch[i] * a.y_batch[i] * kSize;
      b /= a.batch[i];
    }
    const int64_t m = std::min(kRows, a.m - m0), n = std::min(kColumns, a.n - n0);
    C* const sum =
        reinterpret_cast<C*>(thread_scratch((kRows * kColumns + kDepth * kColumns + kRows * kDepth) * sizeof(C)));
    C* const ys = sum + kRows * kColumns;
    C* const xs = ys + kDepth * kColumns;
    std::fill(sum, sum + m * kColumns, C(0));
    for (int64_t k0 = 0; k0 < a.k; k0 += kDepth) {
      const int64_t depth = std::min(kDepth, a.k - k0);
      const bool across = a.y_n == 1 || a.y_n * a.y_n <= a.y_k * a.y_k;  // reads y the way it lies
      const char* const yt = y + (k0 * a.y_k + n0 * a.y_n) * kSize;
      if (across) {
        for (int64_t k = 0; k < depth; ++k)
          for (int64_t j = 0; j < n; ++j) ys[k * kColumns + j] = load<E>(yt + (k * a.y_k + j * a.y_n) * kSize);
      } else {
        for (int64_t j = 0; j < n; ++j)
          for (int64_t k = 0; k < depth; ++k) ys[k * kColumns + j] = load<E>(yt + (k * a.y_k + j * a.y_n) * kSize);
      }
      for (int64_t i = 0; i < m; ++i)
        for (int64_t k = 0; k < depth; ++k)
          xs[i * kDepth + k] = load<E>(x + ((m0 + i) * a.x_m + (k0 + k) * a.x_k) * kSize);
      for (int64_t i = 0; i < m; ++i) {
        C* const row = sum + i * kColumns;
        int64_t k = 0;
        for (; k + 4 <= depth; k += 4) {  // k's order is kept for each element: the same bits whatever the tile
          const C *const v = xs + i * kDepth + k, *const q = ys + k * kColumns;
          for (int64_t j = 0; j < n; ++j) {
            C t = math::add(row[j], math::multiply(v[0], q[j]));
            t = math::add(t, math::multiply(v[1], q[kColumns + j]));
            t = math::add(t, math::multiply(v[2], q[2 * kColumns + j]));
            row[j] = math::add(t, math::multiply(v[3], q[3 * kColumns + j]));
          }
        }
        for (; k < depth; ++k) {
          const C v = xs[i * kDepth + k];
          for (int64_t j = 0; j < n; ++j) row[j] = math::add(row[j], math::multiply(v, ys[k * kColumns + j]));
        }
      }
    }
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) store<E>(out + ((m0 + i) * a.out_m + n0 + j) * kSize, sum[i * kColumns + j]);
  };
  const int64_t jobs = batches * row_tiles * column_tiles;
  if (pool != nullptr && pool->threads() > 1 && jobs > 1 && batches * a.m * a.n * std::max<int64_t>(a.k, 1) >= 1 << 20)
    pool->run(jobs, one);
  else
    for (int64_t job = 0; job < jobs; ++job) one(job);
}

}  // namespace

void matmul(const Matmul& a, Pool* pool) {
  switch (a.type) {
    case Elem::u8:
      return typed<Elem::u8>(a, pool);
    case Elem::u16:
      return typed<Elem::u16>(a, pool);
    case Elem::u32:
      return typed<Elem::u32>(a, pool);
    case Elem::u64:
      return typed<Elem::u64>(a, pool);
    case Elem::i8:
      return typed<Elem::i8>(a, pool);
    case Elem::i16:
      return typed<Elem::i16>(a, pool);
    case Elem::i32:
      return typed<Elem::i32>(a, pool);
    case Elem::i64:
      return typed<Elem::i64>(a, pool);
    case Elem::f16:
      return typed<Elem::f16>(a, pool);
    case Elem::bf16:
      return typed<Elem::bf16>(a, pool);
    case Elem::f32:
      return typed<Elem::f32>(a, pool);
    case Elem::f64:
      return typed<Elem::f64>(a, pool);
    default:
      return;
  }
}

}  // namespace vivace::cpu
