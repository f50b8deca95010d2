// OpSpec: what one op is. Every op states it once as a constexpr table; checks, bindings, tests,
// benchmark rows, stubs and reference pages are made from it.
#pragma once
#include <span>

#include "vivace/base/arch.h"
#include "vivace/base/dtype.h"
#include "vivace/ops/port_rules.h"

namespace vivace::ops {

enum class Io : uint8_t { in, out, inout };

/// One tensor argument.
///   shape:  comma-separated dims. A bare symbol ("T") binds on first sight and must agree after
///           that; any other expression ("2*H", "(Hq+2*Hkv)*D", "1") is evaluated and compared; "?" is any.
///   dtypes: "f32|bf16|f16", or "=x" for the dtype of port x.
///   inplace: an input port that this output may be exactly (same address, same strides), or "".
/// Layout: all axes but the outermost are dense; the outermost may be strided (rows of a wider matrix), and the second
/// where pitched() says so; columns() takes a matrix either way.
struct Port {
  const char* name;
  Io io;
  const char* shape;
  const char* dtypes;
  const char* doc;
  bool optional;
  const char* inplace;
  uint64_t key;          // hash of name
  uint64_t inplace_key;  // of inplace; that of "" is no port's
  PortRules rules;       // of shape and dtypes
  bool ahead = false;    // see read_ahead()
  bool pitched = false;  // see pitched()
  bool columns = false;  // see columns()
};

constexpr Port port(const char* n, Io io, const char* s, const char* d, const char* doc, bool optional,
                    const char* inplace) {
  return {n, io, s, d, doc, optional, inplace, Name::hash_of(n), Name::hash_of(inplace), PortRules(s, d)};
}

constexpr Port in(const char* n, const char* s, const char* d, const char* doc) {
  return port(n, Io::in, s, d, doc, false, "");
}
constexpr Port opt_in(const char* n, const char* s, const char* d, const char* doc) {
  return port(n, Io::in, s, d, doc, true, "");
}
constexpr Port out(const char* n, const char* s, const char* d, const char* doc, const char* inplace = "") {
  return port(n, Io::out, s, d, doc, false, inplace);
}
constexpr Port opt_out(const char* n, const char* s, const char* d, const char* doc, const char* inplace = "") {
  return port(n, Io::out, s, d, doc, true, inplace);
}
constexpr Port inout(const char* n, const char* s, const char* d, const char* doc) {
  return port(n, Io::inout, s, d, doc, false, "");
}
constexpr Port opt_inout(const char* n, const char* s, const char* d, const char* doc) {
  return port(n, Io::inout, s, d, doc, true, "");
}

/// The device-side row count every row op takes: rows at and beyond it are neither read nor written.
constexpr Port rows_port() {
  return opt_in("rows", "1", "i32", "count of valid rows in device memory, clamped to [0, T]; absent means T");
}

/// A port that some kernel of the op reads before its dependency wait: nothing that is queued in front of the op, and
/// has not ended, may write it. Calls that have one are launched with a dependent launch only where Weights::constant
/// says so (ops/registry.h).
constexpr Port read_ahead(Port p) {
  p.ahead = true;
  return p;
}

/// A port of three axes or more whose second may be strided, too: keys in the rows of a product that makes queries,
/// keys and values.
constexpr Port pitched(Port p) {
  p.pitched = true;
  return p;
}

/// A matrix that may lie column after column instead: its transpose is row-major, whose rows may be strided.
constexpr Port columns(Port p) {
  p.columns = true;
  return p;
}

enum class AttrKind : uint8_t { real, integer, boolean, choice };

struct Attr {
  const char* name;
  AttrKind kind;
  double fallback;      // the default; for a choice its index
  const char* choices;  // "none|silu|gelu_tanh", or "" for the other kinds
  const char* doc;
  uint64_t key;         // hash of name
};

constexpr Attr real(const char* n, double d, const char* doc) {
  return {n, AttrKind::real, d, "", doc, Name::hash_of(n)};
}
constexpr Attr integer(const char* n, double d, const char* doc) {
  return {n, AttrKind::integer, d, "", doc, Name::hash_of(n)};
}
constexpr Attr boolean(const char* n, bool d, const char* doc) {
  return {n, AttrKind::boolean, d ? 1.0 : 0.0, "", doc, Name::hash_of(n)};
}
/// The first choice is the default; indices follow the kernel's enum.
constexpr Attr choice(const char* n, const char* choices, const char* doc) {
  return {n, AttrKind::choice, 0, choices, doc, Name::hash_of(n)};
}

/// Minimum traffic and arithmetic of one call: what the roofline is computed from.
struct Cost {
  int64_t bytes = 0;
  int64_t flops = 0;
};

inline constexpr int kMaxPorts = 24;
inline constexpr int kMaxAttrs = 16;

struct OpSpec {
  const char* name;
  const char* group;    // folder under kernels/ and cpu/
  const char* brief;    // one sentence
  const char* formula;  // exact, rounding points included
  const char* source;   // where the definition comes from
  std::span<const Port> ports;
  std::span<const Attr> attrs;
  Arch min_arch = Arch::sm80;
  bool composite = false;  // a decomposition into other ops

  /// Whether any port is read ahead.
  constexpr bool reads_ahead() const {
    for (const Port& p : ports)
      if (p.ahead) return true;
    return false;
  }
  constexpr bool complete() const {
    const auto full = [](const char* s) { return s != nullptr && s[0] != '\0'; };
    if (!(full(name) && full(group) && full(brief) && full(formula) && full(source))) return false;
    for (const Port& p : ports)
      if (!(full(p.name) && full(p.shape) && full(p.dtypes) && full(p.doc) && (!p.ahead || p.io == Io::in) &&
            (!p.pitched || (p.io == Io::in && p.rules.rank > 2)) &&
            (!p.columns || (p.io == Io::in && p.rules.rank == 2)) && p.rules.rank <= kMaxRank && p.rules.known_dtypes))
        return false;
    for (size_t i = 0; i < ports.size(); ++i)  // calls look names up by hash
      for (size_t j = 0; j < i; ++j)
        if (ports[i].key == ports[j].key) return false;
    for (const Port& p : ports) {
      bool there = p.rules.dtypes != 0;
      for (const Port& q : ports) there |= p.rules.dtype_of == q.key;
      if (!there) return false;
    }
    for (const Attr& a : attrs)
      if (!(full(a.name) && full(a.doc) && (a.kind == AttrKind::choice) == full(a.choices))) return false;
    return !ports.empty() && ports.size() <= kMaxPorts && attrs.size() <= kMaxAttrs;
  }
};

}  // namespace vivace::ops
