#include <algorithm>
#include <optional>
#include <vector>

#include "vivace/cpu/map/block.h"
#include "vivace/cpu/map/map.h"

namespace vivace::cpu {
namespace {

using kernels::Fold;
using kernels::FoldSpace;
using kernels::kMapRank;
using kernels::kMaxOperands;
using kernels::MapProgram;
using kernels::MapSpace;
namespace math = kernels::math;

constexpr int64_t kChunk = 16384;  // folded elements of one piece: never fewer threads' than this, never another number
constexpr int64_t kParallel = 32768;
constexpr int64_t kLanes = 16;        // accumulators of a block: fixed, so that every machine adds in one order
constexpr int64_t kColumnRows = 128;  // rows that a column adds up before they join its total

template <Fold kKind, class C>
struct Op {
  static C identity() {
    if constexpr (kKind == Fold::sum || kKind == Fold::any)
      return C(0);
    else if constexpr (kKind == Fold::prod || kKind == Fold::all)
      return C(1);
    else if constexpr (!math::Wrap<C>::integer)
      return kKind == Fold::max ? -C(__builtin_inff()) : C(__builtin_inff());
    else
      return kKind == Fold::max ? math::Limits<C>::kMin : math::Limits<C>::kMax;
  }
  static C join(C x, C y) {
    if constexpr (kKind == Fold::sum)
      return math::add(x, y);
    else if constexpr (kKind == Fold::prod)
      return math::multiply(x, y);
    else if constexpr (kKind == Fold::max)
      return x != x ? x : y != y ? y : x > y ? x : y;
    else if constexpr (kKind == Fold::min)
      return x != x ? x : y != y ? y : x < y ? x : y;
    else if constexpr (kKind == Fold::any)
      return C(x != C(0) || y != C(0));
    else
      return C(x != C(0) && y != C(0));
  }
};

/// What a fold does with values, by kind and type. The walks below know neither: they are compiled once.
struct Joiner {
  int64_t size;
  uint64_t identity;                                                    // the bits of a value
  void (*block)(const Joiner& j, const char* p, int64_t n, char* out);  // n dense values to one
  void (*join)(const Joiner& j, char* x, const char* y, int64_t n);     // x[i] with y[i] into x[i]
  const kernels::Joining* own = nullptr;
  const Evaluator* combine = nullptr;  // of own
};

/// kLanes running values, then a tree over them.
template <class O, class C>
void block(const Joiner&, const char* p, int64_t n, char* out) {
  C lane[kLanes];
  for (C& v : lane) v = O::identity();
  const auto at = [p](int64_t i) {
    C v;
    __builtin_memcpy(&v, p + i * static_cast<int64_t>(sizeof v), sizeof v);
    return v;
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t k = 0; k < kLanes; ++k) lane[k] = O::join(lane[k], at(i + k));
  for (int64_t k = 0; i < n; ++i, ++k) lane[k] = O::join(lane[k], at(i));
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t k = 0; k < half; ++k) lane[k] = O::join(lane[k], lane[k + half]);
  __builtin_memcpy(out, lane, sizeof(C));
}

template <class O, class C>
void join(const Joiner&, char* x, const char* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    C a, b;
    __builtin_memcpy(&a, x + i * static_cast<int64_t>(sizeof a), sizeof a);
    __builtin_memcpy(&b, y + i * static_cast<int64_t>(sizeof b), sizeof b);
    a = O::join(a, b);
    __builtin_memcpy(x + i * static_cast<int64_t>(sizeof a), &a, sizeof a);
  }
}

/// The same by a program, which reads two elements before it writes one: at most kBlock of them.
void join_own(const Joiner& j, char* x, const char* y, int64_t n) {
  thread_local std::vector<char> scratch;  // beside thread_scratch(), which the walk has in use
  scratch.resize(std::max(scratch.size(), j.combine->scratch_bytes()));
  const char* in[kMaxOperands] = {x, y};
  const int64_t stride[kMaxOperands] = {j.size, j.size};
  for (int k = 2; k < j.own->combine.operands; ++k) in[k] = reinterpret_cast<const char*>(&j.own->constant[k]);
  j.combine->eval(n, in, stride, 0, 0, x, j.size, scratch.data());
}
/// Halves joined with halves: the order is of the count alone.
void block_own(const Joiner& j, const char* p, int64_t n, char* out) {
  char held[kBlock * 8];
  __builtin_memcpy(held, p, static_cast<size_t>(n * j.size));
  while (n > 1) {
    const int64_t half = n / 2;
    j.join(j, held, held + (n - half) * j.size, half);
    n -= half;
  }
  __builtin_memcpy(out, n == 0 ? reinterpret_cast<const char*>(&j.identity) : held, static_cast<size_t>(j.size));
}

