// Which rows of which group a tile has: found on the device, from offsets and counts that the host never sees.
#pragma once
#include "vivace/kernels/moe/grouped_gemm.h"

namespace vivace::kernels {

struct GroupTile {
  int group = -1;  // none: fewer tiles than that
  int first = 0, count = 0;
};

/// Finds tiles by number among those of up to kTokens rows of all groups, in the groups' order. Used by whole
/// warps; numbers ascend from call to call. Each lane has a run of neighbouring groups, whose offsets it asks for at
/// once: read 32 groups at a time, 257 experts were nine turns of L2's latency.
template <int kTokens>
class GroupCursor {
 public:
  __device__ __forceinline__ explicit GroupCursor(const GroupedGemmArgs& args)
      : a(args), run((args.E + 31) / 32), group(static_cast<int>(threadIdx.x) % 32 * run) {
    tiles = 0;
    const int last = min(group + run, a.E);
#pragma unroll 8
    for (int e = group; e < last; ++e) tiles += tiles_of(e);
    sum = tiles;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, d);
      if (static_cast<int>(threadIdx.x) % 32 >= d) sum += other;
    }
    total = __shfl_sync(0xffffffffu, sum, 31);
  }

  __device__ __forceinline__ GroupTile seek(int slot) {
    GroupTile found;
    if (slot >= total) return found;
    int at = slot - (sum - tiles);  // place among this lane's groups' tiles
    const bool here = at >= 0 && at < tiles;
    if (here)
      for (int more; at - before >= (more = tiles_of(group)); ++group) before += more;
    at -= before;
    int begin = 0, end = 0;
    if (here) a.rows_of(group, &begin, &end);
    const int source = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, here))) - 1;
    found.group = __shfl_sync(0xffffffffu, group, source);
    found.first = __shfl_sync(0xffffffffu, begin + at * kTokens, source);
    found.count = min(__shfl_sync(0xffffffffu, end, source) - found.first, kTokens);
    return found;
  }

 private:
  const GroupedGemmArgs& a;
  int run, group, before = 0;  // groups a lane; its group of the last tile it had, and its tiles before that
  int tiles, sum, total;       // of the lane's groups; up to them; of all

  __device__ __forceinline__ int tiles_of(int e) const {
    int begin, end;
    a.rows_of(e, &begin, &end);
    return (end - begin + kTokens - 1) / kTokens;
  }
};

}  // namespace vivace::kernels
