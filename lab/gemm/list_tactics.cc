// Prints tactics.inc: the layouts of GemmTiles that should do best, with the cuts of K that the bench's weights have,
// and the epilogues of some.
//   g++ -std=c++20 -I. lab/gemm/list_tactics.cc -o list_tactics && ./list_tactics [table] > lab/gemm/tactics.inc
#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lab/gemm/choice.h"

using namespace vivace;
using kernels::GemmWgmma;

int main(int argc, char**) {
  const bool table = argc > 1;  // what the op chooses alone
  std::set<std::string> seen;
  const auto print = [&](bool e4m3, GemmWgmma p, int32_t finish) {
    p.epilogue = finish;
    p = ops::GemmTiles::fill(p);
    char line[160];
    std::snprintf(line, sizeof line, "WGMMA(%s, %d, %d, %d, %d, %d, %d, %s, true, %d, %d, 0, 0, %d)",
                  e4m3 ? "e4m3" : "bf16", p.rows, p.tokens, p.stages, p.split, p.multicast_x, p.multicast_w,
                  p.promote ? "true" : "false", p.splits_per_block, p.epilogue, p.staged);
    if (seen.insert(line).second) std::puts(line);
  };
  std::puts("// What bench.cu tries; printed by list_tactics.cc. WGMMA(type, GemmWgmma's members).");
  constexpr int kWeights[][2] = {{6144, 4096}, {4096, 4096}, {24576, 4096}, {4096, 12288}, {32768, 2048}, {2048, 16384},
                                 {2560, 2048}, {2048, 2048}, {8192, 1024},  {1024, 4096},  {2560, 1024},  {1024, 2048},
                                 {3456, 1152}, {1152, 1152}, {4304, 1152},  {1152, 4304}};
  using namespace kernels;
  constexpr int32_t kWays[] = {
      kEpilogueFast | kEpilogueResidual,
      kEpilogueFast | kEpilogueBias | kEpilogueActivation * static_cast<int32_t>(Activation::gelu_tanh),
      kEpilogueFast | kEpilogueGated | kEpilogueActivation * static_cast<int32_t>(Activation::silu)};
  for (const bool e4m3 : {false, true})
    for (const auto& [N, K] : kWeights) {
      const int64_t k_bytes = int64_t{K} * (e4m3 ? 1 : 2);
      for (const bool fast : {false, true})
        for (const int64_t T : {1, 16, 50, 256, 512, 576, 768, 968, 4096}) {
          if (fast && (!e4m3 || T <= 64)) continue;
          const GemmWgmma p = lab::op_choice(e4m3, fast, T, N, K);
          print(e4m3, p, kEpilogueFast);
          if (p.multicast_w == 1 && T != 16)
            for (const int32_t way : kWays)
              print(e4m3, p, p.direct() && p.parts() > 1 && (way & kEpilogueGated) ? kEpilogueAny : way);
        }
      if (table) continue;
      for (const auto& l : ops::GemmTiles::kFew) {
        const GemmWgmma p = ops::GemmTiles::few(l, N, k_bytes, e4m3);
        if (p.stages < 3) continue;
        print(e4m3, p, kEpilogueFast);
        if (l.rows == 64 && (l.tokens == 8 || l.tokens == 64))
          for (const int32_t way : kWays) print(e4m3, p, p.parts() > 1 && (way & kEpilogueGated) ? kEpilogueAny : way);
      }
      for (const bool promote : {false, true})
        for (const int64_t T : {256, 512, 576, 968, 4096}) {
          std::vector<std::pair<int64_t, ops::GemmTiles::Layout>> all;  // those that should take least
          for (const auto& l : ops::GemmTiles::kMany) {
            const GemmWgmma p = ops::GemmTiles::many(l, T, N, k_bytes, promote);
            if (ops::GemmTiles::serves(p, N)) all.emplace_back(ops::GemmTiles::cycles(p, T, N, k_bytes), l);
          }
          std::sort(all.begin(), all.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
          for (size_t i = 0; i < std::min<size_t>(all.size(), 12); ++i) {
            const auto& l = all[i].second;
            const GemmWgmma p = ops::GemmTiles::many(l, T, N, k_bytes, promote);
            if (promote != e4m3 && !(e4m3 && l.tokens > 192)) continue;
            print(e4m3, p, kEpilogueFast);
            if (l.multicast_w == 1 && l.multicast_x == 2 && (l.tokens == 128 || l.tokens == 176 || l.tokens == 256) &&
                p.split == 1)
              for (const int32_t way : kWays) print(e4m3, p, way);
          }
        }
    }
}
