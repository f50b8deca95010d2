// vivace._core.AttentionVariant: what vivace.attention.variant() makes.
#pragma once
#include <nanobind/nanobind.h>

namespace vivace::python {

void add_attention_variant(nanobind::module_& m);

}  // namespace vivace::python
