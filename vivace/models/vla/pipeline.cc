#include "vivace/models/vla/pipeline.h"

#include <cmath>

#include "vivace/base/check.h"
#include "vivace/models/layer/attention_sites.h"
#include "vivace/models/layer/layer_ops.h"
#include "vivace/models/layer/views.h"

namespace vivace::models::vla {
namespace {

/// Rows up to which a norm is left to the product behind it, whose blocks then make all of them. H200, lab/notes/080:
/// one row of pi0-FAST 0.9 us less a product, 50 of the expert 9.8 and 5.2 us more.
constexpr int64_t kFewRows = 1;

/// The side that a time table gives a norm; `rows`: which of its rows each token takes, absent: there is one.
Ada ada(const Tensor& table, const Tensor& rows) {
  const int64_t H = table.shape[1] / 3;
  return {columns(table, 0, H), columns(table, H, H), columns(table, 2 * H, H), rows};
}

class GraphBuilder {
 public:
  GraphBuilder(ops::Recorder& rec, const PolicyContext& context)
      : rec_(rec),
        op_(rec, context.config.eps, "f32", !context.config.has(kSmolVlm)),
        x_(context),
        c_(context.config),
        w_(context.weights),
        b_(context.buffers),
        at_(context.config, context.plan.expert),
        in_(op_, context.buffers.act_scales, context.enters),
        sites_(context.buffers.k_cache, context.buffers.v_cache),
        cross_sites_(context.buffers.cross_k, context.buffers.cross_v) {
    const auto site = [&](const char* mask, int64_t head_dim) {
      return sites_.add(
          {.name = mask, .mask = mask, .scale = 1 / std::sqrt(static_cast<double>(head_dim)), .one_op = false});
    };
    full_ = site("full", c_.text.head_dim), causal_ = site("causal", c_.text.head_dim),
    state_ = site("state", c_.expert.head_dim);
    cross_ = cross_sites_.add({.name = "cross", .mask = "full", .one_op = false});
  }

  Status vision(const ContextInputs& in) {
    const TowerBuffers& b = b_.vision;
    op_.rows = x_.full                   ? Tensor{}
               : in.patch_rows.present() ? in.patch_rows
                                         : in.view_rows;  // each launch waits for a count before it does anything else
    Rows entering;
    const double side = static_cast<double>(c_.patch);
    VV_TRY(point());
    VV_TRY(rec_(ops::im2col,
                {{"x", in.pixels},
                 {"scale", b_.pixel_scale},
                 {"offset", b_.pixel_offset},
                 {"out", b_.patches},
                 {"rows", op_.rows}},
                {{"kernel_h", side}, {"kernel_w", side}, {"stride_h", side}, {"stride_w", side}}));
    VV_TRY(in_.enter(b, b_.patches, QuantizationSites::patches, w_.patches, &entering));
    VV_TRY(op_.linear(entering, w_.patches, b.hidden, {.residual = w_.positions}));
    for (size_t i = 0; i < w_.vision.size(); ++i) {
      const VisionLayer& w = w_.vision[i];
      VV_TRY(point());
      VV_TRY(layer_norm(b, w.attn_norm, at_.vision(i, 0), &entering));
      VV_TRY(op_.linear(entering, w.qkv, b.qkv));
      const Qkv x = split_qkv(b.qkv, c_.vision.heads, c_.vision.head_dim);
      VV_TRY(rec_(ops::attention,
                  {{"q", x.q},
                   {"k", blocks(x.k, c_.view_patches())},
                   {"v", blocks(x.v, c_.view_patches())},
                   {"slot", b_.view_slot},
                   {"out", b.attended},
                   {"rows", op_.rows}},
                  {{"mask", "full"}}));
      VV_TRY(in_.enter(b, flat(b.attended), at_.vision(i, 1), w.o, &entering));
      VV_TRY(op_.linear(entering, w.o, b.hidden, {.residual = b.hidden}));
      VV_TRY(point());
      VV_TRY(layer_norm(b, w.mlp_norm, at_.vision(i, 2), &entering));
      const Rows inner = in_.activated(b, b.mlp, at_.vision(i, 3));
      VV_TRY(op_.linear(entering, w.up, inner.x, {.out_scale = inner.scale, .act = "gelu_tanh"}));
      VV_TRY(in_.enter(b, inner, at_.vision(i, 3), &entering));
      VV_TRY(op_.linear(entering, w.down, b.hidden, {.residual = b.hidden}));
    }
    VV_TRY(layer_norm(b, w_.vision_norm, at_.projector(), &entering));
    if (c_.has(kSmolVlm)) return connect(in, entering);
    const Tensor out = slice(b_.text.hidden, 0, b.hidden.shape[0]);
    VV_TRY(op_.linear(entering, w_.projector, out));
    return show("image_tokens", -1, out);
  }

