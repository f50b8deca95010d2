"""Reference of `rope`: float64 around an angle that is rounded to f32, as vivace/ops/rope.h says."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, rounding, round_to


def rotate(x, inv_freq, pos, style, attn_factor):
    """[T, N, D] heads, rotated; unrounded. `pos`: [T], or [T, R] where each pair has its own."""
    angle = ((pos if pos.ndim == 2 else pos[:, None]).astype(np.float32) * inv_freq.astype(np.float32)).astype(np.float64)
    return turn(x, np.cos(angle) * attn_factor, np.sin(angle) * attn_factor, style)


def turn(x, c, s, style):
    """The same by cosines and sines [T, R]."""
    c, s, R, out = c[:, None], s[:, None], c.shape[-1], x.copy()
    first, second = (slice(0, R), slice(R, 2 * R)) if style == "half" else (slice(0, 2 * R, 2), slice(1, 2 * R, 2))
    out[..., first] = x[..., first] * c - x[..., second] * s
    out[..., second] = x[..., second] * c + x[..., first] * s
    return out


def ref(x, inv_freq, pos, *, style="half", attn_factor=1.0, dtypes):
    return {"out": round_to(rotate(x, inv_freq, pos, style, attn_factor), dtypes["out"])}


def bound(port, value, dtype, inputs):
    """Six f32 roundings and two of sine and cosine, on terms no larger than the head's largest."""
    size = np.abs(inputs["x"]).max(-1, keepdims=True, initial=0) * inputs.attrs.get("attn_factor", 1.0)
    return 1e-6 * size + rounding(value, dtype)


def angles(rng, shape):
    """Cosines and sines [T, 2, R]."""
    angle = rng.uniform(0, 2 * np.pi, (shape[0], shape[2]))
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def frequencies(rng, shape):
    return 10000.0 ** -(np.arange(shape[0]) / shape[0])


_POS = {"pos": (0, 4096)}
_FREQ = {"inv_freq": frequencies}
CASES = [
    Case({"T": 3, "N": 2, "D": 64, "R": 32}, {"x": "f32", "inv_freq": "f32", "pos": "i32", "out": "f32"}, ranges=_POS, values=_FREQ),
    Case({"T": 5, "N": 3, "D": 128, "R": 64}, {"x": "bf16", "inv_freq": "f32", "pos": "i32", "out": "bf16"}, {"style": "interleaved"}, ranges=_POS, values=_FREQ),
    Case({"T": 4, "N": 1, "D": 80, "R": 10}, {"x": "f16", "inv_freq": "f32", "pos": "i32", "out": "f16"}, {"attn_factor": 1.25}, ranges=_POS, values=_FREQ,
         note="a part of the head rotates"),
    Case({"T": 4, "N": 2, "D": 10, "R": 3}, {"x": "f32", "inv_freq": "f32", "pos": "i32", "out": "f32"}, {"style": "interleaved"},
         ranges={"pos": (-5, 131072)}, values=_FREQ),
    Case({"T": 6, "N": 2, "D": 32, "R": 16}, {"x": "f32", "inv_freq": "f32", "pos": "i32", "out": "f32", "rows": "i32"}, ranges=_POS, values=_FREQ, rows=2),
    Case({"T": 0, "N": 2, "D": 32, "R": 16}, {"x": "f32", "inv_freq": "f32", "pos": "i32", "out": "f32"}, ranges=_POS, values=_FREQ),
]


def fit(d):
    d.dims["D"] = min(d.dims["D"], 512)
    d.dims["R"] = d.pick((d.dims["D"] // 2, d.dims["D"] // 2, max(d.dims["D"] // 4, 1), max(1, d.dims["D"] // 2 - 1)))


def contents(d, rng):
    return {"inv_freq": frequencies(rng, (d.dims["R"],)), "pos": rng.integers(-5, rng.choice([64, 4096, 131072]), d.dims["T"])}


DOMAIN = Domain(fit=fit, contents=contents, attrs={"attn_factor": (1.25, 0.8)}, sizes={"N": (1, 2, 3, 4, 8, 32)}, tokens={})
