#include "vivace/models/groot/pipeline.h"

#include "vivace/base/check.h"
#include "vivace/models/views.h"

namespace vivace::models::groot {
namespace {

constexpr double kVisionEps = 1e-6, kHeadEps = 1e-5, kOutEps = 1e-6;  // of layer norms

/// Rows that attend and rows that are attended to, of sequences that lie one after the other.
struct Ragged {
  Tensor slot, offsets;  // whose sequence each query is in; where each sequence's keys are
  Tensor place;          // of a causal mask: of each query in its sequence
};

class GraphBuilder {
 public:
  GraphBuilder(ops::Recorder& rec, const GrootContext& context)
      : rec_(rec), x_(context), c_(context.config), w_(context.weights), b_(context.buffers) {}

  Status vision(const ContextInputs& in) {
    const StackBuffers& b = b_.vision;
    rows_ = in.patches;
    const double side = static_cast<double>(c_.patch);
    VV_TRY(point());
    VV_TRY(rec_(ops::im2col,
                {{"x", in.pixels},
                 {"scale", b_.pixel_scale},
                 {"offset", b_.pixel_offset},
                 {"out", b_.patches},
                 {"rows", rows_}},
                {{"kernel_h", side}, {"kernel_w", side}, {"stride_h", side}, {"stride_w", side}, {"order", "chw"}}));
    if (x_.show) {
      VV_TRY(product(b_.patches, w_.patches, b.normed));
      VV_TRY(show("patch_embed", -1, b.normed));
    }
    VV_TRY(product(b_.patches, w_.patches, b.hidden, b_.positions));
    const Ragged views{in.view, in.view_offsets, {}};
    size_t level = 0;
    for (size_t i = 0; i < w_.vision.size(); ++i) {
      const Layer& l = w_.vision[i];
      VV_TRY(point());
      VV_TRY(norm(b.hidden, l.attn_norm, b.normed, kVisionEps));
      VV_TRY(product(b.normed, l.qkv, b.qkv));
      VV_TRY(rec_(ops::qkv_rope, {{"qkv", b.qkv},
                                  {"q", b.q},
                                  {"k_out", b.k},
                                  {"v_out", b.v},
                                  {"pos", in.patch_line},
                                  {"inv_freq", b_.line_freq},
                                  {"rows", rows_}}));
      VV_TRY(turn(b, in.patch_column, b_.column_freq));
      VV_TRY(attend(b, b.k, b.v, views));
      VV_TRY(product(flat(b.attended), l.o, b.hidden, b.hidden));
      VV_TRY(point());
      VV_TRY(norm(b.hidden, l.mlp_norm, b.normed, kVisionEps));
      VV_TRY(product(b.normed, l.up, b.inner, {}, "gelu_tanh"));
      VV_TRY(product(b.inner, l.down, b.hidden, b.hidden));
      if (level == c_.deepstack.size() || c_.deepstack[level] != static_cast<int64_t>(i)) continue;
      const Tensor out = top(b_.deepstack[level], b_.deepstack[level].shape[0] - 1);
      rows_ = in.tokens;
      VV_TRY(norm(by_token(b.hidden), w_.deepstack[level].norm, by_token(b.normed), kVisionEps));
      VV_TRY(merge(w_.deepstack[level], out));
      VV_TRY(show("deepstack_" + std::to_string(level), -1, out));
      rows_ = in.patches;
      ++level;
    }
    VV_TRY(point());
    VV_TRY(norm(b.hidden, w_.merger.norm, b.normed, kVisionEps));
    rows_ = in.tokens;
    const Tensor images = top(b_.mixed, in.image_rows.shape[0]);
    VV_TRY(merge(w_.merger, images));
    return show("image_embeds", -1, images);
  }

