#include "vivace/models/groot/pipeline.h"

#include "vivace/base/check.h"

namespace vivace::models::groot {
namespace {

constexpr double kHeadEps = 1e-5, kOutEps = 1e-6;  // of layer norms

class GraphBuilder : private StackRecorder {
 public:
  GraphBuilder(ops::Recorder& rec, const GrootContext& context)
      : StackRecorder(rec, context.config.eps, context.show, context.gates, context.buffers.act_scales, context.enters),
        x_(context),
        c_(context.config),
        w_(context.weights),
        b_(context.buffers),
        at_(context.config) {}

  Status vision(const ContextInputs& in) {
    std::vector<Tensor> levels;
    for (const Tensor& t : b_.deepstack) levels.push_back(top(t, t.shape[0] - 1));
    return vision::record_vision(rec_, {c_.vision, w_.vision, b_.vision, x_.show, x_.gates, b_.act_scales, x_.enters},
                                 in.images, top(b_.mixed, in.image_rows.shape[0]), levels);
  }

  Status language(const ContextInputs& in) {
    const StackBuffers& b = b_.text;
    const int64_t M = in.image_rows.shape[0], T = in.words.shape[0];
    op_.rows = in.rows;
    VV_TRY(op_.gather(w_.embed, in.words, slice(b_.mixed, M, T)));
    VV_TRY(op_.gather(b_.mixed, in.source, b.hidden));
    const Ragged sequences{in.slot, in.offsets, in.place};
    Tensor branch;  // joins the residual stream before the next norm
    for (size_t i = 0; i < w_.text.size(); ++i) {
      const TextLayer& l = w_.text[i];
      VV_TRY(point());
      Rows entering;
      if (branch.present())
        VV_TRY(in_.norm(b, branch, {l.attn_norm}, at_.text(i, 0), &entering, b.hidden));
      else
        VV_TRY(in_.norm(b, b.hidden, {l.attn_norm}, at_.text(i, 0), &entering));
      VV_TRY(op_.linear(entering, l.qkv, b.qkv));
      VV_TRY(rec_(ops::qkv_rope,
                  {{"qkv", b.qkv},
                   {"q", b.q},
                   {"k_out", b.k},
                   {"v_out", b.v},
                   {"pos", in.turn[0]},
                   {"inv_freq", b_.turn_freq[0]},
                   {"q_norm", l.q_norm},
                   {"k_norm", l.k_norm},
                   {"rows", op_.rows}},
                  {{"eps", c_.eps}}));
      if (!c_.n16)
        for (int axis : {1, 2}) VV_TRY(turn(b, in.turn[axis], b_.turn_freq[axis]));
      VV_TRY(attend(b, {b.q, b.k, b.v}, sequences));
      VV_TRY(in_.enter(b, flat(b.attended), at_.text(i, 1), l.o, &entering));
      VV_TRY(op_.linear(entering, l.o, b.hidden, {.residual = b.hidden}));
      VV_TRY(point());
      VV_TRY(in_.norm(b, b.hidden, {l.mlp_norm}, at_.text(i, 2), &entering));
      const Rows inner = in_.activated(b, b.inner, at_.text(i, 3));
      VV_TRY(op_.gated(entering, l.gate_up, inner, "silu"));
      VV_TRY(in_.enter(b, inner, at_.text(i, 3), &entering));
      VV_TRY(op_.linear(entering, l.down, b.hidden, {.residual = b.hidden}));
      VV_TRY(show("llm_layer" + std::to_string(i) + "_out", -1, b.hidden));
      branch = {};
      if (i < b_.deepstack.size() && i + 1 < w_.text.size()) {
        branch = b_.branch;
        VV_TRY(op_.gather(b_.deepstack[i], in.level, branch));
      }
    }
    if (c_.n16) VV_TRY(op_.norm(b.hidden, {w_.text_norm}, {b_.branch}));
    return show("backbone_features", -1, features());
  }

