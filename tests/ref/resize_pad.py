"""Reference of `resize_pad`: weights as matrices, float64; levels as the integers that they are."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to, rounding


def scaled(H, W, OH, OW):
    """Lines and columns of the image."""
    ratio = max(W / OW, H / OH)
    return min(max(int(H / ratio), 1), OH), min(max(int(W / ratio), 1), OW)


def triangle(n, to):
    """[to, n]: 22-bit weights of the inputs in each output."""
    scale = n / to
    support = max(scale, 1.0)
    centre = (np.arange(to)[:, None] + 0.5) * scale
    k = np.arange(n)[None]
    first, last = np.trunc(centre - support + 0.5), np.trunc(centre + support + 0.5)
    w = np.maximum(1 - np.abs((k - centre + 0.5) / support), 0) * ((k >= first) & (k < last))
    total = np.zeros(to)
    for column in w.T:  # one after the other: as the sum is rounded
        total += column
    return np.trunc(w / total[:, None] * (1 << 22) + 0.5).astype(np.int64)


def levels(frames, axis, to):
    sums = np.moveaxis(np.tensordot(triangle(frames.shape[axis], to), frames, (1, axis)), 0, axis)
    return np.clip((sums + (1 << 21)) >> 22, 0, 255)


def points(n, to):
    """First input, second input, weight of the second; coordinates are f32 as the formula says."""
    f = np.float32
    at = np.maximum((np.arange(to, dtype=f) + f(0.5)) * (f(n) / f(to)) - f(0.5), f(0))
    first = np.minimum(at.astype(np.int64), n - 1)
    return first, np.minimum(first + 1, n - 1), at - first.astype(f)


def linear(x, h, w):
    """Between neighbours, in the arithmetic of x's type."""
    t = x.dtype.type
    y0, y1, low = points(x.shape[1], h)
    x0, x1, right = points(x.shape[2], w)
    low, right = low.astype(t)[:, None, None], right.astype(t)[:, None]
    above = (t(1) - right) * x[:, y0][:, :, x0] + right * x[:, y0][:, :, x1]
    below = (t(1) - right) * x[:, y1][:, :, x0] + right * x[:, y1][:, :, x1]
    return (t(1) - low) * above + low * below


def ref(x, *, filter="triangle", align="centre", dtypes, dims):
    T, H, W, C = x.shape
    OH, OW = dims["OH"], dims["OW"]
    h, w = scaled(H, W, OH, OW)
    whole = dtypes["out"] == "u8"
    if filter == "triangle":
        picture = levels(levels(np.asarray(x, np.int64), 2, w), 1, h)
        picture = picture if whole else picture / 255
    elif whole:  # a level on the other side of a tie is another level: each operation in f32, as the formula says
        picture = np.rint(linear(np.asarray(x, np.float32), h, w)).astype(np.int64)
    else:
        picture = linear(np.asarray(x, np.float64) / 255, h, w)
    out = np.zeros((T, OH, OW, C), picture.dtype)
    part = 1 if align == "end" else 2
    top, left = (OH - h) // part, (OW - w) // part
    out[:, top : top + h, left : left + w] = picture
    return {"out": out if whole else round_to(out * 2 - 1, dtypes["out"])}


def bound(port, value, dtype, inputs):
    """Each rounding to f32 is of a value of at most 1, so half of 2^-23 at most. triangle: the quotient (counted twice,
    as it is doubled) and the sum. linear: the quotient, 1 - share of either axis, and a product and a sum for
    each axis, all doubled, and the last sum: 13 halves."""
    return rounding(value, dtype) + 2.0**-24 * (13 if inputs.attrs.get("filter") == "linear" else 3)


def case(T, H, W, C, OH, OW, out, filter="triangle", align="centre", **more):
    dtypes = {"x": "u8", "out": out} | ({"rows": "i32"} if "rows" in more else {})
    attrs = ({} if filter == "triangle" else {"filter": filter}) | ({} if align == "centre" else {"align": align})
    return Case({"T": T, "H": H, "W": W, "C": C, "OH": OH, "OW": OW}, dtypes, attrs, ranges={"x": (0, 256)}, distributions=("normal",), **more)


SIZES = {
    "shrinks, wider than high": (2, 48, 64, 3, 22, 22),
    "grows, higher than wide, one channel": (1, 13, 7, 1, 40, 56),
    "as it is": (2, 19, 19, 3, 19, 19),
    "odd sizes, an image that is not square, four channels": (1, 61, 37, 4, 17, 45),
}
CASES = [case(*size, out, filter, note=what) for what, size in SIZES.items() for filter in ("triangle", "linear") for out in ("u8", "f32", "bf16", "f16")]
CASES += [case(*size, out, filter, note=what) for what, size, out in (
    ("of a single pixel", (1, 1, 1, 3, 9, 9), "u8"),
    ("to a single pixel", (1, 30, 41, 3, 1, 1), "f32"),
    ("a line that keeps no height", (1, 1, 90, 2, 8, 9), "u8"),
    ("the most that the triangle shrinks", (1, 256, 128, 1, 2, 2), "u8"),
    ("more than a tile, grown by little", (1, 70, 69, 3, 75, 71), "u8"),
    ("a frame of a camera", (1, 120, 160, 3, 84, 84), "bf16"),
) for filter in ("triangle", "linear")]
CASES += [case(0, 8, 8, 3, 4, 4, "u8"), case(3, 9, 6, 3, 5, 5, "f32", "linear", rows=2), case(3, 9, 6, 3, 5, 5, "u8", rows=5, note="a count beyond T")]

CASES += [case(*size, out, filter, "end", note=f"{what}, behind the padding") for what, size in SIZES.items() for filter, out in (("triangle", "u8"), ("linear", "bf16"))]


def fit(d):
    if d.attr("filter") == "triangle":
        for a, b in (("H", "OH"), ("W", "OW")):
            d.at_least("OH", 1)
        if max(d.dims["H"] / d.dims["OH"], d.dims["W"] / d.dims["OW"]) > 100:
            d.dims["OH"], d.dims["OW"] = max(1, -(-d.dims["H"] // 100)), max(1, -(-d.dims["W"] // 100))


DOMAIN = Domain(fit=fit, ranges={"x": (0, 256)}, distributions=("normal",), sizes={"T": (1, 1, 2, 3), "C": (1, 2, 3, 3, 4)}, work=lambda d: d.dims["T"] * d.dims["C"] * d.dims["H"] * d.dims["W"] * (d.dims["OW"] + d.dims["OH"]) / 8)
