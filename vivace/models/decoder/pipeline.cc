#include "vivace/models/decoder/pipeline.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "vivace/base/check.h"
#include "vivace/models/layer/attention_sites.h"
#include "vivace/models/layer/layer_ops.h"
#include "vivace/models/layer/views.h"

namespace vivace::models::decoder {
namespace {

/// Rows up to which attention writes the codes that enter o itself. H200, 8B: a step of one 2,412 to 2,335 us, of 32
/// 3,897 to 3,805; a prompt of 1,024, whose tiles' codes leave in pieces of 16 bytes, 12.30 to 12.43 ms.
constexpr int64_t kQuantizedRows = 64;

/// A part of the lm_head has a multiple of so many rows.
constexpr int64_t kHeadRows = 64;

/// Whether one product gives all that a recurrent layer takes of its rows: b and a are the last rows of delta_in.
bool has_whole_input(const DecoderConfig& c, const LayerWeights& w) {
  return w.delta_in.present() && w.delta_in.shape[0] > c.linear.conv_width() + c.linear.v_width();
}

class Step {
 public:
  Step(ops::Recorder& rec, const StepContext& context, const StepInputs& in, int64_t T)
      : rec_(rec),
        op_(rec, context.config.eps, context.plan.act, context.config.norm_plus_one),
        c_(context.config),
        plan_(context.plan),
        w_(context.weights),
        b_(context.buffers),
        in_(in),
        T_(T),
        R_(in.sample_rows.present() ? in.sample_rows.shape[0] : T),
        attn_factor_(context.attn_factor),
        stream_(context.stream),
        gates_(context.gates),
        head_parts_(rec.observed() ? 1 : context.head_parts),
        moved_(context.moved != nullptr ? *context.moved : in),
        deferred_(context.deferred_norms && context.stacks == nullptr && T <= kDeferredNormRows && !in.image.present()),
        guesses_(context.guesses),
        captured_(context.captured),
        stacks_(rec.observed() ? nullptr : context.stacks),
        entry_(context.plan.entry),
        hidden_(top(b_.hidden, T)),
        pos_(top(in.pos, T)),
        slot_(top(in.slot, T)),
        sites_(b_.k_cache, b_.v_cache),
        global_(sites_.add({.name = "global", .mask = "causal", .scale = c_.attn_scale})),
        local_(sites_.add(
            {.name = "local", .mask = "causal", .window = static_cast<double>(c_.window), .scale = c_.attn_scale})) {
    op_.rows = in.rows;
    if (uses_branch(c_)) branch_ = top(b_.branch, T);
  }

  Status record() {
    const Tensor tokens = top(in_.tokens, T_);
    const double scale = c_.has(kScaledEmbedding) ? std::sqrt(static_cast<double>(c_.hidden)) : 1;
    // Where rows may be images', words are rows of the same table as they.
    const bool images = in_.image.present();
    const Tensor words = images ? slice(b_.mixed, b_.mixed.shape[0] - b_.hidden.shape[0], T_) : hidden_;
    VV_TRY(op_.gather(w_.embed, tokens, words, scale));
    if (images) VV_TRY(op_.gather(b_.mixed, top(in_.image, T_), hidden_));
    if (c_.has(kLearnedPositions)) {
      VV_TRY(op_.gather(w_.positions, pos_, branch_));
      waiting_ = true;
    }
    VV_TRY(rec_(ops::count_tokens, {{"ids", tokens}, {"slot", slot_}, {"counts", b_.counts}, {"rows", in_.rows}}));
    if (stacks_ != nullptr) {
      VV_TRY(all_layers(*stacks_));
      return sample();
    }
    for (size_t i = 0; i < w_.layers.size(); ++i) {
      layer_ = static_cast<int64_t>(i);
      if (const size_t resident = w_.layers.size() - streamed(); i >= resident)
        VV_TRY(stream_->bring(rec_.stream(), i - resident));
      VV_TRY(point());
      VV_TRY(c_.is_recurrent(i) ? recurrent(w_.layers[i]) : attention(w_.layers[i], i));
      VV_TRY(point());
      VV_TRY(mlp(w_.layers[i]));
      if (images && i < b_.levels.size()) {
        VV_TRY(op_.gather(b_.levels[i], top(in_.level, T_), branch_));
        waiting_ = true;
      }
    }
    VV_TRY(point());
    if (c_.drafts) VV_TRY(hear(hidden_, in_.sample_rows.present() ? b_.last.shape[0] : 0, T_));
    return sample();
  }

