"""Reference of `advance`: the formula."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case


def ref(token, turn, ring, logprob=None, fed=None, pos=None, step=None, ring_logprob=None, *, dtypes):
    place, n = int(turn[0]) % len(ring), len(token)
    out = {"turn": np.array([(place + 1) % len(ring)]), "ring": ring.copy()}
    out["ring"][place, :n] = token
    if ring_logprob is not None:
        out["ring_logprob"] = ring_logprob.copy()
        out["ring_logprob"][place, :n] = logprob
    if fed is not None:
        out["fed"] = token.copy()
    if pos is not None:
        out["pos"] = pos + 1
    if step is not None:
        out["step"] = step + 1
    return out


def bound(port, value, dtype, inputs):
    """Copies and integers: exact."""
    return np.zeros(value.shape)


ALL = {p: "i32" for p in ("token", "fed", "pos", "step", "turn", "ring")} | {"logprob": "f32", "ring_logprob": "f32"}
RANGES = {"token": (-1, 5000), "fed": (0, 5000), "pos": (0, 900), "step": (0, 900), "ring": (0, 5000)}

CASES = [
    Case({"T": 1, "N": 4, "C": 1}, ALL, ranges=RANGES | {"turn": (3, 4)}, note="the turn wraps"),
    Case({"T": 5, "N": 3, "C": 8}, ALL, ranges=RANGES | {"turn": (-5, -4)}, note="a negative turn, a ring wider than the step"),
    Case({"T": 300, "N": 2, "C": 300}, {p: "i32" for p in ("token", "turn", "ring")}, ranges=RANGES | {"turn": (1000, 1001)}, note="more rows than threads"),
    Case({"T": 32, "N": 8, "C": 33}, ALL | {"rows": "i32"}, ranges=RANGES | {"turn": (2, 3)}, rows=7),
    Case({"T": 0, "N": 2, "C": 4}, {p: "i32" for p in ("token", "turn", "ring")}, ranges=RANGES | {"turn": (0, 1)}),
]


def fit(d):
    d.together("logprob", "ring_logprob")
    d.dims["C"] = d.dims["T"] + d.pick((0, 0, 1, 5))


DOMAIN = Domain(fit=fit, contents=lambda d, rng: {"turn": rng.choice([0, 3, -5, 1000, -(2**31), 2**31 - 1], 1)}, ranges=RANGES, sizes={"N": (1, 2, 3, 8)}, indices=("turn",))
