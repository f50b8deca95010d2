"""Reference of `quantize_micro`: f32 steps as the formula has them, codes by search for the nearest value."""
import numpy as np

from tests.ref.common import Case, round_to

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


def ref(x, tensor_scale, *, layout="linear", dims, dtypes):
    T, H = x.shape
    g, blocks = np.float32(tensor_scale[0]), x.astype(np.float32).reshape(T, -1, BLOCK)
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
    Case({"T": 3, "H": 64}, {"x": "f32", "out": "u8", "scales": "e4m3", "tensor_scale": "f32"}, shapes={"scales": (12,)}, **_G),
    Case({"T": 5, "H": 256}, {"x": "bf16", "out": "u8", "scales": "e4m3", "tensor_scale": "f32"}, {"layout": "swizzled"}, shapes={"scales": (2048,)}, **_G),
    Case({"T": 130, "H": 48}, {"x": "f16", "out": "u8", "scales": "e4m3", "tensor_scale": "f32"}, {"layout": "swizzled"}, shapes={"scales": (1024,)}, **_G),
    Case({"T": 8, "H": 32}, {"x": "bf16", "out": "u8", "scales": "e4m3", "tensor_scale": "f32", "rows": "i32"}, shapes={"scales": (16,)}, rows=5, **_G),
    Case({"T": 2, "H": 32}, {"x": "f32", "out": "u8", "scales": "e4m3", "tensor_scale": "f32"}, note="every tie",
         shapes={"scales": (4,)}, values={"tensor_scale": [1.0], "x": lambda rng, shape: np.resize(
             [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, 0], shape)}),
]
