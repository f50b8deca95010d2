"""Receipts of the kernel experiments: the best tactic a case beside the best peer of the same run.

    python lab/receipts.py --facts facts.json --gemm gemm.jsonl --codes codes.jsonl --prefill prefill.jsonl --folded folded.jsonl --experts experts.jsonl

Writes bench/results/h200/{gemm,codes,prefill,folded_norm,experts}.json. The inputs are what lab/gemm/bench, codes_bench,
prefill_bench.py, norm_bench.py and grouped_bench wrote on the GPU; facts.json is tools/device_facts.py's.
"""
import argparse
import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.receipt import Receipt  # noqa: E402


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]


def receipt(suite, facts, command, sources):
    keep = {k: facts[k] for k in ("sm", "driver", "cuda", "clocks_mhz", "limits", "versions", "host", "date") if k in facts}
    if "VIVACE_COMMIT" in os.environ:  # whose sources the benches were built from
        keep["commit"] = os.environ["VIVACE_COMMIT"]
    return Receipt(suite, chip=facts["chip"], command=command, sources=sources, **keep)


def gemm(facts, path):
    cases = defaultdict(dict)
    parts = {}  # what the epilogue's parts cost the best tactic
    for row in lines(path):
        case = row["type"], row["M"], row["N"], row["K"]
        if "us" in row:
            cases[case][row["tactic"]] = row
        else:
            parts[case] = f"; {row['tactic']} alone {row['bare']} us, with residual {row['residual']}, bias and GELU {row['gelu']}, gated {row['gated']}"
    r = receipt("gemm", facts, "lab/gemm/bench rows.jsonl quick", ["vivace/kernels/gemm/*", "vivace/kernels/ptx/*.cuh", "vivace/kernels/tile/*", "vivace/ops/gemm_tiles.h", "lab/gemm/*"])
    for (dtype, M, N, K), tactics in cases.items():
        peer = tactics.pop("cublasLt", None)
        if not tactics:
            print(f"{dtype} {M} x {N} x {K}: the bench has no kernel of ours for it, no row")
            continue
        best = min(tactics.values(), key=lambda t: t["us"])
        if peer and peer["beside"] in tactics:  # ours, timed in turn with the peer
            best = tactics[peer["beside"]] | {"us": peer["beside_us"]}
        size = 2 if dtype == "bf16" else 1
        moved, flops = size * (N * K + M * K) + 2 * M * N, 2 * M * N * K
        peak = facts["limits"]["bf16_TFLOPs"] * (1 if dtype == "bf16" else 1.87)
        limit = max(moved / facts["limits"]["read_TBs"] / 1e6, flops / peak / 1e6)
        r.row(op="gemm", case=f"M={M},N={N},K={K}", dtype=dtype, tactic=best["tactic"], p50_us=best["us"], bytes=moved, flops=flops, limit_us=limit,
              peer="cublaslt" if peer else None, peer_p50_us=peer["us"] if peer else None, max_err=best["bound"], **({"bound": 1.0, "pass": best["bound"] <= 1} if dtype == "bf16" else {}),
              note="max_err in units of the bound of f32 sums, which e4m3 sums in the tensor core may pass (lab/notes/010-gemm.md); cold weights"
                   + ("; fast_accum" if best["tactic"].endswith("f") else "") + parts.get((dtype, M, N, K), ""))
    return r.write("bench")


CODES = ["vivace/kernels/gemm/codes.*", *(f"vivace/kernels/{f}.cuh" for f in (
    "gemm/panel", "gemm/weights", "gemm/widen", "gemm/epilogue", "quantize/blocks", "tile/elem", "ptx/tma", "ptx/cp_async", "ptx/mbarrier", "ptx/mma", "ptx/mma_int", "ptx/cluster"))]
BLOCK_BYTES = {"q4_0": 18 / 32, "q4_1": 20 / 32, "q4_k": 144 / 256, "q6_k": 210 / 256, "q8_0": 34 / 32, "e4m3": 1, "e2m1": 9 / 16}  # an element


