// UserKernel: launches a user's own kernel with typed, checked arguments.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vivace/base/tensor.h"
#include "vivace/device/kernel.h"

namespace vivace::device {

/// One argument as a caller has it; the kernel's declared type decides what it becomes.
struct UserArg {
  enum Kind : uint8_t { tensor, pointer, integer, real, boolean, bytes } kind = integer;
  const void* data = nullptr;  // tensor, pointer: an address in device memory; bytes: on the host
  size_t size = 0;             // bytes: how many
  DType dtype = DType::f32;    // tensor: element type, checked against the parameter's
  int64_t i = 0;
  double r = 0;

  static UserArg of(const Tensor& t) { return {tensor, t.data, 0, t.dtype}; }
  /// An untyped address; nullptr is allowed.
  static UserArg of_pointer(const void* p) { return {pointer, p}; }
  static UserArg of_integer(int64_t v) { return {integer, nullptr, 0, DType::f32, v}; }
  static UserArg of_real(double v) { return {real, nullptr, 0, DType::f32, 0, v}; }
  static UserArg of_bool(bool v) { return {boolean, nullptr, 0, DType::f32, v}; }
  /// A struct or enum parameter, byte for byte.
  static UserArg of_bytes(const void* p, size_t n) { return {bytes, p, n}; }
};

/// What a parameter's C++ type accepts.
struct UserParam {
  enum Kind : uint8_t { pointer, integer, real, boolean, other } kind = other;
  std::string type;             // "float const*"
  bool is_signed = true;        // integer
  bool any_element = false;     // pointer to void or to a type that no DType stands for
  DType element = DType::f32;   // pointer: what a tensor must hold; real: f16, bf16, f32 or f64
  size_t bytes = 0;
};

/// From the type's spelling. Total: an unknown type is `other` and takes bytes.
UserParam user_param(const std::string& type, size_t bytes);

/// Writes `arg` as `param` wants it to `out` (param.bytes bytes). Errors name the type, what came and,
/// for numbers, the range: InvalidDType, InvalidArgument.
Status convert(const UserParam& param, const UserArg& arg, std::byte* out);

class UserKernel {
 public:
  /// `types`: the declared parameter types in order (jit::parameter_types). The number and sizes are
  /// compared with what the driver says of the loaded code.
  static Result<UserKernel> create(Module module, const std::string& symbol, const std::vector<std::string>& types);

  /// Checks count, types, ranges and that addresses are this device's memory, then launches.
  /// Errors name the parameter by number and type.
  Status launch(const LaunchShape& shape, cu::Stream stream, std::span<const UserArg> args) const;

  const std::vector<UserParam>& params() const { return params_; }
  Kernel& kernel() const { return *kernel_; }

 private:
  Module module_;  // keeps the code loaded
  Kernel* kernel_ = nullptr;
  std::vector<UserParam> params_;
};

}  // namespace vivace::device
