"""Reference of `moe_mlp`: gated_mlp's reference for each chosen expert, weighted as moe_route says."""
import numpy as np

from tests.differential.domain import block_of, Domain
from tests.ref import gated_mlp, moe_route
from tests.ref.common import Case, Inputs, round_to, rounding

SCRATCH = ("logits", "weights", "place", "token", "offsets", "gathered", "gate_up", "hidden", "expert_out")
_WEIGHTS = ("router", "w_gate", "w_up", "w_down")


def _scaled(inputs):
    """Weights with the factors of their rows."""
    inputs, M = dict(inputs), inputs["w_gate"].shape[1]
    both, down = inputs.pop("gate_up_scale", None), inputs.pop("down_scale", None)
    if both is not None:
        inputs["w_gate"], inputs["w_up"] = inputs["w_gate"] * both[:, :M, None], inputs["w_up"] * both[:, M:, None]
    return inputs if down is None else inputs | {"w_down": inputs["w_down"] * down[..., None]}


def _experts(x, router, w_gate, w_up, w_down, *, act, quant, renormalize, shared, dtypes, K):
    """weights [T, K], the chosen experts and what each gives [T, K, N]."""
    from tests.ref import gemm

    logits = gemm.ref(x, router, **gated_mlp._mode(quant, dtypes["router"]), dtypes={"out": "f32"})["out"]
    routed = moe_route.ref(logits, renormalize=renormalize, shared=shared, dtypes={"weights": "f32"}, dims={"K": K, "T": len(x)})
    chosen = moe_route.choose(logits, K, shared)
    part = {k: dtypes[k] for k in ("x", "w_gate", "w_up", "w_down", "gate_up", "hidden")} | {"out": dtypes["gate_up"]}
    every = [gated_mlp.ref(x=x, w_gate=w_gate[e], w_up=w_up[e], w_down=w_down[e], gate_up=None, hidden=None, act=act, quant=quant, dtypes=part)["out"]
             for e in range(len(router))]
    every = np.stack(every, 1) if len(x) else np.zeros((0, len(router), w_down.shape[1]))
    return routed["weights"], chosen, np.take_along_axis(every, chosen[..., None], 1), part


def ref(*, residual=None, act="silu", quant="f32", renormalize=True, shared=False, dtypes, dims, **inputs):
    given = _scaled({k: v for k, v in inputs.items() if k not in SCRATCH})
    weights, _, y, _ = _experts(**given, act=act, quant=quant, renormalize=renormalize, shared=shared, dtypes=dtypes, K=dims["K"])
    out = (weights[..., None] * y).sum(1)
    return {"out": round_to(out if residual is None else residual + out, dtypes["out"])}


def bound(port, value, dtype, inputs):
    """Each expert's bound, weighted; the weights' own error, with logits off by gemm's bound; then the sum."""
    from tests.ref import gemm

    case, a = inputs.case, inputs.attrs
    K, quant = case.dims["K"], a.get("quant", "f32")
    given = _scaled({k: v for k, v in inputs.items() if k not in SCRATCH + ("residual",)})
    if not len(inputs["x"]):
        return rounding(value, dtype)
    weights, chosen, y, part = _experts(**given, act=a.get("act", "silu"), quant=quant, renormalize=a.get("renormalize", True), shared=a.get("shared", False), dtypes=case.dtypes, K=K)
    logits = gemm.product(inputs["x"], inputs["router"], gated_mlp._mode(quant, case.dtypes["router"])["act"])
    router = Case(case.dims, {"x": case.dtypes["x"], "w": case.dtypes["router"], "out": "f32"}, gated_mlp._mode(quant, case.dtypes["router"]))
    e_logit = gemm.bound("out", logits, "f32", Inputs({"x": inputs["x"], "w": inputs["router"]}, router)).max(1, keepdims=True)
    error = 0
    for k in range(K):
        for e in range(len(inputs["router"])):
            one = Inputs({"x": inputs["x"], **{w: given[w][e] for w in _WEIGHTS[1:]}},
                         Case(case.dims, part, {n: v for n, v in a.items() if n not in ("renormalize", "shared")}))
            b = gated_mlp.bound("out", y[:, k], part["out"], one)
            here = (chosen[:, k] == e)[:, None]
            error = error + here * (weights[:, k:k + 1] * b + weights[:, k:k + 1] * (4 * e_logit + 2.0**-20) * np.abs(y[:, k]))
    return error + 2.0**-22 * (np.abs(weights[..., None] * y).sum(1) + np.abs(inputs.get("residual", 0))) + rounding(value, dtype)


def distinct(rng, shape):
    """Experts whose scores are far apart, so that no rounding changes the choice."""
    return rng.uniform(-1, 1, shape) * np.linspace(0.5, 4, shape[0])[:, None]


def case(T, E, K, H, M, N, dtype, weights, attrs=None, *, scratch=None, residual=False, scaled=(), **options):
    scratch = scratch or dtype
    dtypes = {"x": dtype, **dict(zip(_WEIGHTS, weights)), **dict.fromkeys(scaled, "f32"), "out": dtype, "logits": "f32", "weights": "f32", "place": "i32", "token": "i32",
              "offsets": "i32", "gathered": dtype, "gate_up": scratch, "hidden": scratch, "expert_out": scratch}
    dtypes |= ({"residual": dtype} if residual else {}) | ({"rows": "i32"} if "rows" in options else {})
    values = {"router": distinct} | {w: lambda rng, shape: rng.uniform(-0.25, 0.25, shape) for w in _WEIGHTS[1:]}
    return Case({"T": T, "E": E, "K": K, "H": H, "M": M, "N": N}, dtypes, attrs or {}, values=values, ranges={p: (0, 1) for p in ("place", "token", "offsets")},
                distributions=("normal",), positive=scaled, **options)


