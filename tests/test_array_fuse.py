"""array.fuse and array.reduction on the CPU: the bits of the functions one by one, drawn and chosen; and what they refuse."""
import math

import numpy as np
import pytest

from vivace import array
from vivace.errors import InvalidArgumentError, InvalidDTypeError, InvalidShapeError, UnsupportedError


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setattr("vivace.array.creation._default", "cpu")  # set_default_device() could not go back where there is no GPU


def drawn(rng, shape, dtype):
    if dtype in ("f16", "bf16", "f32", "f64"):
        host = (rng.standard_normal(shape) * 3).astype("f8")
    else:
        host = rng.integers(0 if dtype[0] in "bu" else -9, 2 if dtype == "bool" else 9, shape)
    return array.asarray(host, dtype="f64" if host.dtype == "f8" else "i64").astype(dtype)


def same(got, want, what=""):
    assert (got.dtype, got.shape) == (want.dtype, want.shape), (what, got, want)
    assert np.array_equal(got.numpy().reshape(-1).view("u1"), want.numpy().reshape(-1).view("u1")), (what, got.numpy(), want.numpy())


UNARY = {"real": ["exp", "tanh", "sqrt", "negative", "abs", "square", "silu", "floor", "sign", "log1p"], "whole": ["negative", "abs", "square", "bitwise_invert", "sign"]}
BINARY = {"real": ["add", "subtract", "multiply", "divide", "maximum", "minimum", "remainder", "hypot", "pow"], "whole": ["add", "subtract", "multiply", "maximum", "floor_divide", "bitwise_xor"]}
CAST = {"real": ["f16", "bf16", "f32", "f64"], "whole": ["i8", "u8", "i32", "i64"]}


def expression(rng, kind, operands, numbers, depth):
    """A function of (operands, numbers), drawn: what it does is decided here, once."""
    if depth == 0 or rng.random() < 0.1:
        k = int(rng.integers(operands))
        return lambda x, n: x[k]
    pick = rng.random()
    if pick < 0.3:
        f, a = getattr(array, rng.choice(UNARY[kind])), expression(rng, kind, operands, numbers, depth - 1)
        return lambda x, n: f(a(x, n))
    if pick < 0.4:
        to, a = str(rng.choice(CAST[kind])), expression(rng, kind, operands, numbers, depth - 1)
        return lambda x, n: a(x, n).astype(to)
    a = expression(rng, kind, operands, numbers, depth - 1)
    if pick < 0.6:
        f, k, c = getattr(array, rng.choice(BINARY[kind][:3])), int(rng.integers(numbers)), float(rng.integers(1, 3)) if kind == "real" else int(rng.integers(1, 3))
        return (lambda x, n: f(a(x, n), n[k] * c)) if rng.random() < 0.5 else (lambda x, n: f(c, a(x, n)))
    b = expression(rng, kind, operands, numbers, depth - 1)
    if pick < 0.7:
        return lambda x, n: array.where(a(x, n) < b(x, n), a(x, n), b(x, n))
    f = getattr(array, rng.choice(BINARY[kind]))
    return lambda x, n: f(a(x, n), b(x, n))