  Status words(const ContextInputs& in) {
    VV_TRY(point());  // a graph's first: what lies before it would join the end of the one before
    // Rows of images are written too, and then again by the images.
    op_.rows = in.rows;
    VV_TRY(op_.gather(w_.embed, in.ids, b_.text.hidden, word_scale()));
    if (!c_.has(kStateLast)) return {};
    op_.rows = {};
    return op_.linear({in.state}, w_.state, top(b_.text.hidden, x_.batch));
  }

  Status prefix(const ContextInputs& in) {
    const TowerBuffers& b = b_.text;
    op_.rows = in.rows;
    VV_TRY(show("prefix_embeddings", -1, b.hidden));
    const Tensor slot = slots(in.slot);
    for (size_t i = 0; i < w_.text.size(); ++i) {
      const GemmaLayer& w = w_.text[i];
      const Sight sight{c_.has(kStateLast) ? state_ : full_, i, in.pos, slot, in.length, in.state_place};
      Rows entering;
      VV_TRY(point());
      VV_TRY(rms_norm(b, w.attn_norm, at_.text(i, 0), &entering));
      if (!w.o.w.present()) {
        VV_TRY(keys(b, entering, w.qkv, sight));
        break;
      }
      VV_TRY(attend(b, entering, w, sight, at_.text(i, 1), b.hidden, b.hidden));
      VV_TRY(point());
      VV_TRY(rms_norm(b, w.mlp_norm, at_.text(i, 2), &entering));
      VV_TRY(mlp(b, entering, w, at_.text(i, 3), b.hidden, b.hidden));
    }
    op_.rows = {};
    for (size_t i = 0; i < b_.cross_k.size(); ++i) {
      if (!c_.crosses(i)) continue;
      const auto again = [&](const Tensor& from, const Matrix& m, const Tensor& to) {
        const Shape rows(from.shape[0] * from.shape[1], from.shape[2] * from.shape[3]);
        return op_.linear({as(from, rows)}, m, as(to, rows));
      };
      VV_TRY(point());
      VV_TRY(again(b_.k_cache[i], w_.expert[i].k, b_.cross_k[i]));
      VV_TRY(again(b_.v_cache[i], w_.expert[i].v, b_.cross_v[i]));
    }
    return {};
  }

  Status first_action_token(const ActionTokenInputs& in) {
    op_.rows = {};
    VV_TRY(op_.gather(b_.text.hidden, in.last, b_.expert.hidden));
    return pick_action_token(in);
  }

  Status action_token(const ActionTokenInputs& in) {
    const TowerBuffers& b = b_.expert;
    op_.rows = {};
    VV_TRY(point());
    VV_TRY(op_.gather(w_.embed, in.token, b.hidden, word_scale()));
    for (size_t i = 0; i < w_.text.size(); ++i) {
      const GemmaLayer& w = w_.text[i];
      const Sight sight{causal_, i, in.pos, in.slot, {}, {}};
      Rows entering;
      VV_TRY(point());
      VV_TRY(rms_norm(b, w.attn_norm, at_.text(i, 0), &entering));
      VV_TRY(attend(b, entering, w, sight, at_.text(i, 1), b.hidden, b.hidden));
      VV_TRY(point());
      VV_TRY(rms_norm(b, w.mlp_norm, at_.text(i, 2), &entering));
      VV_TRY(mlp(b, entering, w, at_.text(i, 3), b.hidden, b.hidden));
    }
    return pick_action_token(in);
  }

