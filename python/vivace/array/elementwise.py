"""The elementwise functions: a row of ufuncs.def each, with its name. Operands are Arrays and Python numbers, one Array at least; `out` is written."""
from __future__ import annotations

from collections.abc import Callable

from vivace._core import Array, array_1, array_2, array_3, array_functions
from vivace.array.trace import ARRAYS
from vivace.array.types import REAL
from vivace.errors import InvalidDTypeError


def _unary(name: str) -> Callable[..., Array]:
    f, _ = array_functions[name]

    def function(x, /, *, out=None):
        return array_1(f, x, out)

    function.__name__ = function.__qualname__ = name
    return function


def _binary(name: str) -> Callable[..., Array]:
    f, _ = array_functions[name]

    def function(x1, x2, /, *, out=None):
        return array_2(f, x1, x2, out)

    function.__name__ = function.__qualname__ = name
    return function


abs = _unary("abs")
negative = _unary("negative")
positive = _unary("positive")
sign = _unary("sign")
square = _unary("square")
ceil = _unary("ceil")
floor = _unary("floor")
trunc = _unary("trunc")
round = _unary("round")
sin = _unary("sin")
cos = _unary("cos")
tan = _unary("tan")
asin = _unary("asin")
acos = _unary("acos")
atan = _unary("atan")
sinh = _unary("sinh")
cosh = _unary("cosh")
tanh = _unary("tanh")
asinh = _unary("asinh")
acosh = _unary("acosh")
atanh = _unary("atanh")
exp = _unary("exp")
expm1 = _unary("expm1")
log = _unary("log")
log1p = _unary("log1p")
log2 = _unary("log2")
log10 = _unary("log10")
sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt")
erf = _unary("erf")
reciprocal = _unary("reciprocal")
sigmoid = _unary("sigmoid")
silu = _unary("silu")
gelu = _unary("gelu")
isnan = _unary("isnan")
isinf = _unary("isinf")
isfinite = _unary("isfinite")
signbit = _unary("signbit")
bitwise_invert = _unary("bitwise_invert")
logical_not = _unary("logical_not")
add = _binary("add")
subtract = _binary("subtract")
multiply = _binary("multiply")
divide = _binary("divide")
floor_divide = _binary("floor_divide")
remainder = _binary("remainder")
pow = _binary("pow")
maximum = _binary("maximum")
minimum = _binary("minimum")
atan2 = _binary("atan2")
hypot = _binary("hypot")
copysign = _binary("copysign")
nextafter = _binary("nextafter")
logaddexp = _binary("logaddexp")
bitwise_and = _binary("bitwise_and")
bitwise_or = _binary("bitwise_or")
bitwise_xor = _binary("bitwise_xor")
bitwise_left_shift = _binary("bitwise_left_shift")
bitwise_right_shift = _binary("bitwise_right_shift")
logical_and = _binary("logical_and")
logical_or = _binary("logical_or")
logical_xor = _binary("logical_xor")
equal = _binary("equal")
not_equal = _binary("not_equal")
less = _binary("less")
less_equal = _binary("less_equal")
greater = _binary("greater")
greater_equal = _binary("greater_equal")


def clip(x, /, min=None, max=None, *, out=None) -> Array:
    """x, at least min and at most max; either may be None. NaN stays NaN. x's dtype stays."""
    if not isinstance(x, ARRAYS):
        raise InvalidDTypeError(f"array.clip: wanted an Array, got {type(x).__name__}")
    for bound in (min, max):
        if isinstance(bound, ARRAYS) and (bound.dtype in REAL) != (x.dtype in REAL):
            raise InvalidDTypeError(f"array.clip: x is {x.dtype}, a bound is {bound.dtype}; astype() one of them first")
    if min is None and max is None:
        return x.copy() if out is None else positive(x, out=out)
    if min is None or max is None:
        made = minimum(x, max, out=out) if min is None else maximum(x, min, out=out)
    else:
        made = array_3(array_functions["clip"][0], x, min, max, out)
    return made if made.dtype == x.dtype else made.astype(x.dtype)


def where(condition, x1, x2, /) -> Array:
    """x1 where the condition holds, else x2."""
    return array_3(array_functions["where"][0], condition, x1, x2, None)


def conj(x, /) -> Array:
    """A copy: nothing here is complex."""
    return positive(x)


def real(x, /) -> Array:
    """A copy: nothing here is complex."""
    return positive(x)
