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

bool bare_symbol(std::string_view e) {
  if (e.empty() || !std::isalpha(static_cast<unsigned char>(e[0]))) return false;
  for (char c : e)
    if (!std::isalnum(static_cast<unsigned char>(c))) return false;
  return true;
}

/// Calls f(axis, expression) for each dim of a port's shape; returns their number.
template <class F>
int for_each_dim(std::string_view shape, F&& f) {
  int axis = 0;
  while (true) {
    const size_t comma = shape.find(',');
    f(axis++, shape.substr(0, comma));
    if (comma == std::string_view::npos) return axis;
    shape = shape.substr(comma + 1);
  }
}

int rank_of(std::string_view shape) { return for_each_dim(shape, [](int, std::string_view) {}); }

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
    for (int i = 0; i < call_.dim_count_; ++i)
      if (word == call_.dims_[i].symbol) return call_.dims_[i].value;
    return -1;
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
  for (size_t i = 0; i < spec_->attrs.size(); ++i) {
    const Attr& a = spec_->attrs[i];
    if (attr != a.name) continue;
    if (a.kind == AttrKind::choice) return error(Code::kInvalidArgument, strf("attribute %s takes one of %s, got the number %g", a.name, a.choices, value));
    if (a.kind == AttrKind::integer && !(value == std::floor(value) && std::fabs(value) <= 0x1p53)) return error(Code::kInvalidArgument, strf("attribute %s takes an integer, got %g", a.name, value));
    if (a.kind == AttrKind::boolean && value != 0 && value != 1) return error(Code::kInvalidArgument, strf("attribute %s takes true or false, got %g", a.name, value));
    if (std::isnan(value)) return error(Code::kInvalidArgument, strf("attribute %s is NaN", a.name));
    attrs_[i] = value;
    return {};
  }
  return no_attr(attr);
}

Status Call::set(std::string_view attr, std::string_view value) {
  for (size_t i = 0; i < spec_->attrs.size(); ++i) {
    const Attr& a = spec_->attrs[i];
    if (attr != a.name) continue;
    if (a.kind != AttrKind::choice) return error(Code::kInvalidArgument, strf("attribute %s takes a number, got '%.*s'", a.name, static_cast<int>(value.size()), value.data()));
    const int index = index_in(a.choices, value);
    if (index < 0) return error(Code::kInvalidArgument, strf("attribute %s takes one of %s, got '%.*s'", a.name, a.choices, static_cast<int>(value.size()), value.data()));
    attrs_[i] = index;
    return {};
  }
  return no_attr(attr);
}

Status Call::no_attr(std::string_view attr) const {
  std::string names;
  for (const Attr& a : spec_->attrs) names += std::string(names.empty() ? "" : ", ") + a.name;
  return error(Code::kNotFound, "no attribute '" + std::string(attr) + "'; its attributes are " + (names.empty() ? "none" : names));
}

int Call::port_index(const char* name) const {
  for (size_t i = 0; i < spec_->ports.size(); ++i)
    if (std::strcmp(spec_->ports[i].name, name) == 0) return static_cast<int>(i);
  __builtin_trap();  // an op's own header asked for a port that its spec lacks
}

int Call::attr_index(const char* name) const {
  for (size_t i = 0; i < spec_->attrs.size(); ++i)
    if (std::strcmp(spec_->attrs[i].name, name) == 0) return static_cast<int>(i);
  __builtin_trap();  // likewise
}

int64_t Call::dim(const char* symbol) const {
  for (int i = 0; i < dim_count_; ++i)
    if (std::strcmp(dims_[i].symbol, symbol) == 0) return dims_[i].value;
  return 0;  // bound only by optional ports that are absent
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
    if (t.place != place_) return error(Code::kInvalidDevice, strf("port %s is in %s memory, the ports before it in %s memory", p.name, t.place == Place::host ? "host" : "device", place_ == Place::host ? "host" : "device"));
  }
  if (Status s = bind_dims(); !s.ok()) return s;
  return check_aliasing();
}

Status Call::check_dtype(const Port& p, const Tensor& t) const {
  if (p.dtypes[0] == '=') {
    const Tensor& other = (*this)[p.dtypes + 1];
    if (!other.present() || other.dtype == t.dtype) return {};
    return error(Code::kInvalidDType, strf("port %s: wanted the dtype of %s (%s), got %s", p.name, p.dtypes + 1, name(other.dtype), name(t.dtype)));
  }
  if (index_in(p.dtypes, name(t.dtype)) >= 0) return {};
  return error(Code::kInvalidDType, strf("port %s: wanted %s, got %s", p.name, p.dtypes, name(t.dtype)));
}

