#!/usr/bin/env python3
"""What changes of kernels cost: calls timed with the headers as they are and with those of another commit, processes in turn on one GPU.

    git archive 4d6f376 vivace/kernels | tar -x -C build/before          # where git is
    python lab/compare_kernels.py --before build/before [--rounds 3] [--only WORD] [--rows FILE]     # where the GPU is

A row is a graph of calls on memory that takes turns. Ours over theirs above 1.01 is marked; the exit status says whether any is.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from bench.measure import in_turn  # noqa: E402
from vivace import ops  # noqa: E402

BF16, COLD = torch.bfloat16, 160 << 20
# Sequences, query heads, kv heads, queries a sequence, places, head size, places of a page (0: dense).
ATTENTION = [(b, g * h, h, 1, places, d, page) for b, places in ((1, 2048), (8, 2048), (40, 1024)) for g, h, d in ((2, 8, 128), (4, 8, 128), (8, 1, 128), (8, 4, 128), (8, 8, 64), (16, 2, 128), (16, 1, 128), (32, 2, 64)) for page in (0, 16)]
ATTENTION += [(1, 8, 1, 50, 1000, 256, 0), (1, 16, 2, 50, 1000, 128, 0), (1, 32, 8, 8, 4096, 128, 0), (64, 32, 8, 1, 4096, 128, 0), (1, 32, 8, 1, 32768, 128, 0)]
TOKENS, WEIGHTS = (513, 968, 1000, 2000), ((1152, 1152), (4304, 1152), (1024, 4096), (2048, 2048))
SHARES = 6  # processes that compile each side's kernels
FORMS = ("plain", "residual", "one gate", "gates", "gates and residual", "f32")


def attention(b, hq, hkv, t, places, d, page):
    size = 4 * b * hkv * places * d
    draw = lambda *shape: torch.randn(*shape, device="cuda", dtype=BF16)  # noqa: E731
    pages = places // page if page else 0
    caches = [draw(2, *((b * pages, page) if page else (b, places)), hkv, d) for _ in range(max(2, min(40, COLD // size)))]
    given = {"q": draw(b * t, hq, d), "out": draw(b * t, hq, d), "pos": torch.arange(places - t, places, device="cuda", dtype=torch.int32).repeat(b)}
    if b > 1:
        given["slot"] = torch.arange(b, device="cuda", dtype=torch.int32).repeat_interleave(t)
    if page:
        given["page_table"] = torch.randperm(b * pages, device="cuda").to(torch.int32).view(b, pages)
    return [lambda c=caches[i % len(caches)]: ops.attention(k=c[0], v=c[1], **given) for i in range(40)]


def product(T, N, K, form):
    out = torch.float32 if form == "f32" else BF16
    draw = lambda *shape: torch.randn(*shape, device="cuda", dtype=BF16)  # noqa: E731
    ws = [draw(N, K) for _ in range(max(2, min(24, COLD // (2 * N * K))))]
    more = {"gate": draw(1 if form == "one gate" else T, N)} if "gate" in form else {}
    more |= {"residual": draw(T, N)} if "residual" in form else {}
    given = {"x": draw(T, K), "out": torch.empty(T, N, device="cuda", dtype=out)} | more
    return [lambda w=ws[i % len(ws)]: ops.gemm(w=w, **given) for i in range(24)]


def gated_rows(T, H, by_row):
    draw = lambda *shape: torch.randn(*shape, device="cuda", dtype=BF16)  # noqa: E731
    given = {"x": draw(T, H), "residual": draw(T, H), "gate": draw(4, H), "out": draw(T, H)} | ({"ada_row": torch.arange(T, device="cuda", dtype=torch.int32) % 4} if by_row else {})
    return [lambda: ops.gate_residual(**given)] * 100


def work():
    """(name, function that makes the calls)."""
    for shape in ATTENTION:
        yield "attention B={} Hq={} Hkv={} T={} L={} D={} page={}".format(*shape), lambda s=shape: attention(*s)
    for N, K in WEIGHTS:
        for T in TOKENS:
            for form in FORMS:
                yield f"gemm T={T} N={N} K={K} {form}", lambda a=(T, N, K, form): product(*a)
    for T, H in ((50, 1024), (968, 2048), (8192, 4096)):
        for by_row in (False, True):
            yield f"gate_residual T={T} H={H}{' ada_row' if by_row else ''}", lambda a=(T, H, by_row): gated_rows(*a)


def child(only, share):
    """Times the rows; with `share` each SHARES-th is only called, so that its kernel is compiled."""
    with ops.constant_weights():  # as in a model's step
        for name, make in [(name, make) for name, make in work() if only in name][share or 0 :: 1 if share is None else SHARES]:
            if share is None:
                print(json.dumps([name, statistics.median(in_turn({"": make()})[""])]), flush=True)
            else:
                make()[0]()
            torch.cuda.empty_cache()


def start(folder, only, *more):
    env = os.environ | ({"VIVACE_KERNEL_DIR": str(folder)} if folder else {})
    return subprocess.Popen([sys.executable, __file__, "--child", "--only", only, *more], env=env, stdout=subprocess.PIPE, text=True)


def rows_of(process):
    """{name: us} of a finished process."""
    text = process.communicate()[0]
    if process.returncode != 0:
        sys.exit(f"{' '.join(process.args)} failed")
    return dict(json.loads(line) for line in text.splitlines())


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--before", type=Path, help="folder that has vivace/kernels as it was")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--only", default="", help="rows whose name contains this")
    p.add_argument("--rows", type=Path, help="append a line of JSON a row")
    p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--share", type=int, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.child:
        return child(args.only, args.share)
    if args.before is None or not (args.before / "vivace/kernels").is_dir():
        p.error("--before: a folder that has vivace/kernels, of git archive")
    folders, taken = {"before": args.before.resolve(), "now": None}, {"now": [], "before": []}
    for process in [start(f, args.only, "--share", str(i)) for f in folders.values() for i in range(SHARES)]:
        rows_of(process)
    for _ in range(args.rounds):
        for name, folder in folders.items():
            taken[name].append(rows_of(start(folder, args.only)))
    slower = 0
    for name in taken["now"][0]:
        now, before = (statistics.median(r[name] for r in taken[k]) for k in ("now", "before"))
        slower += now / before > 1.01
        print(f"{name:64} {before:9.2f} {now:9.2f} us  {now / before:6.3f}{'  <--' * (now / before > 1.01)}", flush=True)
        if args.rows:
            with args.rows.open("a") as f:
                f.write(json.dumps({"case": name, "before_us": round(before, 3), "us": round(now, 3)}) + "\n")
    print(f"{slower} of {len(taken['now'][0])} rows are more than 1 % slower")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
