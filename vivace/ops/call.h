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

  /// Presence, dtypes, ranks, dims, layout, place and aliasing, in this order; binds the dims.
  /// Every error names the op, the port, what was wanted and what came.
  Status check();

  const OpSpec& spec() const { return *spec_; }
  /// After check(): the port's tensor; a port that is absent has present() == false.
  const Tensor& operator[](const char* port) const { return ports_[port_index(port)]; }
  const Tensor& port_at(int i) const { return ports_[i]; }
  /// The data pointer of a port, nullptr if it is absent.
  template <class T = void>
  T* ptr(const char* port) const { return static_cast<T*>((*this)[port].data); }
  /// Elements between rows of the outermost axis (0 if the port is absent).
  int64_t row_stride(const char* port) const { const Tensor& t = (*this)[port]; return t.shape.rank ? t.stride[0] : 0; }
  int64_t dim(const char* symbol) const;
  double real(const char* attr) const { return attrs_[attr_index(attr)]; }
  int64_t integer(const char* attr) const { return static_cast<int64_t>(real(attr)); }
  bool flag(const char* attr) const { return real(attr) != 0; }
  template <class E>
  E choice(const char* attr) const { return static_cast<E>(static_cast<int>(real(attr))); }
  double attr_at(int i) const { return attrs_[i]; }
  /// Host or device, as all present ports agree.
  Place place() const { return place_; }

  /// "norm: " + message, with the code: for the cross-port rules of an op's own bind().
  Status error(Code code, const std::string& message) const;

 private:
  int port_index(const char* name) const;
  int attr_index(const char* name) const;
  Status no_attr(std::string_view attr) const;
  Status check_port(const Port& p, const Tensor& t) const;
  Status check_dtype(const Port& p, const Tensor& t) const;
  Status bind_dims();
  Status check_aliasing() const;

  const OpSpec* spec_;
  Tensor ports_[kMaxPorts];
  double attrs_[kMaxAttrs] = {};
  struct Dim {
    char symbol[8];
    int64_t value;
  };
  Dim dims_[kMaxDims];
  int dim_count_ = 0;
  Place place_ = Place::host;
  friend class DimExpr;
};

}  // namespace vivace::ops
