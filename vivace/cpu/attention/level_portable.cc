#include "vivace/cpu/attention/heads.h"
#include "vivace/cpu/simd/vec_portable.h"

namespace vivace::cpu {
AttentionHeads attention_portable() { return &Heads<Portable>::run; }
}  // namespace vivace::cpu
