// Built with this level's compiler flags (see CMakeLists.txt).
#include "vivace/cpu/attention/level.h"

#if defined(__AVX512VNNI__)
#include "vivace/cpu/attention/heads.h"
#include "vivace/cpu/simd/vec_avx512.h"

namespace vivace::cpu {
AttentionHeads attention_avx512() { return &Heads<Avx512>::run; }
}  // namespace vivace::cpu
#else
namespace vivace::cpu {
AttentionHeads attention_avx512() { return nullptr; }
}  // namespace vivace::cpu
#endif
