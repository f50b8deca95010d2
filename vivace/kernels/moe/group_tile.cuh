// Which rows of which group a tile has: found on the device, from offsets and counts that the host never sees.
#pragma once
#include "vivace/kernels/moe/grouped_gemm.h"

namespace vivace::kernels {

struct GroupTile {
  int group = -1;  // none: fewer tiles than that
  int first = 0, count = 0;
};

/// Finds tiles by number among those of up to kTokens rows of all groups, in the groups' order. Used by whole
/// warps; numbers ascend from call to call, so that the groups are read once.
template <int kTokens>
class GroupCursor {
 public:
  __device__ __forceinline__ explicit GroupCursor(const GroupedGemmArgs& args)
      : a(args), lane(static_cast<int>(threadIdx.x) % 32) {
    read();
  }

  __device__ __forceinline__ GroupTile seek(int slot) {
    GroupTile found;
    while (slot >= before + total) {
      if (e0 + 32 >= a.E) return found;
      before += total, e0 += 32;
      read();
    }
    const int at = slot - before - (sum - tiles);  // place among this lane's group's tiles
    const int source = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, at >= 0 && at < tiles))) - 1;
    found.group = e0 + source;
    found.first = __shfl_sync(0xffffffffu, begin + at * kTokens, source);
    found.count = min(__shfl_sync(0xffffffffu, end, source) - found.first, kTokens);
    return found;
  }

 private:
  const GroupedGemmArgs& a;
  int lane, e0 = 0, before = 0;         // the first of the 32 groups that the lanes hold; tiles before it
  int begin, end, tiles, sum, total;    // of the lane's group; tiles up to it, and of all 32

  __device__ __forceinline__ void read() {
    begin = end = 0;
    if (e0 + lane < a.E) a.rows_of(e0 + lane, &begin, &end);
    tiles = (end - begin + kTokens - 1) / kTokens;
    sum = tiles;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, d);
      if (lane >= d) sum += other;
    }
    total = __shfl_sync(0xffffffffu, sum, 31);
  }
};

}  // namespace vivace::kernels
