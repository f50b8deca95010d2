// Which kernel computes a map or a fold of arrays on a GPU, its source and its arguments. Knows no driver.
#pragma once
#include <optional>
#include <string>

#include "vivace/array/array.h"
#include "vivace/jit/binary.h"
#include "vivace/kernels/map/launch.h"

namespace vivace::array {

/// A kernel's template arguments: what is compiled. No shape and no stride is among them.
struct GpuKernel {
  enum Kind : uint8_t { map, turned, rows, columns, finish } kind = map;
  kernels::MapProgram program;
  kernels::Walk walk[kernels::kMaxOperands] = {};
  kernels::Walk out_walk = kernels::Walk::dense;
  int width = 1;      // elements of a vector
  bool wide = false;  // offsets have 64 bits
  bool flat = false;  // map: one line
  int team = 32;      // rows: threads an output
  kernels::How how;   // fold
  kernels::Elem out = kernels::Elem::f32;  // fold: what is written
  const Expression* own = nullptr;         // map: in place of the program's steps

  /// Equal keys are equal kernels.
  std::string key() const;
  /// One kernel a translation unit, as the library compiles it.
  jit::Source source(Arch arch) const;
  /// The kernel's Body, if it has one, and how a fold of one's own joins; `name` tells Bodies of one unit apart.
  std::string body(const std::string& name) const;
  std::string expression(const std::string& name) const;
};

struct MapPlan {
  GpuKernel kernel;
  kernels::MapLaunch args;
  uint32_t grid = 0;  // blocks of kMapThreads; 0: nothing to do
};
/// `s` is collapsed. `scalars`: bit k is set where in[k] is the address of a value on the host, not of an array.
MapPlan plan_map(const kernels::MapProgram& p, const kernels::MapSpace& s, uint32_t scalars);

struct TurnedPlan {
  GpuKernel kernel;
  kernels::TurnedLaunch args;
  uint32_t grid = 0;
};
/// Where the output lies side by side along one axis and every operand along another, by tiles; else nothing. For
/// programs of the table that do not read the index.
std::optional<TurnedPlan> plan_turned(const kernels::MapProgram& p, const kernels::MapSpace& s, uint32_t scalars);

struct FoldPlan {
  GpuKernel kernel, last;
  kernels::FoldLaunch args;      // with splits > 1: partial is the caller's to set
  kernels::FinishLaunch finish;  // with splits > 1
  uint32_t grid[2] = {0, 1}, finish_grid = 0;
  int64_t partial_bytes = 0;
};
/// `f` is collapsed and has an output at least; `scalars` as above. `out`: i64 for argmax and argmin, else the
/// program's result.
FoldPlan plan_fold(const kernels::How& how, const kernels::MapProgram& p, const kernels::FoldSpace& f, uint32_t scalars,
                   kernels::Elem out);

}  // namespace vivace::array
