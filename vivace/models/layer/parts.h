// Parts of which stacks of transformer layers are made, whatever model they are of.
#pragma once
#include <string>

#include "vivace/engine/arena.h"
#include "vivace/models/layer/layer_ops.h"

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
struct StackBuffers {
  Tensor hidden, normed, qkv, q, k, v, attended, inner;
};
inline void declare_stack(engine::Arena& arena, const std::string& name, const Stack& s, int64_t rows, DType act,
                          StackBuffers* b) {
  const auto declare = [&](const char* what, Shape shape, Tensor* to) {
    arena.declare(name + "." + what, act, shape, to);
  };
  declare("hidden", Shape(rows, s.width), &b->hidden);
  declare("normed", Shape(rows, s.width), &b->normed);
  declare("qkv", Shape(rows, s.q_width() + 2 * s.kv_width()), &b->qkv);
  declare("q", Shape(rows, s.heads, s.head_dim), &b->q);
  declare("k", Shape(rows, s.kv_heads, s.head_dim), &b->k);
  declare("v", Shape(rows, s.kv_heads, s.head_dim), &b->v);
  declare("attended", Shape(rows, s.heads, s.head_dim), &b->attended);
  declare("inner", Shape(rows, s.mlp), &b->inner);
}

}  // namespace vivace::models
