"""Arrays on the CPU against array_api_strict: drawn shapes, strides, dtypes and values, and what both refuse. bf16 against f32."""
import math
import zlib

import array_api_strict as strict
import ml_dtypes
import numpy as np
import pytest

import vivace
from vivace import array as xp

NAMES = {"bool": xp.bool, "uint8": xp.uint8, "uint16": xp.uint16, "uint32": xp.uint32, "uint64": xp.uint64, "int8": xp.int8, "int16": xp.int16,
         "int32": xp.int32, "int64": xp.int64, "float32": xp.float32, "float64": xp.float64}
FLOATS, INTS = ("float32", "float64"), tuple(n for n in NAMES if "int" in n)
UNARY_ALL = ["abs", "negative", "positive", "sign", "square", "ceil", "floor", "trunc", "round", "isnan", "isinf", "isfinite"]
UNARY_FLOAT = ["sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "exp", "expm1", "log", "log1p", "log2",
               "log10", "sqrt", "reciprocal", "signbit"]
BINARY_ALL = ["add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
BINARY_FLOAT = ["divide", "atan2", "hypot", "copysign", "nextafter", "logaddexp", "pow", "floor_divide", "remainder"]
BINARY_INT = ["bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide", "remainder"]


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setattr("vivace.array.creation._default", "cpu")


def drawn(rng, dtype, shape):
    """Values with edges among them, as an array whose strides are those of a random view."""
    wide = [n + int(rng.integers(0, 3)) for n in shape]
    steps = [int(rng.choice([1, 1, 1, 2])) for _ in shape]
    full = [n * s for n, s in zip(wide, steps)]
    if dtype == "bool":
        host = rng.random(full) < 0.5
    elif dtype in FLOATS:
        host = (rng.standard_normal(full) * 10.0 ** rng.integers(-3, 4, full)).astype(dtype)
        flat = host.reshape(-1)
        for i in rng.integers(0, max(flat.size, 1), min(flat.size, 6)):
            flat[i] = rng.choice(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0], dtype))
    else:
        info = np.iinfo(dtype)
        host = rng.integers(info.min, info.max, full, dtype=dtype, endpoint=True)
        host = np.where(rng.random(full) < 0.5, rng.integers(0, 8, full).astype(dtype), host)
    key = tuple(slice(None, n * s, s) for n, s in zip(shape, steps))
    order = rng.permutation(len(shape))
    ours, theirs = xp.asarray(np.ascontiguousarray(host))[key], np.ascontiguousarray(host)[key]
    if len(shape) > 1 and len(set(shape)) == 1 and rng.random() < 0.5:
        ours, theirs = xp.permute_dims(ours, [int(i) for i in order]), theirs.transpose(order)
    if shape and rng.random() < 0.3:
        ours, theirs = xp.flip(ours, axis=0), theirs[::-1]
    return ours, strict.asarray(np.array(theirs))


def shapes(rng):
    rank = int(rng.integers(0, 4))
    return tuple(int(rng.choice([0, 1, 2, 3, 5, 17])) if rng.random() < 0.9 else 40 for _ in range(rank))


def broadcast_of(rng, shape):
    return tuple(1 if rng.random() < 0.25 else n for n in shape)[int(rng.integers(0, len(shape) + 1)) if rng.random() < 0.2 else 0:]


def host(x):
    return x.numpy() if isinstance(x, xp.Array) else np.asarray(x._array)


def same(ours, theirs, ulps=0.0, why=""):
    a, b = host(ours), host(theirs)
    assert a.dtype == b.dtype and a.shape == b.shape, (why, a.dtype, b.dtype, a.shape, b.shape)
    if a.dtype.kind != "f" or ulps == 0:
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), (why, a, b)
        return
    ok = np.isfinite(a) & np.isfinite(b)
    with np.errstate(all="ignore"):
        close = np.abs(a - b) <= ulps * np.spacing(np.maximum(np.abs(b), np.finfo(b.dtype).tiny))
    assert (np.where(ok, close, (a == b) | (np.isnan(a) & np.isnan(b)))).all(), (why, a[~close], b[~close])


def cases(name, n=12):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for _ in range(n):
        yield rng