def test_drawn_expressions_have_the_bits_of_their_functions():
    rng, done, refused = np.random.default_rng(11), 0, 0
    for case in range(250):
        kind = "real" if case % 3 else "whole"
        body = expression(rng, kind, 3, 2, int(rng.integers(1, 5)))
        shape = tuple(int(n) for n in rng.integers(1, 40, int(rng.integers(1, 4))))
        if case % 10 == 0:
            shape = (3, 700, 90)  # more than a block, and threads
        arrays = []
        for _ in range(3):
            cut = tuple(1 if rng.random() < 0.2 else n for n in shape)[int(rng.integers(0, 2)):]
            x = drawn(rng, cut, str(rng.choice(CAST[kind][:2] if case % 2 else CAST[kind][2:])))
            arrays.append(x[..., ::-1] if x.ndim and rng.random() < 0.3 else x)
        numbers = [2, 1.5] if kind == "real" else [2, 3]
        plain = lambda a, b, c, s, t: body((a, b, c), (s, t))  # noqa: E731
        try:
            want = plain(*arrays, *numbers)
        except (InvalidDTypeError, InvalidArgumentError, InvalidShapeError) as e:  # u8 with i8 and a number that does not fit, say
            with pytest.raises(type(e)):
                array.fuse(plain)(*arrays, *numbers)
            continue
        fused = array.fuse(plain)
        try:
            got = fused(*arrays, *numbers)
        except UnsupportedError as e:
            assert "split the function" in str(e)
            refused += 1
            continue
        same(got, want, case)
        numbers = [s + 1 for s in numbers]  # traced already: other values, the same program
        same(fused(*arrays, *numbers), plain(*arrays, *numbers), case)
        done += 1
    assert done > 180 and refused < 40


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i16"])
def test_a_reduction_at_the_end(kind, dtype):
    rng = np.random.default_rng(12)
    for shape in ((5, 7), (3, 400, 90), (1, 1, 1), (0, 3) if kind in ("sum", "prod") else (2, 2)):
        x, y = drawn(rng, shape, dtype), drawn(rng, shape, dtype)
        for axis in (None, 0, -1):
            f = lambda a, b: getattr(array, kind)(a * 2 - b, axis=axis, keepdims=axis == 0)  # noqa: B023, E731
            same(array.fuse(f)(x, y), f(x, y), (shape, axis))
    x, row = drawn(rng, (30, 40), dtype), drawn(rng, (40,), dtype)
    if kind not in ("sum", "prod") or dtype == "i16":  # another order of adding where an operand is broadcast
        same(array.fuse(lambda a, b: getattr(a * b, kind)(axis=0))(x, row), getattr(x * row, kind)(axis=0))
    assert array.fuse(lambda a: (a > 0).any())(x).dtype == "bool" and array.fuse(lambda a: array.sum(a, dtype="f64" if dtype != "i16" else "i64"))(x).dtype in ("f64", "i64")


def test_what_a_trace_depends_on():
    calls = []

    @array.fuse
    def scaled(x, s):
        """Its words."""
        calls.append(1)
        return x * (1 - s) + s

    assert scaled.__name__ == "scaled" and scaled.__doc__ == "Its words."
    x = array.arange(12, dtype="f32")
    for y in (x, x + 1, x[::2], x[:1]):  # shapes and strides are arguments
        same(scaled(y, 0.25), y * 0.75 + 0.25)
    assert len(calls) == 1
    same(scaled(x.reshape((3, 4)), 0.25), x.reshape((3, 4)) * 0.75 + 0.25)
    same(scaled(x.astype("f64"), 0.25), x.astype("f64") * 0.75 + 0.25)
    same(scaled(x, 2), x * -1 + 2)
    assert len(calls) == 4
    out = array.zeros((2, 12), dtype="f32")
    assert scaled(x, 0.5, out=out[1]).data_ptr == out[1].data_ptr
    same(out[1], x * 0.5 + 0.5)
    same(scaled(x, 0.5, out=x), out[1])  # over its operand
    same(array.fuse(lambda x: x)(out), out)  # a copy
    same(array.fuse(lambda x, y: y + 1)(out, x), x + 1)  # what is not used decides no shape
    same(array.fuse(lambda x: array.clip(x, -1, 2.5))(x), array.clip(x, -1, 2.5))
    zero = array.fuse(lambda x: x * -0.0)(array.ones((2,)))
    assert math.copysign(1, zero.tolist()[0]) == -1  # constants keep their sign


def in_place(x):
    x += 1
    return x


@pytest.mark.parametrize("body,words", [
    (lambda x: x[0], "indexing"), (lambda x: x @ x, "@"), (lambda x: array.matmul(x, x), "matmul"), (lambda x: x if x > 0 else -x, "where"), (lambda x: x.shape, "shape"),
    (lambda x: array.softmax(x), "reduction"), (lambda x: x.mean(), "shape"), (lambda x: x.sum() + 1, "reduction"), (lambda x: (x, x), "tuple"), (lambda x: 1, "int"),
    (lambda x: array.sort(x), "sort"), (lambda x: array.reshape(x, (1,)), "reshape"), (lambda x: np.exp(x), "not fused"), (lambda x: float(x), "number"), (in_place, "in place"),
    (lambda x: array.add(x, 1, out=x), "out="), (lambda x: array.fuse(lambda y: y + 1)(x) if False else array.concat([x, x]), "shape"), (lambda x: x + array.ones((3,)), "no argument"),
    (lambda x: x + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8, "split"), (lambda x: x.astype("f32", device="cuda"), "device"),
])
def test_refusals_say_what_is_not_fused(body, words):
    with pytest.raises(UnsupportedError, match=words):
        array.fuse(body)(array.ones((3, 3)))


