// StackRecorder: the ops that walks over stacks of transformer layers share. No backend is known here.
#pragma once
#include <functional>
#include <string>

#include "vivace/engine/gate_plan.h"
#include "vivace/models/layer/parts.h"
#include "vivace/models/layer/views.h"
#include "vivace/ops/registry.h"

namespace vivace::models {

/// Sees values by name; `step` counts those of a loop, -1 outside.
using Show = std::function<Status(const std::string& name, int step, const Tensor& value)>;

/// Rows that attend and rows that are attended to, of sequences that lie one after the other.
struct Ragged {
  Tensor slot, offsets;  // whose sequence each query is in; where each sequence's keys are
  Tensor place;          // of a causal mask: of each query in its sequence
};

class StackRecorder {
 public:
  /// `eps`: of RMS norms. `gates`: where it stands back; null: nowhere.
  StackRecorder(ops::Recorder& rec, double eps, const Show& show, engine::GateMarks* gates)
      : rec_(rec), op_(rec, eps), show_(show), gates_(gates) {}

 protected:
  Status split(const StackBuffers& b) {
    return rec_(ops::qkv_rope, {{"qkv", b.qkv}, {"q", b.q}, {"k_out", b.k}, {"v_out", b.v}, {"rows", op_.rows}});
  }
  /// Turns the pairs of one axis; the others' frequencies are 0, which leaves them as they are, bit for bit.
  Status turn(const StackBuffers& b, const Tensor& pos, const Tensor& freq) {
    for (const Tensor* t : {&b.q, &b.k})
      VV_TRY(rec_(ops::rope, {{"x", *t}, {"inv_freq", freq}, {"pos", pos}, {"out", *t}, {"rows", op_.rows}}));
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
  const Show& show_;
  engine::GateMarks* gates_;
};

}  // namespace vivace::models