@pytest.mark.parametrize("name", UNARY_ALL + UNARY_FLOAT + ["bitwise_invert", "logical_not"])
@pytest.mark.filterwarnings("ignore")
def test_unary(name):
    dtypes = {"bitwise_invert": (*INTS, "bool"), "logical_not": ("bool",)}.get(name, INTS + FLOATS if name in UNARY_ALL else FLOATS)
    for rng in cases(name, 30):
        dtype = str(rng.choice(dtypes))
        ours, theirs = drawn(rng, dtype, shapes(rng))
        # libm and NumPy's vector code are each within 2 ulp of the true value, so at most 4 apart.
        same(getattr(xp, name)(ours), getattr(strict, name)(theirs), 4.0 if name in UNARY_FLOAT else 0, (name, dtype))


@pytest.mark.parametrize("name", BINARY_ALL + BINARY_FLOAT + BINARY_INT[:3] + ["floor_divide_int", "remainder_int", "logical_and", "logical_or", "logical_xor"])
@pytest.mark.filterwarnings("ignore")
def test_binary(name):
    short = name.removesuffix("_int")
    dtypes = ("bool",) if name.startswith("logical") else INTS if name in BINARY_INT[:3] or name.endswith("_int") else FLOATS if name in BINARY_FLOAT else INTS + FLOATS
    for rng in cases(name, 40):
        one, two = str(rng.choice(dtypes)), str(rng.choice(dtypes))
        shape = shapes(rng)
        if name == "nextafter":
            two = one
        a, b = drawn(rng, one, broadcast_of(rng, shape)), drawn(rng, two, broadcast_of(rng, shape))
        if name.endswith("_int"):  # x // 0 is 0 here, and undefined there
            b = [m.where(x == 0, m.ones_like(x), x) for m, x in ((xp, b[0]), (strict, b[1]))]
        try:
            want = getattr(strict, short)(a[1], b[1])
        except TypeError:
            with pytest.raises(vivace.InvalidDTypeError):
                getattr(xp, short)(a[0], b[0])
            continue
        if name == "floor_divide" and not (np.isfinite(host(a[1])).all() and np.isfinite(host(b[1])).all()):
            continue  # -1 of x // inf is the standard's -0 or -1: arrays.md says
        same(getattr(xp, short)(a[0], b[0]), want, 4.0 if name in BINARY_FLOAT[:7] else 0, (name, one, two))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "mean", "var", "std", "count_nonzero"])
@pytest.mark.filterwarnings("ignore")
def test_reductions(name):
    dtypes = FLOATS if name in ("mean", "var", "std") else (*INTS, *FLOATS, "bool") if name in ("any", "all", "count_nonzero") else INTS + FLOATS
    for rng in cases(name, 40):
        dtype = str(rng.choice(dtypes))
        shape = tuple(max(n, 1) for n in shapes(rng)) if name in ("max", "min", "argmax", "argmin", "mean", "var", "std") else shapes(rng)
        ours, theirs = drawn(rng, dtype, shape)
        if dtype in FLOATS and name in ("sum", "prod", "mean", "var", "std"):
            ours, theirs = (m.where(m.isfinite(x), x, m.zeros_like(x)) for m, x in ((xp, ours), (strict, theirs)))
            ours, theirs = xp.clip(ours, -4.0, 4.0), strict.clip(theirs, -4.0, 4.0)
        axis = None if not shape or rng.random() < 0.3 else int(rng.integers(-len(shape), len(shape)))
        if axis is not None and name not in ("argmax", "argmin") and rng.random() < 0.3:
            axis = tuple(int(i) for i in rng.permutation(len(shape))[:2])
        keep = bool(rng.random() < 0.5)
        if name == "count_nonzero":
            want = strict.sum(strict.astype(theirs != 0 if dtype != "bool" else theirs, strict.int64), axis=axis, keepdims=keep)
        else:
            want = getattr(strict, name)(theirs, axis=axis, keepdims=keep)
        got = getattr(xp, name)(ours, axis=axis, keepdims=keep)
        if dtype in FLOATS and name in ("sum", "mean", "var", "std", "prod"):
            a, b = host(got), host(want)
            assert a.dtype == b.dtype and a.shape == b.shape
            # n additions of values up to 4 (16 squared): each rounds by half an ulp of the partial sum.
            n = max(math.prod(shape), 1)
            scale = np.abs(b) if name == "prod" else 16 * (n if name == "sum" else 1)
            root = np.sqrt(n * np.finfo(b.dtype).eps * 16) if name == "std" else 0
            assert (np.abs(a - b) <= n * np.finfo(b.dtype).eps * scale + root).all(), (name, dtype, shape, axis, a, b)
        else:
            same(got, want, why=(name, dtype, shape, axis))


