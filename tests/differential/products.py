"""What products ask of their weights' format, for the domains of the gemm family."""
from math import gcd

from tests.differential.domain import block_of
from tests.op_data import DTYPES

BLOCK_SCALED = ("e2m1", "i4", "e4m3", "i8")
POSITIVE = ("x_scale", "w_scale", "x_row_scale", "w_row_scale", "w_block_scale", "x_block_scale", "out_scale")


def of_whole_chunks(format):
    """Elements of a row come in multiples of this where rows are whole 16 bytes."""
    return block_of(format) * 16 // gcd(16, DTYPES[format]["bytes"])


def weights(d, w, x="x", act="act", rows=None):
    """K of whole blocks, scales that the format needs and may have, and int8 activations for block formats alone. `rows` of w, if not N."""
    if "e4m3" in (d.dtypes[x], d.dtypes[w]) and "e4m3" in d.spec[x]["dtypes"] and d.chance(0.6):
        d.dtypes[x] = d.dtypes[w] = "e4m3"  # products of two e4m3 have kernels of their own
    format = d.dtypes[w]
    if format in ("e2m1", "i4"):
        d.add("w_block_scale")
        if "w_block_scale" not in d.spec:
            raise AssertionError(f"{d.op}: {format} without w_block_scale")
    if any(a["name"] == act for a in d.row["attrs"]) and d.attr(act) == "q8" and block_of(format) < 32:
        d.attrs.pop(act)
    if "w_block_scale" in d.spec and format not in BLOCK_SCALED:
        d.drop("w_block_scale")
    if format != "i4" or not d.has("w_block_scale"):
        d.drop("w_block_zero")
    if "x_block_scale" in d.spec and (d.dtypes[x] != "e4m3" or not d.has("w_block_scale")):
        d.drop("x_block_scale")
    if format == "i8" and not (d.has("w_block_scale") or d.has("w_row_scale") or d.has("w_scale")):
        d.add(d.pick(("w_row_scale", "w_scale", "w_block_scale")))
    if block_of(format) > 1:
        # Rows of whole 16 bytes have kernels of their own on Hopper (of q6_k multiples of 2,048): half of the cases.
        d.multiple("K", of_whole_chunks(format) if d.chance(0.5) else block_of(format))
    if d.has("w_block_scale"):
        N, K = rows or d.dims["N"], d.dims["K"]
        group = d.pick((32, 64, 128) if d.has("w_block_zero") else (16, 32, 64, 128))
        rows_of_scales = N if format in ("e2m1", "i4") or d.chance(0.5) else -(-N // 128)
        d.shapes["w_block_scale"] = (rows_of_scales, -(-K // group))
        if format == "e2m1" and d.chance(0.8):  # FP4: one e4m3 scale for 16 values
            d.dims["K"] = max(16, K // 16 * 16)
            d.dtypes["w_block_scale"], d.shapes["w_block_scale"] = "e4m3", (N, d.dims["K"] // 16)
        if d.has("w_block_zero"):
            d.shapes["w_block_zero"] = d.shapes["w_block_scale"]


def e4m3_out(d):
    """An e4m3 out has a scale, any other none."""
    d.quantized_out(("out_scale",))


def contents(d, rng):
    """Codes of integer weights and their zero points."""
    out = {}
    if d.dtypes["w"] == "i8":
        out["w"] = rng.integers(-128, 128, (d.dims["M"] if "M" in d.dims else d.dims["N"] * (2 if d.op == "gated_gemm" else 1), d.dims["K"]))
    if d.has("w_block_zero"):
        out["w_block_zero"] = rng.integers(-8, 8, d.shapes["w_block_zero"])
    return out


def work(d):
    """Four products of the reference and its bound; of e4m3 with e4m3 what the tensor core loses is followed value by value."""
    exact = d.dtypes["x"] == d.dtypes["w"] == "e4m3"
    return d.dims["T"] * d.dims["N"] * (d.dims["K"] * (60 if exact else 4) / 8 + 30)

