"""Reference of `qkv_gemm`: the references of gemm and qkv_rope, one after the other, as vivace/ops/qkv_gemm.h says."""
import numpy as np

from tests.ref import qkv_rope, rms_scale
from tests.ref.common import Case, Inputs, rounding
from tests.ref.kv_append import HND, distinct, heads
from tests.ref.rope import frequencies

SCRATCH = ("qkv", "row_scale")
PRODUCT = ("x", "w", "bias", "x_scale", "w_scale", "x_row_scale", "w_row_scale", "rows")
NORMED = ("squares", "row_scale")


def _product(inputs, dtypes, dims, rms_eps):
    """The product's rows and its inputs."""
    from tests.ref import gemm

    given = {k: v for k, v in inputs.items() if k in PRODUCT and k != "rows"}
    of = {k: v for k, v in dtypes.items() if k in PRODUCT} | {"out": dtypes["qkv"]}
    if "squares" in inputs:
        given["x_row_scale"] = rms_scale.ref(inputs["squares"], columns=dims["K"], eps=rms_eps, dtypes={})["row_scale"]
        of["x_row_scale"] = "f32"
    return gemm.ref(**given, dtypes=of)["out"], Inputs(given, Case({"T": dims["T"], "N": dims["M"], "K": dims["K"]}, of))


def ref(*, dtypes, dims, style="half", attn_factor=1.0, eps=1e-6, rms_eps=1e-6, norm_plus_one=False, layout="nhd", **inputs):
    qkv, _ = _product(inputs, dtypes, dims, rms_eps)
    rest = {k: v for k, v in inputs.items() if k not in (*PRODUCT, *NORMED, "qkv")}
    return qkv_rope.ref(qkv, **rest, style=style, attn_factor=attn_factor, eps=eps, norm_plus_one=norm_plus_one, layout=layout, dtypes=dtypes, dims=dims)


def bound(port, value, dtype, inputs):
    """The rotation's bound, and what a product that is off by its own bound changes: a rotation keeps the length of a pair's
    error, sqrt(2) of its larger part; a norm divides it by the head's root mean square and moves that too."""
    from tests.ref import gemm
    from tests.ref.kv_append import cache_rows, places_first

    dims, attrs = inputs.case.dims, inputs.attrs
    qkv, product = _product(inputs, inputs.case.dtypes, dims, attrs.get("rms_eps", 1e-6))
    if not qkv.size:
        return np.zeros_like(value)
    shape = (len(qkv), dims["Hq"] + 2 * dims["Hkv"], dims["D"])
    e, h = gemm.bound("out", qkv, inputs.case.dtypes["qkv"], product).reshape(shape), qkv.reshape(shape)
    if "squares" in inputs:  # rms_scale's own error
        e = e + (inputs["squares"].shape[-1] / 2 + 6) * 2.0**-24 * (np.abs(h) + (np.abs(product["bias"]).reshape(1, -1, dims["D"]) if "bias" in product else 0))
    kind = port[0]
    first, count = {"q": (0, dims["Hq"]), "k": (dims["Hq"], dims["Hkv"]), "v": (dims["Hq"] + dims["Hkv"], dims["Hkv"])}[kind]
    e, h = e[:, first : first + count], h[:, first : first + count]
    weight = inputs.get(f"{kind}_norm") if kind != "v" else None
    if weight is not None:
        rms = np.sqrt((h**2).mean(-1, keepdims=True) + attrs.get("eps", 1e-6))
        e = e.max(-1, keepdims=True) / rms * (1 + np.abs(h).max(-1, keepdims=True) / rms) * (np.abs(weight).max() + 1)
    if kind != "v":
        e = np.broadcast_to(np.sqrt(2) * attrs.get("attn_factor", 1.0) * e.max(-1, keepdims=True), h.shape)
    own = qkv_rope.bound(port, value, dtype, inputs)
    if not port.endswith("_cache"):
        return own + e
    layout = attrs.get("layout", "nhd")
    rows, unit = np.zeros_like(places_first(value, layout)), places_first(rounding(value, dtype), layout)
    held, block, place = cache_rows(rows, inputs["pos"], inputs.get("slot"), inputs.get("page_table"))
    rows[block[held], place[held]] = e[held] + unit[block[held], place[held]]
    return own + places_first(rows, layout)


