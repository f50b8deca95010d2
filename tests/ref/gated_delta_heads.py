"""Reference of `gated_delta_heads`: the references of gated_delta and gate_heads, one after the other, as vivace/ops/gated_delta_heads.h says."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref import gate_heads, gated_delta
from tests.ref.common import Case, Inputs

OWN, OWN_ATTRS = ("gate", "weight"), ("act", "eps")


def _parts(inputs, attrs):
    """Inputs and attributes of the first, attributes of the second."""
    return ({k: v for k, v in inputs.items() if k not in OWN}, {k: v for k, v in attrs.items() if k not in OWN_ATTRS}, {k: v for k, v in attrs.items() if k in OWN_ATTRS})


def ref(*, dtypes, act="sigmoid", eps=1e-6, scale=0.0, normalize=False, frozen=False, **inputs):
    given, _, _ = _parts(inputs, {})
    done = gated_delta.ref(**given, scale=scale, normalize=normalize, frozen=frozen, dtypes=dtypes)
    return done | gate_heads.ref(done["out"], inputs["gate"], inputs.get("weight"), act=act, eps=eps, dtypes=dtypes)


def bound(port, value, dtype, inputs):
    """gated_delta's bound of the state; of out, gate_heads' own, and what heads that are off by gated_delta's bound become: a norm's
    slope by the root mean square, which may be smaller by as much."""
    case = inputs.case
    given, attrs, kept = _parts(inputs, inputs.attrs)
    first = Inputs(given, Case(case.dims, case.dtypes, attrs))
    done = gated_delta.ref(**given, **attrs, dtypes=case.dtypes)
    if port == "state":
        return gated_delta.bound(port, value, dtype, first)
    x, e = done["out"], gated_delta.bound("out", done["out"], dtype, first)
    own = {"x": x} | {k: inputs[k] for k in OWN if k in inputs}
    slope = np.abs(gate_heads.ref(np.ones_like(x), inputs["gate"], act=kept.get("act", "sigmoid"), dtypes={"out": "f64"})["out"])
    if "weight" in inputs:
        mean = lambda v: v.mean(-1, keepdims=True)  # noqa: E731
        root = 1 / np.sqrt(np.maximum(mean(x * x) - 2 * mean(np.abs(x) * e), 0) + kept.get("eps", 1e-6))
        e = np.abs(inputs["weight"]) * root * (e + (np.abs(x) + e) * root**2 * mean((2 * np.abs(x) + e) * e))
    return gate_heads.bound("out", value, dtype, Inputs(own, Case(case.dims, case.dtypes, kept))) + 1.01 * slope * e


def ports(t, weight="f32", gates=True, rate="f32", bias=None, **more):
    made = {"a": t, "b": t, "rate": rate, "bias": bias or t} if gates else {}
    return gated_delta.ports(t, gate=t, **made, **({"weight": weight} if weight else {}), **more)


def shape(*dims, G=None, **more):
    whole = gated_delta.shape(*dims, **more)
    return whole | {"G": G or whole["Dv"]}


ATTRS = {"normalize": True, "act": "silu"}
CASES = [
    Case(shape(1, 2, 4, 128, 128), ports("bf16"), ATTRS, ranges=gated_delta.RATE, distributions=("normal", "tiny"), note="a decode step of a model"),
    Case(shape(9, 1, 3, 96, 128, S=4, N=9), ports("f16", "bf16", offsets="i32", slot="i32", rows="i32"), ATTRS, ranges=gated_delta.RATE, rows=7,
         values={"offsets": np.arange(10), "slot": np.array([3, 0, -1, 1, 2, 4, 5, 6, 7])}, distributions=("normal",), note="a sequence a token"),
    Case(shape(21, 2, 2, 128, 128, S=3, N=2), ports("bf16", offsets="i32", slot="i32", fresh="i32"), ATTRS, ranges=gated_delta.RATE,
         values={"offsets": np.array([0, 19, 21]), "slot": np.array([2, 0]), "fresh": np.array([0, 1])}, distributions=("normal",), note="more tokens than come together"),
    Case(shape(4, 1, 2, 128, 128), ports("bf16", rate="bf16", bias="f32"), ATTRS | {"frozen": True, "scale": 0.5}, ranges=gated_delta.RATE, distributions=("normal",)),
    Case(shape(3, 1, 2, 24, 40, G=1), ports("f32", None, rate="f16", bias="f16"), {"normalize": True}, ranges=gated_delta.RATE, distributions=("normal",), note="one gate a head, no norm"),
    Case(shape(5, 1, 2, 64, 128), ports("bf16", "f16", False, decay="f32", beta="f32"), {"act": "sigmoid", "eps": 1e-5}, ranges=gated_delta.GATES, distributions=("normal",)),
    Case(shape(150, 1, 2, 128, 128), ports("bf16"), ATTRS, ranges=gated_delta.RATE, distributions=("normal",), note="a prompt"),
    Case(shape(0, 2, 2, 128, 128), ports("bf16"), ATTRS),
]


def fit(d):
    gated_delta.fit(d)
    d.dims["G"] = d.pick((d.dims["Dv"], d.dims["Dv"], 1))


def contents(d, rng):
    """Every token is one of a sequence: what others become means nothing."""
    got = gated_delta.contents(d, rng)
    if d.has("offsets"):
        got["offsets"][0], got["offsets"][-1] = 0, d.dims["T"]
    return got


DOMAIN = Domain(fit=fit, contents=contents, ranges=gated_delta.GATES | gated_delta.RATE, attrs={"scale": (0.5, 0.1), "eps": (1e-6, 1e-5, 0.1)}, distributions=("normal",),
                work=gated_delta.DOMAIN.work, sizes=gated_delta.DOMAIN.sizes)
