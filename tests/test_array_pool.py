"""Memory of CPU arrays: counted, with a limit; GPU pools are tests/test_fake_driver.py's and tests/gpu's."""
import gc
import threading

import numpy as np
import pytest

import vivace
from vivace import array


def told():
    gc.collect()
    return array.pool_stats("cpu")


def test_counts_what_is_there():
    before = told()
    a = array.zeros((1000, 1000), device="cpu")
    view = a[10:, ::2].T
    now = told()
    assert now["used"] - before["used"] == 4_000_000 and now["allocations"] == before["allocations"] + 1 and now["cached"] == 0
    del a
    assert told()["used"] == now["used"] and view.shape == (500, 990)  # a view keeps its memory
    del view
    assert told()["used"] == before["used"] and told()["peak_used"] >= now["used"]
    array.pool_reset_peak("cpu")
    assert told()["peak_used"] == told()["used"]
    count = told()["allocations"]
    nothing = array.empty(0, device="cpu")
    assert nothing.size == 0 and told()["allocations"] == count and array.pool_trim("cpu") == 0


def test_rooms_are_multiples_of_64_bytes_and_all_come_back():
    r, before = np.random.default_rng(0), told()["used"]
    kept = [array.empty(int(n), "u8", device="cpu") for n in r.integers(0, 5000, 200)]
    assert told()["used"] - before == sum(-(-a.nbytes // 64) * 64 for a in kept)
    for i in r.permutation(200):
        kept[i].close()
    assert told()["used"] == before


def test_a_limit_refuses_and_leaves_the_rest():
    used = told()["used"]
    array.pool_set_limit(used + (1 << 20), "cpu")
    try:
        a = array.ones(1 << 18, device="cpu")
        failures = told()["failures"]
        with pytest.raises(vivace.OutOfMemoryError, match=rf"bytes of host memory .* their limit is {used + (1 << 20)}"):
            array.zeros(1, device="cpu")
        assert told()["failures"] == failures + 1 and told()["used"] == used + (1 << 20) and float(a[5]) == 1.0
        a.close()
        assert told()["used"] == used and array.zeros(1, device="cpu").shape == (1,)
    finally:
        array.pool_set_limit(0, "cpu")
    assert told()["capacity"] == 0 and array.zeros(1 << 18, device="cpu").shape == (1 << 18,)


def test_threads_never_pass_the_limit_together():
    used = told()["used"]
    array.pool_set_limit(used + 64 * 1000, "cpu")
    array.pool_reset_peak("cpu")
    kept, refused = [[] for _ in range(4)], [0] * 4

    def take(i):
        for _ in range(600):
            try:
                kept[i].append(array.empty(64, "u8", device="cpu"))
            except vivace.OutOfMemoryError:
                refused[i] += 1

    try:
        threads = [threading.Thread(target=take, args=(i,)) for i in range(4)]
        [t.start() for t in threads], [t.join() for t in threads]
        assert array.pool_stats("cpu")["used"] <= used + 64 * 1000 and sum(map(len, kept)) + sum(refused) == 2400 and sum(map(len, kept)) <= 1000
    finally:
        array.pool_set_limit(0, "cpu")


@pytest.mark.parametrize("call, error, said", [
    (lambda: array.pool_set_limit(-1, "cpu"), vivace.InvalidArgumentError, "0 \\(none\\) or more bytes, got -1"),
    (lambda: array.pool_stats("gpu"), vivace.InvalidDeviceError, "no device 'gpu'"),
    (lambda: array.pool_stats(1.5), vivace.InvalidDeviceError, "a name \\(cpu, cuda:1\\) or a GPU's number, got float"),
    (lambda: array.pool_trim(None), vivace.InvalidDeviceError, "array.pool_trim: device is a name"),
    (lambda: array.pool_snapshot("cpu"), vivace.UnsupportedError, "has no names"),
])
def test_bad_calls(call, error, said):
    with pytest.raises(error, match=said):
        call()
