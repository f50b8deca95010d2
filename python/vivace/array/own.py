"""Functions of your own on a GPU, in one line."""
from __future__ import annotations

import re

from vivace import _core
from vivace._core import Array
from vivace.array import types
from vivace.errors import InvalidArgumentError

C_TYPES = {"bool": "bool", "char": "i8", "short": "i16", "int": "i32", "long": "i64", "unsigned": "u32", "float": "f32", "double": "f64"}
MOST = 8  # operands
_WORD = re.compile(r"[A-Za-z_]\w*\Z")


def _declared(call: str, text: str) -> list[tuple[str, types.DType]]:
    """"float x, bf16 y" as names and dtypes."""
    found = []
    for part in text.split(","):
        words = part.split()
        kind = C_TYPES.get(words[0], words[0]) if words else ""
        if len(words) != 2 or not _WORD.match(words[1]) or words[1] == "i":
            raise InvalidArgumentError(f"array.{call}: {part.strip()!r}: wanted a type and a name, such as 'float x'; i is the element's number")
        found.append((words[1], types.dtype_of(kind)))
    if len({n for n, _ in found}) != len(found):
        raise InvalidArgumentError(f"array.{call}: {text!r}: a name is declared twice")
    return found


class ElementwiseKernel:
    """What elementwise() makes: called with Arrays and Python numbers, in the order of its declaration."""

    def __init__(self, operands: str, result: str, operation: str):
        self._in, out = _declared("elementwise", operands), _declared("elementwise", result)
        if len(out) != 1 or len(self._in) > MOST or out[0][0] in dict(self._in):
            raise InvalidArgumentError(f"array.elementwise: wanted up to {MOST} operands and one result of another name, got {operands!r} and {result!r}")
        for name, dtype in (*self._in, *out):
            if dtype not in types.ARITHMETIC:
                raise InvalidArgumentError(f"array.elementwise: {name}: {dtype} stores, and has no arithmetic")
        if not isinstance(operation, str) or not operation.strip():
            raise InvalidArgumentError(f"array.elementwise: operation: wanted C++ that sets {out[0][0]}, got {operation!r}")
        self._out, self._text = out[0], operation.strip().rstrip(";")
        self._index = re.search(r"\bi\b", operation) is not None

    def __call__(self, *operands, out=None) -> Array:
        if len(operands) != len(self._in):
            raise InvalidArgumentError(f"array.elementwise: {len(operands)} operands, declared are {', '.join(n for n, _ in self._in)}")
        return _core.array_own(self._text, [n for n, _ in self._in], [d for _, d in self._in], *self._out, self._index, list(operands), out)

    def __repr__(self) -> str:
        return f"ElementwiseKernel({self._text!r})"


def elementwise(operands: str, result: str, operation: str) -> ElementwiseKernel:
    """A function of C++ statements: `elementwise("float x, float y", "float z", "z = x * y + 1")`. Types are C's or dtypes' names; f16 and
    bf16 are floats inside. `i` is the element's number. Operands are broadcast, and strided as they are. The text is trusted like the
    program that passes it. On CUDA alone."""
    return ElementwiseKernel(operands, result, operation)
