"""Reference of `kv_append`: which rows of the cache change, and to what."""
import numpy as np

from tests.ref.common import Case, round_to


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


def append(cache, new, pos, slot, page_table, dtype):
    held, block, place = cache_rows(cache, pos, slot, page_table)
    out = cache.copy()
    out[block[held], place[held]] = round_to(new[held], dtype)
    return out


def ref(k, v, pos, k_cache, v_cache, slot=None, page_table=None, *, dtypes):
    return {"k_cache": append(k_cache, k, pos, slot, page_table, dtypes["k_cache"]),
            "v_cache": append(v_cache, v, pos, slot, page_table, dtypes["v_cache"])}


def bound(port, value, dtype, inputs):
    """One rounding of a value that f32 holds: exact."""
    return np.zeros_like(value)


def distinct(slots, positions, first=0):
    """Values of pos and slot that name each row at most once, some outside of the cache."""
    def pairs(seed):
        rng = np.random.default_rng(seed)
        return rng.permutation([(s, p) for s in range(first, slots) for p in range(first, positions)])
    return {"slot": lambda rng, shape: pairs(slots)[: shape[0], 0], "pos": lambda rng, shape: pairs(slots)[: shape[0], 1]}


_PORTS = {"k": "bf16", "v": "bf16", "pos": "i32", "slot": "i32", "k_cache": "bf16", "v_cache": "bf16"}
CASES = [
    Case({"T": 4, "Hkv": 2, "D": 16, "B": 1, "L": 8}, {k: "f32" if d == "bf16" else d for k, d in _PORTS.items() if k != "slot"},
         values={"pos": np.array([7, 0, 3, 4])}),
    Case({"T": 9, "Hkv": 3, "D": 100, "B": 3, "L": 5}, _PORTS, values=distinct(4, 7, first=-1), note="some slots and positions do not exist"),
    Case({"T": 6, "Hkv": 1, "D": 64, "B": 2, "L": 9}, {**_PORTS, "k_cache": "e4m3", "v_cache": "e4m3"}, values=distinct(2, 9)),
    Case({"T": 6, "Hkv": 2, "D": 32, "B": 2, "L": 9}, {**_PORTS, "k": "f32", "v": "f32", "k_cache": "f16", "v_cache": "f16", "rows": "i32"},
         values=distinct(2, 9), rows=4),
    Case({"T": 9, "Hkv": 2, "D": 24, "B": 7, "L": 4, "S": 3, "P": 2}, {**_PORTS, "page_table": "i32"},
         values={**distinct(4, 10, first=-1), "page_table": np.array([[5, 2], [0, -1], [7, 6]])}, note="paged; some pages do not exist"),
    Case({"T": 5, "Hkv": 1, "D": 64, "B": 4, "L": 3, "S": 1, "P": 4}, {**{k: "f16" for k in ("k", "v", "k_cache", "v_cache")}, "pos": "i32", "page_table": "i32"},
         values={"pos": np.array([11, 0, 4, 6, 12]), "page_table": np.array([[3, 1, 0, 2]])}),
    Case({"T": 0, "Hkv": 2, "D": 16, "B": 1, "L": 8}, {k: "f16" if d == "bf16" else d for k, d in _PORTS.items()}, values=distinct(1, 8)),
]
