"""Rows of vivace/ops/gemm_rows.inc from what bench.cu wrote: the fastest layout of each product, with the cut of K
that its class has.

    python lab/gemm/table.py rows.jsonl [more.jsonl ...] > vivace/ops/gemm_rows.inc
"""
import json
import re
import sys
from collections import defaultdict

FEW = {(64, 8, 1, 1), (64, 16, 1, 1), (64, 32, 1, 1), (128, 32, 1, 1), (64, 64, 1, 1), (128, 64, 1, 1)}
MANY = {(64, 64, 1, 1), (64, 64, 2, 1), (128, 64, 1, 1), (64, 96, 2, 1), (128, 96, 1, 1), (128, 96, 2, 1), (128, 128, 1, 1), (128, 128, 2, 1),
        (128, 128, 1, 2), (128, 160, 2, 1), (128, 160, 1, 2), (128, 192, 2, 1), (128, 192, 1, 2), (128, 256, 2, 1), (128, 256, 1, 2)}
UP_TO = {1: 8, 16: 16, 32: 32, 50: 64, 64: 64, 256: 256, 512: 512, 768: 768, 968: 1024, 4096: 4096}  # measured T -> the row's
NAME = re.compile(r"w(\d+)x(\d+)/(\d+)k(\d+)x(\d+)w(\d+)$")


def few_split(N, k_bytes):
    s = 1
    while s < 8 and (N + 63) // 64 * s * 2 <= 192 and k_bytes >= s * 2 * 2 * 128:
        s *= 2
    return s


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
            rows, tokens, _, split, x, w = map(int, m.groups())
            few, size = r["M"] <= 64, 2 if r["type"] == "bf16" else 1
            wanted = few_split(r["N"], r["K"] * size) if few else 1
            if split != wanted or (rows, tokens, x, w) not in (FEW if few else MANY):
                continue
            key = ("bf16" if r["type"] == "bf16" else "e4m3", r["N"], r["K"], UP_TO[r["M"]])
            best[key] = min(best[key], (r["us"], (rows, tokens, x, w)))
    print("// ROW(dtype, N, K, T, rows, tokens, share_x, share_w, us): see gemm_table.h. Measured by lab/gemm on an NVIDIA H200.")
    for (dtype, N, K, T), (us, layout) in sorted(best.items()):
        print(f"ROW({dtype}, {N}, {K}, {T}, {', '.join(map(str, layout))}, {us:.2f}f)")


if __name__ == "__main__":
    main()
