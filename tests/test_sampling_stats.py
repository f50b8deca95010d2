"""`sample` draws from the distribution it says: counts of 2e5 draws against exact probabilities.

Each draw has its own step, the seed is fixed, so that a result is the same on every run. A statistic is
allowed what chance exceeds once in a million: a correct sampler fails for about no seed, one whose
probabilities are off by one part in twenty fails by far (test_a_wrong_distribution_is_seen).
"""
import numpy as np
import pytest

from vivace import ops

DRAWS = 200_000
LOGITS = np.array([1.5, 0.3, -0.7, 2.0, 1.5, -3.0, 0.0, 1.1, -1.2, 0.9, -0.1, 0.31], np.float32)


def draws(seed=7, first_step=0, **options):
    """Token counts over DRAWS rows that differ in their step only."""
    V, token = len(LOGITS), np.empty(DRAWS, np.int32)
    given = {k: np.full(DRAWS, v, np.int32 if k == "top_k" else np.float32) for k, v in options.items()}
    ops.sample(np.tile(LOGITS, (DRAWS, 1)), token=token, seed=np.full(DRAWS, seed, np.int64),
               step=np.arange(first_step, first_step + DRAWS, dtype=np.int32), **given)
    return np.bincount(token, minlength=V), token


def probabilities(temperature, kept=None):
    p = np.exp(LOGITS.astype(np.float64) / temperature)
    if kept is not None:
        p[[v for v in range(len(p)) if v not in kept]] = 0
    return p / p.sum()


def chi_square(counts, p):
    assert counts[p == 0].sum() == 0, "a token that is cut was drawn"
    want = p[p > 0] * counts.sum()
    return ((counts[p > 0] - want) ** 2 / want).sum(), np.count_nonzero(p) - 1


def limit(dof):
    """Chi-square's 1 - 1e-6 quantile, by Wilson and Hilferty (within 2 % from one degree of freedom on)."""
    z, a = 4.7534, 2 / (9 * dof)
    return dof * (1 - a + z * np.sqrt(a)) ** 3


ORDER = np.lexsort((np.arange(len(LOGITS)), -LOGITS))  # best first


@pytest.mark.parametrize("options, kept", [
    ({"temperature": 1.0}, None),
    ({"temperature": 0.5}, None),
    ({"temperature": 2.0, "top_k": 5}, ORDER[:5]),
    ({"temperature": 1.0, "top_k": 2}, [3, 0]),  # tokens 0 and 4 tie: the lower id stays
    ({"temperature": 1.0, "top_p": 0.8}, "top_p"),
    ({"temperature": 1.0, "min_p": 0.2}, [v for v in range(len(LOGITS)) if np.exp(LOGITS[v] - 2.0) >= 0.2]),
])
def test_draws_follow_the_distribution(options, kept):
    p = probabilities(options["temperature"])
    if isinstance(kept, str):
        kept = ORDER[: np.searchsorted(np.cumsum(p[ORDER]), options["top_p"]) + 1]
    counts, _ = draws(**options)
    chi, dof = chi_square(counts, probabilities(options["temperature"], kept))
    assert chi < limit(dof), f"chi-square {chi:.1f} at {dof} degrees of freedom: {counts}"


def test_a_wrong_distribution_is_seen():
    """The test above has the power it claims: probabilities off by 5 % in one token fail."""
    p = probabilities(1.0)
    p[3] *= 1.05
    chi, dof = chi_square(draws(temperature=1.0)[0], p / p.sum())
    assert chi > limit(dof)


def test_draws_are_independent_of_the_one_before():
    """Pairs of successive draws, and draws of two seeds, have the product's distribution."""
    p, V = probabilities(1.0), len(LOGITS)
    _, token = draws(temperature=1.0)
    _, other = draws(temperature=1.0, seed=8)
    for a, b in ((token[:-1:2], token[1::2]), (token, other)):
        pairs = np.bincount(a.astype(np.int64) * V + b, minlength=V * V)
        chi, dof = chi_square(pairs, np.outer(p, p).reshape(-1))
        assert chi < limit(dof), f"chi-square {chi:.1f} at {dof} degrees of freedom"


def test_a_large_vocabulary_is_drawn_evenly():
    """Equal logits over 2^15 tokens: noise has enough values that low ids gain nothing from ties."""
    V, T = 1 << 15, 2000
    token = np.empty(T, np.int32)
    ops.sample(np.zeros((T, V), np.float16), token=token, temperature=np.ones(T, np.float32),
               seed=np.full(T, -5, np.int64), step=np.arange(T, dtype=np.int32))
    counts = np.bincount(token // (V // 32), minlength=32)
    chi, dof = chi_square(counts, np.full(32, 1 / 32))
    assert chi < limit(dof), f"chi-square {chi:.1f} at {dof} degrees of freedom: {counts}"