def test_a_planted_fault_is_seen():
    """The oracle tells a wrong value and a wrong dtype."""
    x, y = xp.asarray([1.0, 2.0]), strict.asarray([1.0, 2.0], dtype=strict.float32)
    same(x, y)
    for wrong in (xp.asarray([1.0, 2.0000002]), x.astype("f64"), x[:1]):
        with pytest.raises(AssertionError):
            same(wrong, y)


@pytest.mark.parametrize("name", ["sort", "argsort", "cumulative_sum", "roll", "flip", "reshape", "concat", "stack", "tile", "repeat", "take", "tril", "diff",
                                  "moveaxis", "matmul", "tensordot", "vecdot", "searchsorted", "squeeze", "clip", "where"])
@pytest.mark.filterwarnings("ignore")
def test_shapes_and_products(name):
    for rng in cases(name, 25):
        dtype = str(rng.choice(["int32", "int64", "uint8", "float32", "float64"]))
        shape = tuple(int(rng.integers(1, 7)) for _ in range(int(rng.integers(1, 4))))
        ours, theirs = drawn(rng, dtype, shape)
        if dtype in FLOATS:
            ours, theirs = (m.trunc(m.clip(m.where(m.isfinite(x), x, m.zeros_like(x)), -9.0, 9.0)) for m, x in ((xp, ours), (strict, theirs)))
        axis = int(rng.integers(-len(shape), len(shape)))
        calls = {
            "sort": lambda m, x: m.sort(x, axis=axis, descending=bool(shape[0] % 2)), "argsort": lambda m, x: m.argsort(x, axis=axis),
            "cumulative_sum": lambda m, x: m.cumulative_sum(x, axis=axis, include_initial=bool(shape[0] % 2)),
            "roll": lambda m, x: m.roll(x, 3, axis=None if shape[0] == 2 else axis), "flip": lambda m, x: m.flip(x, axis=axis),
            "reshape": lambda m, x: m.reshape(x, (-1, shape[-1]) if shape[0] > 2 else (math.prod(shape),)),
            "concat": lambda m, x: m.concat([x, x], axis=axis), "stack": lambda m, x: m.stack([x, x, x], axis=axis),
            "tile": lambda m, x: m.tile(x, (2, 1, 3)), "repeat": lambda m, x: m.repeat(x, 3, axis=axis),
            "take": lambda m, x: m.take(x, m.asarray([0, shape[axis] - 1, 0]), axis=axis),
            "tril": lambda m, x: m.triu(m.tril(m.stack([x, x])), k=-1), "diff": lambda m, x: m.diff(x, axis=axis, n=2 if shape[axis] > 2 else 1),
            "moveaxis": lambda m, x: m.moveaxis(x, axis, 0), "matmul": lambda m, x: m.matmul(x, x) if len(shape) == 1 else m.matmul(m.matrix_transpose(x), x),
            "tensordot": lambda m, x: m.tensordot(x, x, axes=([axis], [axis])), "vecdot": lambda m, x: m.vecdot(x, x, axis=axis % len(shape) - len(shape)),
            "searchsorted": lambda m, x: m.searchsorted(m.sort(m.reshape(x, (-1,))), m.reshape(x, (-1,)), side="right"),
            "squeeze": lambda m, x: m.squeeze(m.expand_dims(x, axis=axis), axis=axis), "clip": lambda m, x: m.clip(x, 1, 5),
            "where": lambda m, x: m.where(x > 2, x, m.zeros_like(x)),
        }
        same(calls[name](xp, ours), calls[name](strict, theirs), why=(name, dtype, shape, axis))


@pytest.mark.parametrize("key", [0, -1, slice(None, None, -2), (slice(1, 3), 2), (..., 1), (None, 0, ..., None), (slice(4, 1, -1), slice(0, 0)), ()])
def test_basic_indexing_reads_and_writes_views(key):
    base = np.arange(60, dtype=np.float32).reshape(5, 4, 3)
    x, want = xp.asarray(base), base.copy()
    assert np.array_equal(x[key].numpy(), want[key])
    assert np.shares_memory(np.asarray(x), np.asarray(x[key])) == (want[key].size > 0)
    x[key] = -1
    want[key] = -1
    assert np.array_equal(x.numpy(), want)


