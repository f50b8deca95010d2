"""Reference of `qkv_rope`: float64, the formula of vivace/ops/qkv_rope.h."""
import numpy as np

from tests.ref.common import Case, rounding, round_to
from tests.ref.kv_append import append, cache_rows, distinct
from tests.ref.rope import frequencies, rotate


def ref(qkv, k_cache=None, v_cache=None, pos=None, slot=None, inv_freq=None, q_norm=None, k_norm=None, page_table=None, *,
        style="half", attn_factor=1.0, eps=1e-6, norm_plus_one=False, dtypes, dims):
    Hq, Hkv, D = dims["Hq"], dims["Hkv"], dims["D"]
    heads = qkv.reshape(len(qkv), Hq + 2 * Hkv, D)

    def prepare(x, weight):
        if weight is not None:
            x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (weight + (1 if norm_plus_one else 0))
        return x if inv_freq is None else rotate(x, inv_freq, pos, style, attn_factor)

    k, v = prepare(heads[:, Hq : Hq + Hkv], k_norm), heads[:, Hq + Hkv :]
    written = {"q": round_to(prepare(heads[:, :Hq], q_norm), dtypes["q"])}
    for name, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if cache is None:
            written[f"{name}_out"] = round_to(new, dtypes[f"{name}_out"])
        else:
            written[f"{name}_cache"] = append(cache, new, pos, slot, page_table, dtypes[f"{name}_cache"])
    return written


def bound(port, value, dtype, inputs):
    """A rotation keeps a pair's length, so that a head's largest value measures its terms: 3e-6 of it
    covers the roundings of the norm (a sum of D <= 128 squares), of sine and cosine, and of the rotation.

    Rows of the caches that the call does not name stay as they were, to the bit; so does v.
    """
    if port in ("v_out", "v_cache"):
        return np.zeros_like(value)
    allowed = 3e-6 * np.abs(value).max(-1, keepdims=True, initial=0) + rounding(value, dtype)
    if port == "k_cache":
        held, slot, pos = cache_rows(value, inputs["pos"], inputs.get("slot"), inputs.get("page_table"))
        named = np.zeros(value.shape[:2], bool)
        named[slot[held], pos[held]] = True
        allowed = np.where(named[:, :, None, None], allowed, 0.0)
    return allowed


_SMALL = {"Hq": 4, "Hkv": 2, "D": 64, "R": 32}
_FREQ = {"inv_freq": frequencies}
_CACHED = {"qkv": "bf16", "q": "bf16", "k_cache": "bf16", "v_cache": "bf16", "pos": "i32", "slot": "i32", "inv_freq": "f32"}
CASES = [
    Case({"T": 3, **_SMALL}, {"qkv": "f32", "q": "f32", "k_out": "f32", "v_out": "f32", "pos": "i32", "inv_freq": "f32"},
         ranges={"pos": (0, 2048)}, values=_FREQ),
    Case({"T": 4, "Hq": 3, "Hkv": 1, "D": 40}, {"qkv": "bf16", "q": "bf16", "k_out": "bf16", "v_out": "bf16"}, note="a plain split"),
    Case({"T": 5, **_SMALL, "B": 2, "L": 7}, _CACHED, values={**_FREQ, **distinct(2, 7)}),
    Case({"T": 7, **_SMALL, "B": 2, "L": 5}, {**_CACHED, "q_norm": "bf16", "k_norm": "f32"}, {"style": "interleaved", "eps": 1e-5},
         values={**_FREQ, **distinct(3, 6, first=-1)}, note="some slots and positions do not exist"),
    Case({"T": 6, "Hq": 2, "Hkv": 2, "D": 128, "R": 16, "B": 1, "L": 9},
         {"qkv": "f16", "q": "f16", "k_cache": "e4m3", "v_cache": "e4m3", "pos": "i32", "inv_freq": "f32", "k_norm": "f16", "rows": "i32"},
         {"norm_plus_one": True, "attn_factor": 1.1}, values={**_FREQ, "pos": np.array([8, 0, 3, 4, 1, 7])}, rows=4),
    Case({"T": 4, **_SMALL, "B": 1, "L": 6}, {k: "f32" if d == "bf16" else d for k, d in _CACHED.items() if k not in ("slot", "inv_freq")},
         values={"pos": np.array([5, 1, 0, 2])}, note="positions for the cache alone, no rotation"),
    Case({"T": 3, **_SMALL, "B": 2, "L": 4}, {k: "f16" if d == "bf16" else d for k, d in {**_CACHED, "q_norm": "f16"}.items()} | {"k_norm": "bf16"},
         values={**_FREQ, **distinct(2, 4)}),
    Case({"T": 3, **_SMALL, "B": 2, "L": 4}, {**_CACHED, "q_norm": "f32"}, values={**_FREQ, **distinct(2, 4)}),
    Case({"T": 8, **_SMALL, "B": 5, "L": 4, "S": 2, "P": 2}, {**_CACHED, "q_norm": "bf16", "k_norm": "bf16", "page_table": "i32"},
         values={**_FREQ, **distinct(3, 9, first=-1), "page_table": np.array([[4, 1], [0, 5]])}, note="paged; some places do not exist"),
    Case({"T": 0, **_SMALL, "B": 1, "L": 6}, _CACHED, values={**_FREQ, **distinct(1, 6)}),
]
