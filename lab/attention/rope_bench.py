"""What rope_attention's one kernel gains over qkv_rope and attention: chains of qkv, both and o of a decode step in a CUDA graph.

    python lab/attention/rope_bench.py [--warm] [MODEL ...]      --warm: only compiles the kernels

Layers with weights and caches of their own, more than L2 holds, at a context of 1,024. us of a layer in two launches, in one and without qkv_rope at all
(queries of the step before), then attention alone and the one kernel alone. Needs a GPU and torch.
"""
import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.measure import in_turn  # noqa: E402
from vivace import ops  # noqa: E402

BF16, CONTEXT, ROOM = torch.bfloat16, 1024, 2048
# name: hidden, query heads, kv heads, their size, norms, layers
MODELS = {"8B": (4096, 32, 8, 128, True, 4), "0.6B": (1024, 16, 8, 128, True, 10), "1B": (2048, 32, 8, 64, False, 8), "135M": (576, 9, 3, 64, False, 30)}


def chains(hidden, Hq, Hkv, D, norms, layers, T):
    draw = lambda *shape: torch.randn(*shape, device="cuda")  # noqa: E731
    rows = {"pos": torch.full((T,), CONTEXT - 1, dtype=torch.int32, device="cuda"), "slot": torch.arange(T, dtype=torch.int32, device="cuda")}
    made = {"inv_freq": 1e4 ** -(torch.arange(D // 2, device="cuda") / (D // 2))} | ({n: torch.ones(D, device="cuda").to(BF16) for n in ("q_norm", "k_norm")} if norms else {})
    x, qkv = draw(T, hidden).to(BF16), torch.empty(T, (Hq + 2 * Hkv) * D, dtype=BF16, device="cuda")
    q, out = (torch.zeros(T, Hq, D, dtype=BF16, device="cuda") for _ in range(2))
    held = [((draw((Hq + 2 * Hkv) * D, hidden) * hidden**-0.5).to(BF16), (draw(hidden, Hq * D) * 0.01).to(BF16), draw(2, T, ROOM, Hkv, D).to(BF16)) for _ in range(layers)]

    first = lambda w, o, c: ops.gemm(x=x, w=w, out=qkv)  # noqa: E731
    rope = lambda w, o, c: ops.qkv_rope(qkv=qkv, q=q, k_cache=c[0], v_cache=c[1], **rows, **made)  # noqa: E731
    attend = lambda w, o, c: ops.attention(q=q, k=c[0], v=c[1], out=out, **rows)  # noqa: E731
    both = lambda w, o, c: ops.rope_attention(qkv=qkv, q=q, k_cache=c[0], v_cache=c[1], out=out, **rows, **made)  # noqa: E731
    last = lambda w, o, c: ops.gemm(x=out.view(T, -1), w=o, residual=x, out=x)  # noqa: E731
    run = lambda *calls: [lambda: [call(*h) for h in held for call in calls]] * 2  # noqa: E731
    return {"two": run(first, rope, attend, last), "one": run(first, both, last), "without": run(first, attend, last), "attention": run(attend), "rope_attention": run(both)}


def main():
    for name in [a for a in sys.argv[1:] if a in MODELS] or MODELS:
        for T in (1, 4, 8, 16, 32):
            layers = 1 if "--warm" in sys.argv else MODELS[name][-1]
            work = chains(*MODELS[name][:-1], layers, T)
            if "--warm" in sys.argv:
                [call[0]() for call in work.values()]
                continue
            print(f"{name:5} T {T:2}: " + ", ".join(f"{what} {statistics.median(us) / layers:6.2f}" for what, us in in_turn(work).items()), flush=True)


if __name__ == "__main__":
    with ops.constant_weights():  # as in a model's step
        sys.exit(main())