  Status flow(const ActionInputs& in) {
    const TowerBuffers& b = b_.expert;
    const bool adaptive = c_.has(kAdaNorm);
    const Tensor slot = slots(in.slot);
    op_.rows = {};
    if (folds())  // of all steps and layers
      VV_TRY(rec_(ops::rope, {{"x", b_.unturned},
                              {"inv_freq", b_.inv_freq},
                              {"pos", in.pos},
                              {"out", as(b_.angles, b_.unturned.shape)}}));
    for (int64_t s = 0; s < x_.steps; ++s) {
      const int step = static_cast<int>(s);
      const auto now = [&](const Tensor& table) {
        return x_.even ? ada(slice(table, s, 1), {}) : ada(table, row(in.time_row, s));
      };
      VV_TRY(point());
      VV_TRY(adaptive ? op_.linear({in.x}, w_.action_in, b.hidden) : embed_actions(in, s));
      VV_TRY(show("suffix_embeddings", step, b.hidden));
      for (size_t i = 0; i < w_.expert.size(); ++i) {
        const GemmaLayer& w = w_.expert[i];
        const bool state = c_.has(kStateToken);
        const bool causal = c_.has(kCrosses);
        const Sight sight{causal  ? causal_
                          : state ? state_
                                  : full_,
                          i,
                          in.pos,
                          slot,
                          causal ? Tensor{} : in.length,
                          state ? in.prefix : Tensor{}};
        Rows entering;
        VV_TRY(point());
        if (c_.crosses(i)) {
          VV_TRY(crossed(i, in, slot));
        } else if (folds()) {
          VV_TRY(folded(i, s, sight));
        } else if (adaptive) {
          VV_TRY(see_deferred(b_.attn_ada[i], s, at_.expert(i, 0)));
          VV_TRY(ada_norm(b, now(b_.attn_ada[i]), QuantizationSites::none, &entering));
          VV_TRY(attend(b, entering, w, sight, at_.expert(i, 1), b.hidden, b.hidden));
          VV_TRY(see_deferred(b_.mlp_ada[i], s, at_.expert(i, 2)));
          VV_TRY(ada_norm(b, now(b_.mlp_ada[i]), QuantizationSites::none, &entering));
          VV_TRY(mlp(b, entering, w, at_.expert(i, 3), b.hidden, b.hidden));
        } else {
          VV_TRY(rms_norm(b, w.attn_norm, QuantizationSites::none, &entering));
          VV_TRY(attend(b, entering, w, sight, QuantizationSites::none, b.hidden, b.hidden));
          VV_TRY(rms_norm(b, w.mlp_norm, QuantizationSites::none, &entering));
          VV_TRY(mlp(b, entering, w, QuantizationSites::none, b.hidden, b.hidden));
        }
      }
      VV_TRY(op_.norm(b.hidden, {w_.expert_norm, {}, adaptive ? now(b_.final_ada) : Ada{}}, {b_.out}));
      VV_TRY(show("expert_out", step, b_.out));
      VV_TRY(advance(in));
      VV_TRY(show("x", step + 1, in.x));
    }
    return {};
  }

  /// Time tables, from which the flow takes rows: all that the time decides is known at load.
  Status tables(const Tensor& time, const Tensor (&scratch)[3]) {
    const auto dense = [&](const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& out,
                           std::string_view act) { return op_.linear({x}, {w, bias}, out, {.act = act}); };
    VV_TRY(show("time_sincos", -1, time));
    const int64_t H = c_.expert.width;
    if (!c_.has(kAdaNorm))
      return dense(slice(time, 0, x_.steps), columns(w_.time_in.w, H, H), w_.time_in.bias, b_.time_bias, "none");
    const auto& [inner, condition, all] = scratch;
    VV_TRY(dense(time, w_.time_in.w, w_.time_in.bias, inner, "silu"));
    VV_TRY(dense(inner, w_.time_out.w, w_.time_out.bias, condition, "silu"));
    VV_TRY(show("adarms_cond", -1, condition));
    const auto table = [&](const Matrix& m, const Tensor& out) -> Status {
      VV_TRY(dense(condition, m.w, m.bias, all, "none"));
      return rec_(ops::cast, {{"x", all}, {"out", out}});
    };
    for (size_t i = 0; i < w_.expert.size(); ++i) {
      const GemmaLayer& w = w_.expert[i];
      VV_TRY(table(w.attn_ada, b_.attn_ada[i]));
      VV_TRY(table(w.mlp_ada, b_.mlp_ada[i]));
      if (b_.attn_shift.empty()) continue;
      VV_TRY(op_.linear({columns(b_.attn_ada[i], H, H)}, w.qkv, b_.attn_shift[i]));
      VV_TRY(op_.linear({columns(b_.mlp_ada[i], H, H)}, w.gate_up, b_.mlp_shift[i]));
    }
    return table(w_.expert_ada, b_.final_ada);
  }