  /// vlln, self-attention over what the language model said, and what each block that crosses reads of it.
  Status adapter(const ContextInputs& in) {
    const StackBuffers& b = b_.adapter;
    VV_TRY(op_.norm(features(), layer_norm(w_.adapter_norm, kHeadEps), {b.hidden}));
    VV_TRY(show("vlln", -1, b.hidden));
    for (size_t i = 0; i < w_.adapter.size(); ++i) {
      VV_TRY(point());
      VV_TRY(layer(b, w_.adapter[i], kHeadEps, {in.slot, in.offsets, {}}, at_.adapter(i, 0)));
    }
    VV_TRY(show("vl_features", -1, b.hidden));
    op_.rows = in.texts;
    VV_TRY(op_.gather(b.hidden, in.text_rows, b_.text_features));
    op_.rows = in.images.tokens;
    VV_TRY(op_.gather(b.hidden, in.image_rows, b_.image_features));
    Rows entering[2];  // of images, of text: as all blocks read them
    for (size_t i = 0; i < w_.dit.size(); ++i) {
      const auto block = static_cast<int64_t>(i);
      if (!c_.crosses(block)) continue;
      VV_TRY(point());
      const bool text = c_.sees_text(block);
      op_.rows = text ? in.texts : in.images.tokens;
      Rows& from = entering[text ? 1 : 0];
      if (!from.x.present())
        VV_TRY(in_.enter(text ? b_.text_codes : b_.image_codes, text ? b_.text_features : b_.image_features,
                         at_.features(text), &from));
      const Tensor &k = b_.cross_k[i / 2], &v = b_.cross_v[i / 2];
      const Shape rows(k.shape[1], c_.dit.width);
      VV_TRY(op_.linear(from, w_.dit[i].k, as(k, rows)));
      VV_TRY(op_.linear(from, w_.dit[i].v, as(v, rows)));
    }
    return {};
  }

  Status flow(const ContextInputs& seen, const ActionInputs& in) {
    const StackBuffers& b = b_.dit;
    const int64_t B = x_.batch;
    op_.rows = {};
    VV_TRY(point());
    for (int64_t o = 0; o < B; ++o) {
      const Embodiment& e = x_.active[static_cast<size_t>(o)].weights;
      VV_TRY(op_.linear({slice(in.state, o, 1)}, e.state_up, slice(b_.state_inner, o, 1), {.act = "relu"}));
      VV_TRY(op_.linear({slice(b_.state_inner, o, 1)}, e.state_down, slice(b_.state_features, o, 1)));
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
          const Qkv x{as(b.qkv, b.attended.shape), b_.cross_k[i / 2], b_.cross_v[i / 2]};
          VV_TRY(op_.linear({b.normed}, l.qkv, flat(x.q)));
          VV_TRY(attend(b, x, {b_.action_slot, c_.sees_text(block) ? seen.text_offsets : seen.image_offsets, {}}));
        } else {
          VV_TRY(op_.linear({b.normed}, l.qkv, b.qkv));
          const Qkv x = own(b);
          VV_TRY(rec_(ops::attention,
                      {{"q", x.q},
                       {"k", blocks(x.k, 1 + x_.horizon)},
                       {"v", blocks(x.v, 1 + x_.horizon)},
                       {"slot", b_.action_slot},
                       {"out", b.attended}},
                      {{"mask", "full"}}));
        }
        VV_TRY(op_.linear({flat(b.attended)}, l.o, b.hidden, {.residual = b.hidden}));
        VV_TRY(op_.norm(b.hidden, layer_norm({}, kHeadEps), {b.normed}));
        VV_TRY(op_.linear({b.normed}, l.up, b.inner, {.act = "gelu_tanh"}));
        VV_TRY(op_.linear({b.inner}, l.down, b.hidden, {.residual = b.hidden}));
        VV_TRY(show("dit_block" + std::to_string(i) + "_out", step, b.hidden));
      }
      VV_TRY(ada_norm(slice(b_.out_scale, s, 1), slice(b_.out_shift, s, 1), kOutEps));
      VV_TRY(op_.linear({b.normed}, w_.out, b_.out));
      VV_TRY(show("dit_output", step, b_.out));
      for (int64_t o = 0; o < B; ++o) VV_TRY(decode(in, o, step));
      VV_TRY(show("x", step + 1, in.x));
    }
    return {};
  }

