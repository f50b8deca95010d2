#include "vivace/array/gpu_plan.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "vivace/array/types.h"
#include "vivace/base/check.h"

namespace vivace::array {
namespace {

using kernels::Axes;
using kernels::Divisor;
using kernels::Fold;
using kernels::FoldSpace;
using kernels::How;
using kernels::kIndex;
using kernels::kMapThreads;
using kernels::kMaxOperands;
using kernels::kOut;
using kernels::kTurnEdge;
using kernels::MapProgram;
using kernels::MapSpace;
using kernels::Walk;

constexpr int64_t kMostWidth = 8;  // elements of a vector: beyond it registers cost more than instructions save
constexpr int64_t kOffset32 = INT32_MAX / 2;  // offsets and counts below it fit 32 bits with room for a block's tail
constexpr int64_t kBlocks = 512;  // that a fold is split into, if its outputs are fewer: of the shape, not of the chip

/// A program that only copies moves bits.
MapProgram bits_of(MapProgram p) {
  if (p.steps != 0) return p;
  constexpr Elem kBits[] = {Elem::u8, Elem::u16, Elem::u32, Elem::u32, Elem::u64};  // by half the bytes
  p.operand[0] = p.result = kBits[unit_bytes(p.operand[0]) / 2];
  return p;
}

uint64_t scalar_bits(const void* value) {
  uint64_t bits;
  std::memcpy(&bits, value, sizeof bits);
  return bits;
}

void add_axis(Axes* axes, int64_t dim, const MapSpace& s, int operands, int from, bool output) {
  const int i = axes->rank++;
  axes->dim[i] = dim;
  axes->by[i] = Divisor::of(static_cast<int32_t>(std::clamp<int64_t>(dim, 1, INT32_MAX)));
  for (int k = 0; k < operands; ++k) axes->stride[k][i] = s.in_stride[k][from];
  axes->stride[kOut][i] = output ? s.out_stride[from] : 0;
}

/// How far offsets go, in elements, at most.
int64_t reach(const MapSpace& s, int operands) {
  int64_t most = 1;
  for (int k = 0; k <= operands; ++k) {
    int64_t sum = 0;
    for (int i = 0; i < s.rank; ++i)
      sum += (s.dim[i] - 1) * std::abs(k == operands ? s.out_stride[i] : s.in_stride[k][i]);
    most = std::max(most, sum);
  }
  int64_t elements = 1;
  for (int i = 0; i < s.rank; ++i) elements *= s.dim[i];
  return std::max(most, elements);
}

/// Whether vectors of `bytes` may start at the address and at every line: strides of the other axes in elements.
bool aligned(const void* p, const int64_t* stride, int rank, int but, int64_t size, int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) != 0) return false;
  for (int i = 0; i < rank; ++i)
    if (i != but && stride[i] * size % bytes != 0) return false;
  return true;
}

std::string hex(const std::string& key) {
  uint64_t h = 14695981039346656037ull;
  for (const char c : key) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return strf("%016llx", static_cast<unsigned long long>(h));
}

const char* walk_name(Walk w) {
  constexpr const char* kNames[] = {"scalar", "still", "dense", "loose", "strided"};
  return kNames[static_cast<int>(w)];
}
const char* fold_name(Fold f) {
  constexpr const char* kNames[] = {"sum", "prod", "max", "min", "any", "all", "argmax", "argmin"};
  return kNames[static_cast<int>(f)];
}
/// As it is named in kernels: bool is a word of C++.
const char* elem_name(Elem e) {
  return e == Elem::boolean ? "boolean" : name(e);
}

/// The program's steps over registers r0, r1, ..., and the return of its value.
std::string steps_text(const MapProgram& p) {
  std::string t;
  const auto reg = [](uint8_t r) { return r == kIndex ? std::string("index") : strf("r%d", r); };
  for (int i = 0; i < p.steps; ++i) {
    const kernels::MapStep& s = p.step[i];
    const std::string x = reg(s.in[0]);
    std::string v;
    if (s.func == Func::cast) {
      v = strf("cast_to<Elem::%s, Elem::%s>(%s)", elem_name(s.from), elem_name(s.type), x.c_str());
    } else if (s.func == Func::select) {
      v = strf("%s ? %s : %s", x.c_str(), reg(s.in[1]).c_str(), reg(s.in[2]).c_str());
    } else {
      // Operands that the function lacks are the first one, and unused.
      v = strf("Of_%s::run<typename Held<Elem::%s>::C>(%s, %s, %s)", name(s.func), elem_name(s.type), x.c_str(),
               arity(s.func) > 1 ? reg(s.in[1]).c_str() : x.c_str(),
               arity(s.func) > 2 ? reg(s.in[2]).c_str() : x.c_str());
      if (!kernels::gives_truth(rule(s.func))) v = strf("rounded<Elem::%s>(%s)", elem_name(s.type), v.c_str());
    }
    t += strf("    [[maybe_unused]] const auto r%d = %s;\n", kMaxOperands + i, v.c_str());
  }
  return t + strf("    return r%d;\n", p.steps == 0 ? 0 : kMaxOperands + p.steps - 1);
}

