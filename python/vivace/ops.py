"""The ops, one function each, made from the op table of the core at import.

    from vivace import ops
    ops.norm(x, weight=w, out=y, eps=1e-5)

A function takes every port as an array (NumPy, vivace.view() for block formats, or anything with
__dlpack__), outputs included, and returns None: nothing is allocated behind the caller's back.
help(ops.norm) has the formula; ops_table() has everything as data.
"""
from contextlib import contextmanager

from vivace import _core

_functions = _core.op_functions()
globals().update(_functions)

__all__ = [*_functions, "checked", "constant_weights", "cost", "fp4_scale_bytes", "ops_table", "workspace_size"]


def ops_table() -> dict:
    """{"ops": [...], "aliases": [...], "dtypes": [...]}: the whole table as plain data."""
    return {"ops": _core.op_table(), "aliases": _core.alias_table(), "dtypes": _core.dtype_table()}


@contextmanager
def checked(on: bool = True):
    """While it lasts, ops hold what they trust of contents (page numbers, lengths, slots, offsets, rows of tables) against its limits before
    they launch, and raise InvalidArgumentError where it breaks them: a composite op part by part, so that what its earlier parts
    wrote stays. Each call waits for the device; captures are not checked, since contents come later. VIVACE_CHECKED=1 in the environment is the same for a whole process."""
    before = _core.checked()
    _core.set_checked(on)
    try:
        yield
    finally:
        _core.set_checked(before)


@contextmanager
def constant_weights(on: bool = True):
    """A promise, while it lasts, for this thread's calls on a GPU: nothing that is queued and has not ended writes the operands whose
    documentation says "read ahead" (a product's w and its scales, rope_attention's angles and norms; its places and past
    where it says `stable`). Kernels then bring them while the call before still runs, as those of loaded models do; also in captures. Without it every operand is ordered as the stream says, and such a call
    waits for the end of what came before. A broken promise is a race: wrong numbers, without an error."""
    before = _core.constant_weights()
    _core.set_constant_weights(on)
    try:
        yield
    finally:
        _core.set_constant_weights(before)


def cost(op: str, **ports_and_attributes) -> "tuple[int, int] | None":
    """(bytes, flops) that this call cannot do without; None for a composite op. Nothing runs."""
    return _core.cost(op, **ports_and_attributes)


def workspace_size(op: str, *, capability: int = 90, **ports_and_attributes) -> int:
    """Bytes of device memory, beside its ports, that the call works in on a chip (90: compute capability 9.0). The library
    owns them; there is nothing to bring. Exact. Nothing runs."""
    return _core.workspace_size(op, capability, **ports_and_attributes)


def fp4_scale_bytes(rows: int, columns: int, layout: str = "linear") -> int:
    """Entries of the scales of quantize_block_scaled for [rows, columns] values, in its layout."""
    if rows < 0 or columns < 16 or columns % 16:
        raise ValueError(f"fp4_scale_bytes: wanted rows >= 0 and a multiple of 16 columns, got {rows} x {columns}")
    if layout not in ("linear", "swizzled"):
        raise ValueError(f"fp4_scale_bytes: layout is linear or swizzled, got {layout!r}")
    blocks = columns // 16
    return rows * blocks if layout == "linear" else -(-rows // 128) * 128 * (-(-blocks // 4) * 4)
