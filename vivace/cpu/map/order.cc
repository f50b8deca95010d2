#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

#include "vivace/cpu/map/linear.h"
#include "vivace/cpu/map/loops.h"

namespace vivace::cpu {
namespace {

constexpr int64_t kParallel = 32768;

template <class Fn>
void jobs(int64_t n, int64_t work, Pool* pool, Fn&& fn) {
  if (pool != nullptr && pool->threads() > 1 && n > 1 && work >= kParallel)
    pool->run(n, fn);
  else
    for (int64_t i = 0; i < n; ++i) fn(i);
}

/// Calls fn.template operator()<E>() for an arithmetic type.
template <class Fn>
void with_type(Elem e, Fn&& fn) {
  switch (e) {
    case Elem::boolean:
      return fn.template operator()<Elem::boolean>();
    case Elem::u8:
      return fn.template operator()<Elem::u8>();
    case Elem::u16:
      return fn.template operator()<Elem::u16>();
    case Elem::u32:
      return fn.template operator()<Elem::u32>();
    case Elem::u64:
      return fn.template operator()<Elem::u64>();
    case Elem::i8:
      return fn.template operator()<Elem::i8>();
    case Elem::i16:
      return fn.template operator()<Elem::i16>();
    case Elem::i32:
      return fn.template operator()<Elem::i32>();
    case Elem::i64:
      return fn.template operator()<Elem::i64>();
    case Elem::f16:
      return fn.template operator()<Elem::f16>();
    case Elem::bf16:
      return fn.template operator()<Elem::bf16>();
    case Elem::f32:
      return fn.template operator()<Elem::f32>();
    case Elem::f64:
      return fn.template operator()<Elem::f64>();
    default:
      return;
  }
}

/// NaN behind everything, whichever way the rest goes.
template <class C>
bool before(C x, C y, bool descending) {
  if (x != x || y != y) return x == x;
  return descending ? x > y : x < y;
}

}  // namespace

bool gather(const Gather& g, int64_t* bad, Pool* pool) {
  std::atomic<bool> good{true};
  std::atomic<int64_t> wrong{0};
  const auto at = [&](int64_t i) {
    const int64_t v = i < 0 ? i + g.length : i;
    if (v >= 0 && v < g.length) return v;
    good = false, wrong = i;
    return int64_t{-1};
  };
  const char* const x = static_cast<const char*>(g.x);
  char* const out = static_cast<char*>(g.out);
  const int64_t row = g.inner * g.bytes;
  jobs(g.outer * g.count, g.outer * g.count * g.inner, pool, [&](int64_t job) {
    const int64_t o = job / g.count, j = job % g.count;
    if (!g.along) {
      const int64_t from = at(g.at[j]);
      if (from >= 0) std::memcpy(out + job * row, x + (o * g.length + from) * row, static_cast<size_t>(row));
      return;
    }
    for (int64_t i = 0; i < g.inner; ++i) {
      const int64_t from = at(g.at[job * g.inner + i]);
      if (from >= 0)
        std::memcpy(out + (job * g.inner + i) * g.bytes, x + ((o * g.length + from) * g.inner + i) * g.bytes,
                    static_cast<size_t>(g.bytes));
    }
  });
  *bad = wrong;
  return good;
}

void sort(Elem type, bool descending, char* data, int64_t* order, int64_t rows, int64_t n, Pool* pool) {
  with_type(type, [&]<Elem E>() {
    using S = typename Stored<E>::S;
    jobs(rows, rows * n, pool, [&](int64_t r) {
      S* const p = reinterpret_cast<S*>(data) + r * n;
      const auto value = [](const S& s) { return load<E>(reinterpret_cast<const char*>(&s)); };
      if (order == nullptr) {
        std::sort(p, p + n, [&](const S& x, const S& y) { return before(value(x), value(y), descending); });
        return;
      }
      int64_t* const to = order + r * n;
      std::iota(to, to + n, int64_t{0});
      // Equals by their place: stable, and without std::stable_sort, which libstdc++ 12 and clang-19 do not agree on.
      std::sort(to, to + n, [&](int64_t x, int64_t y) {
        if (before(value(p[x]), value(p[y]), descending)) return true;
        return !before(value(p[y]), value(p[x]), descending) && x < y;
      });
    });
  });
}

void searchsorted(Elem type, const char* x, int64_t n, const int64_t* sorter, const char* values, int64_t count,
                  bool right, int64_t* out, Pool* pool) {
  with_type(type, [&]<Elem E>() {
    constexpr int64_t kSize = sizeof(typename Stored<E>::S);
    constexpr int64_t kTurn = 1024;
    jobs((count + kTurn - 1) / kTurn, count, pool, [&](int64_t c) {
      for (int64_t i = c * kTurn; i < std::min(count, (c + 1) * kTurn); ++i) {
        const auto v = load<E>(values + i * kSize);
        int64_t low = 0, high = n;
        while (low < high) {
          const int64_t mid = low + (high - low) / 2;
          const auto m = load<E>(x + (sorter != nullptr ? sorter[mid] : mid) * kSize);
          if (right ? !before(v, m, false) : before(m, v, false))
            low = mid + 1;
          else
            high = mid;
        }
        out[i] = low;
      }
    });
  });
}

}  // namespace vivace::cpu