def test_bad_calls():
    add = array.fuse(lambda x, y: x + y)
    x = array.ones((3,))
    for error, call in ((InvalidDTypeError, lambda: add(1, 2)), (InvalidDTypeError, lambda: add(x, np.ones(3))), (InvalidDTypeError, lambda: add(x, x.astype("i32"))),
                        (InvalidShapeError, lambda: add(x, array.ones((4,)))), (InvalidDTypeError, lambda: add(x, x, out=array.ones((3,), dtype="f64"))),
                        (InvalidShapeError, lambda: add(x, x, out=array.ones((4,)))), (InvalidArgumentError, lambda: array.fuse(3)),
                        (InvalidArgumentError, lambda: add(x.astype("u8"), 300)), (InvalidArgumentError, lambda: array.fuse(lambda x: x.sum(axis=4))(x)),
                        (InvalidDTypeError, lambda: array.fuse(lambda x: x.astype("e4m3"))(x)), (UnsupportedError, lambda: array.fuse(lambda x: x.sum())(x, out=x)),
                        (UnsupportedError, lambda: add(x))):
        with pytest.raises(error):
            call()


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i32", "u8"])
def test_reductions_of_ones_own(dtype):
    """Those that have a kind of their own are the judge; sums of floats in another order."""
    rng = np.random.default_rng(13)
    largest = array.reduction(lambda x: array.abs(x), array.maximum, None, 0)
    total = array.reduction(lambda x, y, s: x * y + s, lambda a, b: a + b, None, 0)
    for shape in ((5, 7), (3, 400, 90), (1, 30000), (30000, 3), (0, 4), (4, 0)):
        x, y = drawn(rng, shape, dtype), drawn(rng, shape[-1:], dtype)
        for axis in (None, 0, -1, tuple(range(len(shape)))):
            wide = x.astype("f32") if dtype == "bf16" else x
            if x.size:
                same(largest(x, axis=axis, keepdims=True), array.abs(wide).max(axis=axis, keepdims=True), (shape, axis))
            got, want = total(x, y, 1, axis=axis), array.sum((x * y + 1).astype(wide.dtype), axis=axis, dtype=wide.dtype)
            if dtype in ("i32", "u8"):
                same(got, want, (shape, axis))
            else:
                assert got.dtype == want.dtype and got.shape == want.shape
                # Two orders of adding: a rounding an addition, of sums that the root of their number bounds.
                assert np.allclose(got.numpy(), want.numpy(), rtol=0, atol=64 * 10 * max(1, x.size) ** 0.5 * array.finfo(wide.dtype).eps)
            same(total(x, y, 1, axis=axis), got)


def test_a_reduction_is_a_formula():
    x = array.asarray([[3.0, 4.0], [1.0, 0.5]])
    norm = array.reduction(lambda x: x * x, lambda a, b: a + b, array.sqrt, 0.0)
    assert norm(x, axis=1).tolist() == [5.0, pytest.approx(1.25**0.5)]
    even = array.reduction(lambda x: x % 2 == 0, array.logical_and, None, True)
    assert even(array.asarray([2, 4]), axis=0).item() is True and even(array.asarray([2, 3])).item() is False
    close = array.reduction(lambda x: x, lambda a, b: array.where(array.abs(a - 1.0) < array.abs(b - 1.0), a, b), lambda v: v * 10, 1e30)
    assert close(x).item() == 10.0
    modulo = array.reduction(lambda x: x, lambda a, b: (a + b) % 7, None, 0)
    assert modulo(array.arange(100_000)).item() == sum(range(100_000)) % 7
    for error, call in ((InvalidDTypeError, lambda: array.reduction(lambda x: x, array.equal, None, 0)(x)), (UnsupportedError, lambda: array.reduction(lambda x: x, lambda a, b: a, None, 0)(x)),
                        (UnsupportedError, lambda: array.reduction(lambda x: x.sum(), array.add, None, 0)(x)), (InvalidArgumentError, lambda: array.reduction("x", array.add, None, 0)),
                        (InvalidArgumentError, lambda: array.reduction(abs, array.add, None, None)), (InvalidArgumentError, lambda: norm(x, axis=2)),
                        (UnsupportedError, lambda: array.reduction(lambda x: x, lambda a, b: a + x, None, 0)(x)), (InvalidDTypeError, lambda: norm(1.0)),
                        (InvalidDTypeError, lambda: array.reduction(lambda x: x, array.add, None, 0.5)(x.astype("i32")))):
        with pytest.raises(error):
            call()
