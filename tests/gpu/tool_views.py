"""Kernels as compute-sanitizer can follow them: replacements in the sources, each for something that the tool
(2025.3.1) reports and a small kernel is to show to be no error. No report is allowed then.

racecheck, EVEN. It orders a block's accesses by counting barriers a warp has passed, named ones too: once
two groups differ in that count, it takes accesses on the two sides of a later __syncthreads for unordered
(test_racecheck.py). So it gets the missing turns: barriers of one group alone, behind its loop, which order
nothing between groups. Nor does it carry __syncwarp() to a barrier in shared memory at which one lane then arrives
for its warp: it orders that lane's accesses alone (test_racecheck.py). attention_stream, attention_split_kv, gemm_weight_only, gemm_mixed_input and norm_gemm
are run with an arrival of every lane, and attention_split_kv with maxima agreed on in every turn: how many barriers that takes
otherwise depends on scores.

A wait at the cluster's barrier does not end under racecheck before every warp of the block waits there, though all have arrived:
warps that fill a ring or make rows, and wait for the cluster behind that, do so before.

Nor does that barrier order copies (cp.async) that have landed, and what another block of the cluster then writes in their place; stores it
does order (test_racecheck.py). Where gemm_weight_only' sums take the place of W's ring, each warp writes its ring again, by stores.
"""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.planting import places, replaced  # noqa: E402

K = "vivace/kernels/"

