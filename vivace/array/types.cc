#include "vivace/array/types.h"

#include "vivace/base/float_types.h"

namespace vivace::array {
namespace {

using kernels::kArithmeticCount;
using kernels::kElemCount;

constexpr const char* kNames[kElemCount] = {"bool", "u8",   "u16",  "u32",  "u64",  "i8",   "i16",  "i32", "i64",
                                            "f16",  "bf16", "f32",  "f64",  "e4m3", "e5m2", "e2m1", "i4",  "q4_0",
                                            "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"};
constexpr int kBytes[kArithmeticCount] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8};

struct Row {
  const char* name;
  int arity;
  Rule rule;
  const char* expression;
};
constexpr Row kRows[] = {
#define UFUNC(name, arity, rule, expression) {#name, arity, Rule::rule, #expression},
#include "vivace/kernels/map/ufuncs.def"
#undef UFUNC
    {"cast", 1, Rule::same, ""},
    {"where", 3, Rule::same, "x ? y : w"},
};
const Row& row(Func f) {
  return kRows[static_cast<int>(f)];
}

Status refuse(const std::string& why) {
  return Status(Code::kInvalidDType, "array: " + why);
}

std::string storage_type(Elem e) {
  return std::string(name(e)) + " stores, and has no arithmetic: cast or dequantize it first";
}

/// Least and greatest of an integer type, as far as 64 bits go.
bool fits(Elem e, int64_t v) {
  switch (e) {
    case Elem::u8:
      return v >= 0 && v <= 255;
    case Elem::u16:
      return v >= 0 && v <= 65535;
    case Elem::u32:
      return v >= 0 && v <= 4294967295;
    case Elem::u64:
      return v >= 0;
    case Elem::i8:
      return v >= -128 && v <= 127;
    case Elem::i16:
      return v >= -32768 && v <= 32767;
    case Elem::i32:
      return v >= -2147483648LL && v <= 2147483647LL;
    default:
      return true;
  }
}

}  // namespace

const char* name(Elem e) {
  return kNames[static_cast<int>(e)];
}

std::optional<Elem> parse_elem(const std::string& text) {
  for (int i = 0; i < kElemCount; ++i)
    if (text == kNames[i]) return static_cast<Elem>(i);
  return {};
}

std::optional<DType> dtype_of(Elem e) {
  DType d;
  const std::string n = name(e);
  if (!parse_dtype(n.data(), n.size(), &d)) return {};
  return d;
}

Elem elem_of(DType d) {
  return *parse_elem(vivace::name(d));
}

int block_of(Elem e) {
  return kernels::has_arithmetic(e) ? 1 : info(*dtype_of(e)).block;
}
int unit_bytes(Elem e) {
  return kernels::has_arithmetic(e) ? kBytes[static_cast<int>(e)] : info(*dtype_of(e)).bytes;
}
int64_t row_bytes(Elem e, int64_t n) {
  return n / block_of(e) * unit_bytes(e);
}

Result<Elem> promote(Elem a, Elem b) {
  for (const Elem e : {a, b})
    if (!kernels::has_arithmetic(e)) return refuse(storage_type(e));
  if (a == b) return a;
  if (a > b) std::swap(a, b);
  if (a == Elem::boolean && kernels::is_integer(b)) return b;
  if (kernels::is_real(a)) return a == Elem::f16 && b == Elem::bf16 ? Elem::f32 : b;
  if (kernels::is_real(b))
    return refuse(
        strf("%s with %s: arrays of integers and floats do not mix; astype() one of them first", name(a), name(b)));
  if (kernels::is_unsigned(a) == kernels::is_unsigned(b)) return b;  // both of one sign, the wider one
  const int ub = unit_bytes(a), sb = unit_bytes(b);                  // a unsigned, b signed
  if (sb > ub) return b;
  if (ub == 8) return refuse(strf("u64 with %s: no integer holds both; astype() one of them first", name(b)));
  return ub == 1 ? Elem::i16 : ub == 2 ? Elem::i32 : Elem::i64;
}

Result<Elem> promote(Elem a, Weak b) {
  if (!kernels::has_arithmetic(a)) return refuse(storage_type(a));
  if (b == Weak::integer && a == Elem::boolean) return Elem::i64;
  if (b == Weak::real && !kernels::is_real(a))
    return refuse(strf("%s with a Python float: astype() the array first, or give an integer", name(a)));
  return a;
}

Result<Scalar> scalar_of(Elem e, bool v) {
  return scalar_of(e, static_cast<int64_t>(v));
}