unsigned long long raw(const Scalar& v) {
  return v.bits;
}

}  // namespace

std::string GpuKernel::key() const {
  std::string k;
  const auto put = [&](auto v) { k += static_cast<char>(v); };
  const auto put_steps = [&](const MapProgram& p) {
    for (int i = 0; i < p.steps; ++i) {
      const kernels::MapStep& s = p.step[i];
      put(s.func), put(s.type), put(s.from);
      for (const uint8_t r : s.in) put(r);
    }
  };
  put(kind);
  if (kind != finish) {
    put(program.operands), put(program.index), put(program.result), put(width), put(wide);
    for (int i = 0; i < program.operands; ++i) put(program.operand[i]), put(walk[i]);
    put_steps(program);
  }
  if (own != nullptr) {
    for (const std::string& n : own->names) k += n + ',';
    k += own->result + ';' + own->text;
  }
  if (kind == map || kind == turned)
    put(out_walk), put(flat);
  else
    put(how.kind), put(out), put(team), put(program.result);
  if (how.own != nullptr) {
    const MapProgram& c = how.own->combine;
    put('j'), put(c.operands);
    put_steps(c);
    for (int i = 2; i < c.operands; ++i) put(c.operand[i]), k += strf("%llx,", raw(how.own->constant[i]));
    k += strf("%llx", raw(how.own->identity));
  }
  return k;
}

std::string GpuKernel::body(const std::string& name_) const {
  std::string t;
  if (how.own != nullptr) {
    const MapProgram& c = how.own->combine;
    const char* const e = elem_name(c.result);
    const auto constant = [](Elem of, const Scalar& v) {
      return strf("constant<Elem::%s>(0x%llxull)", elem_name(of), raw(v));
    };
    t +=
        strf("struct Joins_%s {\n  using Acc = typename Held<Elem::%s>::C;\n  using Result = Acc;\n", name_.c_str(), e);
    t += strf("  static __device__ __forceinline__ Acc identity() { return %s; }\n",
              constant(c.result, how.own->identity).c_str());
    t += "  static __device__ __forceinline__ Acc of(Acc value, int64_t) { return value; }\n"
         "  static __device__ __forceinline__ Result finish(Acc x) { return x; }\n"
         "  static __device__ __forceinline__ Acc join([[maybe_unused]] Acc r0, [[maybe_unused]] Acc r1) {\n";
    for (int i = 2; i < c.operands; ++i)
      t += strf("    [[maybe_unused]] const auto r%d = %s;\n", i, constant(c.operand[i], how.own->constant[i]).c_str());
    t += steps_text(c) + "  }\n};\n";
  }
  if (kind == finish) return t;
  t += strf("struct %s {\n  static constexpr int kOperands = %d;\n", name_.c_str(), program.operands);
  t += strf("  static constexpr Elem kResult = Elem::%s;\n", elem_name(program.result));
  t += strf("  static constexpr Walk kOutWalk = Walk::%s;\n", walk_name(out_walk));
  for (int k = 0; k < program.operands; ++k)
    t += strf("  Line<Elem::%s, %d, Walk::%s> x%d;\n", elem_name(program.operand[k]), width, walk_name(walk[k]), k);
  if (own != nullptr) {
    t += "  static __device__ __forceinline__ auto own([[maybe_unused]] int64_t i";
    for (size_t k = 0; k < own->names.size(); ++k)
      t += strf(", [[maybe_unused]] typename Held<Elem::%s>::C %s", elem_name(own->types[k]), own->names[k].c_str());
    t += strf(") {\n    typename Held<kResult>::C %s{};\n    %s;\n    return %s;\n  }\n", own->result.c_str(),
              own->text.c_str(), own->result.c_str());
  }
  t += "  template <class Offset>\n  __device__ __forceinline__ void load(const uint64_t (&in)[kMaxOperands], const "
       "Offset (&at)[kMaxOperands + 1],\n      const int64_t (&stride)[kMaxOperands + 1], int n) {\n";
  for (int k = 0; k < program.operands; ++k)
    t += strf("    x%d.load(in[%d], %s, stride[%d], n);\n", k, k,
              walk[k] == Walk::scalar ? "Offset(0)" : strf("at[%d]", k).c_str(), k);
  t += "  }\n  __device__ __forceinline__ typename Held<kResult>::C value([[maybe_unused]] int i, [[maybe_unused]] "
       "int64_t "
       "index) const {\n";
  for (int k = 0; k < program.operands; ++k) t += strf("    [[maybe_unused]] const auto r%d = x%d[i];\n", k, k);
  if (own != nullptr) {
    t += "    return own(index";
    for (int k = 0; k < program.operands; ++k) t += strf(", r%d", k);
    return t + ");\n  }\n};\n";
  }
  return t + steps_text(program) + "  }\n};\n";
}

