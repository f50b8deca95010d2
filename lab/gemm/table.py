"""Rows of vivace/ops/gemm_rows.inc from what bench.cu wrote: the fastest layout of each product.

    python lab/gemm/table.py rows.jsonl [more.jsonl ...] > vivace/ops/gemm_rows.inc
"""
import json
import re
import sys
from collections import defaultdict

UP_TO = {1: 8, 16: 16, 32: 32, 50: 64, 64: 64, 256: 256, 384: 384, 512: 512, 576: 576, 768: 768, 968: 1024, 4096: 4096}  # measured T -> the row's
# Products whose steps are faster where 16 tokens' tile, a block an SM, serves fewer too, whatever they take alone (lab/notes/040).
WIDER = {("bf16", 4096, 4096, 8), ("bf16", 24576, 4096, 8), ("bf16", 4096, 12288, 8)}
NAME = re.compile(r"w(\d+)x(\d+)/(\d+)k(\d+)\.(\d+)x(\d+)w(\d+)$")  # not those that end in f: their sums are other ones


def main():
    best = defaultdict(lambda: (float("inf"), None))
    for name in sys.argv[1:]:
        for line in open(name):
            try:
                r = json.loads(line)
            except json.JSONDecodeError:
                continue  # NaN where nothing was timed
            m = NAME.match(r["tactic"])
            if "us" not in r or not m:
                continue
            rows, tokens, _, _, _, x, w = map(int, m.groups())
            key = ("bf16" if r["type"] == "bf16" else "e4m3", r["N"], r["K"], UP_TO[r["M"]])
            best[key] = min(best[key], (r["us"], (rows, tokens, x, w)))
    print("// ROW(dtype, N, K, T, rows, tokens, multicast_x, multicast_w, us): see gemm_table.h. Measured by lab/gemm on an NVIDIA H200.")
    for (dtype, N, K, T), (us, layout) in sorted(best.items()):
        if (dtype, N, K, T) in WIDER:
            continue
        print(f"ROW({dtype}, {N}, {K}, {T}, {', '.join(map(str, layout))}, {us:.2f}f)")


if __name__ == "__main__":
    main()
