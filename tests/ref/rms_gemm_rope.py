"""Reference of `rms_gemm_rope`: the references of rms_gemm and qkv_rope, one after the other, as vivace/ops/rms_gemm_rope.h says."""
import numpy as np

from tests.differential import products, slots
from tests.differential.domain import Domain
from tests.ref import qkv_rope, rms_gemm
from tests.ref.common import Case, Inputs, rounding
from tests.ref.kv_append import cache_rows, distinct, distinct_rows
from tests.ref.rope import angles

SCRATCH = ("row_scale", "qkv")
PRODUCT = ("x", "squares", "w", "bias", "x_scale", "w_scale", "w_row_scale")
ROPE = ("k_cache", "v_cache", "pos", "slot", "angles")


def _product(inputs, dtypes, attrs):
    """The product's rows and its inputs."""
    of = {k: v for k, v in dtypes.items() if k in PRODUCT} | {"out": dtypes["qkv"]}
    given = {k: v for k, v in inputs.items() if k in PRODUCT}
    return rms_gemm.ref(**given, **attrs, dtypes=of)["out"], Inputs(given, Case({}, of, attrs))


def _rope(inputs, qkv, dtypes, dims):
    return Inputs({"qkv": qkv} | {k: v for k, v in inputs.items() if k in ROPE}, Case(dims, dtypes))


def ref(*, dtypes, dims, eps=1e-6, **inputs):
    qkv, _ = _product(inputs, dtypes, {"eps": eps})
    return qkv_rope.ref(**_rope(inputs, qkv, dtypes, dims), dtypes=dtypes, dims=dims)


def chosen(port, got, want, inputs):
    if port == "q":
        return want
    qkv, _ = _product(inputs, inputs.case.dtypes, inputs.attrs)
    return qkv_rope.chosen(port, got, want, _rope(inputs, qkv, inputs.case.dtypes, inputs.case.dims))


def bound(port, value, dtype, inputs):
    """The rotation's bound, and what a product that is off by its own changes: a rotation keeps the length of a pair's error, sqrt(2) of its
    larger part, and what is off may round to a neighbour."""
    dims, dtypes = inputs.case.dims, inputs.case.dtypes
    qkv, product = _product(inputs, dtypes, inputs.attrs)
    if not qkv.size:
        return np.zeros_like(value)
    own = qkv_rope.bound(port, value, dtype, _rope(inputs, qkv, dtypes, dims))
    shape = (len(qkv), dims["Hq"] + 2 * dims["Hkv"], dims["D"])
    first, count = {"q": (0, dims["Hq"]), "k": (dims["Hq"], dims["Hkv"]), "v": (dims["Hq"] + dims["Hkv"], dims["Hkv"])}[port[0]]
    off = rms_gemm.bound("out", qkv, dtypes["qkv"], product).reshape(shape)[:, first : first + count]
    if port[0] != "v":
        off = np.broadcast_to(np.sqrt(2) * off.max(-1, keepdims=True), off.shape)
    if port == "q":
        return own + off
    held, block, place = cache_rows(value, inputs["pos"], inputs.get("slot"))
    rows, unit = np.zeros_like(value), rounding(value, dtype)
    rows[block[held], place[held]] = off[held] + unit[block[held], place[held]]
    return own + rows


def derived_dims(dims):
    """Dims whose M and S are what heads and K ask for."""
    return dims | {"M": (dims["Hq"] + 2 * dims["Hkv"]) * dims["D"], "S": -(-dims["K"] // 8)}


def case(T, K, x, ports=(), *, Hq=2, Hkv=1, D=64, R=None, B=2, L=9, w=None, q=None, attrs=None, pos=None, **options):
    kinds = {"bias": "f32", "x_scale": "f32", "w_scale": "f32", "w_row_scale": "f32", "slot": "i32", "rows": "i32"} | options.pop("kinds", {})
    q = q or x
    dtypes = {"x": x, "squares": "f32", "w": w or x, "row_scale": "f32", "qkv": q, "q": q, "k_cache": q, "v_cache": q, "pos": "i32", "angles": "f32"} | {p: kinds[p] for p in ports}
    where = distinct(B + 1, L + 1, first=-1) if "slot" in ports else {"pos": np.arange(T) if pos is None else pos}
    return Case(derived_dims({"T": T, "K": K, "Hq": Hq, "Hkv": Hkv, "D": D, "R": D // 2 if R is None else R, "B": B if "slot" in ports else 1, "L": L}), dtypes, attrs or {},
                positive=tuple(p for p in ports if p.endswith("scale")), ranges={"squares": (0.5, 40.0)}, values={"angles": angles, **where}, **{"distributions": ("normal",), **options})


EXPERT = {"Hq": 8, "D": 256}
CASES = [
    case(50, 1024, "bf16", ("bias",), **EXPERT, L=700, pos=np.arange(50) + 640, note="the action expert"),
    case(50, 1024, "bf16", ("bias", "slot", "rows"), **EXPERT, L=40, rows=37, attrs={"eps": 1e-5}, note="some slots and positions do not exist"),
    case(64, 1024, "f16", ("slot",), **EXPERT, B=3, L=50),
    case(16, 1024, "bf16", ("bias",), **EXPERT, L=700, note="a chunk of 16"),
    case(1, 1024, "bf16", (), **EXPERT, L=3),
    case(32, 2048, "bf16", ("slot", "bias"), Hq=24, Hkv=4, D=128, B=3, L=20, kinds={"bias": "bf16"}, note="K in two"),
    case(9, 520, "bf16", ("slot",), Hq=4, Hkv=2, D=128, L=7),
    case(3, 264, "f16", ("bias", "slot", "rows"), L=4, rows=2, kinds={"bias": "f16"}, distributions=("normal", "tiny")),
    case(50, 256, "e4m3", ("bias", "x_scale", "w_row_scale"), q="bf16", w="e4m3", L=60, note="two launches"),
    case(7, 320, "e4m3", ("slot", "x_scale", "w_scale"), q="f16", w="e4m3", L=6),
    case(5, 96, "bf16", ("slot",), D=80, L=5, note="heads of no whole tiles"),
    case(6, 128, "bf16", (), R=16, L=8, pos=np.array([3, 0, 7, -1, 8, 4]), note="part of a head turns; places that do not exist"),
    case(5, 100, "f32", ("bias", "slot"), D=40, R=7, distributions=("normal", "tiny")),
    case(70, 136, "bf16", ("slot",), L=50, note="more tokens than the one kernel takes"),
    case(0, 64, "bf16", ("slot",)),
]


def fit(d):
    d.heads()
    d.dims["D"] = min(d.dims["D"], 256)
    d.dims["R"] = d.pick((d.dims["D"] // 2, d.dims["D"] // 2, max(d.dims["D"] // 4, 1)))
    d.dims["B"] = d.pick((1, 2, 3, 5))
    d.dims["L"] = d.dims["L"] * d.pick((1, 1, 4, 16))
    if not d.has("slot") and d.chance(0.7):
        d.add("slot")
    d.dims |= derived_dims(d.dims)


def contents(d, rng):
    return {"angles": angles(rng, (d.dims["T"], 2, d.dims["R"]))} | distinct_rows(d, rng, slots.contents(d, rng))


DOMAIN = Domain(fit=fit, contents=contents, positive=products.POSITIVE, ranges={"squares": (0.5, 40.0)}, attrs={"eps": (1e-5, 1e-3)}, work=lambda d: 2 * d.dims["T"] * d.dims["M"] * d.dims["K"],
                distributions=("normal", "tiny"), weight=2, indices=("slot",))
