// What a port's shape and dtype strings say, read once by the compiler, so that a call compares numbers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "vivace/base/dtype.h"
#include "vivace/base/tensor.h"

namespace vivace::ops {

/// A port, attribute or dim by name. Literals are hashed by the compiler; complete() holds an op's names apart.
struct Name {
  const char* text;
  uint64_t hash;

  template <size_t N>
  consteval Name(const char (&s)[N]) : text(s), hash(hash_of({s, N - 1})) {}  // NOLINT: call["x"] must work
  template <class P>
    requires std::is_same_v<P, const char*>
  constexpr Name(const P& s) : text(s), hash(hash_of(s)) {}  // NOLINT: names kept in variables

  /// FNV-1a.
  static constexpr uint64_t hash_of(std::string_view s) {
    uint64_t h = 0xcbf29ce484222325;
    for (const char c : s) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return h;
  }
};

/// One dim of a port's shape.
struct DimRule {
  enum class Kind : uint8_t { any, symbol, number, expression };
  Kind kind = Kind::any;
  uint64_t symbol = 0;    // hash of its name
  int64_t number = 0;
  std::string_view text;  // as written
};

struct PortRules {
  int rank = 0;                  // above kMaxRank: the spec is wrong
  DimRule dims[kMaxRank];
  uint32_t dtypes = 0;           // bit i: DType i; 0: that of another port
  uint64_t dtype_of = 0;         // hash of that port's name
  bool known_dtypes = true;      // every name in the list is one

  constexpr PortRules(std::string_view shape, std::string_view list) {
    for (bool more = true; more; ++rank) {
      const size_t comma = shape.find(',');
      if (rank < kMaxRank) dims[rank] = dim(shape.substr(0, comma));
      more = comma != std::string_view::npos;
      if (more) shape.remove_prefix(comma + 1);
    }
    if (!list.empty() && list[0] == '=') {
      dtype_of = Name::hash_of(list.substr(1));
      return;
    }
    for (bool more = true; more;) {
      const size_t bar = list.find('|');
      DType t{};
      if (parse_dtype(list.data(), bar < list.size() ? bar : list.size(), &t)) dtypes |= 1u << static_cast<int>(t);
      else known_dtypes = false;
      more = bar != std::string_view::npos;
      if (more) list.remove_prefix(bar + 1);
    }
  }

 private:
  static constexpr bool digit(char c) { return c >= '0' && c <= '9'; }
  static constexpr bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
  static constexpr DimRule dim(std::string_view e) {
    DimRule d;
    d.text = e;
    if (e == "?") return d;
    bool numeric = !e.empty(), bare = !e.empty() && letter(e[0]);
    for (const char c : e) numeric &= digit(c), bare &= digit(c) || letter(c);
    d.kind = numeric ? DimRule::Kind::number : bare ? DimRule::Kind::symbol : DimRule::Kind::expression;
    if (bare) d.symbol = Name::hash_of(e);
    if (numeric)
      for (const char c : e) d.number = d.number * 10 + (c - '0');
    return d;
  }
};

}  // namespace vivace::ops