template <Fold kKind, class C>
Joiner make() {
  using O = Op<kKind, C>;
  Joiner j{sizeof(C), 0, &block<O, C>, &join<O, C>, nullptr, nullptr};
  const C v = O::identity();
  __builtin_memcpy(&j.identity, &v, sizeof v);
  return j;
}

template <class C>
Joiner number_joiner(Fold kind) {
  return kind == Fold::sum    ? make<Fold::sum, C>()
         : kind == Fold::prod ? make<Fold::prod, C>()
         : kind == Fold::max  ? make<Fold::max, C>()
                              : make<Fold::min, C>();
}

Joiner joiner(Fold kind, Elem e) {
  switch (e) {
    case Elem::boolean:
      return kind == Fold::any ? make<Fold::any, bool>() : make<Fold::all, bool>();
    case Elem::u8:
      return number_joiner<uint8_t>(kind);
    case Elem::u16:
      return number_joiner<uint16_t>(kind);
    case Elem::u32:
      return number_joiner<uint32_t>(kind);
    case Elem::u64:
      return number_joiner<uint64_t>(kind);
    case Elem::i8:
      return number_joiner<int8_t>(kind);
    case Elem::i16:
      return number_joiner<int16_t>(kind);
    case Elem::i32:
      return number_joiner<int32_t>(kind);
    case Elem::i64:
      return number_joiner<int64_t>(kind);
    case Elem::f64:
      return number_joiner<double>(kind);
    default:  // f16 and bf16 are folded as f32: the caller casts
      return number_joiner<float>(kind);
  }
}

/// Partial values joined as a balanced tree while they come.
struct Tree {
  const Joiner& j;
  uint64_t level[48];
  int64_t count = 0;
  void add(uint64_t v) {
    int l = 0;
    for (int64_t c = count; c & 1; c >>= 1, ++l) {
      j.join(j, reinterpret_cast<char*>(&level[l]), reinterpret_cast<const char*>(&v), 1);
      v = level[l];
    }
    level[l] = v;
    ++count;
  }
  uint64_t value() const {
    uint64_t v = j.identity;
    bool any = false;
    for (int l = 0; l < 48; ++l) {
      if (!(count >> l & 1)) continue;
      uint64_t x = level[l];
      if (any) j.join(j, reinterpret_cast<char*>(&x), reinterpret_cast<const char*>(&v), 1);
      v = x, any = true;
    }
    return v;
  }
};

/// A walk over folded elements in row-major order: dense blocks of what the program gives.
struct Folded {
  const MapSpace& s;
  const Evaluator& evaluator;
  const MapProgram& program;
  int first, last;  // axes
  int64_t in_bytes[kMaxOperands], size;
  int64_t inner = 1;  // of the last folded axis

  Folded(const FoldSpace& f, const Evaluator& e, const MapProgram& p)
      : s(f.space), evaluator(e), program(p), first(f.kept), last(f.space.rank - 1), size(elem_bytes(p.result)) {
    for (int k = 0; k < p.operands; ++k) in_bytes[k] = elem_bytes(p.operand[k]);
    if (last >= first) inner = s.dim[last];
  }
  int64_t count() const {
    int64_t n = 1;
    for (int i = first; i <= last; ++i) n *= s.dim[i];
    return n;
  }
  /// body(values, n) over elements [begin, end) of the one output whose operands lie at `base`.
  template <class Body>
  void each(const char* const* base, int64_t begin, int64_t end, char* buffer, char* scratch, Body&& body) const {
    const bool axes = last >= first;
    while (begin < end) {
      const char* in[kMaxOperands];
      int64_t stride[kMaxOperands] = {};
      const int64_t at = axes ? begin % inner : 0;
      const int64_t n = std::min({kBlock, end - begin, inner - at});
      int64_t rest = axes ? begin / inner : 0, place[kMapRank] = {};
      for (int i = last - 1; i >= first; --i) place[i] = rest % s.dim[i], rest /= s.dim[i];
      if (axes) place[last] = at;
      bool dense = evaluator.plain();
      for (int k = 0; k < program.operands; ++k) {
        in[k] = base[k];
        for (int i = first; i <= last; ++i) in[k] += place[i] * s.in_stride[k][i] * in_bytes[k];
        stride[k] = axes ? s.in_stride[k][last] * in_bytes[k] : in_bytes[k];
        dense = dense && stride[k] == in_bytes[k];
      }
      if (dense) {
        body(in[0], n);
      } else {
        evaluator.eval(n, in, stride, 0, 0, buffer, size, scratch);
        body(buffer, n);
      }
      begin += n;
    }
  }
};

