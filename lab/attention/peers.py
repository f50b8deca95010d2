"""Peers of lab/attention/bench.cu through PyTorch: cuDNN and flash attention, the same cases, timed in CUDA graphs.

Usage: python lab/attention/peers.py peers.jsonl
"""
import json
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CASES = [  # kind, B, Hq, Hkv, T, L, D, causal
    ("decode", 1, 32, 8, 1, 1024, 128, True), ("decode", 1, 32, 8, 1, 8192, 128, True), ("decode", 1, 32, 8, 1, 32768, 128, True),
    ("decode", 16, 32, 8, 1, 4096, 128, True), ("decode", 64, 32, 8, 1, 4096, 128, True), ("decode", 64, 32, 8, 1, 1024, 128, True),
    ("decode", 1, 8, 1, 1, 1024, 256, True), ("decode", 1, 8, 1, 50, 1000, 256, False),
    ("prefill", 1, 32, 8, 1024, 1024, 128, True), ("prefill", 1, 32, 8, 4096, 4096, 128, True), ("prefill", 1, 32, 8, 8192, 8192, 128, True),
    ("prefill", 1, 32, 8, 16384, 16384, 128, True), ("prefill", 1, 8, 1, 968, 968, 256, False), ("prefill", 3, 16, 16, 256, 256, 72, False),
    ("prefill", 1, 20, 20, 1500, 1500, 64, False), ("prefill", 2, 16, 16, 8192, 8192, 256, True),
]
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def time_graph(run, count):
    """us a call: a graph of run(0) .. run(count - 1), median of its replays."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(3):
            run(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(count):
            run(i)
    times = []
    for i in range(9):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if i >= 2:
            times.append(begin.elapsed_time(end) * 1e3 / count)
    return statistics.median(times)


def main():
    rows, table = [], []
    for kind, B, Hq, Hkv, T, L, D, causal in CASES:
        decode = kind == "decode"
        size = B * Hkv * L * D * 2
        copies = min(max((320 << 20) // (2 * size), 2), 100) if decode else 1
        q = torch.randn(B, Hq, T, D, device="cuda", dtype=torch.bfloat16)
        # Caches as [B, L, Hkv, D], which is how ours and FlashInfer's lie.
        kv = [torch.randn(2, B, L, Hkv, D, device="cuda", dtype=torch.bfloat16).transpose(2, 3) for _ in range(copies)]
        count = (10 if B * L >= 65536 else 40) if decode else (1 if L >= 4096 else 8)
        for cold in (False, True) if decode else (False,):
            line = [f"{kind} {B},{Hq},{Hkv},{T},{L},{D} {'cold' if cold else 'warm'}"]
            for name, backend in BACKENDS.items():
                def run(i):
                    k, v = kv[i % copies if cold else 0]
                    return F.scaled_dot_product_attention(q, k, v, is_causal=causal and not decode, enable_gqa=Hq != Hkv)
                try:
                    with sdpa_kernel(backend):
                        us = time_graph(run, count)
                except RuntimeError as e:
                    line.append(f"{name}: {str(e).splitlines()[0][:60]}")
                    continue
                case = f"B={B},Hq={Hq},Hkv={Hkv},T={T},L={L},D={D},mask={'causal' if causal else 'full'},kv=bf16,kvcache={'cold' if cold else 'warm'}"
                rows.append({"op": "attention", "kind": kind, "case": case, "impl": name, "us": round(us, 3)})
                line.append(f"{name} {us:.2f}")
            table.append(" | ".join(line))
        del kv
    with open(sys.argv[1] if len(sys.argv) > 1 else "peers.jsonl", "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)
    print(*table, sep="\n")


if __name__ == "__main__":
    main()
