// What attention's ops trust of contents, for checked mode (ops/checked.h).
#pragma once
#include "vivace/ops/checked.h"

namespace vivace::ops {

/// slot in [-1, S); length and prefix in [0, places]; pages of places that are there in [0, B); k_offsets rising within
/// [0, L]. Ports that an op does not have are taken as absent.
Status inspect_attention(const Call& c, const Contents& read);
/// slot in [-1, S); pos in [-1, places); of the valid rows' pages each in [0, B). Without k_cache nothing is looked at.
Status inspect_cache(const Call& c, const Contents& read);
/// offsets and k_offsets rising from 0 or more.
Status inspect_offsets(const Call& c, const Contents& read);

}  // namespace vivace::ops
