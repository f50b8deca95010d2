// StackRecorder: the ops that walks over stacks of transformer layers share. No backend is known here.
#pragma once
#include <string>

#include "vivace/engine/gate_plan.h"
#include "vivace/models/layer/parts.h"
#include "vivace/models/layer/show.h"
#include "vivace/models/layer/views.h"
#include "vivace/ops/registry.h"

namespace vivace::models {

/// Rows that attend and rows that are attended to, of sequences that lie one after the other.
struct Ragged {
  Tensor slot, offsets;  // whose sequence each query is in; where each sequence's keys are
  Tensor place;          // of a causal mask: of each query in its sequence
};

class StackRecorder {
 public:
  /// `eps`: of RMS norms. `gates`: where it stands back; null: nowhere. `act_scales`, `enters`: as QuantizedRows.
  StackRecorder(ops::Recorder& rec, double eps, const Show& show, engine::GateMarks* gates, const Tensor& act_scales,
                const Enters& enters)
      : rec_(rec), op_(rec, eps), in_(op_, act_scales, enters), show_(show), gates_(gates) {}

 protected:
  /// Attention's output product and the feed-forward of `l` behind it; places: of what enters them, the norm's between.
  Status finish(const StackBuffers& b, const Layer& l, double eps, const int64_t (&place)[3], bool stand_back) {
    Rows entering;
    VV_TRY(in_.enter(b, flat(b.attended), place[0], l.o, &entering));
    VV_TRY(op_.linear(entering, l.o, b.hidden, {.residual = b.hidden}));
    if (stand_back) VV_TRY(point());
    VV_TRY(in_.norm(b, b.hidden, layer_norm(l.mlp_norm, eps), place[1], &entering));
    const Rows inner = in_.activated(b, b.inner, place[2]);
    VV_TRY(op_.linear(entering, l.up, inner.x, {.out_scale = inner.scale, .act = "gelu_tanh"}));
    VV_TRY(in_.enter(b, inner, place[2], &entering));
    return op_.linear(entering, l.down, b.hidden, {.residual = b.hidden});
  }
  /// A layer that turns nothing: rows attend to those of their sequence. `place`: the first of its four, which follow
  /// each other; none: no site of it is calibrated.
  Status layer(const StackBuffers& b, const Layer& l, double eps, const Ragged& r, int64_t place) {
    Rows entering;
    VV_TRY(in_.norm(b, b.hidden, layer_norm(l.attn_norm, eps), place, &entering));
    VV_TRY(op_.linear(entering, l.qkv, b.qkv));
    VV_TRY(attend(b, own(b), r));
    const auto next = [place](int64_t k) { return place == QuantizedRows::none ? place : place + k; };
    return finish(b, l, eps, {next(1), next(2), next(3)}, false);
  }
  /// Rows that nothing turns, where their product wrote them.
  static Qkv own(const StackBuffers& b) { return split_qkv(b.qkv, b.attended.shape[1], b.attended.shape[2]); }
  /// Turns the pairs of one axis; the others' frequencies are 0, which leaves them as they are, bit for bit.
  Status turn(const StackBuffers& b, const Tensor& pos, const Tensor& freq) {
    for (const Tensor* t : {&b.q, &b.k})
      VV_TRY(rec_(ops::rope, {{"x", *t}, {"inv_freq", freq}, {"pos", pos}, {"out", *t}, {"rows", op_.rows}}));
    return {};
  }
  Status attend(const StackBuffers& b, const Qkv& x, const Ragged& r) {
    const auto block = [](const Tensor& t) { return t.shape.rank == 4 ? t : blocks(t, t.shape[0]); };
    return rec_(ops::attention,
                {{"q", x.q},
                 {"k", block(x.k)},
                 {"v", block(x.v)},
                 {"pos", r.place},
                 {"slot", r.slot},
                 {"k_offsets", r.offsets},
                 {"out", b.attended},
                 {"rows", op_.rows}},
                {{"mask", r.place.present() ? "causal" : "full"}});
  }
  /// Where others may go first.
  Status point() { return gates_ != nullptr ? gates_->point(rec_.stream()) : Status(); }
  Status show(const std::string& name, int step, const Tensor& value) const {
    return show_ ? show_(name, step, value) : Status();
  }

  ops::Recorder& rec_;
  LayerOps op_;
  QuantizedRows in_;
  const Show& show_;
  engine::GateMarks* gates_;
};

}  // namespace vivace::models
