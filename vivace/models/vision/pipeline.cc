#include "vivace/models/vision/pipeline.h"

#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/ops/rope_freqs.h"

namespace vivace::models::vision {
namespace {

constexpr double kEps = 1e-6, kConnectorEps = 1e-5;  // of layer norms; of Eagle's, between SigLIP2 and words
constexpr double kTheta = 10000;                     // of the rotation by lines and columns

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
                {{"kernel_h", side},
                 {"kernel_w", side},
                 {"stride_h", side},
                 {"stride_w", side},
                 {"order", c_.siglip2 ? "hwc" : "chw"}}));
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
      if (!c_.siglip2) VV_TRY(split_and_turn(in));
      VV_TRY(attend(b, c_.siglip2 ? own(b) : Qkv{b.q, b.k, b.v}, images));
      VV_TRY(finish(b, l, 0, {place + 1, place + 2, place + 3}, true));
      if (level == c_.deepstack.size() || c_.deepstack[level] != static_cast<int64_t>(i)) continue;
      op_.rows = in.tokens;
      VV_TRY(merge(w_.deepstack[level], by_token(b.hidden), in.tokens, merger_place(level), levels[level]));
      VV_TRY(show("deepstack_" + std::to_string(level), -1, levels[level]));
      op_.rows = in.patches;
      ++level;
    }
    VV_TRY(point());
    Tensor merging = b.hidden;
    if (c_.siglip2) {
      const Tensor normed = as(b.attended, b.hidden.shape);
      VV_TRY(op_.norm(b.hidden, layer_norm(w_.norm), {normed}));
      VV_TRY(show("vision_out", -1, normed));
      merging = by_token(normed);
      op_.rows = in.tokens;
    }
    VV_TRY(merge(w_.merger, merging, in.tokens, merger_place(level), tokens));
    return show("image_embeds", -1, tokens);
  }

 private:
  Status split_and_turn(const VisionInputs& in) {
    const StackBuffers& b = b_.stack;
    VV_TRY(rec_(ops::qkv_rope, {{"qkv", b.qkv},
                                {"q", b.q},
                                {"k_out", b.k},
                                {"v_out", b.v},
                                {"pos", in.line},
                                {"inv_freq", b_.line_freq},
                                {"rows", op_.rows}}));
    return turn(b, in.column, b_.column_freq);
  }
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
                 inner = c_.siglip2 ? b_.merged : as(b.attended, tokens.shape);
    const CodeBuffers& codes = c_.siglip2 ? b_.merged_codes : static_cast<const CodeBuffers&>(b);
    VV_TRY(op_.norm(from, layer_norm(m.norm, c_.siglip2 ? kConnectorEps : 0), {normed}));
    op_.rows = count;
    Rows entering;
    VV_TRY(in_.enter(codes, tokens, place, m.up, &entering));
    VV_TRY(op_.linear(entering, m.up, inner, {.act = "gelu_erf"}));
    VV_TRY(in_.enter(codes, inner, place + 1, m.down, &entering));
    return op_.linear(entering, m.down, out);
  }

  const VisionConfig& c_;
  const VisionWeights& w_;
  const VisionBuffers& b_;
};

}  // namespace

void declare_buffers(engine::Arena& arena, const VisionConfig& c, int64_t P, DType act, VisionBuffers* b,
                     const PrecisionPlan* plan) {
  declare_stack(arena, "vision", c, P, act, !c.siglip2, &b->stack, plan);
  arena.declare("pixel_scale", DType::f32, Shape(3), &b->pixel_scale);
  arena.declare("pixel_offset", DType::f32, Shape(3), &b->pixel_offset);
  arena.declare("patches", act, Shape(P, c.patch_columns()), &b->patches);
  arena.declare("positions", act, Shape(P, c.width), &b->positions);
  if (c.siglip2) {
    const int64_t M = P / c.token_patches();
    arena.declare("merged", act, Shape(M, c.out), &b->merged);
    if (plan == nullptr || !plan->eight) return;
    const int64_t widest = std::max(c.token_patches() * c.width, c.out);
    arena.declare("merged.codes", DType::e4m3, Shape(M, widest), &b->merged_codes.quantized);
    if (!plan->fixed) arena.declare("merged.codes_scale", DType::f32, Shape(M), &b->merged_codes.quantized_scale);
    return;
  }
  arena.declare("line_freq", DType::f32, Shape(c.head_dim / 2), &b->line_freq);
  arena.declare("column_freq", DType::f32, Shape(c.head_dim / 2), &b->column_freq);
}

Status fill_constants(engine::Runtime& runtime, const VisionConfig& c, const VisionBuffers& b) {
  const float scale[] = {2.0f / 255, 2.0f / 255, 2.0f / 255}, offset[] = {-1, -1, -1};
  const auto from = [](const Tensor& to, const auto& values) {
    return engine::Upload{to.data, std::data(values), std::size(values) * sizeof(*std::data(values))};
  };
  const engine::Upload pixels[] = {from(b.pixel_scale, scale), from(b.pixel_offset, offset)};
  VV_TRY(runtime.upload(pixels));
  if (c.siglip2) return {};
  // Pairs of one axis turn by its place; the others get frequency 0.
  VV_ASSIGN(const ops::RopeFreqs half, ops::rope_freqs(kTheta, c.head_dim / 2, {}));
  const size_t quarter = half.inv_freq.size();
  std::vector<float> lines(2 * quarter, 0.0f), by_column(2 * quarter, 0.0f);
  std::copy(half.inv_freq.begin(), half.inv_freq.end(), lines.begin());
  std::copy(half.inv_freq.begin(), half.inv_freq.end(), by_column.begin() + static_cast<std::ptrdiff_t>(quarter));
  const engine::Upload uploads[] = {from(b.line_freq, lines), from(b.column_freq, by_column)};
  return runtime.upload(uploads);
}

Status record_vision(ops::Recorder& rec, const VisionContext& context, const VisionInputs& in, const Tensor& tokens,
                     std::span<const Tensor> levels) {
  return GraphBuilder(rec, context).record(in, tokens, levels);
}

}  // namespace vivace::models::vision