def shipped_codes(w, act, M, N, K):
    """The tile that the op takes, as codes_bench names it; asks the vivace that Python imports."""
    import ml_dtypes
    import numpy as np

    import vivace
    from vivace import _core
    elements = w == "e2m1"  # whose scales lie beside them
    held = np.empty((N, K // 2 if elements else round(BLOCK_BYTES[w] * K)), np.uint8)
    arrays = {"w_block_scale": np.empty((N, K // 16), ml_dtypes.float8_e4m3fn)} if elements else {}
    kernel = _core.picked_kernel("gemm", 90, act=act, x=np.empty((M, K), ml_dtypes.bfloat16), out=np.empty((M, N), ml_dtypes.bfloat16),
                                 w=vivace.view(held, dtype=w, shape=(N, K)), **arrays)
    fields = re.search(r"GemmWeightOnly{(.*)}", kernel).group(1).split(", ")
    name = "{}.{}.{}.{}/{} c{} p{}".format(*fields[:7])
    return name + "u" * (fields[7] == "false") + "b" * (fields[12] != "0") + "x" * (fields[13] == "true")


def codes(facts, path):
    """Products with quantized weights: the tile that the op takes, beside cuBLASLt's bf16 product of the same shape."""
    r = receipt("codes", facts, "lab/gemm/codes_bench codes.cubin rows.jsonl", [*CODES, "lab/gemm/codes_*"])
    for row in lines(path):
        w, act, M, N, K = (row[k] for k in ("w", "act", "M", "N", "K"))
        if M > 64 and act == "f32" and not row["tactic"].endswith("2.4.2.4/1 c1 p2048b"):
            continue  # gemm_mixed_input's, in prefill.json
        strict = M > 64 and row["tactic"].endswith("2.4.2.4/1 c1 p2048b")  # the cut of few tokens: what one invariance class would cost
        if row["tactic"].split(" ", 2)[2] != ("4.2.2.8/2 c1 p512" if M > 64 else shipped_codes(w, act, M, N, K)) and not strict:
            continue
        moved = BLOCK_BYTES[w] * N * K + 2 * M * (N + K)
        r.row(op="gemm", case=f"w={w},act={act},M={M},N={N},K={K}" + ",invariance=strict" * strict, dtype="bf16", tactic=row["tactic"], p50_us=row["us"], bytes=round(moved), flops=2 * M * N * K,
              limit_us=moved / facts["limits"]["read_TBs"] / 1e6, peer="cublaslt bf16", peer_p50_us=row["cublaslt_bf16_us"], max_err=row["bound"], bound=1.0,
              note="max_err in units of the bound of f32 sums; cold weights", **{"pass": row["bound"] <= 1})
    return r.write("bench")


def prefill(facts, path):
    """Many tokens with quantized weights, through the op, beside its bf16 product of the same shape and torch's in the same run."""
    r = receipt("prefill", facts, "lab/gemm/prefill_bench.py --rows rows.jsonl", ["vivace/kernels/gemm/widened.*", "vivace/kernels/gemm/w*.cuh", "vivace/ops/gemm_gpu.h", "lab/gemm/prefill_bench.py", "bench/measure.py"])
    for row in lines(path):
        w, M, N, K = (row[k] for k in ("w", "M", "N", "K"))
        moved, flops = BLOCK_BYTES.get(w, 2 if w == "bf16" else 0.5625 if w == "e2m1" else 0.516) * N * K + 2 * M * (N + K), 2 * M * N * K
        r.row(op="gemm", case=f"w={w},M={M},N={N},K={K}", dtype="bf16", p50_us=row["us"], bytes=round(moved), flops=flops, limit_us=max(moved / facts["limits"]["read_TBs"], flops / facts["limits"]["bf16_TFLOPs"]) / 1e6,
              peer="torch bf16" if w == "bf16" else "the bf16 product", peer_p50_us=row["peer_us"], note="cold weights, medians of graph replays")
    return r.write("bench")


def folded(facts, path):
    """A decoder layer's products in a chain, with norms of their own, with norms folded into the products behind them and with norms taken behind these."""
    r = receipt("folded_norm", facts, "lab/gemm/norm_bench.py --rows rows.jsonl", ["vivace/kernels/gemm/norm_gemm.*", "vivace/kernels/gemm/rms_gemm.*", "vivace/kernels/norm/rms*", "vivace/kernels/gemm/wgmma*.cuh", "vivace/ops/norm_gemm.h", "vivace/ops/*rms_*.h", "lab/gemm/norm_bench.py", "bench/measure.py"])
    for row in lines(path):
        for op, us in (("norm_gemm", "folded_us"), ("rms_gemm", "behind_us")):
            if us in row:
                r.row(op=op, case=f"layer={row['model']},T={row['T']}", dtype=row["type"], p50_us=row[us], peer="norm, then the product", peer_p50_us=row["us"], note="four products and two norms of a layer, cold weights")
    return r.write("bench")


def experts(facts, path):
    """grouped_gemm of 128 experts, 8 a token: the tile that the op takes."""
    r = receipt("experts", facts, "lab/gemm/grouped_bench grouped.cubin rows.jsonl", ["vivace/kernels/moe/gr*", *CODES, "vivace/kernels/ptx/tma.cuh", "vivace/kernels/ptx/wgmma.cuh", "vivace/ops/grouped_gemm.h", "lab/gemm/grouped_*"])
    for row in filter(lambda row: row["op"], lines(path)):
        T, N, K = row["T"], row["N"], row["K"]
        r.row(op="grouped_gemm", case=f"T={T},E=128,top=8,N={N},K={K}", dtype="bf16", tactic=row["tactic"], p50_us=row["us"], flops=2 * T * 8 * N * K, limit_us=row["least_us"],
              max_err=row["bound"], bound=1.0, note=f"{row['experts']} experts have rows; max_err in units of the bound of f32 sums; cold weights", **{"pass": row["bound"] <= 1})
    return r.write("bench")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--facts", type=Path, required=True)
    p.add_argument("--gemm")
    p.add_argument("--codes")
    p.add_argument("--prefill")
    p.add_argument("--folded")
    p.add_argument("--experts")
    args = p.parse_args()
    facts = json.loads(args.facts.read_text())
    if args.gemm:
        print(gemm(facts, args.gemm))
    if args.codes:
        print(codes(facts, args.codes))
    if args.prefill:
        print(prefill(facts, args.prefill))
    if args.folded:
        print(folded(facts, args.folded))
    if args.experts:
        print(experts(facts, args.experts))


if __name__ == "__main__":
    main()
