// The merge of attention_swap_ab's clusters as the host runs it: all warps of all blocks at once, writes that land late
// and in any order, fences that wait for a thread's own. See blocks.h.
#include <map>

#include "blocks.h"

namespace emulated {
inline std::map<const Thread*, int> on_their_way;
}

inline float4 __ldcg(const float4* at) {
  emulated::sleep(1 + emulated::draw() % 4);
  return *at;
}
inline void __stcg(float4* at, float4 v) {
  const emulated::Thread* const mine = emulated::current;
  ++emulated::on_their_way[mine];
  emulated::later([=] { *at = v, --emulated::on_their_way[mine]; });
}
inline void __threadfence() {
  while (emulated::on_their_way[emulated::current] > 0) emulated::sleep(1);
}
inline uint32_t atomicInc(uint32_t* at, uint32_t most) {
  emulated::sleep(emulated::draw() % emulated::most_delay);
  const uint32_t before = *at;
  *at = before >= most ? 0 : before + 1;
  return before;
}
using std::exp2f;
// After it: the merge, with what blocks.h stands in for left out.
#include "vivace/kernels/attention/merge_clusters.cuh"

using namespace vivace::kernels;

/// in: [tiles][used][split][quads][32][8] of highest, total and four sums; out: the same without `used`; times: how
/// often each was written.
extern "C" int merge(uint32_t* words, int tiles, int used, const float* in, float* out, int* times, int64_t seed,
                     int delay) {
  constexpr AttentionSwapAB P = SHAPE;
  constexpr int kQuads = P.own() * P.rows / 8;
  emulated::seed = static_cast<uint64_t>(seed), emulated::most_delay = static_cast<unsigned>(delay);
  emulated::most_ticks = 1 << 20;
  emulated::on_their_way.clear();
  for (int i = 0; i < 9; ++i) emulated::draw();
  return emulated::run(static_cast<unsigned>(tiles * CLUSTERS * P.split), kQuads * 32, 0, [&] {
    const int block = static_cast<int>(blockIdx.x), split = block % P.split, own = block / P.split % CLUSTERS,
              tile = block / P.split / CLUSTERS, x = static_cast<int>(threadIdx.x) / 32,
              lane = static_cast<int>(threadIdx.x) % 32;
    if (own >= used) return;
    if (lane == 0) emulated::sleep(emulated::draw() % (4 * emulated::most_delay));
    __syncwarp();
    const float* const mine = in + ((((tile * used + own) * P.split + split) * kQuads + x) * 32 + lane) * 8;
    float highest[2] = {mine[0], mine[1]}, total[2] = {mine[2], mine[3]}, y[4] = {mine[4], mine[5], mine[6], mine[7]};
    if (!merge_clusters<P, CLUSTERS>(words, static_cast<uint32_t>(tile), own, used, split, x, lane, highest, total, y))
      return;
    const int at = ((tile * P.split + split) * kQuads + x) * 32 + lane;
    ++times[at];
    const float got[8] = {highest[0], highest[1], total[0], total[1], y[0], y[1], y[2], y[3]};
    memcpy(out + at * 8, got, sizeof got);
  });
}
