"""Reference of `causal_conv`: float64, by stacking each sequence's inputs behind its state."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to, rounding
from tests.ref.gated_delta import outside, sequence_contents, sequence_rows, sequences


def ref(x, weight, state, bias=None, offsets=None, slot=None, fresh=None, *, act="none", frozen=False, dtypes, terms=None):
    (T, C), K = x.shape, weight.shape[1]
    out, state = np.full((T, C), np.nan), state.copy()
    for _, first, past, row, zero in sequences(T, offsets, slot, fresh, len(state)):
        if first >= past:
            continue
        line = np.concatenate([np.zeros((K - 1, C)) if zero else state[row], x[first:past]])
        y = sum(line[k : k + past - first] * weight[:, k] for k in range(K)) + (0 if bias is None else bias)
        if terms is not None:
            terms[first:past] = sum(np.abs(line[k : k + past - first] * weight[:, k]) for k in range(K)) + (0 if bias is None else np.abs(bias))
        out[first:past] = y / (1 + np.exp(-y)) if act == "silu" else y
        if row >= 0 and not frozen:
            state[row] = line[-(K - 1) :]
    return {"out": round_to(out, dtypes["out"]), "state": round_to(state, "f32")}


def bound(port, value, dtype, inputs):
    """K + 2 half-units of the sum of the terms' sizes; SiLU enlarges that by at most 1.1 and adds a few of its own."""
    if port == "state":
        return 0.0  # copies
    terms = np.zeros(value.shape)
    ref(**inputs, **inputs.attrs, dtypes=inputs.case.dtypes, terms=terms)
    return 2.0**-24 * (inputs["weight"].shape[1] + 6) * 1.1 * terms + 2.0**-22 * np.abs(np.nan_to_num(value)) + rounding(value, dtype) + 1e-37


def ports(t, **more):
    return {"x": t, "weight": t, "state": "f32", "out": t, **more}


MIXED = {"offsets": np.array([0, 7, 7, 8, 20]), "slot": np.array([3, 0, -1, 1]), "fresh": np.array([0, 1, 0, 1])}
CASES = [
    Case({"T": 1, "C": 256, "K": 4, "P": 3, "S": 1}, ports("bf16", bias="bf16"), {"act": "silu"}, note="a decode step"),
    Case({"T": 20, "C": 100, "K": 4, "P": 3, "S": 5, "N": 4, "E": 5}, ports("f16", offsets="i32", slot="i32", fresh="i32"), values=MIXED, note="one of no token, one without a state, one from zero"),
    Case({"T": 300, "C": 64, "K": 3, "P": 2, "S": 3, "N": 3, "E": 4}, ports("f32", offsets="i32"), values={"offsets": np.array([0, 15, 17, 300])}, distributions=("normal", "edges"),
         note="sequences that begin at a run's last token and its first"),
    Case({"T": 9, "C": 33, "K": 8, "P": 7, "S": 2, "N": 2, "E": 3}, ports("f32", offsets="i32", bias="f32"), values={"offsets": np.array([0, 2, 9])}, distributions=("normal",), note="shorter than the taps"),
    Case({"T": 40, "C": 72, "K": 2, "P": 1, "S": 1}, ports("bf16", rows="i32"), {"act": "silu"}, rows=33, distributions=("normal",)),
    Case({"T": 6, "C": 512, "K": 4, "P": 3, "S": 8, "N": 6, "E": 7}, ports("bf16", offsets="i32", slot="i32"), {"act": "silu"},
         values={"offsets": np.arange(7), "slot": np.array([7, 0, 3, 1, 2, 5])}, note="a decode step of six sequences"),
    Case({"T": 9, "C": 128, "K": 4, "P": 3, "S": 4, "N": 3, "E": 4}, ports("bf16", offsets="i32", slot="i32"), {"act": "silu", "frozen": True},
         values={"offsets": np.array([2, 6, 6, 9]), "slot": np.array([3, 0, 1])}, distributions=("normal",), note="guesses behind other tokens: states stay"),
    Case({"T": 5, "C": 96, "K": 3, "P": 2, "S": 1}, ports("f16"), distributions=("normal", "edges")),
    Case({"T": 0, "C": 8, "K": 4, "P": 3, "S": 1}, ports("f32")),
]


def fit(d):
    sequence_rows(d)
    d.dims["P"] = d.dims["K"] - 1


DOMAIN = Domain(fit=fit, contents=sequence_contents, sizes={"K": (2, 3, 4, 4, 5, 8)})


def left_alone(port, case):
    """Tokens in no sequence."""
    return outside(case) if port == "out" else None