 private:
  /// Where others may go first.
  Status point() { return x_.gates != nullptr ? x_.gates->point(rec_.stream()) : Status(); }

  /// Where rows attend: the site, the layer whose keys and values they join, their positions, and what they see.
  struct Sight {
    int site;
    size_t layer;
    Tensor pos, slot, length, prefix;
  };
  /// SmolVLM2's connector: squares of patches side by side as tokens, behind the states' rows.
  Status connect(const ContextInputs& in, const Rows& normed) {
    const TowerBuffers& b = b_.vision;
    const Tensor beside = as(b.qkv, b.hidden.shape);
    VV_TRY(op_.gather(normed.x, b_.shuffle, beside));
    op_.rows = x_.full ? Tensor{} : in.view_rows;
    const int64_t M = b_.connected.shape[0];
    VV_TRY(op_.linear({as(beside, Shape(M, c_.shuffle * c_.shuffle * c_.vision.width))}, w_.projector, b_.connected));
    VV_TRY(show("image_tokens", -1, b_.connected));
    return op_.gather(b_.connected, b_.in_order, slice(b_.text.hidden, x_.batch, M), word_scale());
  }

  /// A layer of the flow that attends to the prefix alone.
  Status crossed(size_t i, const ActionInputs& in, const Tensor& slot) {
    const TowerBuffers& b = b_.expert;
    const GemmaLayer& w = w_.expert[i];
    Rows entering;
    VV_TRY(rms_norm(b, w.attn_norm, QuantizationSites::none, &entering));
    VV_TRY(op_.linear(entering, w.qkv, flat(b.q)));
    VV_TRY(rec_(ops::rope, {{"x", b.q}, {"inv_freq", b_.inv_freq}, {"pos", in.own_pos}, {"out", b.q}}));
    VV_TRY(cross_sites_.run(rec_, cross_, static_cast<int64_t>(i),
                            {.q = b.q, .out = b.attended, .slot = slot, .length = in.prefix}));
    VV_TRY(op_.linear({flat(b.attended)}, w.o, b.hidden, {.residual = b.hidden}));
    VV_TRY(rms_norm(b, w.mlp_norm, QuantizationSites::none, &entering));
    return mlp(b, entering, w, QuantizationSites::none, b.hidden, b.hidden);
  }

  double word_scale() const { return std::sqrt(static_cast<double>(c_.text.width)); }

  /// Attention of normed rows, through its output product.
  Status attend(const TowerBuffers& b, const Rows& x, const GemmaLayer& w, const Sight& sight, int64_t place,
                const Tensor& out, const Tensor& residual) {
    VV_TRY(op_.linear(x, w.qkv, b.qkv));
    const Rows attended = attended_rows(b, w, place);
    VV_TRY(attention(b, sight, attended));
    Rows entering = attended;
    if (!attended.scale.present()) VV_TRY(in_.enter(b, attended.x, place, w.o, &entering));
    Tensor gate;
    VV_TRY(gate_of(b, x.norm.ada, &gate));
    return op_.linear(entering, w.o, out, {.residual = residual, .gate = gate});
  }

  /// Where attention writes the rows that its output product reads: of the flow's expert in e4m3, if that reads it.
  Rows attended_rows(const TowerBuffers& b, const GemmaLayer& w, int64_t place) const {
    const Tensor rows = flat(b.attended);
    return x_.plan.expert && &b == &b_.expert && w.o.w.dtype == DType::e4m3 ? in_.activated(b, rows, place)
                                                                           : Rows{rows};
  }

  /// From qkv's rows to what attention makes of them.
  Status attention(const TowerBuffers& b, const Sight& s, const Rows& out) {
    return sites_.run(rec_, s.site, static_cast<int64_t>(s.layer), Projected{.qkv = b.qkv, .inv_freq = b_.inv_freq},
                      {.q = b.q,
                       .out = heads(out.x, b.attended.shape[1]),
                       .pos = s.pos,
                       .slot = s.slot,
                       .length = s.length,
                       .prefix = s.prefix,
                       .rows = op_.rows,
                       .out_scale = out.scale});
  }

