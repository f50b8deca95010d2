// The op table at run time: one row an op, made from ops.def and the op headers.
#pragma once
#include <functional>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "vivace/exec/stream.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

class Recorder;
class Contents;

/// A row of the table. For a primitive op `prepare` and `cost` are set, for a composite `decompose`, and `instances`
/// and `row_class` where it has a kernel of its own.
struct OpRow {
  const OpSpec* spec;
  /// Checked call -> launch for the target, whose memory the call's tensors are in. Setup phase; no
  /// work is issued.
  Status (*prepare)(const Call& call, const Target& target, exec::Launch* launch) = nullptr;
  Cost (*cost)(const Call& call) = nullptr;
  /// The kernel instances that serve a chip: what gates compile and packs hold. Empty without CUDA kernels.
  std::vector<Instance> (*instances)(Arch arch) = nullptr;
  /// Which invariance class the rows of a call are in on a GPU: among calls of one class that differ only in
  /// which rows they have, and how many, a row has the same bits. Null for a composite.
  int (*row_class)(const Call& call) = nullptr;
  /// Bytes of device memory of the library's that a call works in on a chip, beside its ports. Exact, and never the
  /// caller's to bring. Null for a composite, whose scratch memory is ports.
  Result<int64_t> (*workspace)(const Call& call, Arch arch) = nullptr;
  /// A launch needs what only a loaded device can say (tensor maps): such ops have no <op>_launch.h.
  bool needs_device = false;
  /// What the op trusts of contents, held against them in checked mode. Null: nothing.
  Status (*inspect)(const Call& call, const Contents& contents) = nullptr;
  /// Issues the ops that define this one on the recorder.
  Status (*decompose)(const Call& call, Recorder& recorder) = nullptr;

  /// Whether a chip has a kernel of this op's own; a composite without one runs as its parts.
  bool has_kernel(Arch arch) const { return instances != nullptr && !instances(arch).empty(); }
};

/// A semantic name: a primitive with some attributes fixed.
struct Alias {
  const char* name;
  const OpRow* op;
  const char* attrs;  // "act=silu,merged=1"
};

/// All rows in the order of ops.def; all aliases, in that of aliases.def.
std::span<const OpRow* const> table();
std::span<const Alias> aliases();
/// Row by op name, nullptr if there is none.
const OpRow* find(std::string_view name);

#define OP(name) extern const OpRow name;
#define COMPOSITE(name) extern const OpRow name;
#include "vivace/ops/ops.def"
#undef OP
#undef COMPOSITE

using PortArg = std::pair<std::string_view, Tensor>;
using AttrArg = std::pair<std::string_view, std::variant<double, std::string_view>>;

/// Binds ports and attributes by name; a port given as an empty Tensor{} is the same as a port not given.
Status bind(Call& call, std::initializer_list<PortArg> ports, std::initializer_list<AttrArg> attrs);

/// What a caller says of operands that kernels can read ahead (Port::ahead). ordered: they may have been written by
/// what is queued before, as any operand; a call that has some waits for all of it. constant: no work that is queued
/// and has not ended writes them, so that they come while the call before still runs (H200: 0.7 to 2 us a product of a
/// step).
enum class Weights : uint8_t { ordered, constant };

/// Where pipelines send ops: checks, prepares and launches each on one stream (which may be capturing).
class Recorder {
 public:
  /// Sees each primitive call right after it was enqueued: calibration, and tests of what lies between ops.
  using Observer = std::function<Status(const Call&)>;
  explicit Recorder(exec::Stream& stream, Weights weights = Weights::ordered, Observer observer = {})
      : stream_(&stream), weights_(weights), observer_(std::move(observer)) {}
  /// `rec(ops::norm, {{"x", x}, {"weight", w}, {"out", y}}, {{"eps", 1e-5}})`. Setup phase.
  /// A port given as an empty Tensor{} is the same as a port not given.
  Status operator()(const OpRow& op, std::initializer_list<PortArg> ports, std::initializer_list<AttrArg> attrs = {});
  /// The same for a call that is already bound.
  Status issue(const OpRow& op, Call& call);
  /// The same for a checked call and a preparation of the caller's: what OpRow::prepare is to a row.
  Status issue(const Call& call, const std::function<Status(const Call&, const Target&, exec::Launch*)>& prepare);
  exec::Stream& stream() { return *stream_; }
  /// Whether somebody sees each call: then a composite issues its parts, whose values are there to be seen.
  bool observed() const { return observer_ != nullptr; }

 private:
  exec::Stream* stream_;
  Weights weights_;
  Observer observer_;
};

}  // namespace vivace::ops