  Status language(const ContextInputs& in) {
    const StackBuffers& b = b_.text;
    const int64_t M = in.image_rows.shape[0], T = in.words.shape[0];
    rows_ = in.rows;
    VV_TRY(gather(w_.embed, in.words, slice(b_.mixed, M, T)));
    VV_TRY(gather(b_.mixed, in.source, b.hidden));
    const Ragged sequences{in.slot, in.offsets, in.place};
    Tensor branch;  // joins the residual stream before the next norm
    for (size_t i = 0; i < w_.text.size(); ++i) {
      const TextLayer& l = w_.text[i];
      VV_TRY(point());
      if (branch.present()) VV_TRY(rms(branch, b.hidden, l.attn_norm, b.normed));
      else VV_TRY(rms(b.hidden, {}, l.attn_norm, b.normed));
      VV_TRY(product(b.normed, l.qkv, b.qkv));
      VV_TRY(rec_(ops::qkv_rope,
                  {{"qkv", b.qkv},
                   {"q", b.q},
                   {"k_out", b.k},
                   {"v_out", b.v},
                   {"pos", in.turn[0]},
                   {"inv_freq", b_.turn_freq[0]},
                   {"q_norm", l.q_norm},
                   {"k_norm", l.k_norm},
                   {"rows", rows_}},
                  {{"eps", c_.eps}}));
      for (int axis : {1, 2}) VV_TRY(turn(b, in.turn[axis], b_.turn_freq[axis]));
      VV_TRY(attend(b, b.k, b.v, sequences));
      VV_TRY(product(flat(b.attended), l.o, b.hidden, b.hidden));
      VV_TRY(point());
      VV_TRY(rms(b.hidden, {}, l.mlp_norm, b.normed));
      VV_TRY(rec_(ops::gated_gemm, {{"x", b.normed}, {"w", l.gate_up.w}, {"out", b.inner}, {"rows", rows_}},
                  {{"act", "silu"}}));
      VV_TRY(product(b.inner, l.down, b.hidden, b.hidden));
      VV_TRY(show("llm_layer" + std::to_string(i) + "_out", -1, b.hidden));
      branch = {};
      if (i < b_.deepstack.size() && i + 1 < w_.text.size()) {
        branch = b_.branch;
        VV_TRY(gather(b_.deepstack[i], in.level, branch));
      }
    }
    return show("backbone_features", -1, b.hidden);
  }

  /// vlln, self-attention over what the language model said, and what each block that crosses reads of it.
  Status adapter(const ContextInputs& in) {
    const StackBuffers& b = b_.adapter;
    VV_TRY(norm(b_.text.hidden, w_.adapter_norm, b.hidden, kHeadEps));
    VV_TRY(show("vlln", -1, b.hidden));
    for (const Layer& l : w_.adapter) {
      VV_TRY(point());
      VV_TRY(norm(b.hidden, l.attn_norm, b.normed, kHeadEps));
      VV_TRY(product(b.normed, l.qkv, b.qkv));
      VV_TRY(split(b));
      VV_TRY(attend(b, b.k, b.v, {in.slot, in.offsets, {}}));
      VV_TRY(product(flat(b.attended), l.o, b.hidden, b.hidden));
      VV_TRY(norm(b.hidden, l.mlp_norm, b.normed, kHeadEps));
      VV_TRY(product(b.normed, l.up, b.inner, {}, "gelu_tanh"));
      VV_TRY(product(b.inner, l.down, b.hidden, b.hidden));
    }
    VV_TRY(show("vl_features", -1, b.hidden));
    rows_ = in.texts;
    VV_TRY(gather(b.hidden, in.text_rows, b_.text_features));
    rows_ = in.tokens;
    VV_TRY(gather(b.hidden, in.image_rows, b_.image_features));
    for (size_t i = 0; i < w_.dit.size(); ++i) {
      const auto block = static_cast<int64_t>(i);
      if (!c_.crosses(block)) continue;
      VV_TRY(point());
      const bool text = c_.sees_text(block);
      rows_ = text ? in.texts : in.tokens;
      const Tensor &from = text ? b_.text_features : b_.image_features, &k = b_.cross_k[i / 2], &v = b_.cross_v[i / 2];
      const Shape rows(k.shape[1], c_.dit.width);
      VV_TRY(product(from, w_.dit[i].k, as(k, rows)));
      VV_TRY(product(from, w_.dit[i].v, as(v, rows)));
    }
    return {};
  }

