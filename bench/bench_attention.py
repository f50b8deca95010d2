#!/usr/bin/env python3
"""Times attention on a GPU through the op, cuDNN and flash attention (PyTorch's) in turn with it in one process.

    python bench/bench_attention.py --out FOLDER [--only WORD]

A row is a graph of calls; kvcache=warm: all on one cache, kvcache=cold: on caches that take turns and together exceed L2.
Results are held against float64 in sampled rows. Receipt: bench/results/<chip>/attention.json under the folder.
"""
import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import vivace  # noqa: E402
from bench.measure import gpu_receipt, in_turn  # noqa: E402
from vivace import _core, attention, ops  # noqa: E402

GPU = "cuda"
SOURCES = ["vivace/base/*.h", "vivace/kernels/attention/*.h", "vivace/kernels/attention/*.cuh", "vivace/kernels/ptx/*.cuh", "vivace/kernels/tile/*.cuh", "vivace/ops/attention*.h",
           "bench/bench_attention.py", "bench/measure.py"]
PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


class Shape(NamedTuple):
    B: int
    Hq: int
    Hkv: int
    T: int  # queries a sequence
    L: int
    D: int
    mask: str = "causal"
    page: int = 0
    archived: float = 0  # us of FlashInfer 0.6.18's best form, measured on another H200

    @property
    def decode(self):
        return self.T < self.L

    def case(self, kv, cold):
        return f"B={self.B},Hq={self.Hq},Hkv={self.Hkv},T={self.T},L={self.L},D={self.D},mask={self.mask}" + f",page={self.page}" * bool(self.page) + f",kv={kv},kvcache={'cold' if cold else 'warm'}"

    @property
    def flops(self):
        pairs = self.T * (self.T + 1) // 2 if self.mask == "causal" and not self.decode else self.T * self.L
        return 4 * self.B * self.Hq * pairs * self.D


PREFILL = [Shape(1, 32, 8, 1024, 1024, 128, archived=29.9), Shape(1, 32, 8, 4096, 4096, 128), Shape(1, 32, 8, 8192, 8192, 128, archived=1039), Shape(4, 32, 8, 2048, 2048, 128, page=16, archived=339),
           Shape(1, 32, 8, 16384, 16384, 128), Shape(1, 8, 1, 968, 968, 256, "full"), Shape(1, 8, 1, 576, 576, 256, "full"), Shape(3, 16, 16, 256, 256, 72, "full"), Shape(1, 20, 20, 1500, 1500, 64, "full"),
           Shape(2, 16, 16, 8192, 8192, 256), Shape(1, 16, 16, 8192, 8192, 256, "full")]
DECODE = [Shape(1, 32, 8, 1, 1024, 128, archived=8.6), Shape(1, 32, 8, 1, 8192, 128, archived=14.7), Shape(1, 32, 8, 1, 32768, 128), Shape(16, 32, 8, 1, 4096, 128), Shape(16, 32, 8, 1, 4096, 128, page=16, archived=72.7),
          Shape(64, 32, 8, 1, 4096, 128), Shape(64, 32, 8, 1, 1024, 128), Shape(1, 8, 1, 1, 1024, 256), Shape(1, 8, 1, 50, 1000, 256, "full"), Shape(1, 8, 1, 50, 630, 256, "full")]