Result<Scalar> scalar_of(Elem e, int64_t v) {
  Scalar s{};
  if (e == Elem::boolean)
    s.b = v != 0;
  else if (kernels::is_real(e))
    return scalar_of(e, static_cast<double>(v));
  else if (!fits(e, v))
    return Status(Code::kInvalidArgument,
                  strf("array: %lld does not fit %s; astype() the array first", static_cast<long long>(v), name(e)));
  else
    s.i = v;  // little-endian: its low bytes are the value
  return s;
}

Result<Scalar> scalar_of_unsigned(Elem e, uint64_t v) {
  if (v <= INT64_MAX) return scalar_of(e, static_cast<int64_t>(v));
  Scalar s{};
  if (kernels::is_real(e)) return scalar_of(e, static_cast<double>(v));
  if (e == Elem::boolean)
    s.b = true;
  else if (e != Elem::u64)
    return Status(Code::kInvalidArgument, strf("array: %llu does not fit %s; astype() the array first",
                                               static_cast<unsigned long long>(v), name(e)));
  else
    s.u = v;
  return s;
}

Result<Scalar> scalar_of(Elem e, double v) {
  Scalar s{};
  switch (e) {
    case Elem::f64:
      s.d = v;
      break;
    case Elem::f32:
      s.f = static_cast<float>(v);
      break;
    case Elem::f16:
      s.h = f16_of_f32(static_cast<float>(v));
      break;
    case Elem::bf16:
      s.h = bf16_of_f32(static_cast<float>(v));
      break;
    case Elem::boolean:
      s.b = v != 0;
      break;
    default:
      return Status(Code::kInvalidDType,
                    strf("array: a Python float as %s: give an integer, or another dtype", name(e)));
  }
  return s;
}

Result<Signature> signature(Func f, Elem e) {
  if (!kernels::has_arithmetic(e)) return refuse(storage_type(e));
  const Rule r = rule(f);
  if ((r == Rule::real || r == Rule::real_test) && kernels::is_integer(e)) e = Elem::f32;
  if (!kernels::takes(r, e)) {
    const char* wanted = r == Rule::wide                        ? "f32 or f64"
                         : r == Rule::whole                     ? "integers or bool"
                         : r == Rule::shift                     ? "integers"
                         : r == Rule::long_bits                 ? "u64"
                         : r == Rule::truth                     ? "bool (compare first, such as x != 0)"
                         : r == Rule::number || r == Rule::test ? "numbers (astype() the bool first)"
                                                                : "floats";
    return Status(Code::kInvalidDType, strf("array.%s: wanted %s, got %s", name(f), wanted, name(e)));
  }
  return Signature{e, kernels::gives_truth(r) ? Elem::boolean : e};
}

Result<Signature> signature(Func f, std::span<const Kind> operands) {
  const size_t first = f == Func::select ? 1 : 0;
  std::optional<Elem> type;
  for (size_t k = first; k < operands.size(); ++k) {
    if (operands[k].weak != Weak::none) continue;
    if (!type) type = operands[k].elem;
    Result<Elem> both = promote(*type, operands[k].elem);
    if (!both.ok()) return std::move(both).status().with_context(strf("%s", name(f)));
    type = *both;
  }
  for (size_t k = first; k < operands.size(); ++k) {
    const Weak weak = operands[k].weak;
    if (weak == Weak::none) continue;
    if (!type) type = weak == Weak::boolean ? Elem::boolean : weak == Weak::integer ? Elem::i64 : Elem::f32;
    // The exponent and the count of a shift are as free as any scalar; what is real by rule takes any number.
    const bool real = f != Func::select && (rule(f) == Rule::real || rule(f) == Rule::real_test);
    if (real && weak == Weak::real && kernels::is_integer(*type)) type = Elem::f32;
    Result<Elem> both = promote(*type, weak);
    if (!both.ok()) return std::move(both).status().with_context(strf("%s", name(f)));
    type = *both;
  }
  if (f != Func::select) return signature(f, *type);
  if (operands[0].weak == Weak::none && operands[0].elem != Elem::boolean)
    return Status(Code::kInvalidDType,
                  strf("array.where: the condition is %s, wanted bool: compare first", name(operands[0].elem)));
  return Signature{*type, *type};
}

const char* name(Func f) {
  return row(f).name;
}
int arity(Func f) {
  return row(f).arity;
}
Rule rule(Func f) {
  return row(f).rule;
}
const char* expression(Func f) {
  return row(f).expression;
}

std::optional<Func> parse_func(const std::string& text) {
  for (int i = 0; i < kernels::kFuncCount; ++i)
    if (text == kRows[i].name) return static_cast<Func>(i);
  if (text == "where") return Func::select;
  return {};
}

}  // namespace vivace::array
