"""Reference of `gate_heads`: float64, the formula of vivace/ops/gate_heads.h."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to, rounding


def ref(x, gate, weight=None, *, act="sigmoid", eps=1e-6, dtypes):
    y = x
    if weight is not None:
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + float(np.float32(eps))) * weight
    with np.errstate(over="ignore"):
        opened = 1 / (1 + np.exp(-gate))
    return {"out": round_to(y * (gate * opened if act == "silu" else opened), dtypes["out"])}


def bound(port, value, dtype, inputs):
    """The mean square's sum of D terms, all positive, is within D half-units of itself, its root in half as many; exponential,
    quotient and four products add 12 half-units; the sigmoid is zero from where the exponential overflows, at 3e-39."""
    x, D = np.abs(inputs["x"]), inputs["x"].shape[-1] if "weight" in inputs else 0
    if D:
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + inputs.attrs.get("eps", 1e-6)) * np.abs(inputs["weight"])
    lost = 2e-38 * (1 + np.abs(inputs["gate"])) * (1 + x)
    return 2.0**-24 * (D / 2 + 16) * np.abs(np.nan_to_num(value)) + rounding(value, dtype) + lost


def case(T, N, D, t, G=None, weight=None, attrs=None, **more):
    dtypes = {"x": t, "gate": t, "out": t} | ({"weight": weight} if weight else {}) | ({"rows": "i32"} if "rows" in more else {})
    return Case({"T": T, "N": N, "D": D, "G": D if G is None else G}, dtypes, attrs or {}, **more)


CASES = [
    case(1, 24, 256, "bf16", note="attention's gate, a decode step"),
    case(5, 32, 128, "bf16", weight="f32", attrs={"act": "silu"}, note="the gated norm of linear attention"),
    case(7, 1, 512, "f32", G=1, note="one gate a token: the shared expert's"),
    case(3, 3, 33, "f16", weight="f16", attrs={"eps": 1e-5}),
    case(4, 3, 24, "f32", G=1, note="one gate a head"),
    case(9, 2, 24, "f32", weight="bf16", attrs={"act": "silu"}, rows=5),
    case(40, 4, 17, "bf16", attrs={"act": "silu"}),
    case(2, 5, 1, "f32", weight="f32"),
    case(0, 2, 32, "bf16"),
]

DOMAIN = Domain(fit=lambda d: d.dims.update(G=d.pick((d.dims["D"], d.dims["D"], 1))), attrs={"eps": (1e-6, 1e-5, 0.1)}, tokens={})
