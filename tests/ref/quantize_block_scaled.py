"""Reference of `quantize_block_scaled`: f32 steps as the formula has them, codes by search for the nearest value.

quantized() and judge() serve the ops whose own rows leave so: their rows are exact to f32 only.
"""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to, rounding

VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
BLOCK = 16


def scale_places(T, blocks, layout):
    """(index [T, blocks] of each scale, entries in all)."""
    t, b = np.meshgrid(np.arange(T), np.arange(blocks), indexing="ij")
    if layout == "linear":
        return t * blocks + b, T * blocks
    wide = -(-blocks // 4)
    # Tiles of 128 x 4 as [tile row, tile column, row in 32, group of 32, scale].
    return np.ravel_multi_index((t // 128, b // 4, t % 32, t % 128 // 32, b % 4), (-(-T // 128) or 1, wide, 32, 4, 4)), -(-T // 128) * 128 * wide * 4


def scale_count(T, blocks, layout):
    """Entries of the scales in all."""
    return T * blocks if layout == "linear" else -(-T // 128) * 128 * -(-blocks // 4) * 4


def quantized(y, tensor_scale, layout, T):
    """(codes [rows, H / 2], scales) of exact rows y."""
    g, blocks = float(tensor_scale[0]), y.reshape(len(y), y.shape[1] // BLOCK, BLOCK)
    s = round_to(np.abs(blocks).max(-1, initial=0) / 6 / g, "e4m3")
    places, count = scale_places(T, y.shape[1] // BLOCK, layout)
    scales = np.zeros(count)
    scales[places[: len(y)]] = s
    return codes(y, s * g), scales


def codes(y, d):
    """Nearest codes of y over its blocks' scales d, two a byte."""
    with np.errstate(all="ignore"):
        v = np.where(d[..., None] > 0, y.reshape(*d.shape, BLOCK) / np.where(d > 0, d, 1)[..., None], 0.0)
    code = np.abs(np.minimum(np.abs(v), 6)[..., None] - VALUES).argmin(-1) + 8 * np.signbit(v)
    code = code.reshape(y.shape)
    return code[:, ::2] + 16 * code[:, 1::2]


def judge(got, y, allowed, tensor_scale, layout, T):
    """Largest excess over what is allowed, at most 0 where all is well. `got` holds out and scales as the op wrote
    them, y the exact rows, `allowed` how far f32 may be from each. A scale may be one e4m3 step off; of the scale
    that was written every code must be the nearest to some value within `allowed` of y."""
    rows = len(y)
    places, count = scale_places(T, y.shape[1] // BLOCK, layout)
    used = np.zeros(count, bool)
    used[places[:rows]] = True
    if np.any(got["scales"][~used] != 0):
        return np.inf  # padding is zero
    g, s = float(tensor_scale[0]), got["scales"][places[:rows]]
    most = np.abs(y).reshape(rows, y.shape[1] // BLOCK, BLOCK).max(-1) / 6 / g
    slack = allowed.reshape(rows, y.shape[1] // BLOCK, BLOCK).max(-1) / 6 / g
    worst = np.max(np.abs(s - round_to(most, "e4m3")) - np.where(slack > 0, rounding(most + slack, "e4m3"), 0), initial=-np.inf)
    nibbles = np.stack([got["out"] & 15, got["out"] >> 4], -1).reshape(y.shape).astype(int)
    value = VALUES[nibbles & 7] * np.where(nibbles & 8, -1.0, 1.0)
    d = np.repeat(s * g, BLOCK, axis=-1)
    edges = np.array([0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, np.inf])
    low, high = edges[nibbles & 7] * d, edges[(nibbles & 7) + 1] * d  # magnitudes that round to this code
    size, room = np.abs(y), allowed + 2e-7 * np.abs(y)
    off = np.where(d > 2.0**-126, np.maximum(low - size, size - high), np.where(value == 0, -np.inf, np.inf)) - room
    wrong_sign = (np.signbit(value) != np.signbit(y)) & (value != 0) & (size > room)
    return max(worst, np.max(np.where(wrong_sign, np.inf, off), initial=-np.inf))


def ref(x, tensor_scale, *, layout="linear", dims, dtypes):
    T, H = x.shape
    g, blocks = np.float32(tensor_scale[0]), x.astype(np.float32).reshape(T, H // BLOCK, BLOCK)
    s = round_to((np.abs(blocks).max(-1, initial=0) / np.float32(6) / g).astype(np.float64), "e4m3")
    d = s.astype(np.float32) * g
    inv = np.where(d >= np.float32(2.0**-126), np.float32(1) / np.where(d > 0, d, 1), np.float32(0)).astype(np.float32)
    v = (blocks * inv[..., None]).astype(np.float64)
    distance = np.abs(np.abs(v)[..., None] - VALUES)
    # Of two values as near, the even code.
    code = np.argmin(np.where(distance == distance.min(-1, keepdims=True), np.arange(8) % 2, 2), -1)
    code = (code + 8 * np.signbit(v)).reshape(T, H)
    places, count = scale_places(dims["T"], H // BLOCK, layout)
    scales = np.zeros(count)
    scales[places[:T]] = s
    return {"out": code[:, ::2] + 16 * code[:, 1::2], "scales": scales}


def bound(port, value, dtype, inputs):
    """The reference computes the scale in f32 as the op does: exact."""
    return np.zeros_like(value)


_G = {"values": {"tensor_scale": [0.0011]}}
CASES = [
    Case({"T": 3, "H": 64}, {"x": "f32", "out": "u8", "scales": "e4m3", "tensor_scale": "f32"}, shapes={"scales": "T*H/16"}, **_G),
    Case({"T": 5, "H": 256}, {"x": "bf16", "out": "u8", "scales": "e4m3", "tensor_scale": "f32"}, {"layout": "swizzled"}, shapes={"scales": "(T+127)/128*512*((H/16+3)/4)"}, **_G),
    Case({"T": 130, "H": 48}, {"x": "f16", "out": "u8", "scales": "e4m3", "tensor_scale": "f32"}, {"layout": "swizzled"}, shapes={"scales": "(T+127)/128*512*((H/16+3)/4)"}, **_G),
    Case({"T": 8, "H": 32}, {"x": "bf16", "out": "u8", "scales": "e4m3", "tensor_scale": "f32", "rows": "i32"}, shapes={"scales": "T*H/16"}, rows=5, **_G),
    Case({"T": 2, "H": 32}, {"x": "f32", "out": "u8", "scales": "e4m3", "tensor_scale": "f32"}, note="every tie",
         shapes={"scales": (4,)}, values={"tensor_scale": [1.0], "x": lambda rng, shape: np.resize(
             [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, 0], shape)}),
]


def fit(d):
    d.multiple("H", BLOCK)
    d.shapes["scales"] = (scale_count(d.dims["T"], d.dims["H"] // BLOCK, d.attr("layout")),)


DOMAIN = Domain(fit=fit, contents=lambda d, rng: {"tensor_scale": [float(np.float32(rng.choice([0.0011, 1.0, 40.0])))]})