  Status record_draft() {
    const DraftWeights& d = w_.draft;
    const Tensor both = top(b_.draft_in, T_), heard = slice(b_.heard, own(), R_);
    drafts_ = true;
    entry_ = ActQuant::plain;  // its matrices are 16-bit under every plan of e4m3 activations
    VV_TRY(op_.gather(w_.embed, top(in_.tokens, T_), hidden_));
    VV_TRY(op_.norm(hidden_, norm_by(d.embed_norm, {}), {columns(both, 0, c_.hidden)}));
    if (in_.source.present()) VV_TRY(op_.gather(b_.heard, top(in_.source, T_), hidden_));
    VV_TRY(op_.norm(in_.source.present() ? hidden_ : heard, norm_by(d.hidden_norm, {}),
                    {columns(both, c_.hidden, c_.hidden)}));
    VV_TRY(op_.linear({both}, {d.fc, {}, d.fc_scale}, hidden_));
    layer_ = c_.layers;
    carried_ = static_cast<size_t>(c_.recurrent_layers());
    VV_TRY(attention(d.layer, w_.layers.size()));
    VV_TRY(mlp(d.layer));
    return sample();
  }

 private:
  /// Where others may go first.
  Status point() {
    if (gates_ == nullptr || !gates_->at(point_++)) return {};
    return rec_.stream().pass(*gates_->site.gate, gates_->site.mask);
  }
  /// Of `heard`: the draft layer's own rows.
  int64_t own() const { return b_.heard.shape[0] - b_.last.shape[0]; }
  /// Rows of `x` as the draft layer goes on from them, to `heard` from row `first` on.
  Status hear(const Tensor& x, int64_t first, int64_t n) {
    const Tensor out = slice(b_.heard, first, n);
    if (c_.drafts_from_normed) return op_.norm(x, norm_by(final_norm(), {}), {out});
    return op_.gather(x, top(b_.each_row, n), out);
  }
  const Tensor& final_norm() const { return drafts_ ? w_.draft.norm : w_.final_norm; }
  size_t streamed() const { return stream_ == nullptr ? 0 : stream_->layers().size(); }

  /// One row through all layers, as one op.
  Status all_layers(const LayerStacks& s) {
    return rec_(ops::decode_layers,
                {{"x", hidden_},
                 {"attn_norm", s.attn_norm},
                 {"qkv", s.qkv},
                 {"qkv_scale", s.qkv_scale},
                 {"qkv_bias", s.qkv_bias},
                 {"q_norm", s.q_norm},
                 {"k_norm", s.k_norm},
                 {"o", s.o},
                 {"o_scale", s.o_scale},
                 {"mlp_norm", s.mlp_norm},
                 {"gate_up", s.gate_up},
                 {"gate_up_scale", s.gate_up_scale},
                 {"down", s.down},
                 {"down_scale", s.down_scale},
                 {"inv_freq", b_.inv_freq},
                 {"k_cache", s.k_cache},
                 {"v_cache", s.v_cache},
                 {"pos", pos_},
                 {"slot", slot_},
                 {"page_table", b_.page_table},
                 {"words", b_.decode_words},
                 {"out", hidden_},
                 {"rows", in_.rows}},
                {{"eps", c_.eps}, {"attn_factor", attn_factor_}});
  }

