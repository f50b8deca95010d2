// What a step reads and writes besides weights: declared in one place, before any memory is reserved.
#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/models/decoder/decoder_model.h"
#include "vivace/ops/attention_gpu.h"

namespace vivace::models::decoder {

void DecoderModel::declare_buffers() {
  const DecoderConfig& c = config_;
  StepBuffers& b = buffers_;
  const int64_t T = limits_.prefill_chunk, R = limits_.max_batch, S = limits_.max_batch, L = limits_.context;
  const auto declare = [this](const char* name, DType dtype, Shape shape, Tensor* t) {
    arena_.declare(name, dtype, shape, t);
  };
  const DType i32 = DType::i32, f32 = DType::f32, act = plan_.hidden;
  // Of one class gated_delta goes token by token, as it does where there are few rows a run (its Gpu::row_class).
  const int64_t runs = c.recurrent_layers() == 0 ? 0 : limits_.one_class ? std::max(S, T / 32 + 1) : S;
  if (config_.drafts) decode_.declare(arena_, "decode", R, R, false, 0, 0, R, InputBlock::Kind::guesses);
  else decode_.declare(arena_, "decode", R, R, false, encoder_ != nullptr ? 1 : 0);
  if (config_.drafts) declare_drafts();
  prompt_.declare(arena_, "prompt", T, R, true, encoder_ != nullptr ? 3 : 0, encoder_ != nullptr ? encoder_->rows() : 0,
                  runs);
  declare("turn", i32, Shape(1), &b.turn);
  declare("counts", i32, Shape(S, c.vocab), &b.counts);
  declare("no_counts", i32, Shape(c.vocab), &b.no_counts);
  if (c.rope_dims > 0) declare("inv_freq", f32, Shape(c.rope_dims / 2), &b.inv_freq);
  if (encoder_ != nullptr) declare("axis", i32, Shape(c.rope_dims / 2), &b.axis);
  if (!c.local.empty()) declare("local_inv_freq", f32, Shape(c.rope_dims / 2), &b.local_inv_freq);
  declare("hidden", act, Shape(T, c.hidden), &b.hidden);
  declare("normed", plan_.eight_in() ? DType::e4m3 : act, Shape(T, c.hidden), &b.normed);
  if (plan_.eight_in() && (c.has(kExperts) || c.recurrent_layers() > 0))
    declare("normed_wide", act, Shape(T, c.hidden), &b.normed_wide);
  declare("qkv", act, Shape(T, qkv_columns(c)), &b.qkv);
  declare("q", act, Shape(T, c.heads, c.head_dim), &b.q);
  declare("attended", act, Shape(T, c.heads, c.head_dim), &b.attended);
  const int64_t shared = weights_.shared_is_expert ? 1 : 0, used = c.experts_used + shared, E = c.experts + shared,
                A = c.has(kExperts) ? T * used : T;  // rows of the MLP
  if (!c.has(kPlainMlp)) declare("gate_up", act, Shape(A, 2 * c.mlp), &b.gate_up);
  declare("mlp", act, Shape(A, c.mlp), &b.mlp);
  if (c.has(kExperts)) {
    declare("route_logits", f32, Shape(T, E), &b.route_logits);
    declare("route_weights", f32, Shape(T, used), &b.route_weights);
    declare("place", i32, Shape(T, used), &b.place);
    declare("token", i32, Shape(A), &b.token);
    declare("offsets", i32, Shape(E + 1), &b.offsets);
    declare("gathered", act, Shape(A, c.hidden), &b.gathered);
    declare("expert_out", act, Shape(A, c.hidden), &b.expert_out);
  }
  if (c.has(kSharedExpert) && shared == 0) {
    declare("shared", act, Shape(T, 2 * c.shared_mlp), &b.shared);
    declare("shared_inner", act, Shape(T, c.shared_mlp), &b.shared_inner);
    declare("shared_open", act, Shape(T, 1), &b.shared_open);
  }
  if (c.recurrent_layers() > 0) {
    declare("conv", act, Shape(T, c.linear.conv_width()), &b.conv);
    declare("delta", act, Shape(T, c.linear.v_width()), &b.delta);
    declare("each_row", i32, Shape((config_.drafts ? std::max(R, T) : R) + 1), &b.each_row);
    declare("state", f32, Shape(S, c.state_width()), &b.state);
    if (limits_.states > 0) declare("kept_state", f32, Shape(limits_.states, c.state_width()), &b.kept_state);
  }
  declare("last", act, Shape(R, c.hidden), &b.last);
  if (plan_.eight_in()) {
    declare("codes", DType::e4m3, Shape(T, std::max({c.q_width(), c.mlp, c.linear.v_width()})), &b.quantized);
    declare("last_quantized", DType::e4m3, Shape(R, c.hidden), &b.last_quantized);
  }
  if (plan_.entry == ActQuant::plain) {
    const int64_t few = std::min(T, kDeferredNormRows);
    declare("normed_scale", f32, Shape(few), &b.normed_scale);
    declare("squares", f32, Shape(few, (c.hidden + 7) / 8), &b.squares);
  }
  if (plan_.entry == ActQuant::per_token) {
    declare("normed_scale", f32, Shape(T), &b.normed_scale);
    declare("quantized_scale", f32, Shape(T), &b.quantized_scale);
  }
  if (plan_.entry == ActQuant::per_token || head_by_row()) declare("last_scale", f32, Shape(R), &b.last_scale);
  if (plan_.entry == ActQuant::per_tensor) declare("site_scale", f32, Shape(site_count(c)), &b.site_scale);
  if (uses_branch(c)) {
    declare("branch", act, Shape(T, c.hidden), &b.branch);
    declare("last_branch", act, Shape(R, c.hidden), &b.last_branch);
  }
  if (options_.logit_bias) {
    declare("bias", f32, Shape(S, c.vocab), &b.bias);
    declare("row_bias", f32, Shape(R, c.vocab), &b.row_bias);
  }
  masks_.declare(arena_, S, c.vocab);
  declare("logits", f32, Shape(R, c.vocab), &b.logits);
  declare("next", i32, Shape(R), &b.next);
  declare("logprob", f32, Shape(R), &b.logprob);
  if (kv_scales_ == KvScales::used) {
    declare("kv_scale", f32, Shape(c.caches(), 2), &b.kv_scale);
    declare("kv_wide", act, Shape(T, 2 * c.kv_width()), &b.kv_wide);
    declare("kv_codes", DType::e4m3, Shape(T, 2 * c.kv_width()), &b.kv_codes);
  }
  if (launches_.empty()) declare("decode_words", i32, Shape(decode_words(c)), &b.decode_words);
  if (kv_dtype_ == act && ops::AttentionGpu::wants_words(S, L, c.kv_heads, c.head_dim))
    declare("attention_words", i32,
            Shape(kernels::AttentionArgs::words_of(T, c.heads, c.kv_heads, c.head_dim)), &b.attention_words);
  pages_.declare(arena_, limits_.max_batch, limits_.context, options_.num_kv_blocks);
  const Shape cache = limits_.pages > 0 ? Shape(limits_.pages, Pages::kPlaces, c.kv_heads, c.head_dim)
                                        : Shape(S, L, c.kv_heads, c.head_dim);
  b.k_cache.resize(static_cast<size_t>(c.caches()));
  b.v_cache.resize(b.k_cache.size());
  for (size_t i = 0; i < b.k_cache.size(); ++i) {
    arena_.declare(strf("k_cache.%zu", i), kv_dtype_, cache, &b.k_cache[i]);
    arena_.declare(strf("v_cache.%zu", i), kv_dtype_, cache, &b.v_cache[i]);
  }
  if (encoder_ != nullptr) encoder_->declare(arena_);
}

}  // namespace vivace::models::decoder
