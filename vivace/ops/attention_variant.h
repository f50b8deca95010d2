// A user's variant of attention: a struct as C++ text, compiled into the kernels that `attention` runs.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vivace/base/arch.h"
#include "vivace/jit/compiler.h"
#include "vivace/ops/attention.h"
#include "vivace/ops/define.h"

namespace vivace::ops {

/// A tensor or number that a variant's hooks read by name.
struct VariantField {
  std::string name;
  bool tensor;
  DType dtype;  // of a number f32 or i32
};

/// What a call gives for a field.
struct VariantValue {
  Tensor tensor;
  double number = 0;
};

/// What a compile gave, for a role of the call (decode, some tens of queries, prefill).
struct VariantKernel {
  std::string expression;
  jit::BinaryPtr binary;
};

/// Thread-safe once made.
class AttentionVariant {
 public:
  struct Options {
    std::string label;   // stands for the text in errors: "label(3): error: ..."
    std::string text;    // C++ that defines `name`, a struct derived from Variant (kernels/attention/variant.cuh)
    std::string name;
    bool softmax = true;
    std::vector<VariantField> fields;
  };
  /// Checks names, dtypes and that the fields fit. Compiles nothing. Errors: InvalidArgument, InvalidDType.
  static Result<AttentionVariant> create(Options options);

  /// `call` is a checked call of `attention`; one value a field, in order. Compiles at the first use of a tactic.
  /// Errors: those of attention; InvalidDType, InvalidLayout and InvalidPlace of a field's tensor; CompileError shows
  /// the text's own line.
  Status prepare(const Call& call, std::span<const VariantValue> values, const Target& target,
                 exec::Launch* launch) const;

  /// Compiles, without a GPU, what a call like `args` would run on a chip.
  Result<VariantKernel> compile(kernels::AttentionArgs args, Arch arch) const;

  const std::vector<VariantField>& fields() const { return options_.fields; }

 private:
  Status fill(const Call& call, std::span<const VariantValue> values, kernels::AttentionExtra* extra) const;
  Result<AttentionGpu::Key> pick(const kernels::AttentionArgs& args, Arch arch) const;
  jit::Source source(const AttentionGpu::Key& key, Arch arch) const;

  Options options_;
  std::string unit_;   // the translation unit
  std::string entry_;  // C++ name of the struct that kernels take; holds a digest of the text
};

}  // namespace vivace::ops
