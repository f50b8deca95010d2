// The op table as Python data, and the text of the op functions.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "bound_op.h"
#include "errors.h"
#include "ops.h"
#include "vivace/base/check.h"
#include "vivace/ops/gemm_table.h"
#include "vivace/ops/gemm_tiles.h"

namespace vivace::python {
namespace {

const char* text(ops::Io io) { return io == ops::Io::in ? "in" : io == ops::Io::out ? "out" : "inout"; }

const char* text(ops::AttrKind k) {
  switch (k) {
    case ops::AttrKind::real: return "real";
    case ops::AttrKind::integer: return "integer";
    case ops::AttrKind::boolean: return "boolean";
    case ops::AttrKind::choice: return "choice";
  }
  return "?";
}

nb::list split(std::string_view list) {
  nb::list out;
  while (!list.empty()) {
    const size_t bar = list.find('|');
    out.append(nb::str(list.data(), std::min(bar, list.size())));
    list = bar == std::string_view::npos ? std::string_view() : list.substr(bar + 1);
  }
  return out;
}

nb::object fallback(const ops::Attr& a) {
  switch (a.kind) {
    case ops::AttrKind::real: return nb::float_(a.fallback);
    case ops::AttrKind::integer: return nb::int_(static_cast<int64_t>(a.fallback));
    case ops::AttrKind::boolean: return nb::bool_(a.fallback != 0);
    case ops::AttrKind::choice: return split(a.choices)[static_cast<size_t>(a.fallback)];
  }
  return nb::none();
}

nb::dict port_row(const ops::Port& p) {
  nb::dict d;
  d["name"] = p.name;
  d["io"] = text(p.io);
  d["shape"] = p.shape;
  d["dtypes"] = p.dtypes;
  d["optional"] = p.optional;
  d["inplace"] = p.inplace;
  d["doc"] = p.doc;
  d["ahead"] = p.ahead;
  d["pitched"] = p.pitched;
  d["columns"] = p.columns;
  return d;
}

nb::dict op_row(const ops::OpRow& row) {
  const ops::OpSpec& s = *row.spec;
  nb::list ports, attrs;
  for (const ops::Port& p : s.ports) ports.append(port_row(p));
  for (const ops::Attr& a : s.attrs) {
    nb::dict d;
    d["name"] = a.name;
    d["kind"] = text(a.kind);
    d["default"] = fallback(a);
    d["choices"] = split(a.choices);
    d["doc"] = a.doc;
    attrs.append(d);
  }
  nb::dict d;
  d["name"] = s.name;
  d["group"] = s.group;
  d["brief"] = s.brief;
  d["formula"] = s.formula;
  d["source"] = s.source;
  d["composite"] = s.composite;
  d["min_arch"] = name(s.min_arch);
  d["gpu"] = row.instances != nullptr &&
             (!row.instances(s.min_arch).empty() || (s.composite && !row.instances(Arch::sm90a).empty()));
  d["ports"] = ports;
  d["attrs"] = attrs;
  return d;
}

std::span<const ops::GemmRow> rows_in_use() {
  const Result<std::span<const ops::GemmRow>> rows = ops::gemm_rows();
  check(rows.status());
  return *rows;
}

/// What `vivace tune` tries for a product: (rows, tokens, multicast_x, multicast_w) of the layouts that serve it.
nb::list gemm_layouts(const std::string& dtype, int64_t N, int64_t K, int64_t T) {
  using ops::GemmTiles;
  const bool promote = dtype == "e4m3";
  if (!promote && dtype != "bf16")
    check(Status(Code::kInvalidArgument, strf("gemm_layouts: dtype is bf16 or e4m3, got '%s'", dtype.c_str())));
  if (N < 1 || K < 1 || T < 1 || N > INT32_MAX || K > INT32_MAX || T > INT32_MAX)
    check(Status(Code::kInvalidShape, strf("gemm_layouts: N, K and T are 1 to 2^31 - 1, got %ld, %ld, %ld",
                                           static_cast<long>(N), static_cast<long>(K), static_cast<long>(T))));
  nb::list all;
  const auto visit = [&](const GemmTiles::Layout& l) {
    if (!GemmTiles::serves(GemmTiles::laid(l, T, N, K * (promote ? 1 : 2), promote), N)) return;
    if (T <= GemmTiles::kFewTokens && l.tokens < T) return;
    all.append(nb::make_tuple(l.rows, l.tokens, l.multicast_x, l.multicast_w));
  };
  if (T <= GemmTiles::kFewTokens) for (const GemmTiles::Layout& l : GemmTiles::kFew) visit(l);
  else for (const GemmTiles::Layout& l : GemmTiles::kMany) visit(l);
  return all;
}

}  // namespace

std::string op_doc(const ops::OpSpec& spec, const std::string& name, const bool* fixed, const char* fixed_attrs) {
  // Python has no required positional parameter after an optional one: from the first optional port
  // on, the signature shows keywords (the call itself takes any port by position).
  std::string signature = name + "(", ports, attrs;
  bool keyword_only = false;
  const auto comma = [&] { return signature.back() == '(' ? "" : ", "; };
  const auto star = [&] {
    if (!keyword_only) signature += comma() + std::string("*");
    keyword_only = true;
  };
  for (const ops::Port& p : spec.ports) {
    if (p.optional) star();
    signature += comma() + std::string(p.name) + (p.optional ? "=None" : "");
    ports += strf("  %s: %s[%s] %s%s. %s%s%s%s\n", p.name, p.optional ? "optional " : "", p.shape, p.dtypes,
                  p.io == ops::Io::in    ? ""
                  : p.io == ops::Io::out ? ", written"
                                         : ", updated",
                  p.doc, p.inplace[0] ? "; may be " : "", p.inplace,
                  p.ahead ? "; read ahead where constant_weights() says that it may be" : "");
  }
  for (size_t i = 0; i < spec.attrs.size(); ++i) {
    const ops::Attr& a = spec.attrs[i];
    if (fixed[i]) continue;
    star();
    nb::object r = nb::steal(PyObject_Repr(fallback(a).ptr()));
    const std::string value = PyUnicode_AsUTF8(r.ptr());
    signature += comma() + std::string(a.name) + "=" + value;
    attrs += strf("  %s: %s, default %s. %s\n", a.name, a.choices[0] ? a.choices : text(a.kind), value.c_str(), a.doc);
  }
  std::string doc = signature + ")\n--\n\n" + spec.brief + "\n\n";
  if (fixed_attrs[0]) doc += std::string(spec.name) + " with " + fixed_attrs + ".\n\n";
  doc += std::string("Formula: ") + spec.formula + "\n\nPorts, any of them also by position in this order:\n" + ports;
  if (!attrs.empty()) doc += "\nAttributes, by name:\n" + attrs;
  return doc + "\nSource: " + spec.source;
}

void add_table(nb::module_& m) {
  m.def(
      "gemm_tactics", [] { return ops::print_gemm_rows(rows_in_use()); },
      "The measured tiles of gemm that are in use, one row a line.");
  m.def("gemm_tactics_digest", [] { return ops::gemm_table_digest(rows_in_use()); }, "SHA-256 of gemm_tactics().");
  m.def(
      "load_gemm_tactics", [](const std::string& text) { check(ops::load_gemm_rows(text)); }, nb::arg("text"),
      "Rows in the place of shipped ones of the same weights; an empty text restores these. Calls that are prepared "
      "keep their tile.");
  m.def("gemm_layouts", &gemm_layouts, nb::arg("dtype"), nb::arg("N"), nb::arg("K"), nb::arg("T"),
        "(rows, tokens, multicast_x, multicast_w) of each layout that serves a product.");
  m.def("op_table", [] {
    nb::list rows;
    for (const ops::OpRow* row : ops::table()) rows.append(op_row(*row));
    return rows;
  }, "Every op as a dict: ports, attributes, formula, source.");
  m.def(
      "gpu_instances",
      [](const std::string& op, int capability) {
        nb::list all;
        const ops::OpRow* row = ops::find(op);
        if (row == nullptr) check(Status(Code::kNotFound, "gpu_instances: no op '" + op + "'"));
        if (row->instances != nullptr)
          for (const ops::Instance& i : row->instances(static_cast<Arch>(capability)))
            all.append(nb::make_tuple(i.header, i.expression));
        return all;
      },
      nb::arg("op"), nb::arg("capability"),
      "(header, kernel expression) of every tactic that serves a chip of this compute capability, 90 for 9.0.");
  m.def("loaded_kernels", &ops::loaded_kernels, "Expressions of the kernels that this process has loaded so far.");
  m.def("alias_table", [] {
    nb::list rows;
    for (const ops::Alias& a : ops::aliases()) {
      nb::dict d;
      d["name"] = a.name;
      d["op"] = a.op->spec->name;
      d["attrs"] = a.attrs;
      rows.append(d);
    }
    return rows;
  }, "Every alias as a dict: its op, and the attributes it fixes.");
  m.def("dtype_table", [] {
    nb::list rows;
    for (int i = 0; i < kDTypeCount; ++i) {
      const DTypeInfo d = info(static_cast<DType>(i));
      nb::dict row;
      row["name"] = d.name;
      row["block"] = d.block;
      row["bytes"] = d.bytes;
      row["is_float"] = d.is_float;
      rows.append(row);
    }
    return rows;
  }, "Every dtype as a dict: `block` elements take `bytes` bytes.");
}

}  // namespace vivace::python
