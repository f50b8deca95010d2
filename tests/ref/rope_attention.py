"""Reference of `rope_attention`: the references of qkv_rope and attention, one after the other, as vivace/ops/rope_attention.h says."""
import numpy as np

from tests.differential import slots
from tests.differential.domain import Domain
from tests.ref import attention, qkv_rope
from tests.ref.common import Case, Inputs
from tests.ref.kv_append import HND, heads
from tests.ref.rope import frequencies

SCRATCH = ("q", "words")
ROPE_ATTRS, ATTENTION_ATTRS = ("style", "attn_factor", "eps", "norm_plus_one", "layout"), ("layout", "window", "softcap", "scale")


def _parts(inputs, attrs, dtypes, dims):
    """What qkv_rope writes; attention's inputs, attributes and dtypes."""
    given = {k: v for k, v in inputs.items() if k not in ("q", "sinks", "lse", "out", "out_scale", "words", "rows")}
    made = qkv_rope.ref(**given, **{k: v for k, v in attrs.items() if k in ROPE_ATTRS}, dtypes=dtypes, dims=dims)
    of = {"q": made["q"], "k": made["k_cache"], "v": made["v_cache"]} | {k: inputs[k] for k in ("pos", "slot", "page_table", "sinks", "out_scale") if k in inputs}
    return given, made, of, {k: v for k, v in attrs.items() if k in ATTENTION_ATTRS}, dtypes | {"k": dtypes["k_cache"], "v": dtypes["v_cache"]}


def ref(*, dtypes, dims, style="half", attn_factor=1.0, eps=1e-6, norm_plus_one=False, layout="nhd", window=0, softcap=0.0, scale=0.0, stable=False, **inputs):
    attrs = {"style": style, "attn_factor": attn_factor, "eps": eps, "norm_plus_one": norm_plus_one, "layout": layout, "window": window, "softcap": softcap, "scale": scale}
    _, made, given, kept, of = _parts(inputs, attrs, dtypes, dims)
    return attention.ref(**given, **kept, dtypes=of) | {k: made[k] for k in ("k_cache", "v_cache")}


def bound(port, value, dtype, inputs):
    """attention's bound at the reference's queries and keys, and what queries and keys that are off by qkv_rope's bound change: a score by d moves
    out by at most 2 d max|v|, and lse by d. Caches: qkv_rope's bound."""
    dims, dtypes = inputs.case.dims, inputs.case.dtypes
    given, made, of, kept, kinds = _parts(inputs, inputs.attrs, dtypes, dims)
    first = Inputs(given, Case(dims, dtypes, {k: v for k, v in inputs.attrs.items() if k in ROPE_ATTRS}))
    if port in ("k_cache", "v_cache"):
        return qkv_rope.bound(port, value, dtype, first)
    own = attention.bound(port, value, dtype, Inputs(of, Case(dims, kinds, kept)))
    if not value.size:
        return own
    q, k, v = (np.nan_to_num(of[p]) for p in "qkv")  # NaN: places that nobody sees
    off_q = qkv_rope.bound("q", made["q"], dtypes["q"], first)
    off_k = qkv_rope.bound("k_cache", k, dtypes["k_cache"], first).max(initial=0)
    off = abs(kept.get("scale", 0.0) or 1 / np.sqrt(dims["D"])) * (off_q.sum(-1) * np.abs(k).max(initial=0) + np.abs(q).sum(-1) * off_k)
    moved = off if port == "lse" else 2 * np.minimum(off, 1)[..., None] * np.abs(v).max(initial=0)
    return own + (moved / inputs["out_scale"][0] if port == "out" and "out_scale" in inputs else moved)


def unwritten(pos):
    """A cache whose slot s holds no numbers from place pos[s] on: what a decode step finds."""
    def given(rng, shape):
        x = rng.standard_normal(shape)
        for s, p in enumerate(pos):
            x[s, p:] = np.nan
        return x
    return given


def zeros(rng, shape):
    return np.zeros(shape, np.int64)


