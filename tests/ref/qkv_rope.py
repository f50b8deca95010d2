"""Reference of `qkv_rope`: float64, the formula of vivace/ops/qkv_rope.h."""
import numpy as np

from tests.differential import slots
from tests.differential.domain import Domain
from tests.ref.common import Case, rounding, round_to
from tests.ref.kv_append import HND, append, cache_rows, distinct, distinct_rows, heads, of_either, places_first
from tests.ref.rope import angles as drawn_angles, frequencies, rotate, turn


def turned(pos, inv_freq=None, shift=None, axis=None, **_):
    """Where tokens are turned to: [T], or with shift [T, R], a position a pair."""
    if shift is None:
        return pos
    axis = np.zeros(len(inv_freq), int) if axis is None else axis
    shift = shift[:, : len(pos)]  # of valid rows
    by = np.where((axis >= 0) & (axis < len(shift)), shift[np.clip(axis, 0, len(shift) - 1)].T, 0)
    return (pos.astype(np.uint32)[:, None] + by.astype(np.uint32)).astype(np.int32)


def keys_and_values(qkv, k_norm=None, pos=None, inv_freq=None, shift=None, axis=None, angles=None, *, style="half", attn_factor=1.0, eps=1e-6, norm_plus_one=False, Hq, D, **_):
    """As they enter the caches, unrounded."""
    Hkv = (qkv.shape[1] // D - Hq) // 2
    heads = qkv.reshape(len(qkv), Hq + 2 * Hkv, D)
    return prepared(heads[:, Hq : Hq + Hkv], k_norm, inv_freq, turned(pos, inv_freq, shift, axis), style, attn_factor, eps, norm_plus_one, angles), heads[:, Hq + Hkv :]


def prepared(x, weight, inv_freq, pos, style, attn_factor, eps, norm_plus_one, angles=None):
    if weight is not None:
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (weight + (1 if norm_plus_one else 0))
    if angles is not None:
        return turn(x, angles[:, 0], angles[:, 1], style)
    return x if inv_freq is None else rotate(x, inv_freq, pos, style, attn_factor)


def chosen(port, got, want, inputs):
    if port not in ("k_cache", "v_cache"):
        return want
    k, v = keys_and_values(**inputs, **inputs.attrs, Hq=inputs.case.dims["Hq"], D=inputs.case.dims["D"])
    return of_either(got, want, k if port == "k_cache" else v, inputs, inputs.case.dtypes[port])


def ref(qkv, k_cache=None, v_cache=None, pos=None, slot=None, inv_freq=None, q_norm=None, k_norm=None, page_table=None, shift=None, axis=None, angles=None, *,
        style="half", attn_factor=1.0, eps=1e-6, norm_plus_one=False, layout="nhd", dtypes, dims):
    Hq, D = dims["Hq"], dims["D"]
    how = {"style": style, "attn_factor": attn_factor, "eps": eps, "norm_plus_one": norm_plus_one}
    k, v = keys_and_values(qkv, k_norm, pos, inv_freq, shift, axis, angles, **how, Hq=Hq, D=D)
    written = {"q": round_to(prepared(qkv[:, : Hq * D].reshape(len(qkv), Hq, D), q_norm, inv_freq, turned(pos, inv_freq, shift, axis), **how, angles=angles), dtypes["q"])}
    for name, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if cache is None:
            written[f"{name}_out"] = round_to(new, dtypes[f"{name}_out"])
        else:
            written[f"{name}_cache"] = append(cache, new, pos, slot, page_table, dtypes[f"{name}_cache"], layout)
    return written


def bound(port, value, dtype, inputs):
    """A rotation keeps a pair's length, so that a head's largest value measures its terms: 3e-6 of it
    covers the roundings of the norm (a sum of D <= 128 squares), of sine and cosine, and of the rotation.
    Below f32's range these are halves of 2^-149 each: of x times the root, twice of that times the weight, of two
    products and of the factor; the first grows with the weight.

    Rows of the caches that the call does not name stay as they were, to the bit; so does v.
    """
    if port in ("v_out", "v_cache"):
        return np.zeros_like(value)
    norm = inputs.get("q_norm" if port == "q" else "k_norm", np.zeros(1))
    allowed = 3e-6 * np.abs(value).max(-1, keepdims=True, initial=0) + rounding(value, dtype) + 2.0**-149 * (4 + np.abs(norm).max(initial=0))
    if port == "k_cache":
        layout = inputs.attrs.get("layout", "nhd")
        rows = places_first(value, layout)
        held, block, place = cache_rows(rows, inputs["pos"], inputs.get("slot"), inputs.get("page_table"))
        named = np.zeros((*rows.shape[:2], 1, 1), bool)
        named[block[held], place[held]] = True
        allowed = np.where(places_first(named, layout), allowed, 0.0)
    return allowed


_SMALL = {"Hq": 4, "Hkv": 2, "D": 64, "R": 32}


def cached(L, layout="nhd", Hkv=2, **dims):
    return {**_SMALL, **dims, **heads(Hkv, L, layout)}


_FREQ = {"inv_freq": frequencies}
_CACHED = {"qkv": "bf16", "q": "bf16", "k_cache": "bf16", "v_cache": "bf16", "pos": "i32", "slot": "i32", "inv_freq": "f32"}
_ANGLES, _TURNED = {"angles": drawn_angles}, {k: d for k, d in _CACHED.items() if k != "inv_freq"} | {"angles": "f32"}
CASES = [
    Case({"T": 3, **_SMALL}, {"qkv": "f32", "q": "f32", "k_out": "f32", "v_out": "f32", "pos": "i32", "inv_freq": "f32"},
         ranges={"pos": (0, 2048)}, values=_FREQ),
    Case({"T": 4, "Hq": 3, "Hkv": 1, "D": 40}, {"qkv": "bf16", "q": "bf16", "k_out": "bf16", "v_out": "bf16"}, note="a plain split"),
    Case(cached(7, T=5, B=2), _CACHED, values={**_FREQ, **distinct(2, 7)}),
    Case(cached(5, T=7, B=2), {**_CACHED, "q_norm": "bf16", "k_norm": "f32"}, {"style": "interleaved", "eps": 1e-5},
         values={**_FREQ, **distinct(3, 6, first=-1)}, note="some slots and positions do not exist"),
    Case(cached(9, T=6, Hq=2, D=128, R=16, B=1),
         {"qkv": "f16", "q": "f16", "k_cache": "e4m3", "v_cache": "e4m3", "pos": "i32", "inv_freq": "f32", "k_norm": "f16", "rows": "i32"},
         {"norm_plus_one": True, "attn_factor": 1.1}, values={**_FREQ, "pos": np.array([8, 0, 3, 4, 1, 7])}, rows=4),
    Case(cached(6, T=4, B=1), {k: "f32" if d == "bf16" else d for k, d in _CACHED.items() if k not in ("slot", "inv_freq")},
         values={"pos": np.array([5, 1, 0, 2])}, note="positions for the cache alone, no rotation"),
    Case(cached(4, T=3, B=2), {k: "f16" if d == "bf16" else d for k, d in {**_CACHED, "q_norm": "f16"}.items()} | {"k_norm": "bf16"},
         values={**_FREQ, **distinct(2, 4)}),
    Case(cached(4, T=3, B=2), {**_CACHED, "q_norm": "f32"}, values={**_FREQ, **distinct(2, 4)}),
    Case(cached(4, T=8, B=5, S=2, P=2), {**_CACHED, "q_norm": "bf16", "k_norm": "bf16", "page_table": "i32"},
         values={**_FREQ, **distinct(3, 9, first=-1), "page_table": np.array([[4, 1], [0, 5]])}, note="paged; some places do not exist"),
    Case(cached(11, "hnd", T=7, B=3), {**_CACHED, "q_norm": "bf16", "k_norm": "bf16"}, HND, values={**_FREQ, **distinct(4, 13, first=-1)}, note="heads first; some places do not exist"),
    Case(cached(6, "hnd", Hkv=3, T=6, D=128, R=16, B=2), {k: "f16" if d == "bf16" else d for k, d in _CACHED.items()} | {"k_cache": "e4m3", "v_cache": "e4m3", "rows": "i32"}, {**HND, "style": "interleaved"},
         values={**_FREQ, **distinct(2, 6)}, rows=5, note="heads first"),
    Case(cached(4, "hnd", Hkv=1, T=8, B=5, S=2, P=2), {**_CACHED, "k_norm": "f32", "page_table": "i32"}, HND,
         values={**_FREQ, **distinct(3, 9, first=-1), "page_table": np.array([[4, 1], [0, 5]])}, note="pages of heads; some places do not exist"),
    Case(cached(5, "hnd", Hkv=3, T=4, Hq=3, D=40, R=7, B=2), {**_CACHED, "k_cache": "e4m3", "v_cache": "e4m3"}, HND, values={**_FREQ, **distinct(2, 5)}, note="heads first, no whole 16 bytes"),
    *(Case(cached(300, T=260, Hq=3, Hkv=1, D=D, R=D // 2, B=1), {**{k: d for k, d in _CACHED.items() if k != "slot"}, "k_cache": "e4m3", "v_cache": "e4m3"}, distributions=("normal",),
           values={**_FREQ, "pos": np.arange(260) + 7}, note="many tokens, 8-bit caches") for D in (64, 128)),
    # Three tokens a block on the GPU, of which the last has fewer.
    Case(cached(60, T=257, Hq=5, D=128, R=16, B=5), {**_CACHED, "q_norm": "bf16", "k_norm": "f32", "rows": "i32"}, {"style": "interleaved"},
         values={**_FREQ, **distinct(6, 62, first=-1)}, rows=200, distributions=("normal",), note="many tokens; some slots and positions do not exist"),
    Case({"T": 256, "Hq": 2, "Hkv": 3, "D": 64, "R": 32}, {"qkv": "f16", "q": "f16", "k_out": "f16", "v_out": "f16", "pos": "i32", "inv_freq": "f32", "q_norm": "f16"},
         {"norm_plus_one": True}, ranges={"pos": (0, 2048)}, values=_FREQ, note="many tokens"),
    Case(cached(40, "hnd", T=300, B=9, S=4, P=2), {**_CACHED, "k_norm": "bf16", "page_table": "i32"}, HND, distributions=("normal",),
         values={**_FREQ, **distinct(5, 82, first=-1), "page_table": np.array([[4, 1], [0, 9], [8, 2], [3, 7]])}, note="many tokens, pages of heads; some places do not exist"),
    Case({"T": 3, **_SMALL, "A": 1}, {"qkv": "f32", "q": "f32", "k_out": "f32", "v_out": "f32", "pos": "i32", "inv_freq": "f32", "shift": "i32"},
         ranges={"pos": (0, 2048), "shift": (-1024, 1024)}, values=_FREQ, note="angles at other positions than the cache's"),
    Case(cached(9, T=6, B=2, A=3), {**_CACHED, "q_norm": "bf16", "k_norm": "bf16", "shift": "i32", "axis": "i32"}, ranges={"shift": (-4, 64)},
         values={**_FREQ, **distinct(2, 9), "axis": np.where(np.arange(32) < 24, np.arange(32) % 3, 0)}, note="M-RoPE: pairs by time, line and column in turn"),
    Case(cached(300, T=260, Hq=3, Hkv=1, D=128, R=64, B=1, A=3), {**{k: d for k, d in _CACHED.items() if k != "slot"}, "k_norm": "f32", "shift": "i32", "axis": "i32", "rows": "i32"}, distributions=("normal",), ranges={"shift": (-64, 64)}, rows=257,
         values={**_FREQ, "pos": np.arange(260) + 7, "axis": np.arange(64) % 5 - 1}, note="many tokens; some axes are not there"),
    # Angles that are made.
    Case({"T": 3, **_SMALL}, {"qkv": "f32", "q": "f32", "k_out": "f32", "v_out": "f32", "angles": "f32"}, {"style": "interleaved"}, values=_ANGLES, note="no positions"),
    Case(cached(9, T=6, B=2, D=128, R=64), {**_TURNED, "q_norm": "bf16", "k_norm": "bf16", "rows": "i32"}, values={**_ANGLES, **distinct(2, 9)}, rows=5),
    Case(cached(5, "hnd", Hkv=3, T=4, Hq=3, D=40, R=7, B=2), {**_TURNED, "k_cache": "e4m3", "v_cache": "e4m3"}, HND, values={**_ANGLES, **distinct(3, 6, first=-1)}, note="part of a head turns"),
    Case(cached(300, T=260, Hq=3, Hkv=1, D=256, R=128, B=1), {k: d for k, d in _TURNED.items() if k != "slot"}, distributions=("normal",), values={**_ANGLES, "pos": np.arange(260) + 7}, note="many tokens"),
    Case(cached(6, T=0, B=1), _CACHED, values={**_FREQ, **distinct(1, 6)}),
]


def fit(d):
    if d.has("k_cache") if d.chance(0.7) else d.chance(0.5):
        d.add("k_cache", "v_cache")
        d.drop("k_out", "v_out")
    else:
        d.drop("k_cache", "v_cache", "slot", "page_table")
        d.add("k_out", "v_out")
    if d.has("angles"):
        d.drop("inv_freq")
        d.attrs.pop("attn_factor", None)
    if d.has("k_cache") or d.has("inv_freq"):
        d.add("pos")
    heads_and_rotation(d)
    if d.attr("norm_plus_one") and not (d.has("q_norm") or d.has("k_norm")):
        d.attrs.pop("norm_plus_one")
    shifted(d)


def shifted(d):
    """shift wants angles; several rows of it want an axis a pair."""
    if not d.has("inv_freq"):
        d.drop("shift")
    if not d.has("shift"):
        d.drop("axis")
    elif not d.has("axis"):
        d.dims["A"] = 1


def turns(d, rng):
    """Values of shift and axis, of which some are of no row."""
    out = {"shift": rng.integers(-64, 64, (d.dims["A"], d.dims["T"]))} if d.has("shift") else {}
    return out | ({"axis": rng.integers(-1, d.dims["A"] + 1, d.dims["R"])} if d.has("axis") else {})


def heads_and_rotation(d):
    d.heads()
    d.dims["D"] = min(d.dims["D"], 512)
    d.dims["R"] = d.pick((d.dims["D"] // 2, d.dims["D"] // 2, max(d.dims["D"] // 4, 1), max(1, d.dims["D"] // 2 - 1), 8 if d.dims["D"] >= 16 else 1))
    if d.has("k_cache"):
        slots.fit(d, ragged=False)
        d.dims["L"], d.dims["Hc"] = (d.dims["Hkv"], d.dims["L"]) if d.attr("layout") == "hnd" else (d.dims["L"], d.dims["Hkv"])
        d.shapes["qkv"] = (d.dims["T"], (d.dims["Hq"] + 2 * d.dims["Hkv"]) * d.dims["D"])


def contents(d, rng):
    out = ({"inv_freq": frequencies(rng, (d.dims["R"],))} if d.has("inv_freq") else {}) | turns(d, rng)
    if d.has("angles"):
        out["angles"] = drawn_angles(rng, (d.dims["T"], 2, d.dims["R"]))
    if d.has("k_cache"):
        return out | distinct_rows(d, rng, slots.contents(d, rng, "Hc" if d.attr("layout") == "hnd" else "L"))
    return out | {"pos": rng.integers(0, 2048, d.dims["T"])}


DOMAIN = Domain(fit=fit, contents=contents, attrs={"attn_factor": (1.1, 0.7), "eps": (1e-5,)}, sizes={"R": (8,), "A": (1, 2, 3)}, weight=2, indices=("slot", "page_table"))