  Status flow(const ContextInputs& seen, const ActionInputs& in) {
    const StackBuffers& b = b_.dit;
    const int64_t B = x_.batch;
    rows_ = {};
    VV_TRY(point());
    for (int64_t o = 0; o < B; ++o) {
      const Embodiment& e = x_.active[static_cast<size_t>(o)].weights;
      VV_TRY(product(slice(in.state, o, 1), e.state_up, slice(b_.state_inner, o, 1), {}, "relu"));
      VV_TRY(product(slice(b_.state_inner, o, 1), e.state_down, slice(b_.state_features, o, 1)));
    }
    VV_TRY(show("state_features", -1, b_.state_features));
    for (int64_t s = 0; s < x_.steps; ++s) {
      const int step = static_cast<int>(s);
      VV_TRY(rec_(ops::cast, {{"x", b_.state_features}, {"out", states()}}));
      for (int64_t o = 0; o < B; ++o) VV_TRY(encode(in, o, s));
      for (size_t i = 0; i < w_.dit.size(); ++i) {
        const Block& l = w_.dit[i];
        const auto block = static_cast<int64_t>(i);
        VV_TRY(point());
        VV_TRY(ada_norm(slice(b_.scale[i], s, 1), slice(b_.shift[i], s, 1), kHeadEps));
        if (c_.crosses(block)) {
          VV_TRY(product(b.normed, l.qkv, flat(b.q)));
          VV_TRY(attend(b, b_.cross_k[i / 2], b_.cross_v[i / 2],
                        {b_.action_slot, c_.sees_text(block) ? seen.text_offsets : seen.image_offsets, {}}));
        } else {
          VV_TRY(product(b.normed, l.qkv, b.qkv));
          VV_TRY(split(b));
          const Shape own(B, 1 + x_.horizon, c_.dit.heads, c_.dit.head_dim);
          VV_TRY(rec_(
              ops::attention,
              {{"q", b.q}, {"k", as(b.k, own)}, {"v", as(b.v, own)}, {"slot", b_.action_slot}, {"out", b.attended}},
              {{"mask", "full"}}));
        }
        VV_TRY(product(flat(b.attended), l.o, b.hidden, b.hidden));
        VV_TRY(norm(b.hidden, {}, b.normed, kHeadEps));
        VV_TRY(product(b.normed, l.up, b.inner, {}, "gelu_tanh"));
        VV_TRY(product(b.inner, l.down, b.hidden, b.hidden));
        VV_TRY(show("dit_block" + std::to_string(i) + "_out", step, b.hidden));
      }
      VV_TRY(ada_norm(slice(b_.out_scale, s, 1), slice(b_.out_shift, s, 1), kOutEps));
      VV_TRY(product(b.normed, w_.out, b_.out));
      VV_TRY(show("dit_output", step, b_.out));
      for (int64_t o = 0; o < B; ++o) VV_TRY(decode(in, o, step));
      VV_TRY(show("x", step + 1, in.x));
    }
    return {};
  }

