"""Invariance classes that ops declare; tests/gpu holds their kernels to them."""
import numpy as np

from vivace import _core


def gemm(T):
    x, w, out = (np.zeros(s, np.float32) for s in ((T, 64), (32, 64), (T, 32)))
    return _core.row_class("gemm", x=x, w=w, out=out)


def attention(T, slots=0):
    q, kv, out = np.zeros((T, 4, 64), np.float16), np.zeros((max(slots, 1), 16, 2, 64), np.float16), np.zeros((T, 4, 64), np.float16)
    more = {"slot": np.zeros(T, np.int32)} if slots else {}
    return _core.row_class("attention", q=q, k=kv, v=kv.copy(), out=out, **more)


def test_decode_steps_are_one_class():
    """Steps of up to 64 tokens, each of a sequence of its own, must not depend on how many there are."""
    assert len({gemm(T) for T in range(1, 65)}) == 1
    assert len({attention(T, slots=64) for T in range(1, 65)}) == 1
    assert len({attention(T, slots=4) for T in range(1, 65)}) == 1
    assert gemm(64) != gemm(65) == gemm(500)
    assert attention(64, slots=4) != attention(65, slots=4) == attention(500, slots=4)


def test_classes_of_one_sequence():
    """A few queries of one sequence are a decode step, tens of them a chunk, more a prefill."""
    kinds = [attention(T) for T in (1, 16, 17, 64, 65, 500)]
    assert kinds[0] == kinds[1] == attention(3, slots=4) and kinds[2] == kinds[3] and kinds[4] == kinds[5] and len(set(kinds)) == 3
    assert [attention(T, slots=1) for T in (1, 16, 17, 64, 65, 500)] == kinds  # slots are given, but there is one


def test_most_ops_have_one_class():
    for T in (1, 64, 65, 500):
        x = np.zeros((T, 8), np.float32)
        assert _core.row_class("norm", x=x, out=np.zeros_like(x)) == 0
    assert _core.row_class("gated_mlp", x=np.zeros((2, 8), np.float32), w_gate=np.zeros((4, 8), np.float32), w_up=np.zeros((4, 8), np.float32),
                           w_down=np.zeros((8, 4), np.float32), out=np.zeros((2, 8), np.float32), gate_up=np.zeros((2, 8), np.float32),
                           hidden=np.zeros((2, 4), np.float32)) is None


def test_rows_off_16_bytes_are_another_class():
    q, kv, out = np.zeros((3, 4, 64), np.float16), np.zeros((1, 16, 2, 64), np.float16), np.zeros((3, 4, 64), np.float16)
    off = np.zeros(q.size + 1, np.float16)[1:].reshape(q.shape)
    assert _core.row_class("attention", q=off, k=kv, v=kv.copy(), out=out) != _core.row_class("attention", q=q, k=kv, v=kv.copy(), out=out)
