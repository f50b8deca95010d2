// Names and promotion of element types.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "vivace/base/status.h"
#include "vivace/kernels/map/map.h"

namespace vivace::array {

using kernels::Elem;
using kernels::Func;
using kernels::Rule;
using kernels::Scalar;

/// "u16", "f32", "q4_0": the op table's names, and three more.
const char* name(Elem e);
std::optional<Elem> parse_elem(const std::string& name);
/// The op table's type; none for u16, u32 and u64, which are arrays' alone.
std::optional<DType> dtype_of(Elem e);
Elem elem_of(DType d);
/// Bytes of n elements along a row.
int64_t row_bytes(Elem e, int64_t n);
int block_of(Elem e);  // elements in the smallest addressable unit
int unit_bytes(Elem e);

/// The common type of two arrays: NEP 50 within a kind; f16 with bf16 is f32; bool gives way. Errors: InvalidDType for
/// integers with floats, u64 with signed integers, and storage types, each with the way out.
Result<Elem> promote(Elem a, Elem b);

/// What a Python scalar is: weak, it takes the array's type.
enum class Weak : uint8_t { none, boolean, integer, real };
Result<Elem> promote(Elem a, Weak b);

/// A number of Python as a value of type e. Errors: InvalidArgument where the integer does not fit.
Result<Scalar> scalar_of(Elem e, bool v);
Result<Scalar> scalar_of(Elem e, int64_t v);
Result<Scalar> scalar_of_unsigned(Elem e, uint64_t v);
Result<Scalar> scalar_of(Elem e, double v);

/// What a function computes in, given the promoted type of its operands, and what comes out.
struct Signature {
  Elem compute, result;
};
Result<Signature> signature(Func f, Elem promoted);
/// What an operand is to promotion: of a type, or a value without one.
struct Kind {
  Elem elem = Elem::f32;
  Weak weak = Weak::none;
};
/// The same, of operands: types are promoted first, values follow. The first of `select` is a truth of its own.
Result<Signature> signature(Func f, std::span<const Kind> operands);
const char* name(Func f);
int arity(Func f);
Rule rule(Func f);
std::optional<Func> parse_func(const std::string& name);
/// C++ of the function, over x, y, w.
const char* expression(Func f);

}  // namespace vivace::array
