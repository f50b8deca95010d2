#include "vivace/ops/call.h"

#include <cmath>
#include <cstring>

namespace vivace::ops {
namespace {

/// Whether `name` is one of the |-separated `list`; its index, or -1.
int index_in(std::string_view list, std::string_view name) {
  for (int i = 0; !list.empty(); ++i) {
    const size_t bar = list.find('|');
    if (list.substr(0, bar) == name) return i;
    list = bar == std::string_view::npos ? std::string_view() : list.substr(bar + 1);
  }
  return -1;
}

}  // namespace

/// Evaluates "(Hq+2*Hkv)*D" over the bound symbols; unknown symbols make the result unknown (-1).
class DimExpr {
 public:
  DimExpr(std::string_view s, const Call& call) : s_(s), call_(call) {}
  int64_t value() { return sum(); }

 private:
  int64_t sum() {
    int64_t v = product();
    while (!s_.empty() && s_[0] == '+') v = join(v, (next(), product()), [](int64_t a, int64_t b) { return a + b; });
    return v;
  }
  int64_t product() {
    int64_t v = atom();
    while (!s_.empty() && (s_[0] == '*' || s_[0] == '/')) {
      const bool times = s_[0] == '*';
      next();
      v = join(v, atom(), [times](int64_t a, int64_t b) { return times ? a * b : (b ? a / b : -1); });
    }
    return v;
  }
  int64_t atom() {
    if (!s_.empty() && s_[0] == '(') {
      next();
      const int64_t v = sum();
      next();  // ')'
      return v;
    }
    size_t n = 0;
    while (n < s_.size() && std::isalnum(static_cast<unsigned char>(s_[n]))) ++n;
    const std::string_view word = s_.substr(0, n);
    s_ = s_.substr(n);
    if (std::isdigit(static_cast<unsigned char>(word[0]))) {
      int64_t v = 0;
      for (char c : word) v = v * 10 + (c - '0');
      return v;
    }
    return call_.bound(Name::hash_of(word));
  }
  template <class F>
  static int64_t join(int64_t a, int64_t b, F&& f) { return a < 0 || b < 0 ? -1 : f(a, b); }
  void next() { s_ = s_.substr(1); }

