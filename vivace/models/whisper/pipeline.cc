#include "vivace/models/whisper/pipeline.h"

#include "vivace/base/check.h"
#include "vivace/models/layer/attention_sites.h"
#include "vivace/models/layer/layer_ops.h"
#include "vivace/models/layer/views.h"

namespace vivace::models::whisper {
namespace {

class GraphBuilder {
 public:
  GraphBuilder(ops::Recorder& rec, const WhisperContext& context, const Tensor& rows)
      : rec_(rec),
        op_(rec, context.config.eps, context.plan.act),
        c_(context.config),
        w_(context.weights),
        b_(context.buffers),
        in_(op_, b_.act_scales, context.enters),
        at_(c_),
        gates_(context.gates),
        stacks_(context.stacks) {
    op_.rows = rows;
  }

  Status features(const SoundInputs& in, int64_t W) {
    const int64_t F = W * c_.frames();
    VV_TRY(point());  // a graph's first: what lies before it would join the end of the one before
    return rec_(ops::stft_mel,
                {{"x", top(in.samples, W)},
                 {"window", b_.hann},
                 {"filters", b_.filters},
                 {"out", top(b_.logs, F)},
                 {"peak", top(b_.frame_peak, F)},
                 {"rows", op_.rows}},
                {{"hop", static_cast<double>(kHop)}, {"pad", "none"}});
  }

  Status encoder(const SoundInputs& in, int64_t W) {
    const int64_t F = W * c_.frames(), T = W * c_.source, H = c_.width, heads = c_.encoder.heads,
                  D = c_.head_dim(c_.encoder);
    VV_TRY(features(in, W));
    VV_TRY(point());
    VV_TRY(rec_(ops::mel_clamp, {{"x", top(b_.logs, F)},
                                 {"peak", top(in.peak, W)},
                                 {"length", top(in.length, W)},
                                 {"out", top(b_.mel, F)},
                                 {"rows", op_.rows}}));
    VV_TRY(point());
    const Tensor thin = top(b_.thin, F), hidden = top(b_.hidden, T);
    VV_TRY(convolution(as(top(b_.mel, F), Shape(W, 1, c_.frames(), c_.mels)), 1, w_.conv1,
                       as(b_.patches, Shape(F, 3 * c_.mels)), thin, {}));
    const Tensor wide = as(b_.patches, Shape(c_.source, 3 * H));
    for (int64_t i = 0; i < W; ++i) {  // one by one: each adds the same positions
      VV_TRY(point());
      VV_TRY(convolution(as(slice(thin, i * c_.frames(), c_.frames()), Shape(1, 1, c_.frames(), H)), 2, w_.conv2, wide,
                         slice(hidden, i * c_.source, c_.source), w_.sinusoids));
    }
    const Tensor qkv = top(b_.qkv, T), attended = as(b_.attended, Shape(T, heads, D));
    const CodeBuffers codes = top(b_.entering, T);
    const Qkv x = split_qkv(qkv, heads, D);
    Rows entering;
    for (size_t i = 0; i < w_.encoder.size(); ++i) {
      const EncoderLayer& l = w_.encoder[i];
      const int64_t at = at_.encoder(i);
      VV_TRY(point());
      VV_TRY(in_.norm(codes, hidden, layer_norm(l.attn_norm), at, &entering));
      VV_TRY(op_.linear(entering, l.qkv, qkv));
      VV_TRY(point());  // of eight windows attention alone takes what an urgent call may wait for
      VV_TRY(rec_(ops::attention,
                  {{"q", x.q},
                   {"k", blocks(x.k, c_.source)},
                   {"v", blocks(x.v, c_.source)},
                   {"slot", top(b_.sound_slot, T)},
                   {"out", attended},
                   {"rows", op_.rows}},
                  {{"mask", "full"}}));
      VV_TRY(point());
      VV_TRY(in_.enter(codes, as(attended, Shape(T, H)), at + 1, &entering));
      VV_TRY(op_.linear(entering, l.o, hidden, {.residual = hidden}));
      VV_TRY(point());
      VV_TRY(in_.norm(codes, hidden, layer_norm(l.mlp_norm), at + 2, &entering));
      const Rows inner = in_.activated(codes, top(b_.inner, T), at + 3);
      VV_TRY(op_.linear(entering, l.up, inner.x, {.out_scale = inner.scale, .act = "gelu_erf"}));
      VV_TRY(point());
      VV_TRY(in_.enter(codes, inner, at + 3, &entering));
      VV_TRY(op_.linear(entering, l.down, hidden, {.residual = hidden}));
    }
    VV_TRY(op_.norm(hidden, layer_norm(w_.encoder_norm), {hidden}));
    VV_TRY(in_.enter(codes, hidden, at_.sound(), &entering));
    for (size_t i = 0; i < w_.decoder.size(); ++i) {
      VV_TRY(point());
      VV_TRY(op_.linear(entering, w_.decoder[i].cross_k, as(top(b_.cross_k[i], W), Shape(T, H))));
      VV_TRY(op_.linear(entering, w_.decoder[i].cross_v, as(top(b_.cross_v[i], W), Shape(T, H))));
    }
    return {};
  }

