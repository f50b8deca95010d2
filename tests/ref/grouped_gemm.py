"""Reference of `grouped_gemm`: the reference of gemm, group by group."""
import numpy as np

from tests.differential import products
from tests.differential.domain import Domain, offsets_of
from tests.op_data import BIG_FILL, NAN_FILL, decode, row_bytes
from tests.ref import gemm
from tests.ref.common import Case, Inputs, nearer, rounding


def groups(offsets, A, counts=None):
    for e in range(len(offsets) - 1):
        first = min(max(int(offsets[e]), 0), A)
        end = min(max(int(offsets[e + 1]), first), A)
        yield e, first, end if counts is None else min(first + max(int(counts[e]), 0), end)


def of_group(e, w, w_row_scale=None):
    """gemm's arguments of group e's weights."""
    return {"w": w[e]} | ({} if w_row_scale is None else {"w_row_scale": w_row_scale[e]})


def ref(x, w, offsets, counts=None, w_row_scale=None, *, act="f32", dtypes, dims):
    x = np.broadcast_to(x, (dims["A"], x.shape[1]))
    out = np.full((len(x), w.shape[1]), np.nan)  # of no group: see left_alone()
    for e, first, end in groups(offsets, len(x), counts):
        out[first:end] = gemm.ref(x[first:end], **of_group(e, w, w_row_scale), act=act, dtypes=dtypes)["out"]
    return {"out": out}


def chosen(port, got, want, inputs):
    """Where groups share rows an element is of any group that names its row, or as it was: the nearest to what came."""
    parts = list(groups(inputs["offsets"], len(want), inputs.get("counts")))
    if sum(end - first for _, first, end in parts) == len({row for _, first, end in parts for row in range(first, end)}):
        return want
    x, poison = np.broadcast_to(inputs["x"], (len(want), inputs["x"].shape[1])), [decode(np.full((1, row_bytes(inputs.case.dtypes[port], (1, 1))), fill, np.uint8), inputs.case.dtypes[port], (1, 1))[0, 0] for fill in (NAN_FILL, BIG_FILL)]
    want = want.copy()
    for e, first, end in parts:
        rows = slice(first, end)
        other = gemm.ref(x[rows], **of_group(e, inputs["w"], inputs.get("w_row_scale")), act=inputs.attrs.get("act", "f32"), dtypes=inputs.case.dtypes)["out"]
        want[rows] = nearer(got[rows], want[rows], other)
        for value in poison:
            want[rows] = np.where((got[rows] == value) | (np.isnan(got[rows]) & np.isnan(value)), value, want[rows])
    return want


def left_alone(port, case):
    """Rows of no group."""
    if port != "out":
        return None
    left = np.ones(case.dims["A"], bool)
    for _, first, end in groups(case.values["offsets"], len(left), case.values.get("counts")):
        left[first:end] = False
    return left


def bound(port, value, dtype, inputs):
    out, x = rounding(value, dtype), np.broadcast_to(inputs["x"], (len(value), inputs["x"].shape[1]))
    for e, first, end in groups(inputs["offsets"], len(x), inputs.get("counts")):
        part = Inputs({"x": x[first:end], **of_group(e, inputs["w"], inputs.get("w_row_scale"))}, inputs.case)
        out[first:end] = np.maximum(out[first:end], gemm.bound(port, value[first:end], dtype, part))  # groups may share rows
    return out


def case(A, E, N, K, offsets, x, w, attrs=None, counts=None, X=None, scaled=False, **options):
    given = {"offsets": np.array(offsets)} | ({} if counts is None else {"counts": np.array(counts)})
    scale = {"w_row_scale": "f32"} if scaled else {}
    return Case({"A": A, "X": A if X is None else X, "E": E, "N": N, "K": K}, {"x": x, "w": w} | scale | dict.fromkeys(given, "i32") | {"out": x}, attrs or {}, values=given,
                positive=tuple(scale), **options)