  Status tables(const Tensor& sines, const Tensor& tau, const Tensor (&scratch)[3]) {
    const int64_t D = c_.dit.width;
    op_.rows = {};
    const Tensor inner = columns_of(scratch[0], D), time = columns_of(scratch[1], D), both = scratch[2];
    VV_TRY(op_.linear({sines}, w_.time_up, inner, {.act = "silu"}));
    VV_TRY(op_.linear({inner}, w_.time_down, time));
    VV_TRY(show("timestep_embedding", -1, time));
    VV_TRY(rec_(ops::act_mul, {{"gate", time}, {"out", inner}}, {{"act", "silu"}}));
    const auto table = [&](const Linear& m, const Tensor& first, const Tensor& second) -> Status {
      VV_TRY(op_.linear({inner}, m, both));
      VV_TRY(rec_(ops::cast, {{"x", columns(both, 0, D)}, {"out", first}}));
      return rec_(ops::cast, {{"x", columns(both, D, D)}, {"out", second}});
    };
    for (size_t i = 0; i < w_.dit.size(); ++i) VV_TRY(table(w_.dit[i].ada, b_.scale[i], b_.shift[i]));
    VV_TRY(table(w_.out_ada, b_.out_shift, b_.out_scale));
    for (size_t i = 0; i < w_.embodiments.size(); ++i)
      VV_TRY(op_.linear({tau}, w_.embodiments[i].time, b_.time_bias[i]));
    return {};
  }

 private:
  /// What the language model says.
  const Tensor& features() const { return c_.n16 ? b_.branch : b_.text.hidden; }
  /// The first N columns' worth of a dense scratch area.
  static Tensor columns_of(const Tensor& t, int64_t N) { return as(t, Shape(t.shape[0], N)); }
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
    VV_TRY(op_.linear({slice(in.x, first, n)}, e.weights.action_in, begun));
    Linear timed = e.weights.action_mid;
    timed.bias = row(e.time_bias, s);
    VV_TRY(op_.linear({begun}, timed, mid, {.act = "silu"}));
    if (x_.show) {
      const Tensor alone = as(b_.shown, Shape(n, c_.dit.width));
      VV_TRY(op_.linear({mid}, e.weights.action_out, alone));
      VV_TRY(show("action_features", static_cast<int>(s), alone));
    }
    return op_.linear({mid}, e.weights.action_out, actions_of(b_.dit.hidden, o), {.residual = w_.action_positions});
  }
  Status decode(const ActionInputs& in, int64_t o, int step) {
    const Embodiment& e = x_.active[static_cast<size_t>(o)].weights;
    const int64_t n = x_.horizon, first = o * n;
    const Tensor inner = slice(b_.decoded, first, n), x = slice(in.x, first, n);
    VV_TRY(op_.linear({actions_of(b_.out, o)}, e.decode_up, inner, {.act = "relu"}));
    if (x_.show) {
      const Tensor velocity = as(b_.shown, Shape(n, c_.action_dim));
      VV_TRY(op_.linear({inner}, e.decode_down, velocity));
      VV_TRY(show("pred", step, velocity));
    }
    return op_.linear({inner}, e.decode_down, x, {.residual = x, .gate = slice(in.step_size, first, n)});
  }

  Status ada_norm(const Tensor& scale, const Tensor& shift, double eps) {
    return op_.norm(b_.dit.hidden, {.ada = {scale, shift}, .kind = "layer", .eps = eps}, {b_.dit.normed});
  }

  const GrootContext& x_;
  const GrootConfig& c_;
  const GrootWeights& w_;
  const GrootBuffers& b_;
  QuantizationSites at_;
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