@pytest.mark.parametrize("dtype, np_dtype", [("bf16", ml_dtypes.bfloat16), ("f16", np.float16)])
def test_half_types_compute_in_f32_and_round_once(dtype, np_dtype):
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((33, 70)).astype(np_dtype) for _ in range(2))
    x, y = xp.asarray(a), xp.asarray(b)
    assert x.dtype == dtype and (x + y).dtype == dtype
    for name, f in (("add", np.add), ("multiply", np.multiply), ("divide", np.divide), ("maximum", np.maximum)):
        got = getattr(xp, name)(x, y).numpy()
        assert np.array_equal(got.view(np.uint16), f(a.astype(np.float32), b.astype(np.float32)).astype(np_dtype).view(np.uint16)), name
    # Sums stay f32 until the end: no closer rounding than one half ulp of the answer.
    for axis in (0, 1, None):
        want = a.astype(np.float64).sum(axis=axis)
        assert np.abs(x.sum(axis=axis).numpy().astype(np.float64) - want).max() <= np.abs(want).max() * 2.0 ** -8
    assert xp.result_type(x, xp.float32) == "f32" and xp.result_type(xp.float16, xp.bfloat16) == "f32" and (x + 1.5).dtype == dtype
    product = (x @ y.T).numpy().astype(np.float64)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.abs(product - want).max() <= np.abs(want).max() * 2.0 ** -8


def test_reductions_give_the_same_bits_with_any_threads():
    rng = np.random.default_rng(3)
    hosts = [rng.standard_normal(s).astype(np.float32) for s in ((100_000,), (300, 700), (7, 90_000), (90_000, 7))]
    before = vivace.threads()
    seen = []
    for n in (1, 2, 3):
        vivace.set_threads(n)
        seen.append([xp.sum(xp.asarray(h), axis=axis).numpy().tobytes() for h in hosts for axis in (None, 0, -1)])
    vivace.set_threads(before)
    assert seen[0] == seen[1] == seen[2]


def test_einsum_softmax_and_pad():
    rng = np.random.default_rng(4)
    a, b = rng.integers(-5, 5, (2, 3, 4)), rng.integers(-5, 5, (2, 4, 5))
    for spec in ("bij,bjk->bik", "bij,bjk->kb", "bij,bjk", "bij,bjk->b", "bij,bkl->il"):
        assert np.array_equal(xp.einsum(spec, xp.asarray(a), xp.asarray(b)).numpy(), np.einsum(spec, a, b)), spec
    x = xp.asarray(rng.standard_normal((5, 9)).astype(np.float32)) * 50
    assert np.allclose(xp.softmax(x).sum(axis=-1).numpy(), 1, atol=1e-6)
    assert np.array_equal(xp.pad(x, ((1, 2), (0, 3)), constant_values=7).numpy(), np.pad(x.numpy(), ((1, 2), (0, 3)), constant_values=7))


def test_arithmetic_contract():
    """What the standard leaves open, and arrays.md says."""
    i8 = xp.asarray([100, -128, 7, -7], dtype="i8")
    assert (i8 + i8).tolist() == [-56, 0, 14, -14] and (i8 // 0).tolist() == [0, 0, 0, 0] and (i8 % 0).tolist() == [0, 0, 0, 0]
    assert (-i8).tolist() == [-100, -128, -7, 7] and (i8 // -1).tolist() == [-100, -128, -7, 7] and (i8 % -3).tolist() == [-2, -2, -2, -1]
    assert (i8 << 8).tolist() == [0] * 4 and (i8 >> 9).tolist() == [0, -1, 0, -1]
    x = xp.asarray([1e20, -1e20, float("nan"), -1.9, float("inf")])
    assert x.astype("i32").tolist() == [2**31 - 1, -2**31, 0, -1, 2**31 - 1] and x.astype("u8").tolist() == [255, 0, 0, 0, 255]
    assert xp.argmax(x).item() == 2 and xp.argmin(x).item() == 2 and math.isnan(xp.max(x).item())
    assert xp.divide(xp.asarray([1, 2]), 2).dtype == "f32" and math.copysign(1, (xp.asarray([0.0]) * -0.0)[0].item()) == -1


def test_scalars_keep_the_array_type():
    for d in ("u8", "i16", "i64", "bf16", "f16", "f32", "f64"):
        x = xp.asarray([1, 2, 3], dtype=d)
        assert (x + 1).dtype == d and (2 - x).dtype == d and (x * True).dtype == d
    assert (xp.asarray([True]) + xp.asarray([1], dtype="i8")).dtype == "i8"