class Problem:
    """Tensors of a shape; caches as [B, L, Hkv, D] or pages, `copies` of them."""

    def __init__(self, s, kv, copies):
        self.s, rows = s, s.B * s.T
        self.q = torch.randn(rows, s.Hq, s.D, device=GPU, dtype=torch.bfloat16)
        self.out = torch.empty_like(self.q)
        dtype = torch.float8_e4m3fn if kv == "e4m3" else torch.bfloat16
        pages = -(-s.L // s.page) if s.page else 0
        blocks = (s.B * pages, s.page) if s.page else (s.B, s.L)
        self.caches = [[torch.randn(*blocks, s.Hkv, s.D, device=GPU, dtype=torch.bfloat16).to(dtype) for _ in "kv"] for _ in range(copies)]
        self.more = {"pos": torch.arange(s.L - s.T, s.L, device=GPU, dtype=torch.int32).repeat(s.B)}
        if s.B > 1:
            self.more["slot"] = torch.arange(s.B, device=GPU, dtype=torch.int32).repeat_interleave(s.T)
        if s.page:
            self.more["page_table"] = torch.randperm(s.B * pages, device=GPU).to(torch.int32).view(s.B, pages)

    def arguments(self, i):
        k, v = self.caches[i % len(self.caches)]
        return {"q": self.q, "k": k, "v": v, "out": self.out, "mask": self.s.mask, **self.more}

    def ours(self, i):
        arguments = self.arguments(i)
        return lambda: ops.attention(**arguments)

    def peer(self, i):
        """The same rows as torch has them: [B, H, T, D], caches as they lie."""
        s, (k, v) = self.s, (x.transpose(1, 2) for x in self.caches[i % len(self.caches)])
        q = self.q.view(s.B, s.T, s.Hq, s.D).transpose(1, 2).contiguous()
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=s.mask == "causal" and not s.decode, enable_gqa=s.Hq != s.Hkv)

    def error(self, samples=96):
        """The largest error of sampled queries and heads, in units of what rounding the weights and the result allows."""
        s, worst = self.s, 0.0
        self.ours(0)()
        k, v = (x.double() if x.dtype != torch.float8_e4m3fn else x.float().double() for x in self.caches[0])
        generator = torch.Generator().manual_seed(1)
        for n in range(samples):
            t, h = (s.B * s.T - 1, s.Hq - 1) if n == 0 else (int(torch.randint(m, (1,), generator=generator)) for m in (s.B * s.T, s.Hq))
            b, g = t // s.T, h // (s.Hq // s.Hkv)
            mine = (x[self.more["page_table"][b].long()].flatten(0, 1) if s.page else x[b] for x in (k[..., g, :], v[..., g, :]))
            keys, values = (x[: int(self.more["pos"][t]) + 1 if s.mask == "causal" else s.L] for x in mine)
            want = torch.softmax(keys @ self.q[t, h].double() * s.D**-0.5, 0) @ values
            worst = max(worst, float(((self.out[t, h].double() - want).abs() / (4 / 512 + want.abs() / 128)).max()))
        return worst