  Status attention(const LayerWeights& w, size_t layer) {
    const int64_t nq = c_.q_width(), nk = c_.kv_width(), gates = c_.has(kGatedAttention) ? nq : 0;
    const Tensor all = columns(top(b_.qkv, T_), 0, nq + 2 * nk + gates), qkv = columns(all, 0, nq + 2 * nk);
    const Tensor q = top(b_.q, T_), attended = top(b_.attended, T_);
    const bool local = c_.is_local(layer);
    VV_TRY(add_norm(norm_by(w.attn_norm, w.attn_norm_bias), kAttentionIn));
    if (w.qkv.present()) {
      VV_TRY(op_.linear(normed_, {w.qkv, w.qkv_bias, w.qkv_scale}, all));
    } else {
      VV_TRY(settle());
      if (w.qk.present()) {
        VV_TRY(op_.linear(normed_, {w.qk, w.qk_bias}, columns(qkv, 0, nq + nk)));
      } else {
        VV_TRY(op_.linear(normed_, {w.q, w.q_bias}, columns(qkv, 0, nq)));
        VV_TRY(op_.linear(normed_, {w.k, w.k_bias}, columns(qkv, nq, nk)));
      }
      VV_TRY(op_.linear(normed_, {w.v, w.v_bias}, columns(qkv, nq + nk, nk)));
      if (gates > 0) VV_TRY(op_.linear(normed_, {w.attn_gate}, columns(all, nq + 2 * nk, nq)));
    }
    Rows entering;
    if (entry_ == ActQuant::per_tensor && T_ <= kQuantizedRows && gates == 0)
      entering = quantized(b_.quantized, {}, T_, at(kAttended)),
      entering.x = columns(entering.x, 0, nq);  // attention writes them itself
    VV_TRY(sites_.run(rec_, local ? local_ : global_, static_cast<int64_t>(layer - carried_),
                      {.qkv = qkv,
                       .inv_freq = local ? b_.local_inv_freq : b_.inv_freq,
                       .q_norm = w.q_norm,
                       .k_norm = w.k_norm,
                       .shift = in_.shift.present() ? columns(in_.shift, 0, T_) : Tensor{},
                       .axis = in_.image.present() ? b_.axis : Tensor{},
                       .style = c_.rope_style,
                       .attn_factor = local ? 1.0 : attn_factor_,
                       .eps = c_.eps,
                       .norm_plus_one = c_.norm_plus_one && w.q_norm.present(),
                       .scaled = scaled_cache(w, static_cast<int64_t>(layer - carried_))},
                      {.q = q,
                       .out = entering.x.present() ? heads(entering.x, c_.heads) : attended,
                       .pos = pos_,
                       .slot = slot_,
                       .page_table = b_.page_table,
                       .rows = in_.rows,
                       .out_scale = entering.scale,
                       .words = b_.attention_words,
                       .stable = captured_}));  // earlier steps wrote the past, the host or they the places
    if (gates > 0) VV_TRY(gate(attended, heads(columns(all, nq + 2 * nk, nq), c_.heads), "sigmoid"));
    if (!entering.x.present()) VV_TRY(enter(flat(attended), kAttended, &entering));
    VV_TRY(point());
    VV_TRY(onto(entering, {w.o, w.o_bias, w.o_scale, w.v_scale}, target(w.attn_post_norm), residual(w.attn_post_norm),
                w.mlp_norm));
    return post_norm(w.attn_post_norm);
  }
  ScaledCache scaled_cache(const LayerWeights& w, int64_t cache) const {
    if (!w.scales_cache()) return {};
    const Tensor both = row(b_.kv_scale, cache);
    return {slice(both, 0, 1), slice(both, 1, 1), w.k_scale, top(b_.kv_wide, T_), top(b_.kv_codes, T_)};
  }

  /// x = x * act(gate), each head normalised first where `norm` is there.
  Status gate(const Tensor& x, const Tensor& by, std::string_view act, const Tensor& norm = {}) {
    return rec_(ops::gate_heads, {{"x", x}, {"gate", by}, {"weight", norm}, {"out", x}, {"rows", in_.rows}},
                {{"act", act}, {"eps", c_.eps}});
  }

