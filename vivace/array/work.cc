#include "vivace/array/work.h"

#include "vivace/array/types.h"

namespace vivace::array {
namespace {

bool computes(const kernels::MapStep& s) {
  return s.func != Func::cast && s.func != Func::select && s.func != Func::positive;
}

}  // namespace

std::string name_of(const kernels::MapProgram& p) {
  std::string names;
  for (int i = 0; i < p.steps; ++i)
    if (p.step[i].func != Func::cast) names += std::string(names.empty() ? "array." : "+") + name(p.step[i].func);
  return !names.empty() ? names : p.steps > 0 ? "array.cast" : "array.copy";
}

std::string name_of(const kernels::How& how) {
  constexpr const char* kNames[] = {"sum", "prod", "max", "min", "any", "all", "argmax", "argmin"};
  return how.own != nullptr ? "array.reduction" : std::string("array.") + kNames[static_cast<int>(how.kind)];
}

device::Work work_of(std::string name, const kernels::MapProgram& p, const kernels::MapSpace& s, int written,
                     uint32_t scalars) {
  device::Work w{.op = std::move(name)};
  int64_t elements = 1, out = 1;
  for (int i = 0; i < s.rank; ++i) elements *= s.dim[i], out *= i < written ? s.dim[i] : 1;
  w.bytes = out * unit_bytes(p.result);
  for (int k = 0; k < p.operands; ++k) {
    if (scalars >> k & 1) continue;
    int64_t n = 1;
    for (int i = 0; i < s.rank; ++i) n *= s.in_stride[k][i] == 0 ? 1 : s.dim[i];
    w.bytes += n * unit_bytes(p.operand[k]);
  }
  for (int i = 0; i < p.steps; ++i) w.flops += computes(p.step[i]) ? elements : 0;
  return w;
}

device::Work work_of(const kernels::MapProgram& p, const kernels::MapSpace& s, uint32_t scalars) {
  return work_of(name_of(p), p, s, s.rank, scalars);
}

device::Work work_of(const kernels::How& how, const kernels::MapProgram& p, const kernels::FoldSpace& f,
                     uint32_t scalars) {
  device::Work w = work_of(name_of(how), p, f.space, f.kept, scalars);
  int64_t elements = 1;
  for (int i = 0; i < f.space.rank; ++i) elements *= f.space.dim[i];
  w.flops += elements;  // each joins once
  return w;
}

}  // namespace vivace::array
