"""Reference of `moe_route`: float64 weights; the choice and the order are exact."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, rounding, round_to

WHOLE = ("place",)  # a choice's place depends on all other choices


def choose(logits, K, shared=False):
    """The chosen experts [n, K]; a shared one comes last."""
    n, E = logits.shape
    if shared:
        return np.concatenate([choose(logits[:, :-1], K - 1), np.full((n, 1), E - 1)], 1)
    return np.argsort(-logits, axis=1, kind="stable")[:, :K]  # NaN sorts last, equals keep their order


def ref(logits, *, renormalize=True, shared=False, dtypes, dims):
    (n, E), K = logits.shape, dims["K"]
    chosen, best = choose(logits, K, shared), logits[:, : E - shared]
    p = np.exp(best - (best.max(1, keepdims=True) if n else 0))
    weights = np.take_along_axis(p, chosen[:, : K - shared], 1)
    weights = weights / (weights if renormalize else p).sum(1, keepdims=True)
    if shared:
        weights = np.concatenate([weights, 1 / (1 + np.exp(-logits[:, -1:]))], 1)
    order = np.argsort(chosen.ravel(), kind="stable")
    place = np.empty(n * K, int)
    place[order] = np.arange(n * K)
    token = np.zeros(dims["T"] * K, int)
    token[:n * K] = order // K
    offsets = np.searchsorted(np.sort(chosen.ravel()), np.arange(E + 1))
    return {"weights": round_to(weights, dtypes["weights"]), "place": place.reshape(n, K), "token": token, "offsets": offsets}


def bound(port, value, dtype, inputs):
    """exp of a difference that is rounded once (half a unit of up to twice the largest logit), then sums of E terms. A shared
    expert's exponential, sum and quotient are less."""
    x = np.abs(inputs["logits"]).max(initial=0)
    return value * (2.0**-22 * np.minimum(x, 110) + 2.0**-22 + inputs["logits"].shape[1] * 2.0**-24) + rounding(value, dtype) + 1e-38


def ports(logits, **more):
    return {"logits": logits, "weights": "f32", "place": "i32", "token": "i32", "offsets": "i32", **more}


def ties(rng, shape):
    return rng.integers(0, 3, shape).astype(np.float64)


CASES = [
    Case({"T": 7, "E": 8, "K": 2}, ports("f32")),
    Case({"T": 33, "E": 128, "K": 8}, ports("bf16"), {"renormalize": False}),
    Case({"T": 5, "E": 6, "K": 6}, ports("f16")),
    Case({"T": 9, "E": 12, "K": 5}, ports("f32"), values={"logits": ties}, note="many equal logits"),
    Case({"T": 6, "E": 5, "K": 3}, ports("f32", rows="i32"), rows=4),
    Case({"T": 20, "E": 2000, "K": 4}, ports("bf16"), distributions=("normal", "edges"), note="more experts than the tables of a wide block hold"),
    Case({"T": 1, "E": 1, "K": 1}, ports("f32")),
    *[Case({"T": 1, "E": 128, "K": 8}, ports(t, rows="i32"), {"renormalize": renormalize}, rows=1, note="one token") for t in ("f32", "bf16") for renormalize in (True, False)],
    Case({"T": 1, "E": 130, "K": 32}, ports("f16"), {"renormalize": False}, values={"logits": ties}, note="one token, many equal logits"),
    Case({"T": 1, "E": 40, "K": 33}, ports("f32"), note="one token, more choices than a warp has lanes"),
    Case({"T": 1, "E": 6, "K": 3}, ports("f32", rows="i32"), rows=0, note="no token of one"),
    Case({"T": 0, "E": 4, "K": 2}, ports("f32")),
    *[Case({"T": T, "E": 257, "K": 9}, ports(t), {"shared": True, "renormalize": renormalize}, distributions=("normal", "edges"), note="and one that every token takes")
      for T, t, renormalize in ((1, "f32", True), (1, "bf16", False), (40, "f32", False), (3, "f16", True))],
    Case({"T": 6, "E": 9, "K": 4}, ports("f32", rows="i32"), {"shared": True}, values={"logits": ties}, rows=4, note="ties beside a shared expert"),
    Case({"T": 4, "E": 2, "K": 2}, ports("f32"), {"shared": True}, note="one candidate and the shared expert"),
    Case({"T": 1, "E": 41, "K": 34}, ports("f32"), {"shared": True}, note="a shared expert behind more choices than a warp has lanes"),
]


def fit(d):
    if d.attr("shared"):
        d.at_least("E", 2)
        d.at_least("K", 2)
    d.dims["K"] = min(d.dims["K"], d.dims["E"])


DOMAIN = Domain(fit=fit, contents=lambda d, rng: {"logits": rng.integers(0, 3, (d.dims["T"], d.dims["E"])).astype(np.float64)} if rng.random() < 0.3 else {},
                sizes={"K": (1, 2, 3, 4, 5, 6, 8, 16, 32, 33), "E": (1, 2, 3, 6, 8, 16, 40, 60, 64, 128, 130, 256, 2000)})