  /// Gated DeltaNet: a short convolution, then a state that each token decays and corrects.
  Status recurrent(const LayerWeights& w) {
    const RecurrentConfig& r = c_.linear;
    const int64_t C = r.conv_width(), K = r.k_width(), V = r.v_width(), H = r.v_heads;
    const Tensor in = columns(top(b_.qkv, T_), 0, C + V), ba = columns(top(b_.qkv, T_), C + V, 2 * H);
    VV_TRY(add_norm(norm_by(w.attn_norm, {}), kAttentionIn, true));
    const bool whole = has_whole_input(c_, w);
    if (eight() || !whole) VV_TRY(settle());
    Rows entering = normed_;
    if (eight()) {
      entering = quantized(b_.normed, b_.normed_scale, T_, at(kAttentionIn));
      VV_TRY(op_.quantize(normed_.x, entering));
    }
    if (w.delta_in.present()) {
      VV_TRY(op_.linear(entering, {w.delta_in, {}, w.delta_in_scale},
                        whole ? columns(top(b_.qkv, T_), 0, C + V + 2 * H) : in));
    } else {
      VV_TRY(op_.linear(normed_, {w.conv_in}, columns(in, 0, C)));
      VV_TRY(op_.linear(normed_, {w.delta_gate}, columns(in, C, V)));
    }
    if (whole) {
      // they are there
    } else if (w.delta_ba.present()) {
      VV_TRY(op_.linear(normed_, {w.delta_ba}, ba));
    } else {
      VV_TRY(op_.linear(normed_, {w.delta_b}, columns(ba, 0, H)));
      VV_TRY(op_.linear(normed_, {w.delta_a}, columns(ba, H, H)));
    }
    const bool runs = guesses_ || in_.sample_rows.present();  // else each row is one
    const bool few = guesses_;  // of a step of answers: at most a run a row
    const Tensor offsets = few    ? top(in_.run_offsets, T_ + 1)
                           : runs ? in_.run_offsets
                                  : top(b_.each_row, T_ + 1),
                 slot = few    ? top(in_.run_slot, T_)
                        : runs ? in_.run_slot
                               : slot_,
                 fresh = runs && !few ? in_.run_fresh : Tensor{};
    const Tensor conv = top(b_.conv, T_), delta = heads(top(b_.delta, T_), H);
    const auto convolve = [&](const Tensor& first, const Tensor& whose, const Tensor& zero, bool frozen) {
      return rec_(ops::causal_conv,
                  {{"x", columns(in, 0, C)},
                   {"weight", w.conv},
                   {"state", state(0, Shape(b_.state.shape[0], r.taps - 1, C))},
                   {"offsets", first},
                   {"slot", whose},
                   {"fresh", zero},
                   {"out", conv},
                   {"rows", in_.rows}},
                  {{"act", "silu"}, {"frozen", frozen ? 1.0 : 0.0}});
    };
    VV_TRY(convolve(offsets, slot, fresh, false));
    if (guesses_) VV_TRY(convolve(top(in_.guess_offsets, T_ + 1), top(in_.guess_slot, T_), {}, true));
    const auto carry = [&](const Tensor& first, const Tensor& whose, const Tensor& zero, bool frozen) {
      return rec_(ops::gated_delta,
                  {{"q", heads(columns(conv, 0, K), r.k_heads)},
                   {"k", heads(columns(conv, K, K), r.k_heads)},
                   {"v", heads(columns(conv, 2 * K, V), H)},
                   {"a", columns(ba, H, H)},
                   {"b", columns(ba, 0, H)},
                   {"rate", w.delta_rate},
                   {"bias", w.delta_bias},
                   {"state", state(r.conv_state(), Shape(b_.state.shape[0], H, r.k_dim, r.v_dim))},
                   {"offsets", first},
                   {"slot", whose},
                   {"fresh", zero},
                   {"out", delta},
                   {"rows", in_.rows}},
                  {{"normalize", 1.0}, {"frozen", frozen ? 1.0 : 0.0}});
    };
    VV_TRY(carry(offsets, slot, fresh, false));
    if (guesses_) VV_TRY(carry(top(in_.guess_offsets, T_ + 1), top(in_.guess_slot, T_), {}, true));
    VV_TRY(gate(delta, heads(columns(in, C, V), H), "silu", w.delta_norm));
    VV_TRY(point());
    ++carried_;
    VV_TRY(enter(flat(delta), kAttended, &entering));
    return onto(entering, {w.o, {}, w.o_scale}, hidden_, hidden_, w.mlp_norm);
  }
  /// All slots' rows of this layer's state, from float `first` on.
  Tensor state(int64_t first, const Shape& shape) const {
    Tensor t = tensor(static_cast<float*>(b_.state.data) + static_cast<int64_t>(carried_) * c_.linear.state() + first,
                      DType::f32, shape, b_.state.place);
    t.stride[0] = b_.state.stride[0];
    return t;
  }