std::string GpuKernel::expression(const std::string& name_) const {
  const char* const offset = wide ? "long" : "int";
  const std::string at = "vivace::kernels::", whole = at + name_;
  if (kind == turned) return strf("%smap_turned<%s, %s>", at.c_str(), whole.c_str(), offset);
  if (kind == map)
    return strf("%smap<%s, %d, %s, %s>", at.c_str(), whole.c_str(), width, offset, flat ? "true" : "false");
  const std::string value =
      strf("typename vivace::kernels::Held<vivace::kernels::Elem::%s>::C", elem_name(program.result));
  const std::string joins =
      how.own != nullptr ? strf("%sJoins_%s", at.c_str(), name_.c_str())
      : how.kind == Fold::argmax || how.kind == Fold::argmin
          ? strf("vivace::kernels::FirstExtreme<%s, %s>", how.kind == Fold::argmax ? "true" : "false", value.c_str())
          : strf("vivace::kernels::Joined<vivace::kernels::Fold::%s, %s>", fold_name(how.kind), value.c_str());
  const std::string op = strf("vivace::kernels::Into<%s, vivace::kernels::Elem::%s>", joins.c_str(), elem_name(out));
  if (kind == finish) return strf("%sfold_finish<%s>", at.c_str(), op.c_str());
  if (kind == columns)
    return strf("%sfold_columns<%s, %s, %d, %s>", at.c_str(), whole.c_str(), op.c_str(), width, offset);
  return strf("%sfold_rows<%s, %s, %d, %s, %d>", at.c_str(), whole.c_str(), op.c_str(), width, offset, team);
}

jit::Source GpuKernel::source(Arch arch) const {
  const std::string name_ = "Body_" + hex(key()), wanted = expression(name_);
  const char* const header = kind == map || kind == turned ? "map" : "fold";
  // Products and sums are fused where the source says so and nowhere else, as on the CPU.
  return {
      wanted,
      strf("#include \"vivace/kernels/map/%s.cuh\"\nnamespace vivace::kernels {\n%s}\n", header, body(name_).c_str()),
      {wanted},
      {"--fmad=false"},
      arch};
}

