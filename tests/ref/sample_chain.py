"""Reference of `sample_chain`: acceptance in f32 as vivace/ops/sample_chain.h says, the draw in float64.

As for `sample`, rows where a rounding could decide are redrawn when the cases are made.
"""
import functools

import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case
from tests.ref.sample import MARGIN, philox4x32_10

f32 = np.float32


def words(count, seed, step, purpose):
    """[count, 4] noise words of counters (0 .. count-1, step, purpose, 0)."""
    counter = np.zeros((count, 4), np.uint64)
    counter[:, 0], counter[:, 1], counter[:, 2] = np.arange(count), step % 2**32, purpose
    seed = int(seed) % 2**64
    return philox4x32_10(counter, (seed & 0xFFFFFFFF, seed >> 32))


def decide(draft, q, p, seed=0, step=0):
    """(tokens, accepted, whether every decision has its margin) of one row."""
    N, V = q.shape
    q, p = q.astype(f32), p.astype(f32)
    u = (words(N, seed, step, 2)[:, 0].astype(f32) + f32(0.5)) * f32(2.0**-32)
    n, sure = 0, True
    while n < N and 0 <= draft[n] < V:
        ratio = float(p[n, draft[n]]) - float(u[n]) * float(q[n, draft[n]])
        sure &= abs(ratio) > 1e-6 * float(q[n, draft[n]]) or ratio == 0
        if not ratio > 0:
            break
        n += 1
    weight = (p[n] - q[n] if n < N else p[n]).astype(np.float64)
    uv = np.minimum((words((V + 3) // 4, seed, step, 1).reshape(-1)[:V].astype(f32) + f32(0.5)) * f32(2.0**-32), f32(1 - 2.0**-24))
    kept = weight > 0
    score = np.where(kept, np.log(np.where(kept, weight, 1)) - np.log(-np.log1p(-uv.astype(np.float64))), -np.inf)
    best = np.sort(score)[::-1]
    sure &= len(best) < 2 or not kept.any() or best[0] - best[1] > MARGIN
    next_token = int(np.argmax(score)) if kept.any() else -1
    return [*draft[:n], next_token, *[-1] * (N - n)], n, bool(sure)


def ref(draft, draft_probs, probs, seed=None, step=None, *, dtypes):
    rows = range(len(draft))
    done = [decide(draft[t], draft_probs[t], probs[t], 0 if seed is None else seed[t], 0 if step is None else step[t]) for t in rows]
    return {"tokens": np.array([d[0] for d in done], np.int64).reshape(len(draft), probs.shape[1]),
            "accepted": np.array([d[1] for d in done], np.int64).reshape(len(draft))}


def bound(port, value, dtype, inputs):
    """Integers: exact."""
    return np.zeros(value.shape)


@functools.cache
def scenario(T, N, V, noise, seeds=True, seed=0, steps=None):
    """Rows whose draft was drawn near the target; a few drafts name tokens that do not exist."""
    rng, steps = np.random.default_rng([T, N, V] + ([seed] if seed else [])), seeds if steps is None else steps

    def softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True)).astype(f32).astype(np.float64)

    rows = []
    while len(rows) < T:
        logits = 2 * rng.standard_normal((N + 1, V))
        q = softmax(logits[:N] + noise * rng.standard_normal((N, V)))
        row = {"draft": np.array([rng.choice(V, p=x / x.sum()) for x in q], np.int64).reshape(N), "draft_probs": q, "probs": softmax(logits),
               "seed": rng.integers(-(2**63), 2**63) if seeds else 0, "step": rng.integers(0, 2**31) if steps else 0}
        if len(rows) % 5 == 4 and N:
            row["draft"][-1] = rng.choice([-1, V])
        if decide(row["draft"], q, row["probs"], row["seed"], row["step"])[2]:
            rows.append(row)
    return {k: np.stack([r[k] for r in rows]) for k in rows[0]}


def case(T, N, V, noise, noise_ports=True, **options):
    dtypes = {"draft": "i32", "draft_probs": "f32", "probs": "f32", "tokens": "i32", "accepted": "i32"}
    dtypes |= {"seed": "i64", "step": "i32"} if noise_ports else {}
    read = [p for p in dtypes if p not in ("tokens", "accepted")]
    values = {p: (lambda rng, shape, p=p: scenario(T, N, V, noise, noise_ports)[p]) for p in read}
    if "rows" in options:
        dtypes["rows"] = "i32"
    return Case({"T": T, "N": N, "V": V}, dtypes, values=values, **options)


_EMPTY = {p: np.zeros(0) for p in ("draft", "draft_probs", "probs", "seed", "step")}
CASES = [
    case(20, 3, 50, 0.3),
    case(11, 5, 1001, 1.5, note="most drafts are rejected somewhere"),
    case(6, 1, 7, 0.0, noise_ports=False, note="draft and target agree: nothing is rejected"),
    case(3, 40, 33, 0.05, note="more drafts than a warp has lanes"),
    case(3, 2, 9001, 0.5, note="a row that several thread blocks share"),
    case(7, 2, 64, 0.5, rows=3),
    Case({"T": 0, "N": 2, "V": 9}, {"draft": "i32", "draft_probs": "f32", "probs": "f32", "tokens": "i32", "accepted": "i32"}, values=_EMPTY),
]


def contents(d, rng):
    return scenario.__wrapped__(d.dims["T"], d.dims["N"], d.dims["V"], float(rng.choice([0.0, 0.3, 1.5])), d.has("seed"), 1 + int(rng.integers(1 << 30)), d.has("step"))


DOMAIN = Domain(contents=contents, sizes={"N": (1, 2, 3, 5, 8, 40)}, work=lambda d: d.dims["T"] * (d.dims["N"] + 2) * (d.dims["V"] * 12 + 20000))