  /// From queries, with keys and values in their cache, to what attention makes of them.
  Status attend_turned(const TowerBuffers& b, const Sight& s, const Rows& out) {
    return sites_.run(rec_, s.site, static_cast<int64_t>(s.layer),
                      {.q = b.q,
                       .out = heads(out.x, b.attended.shape[1]),
                       .pos = sites_[s.site].mask == "full" ? Tensor{} : s.pos,
                       .slot = s.slot,
                       .length = s.length,
                       .prefix = s.prefix,
                       .rows = op_.rows,
                       .out_scale = out.scale});
  }

  /// Which observation each row is of; of one there is nothing to look up, which attention would wait for.
  Tensor slots(const Tensor& slot) const { return x_.batch > 1 ? slot : Tensor{}; }

  /// Whether the flow's norms are taken behind their products: of actions that are all at one time.
  bool folds() const { return !b_.attn_shift.empty() && x_.even; }

  /// Rows of the expert whose norm is deferred, as they enter the product at `place`: in activations' type or, where it
  /// reads 8 bits, in e4m3.
  Rows deferred(int64_t place) const {
    const TowerBuffers& b = b_.expert;
    return {.x = b.normed,
            .scale = b.eight() ? in_.scale_of(place) : Tensor{},
            .squares = b.squares,
            .factors = b.row_scale};
  }

  /// A layer of the flow so: each product that writes hidden leaves, for the norm behind it, rows times their factors
  /// in `normed` and sums of their squares, and the next product scales its sums and adds the shift times its weights.
  /// rms_rows begins the first layer.
  Status folded(size_t i, int64_t step, const Sight& sight) {
    const TowerBuffers& b = b_.expert;
    const GemmaLayer& w = w_.expert[i];
    const auto now = [&](const Tensor& table) { return ada(slice(table, step, 1), {}); };
    const auto with_shift = [&](const Matrix& m, const Tensor& shift) {
      Matrix all = m;
      all.bias = row(shift, step);
      return all;
    };
    const auto onto = [&](const Rows& x, const Matrix& m, const Ada& behind, const Ada& next, int64_t place) -> Status {
      const Epilogue e{.residual = b.hidden, .gate = behind.gate};
      VV_TRY(op_.linear_then_defer(x, m, b.hidden, e, {.ada = next}, deferred(place)));
      return in_.entered(place, b.normed);
    };
    const Ada attn = now(b_.attn_ada[i]), mlp = now(b_.mlp_ada[i]);
    if (i == 0) {
      VV_TRY(op_.defer_norm(b.hidden, {.ada = attn}, deferred(at_.expert(i, 0))));
      VV_TRY(in_.entered(at_.expert(i, 0), b.normed));
    }
    VV_TRY(turned_heads(deferred(at_.expert(i, 0)), with_shift(w.qkv, b_.attn_shift[i]), sight, step == 0 && i == 0));
    const Rows attended = attended_rows(b, w, at_.expert(i, 1));
    VV_TRY(attend_turned(b, sight, attended));
    VV_TRY(in_.entered(at_.expert(i, 1), attended.x));
    VV_TRY(onto(attended, w.o, attn, mlp, at_.expert(i, 2)));
    const Rows inner = in_.activated(b, b.mlp, at_.expert(i, 3));
    VV_TRY(op_.gated(deferred(at_.expert(i, 2)), with_shift(w.gate_up, b_.mlp_shift[i]), inner, "gelu_tanh"));
    VV_TRY(in_.entered(at_.expert(i, 3), inner.x));
    if (i + 1 < w_.expert.size()) return onto(inner, w.down, mlp, now(b_.attn_ada[i + 1]), at_.expert(i + 1, 0));
    return op_.linear(inner, w.down, b.hidden, {.residual = b.hidden, .gate = mlp.gate});
  }

