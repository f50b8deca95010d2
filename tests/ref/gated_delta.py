"""Reference of `gated_delta`: float64, one token and head at a time."""
import numpy as np

from tests.differential.domain import Domain, offsets_of
from tests.ref import delta_gates
from tests.ref.common import Case, round_to, rounding


def sequences(T, offsets, slot, fresh, S):
    """(n, first, past, row of state or -1, whether it begins at zero)."""
    if offsets is None:
        offsets = np.array([0, T])
    for n in range(len(offsets) - 1):
        first, past = (int(np.clip(x, 0, T)) for x in offsets[n : n + 2])
        row = n if slot is None else int(slot[n])
        row = row if 0 <= row < S else -1
        yield n, first, max(first, past), row, row < 0 or (fresh is not None and fresh[n] != 0)


def unit(x, normalize):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) if normalize else x


def made(inputs):
    """decay and beta of the projections that are given instead of them."""
    named = {n: inputs[n] for n in MADE}
    exact = delta_gates.ref(**named, dtypes={})
    error = {p: delta_gates.bound(p, exact[p], "f32", named) for p in exact}
    return exact, error


def ref(q, k, v, state, decay=None, beta=None, a=None, b=None, rate=None, bias=None, offsets=None, slot=None, fresh=None, *, scale=0.0, normalize=False, frozen=False, dtypes, largest=None):
    T, Hv, Dv = v.shape
    S, _, D, _ = state.shape
    scale = float(np.float32(scale if scale else 1 / np.sqrt(D)))
    q, k = (np.repeat(unit(x, normalize), Hv // max(x.shape[1], 1), 1) for x in (q, k))
    if a is not None:
        decay, beta = delta_gates.ref(a, b, rate, bias, dtypes={}).values()
    out, state = np.full((T, Hv, Dv), np.nan), state.copy()
    for _, first, past, row, zero in sequences(T, offsets, slot, fresh, S):
        if first >= past:
            continue
        s = np.zeros((Hv, D, Dv)) if zero else state[row]
        for t in range(first, past):
            s = s * np.exp(0 if decay is None else decay[t][:, None, None])
            u = (v[t] - np.einsum("hdc,hd->hc", s, k[t])) * (1 if beta is None else beta[t][:, None])
            s = s + k[t][:, :, None] * u[:, None]
            out[t] = np.einsum("hdc,hd->hc", s, q[t]) * scale
            if largest is not None:
                largest.append(np.abs(s).max(initial=0))
        if row >= 0 and not frozen:
            state[row] = s
    return {"out": round_to(out, dtypes["out"]), "state": round_to(state, "f32")}


def bound(port, value, dtype, inputs):
    """Keys are at most of length 1 and decays at most 0, so that a step does not enlarge what came before: the errors
    of T steps add up, each D half-units of the largest state or value; a query of length l adds its own D of them."""
    largest = [np.abs(inputs["v"]).max(initial=0), np.abs(inputs["state"]).max(initial=0)]
    ref(**inputs, **inputs.attrs, dtypes=inputs.case.dtypes, largest=largest)
    T, D = len(inputs["q"]), inputs["q"].shape[-1]
    error = 2.0**-24 * (T + 4) * (D + 16) * max(largest)
    if "a" in inputs:  # what is kept and corrected is off, too
        exact, off = made(inputs)
        error += (T + 4) * (2 + D**0.5) * max(largest) * sum(x.max(initial=0) for x in (np.exp(exact["decay"]) * off["decay"], off["beta"]))
    if port == "state":
        return error + rounding(value, dtype)
    q = unit(inputs["q"], inputs.attrs.get("normalize", False))
    reach = np.abs(q).sum(-1).max(initial=0) * (inputs.attrs.get("scale", 0) or 1 / np.sqrt(D))
    return 2 * error * reach + rounding(value, dtype)


def short(rng, shape):
    """Keys of length below 1."""
    k = rng.standard_normal(shape)
    return 0.9 * k / np.sqrt((k * k).sum(-1, keepdims=True))


def between(rng, shape):
    """Nearly half-way between two bf16: rounded, all lose the same side of it."""
    return np.full(shape, 1 + 0.9 * 2.0**-8)


def alike(rng, shape):
    """Keys that read every row of the state the same way, so that what rounding takes off adds up."""
    return np.ones(shape)


def shape(T, Hk, Hv, D, Dv, S=1, N=None):
    return {"T": T, "Hk": Hk, "Hv": Hv, "D": D, "Dv": Dv, "S": S, **({} if N is None else {"N": N, "E": N + 1})}


def ports(t, **more):
    return {"q": t, "k": t, "v": t, "state": "f32", "out": t, **more}


MADE = ("a", "b", "rate", "bias")
GATES = {"decay": (-1.0, 0.0), "beta": (0.0, 1.0)}
RATE = {"rate": (-3.0, 1.0)}
CASES = [
    Case(shape(1, 2, 4, 128, 128), ports("bf16", decay="f32", beta="f32"), {"normalize": True}, ranges=GATES, distributions=("normal", "large", "zero"), note="a decode step"),
    Case(shape(37, 2, 2, 64, 48), ports("f32", decay="f32", beta="f32"), {"normalize": True}, ranges=GATES, distributions=("normal", "edges")),
    Case(shape(20, 1, 3, 24, 33, S=5, N=4), ports("f16", decay="f32", beta="f32", offsets="i32", slot="i32", fresh="i32"), {"normalize": True, "scale": 0.5}, ranges=GATES,
         values={"offsets": np.array([0, 7, 7, 11, 20]), "slot": np.array([3, 0, -1, 1]), "fresh": np.array([0, 1, 0, 1])}, distributions=("normal",),
         note="sequences: one of no token, one without a state, one from zero"),
    Case(shape(9, 2, 2, 40, 64), ports("f32"), values={"k": short}, distributions=("normal", "tiny"), note="no gates, lengths as they are"),
    Case(shape(12, 1, 2, 256, 96, S=2, N=2), ports("bf16", decay="f32", offsets="i32", rows="i32"), {"normalize": True}, ranges={"decay": (-0.1, 0)},
         values={"offsets": np.array([0, 3, 12])}, rows=8, distributions=("normal",)),
    Case(shape(5, 1, 1, 512, 40), ports("f32", beta="f32"), {"normalize": True}, ranges=GATES, distributions=("normal",)),
    Case(shape(0, 2, 2, 16, 16), ports("f32")),
    Case(shape(1, 2, 4, 128, 128), ports("bf16", a="bf16", b="bf16", rate="f32", bias="bf16"), {"normalize": True}, ranges=RATE, distributions=("normal", "tiny", "edges"), note="a decode step of a model"),
    Case(shape(30, 1, 3, 40, 24, S=4, N=3), ports("f16", a="f16", b="f16", rate="bf16", bias="f32", offsets="i32", slot="i32", rows="i32"), {"normalize": True}, ranges=RATE, rows=28,
         values={"offsets": np.array([0, 9, 9, 30]), "slot": np.array([3, 0, 1])}, distributions=("normal",)),
    Case(shape(6, 2, 2, 20, 16), ports("f32", a="f32", b="f32", rate="f16", bias="f16"), {"normalize": True}, ranges=RATE, distributions=("normal", "edges")),
    Case(shape(150, 1, 2, 128, 64), ports("bf16", a="bf16", b="bf16", rate="f32", bias="f32"), {"normalize": True}, ranges=RATE, distributions=("normal", "edges"), note="a prompt of a model"),
    Case(shape(150, 2, 16, 128, 128), ports("bf16", a="bf16", b="bf16", rate="f32", bias="bf16"), {"normalize": True}, ranges=RATE, distributions=("normal",),
         note="rates whose sums of decays lose bits: a token's must not follow from the one behind it"),
    Case(shape(9, 1, 2, 128, 128, S=4, N=3), ports("bf16", decay="f32", beta="f32", offsets="i32", slot="i32"), {"normalize": True, "frozen": True}, ranges=GATES,
         values={"offsets": np.array([2, 6, 6, 9]), "slot": np.array([3, 0, 1])}, distributions=("normal",), note="guesses behind other tokens: states stay"),
    Case(shape(150, 1, 2, 64, 64), ports("bf16", decay="f32", beta="f32"), {"normalize": True, "frozen": True}, ranges=GATES, distributions=("normal",)),
    Case(shape(150, 1, 2, 128, 128), ports("bf16", decay="f32", beta="f32"), {"normalize": True}, ranges=GATES, distributions=("normal", "large", "tiny", "edges"),
         note="a prompt: two chunks and a part"),
    Case(shape(210, 2, 2, 64, 40, S=4, N=3), ports("bf16", decay="f32", beta="f32", offsets="i32", slot="i32", fresh="i32"), {"normalize": True},
         ranges={"decay": (-0.05, 0.0), "beta": (0.0, 1.0)}, values={"offsets": np.array([0, 64, 65, 210]), "slot": np.array([2, 0, 3]), "fresh": np.array([0, 0, 1])}, distributions=("normal",),
         note="prompts around a chunk's edge, long memories"),
    Case(shape(140, 1, 1, 96, 64), ports("bf16", decay="f32", rows="i32"), {"normalize": True}, ranges={"decay": (-60.0, 0.0)}, rows=130, distributions=("normal",),
         note="decays that leave nothing"),
    Case(shape(40, 1, 1, 64, 32), ports("bf16"), {"normalize": True}, values={"state": between, "k": alike}, distributions=("normal", "zero"),
         note="a state whose second half of bits tells"),
]


def fit(d):
    sequence_rows(d)
    d.heads("Hv", "Hk", most=32)
    d.together(*MADE)
    if d.has("a"):
        d.drop("decay", "beta")
    if d.chance(0.7):
        d.dims["Dv"] = d.dims["D"]


def sequence_rows(d):
    """Sequences of a call and their rows of state; with `rows`, those of valid tokens."""
    if not d.has("offsets"):
        d.dims["N"] = 1
    d.dims["N"] = min(d.dims["N"], 64)
    d.dims["E"] = d.dims["N"] + 1
    if not d.has("slot"):
        d.at_least("S", d.dims["N"])


def sequence_contents(d, rng):
    """Offsets that rise, slots that no two sequences share, some of which do not exist."""
    N, S, T = d.dims["E"] - 1 if d.has("offsets") else 1, d.dims["S"], d.dims["T"]
    out = {"offsets": offsets_of(rng, N, T, whole=rng.random() < 0.7), "fresh": rng.integers(0, 2, N) * rng.integers(-3, 4, N)}
    slot = np.full(N, -1)
    some = rng.permutation(N)[:S]
    slot[some] = rng.permutation(S)[: len(some)]
    if rng.random() < 0.3:
        slot = np.where(rng.random(N) < 0.2, rng.choice([-1, S]), slot)
    return out | {"slot": slot}


def outside(case):
    """Tokens that no sequence has: their rows of `out` stay as they are."""
    T, rows = case.dims["T"], case.rows
    valid = T if rows is None else min(max(rows, 0), T)
    left = np.ones(T, bool)
    offsets = case.values.get("offsets")
    N = 1 if "offsets" not in case.dtypes else len(offsets) - 1
    for _, first, past, *_ in sequences(valid, offsets if "offsets" in case.dtypes else None, np.zeros(N), None, 1):
        left[first:past] = False
    return left


def left_alone(port, case):
    return outside(case) if port == "out" else None


def contents(d, rng):
    """Keys that are not normalised are of length at most 1."""
    return sequence_contents(d, rng) | ({} if d.attr("normalize") else {"k": short(rng, (d.dims["T"], d.dims["Hk"], d.dims["D"]))})


DOMAIN = Domain(fit=fit, contents=contents, ranges=GATES | RATE, attrs={"scale": (0.5, 0.1)}, distributions=("normal", "normal", "tiny", "edges", "zero"),
                work=lambda d: d.dims["T"] * (d.dims["Hv"] * d.dims["D"] * d.dims["Dv"] * 2 + 12000), sizes={"N": (1, 2, 3, 4, 9), "D": (16, 24, 32, 64, 64, 96, 128, 128, 256, 40)})
