"""decode_layers_cross as tests/gpu/test_decode_layers_cross.py runs it: shapes, contents, steps. By itself it prints what some steps' bits come to:
`python tests/gpu/cross_case.py SHAPE TURN...`."""
import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu.decode_case import OneToken  # noqa: E402

# layers, heads, mlp, places that are heard
SHAPES = {"small": (3, 2, 192, 150), "tiny": (4, 6, 1536, 1500), "base": (3, 8, 2048, 1500), "small_en": (2, 12, 3072, 1500), "medium": (2, 16, 4096, 1500), "large": (3, 20, 5120, 1500)}
PLACES, WINDOWS = 448, 2
CONTEXTS = (1, 2, 8, 9, 64, 65, 385, 448)


class Step(OneToken):
    """One token of a model of random weights, in pages of one place that lie anywhere, of slot 1 of 2; it hears the last window."""

    op = "decode_layers_cross"

    def __init__(self, shape, seed=1, dense=False):
        import torch

        self.torch = torch
        N, heads, M, F = SHAPES[shape]
        H, g = heads * 64, torch.Generator(device="cuda").manual_seed(seed)
        lines = lambda n: -(-n // 32) * 32  # noqa: E731
        draw = lambda *s: torch.randn(*s, generator=g, device="cuda")  # noqa: E731
        whole = lambda x: torch.as_tensor(x, dtype=torch.int32, device="cuda")  # noqa: E731
        cache = lambda: draw(N, 2, PLACES, heads, 64).bfloat16() if dense else draw(N, 2 * PLACES + 1, 1, heads, 64).bfloat16()  # noqa: E731
        words = 32 + 2 * (6 * lines(H) + lines(3 * H) + lines(M) + 64 * H)
        # Means of 64 columns, which a warp has, lie apart: so that a norm shows whether it takes them together rightly.
        self.given = {"x": (draw(1, H) + 3 * draw(heads).repeat_interleave(64)).bfloat16(), "add": draw(1, H).bfloat16()}
        for name, rows, columns in (("qkv", 3 * H, H), ("o", H, H), ("cross_q", H, H), ("cross_o", H, H), ("up", M, H), ("down", H, M)):
            self.given[name] = (draw(N, rows, columns) / columns**0.5).bfloat16()
        self.given |= {"norms": 1 + 0.1 * draw(N, 3 * H), "norm_biases": 0.1 * draw(N, 3 * H), "biases": (0.1 * draw(N, 7 * H + M)).bfloat16()}
        self.given |= {p: cache() for p in ("k_cache", "v_cache")} | {p: draw(N, WINDOWS, F, heads, 64).bfloat16() for p in ("cross_k", "cross_v")}
        self.given |= {"pos": whole([0]), "slot": whole([1]), "window": whole([WINDOWS - 1]), "words": torch.zeros(words, dtype=torch.int32, device="cuda"),
                       "out": torch.zeros(1, H, dtype=torch.bfloat16, device="cuda"), "queries": torch.zeros(N, 1, H, dtype=torch.bfloat16, device="cuda"), "eps": 1e-5}
        if not dense:
            order = torch.randperm(2 * PLACES + 1, generator=torch.Generator().manual_seed(seed))
            self.given["page_table"] = whole(order[: 2 * PLACES].reshape(2, PLACES).tolist())


def bits(shape, steps=4, turn=0):
    """As decode_case's."""
    step, seen = Step(shape), hashlib.sha256()
    step.given["words"][0] = turn
    note = lambda t: seen.update(t.view(step.torch.int16).cpu().numpy().tobytes())  # noqa: E731
    for context in CONTEXTS:
        for _ in range(steps):
            note(step(context))
            note(step.given["queries"])
    for cache in ("k_cache", "v_cache"):
        note(step.given[cache])
    return seen.hexdigest()


if __name__ == "__main__":
    print(*(bits(sys.argv[1], turn=int(turn)) for turn in sys.argv[2:]))
