#include "vivace/models/decoder/quantization_config.h"

#include <string>
#include <string_view>

#include "vivace/base/check.h"

namespace vivace::models::decoder {
namespace {

using engine::JsonValue;

/// FP4 of whoever wrote it has a scale for 16 columns.
Status check_group(const JsonValue& owner) {
  VV_ASSIGN(const int64_t columns, owner.get_int("group_size", 16));
  if (columns == 16) return {};
  return owner.error(Code::kUnsupported, strf("group_size: FP4 with a scale for 16 columns is served, got one for %ld; "
                                              "use a bf16 checkpoint",
                                              static_cast<long>(columns)));
}

/// Whether `owner` has such an array of two, and it is not [128, 128].
Result<bool> other_blocks(const JsonValue& owner, const char* key, bool* there) {
  const auto size = owner.find(key);
  *there = size && !size->is_null();
  if (!*there) return false;
  if (!size->is_array() || size->size() != 2) return true;
  for (const JsonValue n : *size) {
    VV_ASSIGN(const int64_t v, n.as_int());
    if (v != 128) return true;
  }
  return false;
}

/// Weights of a group of float-quantized: 8-bit floats without zero points, of a tensor, a row or a block.
Status check_eight(const JsonValue& weights) {
  VV_ASSIGN(const int64_t bits, weights.get_int("num_bits", 8));
  VV_ASSIGN(const std::string_view type, weights.get_string("type", "int"));
  VV_ASSIGN(const std::string_view strategy, weights.get_string("strategy", "tensor"));
  VV_ASSIGN(const bool symmetric, weights.get_bool("symmetric", true));
  bool blocks = false;
  VV_ASSIGN(const bool other, other_blocks(weights, "block_structure", &blocks));
  if (bits == 8 && type == "float" && symmetric && (strategy == "tensor" || strategy == "channel" ||
                                                    (strategy == "block" && blocks && !other)))
    return {};
  return weights.error(Code::kUnsupported,
                       strf("wanted symmetric 8-bit floats, a scale a tensor, a channel or a block of [128, 128], got "
                            "%ld-bit ",
                            static_cast<long>(bits)) +
                           std::string(type) + ", strategy '" + std::string(strategy) + "'; use a bf16 checkpoint");
}

bool is_eight(std::string_view format) { return format == "float-quantized" || format == "naive-quantized"; }
bool is_four(std::string_view format) { return format == "nvfp4-pack-quantized"; }

/// `format`: of groups that do not say theirs.
Status check_groups(const JsonValue& groups, std::string_view format) {
  for (const JsonValue group : groups) {
    const auto weights = group.find("weights");
    if (!weights || !weights->is_object()) continue;
    VV_ASSIGN(const std::string_view own, group.get_string("format", format));
    if (!is_eight(own) && !is_four(own))
      return group.error(Code::kUnsupported, "format '" + std::string(own) + "' is not served; use a bf16 checkpoint");
    VV_TRY(is_four(own) ? check_group(*weights) : check_eight(*weights));
  }
  return {};
}

/// Rotations of what enters products, which nothing here does.
Status check_transforms(const JsonValue& q) {
  const auto transforms = q.find("transform_config");
  if (!transforms || !transforms->is_object()) return {};
  const auto groups = transforms->find("config_groups");
  if (!groups || groups->is_null() || groups->size() == 0) return {};
  return transforms->error(Code::kUnsupported, "transforms are not served; use a checkpoint without");
}

}  // namespace

Status check_quantization(const JsonValue& q) {
  VV_ASSIGN(const std::string_view method, q.get_string("quant_method", "unknown"));
  VV_ASSIGN(const std::string_view algorithm, q.get_string("quant_algo", "unknown"));
  VV_ASSIGN(const std::string_view format, q.get_string("format", "unknown"));
  VV_ASSIGN(const std::string_view floats, q.get_string("fmt", "e4m3"));
  bool blocks = false;
  VV_ASSIGN(const bool other, other_blocks(q, "weight_block_size", &blocks));
  const bool compressed = method == "compressed-tensors", modelopt = method == "modelopt";
  if ((method == "fp8" && !other && floats == "e4m3") || method == "fbgemm_fp8") return {};
  if (compressed) VV_TRY(check_transforms(q));
  const auto groups = q.find("config_groups"), cache = q.find("kv_cache_scheme");
  const bool grouped = groups && !groups->is_null() && groups->size() > 0;
  if (compressed && format == "dense" && !grouped && cache && cache->is_object()) return {};
  if (modelopt && (algorithm == "FP8" || algorithm == "FP8_PER_CHANNEL_PER_TOKEN")) return {};
  if (modelopt && algorithm == "NVFP4") {
    VV_TRY(check_group(q));
    return grouped ? check_groups(*groups, "nvfp4-pack-quantized") : Status();
  }
  if (compressed && (is_eight(format) || is_four(format) || (format == "mixed-precision" && grouped)))
    return grouped ? check_groups(*groups, format) : Status();
  return Status(Code::kUnsupported,
                "config.json: quantization_config: only fp8 (also with weight_block_size [128, 128]), fbgemm_fp8, "
                "modelopt's FP8, FP8_PER_CHANNEL_PER_TOKEN and NVFP4, and compressed-tensors' float-quantized, "
                "naive-quantized, nvfp4-pack-quantized, mixed-precision of these and dense with a kv_cache_scheme "
                "alone are served, got quant_method '" +
                    std::string(method) + "', quant_algo '" + std::string(algorithm) + "', format '" +
                    std::string(format) + "'; use a GGUF file");
}

}  // namespace vivace::models::decoder
