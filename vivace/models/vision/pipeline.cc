#include "vivace/models/vision/pipeline.h"

#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/ops/rope_freqs.h"

namespace vivace::models::vision {
namespace {

constexpr double kEps = 1e-6;     // of layer norms
constexpr double kTheta = 10000;  // of the rotation by lines and columns

class GraphBuilder : private StackRecorder {
 public:
  GraphBuilder(ops::Recorder& rec, const VisionContext& context)
      : StackRecorder(rec, kEps, context.show, context.gates, context.act_scales, context.enters),
        c_(context.config),
        w_(context.weights),
        b_(context.buffers) {}

  Status record(const VisionInputs& in, const Tensor& tokens, std::span<const Tensor> levels) {
    const StackBuffers& b = b_.stack;
    op_.rows = in.patches;
    const double side = static_cast<double>(c_.patch);
    VV_TRY(point());
    VV_TRY(rec_(ops::im2col,
                {{"x", in.pixels},
                 {"scale", b_.pixel_scale},
                 {"offset", b_.pixel_offset},
                 {"out", b_.patches},
                 {"rows", op_.rows}},
                {{"kernel_h", side}, {"kernel_w", side}, {"stride_h", side}, {"stride_w", side}, {"order", "chw"}}));
    if (show_) {
      const Tensor embedded = as(b.qkv, b.hidden.shape);
      VV_TRY(op_.linear({b_.patches}, w_.patches, embedded));
      VV_TRY(show("patch_embed", -1, embedded));
    }
    VV_TRY(op_.linear({b_.patches}, w_.patches, b.hidden, {.residual = b_.positions}));
    const Ragged images{in.image, in.image_offsets, {}};
    size_t level = 0;
    for (size_t i = 0; i < w_.layers.size(); ++i) {
      const Layer& l = w_.layers[i];
      VV_TRY(point());
      const auto place = static_cast<int64_t>(4 * i);
      Rows entering;
      VV_TRY(in_.norm(b, b.hidden, layer_norm(l.attn_norm), place, &entering));
      VV_TRY(op_.linear(entering, l.qkv, b.qkv));
      VV_TRY(rec_(ops::qkv_rope, {{"qkv", b.qkv},
                                  {"q", b.q},
                                  {"k_out", b.k},
                                  {"v_out", b.v},
                                  {"pos", in.line},
                                  {"inv_freq", b_.line_freq},
                                  {"rows", op_.rows}}));
      VV_TRY(turn(b, in.column, b_.column_freq));
      VV_TRY(attend(b, b.k, b.v, images));
      VV_TRY(finish(b, l, 0, {place + 1, place + 2, place + 3}, true));
      if (level == c_.deepstack.size() || c_.deepstack[level] != static_cast<int64_t>(i)) continue;
      op_.rows = in.tokens;
      VV_TRY(merge(w_.deepstack[level], by_token(b.hidden), in.tokens, merger_place(level), levels[level]));
      VV_TRY(show("deepstack_" + std::to_string(level), -1, levels[level]));
      op_.rows = in.patches;
      ++level;
    }
    VV_TRY(point());
    VV_TRY(merge(w_.merger, b.hidden, in.tokens, merger_place(level), tokens));
    return show("image_embeds", -1, tokens);
  }

 private:
  /// Rows of patches as rows of a token's patches side by side.
  Tensor by_token(const Tensor& t) const {
    return as(t, Shape(t.shape[0] / c_.token_patches(), t.shape[1] * c_.token_patches()));
  }
  int64_t merger_place(size_t level) const { return 4 * c_.layers + 2 * static_cast<int64_t>(level); }
  /// `from`: hidden's rows as the norm takes them, patches or tokens.
  Status merge(const Merger& m, const Tensor& from, const Tensor& count, int64_t place, const Tensor& out) {
    const StackBuffers& b = b_.stack;
    // A norm of patches has no scale that a token could have, so codes are made of what it wrote.
    const Tensor normed = as(b.eight() ? b.qkv : b.normed, from.shape), tokens = as(normed, by_token(b.hidden).shape),
                 inner = as(b.attended, tokens.shape);
    VV_TRY(op_.norm(from, layer_norm(m.norm), {normed}));
    op_.rows = count;
    Rows entering;
    VV_TRY(in_.enter(b, tokens, place, m.up, &entering));
    VV_TRY(op_.linear(entering, m.up, inner, {.act = "gelu_erf"}));
    VV_TRY(in_.enter(b, inner, place + 1, m.down, &entering));
    return op_.linear(entering, m.down, out);
  }

  const VisionConfig& c_;
  const VisionWeights& w_;
  const VisionBuffers& b_;
};

}  // namespace

void declare_buffers(engine::Arena& arena, const VisionConfig& c, int64_t P, DType act, VisionBuffers* b,
                     const PrecisionPlan* plan) {
  declare_stack(arena, "vision", c, P, act, &b->stack, plan);
  arena.declare("pixel_scale", DType::f32, Shape(3), &b->pixel_scale);
  arena.declare("pixel_offset", DType::f32, Shape(3), &b->pixel_offset);
  arena.declare("patches", act, Shape(P, c.patch_values()), &b->patches);
  arena.declare("positions", act, Shape(P, c.width), &b->positions);
  arena.declare("line_freq", DType::f32, Shape(c.head_dim / 2), &b->line_freq);
  arena.declare("column_freq", DType::f32, Shape(c.head_dim / 2), &b->column_freq);
}

Status fill_constants(engine::Runtime& runtime, const VisionConfig& c, const VisionBuffers& b) {
  const float scale[] = {2.0f / 255, 2.0f / 255, 2.0f / 255}, offset[] = {-1, -1, -1};
  // Pairs of one axis turn by its place; the others get frequency 0.
  VV_ASSIGN(const ops::RopeFreqs half, ops::rope_freqs(kTheta, c.head_dim / 2, {}));
  const size_t quarter = half.inv_freq.size();
  std::vector<float> lines(2 * quarter, 0.0f), by_column(2 * quarter, 0.0f);
  std::copy(half.inv_freq.begin(), half.inv_freq.end(), lines.begin());
  std::copy(half.inv_freq.begin(), half.inv_freq.end(), by_column.begin() + static_cast<std::ptrdiff_t>(quarter));
  const auto from = [](const Tensor& to, const auto& values) {
    return engine::Upload{to.data, std::data(values), std::size(values) * sizeof(*std::data(values))};
  };
  const engine::Upload uploads[] = {from(b.pixel_scale, scale), from(b.pixel_offset, offset), from(b.line_freq, lines),
                                    from(b.column_freq, by_column)};
  return runtime.upload(uploads);
}

Status record_vision(ops::Recorder& rec, const VisionContext& context, const VisionInputs& in, const Tensor& tokens,
                     std::span<const Tensor> levels) {
  return GraphBuilder(rec, context).record(in, tokens, levels);
}

}  // namespace vivace::models::vision
