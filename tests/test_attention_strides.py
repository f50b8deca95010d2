"""Attention whose keys and values stay in the rows of the product that made them: the bits of dense copies."""
import ml_dtypes
import numpy as np
import pytest

from vivace import ops

FORMS = {  # rows, slots of as many rows, query and kv heads, head size, what else is given
    "windows": (96, 3, 4, 4, 64, {"mask": "full"}),
    "one window": (70, 1, 6, 2, 72, {}),
    "ragged": (90, 0, 4, 4, 40, {"mask": "full"}),
    "steps": (4, 4, 8, 2, 64, {"mask": "full", "window": 3}),
    "soft cap": (33, 1, 2, 1, 128, {"softcap": 4.0}),
}


@pytest.mark.parametrize("dtype", ["f4", ml_dtypes.bfloat16, "f2"])
@pytest.mark.parametrize("form", FORMS)
def test_of_one_product(form, dtype):
    T, slots, Hq, Hkv, D, attrs = FORMS[form]
    rng = np.random.default_rng(T)
    qkv = rng.standard_normal((T, (Hq + 2 * Hkv) * D)).astype(dtype)
    before = qkv.tobytes()
    q, k, v = (x.reshape(T, -1, D) for x in np.split(qkv, [Hq * D, (Hq + Hkv) * D], 1))
    given = {}
    if slots == 0:
        given = {"k_offsets": np.array([0, 31, 31, T], np.int32), "slot": np.repeat([0, 2], [31, T - 31]).astype(np.int32)}
    elif slots > 1:
        given = {"slot": np.arange(T, dtype=np.int32) // (T // slots)}
    by_slot = lambda x: x.reshape(max(slots, 1), -1, *x.shape[1:])  # noqa: E731
    results = []
    for copy in (np.asarray, np.ascontiguousarray):
        parts = [copy(q), by_slot(copy(k)), by_slot(copy(v))]
        assert all(np.shares_memory(x, qkv) for x in parts) == (copy is np.asarray)
        out, lse = np.full((T, Hq, D), np.nan, dtype), np.full((T, Hq), np.nan, "f4")
        ops.attention(q=parts[0], k=parts[1], v=parts[2], out=out, lse=lse, **given, **attrs)
        results.append((out.tobytes(), lse.tobytes()))
        assert np.isfinite(out.astype("f4")).all()
    assert results[0] == results[1] and qkv.tobytes() == before