  Status tables(const Tensor& sines, const Tensor& tau, const Tensor (&scratch)[3]) {
    const int64_t D = c_.dit.width;
    rows_ = {};
    const Tensor inner = columns_of(scratch[0], D), time = columns_of(scratch[1], D), both = scratch[2];
    VV_TRY(product(sines, w_.time_up, inner, {}, "silu"));
    VV_TRY(product(inner, w_.time_down, time));
    VV_TRY(show("timestep_embedding", -1, time));
    VV_TRY(rec_(ops::act_mul, {{"gate", time}, {"out", inner}}, {{"act", "silu"}}));
    const auto table = [&](const Linear& m, const Tensor& first, const Tensor& second) -> Status {
      VV_TRY(product(inner, m, both));
      VV_TRY(rec_(ops::cast, {{"x", columns(both, 0, D)}, {"out", first}}));
      return rec_(ops::cast, {{"x", columns(both, D, D)}, {"out", second}});
    };
    for (size_t i = 0; i < w_.dit.size(); ++i) VV_TRY(table(w_.dit[i].ada, b_.scale[i], b_.shift[i]));
    VV_TRY(table(w_.out_ada, b_.out_shift, b_.out_scale));
    for (size_t i = 0; i < w_.embodiments.size(); ++i) VV_TRY(product(tau, w_.embodiments[i].time, b_.time_bias[i]));
    return {};
  }

 private:
  /// The first N columns' worth of a dense scratch area.
  static Tensor columns_of(const Tensor& t, int64_t N) { return as(t, Shape(t.shape[0], N)); }
  /// [T, N, D] as [T, N*D].
  static Tensor flat(const Tensor& t) { return as(t, Shape(t.shape[0], t.shape[1] * t.shape[2])); }
  /// Rows of patches as rows of a token's patches side by side.
  Tensor by_token(const Tensor& t) const {
    return as(t, Shape(t.shape[0] / c_.token_patches(), t.shape[1] * c_.token_patches()));
  }
  /// The state's row of each observation among the DiT's.
  Tensor states() const {
    Tensor t = as(b_.dit.hidden, Shape(x_.batch, c_.dit.width));
    t.stride[0] = (1 + x_.horizon) * c_.dit.width;
    return t;
  }
  Tensor actions_of(const Tensor& t, int64_t o) const { return slice(t, o * (1 + x_.horizon) + 1, x_.horizon); }

  Status encode(const ActionInputs& in, int64_t o, int64_t s) {
    const ActiveEmbodiment& e = x_.active[static_cast<size_t>(o)];
    const int64_t n = x_.horizon, first = o * n;
    const Tensor mid = slice(b_.action_mid, first, n), begun = slice(b_.action_in, first, n);
    VV_TRY(product(slice(in.x, first, n), e.weights.action_in, begun));
    Linear timed = e.weights.action_mid;
    timed.bias = row(e.time_bias, s);
    VV_TRY(product(begun, timed, mid, {}, "silu"));
    if (x_.show) {
      const Tensor alone = as(b_.shown, Shape(n, c_.dit.width));
      VV_TRY(product(mid, e.weights.action_out, alone));
      VV_TRY(show("action_features", static_cast<int>(s), alone));
    }
    return product(mid, e.weights.action_out, actions_of(b_.dit.hidden, o), w_.action_positions);
  }
  Status decode(const ActionInputs& in, int64_t o, int step) {
    const Embodiment& e = x_.active[static_cast<size_t>(o)].weights;
    const int64_t n = x_.horizon, first = o * n;
    const Tensor inner = slice(b_.decoded, first, n), x = slice(in.x, first, n);
    VV_TRY(product(actions_of(b_.out, o), e.decode_up, inner, {}, "relu"));
    if (x_.show) {
      const Tensor velocity = as(b_.shown, Shape(n, c_.action_dim));
      VV_TRY(product(inner, e.decode_down, velocity));
      VV_TRY(show("pred", step, velocity));
    }
    return rec_(ops::gemm, {{"x", inner},
                            {"w", e.decode_down.w},
                            {"bias", e.decode_down.bias},
                            {"gate", slice(in.step_size, first, n)},
                            {"residual", x},
                            {"out", x}});
  }