Status Call::check_port(const Port& p, const Tensor& t) const {
  if (Status s = check_dtype(p, t); !s.ok()) return s;
  const int rank = rank_of(p.shape);
  if (t.shape.rank != rank) return error(Code::kInvalidShape, strf("port %s: wanted [%s], got %s (rank %d for %d)", p.name, p.shape, to_string(t.shape).c_str(), t.shape.rank, rank));
  for (int i = 0; i < rank; ++i)  // kernels hold dims in 32 bits
    if (t.shape[i] < 0 || t.shape[i] > INT32_MAX) return error(Code::kInvalidShape, strf("port %s: axis %d of %s is not in [0, %d]", p.name, i, to_string(t.shape).c_str(), INT32_MAX));
  if (t.shape.elements() < 0 || t.shape.elements() > INT64_MAX / 8) return error(Code::kInvalidShape, strf("port %s: %s overflows", p.name, to_string(t.shape).c_str()));
  if (t.data == nullptr && t.shape.elements() != 0) return error(Code::kInvalidArgument, strf("port %s: null data for %s", p.name, to_string(t.shape).c_str()));
  int64_t want = 1;
  for (int i = rank - 1; i >= (rank > 1 ? 1 : 0); --i) {
    if (t.shape[i] != 1 && t.stride[i] != want) return error(Code::kInvalidLayout, strf("port %s: axis %d has stride %ld, wanted %ld (only the outermost of several axes may be strided); make it contiguous", p.name, i, static_cast<long>(t.stride[i]), static_cast<long>(want)));
    want *= t.shape[i];
  }
  if (rank > 1 && t.shape[0] > 1 && t.stride[0] < want) return error(Code::kInvalidLayout, strf("port %s: outermost stride %ld is below the row's %ld elements", p.name, static_cast<long>(t.stride[0]), static_cast<long>(want)));
  const DTypeInfo d = info(t.dtype);
  if (t.shape[rank - 1] % d.block != 0) return error(Code::kInvalidShape, strf("port %s: last axis %ld is no multiple of the %s block, %d", p.name, static_cast<long>(t.shape[rank - 1]), d.name, d.block));
  if (rank > 1 && t.shape[0] > 1 && t.stride[0] % d.block != 0) return error(Code::kInvalidLayout, strf("port %s: outermost stride %ld is no multiple of the %s block, %d", p.name, static_cast<long>(t.stride[0]), d.name, d.block));
  // Block formats are read by bytes; their natural alignment is that of their f16 scale.
  const uintptr_t align = is_block(t.dtype) ? 2 : static_cast<uintptr_t>(d.bytes);
  if (reinterpret_cast<uintptr_t>(t.data) % align != 0) return error(Code::kInvalidLayout, strf("port %s: data is not aligned to %s's %lu bytes", p.name, d.name, static_cast<unsigned long>(align)));
  return {};
}

Status Call::bind_dims() {
  dim_count_ = 0;
  Status failed;
  const auto each = [&](auto&& f) {
    for (size_t i = 0; i < spec_->ports.size() && failed.ok(); ++i)
      if (ports_[i].present())
        for_each_dim(spec_->ports[i].shape, [&](int axis, std::string_view e) {
          if (failed.ok() && e != "?") f(spec_->ports[i], ports_[i].shape, axis, e);
        });
  };
  const auto mismatch = [&](const Port& p, const Shape& s, int axis, std::string_view e, int64_t want) {
    failed = error(Code::kInvalidShape, strf("port %s: wanted [%s] with %.*s = %ld on axis %d, got %s", p.name, p.shape, static_cast<int>(e.size()), e.data(), static_cast<long>(want), axis, to_string(s).c_str()));
  };
  each([&](const Port& p, const Shape& s, int axis, std::string_view e) {
    if (!bare_symbol(e)) return;
    const int64_t bound = DimExpr(e, *this).value();
    if (bound >= 0) {
      if (bound != s[axis]) mismatch(p, s, axis, e, bound);
      return;
    }
    if (dim_count_ == kMaxDims || e.size() >= sizeof(Dim::symbol)) __builtin_trap();  // the spec itself is too large
    Dim& d = dims_[dim_count_++];
    std::memset(d.symbol, 0, sizeof d.symbol);
    std::memcpy(d.symbol, e.data(), e.size());
    d.value = s[axis];
  });
  each([&](const Port& p, const Shape& s, int axis, std::string_view e) {
    if (bare_symbol(e)) return;
    const int64_t want = DimExpr(e, *this).value();
    if (want >= 0 && want != s[axis]) mismatch(p, s, axis, e, want);
  });
  return failed;
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
      const bool allowed = std::strcmp(p.inplace, q.name) == 0 || std::strcmp(q.inplace, p.name) == 0;
      if (allowed && same_view(ports_[i], ports_[j])) continue;
      return error(Code::kAliasError, strf("port %s overlaps port %s; %s", p.name, q.name, allowed ? "in place they must be the same view" : "give it memory of its own"));
    }
  }
  return {};
}

}  // namespace vivace::ops
