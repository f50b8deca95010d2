// Call: one use of an op, tensors bound to ports and values to attributes, checked against the spec.
#pragma once
#include <string_view>

#include "vivace/base/status.h"
#include "vivace/base/tensor.h"
#include "vivace/ops/spec.h"

namespace vivace::ops {

inline constexpr int kMaxDims = 16;

class Call {
 public:
  explicit Call(const OpSpec& spec);

  /// Binding by name. Errors: NotFound names the op and lists its ports or attributes.
  Status bind(std::string_view port, const Tensor& t);
  Status set(std::string_view attr, double value);
  Status set(std::string_view attr, std::string_view choice);
  /// Binding by position in the spec, for callers that resolved the name before.
  void bind_at(int port, const Tensor& t) { ports_[port] = t; }
  void set_at(int attr, double value) { attrs_[attr] = value; }
  /// As set(), for an attribute known by its place.
  Status assign(int attr, double value);
  Status assign(int attr, std::string_view choice);

  /// Presence, dtypes, ranks, dims, layout, place and aliasing, in this order; binds the dims.
  /// Every error names the op, the port, what was wanted and what came.
  Status check();

  const OpSpec& spec() const { return *spec_; }
  /// After check(): the port's tensor; a port that is absent has present() == false.
  const Tensor& operator[](Name port) const { return ports_[port_index(port)]; }
  const Tensor& port_at(int i) const { return ports_[i]; }
  /// The data pointer of a port, nullptr if it is absent.
  template <class T = void>
  T* ptr(Name port) const { return static_cast<T*>((*this)[port].data); }
  /// Elements between rows of the outermost axis (0 if the port is absent).
  int64_t row_stride(Name port) const { const Tensor& t = (*this)[port]; return t.shape.rank ? t.stride[0] : 0; }
  /// Elements between entries of the second axis of a port that pitched() or columns() marks; between dense ones where
  /// there are no two.
  int64_t pitch(Name port) const;
  /// Whether a port that columns() marks lies column after column, pitch() elements apart.
  bool by_column(Name port) const;
  int64_t dim(Name symbol) const {
    for (int i = 0; i < dim_count_; ++i)
      if (dims_[i].symbol == symbol.hash) return dims_[i].value;
    return 0;  // bound only by optional ports that are absent
  }
  double real(Name attr) const { return attrs_[attr_index(attr)]; }
  int64_t integer(Name attr) const { return static_cast<int64_t>(real(attr)); }
  bool flag(Name attr) const { return real(attr) != 0; }
  template <class E>
  E choice(Name attr) const { return static_cast<E>(static_cast<int>(real(attr))); }
  double attr_at(int i) const { return attrs_[i]; }
  /// Host or device, as all present ports agree.
  Place place() const { return place_; }

  /// Whether a port is present that kernels of the op may read ahead of the stream's order.
  bool reads_ahead() const;

  /// "norm: " + message, with the code: for the cross-port rules of an op's own bind().
  Status error(Code code, const std::string& message) const;

 private:
  int port_index(Name name) const {
    for (size_t i = 0; i < spec_->ports.size(); ++i)
      if (spec_->ports[i].key == name.hash) return static_cast<int>(i);
    __builtin_trap();  // an op's own header asked for a port that its spec lacks
  }
  int attr_index(Name name) const {
    for (size_t i = 0; i < spec_->attrs.size(); ++i)
      if (spec_->attrs[i].key == name.hash) return static_cast<int>(i);
    __builtin_trap();  // likewise
  }
  Status no_attr(std::string_view attr) const;
  Status check_port(const Port& p, const Tensor& t) const;
  Status check_columns(const Port& p, const Tensor& t) const;
  Status check_alignment(const Port& p, const Tensor& t) const;
  Status check_dtype(const Port& p, const Tensor& t) const;
  Status bind_dims();
  Status mismatch(const Port& p, const Shape& s, int axis, int64_t want) const;
  /// Value of a dim by the hash of its symbol, or -1.
  int64_t bound(uint64_t symbol) const;
  Status check_aliasing() const;

  const OpSpec* spec_;
  Tensor ports_[kMaxPorts];
  double attrs_[kMaxAttrs] = {};
  struct Dim {
    uint64_t symbol;
    int64_t value;
  };
  Dim dims_[kMaxDims];
  int dim_count_ = 0;
  Place place_ = Place::host;
  friend class DimExpr;
};

}  // namespace vivace::ops
