"""Reference of `embedding`: float64, the formula of vivace/ops/embedding.h."""
import numpy as np

from tests.differential.domain import block_of, Domain, entries
from tests.ref.common import Case, rounding, round_to


def ref(table, ids, *, scale=1.0, dtypes):
    out = np.full((len(ids), table.shape[1]), np.nan)
    valid = (ids >= 0) & (ids < len(table))
    out[valid] = table[ids[valid]] * float(np.float32(scale))
    return {"out": round_to(out, dtypes["out"])}


def bound(port, value, dtype, inputs):
    """A gather of plain rows with scale 1 is exact where no bits are lost, which `rounding` allows for.

    A block format adds up to four f32 roundings of products as large as the block's largest values.
    """
    magnitude = np.abs(np.nan_to_num(value)).max(-1, keepdims=True, initial=0)
    return 2.0**-21 * magnitude + rounding(value, dtype)


CASES = [
    Case({"T": 5, "H": 64, "V": 11}, {"table": "f32", "ids": "i32", "out": "f32"}, ranges={"ids": (0, 11)}),
    Case({"T": 7, "H": 1000, "V": 40}, {"table": "bf16", "ids": "i32", "out": "bf16"}, {"scale": 31.625}, ranges={"ids": (0, 40)}),
    Case({"T": 9, "H": 300, "V": 5}, {"table": "f16", "ids": "i32", "out": "f32"}, ranges={"ids": (-2, 8)}, note="ids out of range: rows of NaN"),
    Case({"T": 6, "H": 96, "V": 8}, {"table": "bf16", "ids": "i32", "out": "f16", "rows": "i32"}, ranges={"ids": (0, 8)}, rows=4),
    *[Case({"T": 6, "H": 320, "V": 9}, {"table": q, "ids": "i32", "out": "f32"}, ranges={"ids": (0, 9)})
      for q in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")],
    *[Case({"T": 4, "H": 512, "V": 7}, {"table": q, "ids": "i32", "out": "bf16"}, {"scale": 0.5}, ranges={"ids": (-1, 7)})
      for q in ("q4_k", "q5_k", "q6_k")],
    Case({"T": 0, "H": 32, "V": 3}, {"table": "f32", "ids": "i32", "out": "f32"}, ranges={"ids": (0, 3)}),
]


def fit(d):
    d.multiple("H", block_of(d.dtypes["table"]))


DOMAIN = Domain(fit=fit, contents=lambda d, rng: {"ids": entries(rng, d.dims["T"], 0, d.dims["V"])}, attrs={"scale": (0.5, 31.625, -2.0)}, tokens={}, indices=("ids",))
