// Maps and folds of arrays on the CPU: programs of ufuncs.def evaluated a block at a time, so that no temporary leaves
// the cache and no host compiler is needed.
#pragma once
#include "vivace/base/status.h"
#include "vivace/cpu/pool.h"
#include "vivace/kernels/map/map.h"

namespace vivace::cpu {

/// Runs the program for every element of the space. Every element is computed by itself: the threads change no bits.
/// `pool` null: on the calling thread.
void map(const kernels::MapProgram& program, const kernels::MapSpace& space, Pool* pool);

/// Folds what the program gives over the axes behind `space.kept`, in an order that the shape and the strides decide.
/// The value's type is the program's result (sums of bool are the caller's cast); argmax and argmin write i64, the
/// number of the first extreme in row-major order of the folded axes, a NaN counting as one. Of no elements: sum 0,
/// prod 1, any false, all true, one's own its identity; the others are the caller's error.
void fold(const kernels::How& how, const kernels::MapProgram& program, const kernels::FoldSpace& space, Pool* pool);

/// Running sums or products along the last axis of dense rows, in place: `rows` of `n`.
void scan(bool product, kernels::Elem type, char* data, int64_t rows, int64_t n, Pool* pool);

/// Copies elements of `bytes` each between strided places; strides in elements. For storage types a unit is a byte.
void copy(int bytes, const kernels::MapSpace& space, Pool* pool);

}  // namespace vivace::cpu
