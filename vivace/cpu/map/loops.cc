#include "vivace/cpu/map/loops.h"

#include <cstring>
#include <utility>

namespace vivace::cpu {
namespace {

namespace math = kernels::math;

template <Elem From, Elem To>
void cast(int64_t n, const char* const* in, const int64_t* s, char* out, int64_t so) {
  constexpr int64_t kIn = sizeof(typename Stored<From>::S), kOut = sizeof(typename Stored<To>::S);
  const char* const x = in[0];
  if (s[0] == kIn && so == kOut) {
    for (int64_t i = 0; i < n; ++i)
      store<To>(out + i * kOut, math::convert<typename Stored<To>::C>(load<From>(x + i * kIn)));
    return;
  }
  for (int64_t i = 0; i < n; ++i)
    store<To>(out + i * so, math::convert<typename Stored<To>::C>(load<From>(x + i * s[0])));
}

template <size_t... I>
constexpr auto all_casts(std::index_sequence<I...>) {
  constexpr size_t kN = kernels::kArithmeticCount;
  struct Table {
    Loop loop[kN * kN];
  };
  return Table{{&cast<static_cast<Elem>(I / kN), static_cast<Elem>(I % kN)>...}};
}

template <class T>
void select(int64_t n, const char* const* in, const int64_t* s, char* out, int64_t so) {
  for (int64_t i = 0; i < n; ++i) {
    T y, w;
    std::memcpy(&y, in[1] + i * s[1], sizeof y);
    std::memcpy(&w, in[2] + i * s[2], sizeof w);
    const T r = in[0][i * s[0]] ? y : w;
    std::memcpy(out + i * so, &r, sizeof r);
  }
}

template <class T>
void copy(int64_t n, const char* const* in, const int64_t* s, char* out, int64_t so) {
  constexpr int64_t kSize = sizeof(T);
  if (s[0] == kSize && so == kSize) {
    std::memmove(out, in[0], static_cast<size_t>(n * kSize));
    return;
  }
  if (s[0] == 0 && so == kSize) {
    T v;
    std::memcpy(&v, in[0], sizeof v);
    for (int64_t i = 0; i < n; ++i) std::memcpy(out + i * kSize, &v, sizeof v);
    return;
  }
  for (int64_t i = 0; i < n; ++i) std::memcpy(out + i * so, in[0] + i * s[0], sizeof(T));
}

}  // namespace

Loop loop_of(Func f, Elem e) {
  if (!kernels::has_arithmetic(e) || static_cast<int>(f) >= kernels::kFuncCount) return nullptr;
  if (e == Elem::boolean || e == Elem::u8 || e == Elem::i8 || e == Elem::u16 || e == Elem::i16) return small_loop(f, e);
  return kernels::is_real(e) ? real_loop(f, e) : wide_loop(f, e);
}

Loop cast_loop(Elem from, Elem to) {
  static constexpr auto kTable =
      all_casts(std::make_index_sequence<size_t{kernels::kArithmeticCount} * kernels::kArithmeticCount>());
  if (!kernels::has_arithmetic(from) || !kernels::has_arithmetic(to)) return nullptr;
  return kTable.loop[static_cast<size_t>(from) * kernels::kArithmeticCount + static_cast<size_t>(to)];
}

Loop select_loop(int bytes) {
  return bytes == 1   ? &select<uint8_t>
         : bytes == 2 ? &select<uint16_t>
         : bytes == 4 ? &select<uint32_t>
                      : &select<uint64_t>;
}

Loop copy_loop(int bytes) {
  return bytes == 1 ? &copy<uint8_t> : bytes == 2 ? &copy<uint16_t> : bytes == 4 ? &copy<uint32_t> : &copy<uint64_t>;
}

}  // namespace vivace::cpu
