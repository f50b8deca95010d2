// From arrays to the spaces that kernels walk.
#pragma once
#include "vivace/array/array.h"

namespace vivace::array {

/// Drops axes of one element, sorts by the output's stride and joins axes that every operand walks as one. Axes from
/// `kept` on are folded ones (rank for a map): they stay behind, in their order. Answers the new `kept`.
int collapse(kernels::MapSpace* s, int operands, int kept);
/// Whether any element of one lies on one of the other's; false is certain.
bool may_overlap(const Array& a, const Array& b);
/// Same elements at the same addresses, element for element.
bool same_view(const Array& a, const Array& b);

}  // namespace vivace::array