  Status merge(const Merger& m, const Tensor& out) {
    const Tensor inner = by_token(as(b_.vision.attended, b_.vision.hidden.shape));
    VV_TRY(product(by_token(b_.vision.normed), m.up, inner, {}, "gelu_erf"));
    return product(inner, m.down, out);
  }
  Status norm(const Tensor& x, const Norm& n, const Tensor& out, double eps) {
    return rec_(ops::norm, {{"x", x}, {"weight", n.weight}, {"bias", n.bias}, {"out", out}, {"rows", rows_}},
                {{"kind", "layer"}, {"eps", eps}});
  }
  Status rms(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& out) {
    return rec_(ops::norm, {{"x", x}, {"residual", residual}, {"weight", weight}, {"out", out}, {"rows", rows_}},
                {{"eps", c_.eps}});
  }
  Status ada_norm(const Tensor& scale, const Tensor& shift, double eps) {
    return rec_(ops::norm, {{"x", b_.dit.hidden}, {"scale", scale}, {"shift", shift}, {"out", b_.dit.normed}},
                {{"kind", "layer"}, {"eps", eps}});
  }
  Status product(const Tensor& x, const Linear& m, const Tensor& out, const Tensor& residual = {},
                 std::string_view epilogue = "none") {
    return rec_(ops::gemm,
                {{"x", x}, {"w", m.w}, {"bias", m.bias}, {"residual", residual}, {"out", out}, {"rows", rows_}},
                {{"epilogue", epilogue}});
  }
  Status gather(const Tensor& table, const Tensor& ids, const Tensor& out) {
    return rec_(ops::embedding, {{"table", table}, {"ids", ids}, {"out", out}, {"rows", rows_}});
  }
  Status split(const StackBuffers& b) {
    return rec_(ops::qkv_rope, {{"qkv", b.qkv}, {"q", b.q}, {"k_out", b.k}, {"v_out", b.v}, {"rows", rows_}});
  }
  /// Turns the pairs of one axis; the others' frequencies are 0, which leaves them as they are, bit for bit.
  Status turn(const StackBuffers& b, const Tensor& pos, const Tensor& freq) {
    for (const Tensor* t : {&b.q, &b.k})
      VV_TRY(rec_(ops::rope, {{"x", *t}, {"inv_freq", freq}, {"pos", pos}, {"out", *t}, {"rows", rows_}}));
    return {};
  }
  Status attend(const StackBuffers& b, const Tensor& k, const Tensor& v, const Ragged& r) {
    const auto block = [](const Tensor& t) {
      return t.shape.rank == 4 ? t : as(t, Shape(1, t.shape[0], t.shape[1], t.shape[2]));
    };
    return rec_(ops::attention,
                {{"q", b.q},
                 {"k", block(k)},
                 {"v", block(v)},
                 {"pos", r.place},
                 {"slot", r.slot},
                 {"k_offsets", r.offsets},
                 {"out", b.attended},
                 {"rows", rows_}},
                {{"mask", r.place.present() ? "causal" : "full"}});
  }
  /// Where others may go first.
  Status point() { return x_.gates != nullptr ? x_.gates->point(rec_.stream()) : Status(); }
  Status show(const std::string& name, int step, const Tensor& value) const {
    return x_.show ? x_.show(name, step, value) : Status();
  }

  ops::Recorder& rec_;
  const GrootContext& x_;
  const GrootConfig& c_;
  const GrootWeights& w_;
  const GrootBuffers& b_;
  Tensor rows_;  // valid rows of the stack at hand
};

}  // namespace

Status record_context(ops::Recorder& rec, const GrootContext& context, const ContextInputs& in) {
  GraphBuilder graph(rec, context);
  VV_TRY(graph.vision(in));
  VV_TRY(graph.language(in));
  return graph.adapter(in);
}

Status record_actions(ops::Recorder& rec, const GrootContext& context, const ContextInputs& seen,
                      const ActionInputs& in) {
  return GraphBuilder(rec, context).flow(seen, in);
}

Status record_tables(ops::Recorder& rec, const GrootContext& context, const Tensor& sines, const Tensor& tau,
                     const Tensor (&scratch)[3]) {
  return GraphBuilder(rec, context).tables(sines, tau, scratch);
}

}  // namespace vivace::models::groot