void rows(const Joiner& j, const MapProgram& program, const FoldSpace& f, Pool* pool) {
  const Evaluator evaluator(program);
  const Folded folded(f, evaluator, program);
  const MapSpace& s = f.space;
  const int64_t n = folded.count(), pieces = std::max<int64_t>(1, (n + kChunk - 1) / kChunk);
  int64_t outputs = 1;
  for (int i = 0; i < f.kept; ++i) outputs *= s.dim[i];
  if (outputs == 0) return;
  const auto base_of = [&](int64_t o, const char** base) -> char* {
    char* out = static_cast<char*>(s.out);
    for (int k = 0; k < program.operands; ++k) base[k] = static_cast<const char*>(s.in[k]);
    for (int i = f.kept - 1; i >= 0; --i) {
      const int64_t at = o % s.dim[i];
      o /= s.dim[i];
      for (int k = 0; k < program.operands; ++k) base[k] += at * s.in_stride[k][i] * folded.in_bytes[k];
      out += at * s.out_stride[i] * folded.size;
    }
    return out;
  };
  const auto piece = [&](int64_t o, int64_t p, char** out) {
    const char* base[kMaxOperands];
    *out = base_of(o, base);
    char* const memory = thread_scratch(evaluator.scratch_bytes() + kBlock * 8);
    Tree tree{j, {}, 0};
    folded.each(base, p * kChunk, std::min(n, (p + 1) * kChunk), memory, memory + kBlock * 8,
                [&](const char* v, int64_t m) {
                  uint64_t some = 0;
                  j.block(j, v, m, reinterpret_cast<char*>(&some));
                  tree.add(some);
                });
    return tree.value();
  };
  const bool wide = pool != nullptr && pool->threads() > 1 && outputs * n >= kParallel;
  if (pieces == 1) {
    const auto one = [&](int64_t o) {
      char* out;
      const uint64_t v = piece(o, 0, &out);
      __builtin_memcpy(out, &v, static_cast<size_t>(j.size));
    };
    if (!wide) {
      for (int64_t o = 0; o < outputs; ++o) one(o);
      return;
    }
    const int64_t turn = std::max<int64_t>(1, kChunk / std::max<int64_t>(1, n));
    pool->run((outputs + turn - 1) / turn, [&](int64_t c) {
      for (int64_t o = c * turn; o < std::min(outputs, (c + 1) * turn); ++o) one(o);
    });
    return;
  }
  std::vector<uint64_t> partial(static_cast<size_t>(pieces));
  for (int64_t o = 0; o < outputs; ++o) {
    char* out = nullptr;
    const auto one = [&](int64_t p) {
      char* where;
      partial[static_cast<size_t>(p)] = piece(o, p, &where);
    };
    if (wide)
      pool->run(pieces, one);
    else
      for (int64_t p = 0; p < pieces; ++p) one(p);
    const char* base[kMaxOperands];
    out = base_of(o, base);
    Tree tree{j, {}, 0};
    for (const uint64_t v : partial) tree.add(v);
    const uint64_t v = tree.value();
    __builtin_memcpy(out, &v, static_cast<size_t>(j.size));
  }
}

