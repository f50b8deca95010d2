"""Times the tiles of gemm on a GPU: cold weights, rotated through more memory than the L2 cache holds.

A table never changes a result: rows choose how blocks share the work, not how a sum is cut.
"""
from vivace import _core, ops
from vivace.errors import InvalidArgumentError, UnsupportedError

COLD_BYTES = 256 << 20  # of all copies of a weight together: several times any L2 cache
REPLAYS = 7


def weights(words):
    """[(N, K)] of ["1024x4096"]."""
    try:
        pairs = [tuple(int(n) for n in w.split("x")) for w in words]
        if all(len(p) == 2 and min(p) > 0 for p in pairs):
            return pairs
    except ValueError:
        pass
    raise InvalidArgumentError(f"tune: a weight is NxK, such as 1024x4096, got {', '.join(words)}")


def counts(text):
    """[tokens] of "8,16,64"."""
    try:
        tokens = sorted({int(n) for n in text.split(",")})
        if tokens and tokens[0] > 0:
            return tokens
    except ValueError:
        pass
    raise InvalidArgumentError(f"tune: tokens are positive numbers with commas between, got {text}")


def _torch():
    try:
        import torch
    except ImportError:
        raise UnsupportedError("tune needs PyTorch with CUDA for its graphs and timers; install torch") from None
    if not torch.cuda.is_available():
        raise UnsupportedError("tune needs a GPU, and PyTorch sees none; run it where the model will run")
    return torch


def _time(torch, calls):
    """us a call: a graph of all calls, median of its replays."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), ops.constant_weights():  # as in a model's step
        for call in calls:
            call()
    times = []
    for _ in range(REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / len(calls))
    return sorted(times)[len(times) // 2]


def gemm(shapes, tokens, dtypes, say=lambda line: None):
    """The table's text: for each weight, dtype and count of tokens the fastest layout. The process's table is as
    it was afterwards."""
    torch = _torch()
    before, found = _core.gemm_tactics(), []
    try:
        for dtype in dtypes:
            kind, size = (torch.bfloat16, 2) if dtype == "bf16" else (torch.float8_e4m3fn, 1)
            for N, K in shapes:
                copies = max(4, min(200, -(-COLD_BYTES // (N * K * size))))
                w = [torch.randn(N, K, device="cuda").to(kind) for _ in range(copies)]
                for T in tokens:
                    x, out = torch.randn(T, K, device="cuda").to(kind), torch.empty(T, N, device="cuda", dtype=torch.bfloat16)
                    best = None
                    for layout in _core.gemm_layouts(dtype, N, K, T):
                        row = f"{dtype} {N} {K} {T} " + " ".join(map(str, layout))
                        _core.load_gemm_tactics(row + " 0")
                        us = _time(torch, [lambda m=m: ops.gemm(x, m, out=out) for m in w])
                        best = min(best or (us, row), (us, row))
                    if best is not None:
                        found.append(f"{best[1]} {best[0]:.2f}")
                        say(found[-1])
    finally:
        _core.load_gemm_tactics(before)
    return "# gemm tactics: dtype N K T rows tokens multicast_x multicast_w us\n" + "".join(line + "\n" for line in found)
