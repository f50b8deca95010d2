"""Variants of attention on a GPU: every kernel against the NumPy form of the same expressions, C++ text, bad calls."""
import time

import numpy as np
import pytest

import vivace
from vivace import array, attention, ops
from tests.test_attention_variant import documented
from tests.test_gpu_face import gpus

ml_dtypes = pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.skipif(gpus() == 0, reason="no GPU")

TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
# What each rounds: weights to the query's type where they meet values of size ~1, and the output.
BOUND = {"f32": 1e-4, "f16": 4e-3, "bf16": 3e-2}
SHAPES = {
    "decode": {"T": 1, "L": 700, "Hq": 8, "Hkv": 2, "D": 128},
    "tree": {"T": 9, "L": 300, "Hq": 8, "Hkv": 8, "D": 64},
    "chunk": {"T": 50, "L": 333, "Hq": 8, "Hkv": 1, "D": 256},
    "prefill": {"T": 300, "L": 300, "Hq": 4, "Hkv": 2, "D": 128},
    "prefill 64": {"T": 200, "L": 200, "Hq": 2, "Hkv": 2, "D": 64},
    "prefill 72": {"T": 130, "L": 130, "Hq": 2, "Hkv": 1, "D": 72},
}
VARIANTS = {
    "bias and window": ({"logits": "s + bias[h, j % 5]", "mask": "j > pos - 37 and j <= pos"}, {"bias": "f32"}),
    "sigmoid": ({"logits": "sigmoid(s - b)", "softmax": False}, {"b": float}),
    "query, key, output": ({"query": "x * (1 + d % 2)", "key": "x if j % 2 else -x", "output": "x * 2 + h"}, {}),
    "half tensors": ({"logits": "s * half[h] + ids[j // 7, 1] * 0.25"}, {"half": "bf16", "ids": "i32"}),
}


def tensors(dtype, T, L, Hq, Hkv, D, paged):
    rng = np.random.default_rng(T * D)
    draw = lambda *shape: rng.standard_normal(shape, np.float32).astype(TYPES[dtype])  # noqa: E731
    x = {"q": draw(T, Hq, D), "k": draw(1, L, Hkv, D), "v": draw(1, L, Hkv, D), "pos": np.arange(L - T, L, dtype=np.int32), "length": np.array([L - 3], np.int32)}
    if paged:
        pages = rng.permutation(L // 10 + 1)[: L // 10].astype(np.int32)
        k, v = (np.full((L // 10 + 1, 10, Hkv, D), np.nan, np.float32).astype(TYPES[dtype]) for _ in "kv")
        for to, of in ((k, x["k"]), (v, x["v"])):
            to[pages] = of[0, : L // 10 * 10].reshape(-1, 10, Hkv, D)
        # A page of NaN that no table names: reading it shows.
        x |= {"k": k, "v": v, "page_table": pages[None], "length": np.array([L // 10 * 10 - 3], np.int32)}
    return x


def up(x):
    return {n: array.from_numpy(a) if isinstance(a, np.ndarray) else a for n, a in x.items()}


def run_both(variant, x, out, settings):
    want = np.zeros(x["q"].shape, np.float32)
    variant(**{n: a.astype(np.float32) if a.dtype in TYPES.values() and n in "qkv" else a for n, a in x.items()}, out=want, **settings)
    device = array.from_numpy(out)
    arguments = up(x | settings)
    variant(**arguments, out=device)
    return device.numpy().astype(np.float32), want


@pytest.mark.parametrize("paged", [False, True], ids=["dense", "paged"])
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("shape, dtype", [*((s, "bf16") for s in SHAPES), *((s, d) for s in ("decode", "prefill") for d in ("f16", "f32"))])
def test_device_is_host(shape, name, dtype, paged):
    hooks, kinds = VARIANTS[name]
    rng = np.random.default_rng(5)
    values = {"bias": rng.standard_normal((8, 5), np.float32), "b": 1.25, "half": np.linspace(0.5, 2, 8).astype(TYPES["bf16"]),
              "ids": rng.integers(-3, 4, (60, 2)).astype(np.int32)}
    x = tensors(dtype, paged=paged, **SHAPES[shape])
    out = np.zeros(x["q"].shape, TYPES[dtype])
    # The sum over many sigmoids grows, as its rounding does.
    size = 1.0 if hooks.get("softmax", True) else float(SHAPES[shape]["L"]) ** 0.5
    got, want = run_both(attention.variant(**hooks, extra=kinds), x, out, {n: values[n] for n in kinds} | {"mask": "full"})
    scale = np.maximum(size, np.abs(want))
    assert np.isfinite(got).all() and (np.abs(got - want) <= BOUND[dtype] * scale).all(), float((np.abs(got - want) / scale).max())


def pages_variants():
    """Calls each variant of the documentation's page once; {name: seconds until its result was there}."""
    x = up(tensors("bf16", paged=False, **SHAPES["prefill"]))
    out, took = array.zeros(x["q"].shape, "bf16"), {}
    more = {"sigmoid": {"bias": -3.0}, "strided": {"near": 8, "step": 4}, "tree": {"seen": array.from_numpy(np.eye(300, dtype=np.int32)), "start": 0}}
    for name, v in documented().items():
        begin = time.perf_counter()
        v(**x, out=out, mask="full", **more[name])
        assert np.isfinite(out.numpy().astype(np.float32)).all(), name
        took[name] = time.perf_counter() - begin
    return took


def test_the_pages_variants():
    assert set(pages_variants()) == set(documented())  # how long they compile: bench/bench_jit.py, alone on its machine


def test_text_and_expression_agree_bit_for_bit():
    x = up(tensors("bf16", paged=False, **SHAPES["prefill"]))
    strided, out, other = documented()["strided"], array.zeros(x["q"].shape, "bf16"), array.zeros(x["q"].shape, "bf16")
    strided(**x, out=out, mask="full", near=8, step=4)
    attention.variant(mask="j <= pos and (pos - j < 8 or j % 4 == 0)")(**x, out=other, mask="full")
    assert np.array_equal(out.numpy().view(np.uint16), other.numpy().view(np.uint16)) and out.numpy().astype(np.float32).any()
    ops.attention(**x, out=other, mask="full")
    assert not np.array_equal(out.numpy().view(np.uint16), other.numpy().view(np.uint16))


def test_a_bad_call_on_the_device():
    x = up(tensors("bf16", paged=False, **SHAPES["decode"]))
    out = array.zeros(x["q"].shape, "bf16")
    v = attention.variant(logits="s + b[h]", extra={"b": "f32"})
    for b, error in ((np.zeros(8, np.float32), vivace.InvalidDeviceError), (array.zeros((8,), "bf16"), vivace.InvalidDTypeError)):
        with pytest.raises(error, match="extra b"):
            v(**x, out=out, mask="full", b=b)
    with pytest.raises(vivace.CompileError, match="identifier"):
        attention.variant("struct A : Variant { static float logit(const Extra&, float s, const At&) { return typo; } };", "A")(**x, out=out, mask="full")
    assert not out.numpy().astype(np.float32).any()
