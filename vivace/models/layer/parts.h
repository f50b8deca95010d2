// Parts of which stacks of transformer layers are made, whatever model they are of.
#pragma once
#include <algorithm>
#include <string>

#include "vivace/engine/arena.h"
#include "vivace/models/layer/precision_plan.h"
#include "vivace/models/layer/quantized_rows.h"

namespace vivace::models {

/// Attention and feed-forward of one stack.
struct Stack {
  int64_t width = 0, layers = 0, mlp = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

/// A layer with layer norms and a feed-forward without a gate.
struct Layer {
  Norm attn_norm, mlp_norm;
  Linear qkv, o, up, down;
};

/// Rows between ops of one stack.
struct StackBuffers : CodeBuffers {
  Tensor hidden, qkv, attended, inner;
  Tensor q, k, v;  // of rows that are turned on their way from qkv to attention
};
/// Of `rows` rows, in 16 bits or, with `plan`, as its products take them.
inline void declare_stack(engine::Arena& arena, const std::string& name, const Stack& s, int64_t rows, DType act,
                          bool turned, StackBuffers* b, const PrecisionPlan* plan = nullptr) {
  const bool eight = plan != nullptr && plan->eight;
  const auto declare = [&](const char* what, Shape shape, Tensor* to) {
    arena.declare(name + "." + what, act, shape, to);
  };
  declare("hidden", Shape(rows, s.width), &b->hidden);
  arena.declare(name + ".normed", eight ? DType::e4m3 : act, Shape(rows, s.width), &b->normed);
  declare("qkv", Shape(rows, s.q_width() + 2 * s.kv_width()), &b->qkv);
  declare("attended", Shape(rows, s.heads, s.head_dim), &b->attended);
  declare("inner", Shape(rows, s.mlp), &b->inner);
  if (turned) {
    declare("q", Shape(rows, s.heads, s.head_dim), &b->q);
    declare("k", Shape(rows, s.kv_heads, s.head_dim), &b->k);
    declare("v", Shape(rows, s.kv_heads, s.head_dim), &b->v);
  }
  if (!eight) return;
  arena.declare(name + ".codes", DType::e4m3, Shape(rows, std::max({s.width, s.q_width(), s.mlp})), &b->quantized);
  if (plan->fixed) return;
  arena.declare(name + ".normed_scale", DType::f32, Shape(rows), &b->normed_scale);
  arena.declare(name + ".codes_scale", DType::f32, Shape(rows), &b->quantized_scale);
}

}  // namespace vivace::models
