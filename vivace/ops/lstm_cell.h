// lstm_cell: what a recurrent cell makes of its gates and of what it remembers.
#pragma once
#include "vivace/kernels/audio/lstm_cell.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void lstm_cell(const kernels::LstmCellArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct lstm_cell {
  using Args = kernels::LstmCellArgs;
  static constexpr Port kPorts[] = {
      in("gates", "T,4*H", "f32",
         "of each sequence, before their activations: input, forget, cell, output; a product of inputs and the last "
         "outputs makes them"),
      inout("cell", "T,H", "f32", "what each sequence remembers"),
      out("out", "T,H", "f32", "outputs"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "lstm_cell",
      .group = "audio",
      .brief = "One step of long short-term memory cells, from their gates on.",
      .formula =
          "cell = sigmoid(f) * cell + sigmoid(i) * tanh(g); out = sigmoid(o) * tanh(cell), (i, f, g, o) the quarters "
          "of a row of gates; f32.",
      .source =
          "S. Hochreiter and J. Schmidhuber, Long Short-Term Memory, 1997; with forget gates, F. A. Gers et al., 2000",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    const int64_t T = c.dim("T"), H = c.dim("H");
    if (T > INT32_MAX || H > INT32_MAX / 4)
      return c.error(Code::kInvalidShape, strf("T must be below 2^31 and H below 2^29, got %ld and %ld",
                                               static_cast<long>(T), static_cast<long>(H)));
    *a = Args{
        .gates = c.ptr<float>("gates"),
        .cell = c.ptr<float>("cell"),
        .out = c.ptr<float>("out"),
        .rows = c.ptr<int32_t>("rows"),
        .gates_stride = c.row_stride("gates"),
        .cell_stride = c.row_stride("cell"),
        .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(T),
        .H = static_cast<int32_t>(H),
    };
    return {};
  }
  static Cost cost(const Args& a) { return {.bytes = 28 * int64_t{a.T} * a.H, .flops = 20 * int64_t{a.T} * a.H}; }
  static void host(const Args& a, cpu::Pool& pool) { cpu::lstm_cell(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/audio/lstm_cell.cuh";
    using Policy = kernels::LstmCellPolicy;
    struct Key {
      Policy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr Policy kTactic = {128};

    static Result<Key> pick(const Args&, Arch) { return Key{kTactic}; }
    static std::string instance(const Key& k) {
      return kernel_expression("lstm_cell<vivace::kernels::LstmCellPolicy{%d}>", k.p.threads);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(a.T);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      visit(Key{kTactic});
    }
  };
};

}  // namespace vivace::ops::defs