  /// The expert that every token takes, onto the residual stream, where it is no expert like the others.
  Status shared_expert(const LayerWeights& w) {
    const Tensor both = top(b_.shared, T_), inner = top(b_.shared_inner, T_), open = top(b_.shared_open, T_);
    VV_TRY(op_.linear(normed_, {w.shared_gate}, columns(both, 0, c_.shared_mlp)));
    VV_TRY(op_.linear(normed_, {w.shared_up}, columns(both, c_.shared_mlp, c_.shared_mlp)));
    VV_TRY(op_.linear(normed_, {w.shared_open}, open));
    VV_TRY(rec_(ops::act_mul, {{"x", both}, {"out", inner}, {"rows", in_.rows}}, {{"act", c_.family->act}}));
    VV_TRY(gate(heads(inner, 1), heads(open, 1), "sigmoid"));
    return op_.linear({inner}, {w.shared_down}, hidden_, {.residual = hidden_});
  }

  Status mlp(const LayerWeights& w) {
    VV_TRY(add_norm(norm_by(w.mlp_norm, w.mlp_norm_bias), kMlpIn, c_.has(kExperts)));
    const Tensor out = target(w.mlp_post_norm), plus = residual(w.mlp_post_norm);
    if (c_.has(kExperts)) {
      VV_TRY(settle());
      VV_TRY(experts(w, plus, out));
      if (c_.has(kSharedExpert) && !w_.shared_is_expert) VV_TRY(shared_expert(w));
    } else if (c_.has(kPlainMlp)) {
      const Rows inner = inner_rows();
      VV_TRY(op_.linear(normed_, {w.up, w.up_bias, w.up_scale}, inner.x,
                        {.out_scale = inner.scale, .act = c_.family->act}));
      Rows entering;
      VV_TRY(enter(inner, &entering));
      VV_TRY(point());
      VV_TRY(op_.linear(entering, {w.down, w.down_bias, w.down_scale}, out, {.residual = plus}));
    } else if (w.gate_up.present()) {
      const Rows inner = inner_rows();
      VV_TRY(op_.gated(normed_, {w.gate_up, {}, w.gate_up_scale}, inner, c_.family->act));
      Rows entering;
      VV_TRY(enter(inner, &entering));
      VV_TRY(point());
      const size_t next = static_cast<size_t>(layer_) + 1;  // whose weights are here already, unless they take turns
      VV_TRY(onto(entering, {w.down, {}, w.down_scale}, out, plus,
                  next < w_.layers.size() - streamed() ? w_.layers[next].attn_norm : Tensor{}));
    } else {
      VV_TRY(settle());
      VV_TRY(rec_(ops::gated_mlp,
                  {{"x", normed_.x},
                   {"w_gate", w.gate},
                   {"w_up", w.up},
                   {"w_down", w.down},
                   {"residual", plus},
                   {"out", out},
                   {"gate_up", top(b_.gate_up, T_)},
                   {"hidden", top(b_.mlp, T_)},
                   {"rows", in_.rows}},
                  {{"act", c_.family->act}, {"quant", op_.act(w.gate)}}));
    }
    return post_norm(w.mlp_post_norm);
  }