  /// Queries, keys and values of rows whose norm is deferred, turned, where attention finds them. Angles, positions and
  /// slots are read ahead: a call's first waits for all that is queued, and no later one runs before it.
  Status turned_heads(const Rows& x, const Matrix& m, const Sight& s, bool first) {
    const TowerBuffers& b = b_.expert;
    ops::Recorder ordered(rec_.stream());
    ops::Recorder& rec = first && !rec_.observed() ? ordered : rec_;  // an observer sees parts, which do not read ahead
    return rec(ops::rms_gemm_rope,
               {{"x", x.x},
                {"squares", x.squares},
                {"row_scale", x.factors},
                {"x_scale", x.scale},
                {"w", m.w},
                {"w_row_scale", m.scale.row},
                {"w_scale", m.scale.whole},
                {"bias", m.bias},
                {"qkv", b.qkv},
                {"q", b.q},
                {"k_cache", b_.k_cache[s.layer]},
                {"v_cache", b_.v_cache[s.layer]},
                {"pos", s.pos},
                {"slot", s.slot},
                {"angles", b_.angles},
                {"rows", op_.rows}},
               {{"eps", c_.eps}});
  }

  /// Where a norm stands before its product and somebody looks at what enters: the rows that would be without it, which
  /// are other ones.
  Status see_deferred(const Tensor& table, int64_t step, int64_t place) {
    const TowerBuffers& b = b_.expert;
    if (!in_.seen()) return {};
    VV_TRY(op_.defer_norm(b.hidden, {.ada = ada(slice(table, step, 1), {})}, {.x = b.normed, .squares = b.squares}));
    return in_.entered(place, b.normed);
  }

  /// The factor of a branch whose rows came by this norm: of all rows, or of each.
  Status gate_of(const TowerBuffers& b, const Ada& ada, Tensor* gate) {
    *gate = ada.gate;
    if (!ada.rows.present()) return {};
    *gate = b.gates;
    return op_.gather(ada.gate, ada.rows, b.gates);
  }

  /// The greedy token of the step's rows, where the next step and the host find it.
  Status pick_action_token(const ActionTokenInputs& in) {
    Rows entering;
    VV_TRY(point());
    VV_TRY(rms_norm(b_.expert, w_.text_norm, at_.head(), &entering));
    Matrix head = w_.head;
    if (!head.w.present()) head.w = w_.embed;
    VV_TRY(op_.linear(entering, head, b_.logits));
    VV_TRY(show("logits", -1, b_.logits));
    VV_TRY(rec_(ops::argmax, {{"x", b_.logits}, {"token", b_.next}}));
    return rec_(ops::advance,
                {{"token", b_.next}, {"fed", in.token}, {"pos", in.pos}, {"turn", in.turn}, {"ring", in.ring}});
  }

  /// Keys and values of the layer whose rows nobody reads.
  Status keys(const TowerBuffers& b, const Rows& x, const Matrix& kv, const Sight& s) {
    const Tower& t = c_.text;
    const Tensor both = columns(b.qkv, 0, 2 * t.kv_width());
    VV_TRY(op_.linear(x, kv, both));
    const Tensor k = heads(columns(both, 0, t.kv_width()), t.kv_heads),
                 v = heads(columns(both, t.kv_width(), t.kv_width()), t.kv_heads);
    VV_TRY(rec_(ops::rope, {{"x", k}, {"inv_freq", b_.inv_freq}, {"pos", s.pos}, {"out", k}, {"rows", op_.rows}}));
    return rec_(ops::kv_append, {{"k", k},
                                 {"v", v},
                                 {"pos", s.pos},
                                 {"slot", s.slot},
                                 {"k_cache", b_.k_cache[s.layer]},
                                 {"v_cache", b_.v_cache[s.layer]},
                                 {"rows", op_.rows}});
  }

  Status mlp(const TowerBuffers& b, const Rows& x, const GemmaLayer& w, int64_t place, const Tensor& out,
             const Tensor& residual) {
    const Rows inner = w.down.w.dtype == DType::e4m3 ? in_.activated(b, b.mlp, place) : Rows{b.mlp};
    VV_TRY(op_.gated(x, w.gate_up, inner, c_.has(kSmolVlm) ? "silu" : "gelu_tanh"));
    Rows entering = inner;
    VV_TRY(point());
    if (!inner.scale.present()) VV_TRY(in_.enter(b, inner.x, place, w.down, &entering));
    Tensor gate;
    VV_TRY(gate_of(b, x.norm.ada, &gate));
    return op_.linear(entering, w.down, out, {.residual = residual, .gate = gate});
  }

