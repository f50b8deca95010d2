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

__all__ = [*_functions, "cost", "fp4_scale_bytes", "ops_table"]


def ops_table() -> dict:
    """{"ops": [...], "aliases": [...], "dtypes": [...]}: the whole table as plain data."""
    return {"ops": _core.op_table(), "aliases": _core.alias_table(), "dtypes": _core.dtype_table()}


def cost(op: str, **ports_and_attributes) -> "tuple[int, int] | None":
    """(bytes, flops) that this call cannot do without; None for a composite op. Nothing runs."""
    return _core.cost(op, **ports_and_attributes)


def fp4_scale_bytes(rows: int, columns: int, layout: str = "linear") -> int:
    """Entries of the scales of quantize_micro for [rows, columns] values, in its layout."""
    if rows < 0 or columns < 16 or columns % 16:
        raise ValueError(f"fp4_scale_bytes: wanted rows >= 0 and a multiple of 16 columns, got {rows} x {columns}")
    if layout not in ("linear", "swizzled"):
        raise ValueError(f"fp4_scale_bytes: layout is linear or swizzled, got {layout!r}")
    blocks = columns // 16
    return rows * blocks if layout == "linear" else -(-rows // 128) * 128 * (-(-blocks // 4) * 4)