  Status experts(const LayerWeights& w, const Tensor& plus, const Tensor& out) {
    const int64_t A = T_ * b_.place.shape[1];
    return rec_(ops::moe_mlp,
                {{"x", normed_.x},
                 {"router", w.router},
                 {"w_gate", w.gate},
                 {"w_up", w.up},
                 {"w_down", w.down},
                 {"gate_up_scale", w.gate_up_scale.row},
                 {"down_scale", w.down_scale.row},
                 {"residual", plus},
                 {"out", out},
                 {"logits", top(b_.route_logits, T_)},
                 {"weights", top(b_.route_weights, T_)},
                 {"place", top(b_.place, T_)},
                 {"token", top(b_.token, A)},
                 {"offsets", b_.offsets},
                 {"gathered", top(b_.gathered, A)},
                 {"gate_up", top(b_.gate_up, A)},
                 {"hidden", top(b_.mlp, A)},
                 {"expert_out", top(b_.expert_out, A)},
                 {"rows", in_.rows}},
                {{"act", c_.family->act}, {"quant", op_.act(w.gate)},
                 {"renormalize", c_.renormalize ? 1.0 : 0.0},
                 {"shared", w_.shared_is_expert ? 1.0 : 0.0}});
  }

  Status sample() {
    // A row's logits cost as much as its whole stack of layers: only the sampled rows reach the head.
    Tensor last = top(b_.last, R_), sum;
    const Tensor logits = top(b_.logits, R_), next = top(b_.next, R_), logprob = top(b_.logprob, R_),
                 step = top(in_.sample_step, R_);
    const bool gathers = in_.sample_rows.present(), moves = !gathers || drafts_;
    op_.rows = in_.samples;
    if (gathers) VV_TRY(op_.gather(hidden_, in_.sample_rows, last));
    if (waiting_) {
      sum = gathers ? last : hidden_;
      last = gathers ? b_.last_branch : branch_;
      if (gathers) VV_TRY(op_.gather(branch_, in_.sample_rows, last));
    } else if (!gathers) {
      last = hidden_;
    }
    const bool by_row = b_.last_scale.present();  // also beside static scales of a checkpoint that has none of the head
    Rows entering = by_row             ? Rows{top(b_.last_quantized, R_), top(b_.last_scale, R_), {}}
                    : plan_.eight_in() ? quantized(b_.last_quantized, {}, R_, site_count(c_) - 1)
                                       : Rows{waiting_ ? last : top(b_.last, R_)};
    const NormBy by = norm_by(final_norm(), w_.final_norm_bias);
    if (drafts_) {
      VV_TRY(hear(last, own(), R_));
      const Tensor heard = slice(b_.heard, own(), R_);
      if (!c_.drafts_from_normed) VV_TRY(op_.norm(last, by, entering));
      else if (plan_.eight_in()) VV_TRY(op_.quantize(heard, entering));
      else entering.x = heard;
    } else if (folds(by) && !by_row) {
      if (!plan_.eight_in()) entering.x = top(b_.normed, R_);  // gathered rows lie in `last`
      entering.raw = last;
      entering.norm = by;
    } else {
      VV_TRY(op_.norm(last, by, entering, sum));
    }
    const Tensor bias = b_.bias.present() ? top(b_.row_bias, R_) : Tensor{};
    if (bias.present()) VV_TRY(op_.gather(b_.bias, top(in_.sample_slot, R_), bias));
    VV_TRY(head(entering, logits, bias));
    VV_TRY(point());
    VV_TRY(rec_(ops::sample, {{"logits", logits},
                              {"token", next},
                              {"logprob", logprob},
                              {"temperature", top(in_.temperature, R_)},
                              {"top_k", top(in_.top_k, R_)},
                              {"top_p", top(in_.top_p, R_)},
                              {"min_p", top(in_.min_p, R_)},
                              {"seed", top(in_.seed, R_)},
                              {"step", step},
                              {"counts", b_.counts},
                              {"slot", top(in_.sample_slot, R_)},
                              {"repetition", top(in_.repetition, R_)},
                              {"presence", top(in_.presence, R_)},
                              {"frequency", top(in_.frequency, R_)},
                              {"mask", b_.masks},
                              {"mask_slot", top(in_.mask_slot, R_)},
                              {"rows", in_.samples}}));
    return rec_(ops::advance, {{"token", next},
                               {"logprob", logprob},
                               {"turn", b_.turn},
                               {"ring", b_.ring},
                               {"ring_logprob", b_.ring_logprob},
                               {"rows", in_.samples},
                               {"fed", moves ? top(moved_.tokens, R_) : Tensor{}},
                               {"pos", moves ? top(moved_.pos, R_) : Tensor{}},
                               {"step", moves ? top(moved_.sample_step, R_) : Tensor{}}});
  }

