"""The ops, one function each, made from the op table of the core at import.

    from vivace import ops
    ops.norm(x, weight=w, out=y, eps=1e-5)

A function takes every port as an array (NumPy, vivace.view() for block formats, or anything with
__dlpack__), outputs included, and returns None: nothing is allocated behind the caller's back.
help(ops.norm) has the formula; ops_table() has everything as data.
"""
from vivace import _core

_functions = _core.op_functions()
globals().update(_functions)

__all__ = [*_functions, "cost", "ops_table"]


def ops_table() -> dict:
    """{"ops": [...], "aliases": [...], "dtypes": [...]}: the whole table as plain data."""
    return {"ops": _core.op_table(), "aliases": _core.alias_table(), "dtypes": _core.dtype_table()}


def cost(op: str, **ports_and_attributes) -> "tuple[int, int] | None":
    """(bytes, flops) that this call cannot do without; None for a composite op. Nothing runs."""
    return _core.cost(op, **ports_and_attributes)