  Status text(const TextInputs& in, const TextOutputs& out, int64_t T) {
    const auto& b = b_.text;
    const int64_t H = c_.width, heads = c_.decoder.heads, D = c_.head_dim(c_.decoder);
    const Tensor hidden = top(b.hidden, T), branch = top(b.branch, T), qkv = top(b.qkv, T),
                 attended = as(b.attended, Shape(T, H));
    const CodeBuffers codes = top(b.entering, T);
    const Tensor pos = top(in.pos, T), slot = top(in.slot, T), window = top(in.window, T), inner = top(b.inner, T);
    AttentionSites own(b_.k_cache, b_.v_cache), cross(b_.cross_k, b_.cross_v);
    const int self_site = own.add({.name = "self", .mask = "causal"}),
              cross_site = cross.add({.name = "cross", .mask = "full"});
    Rows entering;
    // Rows by a norm that the product behind takes in itself, a launch less of few rows; with a scale a row they are
    // made before it.
    const auto normed = [&](const Tensor& x, const Norm& n, int64_t place) -> Status {
      if (codes.normed_scale.present() || in_.seen()) return in_.norm(codes, x, layer_norm(n), place, &entering);
      entering = in_.normed(codes, place);
      entering.raw = x;
      entering.norm = layer_norm(n);
      return {};
    };
    // Attention's rows: codes at once where their scale is known.
    const auto each_head = [&](const Rows& r) { return models::heads(r.x, heads); };
    VV_TRY(point());
    VV_TRY(op_.gather(w_.table(), top(in.tokens, T), hidden));
    VV_TRY(op_.gather(w_.positions, pos, branch));
    const bool one_launch = stacks_ != nullptr && T == 1;
    if (one_launch) VV_TRY(all_layers(in, *stacks_));
    for (size_t i = 0; i < w_.decoder.size() && !one_launch; ++i) {
      const DecoderLayer& l = w_.decoder[i];
      const auto layer = static_cast<int64_t>(i);
      const int64_t at = at_.decoder(i);
      VV_TRY(point());
      if (i == 0) VV_TRY(in_.norm(codes, branch, layer_norm(l.attn_norm), at, &entering, hidden));
      else VV_TRY(normed(hidden, l.attn_norm, at));
      VV_TRY(op_.linear(entering, l.qkv, qkv));
      Rows rows = in_.activated(codes, attended, at + 1);
      VV_TRY(own.run(rec_, self_site, layer, Projected{.qkv = qkv},
                     {.q = as(b.q, Shape(T, heads, D)),
                      .out = each_head(rows),
                      .pos = pos,
                      .slot = slot,
                      .page_table = in.page_table,
                      .rows = op_.rows,
                      .out_scale = rows.scale}));
      VV_TRY(in_.enter(codes, rows, at + 1, &entering));
      VV_TRY(op_.linear(entering, l.o, hidden, {.residual = hidden}));
      VV_TRY(point());
      const Tensor q = top(b.cross_q[i], T);
      VV_TRY(normed(hidden, l.cross_norm, at + 2));
      VV_TRY(op_.linear(entering, l.cross_q, q));
      rows = in_.activated(codes, attended, at + 3);
      VV_TRY(cross.run(rec_, cross_site, layer,
                       Attending{.q = as(q, Shape(T, heads, D)),
                                 .out = each_head(rows),
                                 .pos = pos,
                                 .slot = window,
                                 .rows = op_.rows,
                                 .out_scale = rows.scale}));
      VV_TRY(in_.enter(codes, rows, at + 3, &entering));
      VV_TRY(op_.linear(entering, l.cross_o, hidden, {.residual = hidden}));
      VV_TRY(point());
      VV_TRY(normed(hidden, l.mlp_norm, at + 4));
      rows = in_.activated(codes, inner, at + 5);
      VV_TRY(op_.linear(entering, l.up, rows.x, {.out_scale = rows.scale, .act = "gelu_erf"}));
      VV_TRY(in_.enter(codes, rows, at + 5, &entering));
      VV_TRY(op_.linear(entering, l.down, hidden, {.residual = hidden}));
    }
    const Tensor last = top(b.last, T);
    VV_TRY(point());
    op_.rows = in.samples;
    VV_TRY(op_.gather(hidden, top(in.sample_rows, T), last));
    if (codes.eight()) {
      VV_TRY(normed(last, w_.decoder_norm, at_.head()));
    } else {
      entering = {last};
      VV_TRY(op_.norm(last, layer_norm(w_.decoder_norm), entering));
      VV_TRY(in_.entered(at_.head(), last));
    }
    VV_TRY(op_.linear(entering, {w_.projection(), {}, {w_.head_scale}}, top(b.logits, T)));
    VV_TRY(point());
    return rec_(ops::top_logprobs, {{"logits", top(b.logits, T)},
                                    {"token", top(out.token, T)},
                                    {"logprob", top(out.logprob, T)},
                                    {"wanted", top(in.told, T)},
                                    {"mask", in.mask},
                                    {"mask_slot", top(in.mask_slot, T)},
                                    {"spans", top(in.spans, T)},
                                    {"asked", top(in.asked, T)},
                                    {"asked_logprob", top(out.asked, T)},
                                    {"rows", in.samples}});
  }