def time_row(r, s, kv):
    size = s.B * s.Hkv * s.L * s.D * (1 if kv == "e4m3" else 2)
    copies = min(max((320 << 20) // (2 * size), 2), 100) if s.decode else 1
    count = (10 if s.B * s.L >= 65536 else 40) if s.decode else 1 if s.L >= 4096 else 8
    p = Problem(s, kv, copies)
    error, tactic = p.error(), _core.picked_kernel("attention", 90, **p.arguments(0)).replace("vivace::kernels::", "")
    for cold in (False, True) if s.decode else (False,):
        at = (lambda i: i) if cold else (lambda i: 0)
        us, failed = in_turn({"vivace": [p.ours(at(i)) for i in range(count)]}), []
        for name, backend in PEERS.items() if kv == "bf16" and not s.page else ():
            try:  # one peer after the other, each in turn with ours
                with sdpa_kernel(backend):
                    both = in_turn({"vivace": [p.ours(at(i)) for i in range(count)], name: [p.peer(at(i)) for i in range(count)]})
            except RuntimeError as e:
                failed.append(f"{name}: {str(e).splitlines()[0][:60]}")
                continue
            us[name], us["vivace"] = both[name], sorted(us["vivace"] + both["vivace"])
        ours, others = us.pop("vivace"), {n: statistics.median(t) for n, t in us.items()}
        p50, best = statistics.median(ours), min(others, key=others.get, default=None)
        note = f"max_err in units of the rounding bound; {2 * size / p50 / 1e6:.2f} TB/s of keys and values; {s.flops / p50 / 1e6:.0f} TFLOP/s"
        note += "".join(f"; {n} {t:.2f}" for n, t in others.items()) + (f"; FlashInfer archived {s.archived}" if s.archived and kv == "bf16" and not cold else "") + "".join(f"; {f}" for f in failed)
        r.row(op="attention", case=s.case(kv, cold), dtype=kv, tactic=tactic, p50_us=p50, p99_us=ours[-1], n=len(ours), bytes=2 * size, flops=s.flops, peer=best, peer_p50_us=others.get(best), max_err=error, bound=1.0,
              tool="graph of calls", note=note, **{"pass": error <= 1})
        print(f"{s.case(kv, cold):72} {p50:9.2f} us, error {error:.2f}; {note.split('; ', 1)[1]}", flush=True)


def host_cost(r, calls=200, repeats=15):
    """What a call costs the CPU that issues it: bursts of calls, the GPU idle before each."""
    p = Problem(DECODE[0], "bf16", 1)
    q, (k, v) = p.q.view(1, 1, 32, 128).transpose(1, 2).contiguous(), (x.transpose(1, 2) for x in p.caches[0])
    arguments = p.arguments(0)

    def sdpa():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return burst(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))

    def burst(call):
        taken = []
        for _ in range(repeats):
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(calls):
                call()
            taken.append((time.perf_counter_ns() - begin) / calls / 1e3)
        torch.cuda.synchronize()
        return sorted(taken)

    x = torch.zeros(1, device=GPU)
    ours, peer, least = burst(lambda: ops.attention(**arguments)), sdpa(), burst(lambda: x.add_(1))
    r.row(op="attention", case="measure=host_call,T=1,L=1024", dtype="bf16", p50_us=statistics.median(ours), p99_us=ours[-1], n=repeats, peer="cudnn", peer_p50_us=statistics.median(peer), tool="clock of the host",
          note=f"an eager call from Python with torch tensors, its launch included; torch's add_ on this machine {statistics.median(least):.2f}")
    print(f"host cost of a call {statistics.median(ours):.2f} us; cuDNN through torch {statistics.median(peer):.2f}; add_ {statistics.median(least):.2f}", flush=True)


def compile_time(r):
    """A variant that no cache has; the rows say how busy the host was."""
    shapes = {"decode": {"T": 1, "Hq": 32, "Hkv": 8, "D": 128, "places": 4096}, "chunk": {"T": 50, "Hq": 8, "Hkv": 1, "D": 256, "places": 1000}, "prefill": {"T": 2048, "Hq": 32, "Hkv": 8, "D": 128, "places": 2048}}
    attention.variant(logits="s", softmax=False).compile("sm_90a", **shapes["decode"])  # the compiler is loaded
    for kind, shape in shapes.items():
        taken = []
        for i in range(3):
            v = attention.variant(logits=f"sigmoid(s + bias * {i + 1})", mask="j <= pos or seen[h, j] == 1", softmax=False, extra={"bias": float, "seen": "i32"})
            begin = time.perf_counter()
            v.compile("sm_90a", **shape)
            taken.append((time.perf_counter() - begin) * 1e6)
        taken.sort()
        r.row(op="attention", case=f"measure=variant_compile,role={kind}", dtype="bf16", p50_us=statistics.median(taken), p99_us=taken[-1], n=len(taken), tool="clock of the host",
              note=f"one kernel of a new variant by NVRTC, no cache; load of the host {os.getloadavg()[0]:.0f}", **{"pass": taken[-1] <= 3e6})
        print(f"variant, {kind}: {statistics.median(taken) / 1e6:.2f} s, slowest {taken[-1] / 1e6:.2f}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--out", type=Path, default=ROOT, help="folder under which bench/results/<chip> is written")
    p.add_argument("--only", default="", help="rows whose case contains the word: T=1,L=8192, measure=host")
    args = p.parse_args()
    rows = [(s, kv) for s in DECODE for kv in ("bf16", "e4m3") if kv == "bf16" or s.D == 128] + [(s, "bf16") for s in PREFILL]
    rows = [(s, kv) for s, kv in rows if args.only in s.case(kv, False)]
    r = gpu_receipt("attention", "python bench/bench_attention.py" + f" --only {args.only}" * bool(args.only), SOURCES)
    r.root = args.out
    parts = [("measure=variant_compile", lambda: compile_time(r))] if args.only in "measure=variant_compile" else []
    parts += [(s.case(kv, False), lambda s=s, kv=kv: time_row(r, s, kv)) for s, kv in rows]
    parts += [("measure=host_call", lambda: host_cost(r))] if args.only in "measure=host_call" else []
    wrong = 0
    for name, part in parts:
        try:
            part()
        except (vivace.Error, RuntimeError) as e:
            wrong += 1
            print(f"{name}: {type(e).__name__}: {e}", flush=True)
            continue
        if r.data["rows"]:
            r.write("bench")  # rows as they come: a run that is cut off keeps those before
        torch.cuda.empty_cache()
    return 1 if wrong or any(row.get("pass") is False for row in r.data["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