  NormBy norm_by(const Tensor& weight, const Tensor& bias) const {
    return {weight, bias, {}, c_.has(kLayerNorm) ? "layer" : "rms"};
  }
  /// Whether activations enter products of this step's layers as e4m3.
  bool eight() const { return entry_ != ActQuant::plain; }
  /// normed = norm of the residual stream, which first takes in what waits in branch; `wide`: in 16 bits under every
  /// plan.
  Status add_norm(const NormBy& by, Site site, bool wide = false) {
    normed_ = eight() && !wide ? quantized(b_.normed, b_.normed_scale, T_, at(site))
                               : Rows{top(plan_.eight_in() ? b_.normed_wide : b_.normed, T_)};
    if (deferred_) {
      normed_ = deferred_rows();
      return std::exchange(scaled_, false) ? Status() : op_.defer_norm(hidden_, by, normed_);
    }
    if (folds(by)) {
      normed_.raw = hidden_;
      normed_.norm = by;
      return {};
    }
    const Status s = waiting_ ? op_.norm(branch_, by, normed_, hidden_) : op_.norm(hidden_, by, normed_);
    waiting_ = false;
    return s;
  }
  /// Whether the norm that comes may be left to the product behind it: nothing to add first, no scale a row to hand
  /// over.
  bool folds(const NormBy& by) const {
    return !waiting_ && !by.bias.present() && by.kind == "rms" && entry_ != ActQuant::per_token;
  }
  /// Where the residual stream goes for products that take its norm.
  Rows deferred_rows() const {
    Rows r{top(b_.normed, T_)};
    r.squares = top(b_.squares, T_);
    r.factors = top(b_.normed_scale, T_);
    return r;
  }
  /// Makes the rows of `normed_`, for readers that are no single product.
  Status settle() {
    if (!normed_.raw.present()) return {};
    VV_TRY(op_.norm(normed_.raw, normed_.norm, normed_));
    normed_.raw = Tensor{};
    return {};
  }

  /// Where a block's result goes and what is added to it: the residual stream, or branch if it has a norm of its own
  /// first.
  const Tensor& target(const Tensor& post) const { return post.present() ? branch_ : hidden_; }
  Tensor residual(const Tensor& post) const { return post.present() ? Tensor{} : hidden_; }
  Status post_norm(const Tensor& weight) {
    if (!weight.present()) return {};
    waiting_ = true;
    return op_.norm(branch_, norm_by(weight, {}), {branch_});
  }

  int64_t at(Site site) const { return layer_ * kSites + site; }
  /// The first n rows of a buffer of codes and of their scales; `site` has the scale that was made before.
  Rows quantized(const Tensor& x, const Tensor& row_scale, int64_t n, int64_t site) const {
    if (plan_.entry == ActQuant::per_token) return {top(x, n), top(row_scale, n), {}};
    return {top(x, n), {}, slice(b_.site_scale, site, 1)};
  }
  /// What the MLP's first half writes: codes, where their scale is known before.
  Rows inner_rows() const {
    if (entry_ != ActQuant::per_tensor) return {top(b_.mlp, T_)};
    Rows r = quantized(b_.quantized, {}, T_, at(kInner));
    r.x = columns(r.x, 0, c_.mlp);
    return r;
  }
  /// x as it enters a product: itself, or quantized into codes.
  Status enter(const Tensor& x, Site site, Rows* out) {
    *out = {x};
    if (!eight()) return {};
    *out = quantized(b_.quantized, b_.quantized_scale, T_, at(site));
    out->x = columns(out->x, 0, x.shape[1]);
    return op_.quantize(x, *out);
  }
  /// The MLP's rows, which may be codes already.
  Status enter(const Rows& inner, Rows* out) {
    *out = inner;
    return inner.scale.present() ? Status() : enter(inner.x, kInner, out);
  }

