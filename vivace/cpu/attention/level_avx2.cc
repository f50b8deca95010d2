// Built with this level's compiler flags (see CMakeLists.txt).
#include "vivace/cpu/attention/level.h"

#if defined(__AVX2__)
#include "vivace/cpu/attention/heads.h"
#include "vivace/cpu/simd/vec_avx2.h"

namespace vivace::cpu {
AttentionHeads attention_avx2() { return &Heads<Avx2>::run; }
}  // namespace vivace::cpu
#else
namespace vivace::cpu {
AttentionHeads attention_avx2() { return nullptr; }
}  // namespace vivace::cpu
#endif
