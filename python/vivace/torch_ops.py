"""Importing this module registers every op as torch.ops.vivace.<op>, made from the op table.

    import torch, vivace.torch_ops
    torch.ops.vivace.norm(x, weight=w, out=y, eps=1e-5)     # writes y, returns nothing

An op takes its outputs as arguments, as in vivace.ops, and declares which it writes; so torch.compile
traces it, orders it and allocates nothing for it. CPU tensors run on the CPU kernels, CUDA tensors on
torch's current stream. The ops have no autograd formula: they are for inference.
"""
import torch

from vivace import _core, ops

__all__ = ["names", "schema"]

_TYPES = {"real": "float", "integer": "int", "boolean": "bool", "choice": "str"}


def _default(attr) -> str:
    value = attr["default"]
    return f'"{value}"' if isinstance(value, str) else repr(value)


def schema(row: dict) -> str:
    """torch's declaration of one row of the op table. Required ports come first, the rest by name."""
    aliases = iter("abcdefghijklmnopqrstuvwxyz")

    def port(p):
        written = f"({next(aliases)}!)" if p["io"] != "in" else ""
        return f"Tensor{written}{'? ' + p['name'] + '=None' if p['optional'] else ' ' + p['name']}"

    required = [port(p) for p in row["ports"] if not p["optional"]]
    optional = [port(p) for p in row["ports"] if p["optional"]]
    attrs = [f"{_TYPES[a['kind']]} {a['name']}={_default(a)}" for a in row["attrs"]]
    by_name = ["*", *optional, *attrs] if optional or attrs else []
    return f"{row['name']}({', '.join(required + by_name)}) -> ()"


def _implementation(row):
    call = getattr(ops, row["name"])
    required = [p["name"] for p in row["ports"] if not p["optional"]]

    def run(*args, **named):
        call(**dict(zip(required, args)), **{k: v for k, v in named.items() if v is not None})

    return run


def _fake(*args, **named):
    """Nothing is returned and shapes do not change: there is nothing to compute. Checks happen at the call."""


def _register(library) -> list[str]:
    names = []
    for row in _core.op_table():
        library.define(schema(row), tags=(torch.Tag.needs_fixed_stride_order,))
        run = _implementation(row)
        library.impl(row["name"], run, "CPU")
        library.impl(row["name"], run, "CUDA")
        torch.library.register_fake(f"vivace::{row['name']}", _fake, lib=library)
        names.append(row["name"])
    return names


# Kept for the life of the process: the registrations end with it.
_library = torch.library.Library("vivace", "DEF")
names = _register(_library)
