"""Reference of `im2col`: patches cut from padded frames, float64."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to, rounding


def ref(x, scale=None, offset=None, *, kernel_h=1, kernel_w=1, stride_h=1, stride_w=1, pad_h=0, pad_w=0, order="hwc", dtypes, dims, valid):
    y = np.asarray(x, np.float64)
    y = y * (1 if scale is None else scale) + (0 if offset is None else offset)
    y = np.pad(y, ((0, 0), (pad_h, pad_h), (pad_w, pad_w), (0, 0)))
    cut = np.lib.stride_tricks.sliding_window_view(y, (kernel_h, kernel_w), (1, 2))[:, ::stride_h, ::stride_w]  # N OH OW C kh kw
    cut = cut.transpose(0, 1, 2, 4, 5, 3) if order == "hwc" else cut
    patches = cut.reshape(int(np.prod(cut.shape[:3])), int(np.prod(cut.shape[3:])))
    out = np.zeros((len(patches), dims["K"]))
    out[:, : patches.shape[1]] = patches
    return {"out": round_to(out[:valid], dtypes["out"])}


def finite(x):
    """Its numbers; zeros for the others, whose results are infinities and NaN: equal or wrong, whatever the bound."""
    return np.nan_to_num(np.asarray(x, np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def bound(port, value, dtype, inputs):
    """A product and a sum, rounded to f32 each: half a unit of the product's size and half one of the result's,
    and the rounding to out. Without scale and offset a value is converted once."""
    if "scale" not in inputs and "offset" not in inputs:
        return np.zeros_like(value)
    product = np.abs(finite(inputs["x"])).max(initial=0) * np.abs(finite(inputs.get("scale", np.ones(1)))).max(initial=0)
    return rounding(value, dtype) + 2.0**-24 * (product + np.abs(finite(value))) + 1e-37


def patches(N, H, W, C, kh, kw, sh=1, sw=1, ph=0, pw=0, K=None, order="hwc"):
    """Sizes and attributes of a case; those that are the op's defaults are left out."""
    T = N * ((H + 2 * ph - kh) // sh + 1) * ((W + 2 * pw - kw) // sw + 1)
    given = {"kernel_h": kh, "kernel_w": kw, "stride_h": sh, "stride_w": sw, "pad_h": ph, "pad_w": pw, "order": order}
    plain = {"kernel_h": 1, "kernel_w": 1, "stride_h": 1, "stride_w": 1, "pad_h": 0, "pad_w": 0, "order": "hwc"}
    return {"N": N, "H": H, "W": W, "C": C, "T": T, "K": K or kh * kw * C}, {k: v for k, v in given.items() if v != plain[k]}


def case(sizes, dtypes, **more):
    dims, attrs = sizes
    more["shapes"] = {"x": tuple(dims[k] for k in "NHWC")}  # with a size of its own: T follows from the frames, no test may change it alone
    if dtypes["x"] == "u8":
        more["ranges"] = {"x": (0, 256), **more.get("ranges", {})}
    return Case(dims, dtypes, attrs, **more)


KINDS = [("u8", "f32"), ("u8", "bf16"), ("u8", "f16"), ("f32", "f32"), ("bf16", "bf16"), ("f16", "f16")]
SHAPES = {
    "pixels of whole groups, overlapping": patches(2, 5, 7, 16, 3, 3, 1, 2, 1, 1),
    "a vision tower's patches, rows rounded up": patches(2, 28, 28, 3, 14, 14, 14, 14, K=592),
    "an odd width": patches(1, 9, 8, 3, 3, 3, 3, 2, 0, 1),
}
CASES = [case(s, {"x": x, "out": out, "scale": "f32", "offset": "f32"}, note=what, distributions=("normal", "large")) for what, s in SHAPES.items() for x, out in KINDS]
CASES += [
    case(patches(2, 16, 24, 3, 4, 8, 4, 8, order="chw"), {"x": "u8", "out": "bf16", "scale": "f32"}, note="the order of a convolution's weight"),
    case(patches(1, 6, 6, 2, 3, 2, 2, 1, 2, 0, K=19, order="chw"), {"x": "f32", "out": "f32"}, distributions=("normal", "subnormal", "edges", "nonfinite")),
    case(patches(1, 5, 4, 7, 2, 2), {"x": "f32", "out": "bf16", "scale": "f32", "offset": "f32"}, distributions=("nonfinite",), note="a channel's scale or offset that is no number spoils that channel alone"),
    case(patches(2, 1, 33, 80, 1, 3, 1, 2, 0, 1), {"x": "f16", "out": "f16"}, note="a convolution along a sequence, every second token"),
    case(patches(1, 1, 40, 128, 1, 3, 1, 1, 0, 1), {"x": "bf16", "out": "f32", "offset": "f32", "rows": "i32"}, rows=45, distributions=("normal",), note="a count beyond T; test_row_count has those below"),
    case(patches(1, 3, 3, 700, 2, 2), {"x": "f32", "out": "bf16"}, distributions=("normal",), note="a row of more groups than a block has"),
    case(patches(3, 4, 4, 1, 1, 1, 2, 3), {"x": "u8", "out": "f32"}, note="no patch, only a stride"),
    case(patches(1, 2, 2, 3, 2, 2, 1, 1, 5, 5), {"x": "u8", "out": "f32", "offset": "f32"}, note="patches of nothing but padding"),
    case(patches(0, 8, 8, 3, 4, 4, 4, 4), {"x": "u8", "out": "f32"}),
    case(patches(2, 20, 28, 3, 14, 14, 6, 6, 5, 2, K=592, order="chw"), {"x": "u8", "out": "f16", "scale": "f32", "offset": "f32"}, distributions=("normal",), note="pixels two by two, frames padded by an even width"),
    case(patches(1, 20, 28, 3, 14, 14, 7, 7, 5, 1, K=592, order="chw"), {"x": "u8", "out": "bf16", "scale": "f32", "offset": "f32"}, distributions=("normal",), note="patches that begin at odd pixels"),
    case(patches(1, 16, 16, 3, 16, 16, 16, 16, order="chw"), {"x": "u8", "out": "f32"}, distributions=("normal",), note="one patch"),
    *(case(patches(2, 448, 448, 3, 14, 14, 14, 14, K=592, order="chw"), {"x": "u8", "out": out, "scale": "f32", "offset": "f32"}, distributions=("normal",), note="many pixels two by two") for out in ("f32", "bf16", "f16")),
    *(case(patches(1, 1, 4400, 80, 1, 3, 1, 1, 0, 1), {"x": x, "out": out, **more}, distributions=("normal",), note="many whole groups") for x, out in KINDS for more in ({}, {"scale": "f32"})),
    case(patches(3, 2, 90, 24, 2, 4, 1, 3, 1, 2), {"x": "bf16", "out": "bf16"}, distributions=("normal", "nonfinite", "subnormal"), note="bits, several lines of patches and frames a block"),
]


def fit(d):
    g = lambda n: d.attr(n)  # noqa: E731
    for size, kernel, pad in (("H", "kernel_h", "pad_h"), ("W", "kernel_w", "pad_w")):
        d.dims[size] = max(d.dims[size], g(kernel) - 2 * g(pad), 1)
    d.dims["T"] = d.dims["N"] * ((d.dims["H"] + 2 * g("pad_h") - g("kernel_h")) // g("stride_h") + 1) * ((d.dims["W"] + 2 * g("pad_w") - g("kernel_w")) // g("stride_w") + 1)
    d.dims["K"] = g("kernel_h") * g("kernel_w") * d.dims["C"] + d.pick((0, 0, 1, 4, 5))


DOMAIN = Domain(fit=fit, contents=lambda d, rng: {"x": rng.integers(0, 256, tuple(d.dims[k] for k in "NHWC"))} if d.dtypes["x"] == "u8" else {},
                attrs={"kernel_h": (2, 3, 14, 16), "kernel_w": (2, 3, 14, 16), "stride_h": (2, 3, 14), "stride_w": (2, 3, 14), "pad_h": (1, 2, 5), "pad_w": (1, 2, 5)},
                sizes={"N": (1, 1, 2, 3), "C": (1, 2, 3, 3, 4, 8, 16, 24, 80, 128), "T": (1,), "K": (1,)}, distributions=("normal", "large", "subnormal", "edges", "nonfinite"))