/// Outputs lie side by side in memory, folded elements do not: a block of outputs goes down its columns together.
void columns(const Joiner& j, const MapProgram& program, const FoldSpace& f, Pool* pool) {
  const Evaluator evaluator(program);
  const Folded folded(f, evaluator, program);
  const MapSpace& s = f.space;
  const int across = f.kept - 1;
  const int64_t n = folded.count(), width = s.dim[across], blocks = (width + kBlock - 1) / kBlock;
  int64_t outer = 1;
  for (int i = 0; i < across; ++i) outer *= s.dim[i];
  const auto one = [&](int64_t job) {
    int64_t rest = job / blocks, place[kMapRank] = {};
    const int64_t begin = job % blocks * kBlock, m = std::min(kBlock, width - begin);
    for (int i = across - 1; i >= 0; --i) place[i] = rest % s.dim[i], rest /= s.dim[i];
    place[across] = begin;
    const char* base[kMaxOperands];
    int64_t stride[kMaxOperands];
    char* out = static_cast<char*>(s.out);
    for (int k = 0; k < program.operands; ++k) {
      base[k] = static_cast<const char*>(s.in[k]);
      for (int i = 0; i <= across; ++i) base[k] += place[i] * s.in_stride[k][i] * folded.in_bytes[k];
      stride[k] = s.in_stride[k][across] * folded.in_bytes[k];
    }
    for (int i = 0; i <= across; ++i) out += place[i] * s.out_stride[i] * folded.size;
    char* const memory = thread_scratch(evaluator.scratch_bytes() + 3 * kBlock * 8);
    char* const some = memory;
    char* const total = memory + kBlock * 8;
    const auto clear = [&](char* p) {
      for (int64_t i = 0; i < m; ++i) __builtin_memcpy(p + i * j.size, &j.identity, static_cast<size_t>(j.size));
    };
    char* const buffer = memory + 2 * kBlock * 8;
    char* const scratch = memory + 3 * kBlock * 8;
    clear(some), clear(total);
    int64_t at[kMapRank] = {};
    for (int64_t r = 0; r < n; ++r) {
      const char* in[kMaxOperands];
      for (int k = 0; k < program.operands; ++k) {
        in[k] = base[k];
        for (int i = folded.first; i <= folded.last; ++i) in[k] += at[i] * s.in_stride[k][i] * folded.in_bytes[k];
      }
      const char* v = buffer;
      if (evaluator.plain() && stride[0] == folded.size)
        v = in[0];
      else
        evaluator.eval(m, in, stride, 0, 0, buffer, folded.size, scratch);
      j.join(j, some, v, m);
      if ((r + 1) % kColumnRows == 0) {
        j.join(j, total, some, m);
        clear(some);
      }
      for (int i = folded.last; i >= folded.first; --i) {
        if (++at[i] < s.dim[i]) break;
        at[i] = 0;
      }
    }
    j.join(j, total, some, m);
    for (int64_t i = 0; i < m; ++i)
      __builtin_memcpy(out + i * s.out_stride[across] * folded.size, total + i * j.size, static_cast<size_t>(j.size));
  };
  if (pool != nullptr && pool->threads() > 1 && outer * width * n >= kParallel)
    pool->run(outer * blocks, one);
  else
    for (int64_t job = 0; job < outer * blocks; ++job) one(job);
}

/// The first extreme so far, NaN being the most extreme of all.
struct Extreme {
  int64_t best = -1, number = 0;
  uint64_t value = 0;
};
template <bool kMax, class C>
void extreme(const char* p, int64_t n, Extreme* e) {
  C value;
  __builtin_memcpy(&value, &e->value, sizeof value);
  for (int64_t i = 0; i < n; ++i) {
    C v;
    __builtin_memcpy(&v, p + i * static_cast<int64_t>(sizeof v), sizeof v);
    if (e->best < 0 || (value == value && (v != v || (kMax ? v > value : v < value))))
      e->best = e->number + i, value = v;
  }
  e->number += n;
  __builtin_memcpy(&e->value, &value, sizeof value);
}
using Scan = void (*)(const char*, int64_t, Extreme*);
template <bool kMax>
Scan extreme_of(Elem e) {
  switch (e) {
    case Elem::boolean:
    case Elem::u8:
      return &extreme<kMax, uint8_t>;
    case Elem::u16:
      return &extreme<kMax, uint16_t>;
    case Elem::u32:
      return &extreme<kMax, uint32_t>;
    case Elem::u64:
      return &extreme<kMax, uint64_t>;
    case Elem::i8:
      return &extreme<kMax, int8_t>;
    case Elem::i16:
      return &extreme<kMax, int16_t>;
    case Elem::i32:
      return &extreme<kMax, int32_t>;
    case Elem::i64:
      return &extreme<kMax, int64_t>;
    case Elem::f64:
      return &extreme<kMax, double>;
    default:
      return &extreme<kMax, float>;
  }
}