MapPlan plan_map(const MapProgram& program, const MapSpace& s, uint32_t scalars) {
  MapPlan plan{};
  GpuKernel& k = plan.kernel;
  kernels::MapLaunch& a = plan.args;
  k.kind = GpuKernel::map;
  k.program = bits_of(program);
  const int n = k.program.operands, last = s.rank - 1;
  const bool line = s.rank > 0;
  a.out = s.out;
  a.inner = line ? s.dim[last] : 1;
  int64_t widest = 1;
  const auto walk_of = [&](int64_t stride) {
    return !line || stride == 1 ? Walk::dense : stride == 0 ? Walk::still : Walk::strided;
  };
  for (int i = 0; i < n; ++i) {
    const int64_t stride = line ? s.in_stride[i][last] : 1;
    const bool scalar = scalars >> i & 1;
    a.in[i] = scalar ? scalar_bits(s.in[i]) : reinterpret_cast<uint64_t>(s.in[i]);
    a.inner_stride[i] = scalar ? 0 : stride;
    k.walk[i] = scalar ? Walk::scalar : walk_of(stride);
    if (k.walk[i] == Walk::dense) widest = std::max<int64_t>(widest, unit_bytes(k.program.operand[i]));
  }
  a.inner_stride[kOut] = line ? s.out_stride[last] : 1;
  k.out_walk = walk_of(a.inner_stride[kOut]);
  const int64_t out_bytes = unit_bytes(k.program.result);
  k.width = 1;
  if (k.out_walk == Walk::dense) {
    widest = std::max(widest, out_bytes);
    int64_t width = std::min(kMostWidth, 16 / widest);
    while (width > a.inner && width > 1) width /= 2;
    for (; width > 1; width /= 2) {
      bool fits = aligned(s.out, s.out_stride, s.rank, last, out_bytes, width * out_bytes);
      for (int i = 0; i < n && fits; ++i)
        if (k.walk[i] == Walk::dense) {
          const int64_t bytes = unit_bytes(k.program.operand[i]);
          fits = aligned(s.in[i], s.in_stride[i], s.rank, last, bytes, width * bytes);
        }
      if (fits) break;
    }
    k.width = static_cast<int>(width);
  } else {
    k.out_walk = Walk::strided;
  }
  for (int i = last - 1; i >= 0; --i) add_axis(&a.outer, s.dim[i], s, n, i, true);
  int64_t lines = 1;
  for (int i = 0; i < last; ++i) lines *= s.dim[i];
  a.inner_vectors = (a.inner + k.width - 1) / k.width;
  a.vectors = lines * a.inner_vectors;
  k.wide = reach(s, n) >= kOffset32;
  a.by_vectors = Divisor::of(static_cast<int32_t>(std::clamp<int64_t>(a.inner_vectors, 1, INT32_MAX)));
  k.flat = s.rank <= 1;
  plan.grid = static_cast<uint32_t>((a.vectors + kMapThreads - 1) / kMapThreads);
  return plan;
}

std::optional<TurnedPlan> plan_turned(const MapProgram& program, const MapSpace& s, uint32_t scalars) {
  const int n = program.operands, last = s.rank - 1;
  if (program.index || s.rank < 2 || s.out_stride[last] != 1 || s.dim[last] < kTurnEdge / 2) return {};
  int across = -1;
  for (int axis = 0; axis < last; ++axis) {
    bool moves = false, fits = s.dim[axis] >= kTurnEdge / 2;
    for (int k = 0; k < n; ++k) {
      if (scalars >> k & 1) continue;
      moves = moves || s.in_stride[k][axis] == 1;
      fits = fits && (s.in_stride[k][axis] == 1 || s.in_stride[k][axis] == 0);
    }
    if (moves && fits) across = axis;
  }
  if (across < 0) return {};
  TurnedPlan plan{};
  GpuKernel& k = plan.kernel;
  kernels::TurnedLaunch& a = plan.args;
  k.kind = GpuKernel::turned;
  k.program = bits_of(program);
  k.wide = reach(s, n) >= kOffset32;
  k.width = 1;
  a.out = s.out, a.out_row = s.out_stride[across];
  a.rows = s.dim[across], a.columns = s.dim[last];
  for (int i = 0; i < n; ++i) {
    const bool scalar = scalars >> i & 1;
    a.in[i] = scalar ? scalar_bits(s.in[i]) : reinterpret_cast<uint64_t>(s.in[i]);
    a.in_row[i] = scalar ? 0 : s.in_stride[i][across], a.in_column[i] = scalar ? 0 : s.in_stride[i][last];
    k.walk[i] = scalar ? Walk::scalar : Walk::dense;
  }
  int64_t lines = 1;
  for (int i = last - 1; i >= 0; --i)
    if (i != across) add_axis(&a.outer, s.dim[i], s, n, i, true), lines *= s.dim[i];
  a.tiles_a_row = (a.columns + kTurnEdge - 1) / kTurnEdge;
  a.tiles = a.tiles_a_row * ((a.rows + kTurnEdge - 1) / kTurnEdge);
  if (lines * a.tiles > INT32_MAX) return {};
  plan.grid = static_cast<uint32_t>(lines * a.tiles);
  return plan;
}