  /// Without adaptive norms: actions mixed with the time, behind pi0's token of the state.
  Status embed_actions(const ActionInputs& in, int64_t step) {
    const int64_t B = x_.batch, n = in.x.shape[0] / B, A = in.pos.shape[0] / B, H = c_.expert.width;
    const Tensor& hidden = b_.expert.hidden;
    for (int64_t i = 0; i < B; ++i) {
      if (c_.has(kStateToken)) VV_TRY(op_.linear({slice(in.state, i, 1)}, w_.state, slice(hidden, i * A, 1)));
      VV_TRY(op_.linear({slice(in.x, i * n, n)}, w_.action_in, b_.embedded));
      VV_TRY(
          op_.linear({b_.embedded}, {columns(w_.time_in.w, 0, H), row(b_.time_bias, step)}, b_.mixed, {.act = "silu"}));
      VV_TRY(op_.linear({b_.mixed}, w_.time_out, slice(hidden, (i + 1) * A - n, n)));
    }
    return {};
  }

  /// x += step_size * velocity.
  Status advance(const ActionInputs& in) {
    const int64_t B = x_.batch, n = in.x.shape[0] / B, A = b_.out.shape[0] / B;
    const auto step = [&](const Tensor& from, const Tensor& x, const Tensor& size) {
      return op_.linear({from}, w_.action_out, x, {.residual = x, .gate = size});
    };
    if (A == n) return step(b_.out, in.x, in.step_size);
    for (int64_t i = 0; i < B; ++i)
      VV_TRY(step(slice(b_.out, i * A + 1, n), slice(in.x, i * n, n), slice(in.step_size, i * n, n)));
    return {};
  }

  /// hidden's rows as they enter the one product behind a norm, which makes few of them itself unless somebody wants to
  /// see them or their scales.
  Status norm(const TowerBuffers& b, const NormBy& by, int64_t place, Rows* out) {
    *out = in_.normed(b, place);
    out->norm = by;
    if (b.hidden.shape[0] <= kFewRows && by.kind == "rms" && !in_.seen() &&
        (!b.eight() || out->scale.present())) {
      out->raw = b.hidden;
      return {};
    }
    VV_TRY(op_.norm(b.hidden, by, *out));
    return in_.entered(place, out->x);
  }
  Status ada_norm(const TowerBuffers& b, const Ada& ada, int64_t place, Rows* out) {
    return norm(b, {.ada = ada}, place, out);
  }
  Status rms_norm(const TowerBuffers& b, const Tensor& weight, int64_t place, Rows* out) {
    return norm(b, {.weight = weight}, place, out);
  }
  Status layer_norm(const TowerBuffers& b, const Norm& w, int64_t place, Rows* out) {
    return norm(b, {w.weight, w.bias, {}, "layer", c_.vision_eps}, place, out);
  }

  Status show(const char* name, int step, const Tensor& value) const {
    return x_.show ? x_.show(name, step, value) : Status();
  }

  ops::Recorder& rec_;
  LayerOps op_;
  const PolicyContext& x_;
  const PolicyConfig& c_;
  const PolicyWeights& w_;
  const PolicyBuffers& b_;
  QuantizationSites at_;
  QuantizedRows in_;
  AttentionSites sites_, cross_sites_;
  int full_, causal_, state_, cross_;  // sites
};

}  // namespace

Status record_context(ops::Recorder& rec, const PolicyContext& context, const ContextInputs& in) {
  GraphBuilder graph(rec, context);
  VV_TRY(graph.words(in));
  VV_TRY(graph.vision(in));
  return graph.prefix(in);
}

Status record_first_action_token(ops::Recorder& rec, const PolicyContext& context, const ActionTokenInputs& in) {
  return GraphBuilder(rec, context).first_action_token(in);
}

Status record_action_token(ops::Recorder& rec, const PolicyContext& context, const ActionTokenInputs& in) {
  return GraphBuilder(rec, context).action_token(in);
}

Status record_actions(ops::Recorder& rec, const PolicyContext& context, const ActionInputs& in) {
  return GraphBuilder(rec, context).flow(in);
}

Status record_tables(ops::Recorder& rec, const PolicyContext& context, const Tensor& time, const Tensor (&scratch)[3]) {
  return GraphBuilder(rec, context).tables(time, scratch);
}

}  // namespace vivace::models::vla
