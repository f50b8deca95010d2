"""rope_attention's rules between ports, and its two parts beside the whole, on the host."""
import numpy as np
import pytest

from vivace import ops
from vivace.errors import InvalidArgumentError, InvalidDTypeError, InvalidShapeError


def arrays(T=3, Hq=4, Hkv=2, D=16, S=3, L=20, **more):
    rng = np.random.default_rng(7)
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    return {"qkv": f(T, (Hq + 2 * Hkv) * D), "q": np.empty((T, Hq, D), np.float32), "k_cache": f(S, L, Hkv, D), "v_cache": f(S, L, Hkv, D), "pos": np.array([5, 6, 4], np.int32)[:T],
            "slot": np.array([1, 1, 1], np.int32)[:T], "inv_freq": np.float32(1e4) ** -(np.arange(D // 2, dtype=np.float32) * 2 / D), "out": np.full((T, Hq, D), 7, np.float32), **more}


@pytest.mark.parametrize("slot", [[0, 1, 2], [1, 1, 1]])
@pytest.mark.parametrize("window", [0, 2])
def test_is_qkv_rope_and_attention(slot, window):
    """Tokens of one slot, out of order, see each other as their positions say."""
    given = arrays(slot=np.array(slot, np.int32), q_norm=np.ones(16, np.float32), lse=np.empty((3, 4), np.float32))
    caches, out, lse = [given[p].copy() for p in ("k_cache", "v_cache")], np.empty_like(given["out"]), np.empty_like(given["lse"])
    rope = {k: given[k] for k in ("qkv", "q", "pos", "slot", "inv_freq", "q_norm")}
    ops.qkv_rope(**rope, k_cache=caches[0], v_cache=caches[1], style="interleaved", eps=1e-5)
    ops.attention(q=given["q"], k=caches[0], v=caches[1], pos=given["pos"], slot=given["slot"], out=out, lse=lse, window=window, scale=0.3)
    ops.rope_attention(**given, style="interleaved", eps=1e-5, window=window, scale=0.3)
    assert np.array_equal(given["out"], out) and np.array_equal(given["lse"], lse) and np.array_equal(given["k_cache"], caches[0]) and np.array_equal(given["v_cache"], caches[1])


@pytest.mark.parametrize("change, error, says", [
    ({"qkv": np.zeros((3, 100), np.float32)}, InvalidShapeError, "qkv"),
    ({"window": -1}, InvalidArgumentError, "window"),
    ({"softcap": -1.0}, InvalidArgumentError, "softcap"),
    ({"eps": -1.0}, InvalidArgumentError, "eps"),
    ({"norm_plus_one": True}, InvalidArgumentError, "norm_plus_one needs"),
    ({"inv_freq": np.ones(9, np.float32)}, InvalidShapeError, "2R"),
    ({"out_scale": np.ones(1, np.float32)}, InvalidArgumentError, "out_scale"),
    ({"out": np.zeros((3, 4, 16), np.float16)}, InvalidDTypeError, "out"),
    ({"k_cache": np.zeros((3, 20, 3, 16), np.float32)}, InvalidShapeError, "v_cache"),
])
def test_what_a_part_refuses(change, error, says):
    """Before anything is written, with the op's name before the part's."""
    given = arrays() | change
    before = given["v_cache"].copy()
    with pytest.raises(error, match=f"rope_attention.*{says}"):
        ops.rope_attention(**given)
    assert np.array_equal(given["v_cache"], before)
