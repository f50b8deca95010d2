"""Reference of `kv_append`: which rows of the cache change, and to what."""
import numpy as np

from tests.differential import slots
from tests.differential.domain import Domain, HEADS
from tests.ref.common import Case, nearer, round_to


def cache_rows(cache, pos, slot, page_table=None):
    """Per token: whether the cache has a row for it, and which (block and place)."""
    slot = np.zeros_like(pos) if slot is None else slot
    blocks, places = cache.shape[:2]
    if page_table is None:
        block, place, held = slot, pos, (slot >= 0) & (slot < blocks) & (pos >= 0) & (pos < places)
    else:
        slots, pages = page_table.shape
        held = (slot >= 0) & (slot < slots) & (pos >= 0) & (pos < pages * places)
        block, place = page_table[np.where(held, slot, 0), np.where(held, pos, 0) // places], pos % places
        held = held & (block >= 0) & (block < blocks)
    return held, block, place


def places_first(cache, layout):
    """A view [B, L, Hkv, D] of a cache in either layout."""
    return cache.swapaxes(1, 2) if layout == "hnd" else cache


def append(cache, new, pos, slot, page_table, dtype, layout="nhd"):
    out = cache.copy()
    rows = places_first(out, layout)
    held, block, place = cache_rows(rows, pos, slot, page_table)
    rows[block[held], place[held]] = round_to(new[held], dtype)
    return out


def ref(k, v, pos, k_cache, v_cache, slot=None, page_table=None, *, layout="nhd", dtypes):
    return {"k_cache": append(k_cache, k, pos, slot, page_table, dtypes["k_cache"], layout),
            "v_cache": append(v_cache, v, pos, slot, page_table, dtypes["v_cache"], layout)}


def chosen(port, got, want, inputs):
    return of_either(got, want, inputs[port[0]], inputs, inputs.case.dtypes[port])


def of_either(got, want, new, inputs, dtype):
    """A cache in which, where several tokens have one place, each element is the nearest to what came of theirs."""
    layout = inputs.attrs.get("layout", "nhd")
    want = want.copy()
    rows, came = places_first(want, layout), places_first(got, layout)
    held, block, place = cache_rows(rows, inputs["pos"], inputs.get("slot"), inputs.get("page_table"))
    _, which, count = np.unique(block * rows.shape[1] + place, return_inverse=True, return_counts=True)
    for t in np.flatnonzero(held & (count[which] > 1)):
        at = block[t], place[t]
        rows[at] = nearer(came[at], rows[at], round_to(new[t], dtype))
    return want


def bound(port, value, dtype, inputs):
    """One rounding of a value that f32 holds: exact."""
    return np.zeros_like(value)


def distinct(slots, positions, first=0):
    """Values of pos and slot that name each row at most once, some outside of the cache."""
    def pairs(seed):
        rng = np.random.default_rng(seed)
        return rng.permutation([(s, p) for s in range(first, slots) for p in range(first, positions)])
    return {"slot": lambda rng, shape: pairs(slots)[: shape[0], 0], "pos": lambda rng, shape: pairs(slots)[: shape[0], 1]}


def heads(Hkv, L, layout="nhd", **dims):
    """Dims of caches of Hkv heads and L places a block. Axes are named after nhd: with hnd L counts heads and Hc places."""
    return {**dims, "Hkv": Hkv, **({"L": Hkv, "Hc": L} if layout == "hnd" else {"L": L, "Hc": Hkv})}


_PORTS = {"k": "bf16", "v": "bf16", "pos": "i32", "slot": "i32", "k_cache": "bf16", "v_cache": "bf16"}
HND = {"layout": "hnd"}
CASES = [
    Case(heads(2, 8, T=4, D=16, B=1), {k: "f32" if d == "bf16" else d for k, d in _PORTS.items() if k != "slot"},
         values={"pos": np.array([7, 0, 3, 4])}),
    Case(heads(3, 5, T=9, D=100, B=3), _PORTS, values=distinct(4, 7, first=-1), note="some slots and positions do not exist"),
    Case(heads(1, 9, T=6, D=64, B=2), {**_PORTS, "k_cache": "e4m3", "v_cache": "e4m3"}, values=distinct(2, 9)),
    Case(heads(2, 9, T=6, D=32, B=2), {**_PORTS, "k": "f32", "v": "f32", "k_cache": "f16", "v_cache": "f16", "rows": "i32"},
         values=distinct(2, 9), rows=4),
    Case(heads(2, 4, T=9, D=24, B=7, S=3, P=2), {**_PORTS, "page_table": "i32"},
         values={**distinct(4, 10, first=-1), "page_table": np.array([[5, 2], [0, -1], [7, 6]])}, note="paged; some pages do not exist"),
    Case(heads(1, 3, T=5, D=64, B=4, S=1, P=4), {**{k: "f16" for k in ("k", "v", "k_cache", "v_cache")}, "pos": "i32", "page_table": "i32"},
         values={"pos": np.array([11, 0, 4, 6, 12]), "page_table": np.array([[3, 1, 0, 2]])}),
    Case(heads(2, 9, "hnd", T=9, D=64, B=3), _PORTS, HND, values=distinct(4, 11, first=-1), note="heads first; some slots and positions do not exist"),
    Case(heads(3, 5, "hnd", T=7, D=36, B=2), {**_PORTS, "k": "f16", "v": "f16", "k_cache": "e4m3", "v_cache": "e4m3"}, HND, values=distinct(2, 5), note="heads first, no whole 16 bytes"),
    Case(heads(5, 4, "hnd", T=9, D=128, B=7, S=3, P=2), {**_PORTS, "k_cache": "e4m3", "v_cache": "e4m3", "page_table": "i32", "rows": "i32"}, HND, rows=8,
         values={**distinct(4, 10, first=-1), "page_table": np.array([[5, 2], [0, -1], [7, 6]])}, note="pages of heads; some do not exist"),
    Case(heads(2, 4, "hnd", T=6, D=72, B=4, S=2, P=2), {k: "f16" if d == "bf16" else d for k, d in _PORTS.items()} | {"page_table": "i32"}, HND,
         values={**distinct(2, 8), "page_table": np.array([[3, 1], [0, 2]])}, note="pages of heads"),
    Case(heads(2, 8, T=0, D=16, B=1), {k: "f16" if d == "bf16" else d for k, d in _PORTS.items()}, values=distinct(1, 8)),
]


def fit(d):
    """Axes of caches are named after nhd: with hnd L counts heads and Hc places."""
    slots.fit(d, ragged=False)
    d.dims["Hkv"] = d.pick(HEADS)
    d.dims["L"], d.dims["Hc"] = (d.dims["Hkv"], d.dims["L"]) if d.attr("layout") == "hnd" else (d.dims["L"], d.dims["Hkv"])


def contents(d, rng):
    return distinct_rows(d, rng, slots.contents(d, rng, "Hc" if d.attr("layout") == "hnd" else "L"))


def distinct_rows(d, rng, values):
    """Of tokens that name one row of the cache all but the first name none: either may remain. Pages are no two slots'."""
    hnd = any(a["name"] == "layout" for a in d.row["attrs"]) and d.attr("layout") == "hnd"
    blocks, places = d.dims["B"], d.dims["Hc" if hnd else "L"]
    pos = values["pos"]
    slot = values["slot"] if d.has("slot") else np.zeros_like(pos)
    if d.has("page_table"):
        table = values["page_table"]
        held = (slot >= 0) & (slot < table.shape[0]) & (pos >= 0) & (pos < table.shape[1] * places)
        block, place = table[np.where(held, slot, 0), np.where(held, pos, 0) // places], pos % places
        held &= (block >= 0) & (block < blocks)
    else:
        block, place, held = slot, pos, (slot >= 0) & (slot < blocks) & (pos >= 0) & (pos < places)
    rows = np.where(held, block * places + place, -1 - np.arange(len(pos)))
    first = np.zeros(len(pos), bool)
    first[np.unique(rows, return_index=True)[1]] = True
    values["pos"] = np.where(first, pos, -1)
    return values


DOMAIN = Domain(fit=fit, contents=contents, indices=("pos", "slot", "page_table"))