def case(T, Hq, Hkv, D, L, x, attrs=None, *, S=None, P=None, R=None, slots=None, pos=None, norms=None, cache=None, more=(), values=None, A=None, **options):
    """T tokens of S slots, each its own unless `slots` says otherwise. norms: dtypes of q's and k's, or None for one without."""
    attrs = attrs or {}
    S = S or max(T, 1)
    slots = slots if slots is not None else [(t * 5 + 2) % S for t in range(T)] if S % 5 else [(t + 1) % S for t in range(T)]
    places = L * (P or 1)
    pos = pos if pos is not None else [(t * 37 + places - 1) % places for t in range(T)]
    dtypes = {"qkv": x, "q": x, "k_cache": cache or x, "v_cache": cache or x, "pos": "i32", "slot": "i32", "out": "e4m3" if "out_scale" in more else x} | {p: "i32" if p in ("rows", "shift", "axis", "words") else "f32" for p in more}
    dtypes |= {name: t for name, t in zip(("q_norm", "k_norm"), norms or (None, None)) if t} | ({"page_table": "i32"} if P else {}) | ({"inv_freq": "f32"} if R != 0 else {})
    pages = {"S": S, "P": P, "B": S * P + 1} if P else {"B": S}
    held = {"page_table": np.random.default_rng(S).permutation(S * P).reshape(S, P)} if P else {}
    dims = {"T": T, "Hq": Hq, "D": D, **({"R": R or D // 2} if R != 0 else {}), **({"A": A} if A else {}), **({"N": attention.words_of(T, Hq, Hkv, D)} if "words" in more else {}), **pages, **heads(Hkv, L, attrs.get("layout", "nhd"))}
    return Case(dims, dtypes, attrs, values={"slot": np.array(slots, np.int32), "pos": np.array(pos, np.int32), **({"inv_freq": frequencies} if R != 0 else {}), **held, **({"words": zeros} if "words" in more else {}), **(values or {})},
                **{"distributions": ("normal",), **options})


BF = ("bf16", "bf16")
CASES = [
    case(1, 8, 2, 128, 300, "bf16", norms=BF, distributions=("normal", "large", "tiny", "edges")),
    case(1, 4, 1, 128, 1100, "bf16", norms=BF, pos=[1024], values={"k_cache": unwritten([1024]), "v_cache": unwritten([1024])}, note="places from the token's own on hold no numbers"),
    case(1, 8, 2, 128, 1030, "bf16", pos=[1027]),
    case(3, 8, 2, 64, 260, "bf16", S=4, pos=[0, 127, 128], slots=[2, 0, 1], distributions=("normal", "zero"), note="first places of a sequence and of a block of keys"),
    case(4, 8, 1, 256, 200, "bf16", {"norm_plus_one": True, "scale": 0.07}, norms=("f32", "bf16"), more=("lse",)),
    case(2, 8, 2, 128, 400, "f16", {"style": "interleaved", "attn_factor": 1.2, "eps": 1e-5}, R=16, norms=("f16", None), distributions=("normal", "edges"), note="part of a head turns, one norm"),
    case(5, 4, 2, 128, 64, "bf16", {"window": 70}, S=6, P=9, norms=BF, more=("rows", "lse"), rows=4, note="pages and a window"),
    case(6, 4, 4, 64, 16, "bf16", S=8, P=12, pos=[-1, 0, 15, 16, 191, 192], more=("lse",), note="pages; places that do not exist"),
    case(4, 6, 2, 80, 150, "bf16", S=5, R=0, slots=[4, -1, 5, 0], more=("sinks",), note="three heads of a kv head, no rotation; slots that do not exist"),
    case(8, 16, 2, 64, 2, "bf16", {**HND, "style": "interleaved"}, S=8, norms=(None, "bf16"), pos=[1, 0, 1, 1, 0, 1, 0, 1], note="heads first"),
    case(3, 8, 2, 128, 700, "f16", {"window": 64}, S=3, norms=("f16", "f16"), pos=[699, 300, 64]),
    case(40, 4, 2, 64, 60, "bf16", S=40, note="more tokens than the one kernel takes"),
    case(3, 12, 1, 64, 100, "bf16", S=3, norms=("f32", "f32"), note="more heads of a kv head than the one kernel takes"),
    case(2, 4, 2, 64, 90, "bf16", S=2, cache="e4m3", norms=BF, note="8-bit caches"),
    case(2, 4, 2, 128, 90, "bf16", {"softcap": 8.0}, S=2, norms=BF),
    case(3, 4, 2, 40, 30, "f32", S=3, norms=("f32", "f32"), distributions=("normal", "tiny", "zero"), more=("lse",)),
    case(1, 3, 1, 24, 20, "f32", R=5, cache=None, norms=("f16", "bf16")),
    *(case(t, 8, 2, 128, 200, "bf16", norms=BF, more=("out_scale",), ranges={"out_scale": (0.01, 0.02)}) for t in (1, 3)),
    # Groups that fill a tile of attention's, and several kv heads: eight heads in one kernel, more in two.
    case(4, 16, 2, 128, 200, "bf16", S=4, norms=BF),
    case(3, 32, 2, 64, 16, "f16", S=3, P=10, more=("lse",)),
    case(3, 2 * 32, 2, 64, 140, "bf16", HND, S=3),
    case(5, 32, 2, 64, 150, "bf16", S=6, norms=BF, more=("rows",), rows=4),
    case(2, 4, 2, 128, 90, "bf16", S=2, norms=BF, A=1, more=("shift",), ranges={"shift": (-64, 0)}, note="angles behind the cache's positions"),
    case(7, 4, 2, 64, 60, "f32", S=3, P=2, slots=[0, 0, 0, 1, 2, 2, 2], pos=[4, 5, 6, 20, 0, 1, 2], norms=("f32", "f32"), A=3, more=("shift", "axis"), ranges={"shift": (-4, 64)}, values={"axis": np.arange(32) % 3}, note="M-RoPE in pages"),
    case(0, 4, 2, 64, 30, "bf16"),
    # Places and the past may be read ahead: one sequence, whose first block is known before its place is, slots, pages, windows, rows that are not there.
    *(case(1, 4, 1, 128, L, "bf16", {"stable": True}, norms=BF, pos=[p], values={"k_cache": unwritten([p]), "v_cache": unwritten([p])}) for L, p in ((1100, 0), (900, 127), (1000, 128), (1200, 1024))),
    case(5, 4, 2, 128, 64, "bf16", {"stable": True, "window": 70}, S=6, P=9, norms=BF, more=("rows", "lse"), rows=4),
    case(3, 8, 2, 64, 260, "f16", {"stable": True}, S=4, pos=[0, 127, 200], slots=[2, -1, 1], distributions=("normal", "zero")),
    case(4, 8, 1, 256, 200, "bf16", {"stable": True, "norm_plus_one": True}, norms=("f32", "bf16"), more=("out_scale",), ranges={"out_scale": (0.01, 0.02)}),
    case(12, 4, 2, 64, 60, "bf16", {"stable": True, "softcap": 8.0}, S=12, note="in two parts"),
    # Long caches of one sequence whose few kv heads have several clusters each, in two parts; a short one has one.
    *(case(1, 8, 2, 128, 8800 + i, "bf16", {"stable": True}, norms=BF, pos=[p], more=("words", "lse"), values={"k_cache": unwritten([p]), "v_cache": unwritten([p])}) for i, p in enumerate((4095, 4096, 8790))),
    case(3, 8, 2, 128, 64, "bf16", S=1, P=150, norms=BF, slots=[0, 0, 0], pos=[8190, 8191, 8192], more=("words", "lse"), note="drafts over a long cache of pages"),
    case(1, 8, 2, 128, 300, "bf16", norms=BF, more=("words",)),
]


def fit(d):
    qkv_rope.shifted(d)
    qkv_rope.heads_and_rotation(d)
    d.dtypes["out"] = "e4m3" if d.dtypes["out"] == "e4m3" else d.dtypes["qkv"]
    d.quantized_out(("out_scale",))
    if d.attr("norm_plus_one") and not (d.has("q_norm") or d.has("k_norm")):
        d.attrs.pop("norm_plus_one")
    if d.dtypes["k_cache"] not in ("e4m3", d.dtypes["qkv"]) and d.chance(0.8):
        d.dtypes["k_cache"] = d.dtypes["qkv"]
    if d.has("words"):
        places = slots.places_of(d, "Hc" if d.attr("layout") == "hnd" else "L")
        d.dims["N"] = attention.least_words(slots.slot_count(d), places, *(d.dims[s] for s in ("T", "Hq", "Hkv", "D", "D"))) + d.pick((0, 0, 1, 100))


def contents(d, rng):
    return qkv_rope.contents(d, rng) | ({"words": np.zeros(d.dims["N"], np.int64)} if d.has("words") else {})


DOMAIN = Domain(fit=fit, contents=contents, positive=("out_scale",), attrs={"attn_factor": (1.2,), "eps": (1e-5,), "window": (1, 16, 64, 100), "softcap": (8.0,), "scale": (0.07,)}, sizes={"R": (8,), "A": (1, 2, 3)},
                distributions=("normal", "normal", "edges", "tiny"), work=lambda d: d.dims["T"] * d.dims["Hq"] * (slots.places_of(d, "Hc" if d.attr("layout") == "hnd" else "L") * d.dims["D"] / 4 + 8000), weight=2)
