"""Attention, every mask x layout x dtype x head size against float64: an empty slot, lengths at and beside block edges, no
numbers but NaN beyond them. On the CPU as a decode step, a chunk and a prefill each; on a GPU as one of them, so that few
kernels are compiled."""
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.op_data import decode, device, expected, shape_of
from tests.op_run import Run, close, run, verify
from tests.ref.attention import ports
from tests.ref.common import Case, round_to, rounding

PLACES, PAGE, HKV = 96, 8, 2
MASKS = ("causal", "window", "prefix", "state", "full", "bits")
LAYOUTS = tuple(product(("dense", "paged", "ragged"), ("nhd", "hnd")))
DTYPES = (("f32", "f32"), ("bf16", "bf16"), ("f16", "f16"), ("bf16", "e4m3"), ("f16", "e4m3"))
HEADS = (64, 72, 128, 256)
ROLES = {  # slots, their lengths, slot of each query
    "decode": ((64, 0, 65), [2, 0, -1]),
    "chunk": ((79,), [0] * 20),
    "prefill": ((33, 0, 63), [0] * 30 + [1] * 5 + [-1] * 2 + [2] * 33),
}


def keys(kind, hnd, lengths, table, starts):
    """Contents of k or v: normal up to each slot's length, NaN wherever no slot has a place."""
    def given(rng, shape):
        x = np.full(shape, np.nan)
        rows = x.swapaxes(1, 2) if hnd else x
        for s, n in enumerate(lengths):
            for j in range(n):
                block, place = {"dense": (s, j), "paged": (table[s, j // PAGE], j % PAGE), "ragged": (0, starts[s] + j)}[kind]
                rows[block, place] = rng.standard_normal(rows.shape[2:])
        return x
    return given


def case(role, mask, layout, dtype, D):
    (kind, order), (lengths, slot) = layout, ROLES[role]
    S, T, hnd = len(lengths), len(slot), order == "hnd"
    rng = np.random.default_rng([MASKS.index(mask), LAYOUTS.index(layout), D, T])
    table = rng.permutation(S * PLACES // PAGE).reshape(S, -1)
    starts = np.cumsum([0, *lengths])
    bits_from = np.array([max(0, n - 20) for n in lengths])
    length = np.array(lengths)[np.maximum(slot, 0)]
    values = {"pos": rng.integers(np.maximum(length - 12, 0), length + 1), "slot": np.array(slot), "length": np.array(lengths)}
    sizes = {"T": T, "B": 1 if kind == "ragged" else S, "Hq": 4, "D": D, "Dv": D}
    held = {"dense": PLACES, "paged": PAGE, "ragged": PLACES * S}[kind]
    sizes |= {"L": HKV, "Hkv": held} if hnd else {"L": held, "Hkv": HKV}  # named after nhd
    if kind == "ragged":
        sizes["R"], values["k_offsets"] = S + 1, starts
    else:
        sizes["S"] = S
    if kind == "paged":
        beyond = np.arange(PLACES // PAGE)[None] * PAGE >= np.array(lengths)[:, None]
        sizes |= {"B": S * PLACES // PAGE, "P": PLACES // PAGE}
        values["page_table"] = np.where(beyond & (table % 2 == 0), 10**6, table)  # a page that is not there, where no place is
    if kind == "ragged":
        values.pop("length")
    if mask in ("prefix", "state"):
        sizes["S"], values["prefix"] = S, np.array([max(0, n - 9) for n in lengths])
    if mask == "bits":
        sizes |= {"S": S, "W": 1}
        values |= {"bits": rng.integers(-2**31, 2**31, (T, 1)), "bits_from": bits_from}
    if role == "chunk":
        values.pop("slot")
    attrs = {"layout": order, "mask": {"window": "causal", "bits": "full"}.get(mask, mask), "window": 17 if mask == "window" else 0}
    given = values | {n: keys(kind, hnd, lengths, table, starts) for n in "kv"}
    return Case(sizes, ports(*dtype, **{n: "i32" for n in values}, lse="f32"), {n: v for n, v in attrs.items() if v}, values=given)


def grid():
    """Types and head sizes are innermost: every fifth test then shares its kernels, as processes that take every fifth want it."""
    for mask, layout in product(MASKS, LAYOUTS):
        for (i, dtype), (j, D) in product(enumerate(DTYPES), enumerate(HEADS)):
            for role in (list(ROLES)[(i + j) % 3],) if device else ROLES:
                yield pytest.param(case(role, mask, layout, dtype, D), id=f"{role}-{mask}-{'-'.join(layout)}-{'-'.join(dtype)}-{D}")


@pytest.mark.parametrize("case", list(grid()))
def test_result(case, record_property):
    error, allowed = verify("attention", case, run("attention", case, "normal").call())
    record_property("max_err", error)
    record_property("bound", allowed)


def blocked(given, size):
    """Keys of 0 at every third place and of -size elsewhere, where `given` has numbers."""
    def keys(rng, shape):
        x = given(rng, shape)
        places = np.arange(shape[1])[None, :, None, None] % 3
        return np.where(np.isnan(x), x, np.where(places == 2, 0.0, -size))
    return keys


@pytest.mark.parametrize("role, dtype, D, mask", [(role, dtype, D, mask) for role, (dtype, D), mask in product(ROLES, ((DTYPES[0], 64), (DTYPES[1], 128), (DTYPES[1], 256), (DTYPES[3], 128)), ("causal", "bits"))])
def test_infinite_scores(role, dtype, D, mask):
    """Products beyond f32. Positive queries find scores of 0 and -inf, of which only the former count; a query that finds -inf alone sees nothing;
    negative ones find +inf and give NaN, and their neighbours in a tile do not."""
    plain = case(role, mask, ("dense", "nhd"), dtype, D)
    T = plain.dims["T"]
    q, k = (2.0**120, 256.0) if dtype[1] == "e4m3" else (2.0**100, 2.0**100)
    signs = np.where(np.arange(T) % 2 == 0, q, -q)[:, None, None]
    pos, bits = plain.values["pos"].copy(), {"bits": np.full((T, 1), -1)} if mask == "bits" else {}
    pos[0] = 0
    if mask == "bits":
        bits["bits"][0], bits["bits_from"] = 1, np.zeros_like(plain.values["bits_from"])  # place 0 alone
    c = replace(plain, values=plain.values | bits | {"pos": pos, "q": np.broadcast_to(signs, (T, 4, D)), "k": blocked(plain.values["k"], k)})
    r = run("attention", c, "normal").call()
    with np.errstate(all="ignore"):
        inputs, want = expected("attention", c, r.data)
    assert (want["out"][0] == 0).all() and np.isneginf(want["lse"][0]).all() and np.isnan(want["out"][1]).all()
    for port in ("out", "lse"):
        got = decode(r.written[port], c.dtypes[port], shape_of("attention", port, c))
        # Weights are 1 or 0: their sum is exact, a sum of a hundred values off by some f32 units, of 16-bit values by none of weights.
        allowed = rounding(want[port], c.dtypes[port]) + 2.0**-18
        ok = close(got, want[port], allowed, c.dtypes[port])
        assert ok.all(), f"{port}: {np.argwhere(~ok)[:3].tolist()}: {got[~ok][:3]}, wanted {want[port][~ok][:3]}"


@pytest.mark.parametrize("role, layout, dtype, D", [(role, layout, dtype, D) for role in ROLES for layout, dtype, D in
                                                    ((LAYOUTS[0], DTYPES[0], 64), (LAYOUTS[0], DTYPES[1], 128), (LAYOUTS[2], DTYPES[2], 72), (LAYOUTS[0], DTYPES[3], 128), (LAYOUTS[4], DTYPES[1], 256))])
def test_codes(role, layout, dtype, D):
    """An e4m3 out has the codes that `quantize` makes of the same call's out in q's type."""
    plain = case(role, "causal", layout, dtype, D)
    first = run("attention", plain, "normal").call()
    scale = np.float32(0.0131)
    c = replace(plain, dtypes=plain.dtypes | {"out": "e4m3", "out_scale": "f32"}, values=plain.values | {"out_scale": [scale]})
    second = Run("attention", c, first.data | {"out_scale": np.array([scale]).view(np.uint8)}).call()
    values, codes = (decode(r.written["out"], r.case.dtypes["out"], shape_of("attention", "out", c)) for r in (first, second))
    want = round_to((values.astype(np.float32) / scale).astype(np.float64), "e4m3")
    assert np.array_equal(codes, want) and (first.written["lse"] == second.written["lse"]).all()