FoldPlan plan_fold(const How& how, const MapProgram& program, const FoldSpace& f, uint32_t scalars, Elem out) {
  FoldPlan plan{};
  GpuKernel& k = plan.kernel;
  kernels::FoldLaunch& a = plan.args;
  const MapSpace& s = f.space;
  const int n = program.operands;
  k.program = program;
  k.how = how, k.out = out, k.out_walk = Walk::strided;
  k.wide = reach(s, n) >= kOffset32;
  a.out = s.out;
  // Whether every operand walks along the axis by 0 or 1, and one by 1.
  const auto side_by_side = [&](int axis) {
    bool moves = false, dense = true;
    for (int i = 0; i < n; ++i) {
      moves = moves || s.in_stride[i][axis] == 1;
      dense = dense && (s.in_stride[i][axis] == 1 || s.in_stride[i][axis] == 0);
    }
    return moves && dense;
  };
  int across = -1;  // the kept axis along which columns lie side by side
  for (int i = 0; i < f.kept; ++i)
    if (s.dim[i] > 1 && side_by_side(i)) across = i;
  const bool folds = f.kept < s.rank;
  if (!folds || side_by_side(s.rank - 1)) across = -1;
  k.kind = across >= 0 ? GpuKernel::columns : GpuKernel::rows;
  const int inner = across >= 0 ? across : folds ? s.rank - 1 : -1;
  int64_t widest = 1;
  for (int i = 0; i < n; ++i)
    if (!(scalars >> i & 1)) widest = std::max<int64_t>(widest, unit_bytes(program.operand[i]));
  // By the types alone: the order in which values join must not depend on where memory lies.
  k.width = static_cast<int>(std::min(kMostWidth, 16 / widest));
  for (int i = 0; i < n; ++i) {
    const bool scalar = scalars >> i & 1;
    a.in[i] = scalar ? scalar_bits(s.in[i]) : reinterpret_cast<uint64_t>(s.in[i]);
    a.inner_stride[i] = inner < 0 ? 0 : s.in_stride[i][inner];
    const int64_t bytes = unit_bytes(program.operand[i]);
    k.walk[i] = scalar                                                                    ? Walk::scalar
                : a.inner_stride[i] == 0                                                  ? Walk::still
                : a.inner_stride[i] != 1                                                  ? Walk::strided
                : aligned(s.in[i], s.in_stride[i], s.rank, inner, bytes, k.width * bytes) ? Walk::dense
                                                                                          : Walk::loose;
  }
  a.inner_stride[kOut] = across >= 0 ? s.out_stride[across] : 0;
  a.inner = inner < 0 ? 1 : s.dim[inner];
  a.inner_vectors = (a.inner + k.width - 1) / k.width;
  a.by_vectors = Divisor::of(static_cast<int32_t>(std::clamp<int64_t>(a.inner_vectors, 1, INT32_MAX)));
  a.outputs = 1;
  if (across >= 0) add_axis(&plan.finish.kept, s.dim[across], s, 0, across, true);
  for (int i = f.kept - 1; i >= 0; --i) {
    a.outputs *= s.dim[i];
    if (i == across) continue;
    add_axis(&a.kept, s.dim[i], s, n, i, true);
    add_axis(&plan.finish.kept, s.dim[i], s, 0, i, true);
  }
  int64_t lines = 1;
  for (int i = s.rank - 1; i >= f.kept; --i) {
    if (i == inner) continue;
    add_axis(&a.folded, s.dim[i], s, n, i, false);
    lines *= s.dim[i];
  }
  int64_t blocks;
  int64_t least;  // units that a split is worth
  if (across >= 0) {
    a.units = lines;
    blocks = (a.inner_vectors + 31) / 32 * (a.outputs / a.inner);
    least = 64;
  } else {
    a.units = lines * a.inner_vectors;
    k.team = a.units <= 4 ? 1 : a.units <= 256 ? 32 : kMapThreads;
    blocks = (a.outputs * k.team + kMapThreads - 1) / kMapThreads;
    least = int64_t{kMapThreads} * kernels::kFoldUnroll;
  }
  a.splits = static_cast<int32_t>(std::clamp<int64_t>(std::min(kBlocks / blocks, a.units / least), 1, kBlocks));
  a.units_a_split = (a.units + a.splits - 1) / a.splits;
  plan.grid[0] = static_cast<uint32_t>(blocks), plan.grid[1] = static_cast<uint32_t>(a.splits);
  if (a.splits == 1) return plan;
  plan.last.kind = GpuKernel::finish;
  plan.last.how = how, plan.last.out = out, plan.last.program.result = program.result;
  const bool arg = how.kind == Fold::argmax || how.kind == Fold::argmin;
  const int64_t value = std::max(4, unit_bytes(program.result));  // as it is carried
  plan.partial_bytes = a.outputs * a.splits * (arg ? 16 : value);
  plan.finish.out = s.out, plan.finish.outputs = a.outputs, plan.finish.splits = a.splits;
  plan.finish_grid = static_cast<uint32_t>((a.outputs + kMapThreads / 32 - 1) / (kMapThreads / 32));
  return plan;
}

}  // namespace vivace::array
