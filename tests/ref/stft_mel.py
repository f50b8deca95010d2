"""Reference of `stft_mel`: numpy's transform, float64."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, rounding

TOGETHER = True  # frames of one signal


def frames_of(x, W, hop, pad, count):
    """[B, count, W]: the samples of each frame."""
    if pad == "reflect":
        x = np.pad(x, ((0, 0), (W // 2, W // 2)), mode="reflect")
    return np.lib.stride_tricks.sliding_window_view(x, W, 1)[:, ::hop][:, :count]


def powers(x, window, hop, pad, count):
    """[B, count, F], and the size of the sums that they are squares of."""
    framed = frames_of(x, len(window), hop, pad, count) * window
    with np.errstate(invalid="ignore"):
        return np.abs(np.fft.rfft(framed)) ** 2, np.abs(framed).sum(-1, keepdims=True)


def bands(power, filters):
    """sum over frequencies whose share is not 0."""
    with np.errstate(invalid="ignore"):
        return np.where(filters == 0, 0.0, power[..., None, :] * filters).sum(-1)


def logarithms(mel):
    return np.log10(np.where(mel < 1e-10, 1e-10, mel))


def ref(x, window, filters, *, hop=160, pad="reflect", dtypes, dims, valid):
    if dims["T"] == 0:
        return {"out": np.zeros((0, dims["M"])), "peak": np.zeros(0)}
    power, _ = powers(x, window, hop, pad, dims["T"] // dims["B"])
    out = logarithms(bands(power, filters)).reshape(-1, dims["M"])[:valid]
    return {"out": out, "peak": np.fmax.reduce(out, -1, initial=-np.inf)}


def bound(port, value, dtype, inputs):
    """A logarithm moves by what its argument may be off. Of the transform in f64: W products and sums, 2^-52 of their sizes each,
    in both parts of each frequency. Of the bands: F + 2 roundings to f32 of a sum of positive terms. log10f: 2 units of its result."""
    dims, attrs = inputs.case.dims, inputs.attrs
    if dims["T"] == 0:
        return np.zeros_like(value)
    power, sizes = powers(inputs["x"], inputs["window"], attrs.get("hop", 160), attrs.get("pad", "reflect"), dims["T"] // dims["B"])
    off = 2 * len(inputs["window"]) * 2.0**-52 * sizes
    filters = inputs["filters"]
    mel = bands(power, filters)
    slack = (filters.shape[1] + 2) * 2.0**-24 * mel + bands(2 * np.sqrt(power) * off + off * off, filters) + 1e-38
    moved = (logarithms(mel + slack) - logarithms(np.maximum(mel - slack, 0))).reshape(-1, dims["M"])[: len(value)]
    moved = moved if port == "out" else moved.max(-1, initial=0)
    return np.nan_to_num(moved) + 2 * rounding(value, dtype)


def hann(W):
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(W) / W)).astype(np.float32)


def ports(**more):
    return {"x": "f32", "window": "f32", "filters": "f32", "out": "f32", **more}


def sizes(B, N, W, M, frames, **more):
    return {"B": B, "N": N, "W": W, "F": W // 2 + 1, "M": M, "T": B * frames}


def bank(rng, shape):
    """Triangles over the frequencies, most of a row zeros; the last row of a wide one all zeros."""
    M, F = shape
    centres = np.linspace(0, F, M + 2)
    f = np.arange(F)
    low, mid, high = centres[:-2, None], centres[1:-1, None], centres[2:, None]
    rows = np.maximum(0, np.minimum((f - low) / (mid - low), (high - f) / (high - mid))) * 0.02
    if M > 4:
        rows[-1] = 0
    return rows.astype(np.float32)


_VALUES = {"window": lambda rng, shape: hann(shape[0]), "filters": bank}
CASES = [
    Case(sizes(1, 16000, 400, 80, 100), ports(peak="f32"), values=_VALUES, note="a second, as Whisper hears it"),
    Case(sizes(2, 3333, 400, 128, 20), ports(), values=_VALUES, note="fewer frames than there are"),
    Case(sizes(3, 1000, 400, 80, 4), ports(peak="f32"), {"pad": "none"}, values=_VALUES),
    Case(sizes(1, 201, 400, 5, 2), ports(), values=_VALUES, note="the shortest that reflects"),
    Case(sizes(2, 600, 512, 7, 5), ports(peak="f32"), {"hop": 128}, values=_VALUES),
    Case(sizes(1, 300, 254, 3, 28), ports(), {"hop": 11}, values=_VALUES, note="a prime factor of 127"),
    Case(sizes(4, 9, 2, 1, 9), ports(peak="f32"), {"hop": 1}, values={"filters": bank}, note="frames of two samples"),
    Case(sizes(1, 5000, 400, 80, 30), ports(peak="f32", rows="i32"), values=_VALUES, rows=17),
    Case(sizes(2, 4000, 400, 80, 20), ports(), values={**_VALUES, "x": lambda rng, shape: np.zeros(shape)}, note="silence"),
    Case(sizes(1, 4000, 400, 80, 20), ports(peak="f32"), values=_VALUES, distributions=("nonfinite",)),
    Case(sizes(1, 4000, 400, 80, 0), ports(), values=_VALUES),
]


def fit(d):
    d.dims["W"] = d.pick((400, 400, 400, 512, 256, 320, 2, 4, 10, 250, 254, 480))
    d.dims["F"] = d.dims["W"] // 2 + 1
    d.dims["B"] = d.pick((1, 1, 2, 3))
    hop = d.attrs["hop"] = d.pick((160, 160, 80, 128, 1, 7, 1000))
    d.dims["N"] = d.dims["W"] // 2 + 1 + d.pick((0, 1, 37, 160, 999, 4000))
    if d.attr("pad") == "none":
        d.dims["N"] += d.dims["W"]
        held = (d.dims["N"] - d.dims["W"]) // hop + 1
    else:
        held = d.dims["N"] // hop + 1
    d.dims["T"] = d.dims["B"] * d.pick({1, min(held, 8), min(held, 9), min(held, 37), min(held, 60)})


def contents(d, rng):
    return {"window": hann(d.dims["W"]), "filters": bank(rng, (d.dims["M"], d.dims["F"]))}


DOMAIN = Domain(fit=fit, contents=contents, attrs={"hop": (160, 80)}, sizes={"M": (80, 80, 128, 1, 3, 40)}, work=lambda d: d.dims["T"] * d.dims["F"] * d.dims["M"])
