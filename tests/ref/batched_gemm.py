"""Reference of `batched_gemm`: gemm's, entry by entry."""
import numpy as np

from tests.differential import products
from tests.differential.domain import Domain
from tests.ref.common import Case, Inputs, rounding


def ref(x, w, *, act="f32", alpha=1.0, dtypes):
    from tests.ref import gemm

    out = np.zeros((len(x), x.shape[1], w.shape[1]))
    for b in range(len(x)):
        out[b] = gemm.ref(x[b], w[b], act=act, alpha=alpha, dtypes=dtypes)["out"]
    return {"out": out}


def bound(port, value, dtype, inputs):
    """Each entry's own."""
    from tests.ref import gemm

    out = rounding(value, dtype)
    for b in range(len(inputs["x"])):
        out[b] = gemm.bound(port, value[b], dtype, Inputs({"x": inputs["x"][b], "w": inputs["w"][b]}, inputs.case))
    return out


def case(B, T, N, K, x, w, out, attrs=None):
    return Case({"B": B, "T": T, "N": N, "K": K}, {"x": x, "w": w, "out": out}, attrs or {}, distributions=("normal", "large", "zero"))


CASES = [
    case(3, 4, 20, 48, "f32", "f32", "f32"),
    case(2, 5, 17, 64, "bf16", "bf16", "bf16", {"alpha": 0.125}),
    case(1, 70, 33, 40, "f16", "f16", "f16"),
    case(2, 3, 16, 96, "e4m3", "e4m3", "f32"),
    *[case(2, 3, 9, 64, "bf16", q, "bf16", {"act": act}) for q, act in (("q4_0", "q8"), ("q4_1", "f32"), ("q5_0", "q8"), ("q5_1", "f32"), ("q8_0", "q8"))],
    *[case(2, 2, 8, 256, "f32", q, "f32", {"act": act}) for q, act in (("q4_k", "f32"), ("q5_k", "q8"), ("q6_k", "f32"))],
    case(2, 0, 8, 16, "f32", "f32", "f32"),
]


def fit(d):
    products.weights(d, "w")


DOMAIN = Domain(fit=fit, work=lambda d: d.dims["B"] * products.work(d), attrs={"alpha": (0.125, -2.0)}, distributions=("normal", "large", "zero"))
