#include "vivace/models/decoder/layer_stacks.h"

#include <cmath>

#include "vivace/base/check.h"
#include "vivace/models/layer/stacked.h"
#include "vivace/ops/decode_layers.h"

namespace vivace::models::decoder {
namespace {

Status no(const std::string& why) {
  return Status(Code::kUnsupported, why);
}

}  // namespace

Status may_stack(const DecoderConfig& c, const PrecisionPlan& plan, DType kv_dtype) {
  constexpr uint32_t kOther =
      kPostNorms | kLocalLayers | kExperts | kLayerNorm | kLearnedPositions | kPlainMlp | kVision | kRecurrent;
  if ((c.family->features & kOther) != 0 || c.norm_plus_one || std::string_view(c.family->act) != "silu")
    return no(strf("%s has layers of another kind", c.family->name));
  if (c.rope_style != "half" || c.rope_dims != c.head_dim)
    return no(strf("rotation of %ld of %ld dims, %s", static_cast<long>(c.rope_dims), static_cast<long>(c.head_dim),
                   c.rope_style.c_str()));
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  if (c.attn_scale != 0 && std::fabs(c.attn_scale - scale) > 1e-6 * scale)
    return no(strf("attention scale %g", c.attn_scale));
  if (plan.entry != ActQuant::plain || plan.hidden != DType::bf16)
    return no(strf("precision %s: activations are not bf16", plan.name));
  if (kv_dtype != DType::bf16) return no(strf("the cache is %s", name(kv_dtype)));
  return {};
}

Result<LayerStacks> stack_layers(const DecoderConfig& config, const DecoderWeights& weights,
                                 const StepBuffers& buffers) {
  LayerStacks s;
  const auto of_all = [&](const char* name, auto&& one, DType dtype, Tensor* to) -> Status {
    std::vector<const Tensor*> all;
    for (const LayerWeights& w : weights.layers) all.push_back(one(w));
    VV_ASSIGN(*to, stacked(name, all));
    return to->dtype == dtype ? Status() : no(strf("%s is %s", name, vivace::name(to->dtype)));
  };
  const auto stack = [&](const char* name, Tensor LayerWeights::*weight, DType dtype, Tensor* to) {
    return of_all(name, [&](const LayerWeights& w) { return &(w.*weight); }, dtype, to);
  };
  const DType bf16 = DType::bf16, matrices = weights.layers.front().o.dtype == DType::e4m3 ? DType::e4m3 : bf16;
  const auto matrix = [&](const char* name, Tensor LayerWeights::*weight, engine::Scales LayerWeights::*scale,
                          Tensor* to, Tensor* scales) -> Status {
    VV_TRY(stack(name, weight, matrices, to));
    if (matrices == bf16) return {};
    return of_all(name, [&](const LayerWeights& w) { return &(w.*scale).row; }, DType::f32, scales);
  };
  for (const LayerWeights& w : weights.layers) {
    if (w.o_bias.present() || w.scales_cache()) return no("a bias of o, or a cache with scales");
    if (!w.qkv.present() || !w.gate_up.present()) return no("q, k and v, or gate and up, lie apart");
  }
  VV_TRY(stack("attn_norm", &LayerWeights::attn_norm, bf16, &s.attn_norm));
  VV_TRY(matrix("qkv", &LayerWeights::qkv, &LayerWeights::qkv_scale, &s.qkv, &s.qkv_scale));
  const LayerWeights& first = weights.layers.front();
  if (first.qkv_bias.present()) VV_TRY(stack("qkv_bias", &LayerWeights::qkv_bias, first.qkv_bias.dtype, &s.qkv_bias));
  if (first.q_norm.present()) VV_TRY(stack("q_norm", &LayerWeights::q_norm, bf16, &s.q_norm));
  if (first.k_norm.present()) VV_TRY(stack("k_norm", &LayerWeights::k_norm, bf16, &s.k_norm));
  VV_TRY(matrix("o", &LayerWeights::o, &LayerWeights::o_scale, &s.o, &s.o_scale));
  VV_TRY(stack("mlp_norm", &LayerWeights::mlp_norm, bf16, &s.mlp_norm));
  VV_TRY(matrix("gate_up", &LayerWeights::gate_up, &LayerWeights::gate_up_scale, &s.gate_up, &s.gate_up_scale));
  VV_TRY(matrix("down", &LayerWeights::down, &LayerWeights::down_scale, &s.down, &s.down_scale));
  std::vector<const Tensor*> keys, values;
  for (size_t i = 0; i < static_cast<size_t>(config.layers); ++i)
    keys.push_back(&buffers.k_cache[i]), values.push_back(&buffers.v_cache[i]);
  VV_ASSIGN(s.k_cache, stacked("k_cache", keys));
  VV_ASSIGN(s.v_cache, stacked("v_cache", values));
  return s;
}

int64_t decode_words(const DecoderConfig& c) {
  return ops::defs::decode_layers::words_of(c.hidden, c.q_width(), c.kv_width(), c.mlp);
}

}  // namespace vivace::models::decoder
