#!/usr/bin/env python3
"""Times what stands beside plain attention on a GPU: latent rows, FP4 caches, 8-bit products, shared prefixes, trees, state.

    python bench/bench_attention_forms.py --out FOLDER

A row is a graph of calls on copies that take turns, so that caches come from memory; median of its replays. Receipt:
bench/results/<chip>/attention_forms.json under the folder.
"""
import argparse
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import vivace  # noqa: E402
from bench.measure import gpu_receipt, graph_times  # noqa: E402
from vivace import ops  # noqa: E402

GPU, E4M3 = "cuda", torch.float8_e4m3fn
SOURCES = ["vivace/base/*.h", "vivace/kernels/attention/*.h", "vivace/kernels/attention/*.cuh", "vivace/kernels/linear/*.h", "vivace/kernels/linear/*.cuh", "vivace/kernels/ptx/*.cuh",
           "vivace/kernels/tile/*.cuh", "vivace/ops/*attention*.h", "vivace/ops/gated_delta.h", "vivace/ops/merge_states.h", "bench/bench_attention_forms.py", "bench/measure.py"]


def randn(*shape, dtype=torch.bfloat16):
    x = torch.randn(*shape, device=GPU, dtype=torch.bfloat16)
    return x.to(dtype)


def copies_of(size):
    return max(2, min(16, (160 << 20) // size))


def merged(op, q, heads, width, runs, **call):
    """A call in runs, and the merge of them."""
    out, lse = torch.empty(q.shape[0], runs, heads, width, device=GPU, dtype=torch.bfloat16), torch.empty(q.shape[0], runs, heads, device=GPU)
    one = torch.empty(q.shape[0], heads, width, device=GPU, dtype=torch.bfloat16)

    def run():
        op(q=q, out=out, lse=lse, mask="full", **call)
        if runs > 1:
            ops.merge_states(v=out, s=lse, out=one)
    return run


def slots(n):
    return torch.arange(n, device=GPU, dtype=torch.int32)


def latent(S, Hq, L, runs):
    return lambda: merged(ops.latent_attention, randn(S, Hq, 576), Hq, 512, runs, cache=randn(S, L, 576), slot=slots(S), scale=192**-0.5)


def block_scaled(S, L, runs):
    def codes():
        return torch.randint(0, 256, (S, L, 8, 64), device=GPU, dtype=torch.uint8)

    def scales():
        return (torch.rand(S, L, 8, 8, device=GPU) + 0.1).to(E4M3)
    return lambda: merged(ops.attention_block_scaled, randn(S, 32, 128), 32, 128, runs, k=codes(), v=codes(), k_scales=scales(), v_scales=scales(), slot=slots(S))


def scaled(T, mask):
    q, k, v, out = randn(T, 32, 128, dtype=E4M3), randn(1, T, 8, 128, dtype=E4M3), randn(1, T, 8, 128, dtype=E4M3), torch.empty(T, 32, 128, device=GPU, dtype=torch.bfloat16)
    return lambda: lambda: ops.scaled_attention(q=q, k=k, v=v, out=out, mask=mask)


def cascade(S, shared, own, whole):
    q, out, slot = randn(S, 32, 128), torch.empty(S, 32, 128, device=GPU, dtype=torch.bfloat16), slots(S)
    if whole:
        k, v = randn(S, shared + own, 8, 128), randn(S, shared + own, 8, 128)
        return lambda: lambda: ops.attention(q=q, k=k, v=v, slot=slot, out=out, mask="full")
    front, back, rest, last = randn(1, shared, 8, 128), randn(1, shared, 8, 128), randn(S, own, 8, 128), randn(S, own, 8, 128)
    one, two, s, t = torch.empty_like(out), torch.empty_like(out), torch.empty(S, 32, device=GPU), torch.empty(S, 32, device=GPU)

    def run():
        ops.attention(q=q, k=front, v=back, out=one, lse=s, mask="full")
        ops.attention(q=q, k=rest, v=last, slot=slot, out=two, lse=t, mask="full")
        ops.merge_states(v=one[:, None], s=s[:, None], v2=two, s2=t, out=out)
    return lambda: run


def tree(n, L):
    def make():
        bits, first = torch.randint(0, 1 << n, (n, 1), device=GPU, dtype=torch.int32), torch.tensor([L], device=GPU, dtype=torch.int32)
        q, k, v = randn(n, 32, 128), randn(1, L + n, 8, 128), randn(1, L + n, 8, 128)
        out = torch.empty_like(q)
        return lambda: ops.attention(q=q, k=k, v=v, out=out, bits=bits, bits_from=first, mask="full")
    return make


def delta(T):
    q, k, v = randn(T, 16, 128), randn(T, 16, 128), randn(T, 32, 128)
    out, decay, beta, state = torch.empty_like(v), -torch.rand(T, 32, device=GPU) * 0.1, torch.rand(T, 32, device=GPU), torch.zeros(1, 32, 128, 128, device=GPU)
    return lambda: lambda: ops.gated_delta(q=q, k=k, v=v, decay=decay, beta=beta, state=state, out=out, normalize=True)


def work():
    """(op, case, how it is made, copies, bytes, flop)"""
    for S, Hq, L, runs in ((1, 128, 1024, 8), (1, 128, 8192, 32), (16, 128, 4096, 4), (64, 128, 4096, 1), (64, 16, 4096, 2)):
        yield "latent_attention", f"T={S},Hq={Hq},L={L},E=576,C=512,N={runs}", latent(S, Hq, L, runs), copies_of(S * L * 1152), S * L * 1152, 2 * S * Hq * L * 1088
    for S, L, runs in ((1, 8192, 32), (1, 32768, 32), (16, 4096, 2), (64, 4096, 1)):
        yield "attention_block_scaled", f"T={S},Hq=32,Hkv=8,L={L},D=128,N={runs}", block_scaled(S, L, runs), copies_of(S * L * 1152), S * L * 8 * 144, 4 * S * L * 32 * 128
    for T in (4096, 8192, 16384):
        for mask in ("causal", "full"):
            yield "scaled_attention", f"T={T},L={T},Hq=32,Hkv=8,D=128,mask={mask}", scaled(T, mask), 1, T * 128 * (3 * 32 + 16), 4 * T * T * 32 * 128 // (2 if mask == "causal" else 1)
    for whole in (False, True):
        yield "attention", f"T=64,Hq=32,Hkv=8,shared=8192,own=256,D=128,form={'whole' if whole else 'cascade'}", cascade(64, 8192, 256, whole), 2, None, 4 * 64 * 8448 * 32 * 128
    for n in (1, 4, 8, 16):
        yield "attention", f"T={n},Hq=32,Hkv=8,L=4096,D=128,form=tree", tree(n, 4096), 10, 4096 * 8 * 512, 4 * n * 4096 * 32 * 128
    for T in (64, 1024, 8192):
        yield "gated_delta", f"T={T},Hk=16,Hv=32,D=128,Dv=128", delta(T), 2, None, T * 32 * 128 * 128 * 7


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--out", type=Path, default=ROOT, help="folder under which bench/results/<chip> is written")
    args = p.parse_args()
    r = gpu_receipt("attention_forms", "python bench/bench_attention_forms.py", SOURCES)
    r.root, wrong = args.out, 0
    for op, case, make, copies, size, flops in work():
        try:
            t = graph_times([make() for _ in range(copies)])
        except vivace.Error as e:
            wrong += 1
            print(f"{op} {case}: {e}", flush=True)
            continue
        p50 = statistics.median(t)
        more = {"flops": flops} | ({"bytes": size} if size else {})
        r.row(op=op, case=case, dtype="e4m3" if op == "scaled_attention" else "bf16", p50_us=p50, p99_us=t[-1], n=len(t), tool="graph of calls", note=f"{copies} copies in turn", **more)
        print(f"{op:18} {case:56} {p50:9.1f} us  {flops / p50 / 1e6:6.0f} TFLOP/s" + (f"  {size / p50 / 1e6:5.2f} TB/s" if size else ""), flush=True)
        r.write("bench")  # rows as they come: a run that is cut off keeps those before
        torch.cuda.empty_cache()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
