"""Products of matrices and what reduces to them. f16, bf16 and f32 add up in f32, f64 in f64, integers wrap."""
from __future__ import annotations

import math

from vivace._core import Array
from vivace.array import types
from vivace.array.shapes import broadcast_arrays, permute_dims
from vivace.errors import InvalidArgumentError, InvalidDTypeError, InvalidShapeError


def _arrays(call: str, *given) -> None:
    for x in given:
        if not isinstance(x, Array):
            raise InvalidDTypeError(f"array.{call}: wanted an Array, got {type(x).__name__}")


def matmul(x1, x2, /) -> Array:
    _arrays("matmul", x1, x2)
    return x1 @ x2


def vecdot(x1, x2, /, *, axis=-1) -> Array:
    """The sum of products along one axis; the others are broadcast."""
    _arrays("vecdot", x1, x2)
    if not -min(x1.ndim, x2.ndim) <= axis <= -1:
        raise InvalidArgumentError(f"array.vecdot: axis {axis}: wanted -1 to {-min(x1.ndim, x2.ndim)} of {x1.shape} and {x2.shape}")
    if x1.shape[axis] != x2.shape[axis]:
        raise InvalidShapeError(f"array.vecdot: axis {axis}:\n    {x1.shape}\n    {x2.shape}")
    a, b = (permute_dims(x, [*(i for i in range(x.ndim) if i != axis % x.ndim), axis % x.ndim]) for x in (x1, x2))
    if max(a.ndim, b.ndim) < 6:
        return (a[..., None, :] @ b[..., :, None])[..., 0, 0]
    a, b = broadcast_arrays(a, b)  # no room for two axes more: the batches as one
    n, shape = a.shape[-1], a.shape[:-1]
    batch = math.prod(shape)
    return (a.reshape((batch, 1, n)) @ b.reshape((batch, n, 1))).reshape(shape)


def tensordot(x1, x2, /, *, axes=2) -> Array:
    """Sums over the last `axes` of x1 and the first of x2, or over two sequences of axes."""
    _arrays("tensordot", x1, x2)
    if isinstance(axes, int):
        left, right = list(range(x1.ndim - axes, x1.ndim)), list(range(axes))
    else:
        left, right = ([a % x.ndim for a in named] for x, named in zip((x1, x2), axes))
    if len(left) != len(right) or any(a < 0 for a in left) or any(x1.shape[a] != x2.shape[b] for a, b in zip(left, right)):
        raise InvalidShapeError(f"array.tensordot: axes {left} and {right} do not fit:\n    {x1.shape}\n    {x2.shape}")
    kept1, kept2 = [a for a in range(x1.ndim) if a not in left], [a for a in range(x2.ndim) if a not in right]
    inner = math.prod(x1.shape[a] for a in left)
    rows, columns = [x1.shape[a] for a in kept1], [x2.shape[a] for a in kept2]
    a = permute_dims(x1, [*kept1, *left]).reshape((math.prod(rows), inner))
    b = permute_dims(x2, [*right, *kept2]).reshape((inner, math.prod(columns)))
    return (a @ b).reshape([*rows, *columns])


def einsum(subscripts: str, x1, x2, /) -> Array:
    """Einstein's sum of two operands, "bij,bjk->bik": letters of both and of the result are batches, letters of both alone are summed."""
    _arrays("einsum", x1, x2)
    said, arrow, wanted = subscripts.replace(" ", "").partition("->")
    names = said.split(",")
    if len(names) != 2 or not "".join([*names, wanted]).isalpha() and wanted + "".join(names):
        raise InvalidArgumentError(f"array.einsum: {subscripts!r}: wanted letters of two operands, such as 'ij,jk->ik'")
    one, two = names
    if not arrow:
        wanted = "".join(sorted(c for c in set(one + two) if (one + two).count(c) == 1))
    sizes: dict[str, int] = {}
    for letters, x in ((one, x1), (two, x2)):
        if len(letters) != x.ndim or len(set(letters)) != len(letters) or any(sizes.setdefault(c, n) != n for c, n in zip(letters, x.shape)):
            raise InvalidShapeError(f"array.einsum: {subscripts!r} does not fit:\n    {x1.shape}\n    {x2.shape}")
    if len(set(wanted)) != len(wanted) or set(wanted) - set(one + two) or types.bool in (x1.dtype, x2.dtype):
        raise InvalidArgumentError(f"array.einsum: {subscripts!r}: the result's letters are each of an operand, and once")
    # A letter of one operand alone that the result lacks is summed there first.
    from vivace.array.reductions import sum as add
    x1, x2 = (add(x, axis=axes, dtype=x.dtype) if axes else x for x, axes in (
        (x, [i for i, c in enumerate(mine) if c not in other and c not in wanted]) for x, mine, other in ((x1, one, two), (x2, two, one))))
    one, two = "".join(c for c in one if c in two + wanted), "".join(c for c in two if c in one + wanted)
    batch = [c for c in one if c in two and c in wanted]
    inner = [c for c in one if c in two and c not in wanted]
    rows, columns = [c for c in one if c not in two], [c for c in two if c not in one]

    def matrices(x, letters, *groups):
        return permute_dims(x, [letters.index(c) for g in groups for c in g]).reshape([math.prod(sizes[c] for c in g) for g in groups])

    made = matrices(x1, one, batch, rows, inner) @ matrices(x2, two, batch, inner, columns)
    order = [*batch, *rows, *columns]
    return permute_dims(made.reshape([sizes[c] for c in order]), [order.index(c) for c in wanted])
