"""Reference of `quantize`: f32 divisions and one rounding, so that every code is exact."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import E4M3_MAX, Case, round_to

BLOCK = 128


def ref(x, out_scale=None, amax=None, *, dtypes):
    top = np.float32(127 if dtypes["out"] == "i8" else E4M3_MAX)
    x = x.astype(np.float32)
    T, H = x.shape
    written = {}

    def scale(largest):
        largest = np.asarray(largest, np.float32)
        return np.where(largest > 0, largest / top, np.float32(1)).astype(np.float32)

    if out_scale is not None:
        s = np.float32(out_scale[0])
    elif amax is not None:
        written["tensor_scale"] = scale(amax)
        s = written["tensor_scale"][0]
    elif "row_scale" in dtypes:
        written["row_scale"] = scale(np.abs(x).max(-1, initial=0))
        s = written["row_scale"][:, None]
    else:
        padded = np.pad(np.abs(x), ((0, 0), (0, -H % BLOCK)))
        written["block_scale"] = scale(padded.reshape(T, padded.shape[1] // BLOCK, BLOCK).max(-1, initial=0))
        s = np.repeat(written["block_scale"], BLOCK, 1)[:, :H]
    q = x / s
    written["out"] = np.clip(np.rint(q), -127, 127).astype(np.int64) if top == 127 else round_to(q.astype(np.float64), "e4m3")
    return {port: v if v.dtype == np.int64 else v.astype(np.float64) for port, v in written.items()}


def bound(port, value, dtype, inputs):
    """The reference divides in f32 as the op does, both correctly rounded: exact."""
    return np.zeros_like(value)


CASES = [
    Case({"T": 5, "H": 256}, {"x": "bf16", "out": "e4m3", "out_scale": "f32"}, positive=("out_scale",)),
    Case({"T": 3, "H": 77}, {"x": "f32", "out": "i8", "out_scale": "f32"}, positive=("out_scale",)),
    Case({"T": 4, "H": 192}, {"x": "f16", "out": "e4m3", "amax": "f32", "tensor_scale": "f32"}, values={"amax": [3.7]}),
    Case({"T": 6, "H": 1000}, {"x": "bf16", "out": "e4m3", "row_scale": "f32"}),
    Case({"T": 6, "H": 333}, {"x": "f32", "out": "i8", "row_scale": "f32"}),
    Case({"T": 4, "H": 512}, {"x": "f16", "out": "e4m3", "block_scale": "f32"}),
    Case({"T": 5, "H": 300}, {"x": "bf16", "out": "i8", "block_scale": "f32"}),
    Case({"T": 8, "H": 130}, {"x": "f32", "out": "e4m3", "block_scale": "f32", "rows": "i32"}, rows=5),
    Case({"T": 0, "H": 64}, {"x": "f32", "out": "e4m3", "row_scale": "f32"}),
    Case({"T": 2, "H": 20000}, {"x": "bf16", "out": "e4m3", "row_scale": "f32"}, note="longer than registers hold"),
]


def fit(d):
    d.one_of("out_scale", "amax", "row_scale", "block_scale")
    (d.add if d.has("amax") else d.drop)("tensor_scale")


DOMAIN = Domain(fit=fit, contents=lambda d, rng: {"amax": [float(np.float32(rng.choice([0.0, 3.7, 1e-30, 500.0])))]}, positive=("out_scale",), weight=2)