def fit(dims, case):
    """Dims whose M is what the heads ask for."""
    return dims | {"M": (dims["Hq"] + 2 * dims["Hkv"]) * dims["D"]} | ({"C": -(-dims["K"] // 16)} if "squares" in case.dtypes else {})


def case(T, K, x, kinds, *, Hq=2, Hkv=1, D=64, R=32, B=2, L=None, S=None, layout="nhd", w=None, q=None, attrs=None, values=None, **options):
    """A product of `x` and `w`; `kinds`: dtypes of further ports. L: places of the caches, absent where k and v leave as rows."""
    q = q or x
    dims = ({"C": -(-K // 16)} if "squares" in kinds else {}) | {"T": T, "K": K, "Hq": Hq, "Hkv": Hkv, "D": D, "R": R, "M": (Hq + 2 * Hkv) * D} | ({"B": B, **heads(Hkv, L, layout)} if L else {}) | ({"S": S, "P": 2} if S else {})
    dtypes = {"x": x, "w": w or x, "qkv": q, "q": q} | ({"k_cache": q, "v_cache": q, "slot": "i32"} if L else {"k_out": q, "v_out": q}) | {"pos": "i32", "inv_freq": "f32"} | kinds
    where = distinct(B, L, first=-1) if L else {"pos": lambda rng, shape: rng.integers(0, 2048, shape)}
    positive = tuple(p for p in ("w_scale", "x_scale", "x_row_scale", "w_row_scale") if p in kinds)
    return Case(dims, dtypes, (attrs or {}) | (HND if layout == "hnd" else {}), positive=positive, values={"inv_freq": frequencies, **where, **(values or {})},
                **{"distributions": ("normal", "tiny"), **options})


_SCALES = {"x_scale": "f32", "w_row_scale": "f32"}
CASES = [
    case(50, 1024, "bf16", {}, Hq=8, D=256, R=128, L=40, distributions=("normal",), note="the action expert"),
    case(1, 1024, "bf16", {}, Hq=8, D=256, R=128, L=4, distributions=("normal",)),
    case(7, 320, "bf16", {"bias": "bf16"}, Hq=3, Hkv=2, L=6),
    case(9, 520, "f16", {"bias": "f16", "rows": "i32"}, Hq=4, Hkv=2, D=128, R=64, L=9, layout="hnd", rows=6),
    case(33, 512, "bf16", {}, Hq=30, Hkv=1, D=256, R=128, distributions=("normal",), note="K uncut"),
    case(20, 2048, "e4m3", _SCALES, q="bf16", w="e4m3", Hq=6, D=128, R=64, L=16, attrs={"attn_factor": 1.1}, distributions=("normal",)),
    case(12, 640, "e4m3", {"x_row_scale": "f32", "w_scale": "f32"}, q="bf16", w="e4m3", L=11, distributions=("normal", "zero")),
    case(8, 256, "bf16", {"page_table": "i32"}, L=4, B=5, S=2, values={**distinct(3, 9, first=-1), "page_table": np.array([[4, 1], [0, 5]])}, note="paged; some places do not exist"),
    case(5, 96, "bf16", {"q_norm": "bf16", "k_norm": "f32"}, attrs={"eps": 1e-5, "norm_plus_one": True}, L=5, distributions=("normal",), note="norms: the parts run"),
    case(4, 100, "f32", {"bias": "f32"}, D=40, R=7, attrs={"style": "interleaved"}),
    case(3, 72, "bf16", {"k_cache": "e4m3", "v_cache": "e4m3"}, L=5, distributions=("normal",), note="caches of another type: the parts run"),
    case(50, 1024, "bf16", {"bias": "f32", "squares": "f32", "row_scale": "f32"}, Hq=8, D=256, R=128, L=40, attrs={"rms_eps": 1e-5}, ranges={"squares": (0.5, 40.0)}, distributions=("normal",), note="a norm behind"),
    case(3, 264, "bf16", {"squares": "f32", "row_scale": "f32"}, L=4, ranges={"squares": (0.5, 40.0)}, distributions=("normal",)),
    case(70, 136, "bf16", {}, L=40, distributions=("normal",), note="more tokens than the one kernel takes"),
    case(6, 64, "f16", {"q_norm": "f16", "k_norm": "f16"}, distributions=("normal",)),
    case(6, 64, "f32", {"q_norm": "f32", "k_norm": "bf16"}, L=4, w="f32", distributions=("normal",)),
    case(0, 64, "bf16", {}, L=3),
]
