#include "vivace/device/user_kernel.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "vivace/base/float_types.h"

namespace vivace::device {
namespace {

constexpr size_t kMaxUserParams = 64;

struct ScalarRow {
  const char* type;
  UserParam::Kind kind;
  bool is_signed;
  DType element;  // of a tensor that a pointer to this type takes
};
constexpr ScalarRow kScalars[] = {
    {"bool", UserParam::boolean, false, DType::boolean},
    {"char", UserParam::integer, true, DType::i8},
    {"signed char", UserParam::integer, true, DType::i8},
    {"unsigned char", UserParam::integer, false, DType::u8},
    {"short", UserParam::integer, true, DType::i16},
    {"int", UserParam::integer, true, DType::i32},
    {"long", UserParam::integer, true, DType::i64},
    {"long long", UserParam::integer, true, DType::i64},
    {"float", UserParam::real, true, DType::f32},
    {"double", UserParam::real, true, DType::f64},
    {"__half", UserParam::real, true, DType::f16},
    {"__nv_bfloat16", UserParam::real, true, DType::bf16},
};
// No DType is unsigned above 8 bits: as parameters they are integers, behind a pointer any tensor fits.
constexpr const char* kUnsigned[] = {"unsigned short", "unsigned int", "unsigned long", "unsigned long long"};

const ScalarRow* scalar(const std::string& type) {
  for (const ScalarRow& row : kScalars)
    if (type == row.type) return &row;
  return nullptr;
}

std::string without(std::string s, const std::string& word) {
  for (size_t at = s.find(word); at != std::string::npos; at = s.find(word)) s.erase(at, word.size());
  return s;
}

const char* kind_name(UserArg::Kind k) {
  constexpr const char* names[] = {"a tensor", "an address", "an integer", "a float", "a bool", "bytes"};
  return names[k];
}

Status wrong_kind(const UserParam& p, const UserArg& a) {
  return Status(Code::kInvalidArgument,
                strf("parameter of type %s does not take %s", p.type.c_str(), kind_name(a.kind)));
}

Status put_integer(const UserParam& p, int64_t v, std::byte* out) {
  const int bits = static_cast<int>(p.bytes) * 8;
  const bool wide = bits >= 64;
  const int64_t low = !p.is_signed ? 0 : wide ? std::numeric_limits<int64_t>::min() : -(int64_t{1} << (bits - 1));
  const int64_t high = wide ? std::numeric_limits<int64_t>::max() : (int64_t{1} << (p.is_signed ? bits - 1 : bits)) - 1;
  if (v < low || v > high)
    return Status(Code::kInvalidArgument,
                  strf("%lld does not fit %s, which holds %lld to %lld", static_cast<long long>(v), p.type.c_str(),
                       static_cast<long long>(low), static_cast<long long>(high)));
  std::memcpy(out, &v, p.bytes);  // little-endian: the low bytes
  return Status();
}

Status put_real(const UserParam& p, double v, std::byte* out) {
  const float f = static_cast<float>(v);
  if (p.element != DType::f64 && std::isfinite(v) && !std::isfinite(f))
    return Status(Code::kInvalidArgument, strf("%g does not fit %s", v, p.type.c_str()));
  const uint16_t half = p.element == DType::f16 ? f16_of_f32(f) : bf16_of_f32(f);
  if (p.element == DType::f64) std::memcpy(out, &v, sizeof(v));
  else if (p.element == DType::f32) std::memcpy(out, &f, sizeof(f));
  else std::memcpy(out, &half, sizeof(half));
  return Status();
}

}  // namespace

UserParam user_param(const std::string& type, size_t bytes) {
  UserParam p;
  p.type = type;
  p.bytes = bytes;
  const std::string plain = without(without(without(type, " const"), " volatile"), " restrict");
  if (!plain.empty() && plain.back() == '*') {
    p.kind = UserParam::pointer;
    const ScalarRow* row = scalar(plain.substr(0, plain.size() - 1));
    p.any_element = row == nullptr;
    if (row != nullptr) p.element = row->element;
    return p;
  }
  if (const ScalarRow* row = scalar(plain)) {
    p.kind = row->kind;
    p.is_signed = row->is_signed;
    p.element = row->element;
  }
  for (const char* name : kUnsigned)
    if (plain == name) {
      p.kind = UserParam::integer;
      p.is_signed = false;
    }
  return p;
}

Status convert(const UserParam& p, const UserArg& a, std::byte* out) {
  switch (p.kind) {
    case UserParam::pointer:
      if (a.kind != UserArg::tensor && a.kind != UserArg::pointer) return wrong_kind(p, a);
      if (a.kind == UserArg::tensor && !p.any_element && a.dtype != p.element)
        return Status(Code::kInvalidDType, strf("parameter of type %s wants a tensor of %s, %s came", p.type.c_str(),
                                                name(p.element), name(a.dtype)));
      std::memcpy(out, &a.data, sizeof(a.data));
      return Status();
    case UserParam::integer: return a.kind == UserArg::integer ? put_integer(p, a.i, out) : wrong_kind(p, a);
    case UserParam::real:
      if (a.kind == UserArg::integer) return put_real(p, static_cast<double>(a.i), out);
      return a.kind == UserArg::real ? put_real(p, a.r, out) : wrong_kind(p, a);
    case UserParam::boolean:
      if (a.kind != UserArg::boolean) return wrong_kind(p, a);
      *out = static_cast<std::byte>(a.i != 0);
      return Status();
    case UserParam::other:
      if (a.kind != UserArg::bytes) return wrong_kind(p, a);
      if (a.size != p.bytes)
        return Status(Code::kInvalidArgument,
                      strf("parameter of type %s has %zu bytes, %zu came", p.type.c_str(), p.bytes, a.size));
      std::memcpy(out, a.data, a.size);
      return Status();
  }
  return Status(Code::kInternal, "unknown parameter kind");
}

Result<UserKernel> UserKernel::create(Module module, const std::string& symbol, const std::vector<std::string>& types) {
  UserKernel u;
  VV_ASSIGN(u.kernel_, module.kernel(symbol));
  u.module_ = std::move(module);
  if (types.size() != static_cast<size_t>(u.kernel_->param_count) || types.size() > kMaxUserParams)
    return Status(Code::kInvalidArgument, strf("%s has %d parameters, %zu types were given; at most %zu are possible",
                                               symbol.c_str(), u.kernel_->param_count, types.size(), kMaxUserParams));
  for (size_t i = 0; i < types.size(); ++i) {
    size_t offset = 0, bytes = 0;
    VV_CU(cuKernelGetParamInfo, u.kernel_->handle, i, &offset, &bytes);
    u.params_.push_back(user_param(types[i], bytes));
    if (u.params_[i].kind == UserParam::pointer) VV_CHECK_EQ(kInvalidArgument, bytes, sizeof(void*));
  }
  return u;
}

Status UserKernel::launch(const LaunchShape& shape, cu::Stream stream, std::span<const UserArg> args) const {
  const char* who = kernel_->name.c_str();
  if (args.size() != params_.size())
    return Status(Code::kInvalidArgument, strf("%s takes %zu arguments, %zu came", who, params_.size(), args.size()));
  alignas(16) std::byte storage[kMaxParamBytes];
  void* pointers[kMaxUserParams + 1] = {};
  size_t at = 0;
  for (size_t i = 0; i < args.size(); ++i) {
    const UserParam& p = params_[i];
    at = (at + 15) / 16 * 16;  // any type's alignment
    if (at + p.bytes > kMaxParamBytes)
      return Status(Code::kLimitExceeded,
                    strf("%s: its arguments exceed %zu bytes at argument %zu", who, kMaxParamBytes, i));
    Status s = convert(p, args[i], storage + at);
    if (s.ok() && p.kind == UserParam::pointer && args[i].data != nullptr) {
      const Result<int> where = device_of(args[i].data);
      if (!where.ok()) s = where.status();
      else if (*where != kernel_->device->info().ordinal)
        s = Status(Code::kInvalidDevice, strf("the address is on device %d, the kernel on device %d", *where,
                                              kernel_->device->info().ordinal));
    }
    if (!s.ok()) return std::move(s).with_context(strf("%s, argument %zu", who, i));
    pointers[i] = storage + at;
    at += p.bytes;
  }
  return launch_params(*kernel_, shape, stream, pointers);
}

}  // namespace vivace::device