CASES = [
    case(9, 4, 20, 48, [0, 3, 3, 8, 9], "f32", "f32"),
    case(6, 3, 17, 40, [0, 0, 6, 6], "bf16", "bf16"),
    case(5, 2, 33, 64, [-3, 2, 99], "f16", "f16", note="offsets are clamped"),
    case(32, 2, 24, 64, [0, 13, 32], "bf16", "bf16", note="a tile of many rows a group"),
    *[case(7, 3, 18, 64, [0, 1, 5, 7], "f32", q, {"act": act}) for q in gemm.BLOCKS32 for act in ("f32", "q8")],
    *[case(4, 2, 16, 256, [0, 3, 4], "f32", q, {"act": act}) for q in gemm.K_QUANTS for act in ("f32", "q8")],
    # q6_k in rows of whole 16 bytes, which TMA brings.
    *[case(a, 2, 16, k, [0, a - 1, a], x, "q6_k", {"act": act}) for a, k, x, act in ((4, 2048, "bf16", "f32"), (30, 6144, "bf16", "f32"), (4, 4096, "f32", "f32"), (4, 2048, "bf16", "q8"))],
    case(0, 2, 8, 16, [0, 0, 0], "f32", "f32"),
    *[case(24, 3, 40, 64, [0, 8, 16, 24], t, t, counts=[3, 0, 8], note="masked") for t in ("bf16", "f16", "f32")],
    case(12, 3, 16, 64, [0, 4, 8, 12], "f32", "q4_0", counts=[-1, 99, 2], note="counts are clamped"),
    case(9, 40, 72, 136, [0] * 7 + [2] * 30 + [9] * 4, "bf16", "bf16", note="more groups than a warp has lanes"),
    case(75, 2, 136, 200, [0, 70, 75], "bf16", "bf16", note="a group of several widths"),
    case(300, 2, 136, 72, [0, 290, 300], "f16", "f16", note="a group of several tiles"),
    *[case(8, 12, 72, 136, [0, 1, 1, 2, 2, 3, 4, 5, 6, 6, 7, 7, 8], t, t, X=1, note="one row for every expert") for t in ("bf16", "f16", "f32")],
    case(93, 3, 68, 64, [0, 90, 90, 93], "bf16", "bf16", X=1, note="one row for groups of several widths"),
    case(5, 3, 33, 64, [0, 2, 4, 5], "bf16", "q4_0", X=1),
    # e4m3 weights: tiles of few rows, of 64 rows of W and of 48; a tile of many; K off whole stages; rows off 16 bytes; other activations.
    case(9, 40, 72, 144, [0] * 7 + [2] * 30 + [9] * 4, "bf16", "e4m3", scaled=True, note="more groups than a warp has lanes"),
    case(5, 70, 33, 256, [0] * 8 + [1] * 30 + [4] * 32 + [5], "bf16", "e4m3", scaled=True, note="several groups a lane"),
    case(9, 9, 2048, 512, list(range(10)), "bf16", "e4m3", scaled=True, distributions=("normal",), note="tiles of 48 rows of W"),
    case(93, 3, 68, 64, [0, 90, 90, 93], "bf16", "e4m3", X=1, scaled=True, note="one row for groups of several widths"),
    case(75, 2, 136, 208, [0, 70, 75], "bf16", "e4m3", scaled=True, counts=[66, 5], note="a group of several widths"),
    case(300, 2, 136, 400, [0, 290, 300], "bf16", "e4m3", note="a group of several tiles, without scales"),
    case(40, 12, 72, 384, [0, 1, 1, 2, 2, 3, 38, 38, 38, 38, 38, 38, 40], "bf16", "e4m3", scaled=True, note="many rows of one group among few"),
    *[case(7, 3, 18, 40, [0, 1, 5, 7], x, "e4m3", scaled=True) for x in ("bf16", "f16")],
    # The same of q4_0 in rows of whole 16 bytes; rows of f16, which the tensor core takes with no values in bf16.
    case(9, 40, 72, 768, [0] * 7 + [2] * 30 + [9] * 4, "bf16", "q4_0", note="more groups than a warp has lanes"),
    case(9, 9, 2048, 512, list(range(10)), "bf16", "q4_0", distributions=("normal", "edges"), note="tiles of 48 rows of W"),
    case(20, 3, 68, 256, [0, 17, 17, 20], "bf16", "q4_0", X=1, note="one row for groups of several widths and tiles"),
    case(75, 2, 136, 2048, [0, 70, 75], "bf16", "q4_0", counts=[66, 5], note="a group of several widths and tiles; stages are filled again"),
    case(300, 2, 264, 512, [0, 290, 300], "bf16", "q4_0", distributions=("normal", "tiny", "zero"), note="a group of several tiles, of blocks that stay"),
    case(40, 12, 72, 256, [0, 1, 1, 2, 2, 3, 38, 38, 38, 38, 38, 38, 40], "bf16", "q4_0", note="many rows of one group among few"),
    case(7, 3, 18, 256, [0, 1, 5, 7], "f16", "q4_0"),
    *[case(180, 66, 33, 64, [*range(20), 20, *range(90, 181, 2)], "bf16", w, scaled=w == "e4m3", note="groups of several tiles and of one, of one lane") for w in ("bf16", "e4m3")],
    # On a GPU x of f32 meets e4m3 as three bf16, of which none is finer than 2^-133: f32's subnormals lose what lies below.
    case(7, 3, 18, 40, [0, 1, 5, 7], "f32", "e4m3", scaled=True, distributions=("normal", "large", "tiny", "edges", "zero")),
    case(32, 2, 24, 72, [0, 13, 32], "bf16", "e4m3", scaled=True, note="a tile of many rows a group"),
]


def rows_of_groups(d):
    d.dims["A"] = min(d.dims["A"], 4096)
    d.dims["X"] = 1 if d.chance(0.2) else d.dims["A"]


def fit(d):
    rows_of_groups(d)
    products.weights(d, "w")
    scales_of_codes(d)


def scales_of_codes(d):
    if d.dtypes["w"] != "e4m3":
        d.drop("w_row_scale")


def contents(d, rng):
    E, A = d.dims["E"], d.dims["A"]
    offsets = offsets_of(rng, E, A, whole=rng.random() < 0.6)
    if rng.random() < 0.1:  # clamped
        offsets[0], offsets[-1] = -3, A + 5
    return {"offsets": offsets, "counts": rng.integers(-1, max(2, 2 * A // max(E, 1)) + 1, E)}


DOMAIN = Domain(fit=fit, contents=contents, positive=("w_row_scale",), work=lambda d: 5 * d.dims["A"] * d.dims["N"] * d.dims["K"], distributions=("normal", "tiny", "edges", "zero"), indices=("offsets", "counts"))
