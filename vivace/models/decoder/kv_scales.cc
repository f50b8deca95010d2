#include "vivace/models/decoder/kv_scales.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>

#include "vivace/base/check.h"
#include "vivace/cpu/convert.h"
#include "vivace/engine/registry.h"

namespace vivace::models::decoder {
namespace {

using engine::Checkpoint;
using engine::TensorEntry;

constexpr const char* kKeys[] = {"k_scale", "attn.k_scale", "k_proj.k_scale", "k_proj.output_scale", "kv_scale"};
constexpr const char* kValues[] = {"v_scale", "attn.v_scale", "v_proj.v_scale", "v_proj.output_scale", "kv_scale"};

/// What names of a layer's attention begin with; layer number config.layers is that of drafts.
std::string attention_of(const Checkpoint& checkpoint, const DecoderConfig& c, int64_t layer) {
  if (layer == c.layers) return "mtp.layers.0.self_attn.";
  const long i = static_cast<long>(layer);
  if (c.has(kFusedQkv))
    return strf("%sh.%ld.attn.", checkpoint.find("transformer.wte.weight") != nullptr ? "transformer." : "", i);
  return strf("model.%slayers.%ld.self_attn.", c.has(kNested) ? "language_model." : "", i);
}

/// The one tensor of these names, or null.
Result<const TensorEntry*> one_of(const Checkpoint& checkpoint, const std::string& attention,
                                  std::span<const char* const> names) {
  const TensorEntry* found = nullptr;
  for (const char* name : names) {
    const TensorEntry* const e = checkpoint.find(attention + name);
    if (e != nullptr && found != nullptr)
      return Status(Code::kCorruptData, "tensors " + found->name + " and " + e->name + " are both there: wanted one");
    if (e != nullptr) found = e;
  }
  return found;
}

/// That of all heads. A list of one a head is that where all are equal: codes of heads are made by one scale.
Result<float> value_of(const Checkpoint& checkpoint, const TensorEntry& e, int64_t heads) {
  const int64_t n = e.shape.elements();
  if (n != 1 && (n != heads || e.shape[0] != heads))
    return Status(Code::kInvalidShape,
                  "tensor " + e.name + ": wanted one scale of all heads, [1], got " + to_string(e.shape));
  VV_ASSIGN(const std::vector<float> values, positive_scales(checkpoint, e));
  for (int64_t i = 1; i < n; ++i)
    if (values[static_cast<size_t>(i)] != values[0])
      return Status(Code::kUnsupported,
                    "tensor " + e.name + strf(": heads 0 and %ld have scales %g and %g; an e4m3 cache has one scale of "
                                              "all heads of a layer; load with kv_dtype auto",
                                              static_cast<long>(i), static_cast<double>(values[0]),
                                              static_cast<double>(values[static_cast<size_t>(i)])));
  return values[0];
}

/// Scales of integers, or of FP4, would be read as if they were e4m3's.
Status check_scheme(const Checkpoint& checkpoint) {
  VV_ASSIGN(const engine::Json json, engine::hub_config(checkpoint));
  const engine::JsonValue whole = json.root();
  std::optional<engine::JsonValue> q = whole.find("quantization_config");
  if (const auto text = whole.find("text_config"); (!q || q->is_null()) && text && text->is_object())
    q = text->find("quantization_config");
  if (!q || !q->is_object()) return {};
  const auto refused = [&](const std::string& got) {
    return q->error(Code::kUnsupported,
                    "scales of a cache of 8-bit floats (e4m3) are read, got " + got + "; load with kv_dtype auto");
  };
  VV_ASSIGN(const std::string_view algorithm, q->get_string("kv_cache_quant_algo", "FP8"));
  if (algorithm != "FP8") return refused("kv_cache_quant_algo '" + std::string(algorithm) + "'");
  const auto scheme = q->find("kv_cache_scheme");
  if (!scheme || !scheme->is_object()) return {};
  VV_ASSIGN(const std::string_view type, scheme->get_string("type", "float"));
  VV_ASSIGN(const int64_t bits, scheme->get_int("num_bits", 8));
  if (type == "float" && bits == 8) return {};
  return refused(strf("kv_cache_scheme of %ld-bit ", static_cast<long>(bits)) + std::string(type));
}

}  // namespace

Result<std::vector<float>> positive_scales(const Checkpoint& checkpoint, const TensorEntry& e) {
  if (e.dtype != DType::f32 && e.dtype != DType::bf16 && e.dtype != DType::f16)
    return Status(Code::kUnsupported, "tensor " + e.name + ": wanted f32, bf16 or f16, got " + name(e.dtype));
  const int64_t n = e.shape.elements();
  std::vector<std::byte> aligned(e.bytes);  // where the file's bytes need not be
  std::memcpy(aligned.data(), checkpoint.tensor(e).data, e.bytes);
  std::vector<float> values(static_cast<size_t>(n));
  cpu::load_f32(aligned.data(), e.dtype, 0, n, values.data());
  for (const float value : values)
    if (!(value > 0 && std::isfinite(value)))
      return Status(Code::kCorruptData,
                    "tensor " + e.name + strf(": wanted a positive finite scale, got %g", static_cast<double>(value)));
  return values;
}

Result<KvScales> read_kv_scales(const Checkpoint& checkpoint, const DecoderConfig& c, DType cache,
                                DecoderWeights* weights) {
  std::vector<std::pair<int64_t, LayerWeights*>> layers;  // that attend
  for (int64_t i = 0; i < c.layers; ++i)
    if (!c.is_recurrent(static_cast<size_t>(i))) layers.emplace_back(i, &weights->layers[static_cast<size_t>(i)]);
  if (c.drafts) layers.emplace_back(c.layers, &weights->draft.layer);
  const LayerWeights* first = nullptr;  // that has scales
  for (const auto& [i, w] : layers) {
    const std::string attention = attention_of(checkpoint, c, i);
    const auto there = [&](const char* name) { return checkpoint.find(attention + name) != nullptr; };
    if (cache != DType::e4m3) {
      if (std::any_of(std::begin(kKeys), std::end(kKeys), there) ||
          std::any_of(std::begin(kValues), std::end(kValues), there))
        return KvScales::unread;
      continue;
    }
    VV_ASSIGN(const TensorEntry* const k, one_of(checkpoint, attention, kKeys));
    VV_ASSIGN(const TensorEntry* const v, one_of(checkpoint, attention, kValues));
    if (k == nullptr && v == nullptr && (first == nullptr || i == c.layers)) continue;
    if (first == nullptr) VV_TRY(check_scheme(checkpoint));
    const bool late = first == nullptr && w != layers.front().second && i != c.layers;
    if (k == nullptr || v == nullptr || late)
      return Status(
          Code::kNotFound,
          "scales of an e4m3 cache: " + attention + (k == nullptr || v != nullptr ? "k_scale" : "v_scale") +
              (late && k != nullptr && v != nullptr ? " is there, and not those of layers before it" : " is missing") +
              "; all layers that attend have both or none; load with kv_dtype auto");
    first = w;
    VV_ASSIGN(w->k_scale, value_of(checkpoint, *k, c.kv_heads));
    VV_ASSIGN(w->v_scale, value_of(checkpoint, *v, c.kv_heads));
  }
  return first != nullptr ? KvScales::used : KvScales::none;
}

}  // namespace vivace::models::decoder
