"""decode_layers as tests/gpu/test_decode_layers.py runs it: shapes, contents, steps. By itself it prints what some steps' bits come
to: `python tests/gpu/decode_case.py SHAPE TURN...`, a word for each count of turns that it begins with. bits_apart() does so with warps of the kernel held
up here and there, at other places from another turn on: another exchange.cuh, in a folder of its own (VIVACE_KERNEL_DIR)."""
import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
HOOK = "vivace/kernels/decode/exchange.cuh"
NOTHING = "__device__ __forceinline__ void between(uint32_t /*turn*/, uint32_t /*point*/) {}"
# Of eight points a warp passes, one takes up to 8 us.
DELAY = """__device__ __noinline__ void between(uint32_t turn, uint32_t point) {
  uint32_t h = (blockIdx.x * 73856093u) ^ (turn * 19349663u) ^ (point * 83492791u) ^ (threadIdx.x / 32 * 2654435761u);
  h ^= h >> 15, h *= 0x2c1b3c6du, h ^= h >> 12, h *= 0x297a2d39u, h ^= h >> 15;
  if (h & 7) return;
  const long long until = clock64() + ((h >> 8) & 0x3fff);
  while (clock64() < until) {
  }
}"""
# layers, hidden, query heads, kv heads, head, mlp, norms of heads, biases
SHAPES = {
    "small": (3, 128, 4, 2, 64, 192, False, True),
    "smollm2": (4, 576, 9, 3, 64, 1536, False, False),
    "qwen2": (2, 896, 14, 2, 64, 4864, False, True),
    "qwen3": (3, 1024, 16, 8, 128, 3072, True, False),
    "llama": (2, 2048, 32, 8, 64, 8192, False, False),
}
SHAPES |= {f"{name}-e4m3": shape for name, shape in SHAPES.items()}  # the same with weights in e4m3
PAGE = 64


class OneToken:
    """A step of an op that takes one token through all layers; `given` is what the op takes, in device memory."""

    op, WRITTEN = "", ("k_cache", "v_cache", "words", "queries", "out")

    def __call__(self, context, out=None):
        """The row of a token with so many positions, itself included."""
        from vivace import ops

        self.given["pos"].fill_(context - 1)
        getattr(ops, self.op)(**self.given | ({} if out is None else {"out": out}))
        return self.given["out"] if out is None else out

    @functools.cached_property
    def read(self):
        """The host's copies of what no step writes: weights are hundreds of MB."""
        return {k: v.cpu() if hasattr(v, "cpu") else v for k, v in self.given.items() if k not in self.WRITTEN}

    def on_host(self, context):
        """The same on the CPU, from the caches as they are: all that it takes."""
        from vivace import ops

        there = self.read | {k: self.given[k].cpu() for k in self.WRITTEN if k in self.given}
        there["pos"].fill_(context - 1)
        getattr(ops, self.op)(**there)
        return there


class Step(OneToken):
    """One token of a model of random weights, in pages that lie anywhere, of slot 1 of 2."""

    op = "decode_layers"

    def __init__(self, shape, places=4160, seed=1, dense=False):
        import torch

        self.torch = torch
        N, H, Hq, Hkv, D, M, norms, biased = SHAPES[shape]
        g = torch.Generator(device="cuda").manual_seed(seed)
        draw = lambda *s: torch.randn(*s, generator=g, device="cuda").bfloat16()  # noqa: E731
        matrix = lambda n, k: (torch.randn(N, n, k, generator=g, device="cuda") / k**0.5).bfloat16()  # noqa: E731
        near = lambda *s: (1 + 0.1 * torch.randn(*s, generator=g, device="cuda")).bfloat16()  # noqa: E731
        A, kv, pages = Hq * D, Hkv * D, -(-places // PAGE)
        lines = lambda n: -(-n // 32) * 32  # noqa: E731
        words = 32 + 2 * (2 * lines(H) + lines(M) + lines(A) + lines(A + 2 * kv) + 32 * A)
        whole = lambda x: torch.as_tensor(x, dtype=torch.int32, device="cuda")  # noqa: E731
        cache = lambda: draw(N, 2, places, Hkv, D) if dense else draw(N, 2 * pages + 1, PAGE, Hkv, D)  # noqa: E731
        matrices = {"qkv": (A + 2 * kv, H), "o": (H, A), "gate_up": (2 * M, H), "down": (H, M)}
        weights = {p: matrix(*s) for p, s in matrices.items()}
        if shape.endswith("-e4m3"):
            weights |= {p + "_scale": 0.5 ** (6 * torch.rand(N, s[0], generator=g, device="cuda")) / s[1] ** 0.5 for p, s in matrices.items()}
            weights |= {p: (weights[p].float() / weights[p + "_scale"][:, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn) for p in matrices}
        self.given = {"x": draw(1, H), "attn_norm": near(N, H), "mlp_norm": near(N, H), **weights,
                      "inv_freq": 1e4 ** -(torch.arange(D // 2, device="cuda") / (D // 2)), "k_cache": cache(), "v_cache": cache(), "pos": whole([0]), "slot": whole([1]),
                      "words": torch.zeros(words, dtype=torch.int32, device="cuda"), "out": torch.zeros(1, H, dtype=torch.bfloat16, device="cuda"), "eps": 1e-5}
        if norms:
            self.given |= {"q_norm": near(N, D), "k_norm": near(N, D)}
        if biased:
            self.given["qkv_bias"] = draw(N, A + 2 * kv)
        if not dense:
            order = torch.randperm(2 * pages + 1, generator=torch.Generator().manual_seed(seed))
            self.given["page_table"] = whole(order[: 2 * pages].reshape(2, pages).tolist())


def bits(shape, contexts=(1, 63, 64, 65, 1000, 4097), steps=4, turn=0):
    """What steps leave at each context, as a word; the first is of this turn, a multiple of 2^16, from which on tags are those from 0 on."""
    step, seen = Step(shape), hashlib.sha256()
    step.given["words"][0] = turn
    for context in contexts:
        for _ in range(steps):
            seen.update(step(context).view(step.torch.int16).cpu().numpy().tobytes())
    for cache in ("k_cache", "v_cache"):
        seen.update(step.given[cache].view(step.torch.int16).cpu().numpy().tobytes())
    return seen.hexdigest()


def bits_apart(shape, turns, folder, script=__file__):
    """The same from each of the turns, in a process of its own that compiles once, with warps held up; a fault that is planted in this process's kernels is
    in that one's too."""
    planted = Path(os.environ.get("VIVACE_KERNEL_DIR", "/nonexistent"))
    for path in planted.rglob("*.cuh") if planted.is_dir() else ():
        to = folder / path.relative_to(planted)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(path.read_text())
    source = (folder / HOOK if (folder / HOOK).exists() else ROOT / HOOK).read_text()
    assert NOTHING in source
    (folder / HOOK).parent.mkdir(parents=True, exist_ok=True)
    (folder / HOOK).write_text(source.replace(NOTHING, DELAY))
    done = subprocess.run([sys.executable, script, shape, *map(str, turns)], cwd=ROOT, env=os.environ | {"VIVACE_KERNEL_DIR": str(folder)}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


if __name__ == "__main__":
    print(*(bits(sys.argv[1], turn=int(turn)) for turn in sys.argv[2:]))
