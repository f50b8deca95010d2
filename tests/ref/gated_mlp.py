"""Reference of `gated_mlp`: the references of gemm and act_mul, put together as vivace/ops/gated_mlp.h says."""
import numpy as np

from tests.differential.domain import block_of, Domain
from tests.ref import act_mul
from tests.ref.common import Case, Inputs, rounding

SCRATCH = ("gate_up", "hidden")
_BLOCK = 32  # activations that share a q8 scale


def _mode(quant, w):
    """A weight that is not block-quantized takes f32 activations."""
    return {"act": quant if w.startswith("q") else "f32"}


def _stages(x, w_gate, w_up, w_down, residual=None, *, act="silu", quant="f32", dtypes):
    """Everything between: what gate, up and hidden are rounded to, and the last product's call."""
    from tests.ref import gemm  # when used, so that collecting the cases needs no other reference

    def project(w):
        return gemm.ref(x=x, w={"gate": w_gate, "up": w_up}[w], **_mode(quant, dtypes[f"w_{w}"]),
                        dtypes={"x": dtypes["x"], "w": dtypes[f"w_{w}"], "out": dtypes["gate_up"]})["out"]

    gate, up = project("gate"), project("up")
    hidden = act_mul.ref(gate=gate, up=up, act=act, dtypes={"gate": dtypes["gate_up"], "out": dtypes["hidden"]})["out"]
    down = {"x": hidden, "w": w_down} | ({} if residual is None else {"residual": residual})
    return gate, up, hidden, down, {"x": dtypes["hidden"], "w": dtypes["w_down"], "out": dtypes["out"]}


def ref(*, gate_up, hidden, act="silu", quant="f32", dtypes, **inputs):
    from tests.ref import gemm

    *_, down, down_dtypes = _stages(**inputs, act=act, quant=quant, dtypes=dtypes)
    return {"out": gemm.ref(**down, **_mode(quant, dtypes["w_down"]), dtypes=down_dtypes)["out"]}


def bound(port, value, dtype, inputs):
    """The bounds of the first products and of act_mul, carried through the rest.

    An activation's slope is at most 1.13, so that hidden is off by 1.13 |up| e_gate + |act(gate)| e_up and
    its own bound; the last product carries that as sum |w_down| e_hidden. With q8 activations an error of
    hidden can also take its int8 value over a tie: one step of its block, amax / 127, more.
    """
    from tests.ref import gemm

    case, given = inputs.case, {k: v for k, v in inputs.items() if k not in SCRATCH}
    quant, kind, d = case.attrs.get("quant", "f32"), case.attrs.get("act", "silu"), case.dtypes
    gate, up, hidden, down, _ = _stages(**given, act=kind, quant=quant, dtypes=d)

    def product(name, call, result, out):
        mode = _mode(quant, d[name])
        part = Case(case.dims, {"x": out, "w": d[name], "out": out}, mode)
        return gemm.bound("out", result, out, Inputs(call, part))

    e_gate = product("w_gate", {"x": inputs["x"], "w": inputs["w_gate"]}, gate, d["gate_up"])
    e_up = product("w_up", {"x": inputs["x"], "w": inputs["w_up"]}, up, d["gate_up"])
    e_hidden = 1.13 * (np.abs(up) + e_up) * e_gate + (np.abs(act_mul.activate(kind, gate)) + e_gate) * e_up
    e_hidden += 1e-6 * np.abs(gate * up) + rounding(hidden, d["hidden"])
    if _mode(quant, d["w_down"])["act"] == "q8":
        T, M = hidden.shape
        amax = np.abs(hidden).reshape(T, M // _BLOCK, _BLOCK).max(-1)
        e_hidden += np.repeat(amax / 127, _BLOCK, axis=1)
    return product("w_down", down, value, dtype) + e_hidden @ np.abs(inputs["w_down"]).T


_WEIGHTS = ("w_gate", "w_up", "w_down")


def case(T, H, M, N, dtype, weights, attrs=None, *, scratch=None, residual=False, **options):
    """A Case with the three weights of the given dtypes; weights are small, as a model's are."""
    scratch = scratch or dtype
    dtypes = {"x": dtype, **dict(zip(_WEIGHTS, weights)), "out": dtype, "gate_up": scratch, "hidden": scratch}
    if residual:
        dtypes["residual"] = dtype
    if "rows" in options:
        dtypes["rows"] = "i32"
    values = {w: lambda rng, shape: rng.uniform(-0.25, 0.25, shape) for w in _WEIGHTS}
    return Case({"T": T, "H": H, "M": M, "N": N}, dtypes, attrs or {}, values=values, distributions=("normal", "tiny", "zero"), **options)


CASES = [
    case(3, 64, 96, 64, "f32", ("f32", "f32", "f32")),
    case(5, 64, 128, 64, "bf16", ("bf16", "bf16", "bf16"), {"act": "gelu_tanh"}, residual=True),
    case(2, 48, 80, 48, "f16", ("f16", "f16", "f16"), {"act": "gelu_erf"}, scratch="f32", residual=True),
    case(4, 64, 64, 32, "f32", ("q4_0", "q4_1", "q8_0"), residual=True),
    case(4, 64, 64, 32, "f32", ("q8_0", "q4_0", "q4_1"), {"quant": "q8"}, residual=True),
    case(2, 64, 64, 40, "f32", ("q5_0", "q5_1", "q5_0"), {"quant": "q8"}),
    case(2, 64, 64, 40, "f32", ("q5_1", "q5_0", "q5_1"), scratch="bf16"),
    case(2, 256, 256, 24, "f32", ("q4_k", "q5_k", "q6_k"), {"quant": "q8"}),
    case(2, 256, 256, 24, "f32", ("q5_k", "q6_k", "q4_k"), scratch="f16"),
    case(2, 256, 256, 24, "f32", ("q6_k", "q4_k", "q5_k")),
    case(2, 64, 64, 24, "f32", ("q4_1", "q8_0", "q4_0")),
    case(2, 64, 64, 24, "bf16", ("bf16", "bf16", "q8_0"), {"quant": "q8"}, note="plain and block-quantized weights in one block"),
    case(6, 64, 96, 64, "f32", ("f32", "f32", "f32"), rows=2),
    case(0, 64, 96, 64, "f32", ("f32", "f32", "f32")),
]


def fit(d):
    for w, k in (("w_gate", "H"), ("w_up", "H"), ("w_down", "M")):
        d.multiple(k, block_of(d.dtypes[w]))
        if d.attr("quant") == "q8":
            d.multiple(k, 32) if block_of(d.dtypes[w]) == 1 and False else None
    d.dims["H"] = -(-d.dims["H"] // max(block_of(d.dtypes["w_gate"]), block_of(d.dtypes["w_up"]))) * max(block_of(d.dtypes["w_gate"]), block_of(d.dtypes["w_up"]))


def contents(d, rng):
    """Weights are small, as a model's are."""
    return {w: rng.uniform(-0.25, 0.25, shape) for w, shape in (("w_gate", (d.dims["M"], d.dims["H"])), ("w_up", (d.dims["M"], d.dims["H"])), ("w_down", (d.dims["N"], d.dims["M"])))}


DOMAIN = Domain(fit=fit, contents=contents, work=lambda d: 12 * d.dims["T"] * d.dims["M"] * (2 * d.dims["H"] + d.dims["N"]), distributions=("normal", "tiny", "zero"), tokens={}, weight=2)