# file, text, the same with the turns added
EVEN = [
    (K + "gemm/wgmma.cuh", "    if (lane < kPeers) {\n      if constexpr (kPeers > 1) ring.consumer_release(stage, to);\n      else ring.consumer_release(stage);\n    }\n",
     "    if constexpr (kPeers == 1) ring.consumer_release(stage);\n    else if (lane < kPeers) ring.consumer_release(stage, to);\n"),
    (K + "gemm/wgmma.cuh", "P.rows / 16 * WgmmaPipeline<T, P>::kPeers);", "P.rows / 16 * (WgmmaPipeline<T, P>::kPeers > 1 ? WgmmaPipeline<T, P>::kPeers : 32));"),
    (K + "gemm/wgmma.cuh", "ptx::mbarrier_init(wgmma_panel_full<P>(ring), kPanelWarps);", "ptx::mbarrier_init(wgmma_panel_full<P>(ring), 32 * kPanelWarps);"),
    (K + "gemm/wgmma.cuh", "  if (warp >= P.rows / 16) {\n", "  if (warp >= P.rows / 16) {\n    if constexpr (P.parts() > 1 && !kShared) ptx::cluster_wait<C>();\n"),
    (K + "gemm/wgmma.cuh", "    if constexpr (P.parts() > 1 && !kShared) ptx::cluster_wait<C>();\n    if constexpr (kStaged)", "    if constexpr (kStaged)"),
    (K + "gemm/mixed_input.cuh", "ring.init(1 + GemmMixedInput::kWarps, P.rows / 16);", "ring.init(1 + 32 * GemmMixedInput::kWarps, P.rows / 16 * 32);"),
    (K + "gemm/mixed_input.cuh", "      __syncwarp();\n      if (lane == 0) ring.producer_commit(at.stage);\n", "      ring.producer_commit(at.stage);\n"),
    (K + "gemm/norm_gemm.cuh", "if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(wgmma_panel_full<P>(ring));", "ptx::mbarrier_arrive(wgmma_panel_full<P>(ring));"),
    (K + "gemm/stream.cuh", "  ptx::cluster_wait<P.cluster>();\n  s.send(sums, acc);",
     "  if constexpr (P.shared_x)\n"
     "    for (int i = count; i < (steps + P.parts() - 1) / P.parts(); ++i)\n"
     "      asm volatile(\"bar.sync %0, %1;\" ::\"r\"(s.wk + 1), \"n\"(32 * P.warps_n) : \"memory\");\n"
     "  ptx::cluster_wait<P.cluster>();\n  s.send(sums, acc);"),
    # Warps whose share of K is shorter prepare fewer places of x: turns up to the first share's, which has the most.
    (K + "gemm/weight_only.cuh", "      for (int i = wk; i < count; i += P.warps_k) step(i, 0, acc);\n",
     "      for (int i = wk; i < count; i += P.warps_k) step(i, 0, acc);\n"
     "      if constexpr (Panel::kFolds || Panel::kMin)\n"
     "        if (const int most = (((a.K + kStep - 1) / kStep + P.cluster - 1) / P.cluster + P.warps_k - 1) / P.warps_k * Panel::kRuns; most > Panel::kStages || !panel.ready)\n"
     "          for (int n = panel.ready ? 0 : panel.runs; n < most; ++n) ptx::named_barrier<Panel::kThreads>(1 + wk);\n"),
    (K + "gemm/weight_only.cuh", "    if constexpr (!kTma) ptx::copy_wait<0>();\n",
     "    if constexpr (!kTma) ptx::copy_wait<0>();\n"
     "    if constexpr (kReuse && kWaits && P.cluster > 1) {\n"
     "      __syncwarp();\n"
     "      volatile uint32_t* const words = reinterpret_cast<uint32_t*>(ring);\n"
     "      for (int at = lane; at < P.stages * kSlot / 4; at += 32) words[at] = words[at];\n"
     "    }\n"),
    (K + "gemm/x_ring.cuh", "ring.init_empty(p, P.warps_n);", "ring.init_empty(p, kThreads);"),
    (K + "gemm/x_ring.cuh", "      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(read);\n", "      ptx::mbarrier_arrive(read);\n"),
    (K + "attention/tile.cuh", "    for (; b < past; b += kStride) {\n      ptx::copy_wait<P.stages - 2>();",
     "    int turns = 0;\n    for (; b < past; b += kStride, ++turns) {\n      ptx::copy_wait<P.stages - 2>();"),
    (K + "attention/tile.cuh", "    ptx::copy_wait<0>();\n    stream_sync<P>(stream);  // the stages are free",
     "    for (const int most = (past - lo / kKeys / kStride * kStride + kStride - 1) / kStride; turns < most; ++turns) stream_sync<P>(stream);\n"
     "    ptx::copy_wait<0>();\n    stream_sync<P>(stream);  // the stages are free"),
    (K + "attention/stream.cuh", "        __syncwarp();\n        if (lane == 0) ring().consumer_release(i % P.stages);", "        ring().consumer_release(i % P.stages);"),
    (K + "attention/stream.cuh", "k.ring().init_empty(i, P.warps_m * P.warps_d);", "k.ring().init_empty(i, P.warps_m * P.warps_d * 32);"),
    (K + "attention/scaled_prefill.cuh",
     "init(keys_ring(), 1, 4 * P.kGroups);\n    init(raw_ring(), 1, P.kTransposeWarps);\n    init(values_ring(), P.kTransposeWarps, 4 * P.kGroups);",
     "init(keys_ring(), 1, 128 * P.kGroups);\n    init(raw_ring(), 1, 32 * P.kTransposeWarps);\n    init(values_ring(), 32 * P.kTransposeWarps, 128 * P.kGroups);"),
    (K + "attention/scaled_prefill.cuh", "if (lane == 0) ring.consumer_release(i % P.stages);", "ring.consumer_release(i % P.stages);"),
    (K + "attention/scaled_prefill.cuh", "if (lane == 0) values_ring().producer_commit(i % P.stages);", "values_ring().producer_commit(i % P.stages);"),
    (K + "attention/split_kv_blocks.cuh", "    __syncwarp();\n    if (lane == 0) ptx::mbarrier_arrive(barrier(empty, i));", "    ptx::mbarrier_arrive(barrier(empty, i));"),
    (K + "attention/split_kv_blocks.cuh", "barrier(kKeysEmpty, i), kWarps * P.warps_m);", "barrier(kKeysEmpty, i), kWarps * P.warps_m * 32);"),
    (K + "attention/split_kv_blocks.cuh", "barrier(kValuesEmpty, i), kWarps * P.warps_m);", "barrier(kValuesEmpty, i), kWarps * P.warps_m * 32);"),
    (K + "attention/split_kv_blocks.cuh", "    bool moves = turn == 0;\n    if (turn > 0) {", "    bool moves = true;\n    if (false) {"),
    (K + "attention/split_kv.cuh", "patch(values(here), 0, lo - b * kKeys);", "patch(values(here), 0, lo - b * kKeys); else this->team_barrier();"),
    (K + "attention/split_kv.cuh", "patch(values(here), hi - b * kKeys, kKeys);", "patch(values(here), hi - b * kKeys, kKeys); else this->team_barrier();"),
    (K + "attention/split_kv.cuh", "      if constexpr (!kHoldV) consumer_release(kValuesEmpty, here);\n    }\n",
     "      if constexpr (!kHoldV) consumer_release(kValuesEmpty, here);\n    }\n"
     "    for (const int most = past > from ? ((past - 1 - from) / P.split + P.teams) / P.teams : 0; turn < most; ++turn) tile_barrier(), tile_barrier(), this->team_barrier(), this->team_barrier();\n"),
]


VIEWS = {"racecheck": EVEN}


def stale():
    """Rows whose text is no longer in the sources exactly once."""
    return [r for view in VIEWS.values() for r in view if len(places((ROOT / r[0]).read_text(), r[1])) != 1]


def write(folder, tool, sources=None):
    """The headers for `tool` below `folder`, from those of the folder `sources` where it has them."""
    for file, text, other in VIEWS[tool]:
        to, planted = Path(folder) / file, Path(sources or "") / file
        read = to if to.exists() else planted if sources and planted.exists() else ROOT / file
        patched = replaced(read.read_text(), text, other)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(patched)
    for planted in Path(sources).rglob("*.*") if sources else ():
        to = Path(folder) / planted.relative_to(sources)
        if planted.is_file() and not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(planted.read_text())
