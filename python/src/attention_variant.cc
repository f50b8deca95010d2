#include "attention_variant.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "bound_op.h"
#include "errors.h"
#include "gil.h"
#include "runtime.h"
#include "vivace/base/check.h"
#include "vivace/ops/attention_variant.h"

namespace vivace::python {
namespace {

using Field = std::tuple<std::string, bool, std::string>;  // name, whether a tensor, dtype

/// A variant and the face of `attention` that its calls go through.
struct PyVariant {
  ops::AttentionVariant variant;
  std::unique_ptr<BoundOp> op;
};

Result<DType> dtype_of(const std::string& text) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::i32})
    if (text == name(t)) return t;
  return Status(Code::kInvalidDType,
                "attention variant: no extra tensor or number can be '" + text + "'; f32, bf16, f16 and i32 can");
}

Status bind_field(const ops::VariantField& f, nb::handle value, ops::VariantValue* to, Borrowed* from) {
  if (f.tensor) return to_tensor(value.ptr(), false, &to->tensor, from);
  to->number = PyFloat_AsDouble(value.ptr());
  if (to->number == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    return Status(Code::kInvalidArgument, "wanted a number");
  }
  return {};
}

Status call(const PyVariant& v, const nb::kwargs& arguments) {
  ops::Call call(*v.op->row->spec);
  Borrowed from;
  const auto& fields = v.variant.fields();
  std::vector<ops::VariantValue> values(fields.size());
  std::vector<bool> given(fields.size());
  for (auto [key, value] : arguments) {
    const auto text = nb::cast<std::string>(key);
    size_t i = 0;
    while (i < fields.size() && fields[i].name != text) ++i;
    if (i == fields.size()) {
      VV_TRY(v.op->bind_keyword(key.ptr(), value.ptr(), &call, &from));
      continue;
    }
    if (Status s = bind_field(fields[i], value, &values[i], &from); !s.ok())
      return std::move(s).with_context("attention variant: extra " + text);
    given[i] = true;
  }
  for (size_t i = 0; i < fields.size(); ++i)
    if (!given[i]) return Status(Code::kInvalidArgument, "attention variant: extra " + fields[i].name + " is missing");
  VV_TRY(call.check());
  VV_TRY(issue(call, from, [&](ops::Recorder& recorder) {
    return recorder.issue(call, [&](const ops::Call& c, const ops::Target& target, exec::Launch* launch) {
      return v.variant.prepare(c, values, target, launch);
    });
  }));
  if (nb::list* list = capture_keep()) list->append(arguments);
  return {};
}

/// A call for compile(): dense keys, nothing optional.
kernels::AttentionArgs typical(int T, int Hq, int Hkv, int D, int places, DType dtype, DType kv) {
  kernels::AttentionArgs a{};
  a.T = T, a.S = a.B = 1, a.L = places, a.Hq = Hq, a.Hkv = Hkv, a.D = a.Dv = D;
  a.q_stride = a.out_stride = int64_t{Hq} * D, a.k_stride = a.v_stride = int64_t{places} * Hkv * D;
  a.k_pitch = a.v_pitch = Hkv * D;
  a.scale = 1.0f / std::sqrt(static_cast<float>(D)), a.dtype = dtype, a.kv_dtype = kv;
  return a;
}

}  // namespace

void add_attention_variant(nb::module_& m) {
  nb::class_<PyVariant>(m, "AttentionVariant", "Attention with hooks of your own, made by vivace.attention.variant().")
      .def(
          "__call__", [](const PyVariant& v, const nb::kwargs& arguments) { check(call(v, arguments)); },
          "The ports and attributes of ops.attention, and the variant's extra tensors and numbers, all by name.")
      .def(
          "compile",
          [](const PyVariant& v, const std::string& arch, int T, int Hq, int Hkv, int D, int places,
             const std::string& dtype, const std::string& kv_dtype) {
            Result<Arch> chip = Status(Code::kUnsupported, "attention variant: no kernels for chip '" + arch + "'");
            for (const Arch a : kGpuArchs)
              if (arch == name(a)) chip = a;
            check(chip.status());
            if (T < 1 || Hkv < 1 || Hq < 1 || Hq % Hkv != 0 || D < 1 || places < 1)
              check(Status(
                  Code::kInvalidShape,
                  strf("attention variant: T %d, Hq %d, Hkv %d, D %d, places %d: wanted positive, Hq a multiple of Hkv",
                       T, Hq, Hkv, D, places)));
            const Result<DType> q = dtype_of(dtype), kv = kv_dtype == "e4m3"
                                                              ? Result<DType>(DType::e4m3)
                                                              : dtype_of(kv_dtype.empty() ? dtype : kv_dtype);
            check(q.status());
            check(kv.status());
            Result<ops::VariantKernel> made = Status(Code::kInternal, "");
            {
              const NoGil release;
              made = v.variant.compile(typical(T, Hq, Hkv, D, places, *q, *kv), *chip);
            }
            check(made.status());
            const Result<std::string> symbol = made->binary->symbol(made->expression);
            check(symbol.status());
            nb::dict d;
            d["kernel"] = made->expression;
            for (const jit::Resources& r : made->binary->resources)
              if (r.symbol == *symbol)
                d["registers"] = r.registers, d["stack_bytes"] = r.stack_bytes, d["spill_bytes"] = r.spill_stores;
            d["warnings"] = made->binary->warnings;
            return d;
          },
          nb::arg("arch"), nb::arg("T") = 1, nb::arg("Hq") = 8, nb::arg("Hkv") = 8, nb::arg("D") = 128,
          nb::arg("places") = 1024, nb::arg("dtype") = "bf16", nb::arg("kv_dtype") = "",
          "Compiles what such a call would run on a chip (\"sm_90a\"), without a GPU: kernel, registers, spills, "
          "warnings.");
  m.def(
      "attention_variant",
      [](const std::string& label, const std::string& text, const std::string& name, bool softmax,
         const std::vector<Field>& fields) {
        ops::AttentionVariant::Options options{label, text, name, softmax, {}};
        for (const auto& [field, tensor, dtype] : fields) {
          const Result<DType> t = dtype_of(dtype);
          check(t.status());
          options.fields.push_back({field, tensor, *t});
        }
        Result<ops::AttentionVariant> made = ops::AttentionVariant::create(std::move(options));
        check(made.status());
        Result<BoundOp*> op = BoundOp::make(*ops::find("attention"), nullptr);
        check(op.status());
        return new PyVariant{std::move(*made), std::unique_ptr<BoundOp>(*op)};
      },
      nb::arg("label"), nb::arg("text"), nb::arg("name"), nb::arg("softmax"), nb::arg("fields"),
      nb::rv_policy::take_ownership);
}

}  // namespace vivace::python