SCALES = ("gate_up_scale", "down_scale")
CASES = [
    case(5, 4, 2, 64, 96, 64, "f32", ("f32", "f32", "f32", "f32"), residual=True),
    case(3, 6, 3, 48, 32, 40, "bf16", ("bf16", "bf16", "bf16", "bf16"), {"act": "gelu_tanh", "renormalize": False}, scratch="f32"),
    case(2, 3, 1, 32, 48, 32, "f16", ("f16", "f16", "f16", "f16"), {"act": "gelu_erf"}, scratch="f32", residual=True),
    case(4, 4, 2, 64, 64, 32, "f32", ("f32", "q4_0", "q4_1", "q8_0"), {"quant": "q8"}, residual=True),
    case(4, 4, 2, 64, 64, 32, "f32", ("q8_0", "q8_0", "q5_1", "q4_0"), residual=True),
    case(3, 4, 2, 64, 64, 32, "f32", ("q4_0", "q5_0", "q4_0", "q4_1")),
    case(3, 4, 2, 64, 64, 32, "f32", ("q4_1", "q4_1", "q8_0", "q5_0")),
    case(3, 4, 2, 64, 64, 32, "f32", ("q5_0", "q5_1", "q5_0", "q5_1"), {"quant": "q8"}),
    case(2, 3, 2, 64, 64, 32, "f32", ("q5_1", "f32", "f32", "f32"), scratch="f16"),
    case(2, 2, 1, 256, 256, 24, "f32", ("q4_k", "q4_k", "q5_k", "q6_k"), {"quant": "q8"}),
    case(2, 2, 1, 256, 256, 24, "f32", ("q5_k", "q5_k", "q6_k", "q4_k")),
    case(2, 2, 1, 256, 256, 24, "f32", ("q6_k", "q6_k", "q4_k", "q5_k"), scratch="bf16"),
    case(6, 4, 2, 64, 32, 64, "f32", ("f32", "f32", "f32", "f32"), rows=2),
    case(1, 8, 3, 64, 96, 64, "bf16", ("bf16", "bf16", "bf16", "bf16"), residual=True, rows=1),
    case(1, 4, 2, 64, 64, 32, "f32", ("f32", "q4_0", "q4_1", "q8_0"), {"quant": "q8"}),
    case(1, 4, 2, 64, 64, 32, "f16", ("f16", "f16", "f16", "f16"), rows=0),
    case(1, 9, 4, 64, 96, 64, "bf16", ("bf16", "bf16", "bf16", "bf16"), {"shared": True}, residual=True),
    case(5, 5, 3, 64, 96, 64, "f32", ("f32", "f32", "f32", "f32"), {"shared": True, "renormalize": False}, residual=True),
    case(0, 4, 2, 64, 32, 64, "f32", ("f32", "f32", "f32", "f32")),
    *[case(T, 9, 4, 64, 96, 64, "bf16", ("bf16", "e4m3", "e4m3", "e4m3"), {"shared": True}, scaled=SCALES, residual=True) for T in (1, 5)],
    case(3, 4, 2, 64, 64, 32, "f32", ("f32", "e4m3", "e4m3", "f32"), scaled=SCALES[:1]),
    case(3, 4, 2, 64, 64, 32, "f16", ("f16", "f16", "q4_0", "e4m3"), scaled=SCALES[1:], scratch="f32"),
]


def fit(d):
    if "e4m3" in (d.dtypes["w_gate"], d.dtypes["w_up"]) and d.chance(0.8):
        d.dtypes["w_gate"] = d.dtypes["w_up"] = "e4m3"  # which have their scales together
    if not d.dtypes["w_gate"] == d.dtypes["w_up"] == "e4m3":
        d.drop("gate_up_scale")
    if d.dtypes["w_down"] != "e4m3":
        d.drop("down_scale")
    d.dims["E"] = min(d.dims["E"], 16)
    if d.attr("shared"):
        d.at_least("E", 2)
        d.at_least("K", 2)
    d.dims["K"] = min(d.dims["K"], d.dims["E"])
    d.multiple("H", max(block_of(d.dtypes[w]) for w in ("router", "w_gate", "w_up")))
    d.multiple("M", block_of(d.dtypes["w_down"]))


def contents(d, rng):
    E, H, M, N = (d.dims[k] for k in "EHMN")
    return {"router": distinct(rng, (E, H))} | {w: rng.uniform(-0.25, 0.25, shape) for w, shape in (("w_gate", (E, M, H)), ("w_up", (E, M, H)), ("w_down", (E, N, M)))}


DOMAIN = Domain(fit=fit, contents=contents, positive=SCALES, sizes={"K": (1, 2, 2, 3, 4, 8)}, distributions=("normal",), work=lambda d: 16 * d.dims["E"] * d.dims["T"] * d.dims["M"] * (2 * d.dims["H"] + d.dims["N"]), weight=2)
