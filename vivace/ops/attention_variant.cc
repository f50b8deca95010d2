#include "vivace/ops/attention_variant.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "vivace/base/check.h"
#include "vivace/base/sha256.h"
#include "vivace/ops/kernel_store.h"

namespace vivace::ops {
namespace {

bool is_identifier(const std::string& s) {
  if (s.empty() || (s[0] >= '0' && s[0] <= '9') || s.find("__") != std::string::npos) return false;
  for (const char c : s)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_')) return false;
  return true;
}

/// Whether the text may define a hook of this name: what it cannot miss is "name(".
bool mentions(const std::string& text, const std::string& hook) {
  for (size_t at = text.find(hook); at != std::string::npos; at = text.find(hook, at + 1)) {
    size_t end = at + hook.size();
    while (end < text.size() && (text[end] == ' ' || text[end] == '\n' || text[end] == '\t')) ++end;
    if (end < text.size() && text[end] == '(') return true;
  }
  return false;
}

constexpr size_t kTensorBytes = sizeof(kernels::AttentionExtraTensor);

size_t bytes_of(const VariantField& f) { return f.tensor ? kTensorBytes : 4; }

}  // namespace

Result<AttentionVariant> AttentionVariant::create(Options options) {
  const auto wrong = [&](Code code, const std::string& why) {
    return Status(code, "attention variant " + options.label + ": " + why);
  };
  if (!is_identifier(options.name))
    return wrong(Code::kInvalidArgument, "the struct's name '" + options.name + "' is no C++ identifier");
  if (options.text.find('\0') != std::string::npos) return wrong(Code::kInvalidArgument, "the text holds a zero byte");
  std::set<std::string> names;
  size_t bytes = 0;
  for (const VariantField& f : options.fields) {
    if (!is_identifier(f.name)) return wrong(Code::kInvalidArgument, "extra '" + f.name + "' is no C++ identifier");
    if (!names.insert(f.name).second) return wrong(Code::kInvalidArgument, "extra '" + f.name + "' is there twice");
    const bool fits =
        f.tensor ? f.dtype == DType::f32 || f.dtype == DType::bf16 || f.dtype == DType::f16 || f.dtype == DType::i32
                 : f.dtype == DType::f32 || f.dtype == DType::i32;
    if (!fits)
      return wrong(Code::kInvalidDType,
                   strf("extra '%s' is %s; tensors may be f32, bf16, f16 or i32, numbers f32 or i32", f.name.c_str(),
                        vivace::name(f.dtype)));
    bytes += bytes_of(f);
  }
  if (bytes > kernels::AttentionExtra::kBytes)
    return wrong(Code::kLimitExceeded, strf("extra takes %zu bytes (a tensor %zu, a number 4), %d are there", bytes,
                                            kTensorBytes, kernels::AttentionExtra::kBytes));

  AttentionVariant v;
  // Tensors first: 8-byte alignment without gaps.
  std::string fields;
  for (const bool tensors : {true, false})
    for (const VariantField& f : options.fields)
      if (f.tensor == tensors)
        fields += strf(f.tensor ? "  vivace::kernels::ExtraTensor<%s> %s;\n" : "  %s %s;\n", type_name(f.dtype),
                       f.name.c_str());
  const std::string body = "struct Extra {\n" + fields + "};\n#line 1 \"" + options.label + "\"\n" + options.text +
                           "\n#line 1 \"after the end of " + options.label + "\"\n" + "struct Entry : " + options.name +
                           strf(" { static constexpr bool kSoftmax = %s; };\n", options.softmax ? "true" : "false");
  const std::string space = "variant_" + hex(sha256(body)).substr(0, 16);
  v.unit_ = strf(
                "#include \"%s\"\nnamespace %s {\nusing namespace vivace::kernels::expression;\nusing At = "
                "vivace::kernels::AttentionAt;\n"
                "using Variant = vivace::kernels::AttentionVariant;\n",
                AttentionGpu::kHeader, space.c_str()) +
            body + "}\n";
  v.entry_ = space + "::Entry";
  v.options_ = std::move(options);
  return v;
}

Status AttentionVariant::fill(const Call& call, std::span<const VariantValue> values,
                              kernels::AttentionExtra* extra) const {
  VV_CHECK_EQ(kInternal, values.size(), options_.fields.size());
  unsigned char* to = extra->bytes;
  for (const bool tensors : {true, false})
    for (size_t i = 0; i < values.size(); ++i) {
      const VariantField& f = options_.fields[i];
      if (f.tensor != tensors) continue;
      const Tensor& t = values[i].tensor;
      const auto wrong = [&](Code code, const std::string& why) {
        return Status(code, "attention variant " + options_.label + ": extra " + f.name + ": " + why);
      };
      if (f.tensor) {
        if (t.dtype != f.dtype)
          return wrong(Code::kInvalidDType, strf("wanted %s, got %s", vivace::name(f.dtype), vivace::name(t.dtype)));
        if (t.place != call.place())
          return wrong(Code::kInvalidDevice, "it is not in the memory that the call's tensors are in");
        if (t.shape.rank > 3 || !t.is_dense())
          return wrong(Code::kInvalidLayout, strf("wanted up to 3 axes, dense, got %d", t.shape.rank));
        kernels::AttentionExtraTensor e{t.data, {1, 1, 1}};
        for (int d = 0; d < t.shape.rank; ++d) {
          if (t.shape.dim[d] > INT32_MAX) return wrong(Code::kInvalidShape, "an axis is above 2^31 - 1");
          e.dim[d] = static_cast<int32_t>(t.shape.dim[d]);
        }
        std::memcpy(to, &e, sizeof(e));
      } else if (f.dtype == DType::i32) {
        const double x = values[i].number;
        if (!(x >= INT32_MIN && x <= INT32_MAX && x == std::floor(x)))
          return wrong(Code::kInvalidArgument, strf("wanted an integer of 32 bits, got %g", x));
        const auto n = static_cast<int32_t>(x);
        std::memcpy(to, &n, 4);
      } else {
        const auto x = static_cast<float>(values[i].number);
        std::memcpy(to, &x, 4);
      }
      to += bytes_of(f);
    }
  return {};
}

Result<AttentionGpu::Key> AttentionVariant::pick(const kernels::AttentionArgs& args, Arch arch) const {
  // A query or key that changes on its way goes through registers, which the warpgroups' copies do not.
  const bool edits = mentions(options_.text, "query") || mentions(options_.text, "key");
  VV_ASSIGN(AttentionGpu::Key key, AttentionGpu::general(args, edits && chip(arch).wgmma ? Arch::sm89 : arch));
  constexpr int kVariantKeys =
      64;  // hooks are unrolled over a block's keys: half of them compile in half the time, and nothing spills
  const bool prefill = AttentionGpu::role(args) == AttentionGpu::Role::prefill;
  const bool tiles = key.kind != AttentionGpu::Kind::plain;
  if (tiles && prefill && !edits && AttentionGpu::can_prefill_tma(args, arch) &&
      AttentionGpu::can_use_tma(args, kVariantKeys, arch))
    key.set(AttentionGpu::prefill_tma(args));
  if (tiles && key.tile.wgmma) key.tile.keys = std::min(key.tile.keys, kVariantKeys);
  return key;
}

jit::Source AttentionVariant::source(const AttentionGpu::Key& key, Arch arch) const {
  const std::string expression = AttentionGpu::instance(key, entry_);
  return {options_.label, unit_, {expression}, {}, arch};
}

Status AttentionVariant::prepare(const Call& call, std::span<const VariantValue> values, const Target& target,
                                 exec::Launch* launch) const {
  if (target.device == nullptr)
    return Status(Code::kUnsupported,
                  "attention variant " + options_.label + ": variants of C++ text run on a GPU; give device tensors");
  kernels::AttentionArgs args{};
  VV_TRY(defs::attention::bind(call, &args));
  if (!options_.softmax && (args.lse != nullptr || args.sinks != nullptr))
    return call.error(Code::kInvalidArgument,
                      "ports lse and sinks belong to the softmax, which this variant does without");
  if (args.words() != nullptr)
    return call.error(Code::kInvalidArgument, "port words belongs to a kernel that serves no variant");
  VV_TRY(fill(call, values, &args.extra));
  VV_ASSIGN(const AttentionGpu::Key key, pick(args, target.arch()));
  VV_ASSIGN(launch->kernel, load_kernel(*target.device, source(key, target.arch())));
  launch->op = "attention";
  launch->set_args(args);
  AttentionGpu::shape(args, key, launch);
  return AttentionGpu::complete(args, key, target, launch);
}

Result<VariantKernel> AttentionVariant::compile(kernels::AttentionArgs args, Arch arch) const {
  VV_ASSIGN(const AttentionGpu::Key key, pick(args, arch));
  VV_ASSIGN(jit::Compiler* const all, compiler());
  const jit::Source unit = source(key, arch);
  VV_ASSIGN(jit::BinaryPtr binary, all->get(unit));
  return VariantKernel{unit.expressions[0], std::move(binary)};
}

}  // namespace vivace::ops