void extremes(Scan scan, const MapProgram& program, const FoldSpace& f, Pool* pool) {
  const Evaluator evaluator(program);
  const Folded folded(f, evaluator, program);
  const MapSpace& s = f.space;
  const int64_t n = folded.count();
  int64_t outputs = 1;
  for (int i = 0; i < f.kept; ++i) outputs *= s.dim[i];
  const auto one = [&](int64_t o) {
    const char* base[kMaxOperands];
    char* out = static_cast<char*>(s.out);
    for (int k = 0; k < program.operands; ++k) base[k] = static_cast<const char*>(s.in[k]);
    for (int i = f.kept - 1; i >= 0; --i) {
      const int64_t at = o % s.dim[i];
      o /= s.dim[i];
      for (int k = 0; k < program.operands; ++k) base[k] += at * s.in_stride[k][i] * folded.in_bytes[k];
      out += at * s.out_stride[i] * 8;
    }
    char* const memory = thread_scratch(evaluator.scratch_bytes() + kBlock * 8);
    Extreme e;
    folded.each(base, 0, n, memory, memory + kBlock * 8, [&](const char* p, int64_t m) { scan(p, m, &e); });
    __builtin_memcpy(out, &e.best, 8);
  };
  if (pool != nullptr && pool->threads() > 1 && outputs > 1 && outputs * n >= kParallel)
    pool->run(outputs, one);
  else
    for (int64_t o = 0; o < outputs; ++o) one(o);
}

/// Whether outputs lie closer together in memory than what is folded into each.
bool down(const FoldSpace& f, int operands) {
  const MapSpace& s = f.space;
  if (f.kept == 0 || f.kept == s.rank || s.dim[f.kept - 1] <= 1) return false;
  const auto moves = [&](int axis) {  // in memory, at most
    int64_t most = 0;
    for (int k = 0; k < operands; ++k) {
      const int64_t stride = s.in_stride[k][axis];
      most = std::max(most, stride < 0 ? -stride : stride);
    }
    return most;
  };
  // The folded axis that moves least in memory, against the kept one that does.
  int64_t folded = INT64_MAX;
  for (int i = f.kept; i < s.rank; ++i)
    if (s.dim[i] > 1) folded = std::min(folded, moves(i));
  return folded != INT64_MAX && moves(f.kept - 1) < folded;
}

}  // namespace

void fold(const kernels::How& how, const MapProgram& p, const FoldSpace& f, Pool* pool) {
  if (how.kind == Fold::argmax) return extremes(extreme_of<true>(p.result), p, f, pool);
  if (how.kind == Fold::argmin) return extremes(extreme_of<false>(p.result), p, f, pool);
  std::optional<Evaluator> combine;
  if (how.own != nullptr) combine.emplace(how.own->combine);
  const Joiner j =
      how.own == nullptr
          ? joiner(how.kind, p.result)
          : Joiner{elem_bytes(p.result), how.own->identity.bits, &block_own, &join_own, how.own, &*combine};
  if (down(f, p.operands))
    columns(j, p, f, pool);
  else
    rows(j, p, f, pool);
}

namespace {

template <Elem E>
void scan_row(bool product, char* p, int64_t n) {
  using C = typename Stored<E>::C;
  constexpr int64_t kSize = sizeof(typename Stored<E>::S);
  C total = product ? C(1) : C(0);
  for (int64_t i = 0; i < n; ++i) {
    const C v = load<E>(p + i * kSize);
    total = product ? math::multiply(total, v) : math::add(total, v);
    store<E>(p + i * kSize, total);
  }
}

}  // namespace

void scan(bool product, Elem type, char* data, int64_t rows_, int64_t n, Pool* pool) {
  const int64_t pitch = n * elem_bytes(type);
  const auto one = [&](int64_t r) {
    char* const p = data + r * pitch;
    switch (type) {
      case Elem::u8:
        return scan_row<Elem::u8>(product, p, n);
      case Elem::u16:
        return scan_row<Elem::u16>(product, p, n);
      case Elem::u32:
        return scan_row<Elem::u32>(product, p, n);
      case Elem::u64:
        return scan_row<Elem::u64>(product, p, n);
      case Elem::i8:
        return scan_row<Elem::i8>(product, p, n);
      case Elem::i16:
        return scan_row<Elem::i16>(product, p, n);
      case Elem::i32:
        return scan_row<Elem::i32>(product, p, n);
      case Elem::i64:
        return scan_row<Elem::i64>(product, p, n);
      case Elem::f32:
        return scan_row<Elem::f32>(product, p, n);
      case Elem::f64:
        return scan_row<Elem::f64>(product, p, n);
      default:
        return;
    }
  };
  if (pool != nullptr && pool->threads() > 1 && rows_ > 1 && rows_ * n >= kParallel)
    pool->run(rows_, one);
  else
    for (int64_t r = 0; r < rows_; ++r) one(r);
}

}  // namespace vivace::cpu
