// What a map or a fold is called in profiles, and the least that it moves and computes.
#pragma once
#include "vivace/array/array.h"
#include "vivace/device/activity.h"

namespace vivace::array {

/// "array.add"; of several functions "array.add+multiply".
std::string name_of(const kernels::MapProgram& p);
std::string name_of(const kernels::How& how);
/// Bytes: each element of an operand that moves once, and of the output. Flops: one an element and function that is no
/// cast and no move. `scalars` as in plan_map. `written`: axes along which the output moves.
device::Work work_of(std::string name, const kernels::MapProgram& p, const kernels::MapSpace& s, int written,
                     uint32_t scalars);
device::Work work_of(const kernels::MapProgram& p, const kernels::MapSpace& s, uint32_t scalars);
device::Work work_of(const kernels::How& how, const kernels::MapProgram& p, const kernels::FoldSpace& f,
                     uint32_t scalars);

}  // namespace vivace::array