  std::string_view s_;
  const Call& call_;
};

Call::Call(const OpSpec& spec) : spec_(&spec) {
  for (size_t i = 0; i < spec.attrs.size(); ++i) attrs_[i] = spec.attrs[i].fallback;
}

Status Call::error(Code code, const std::string& message) const {
  return Status(code, std::string(spec_->name) + ": " + message);
}

Status Call::bind(std::string_view port, const Tensor& t) {
  for (size_t i = 0; i < spec_->ports.size(); ++i)
    if (port == spec_->ports[i].name) {
      ports_[i] = t;
      return {};
    }
  std::string names;
  for (const Port& p : spec_->ports) names += std::string(names.empty() ? "" : ", ") + p.name;
  return error(Code::kNotFound, "no port '" + std::string(port) + "'; its ports are " + names);
}

Status Call::set(std::string_view attr, double value) {
  for (size_t i = 0; i < spec_->attrs.size(); ++i)
    if (attr == spec_->attrs[i].name) return assign(static_cast<int>(i), value);
  return no_attr(attr);
}

Status Call::set(std::string_view attr, std::string_view value) {
  for (size_t i = 0; i < spec_->attrs.size(); ++i)
    if (attr == spec_->attrs[i].name) return assign(static_cast<int>(i), value);
  return no_attr(attr);
}

Status Call::assign(int i, double value) {
  const Attr& a = spec_->attrs[static_cast<size_t>(i)];
  if (a.kind == AttrKind::choice)
    return error(Code::kInvalidArgument,
                 strf("attribute %s takes one of %s, got the number %g", a.name, a.choices, value));
  if (a.kind == AttrKind::integer && !(value == std::floor(value) && std::fabs(value) <= 0x1p53))
    return error(Code::kInvalidArgument, strf("attribute %s takes an integer, got %g", a.name, value));
  if (a.kind == AttrKind::boolean && value != 0 && value != 1)
    return error(Code::kInvalidArgument, strf("attribute %s takes true or false, got %g", a.name, value));
  if (std::isnan(value)) return error(Code::kInvalidArgument, strf("attribute %s is NaN", a.name));
  attrs_[i] = value;
  return {};
}

Status Call::assign(int i, std::string_view value) {
  const Attr& a = spec_->attrs[static_cast<size_t>(i)];
  if (a.kind != AttrKind::choice)
    return error(Code::kInvalidArgument,
                 strf("attribute %s takes a number, got '%.*s'", a.name, static_cast<int>(value.size()), value.data()));
  const int index = index_in(a.choices, value);
  if (index < 0)
    return error(Code::kInvalidArgument, strf("attribute %s takes one of %s, got '%.*s'", a.name, a.choices,
                                              static_cast<int>(value.size()), value.data()));
  attrs_[i] = index;
  return {};
}

Status Call::no_attr(std::string_view attr) const {
  std::string names;
  for (const Attr& a : spec_->attrs) names += std::string(names.empty() ? "" : ", ") + a.name;
  return error(Code::kNotFound,
               "no attribute '" + std::string(attr) + "'; its attributes are " + (names.empty() ? "none" : names));
}

Status Call::check() {
  bool placed = false;
  for (size_t i = 0; i < spec_->ports.size(); ++i) {
    const Port& p = spec_->ports[i];
    const Tensor& t = ports_[i];
    if (!t.present()) {
      if (p.optional) continue;
      return error(Code::kInvalidArgument, strf("port %s: wanted %s [%s], got nothing", p.name, p.dtypes, p.shape));
    }
    if (Status s = check_port(p, t); !s.ok()) return s;
    if (!placed) place_ = t.place;
    placed = true;
    if (t.place != place_)
      return error(Code::kInvalidDevice,
                   strf("port %s is in %s memory, the ports before it in %s memory", p.name,
                        t.place == Place::host ? "host" : "device", place_ == Place::host ? "host" : "device"));
  }
  if (Status s = bind_dims(); !s.ok()) return s;
  return check_aliasing();
}

Status Call::check_dtype(const Port& p, const Tensor& t) const {
  if (p.rules.dtypes >> static_cast<int>(t.dtype) & 1) return {};
  if (p.rules.dtypes != 0)
    return error(Code::kInvalidDType, strf("port %s: wanted %s, got %s", p.name, p.dtypes, name(t.dtype)));
  size_t i = 0;
  while (spec_->ports[i].key != p.rules.dtype_of) ++i;  // complete() saw that it is there
  if (!ports_[i].present() || ports_[i].dtype == t.dtype) return {};
  return error(Code::kInvalidDType, strf("port %s: wanted the dtype of %s (%s), got %s", p.name, p.dtypes + 1,
                                         name(ports_[i].dtype), name(t.dtype)));
}

Status Call::check_port(const Port& p, const Tensor& t) const {
  if (Status s = check_dtype(p, t); !s.ok()) return s;
  const int rank = p.rules.rank;
  if (t.shape.rank != rank)
    return error(Code::kInvalidShape, strf("port %s: wanted [%s], got %s (rank %d for %d)", p.name, p.shape,
                                           to_string(t.shape).c_str(), t.shape.rank, rank));
  for (int i = 0; i < rank; ++i)  // kernels hold dims in 32 bits
    if (t.shape[i] < 0 || t.shape[i] > INT32_MAX)
      return error(Code::kInvalidShape,
                   strf("port %s: axis %d of %s is not in [0, %d]", p.name, i, to_string(t.shape).c_str(), INT32_MAX));
  const int64_t elements = t.shape.elements();
  if (elements < 0 || elements > INT64_MAX / 8)
    return error(Code::kInvalidShape, strf("port %s: %s overflows", p.name, to_string(t.shape).c_str()));
  if (t.data == nullptr && elements != 0)
    return error(Code::kInvalidArgument, strf("port %s: null data for %s", p.name, to_string(t.shape).c_str()));
  const bool empty = elements == 0;  // nothing is reached through its strides, whatever they say
  if (p.columns && !empty && t.shape[1] > 1 && t.stride[1] != 1) return check_columns(p, t);
  int64_t want = 1;
  for (int i = rank - 1; i >= (rank > 1 ? 1 : 0) && !empty; --i) {
    const bool apart = p.pitched && i == 1 && t.shape[i] > 1;
    if (apart ? t.stride[i] < want || t.stride[i] > INT32_MAX : t.shape[i] != 1 && t.stride[i] != want)
      return error(Code::kInvalidLayout,
                   strf("port %s: axis %d has stride %ld, wanted %s%ld (only %s may be strided); make it contiguous",
                        p.name, i, static_cast<long>(t.stride[i]), apart ? "one in 32 bits of at least " : "",
                        static_cast<long>(want),
                        p.pitched ? "the two outermost axes" : "the outermost of several axes"));
    want = apart ? (t.shape[i] - 1) * t.stride[i] + want : want * t.shape[i];
  }
  if (rank > 1 && t.shape[0] > 1 && !empty && t.stride[0] < want)
    return error(Code::kInvalidLayout, strf("port %s: outermost stride %ld is below the row's %ld elements", p.name,
                                            static_cast<long>(t.stride[0]), static_cast<long>(want)));
  const DTypeInfo d = info(t.dtype);
  if (t.shape[rank - 1] % d.block != 0)
    return error(Code::kInvalidShape, strf("port %s: last axis %ld is no multiple of the %s block, %d", p.name,
                                           static_cast<long>(t.shape[rank - 1]), d.name, d.block));
  if (rank > 1 && t.shape[0] > 1 && !empty && t.stride[0] % d.block != 0)
    return error(Code::kInvalidLayout, strf("port %s: outermost stride %ld is no multiple of the %s block, %d", p.name,
                                            static_cast<long>(t.stride[0]), d.name, d.block));
  return check_alignment(p, t);
}

Status Call::check_columns(const Port& p, const Tensor& t) const {
  const DTypeInfo d = info(t.dtype);
  if (d.block > 1)
    return error(Code::kInvalidLayout, strf("port %s: axis 1 has stride %ld, wanted 1: %s lies row after row", p.name,
                                            static_cast<long>(t.stride[1]), d.name));
  if ((t.shape[0] > 1 && t.stride[0] != 1) || t.stride[1] < t.shape[0])
    return error(Code::kInvalidLayout,
                 strf("port %s: strides [%ld, %ld] of %s are neither of dense rows, [.., 1], nor of dense columns, "
                      "[1, %ld or more]; make it contiguous",
                      p.name, static_cast<long>(t.stride[0]), static_cast<long>(t.stride[1]),
                      to_string(t.shape).c_str(), static_cast<long>(t.shape[0])));
  return check_alignment(p, t);
}

Status Call::check_alignment(const Port& p, const Tensor& t) const {
  const DTypeInfo d = info(t.dtype);
  // Block formats are read by bytes; their natural alignment is that of their f16 scale.
  const uintptr_t align = is_block(t.dtype) ? 2 : static_cast<uintptr_t>(d.bytes);
  if (reinterpret_cast<uintptr_t>(t.data) % align != 0)
    return error(Code::kInvalidLayout, strf("port %s: data is not aligned to %s's %lu bytes", p.name, d.name,
                                            static_cast<unsigned long>(align)));
  return {};
}

bool Call::by_column(Name port) const {
  const Tensor& t = (*this)[port];
  return t.shape[1] > 1 && t.shape.elements() > 0 && t.stride[1] != 1;
}

int64_t Call::pitch(Name port) const {
  const Tensor& t = (*this)[port];
  if (t.shape[1] > 1 && t.shape.elements() > 0) return t.stride[1];
  int64_t row = 1;
  for (int i = 2; i < t.shape.rank; ++i) row *= t.shape[i];
  return row;
}

bool Call::reads_ahead() const {
  for (size_t i = 0; i < spec_->ports.size(); ++i)
    if (spec_->ports[i].ahead && ports_[i].present()) return true;
  return false;
}

int64_t Call::bound(uint64_t symbol) const {
  for (int i = 0; i < dim_count_; ++i)
    if (dims_[i].symbol == symbol) return dims_[i].value;
  return -1;
}

Status Call::mismatch(const Port& p, const Shape& s, int axis, int64_t want) const {
  const std::string_view e = p.rules.dims[axis].text;
  return error(Code::kInvalidShape,
               strf("port %s: wanted [%s] with %.*s = %ld on axis %d, got %s", p.name, p.shape,
                    static_cast<int>(e.size()), e.data(), static_cast<long>(want), axis, to_string(s).c_str()));
}

Status Call::bind_dims() {
  dim_count_ = 0;
  bool more = false;  // expressions, which need all symbols
  for (size_t i = 0; i < spec_->ports.size(); ++i) {
    if (!ports_[i].present()) continue;
    const Port& p = spec_->ports[i];
    const Shape& s = ports_[i].shape;
    for (int axis = 0; axis < s.rank; ++axis) {
      const DimRule& rule = p.rules.dims[axis];
      more |= rule.kind == DimRule::Kind::expression || rule.kind == DimRule::Kind::number;
      if (rule.kind != DimRule::Kind::symbol) continue;
      const int64_t before = bound(rule.symbol);
      if (before >= 0) {
        if (before != s[axis]) return mismatch(p, s, axis, before);
        continue;
      }
      if (dim_count_ == kMaxDims) __builtin_trap();  // the spec itself is too large
      dims_[dim_count_++] = {rule.symbol, s[axis]};
    }
  }
  for (size_t i = 0; i < spec_->ports.size() && more; ++i) {
    if (!ports_[i].present()) continue;
    const Port& p = spec_->ports[i];
    for (int axis = 0; axis < p.rules.rank; ++axis) {
      const DimRule& rule = p.rules.dims[axis];
      if (rule.kind != DimRule::Kind::expression && rule.kind != DimRule::Kind::number) continue;
      const int64_t want = rule.kind == DimRule::Kind::number ? rule.number : DimExpr(rule.text, *this).value();
      if (want >= 0 && want != ports_[i].shape[axis]) return mismatch(p, ports_[i].shape, axis, want);
    }
  }
  return {};
}

namespace {

/// Whether two row-strided views can touch a common byte. Exact when their row pitch agrees (slices
/// of one matrix), else by the whole range.
bool overlap(const Tensor& a, const Tensor& b) {
  const int64_t na = a.span_bytes(), nb = b.span_bytes();
  if (na == 0 || nb == 0) return false;
  const char* pa = static_cast<const char*>(a.data);
  const char* pb = static_cast<const char*>(b.data);
  if (pa + na <= pb || pb + nb <= pa) return false;
  if (a.shape.rank == 0 || b.shape.rank == 0) return true;
  const int64_t pitch_a = row_bytes(a.dtype, a.stride[0]), pitch_b = row_bytes(b.dtype, b.stride[0]);
  if (pitch_a != pitch_b || pitch_a == 0) return true;
  const int64_t row_a = na - (a.shape[0] - 1) * pitch_a, row_b = nb - (b.shape[0] - 1) * pitch_b;
  const int64_t shift = ((pb - pa) % pitch_a + pitch_a) % pitch_a;  // where b's rows start inside a's pitch
  return shift < row_a || shift + row_b > pitch_a;
}

bool same_view(const Tensor& a, const Tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype || !(a.shape == b.shape)) return false;
  for (int i = 0; i < a.shape.rank; ++i)
    if (a.stride[i] != b.stride[i] && a.shape[i] != 1) return false;
  return true;
}

}  // namespace

Status Call::check_aliasing() const {
  for (size_t i = 0; i < spec_->ports.size(); ++i) {
    const Port& p = spec_->ports[i];
    if (p.io == Io::in || !ports_[i].present()) continue;
    for (size_t j = 0; j < spec_->ports.size(); ++j) {
      const Port& q = spec_->ports[j];
      if (j == i || !ports_[j].present() || !overlap(ports_[i], ports_[j])) continue;
      const bool allowed = p.inplace_key == q.key || q.inplace_key == p.key;
      if (allowed && same_view(ports_[i], ports_[j])) continue;
      return error(Code::kAliasError,
                   strf("port %s overlaps port %s; %s", p.name, q.name,
                        allowed ? "in place they must be the same view" : "give it memory of its own"));
    }
  }
  return {};
}

}  // namespace vivace::ops