 private:
  /// One row through all layers, as one op.
  Status all_layers(const TextInputs& in, const CrossStacks& s) {
    const Tensor hidden = top(b_.text.hidden, 1);
    return rec_(ops::decode_layers_cross,
                {{"x", hidden},
                 {"add", top(b_.text.branch, 1)},
                 {"norms", s.norms},
                 {"norm_biases", s.norm_biases},
                 {"biases", s.biases},
                 {"qkv", s.qkv},
                 {"o", s.o},
                 {"cross_q", s.cross_q},
                 {"cross_o", s.cross_o},
                 {"up", s.up},
                 {"down", s.down},
                 {"k_cache", s.k_cache},
                 {"v_cache", s.v_cache},
                 {"cross_k", s.cross_k},
                 {"cross_v", s.cross_v},
                 {"pos", top(in.pos, 1)},
                 {"slot", top(in.slot, 1)},
                 {"window", top(in.window, 1)},
                 {"page_table", in.page_table},
                 {"words", b_.decode_words},
                 {"queries", s.queries},
                 {"out", hidden},
                 {"rows", op_.rows}},
                {{"eps", c_.eps}});
  }
  /// Where others may go first.
  Status point() { return gates_ != nullptr ? gates_->point(rec_.stream()) : Status(); }
  /// Frames [n, 1, frames, C] through a kernel of three, with GELU behind.
  Status convolution(const Tensor& x, int stride, const Linear& m, const Tensor& patches, const Tensor& out,
                     const Tensor& residual) {
    VV_TRY(rec_(ops::im2col, {{"x", x}, {"out", patches}, {"rows", op_.rows}},
                {{"kernel_w", 3.0}, {"stride_w", static_cast<double>(stride)}, {"pad_w", 1.0}, {"order", "chw"}}));
    return op_.linear({patches}, m, out, {.residual = residual, .act = "gelu_erf"});
  }

  ops::Recorder& rec_;
  LayerOps op_;
  const WhisperConfig& c_;
  const WhisperWeights& w_;
  const WhisperBuffers& b_;
  QuantizedRows in_;
  QuantizationSites at_;
  engine::GateMarks* gates_;
  const CrossStacks* stacks_;
};

}  // namespace

Status record_features(ops::Recorder& rec, const WhisperContext& context, const SoundInputs& in, int64_t windows,
                       const Tensor& rows) {
  return GraphBuilder(rec, context, rows).features(in, windows);
}
Status record_encoder(ops::Recorder& rec, const WhisperContext& context, const SoundInputs& in, int64_t windows,
                      const Tensor& rows) {
  return GraphBuilder(rec, context, rows).encoder(in, windows);
}
Status record_text(ops::Recorder& rec, const WhisperContext& context, const TextInputs& in, const TextOutputs& out,
                   int64_t T) {
  return GraphBuilder(rec, context, in.rows).text(in, out, T);
}

}  // namespace vivace::models::whisper