  /// The logits, in parts of whole rows of the matrix.
  Status head(const Rows& x, const Tensor& logits, const Tensor& bias) {
    if (head_parts_ == 1) return op_.linear(x, {w_.head, {}, w_.head_scale}, logits, {.residual = bias});
    const int64_t V = w_.head.shape[0], each = (V / head_parts_ + kHeadRows) / kHeadRows * kHeadRows;
    for (int64_t first = 0; first < V; first += each) {
      const int64_t n = std::min(each, V - first);
      const auto part = [&](const Tensor& t) { return t.present() ? slice(t, first, n) : Tensor{}; };
      const Matrix m{part(w_.head), {}, {part(w_.head_scale.row), part(w_.head_scale.block), w_.head_scale.whole}};
      if (first > 0) VV_TRY(point());
      VV_TRY(op_.linear(x, m, columns(logits, first, n),
                        {.residual = bias.present() ? columns(bias, first, n) : Tensor{}}));
    }
    return {};
  }

  /// A product that joins the residual stream. Where norms are taken behind, it leaves what the product behind the one
  /// with weight `next` takes.
  Status onto(const Rows& x, const Matrix& m, const Tensor& out, const Tensor& residual, const Tensor& next) {
    if (!deferred_ || !next.present()) return op_.linear(x, m, out, {.residual = residual});
    scaled_ = true;
    return op_.linear_then_defer({x.x}, m, out, {.residual = residual}, {.weight = next}, deferred_rows());
  }

  ops::Recorder& rec_;
  LayerOps op_;
  const DecoderConfig& c_;
  const PrecisionPlan& plan_;
  const DecoderWeights& w_;
  const StepBuffers& b_;
  const StepInputs& in_;
  int64_t T_, R_;
  double attn_factor_;
  const engine::LayerStream* stream_;
  const engine::GateWalk* gates_;
  size_t point_ = 0;      // of those that the step has marked
  int head_parts_;
  const StepInputs& moved_;
  bool deferred_;           // see deferred_norms()
  bool guesses_, captured_;
  const LayerStacks* stacks_;
  ActQuant entry_;        // of the layers' products; the head's is the plan's
  bool drafts_ = false;   // this is the draft layer
  bool scaled_ = false;   // normed and squares have what the next norm's product takes
  Tensor hidden_;
  int64_t layer_ = 0;
  size_t carried_ = 0;  // recurrent layers before this one
  Rows normed_;
  Tensor branch_, pos_, slot_;
  AttentionSites sites_;
  int global_, local_;
  bool waiting_ = false;  // branch holds what the residual stream lacks
};

}  // namespace

bool deferred_norms(const DecoderConfig& config, const PrecisionPlan& plan, const DecoderWeights& weights, Arch arch) {
  const bool plain = plan.entry == ActQuant::plain && info(plan.hidden).bytes == 2;
  if (!plain || !ops::rms_gemm.has_kernel(arch) || !ops::gemm_rms_rows.has_kernel(arch) ||
      (config.family->features & (kPostNorms | kExperts | kLayerNorm | kLearnedPositions | kPlainMlp)) != 0)
    return false;
  return std::all_of(weights.layers.begin(), weights.layers.end(), [&](const LayerWeights& w) {
    const bool recurrent = w.conv.present();
    if ((recurrent && !has_whole_input(config, w)) || w.scales_cache()) return false;
    const Tensor* const read[] = {recurrent ? &w.delta_in : &w.qkv, &w.o, &w.gate_up, &w.down};
    const Tensor* const norms[] = {&w.attn_norm, &w.mlp_norm};
    const auto alike = [&](const Tensor* t) { return t->present() && t->dtype == plan.hidden; };
    // Weights less 1 enter rms_rows as a scale, which has the dtype of its rows.
    return std::all_of(std::begin(read), std::end(read), alike) &&
           (!config.norm_plus_one || std::all_of(std::begin(norms), std::end(norms), alike));
  });
}

Status record_step(ops::Recorder& rec, const StepContext& context, const StepInputs& inputs, int64_t T) {
  return Step(rec, context, inputs, T).record();
}

Status record_draft(ops::Recorder& rec, const StepContext& context, const StepInputs& inputs, int64_t T) {
  return Step(rec, context, inputs, T).record_draft();
}

}  // namespace vivace::models::decoder
