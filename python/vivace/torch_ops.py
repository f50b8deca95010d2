"""Importing this module registers every op as torch.ops.vivace.<op>, made from the op table.

    import torch, vivace.torch_ops
    torch.ops.vivace.norm(x, weight=w, out=y, eps=1e-5)     # writes y, returns nothing
    y = torch.ops.vivace.norm(x, weight=w, eps=1e-5)        # the functional form: y is new

An op takes its outputs as arguments, as in vivace.ops, and declares which it writes; so torch.compile
traces it, orders it and allocates nothing for it. Its functional form, the overload `new`, makes them, and
copies of what the op updates. CPU tensors run on the CPU kernels, CUDA tensors on torch's current stream.
The ops have no autograd formula: they are for inference.
"""
import torch

from vivace import _core, ops
from vivace.functional import Form

__all__ = ["functional", "functional_schema", "names", "schema"]

_TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
          "i32": torch.int32, "i64": torch.int64, "i8": torch.int8, "u8": torch.uint8}
_NAMES = {of: name for name, of in _TORCH.items()}

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


class _Functional(Form):
    """The overload `new` of an op. Optional outputs and updates are those of the other form alone."""

    def schema(self) -> str:
        required = [f"Tensor {p['name']}" for p in self.inputs if not p["optional"]]
        named = [f"Tensor? {p['name']}=None" for p in self.inputs if p["optional"]]
        named += [f"{_TYPES[a['kind']]} {a['name']}={_default(a)}" for a in self.attrs]
        named += ["ScalarType? dtype=None"] if self.typed else []
        named = [f"SymInt[]{may} {name}_shape{'=None' if may else ''}" for name, may in sorted(self.shaped.items(), key=lambda s: s[1])] + named
        count = len(self.outs) + len(self.updates)
        returned = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        return f"{self.name}.new({', '.join(required + (['*', *named] if named else []))}) -> {returned}"

    def made(self, given, dtype, shapes):
        """New outputs for these inputs: name -> tensor."""
        like = next(iter(given.values()))
        results = self.results({n: (x.shape, _NAMES.get(x.dtype, x.dtype)) for n, x in given.items()}, _NAMES.get(dtype, dtype), shapes)
        return {n: torch.empty(shape, dtype=_TORCH.get(of, of), device=like.device) for n, (shape, of) in results.items()}

    def returned(self, made, updated):
        values = (*made.values(), *updated.values())
        return values[0] if len(values) == 1 else values

    def run(self, *args, **named):
        given, attrs, dtype, shapes = self.split(args, named)
        made, updated = self.made(given, dtype, shapes), {p["name"]: given[p["name"]].clone() for p in self.updates}
        getattr(ops, self.name)(**given | updated, **made, **attrs)
        return self.returned(made, updated)

    def fake(self, *args, **named):
        given, _, dtype, shapes = self.split(args, named)
        return self.returned(self.made(given, dtype, shapes), {p["name"]: torch.empty_like(given[p["name"]]) for p in self.updates})


_WITHOUT = {"fill"}  # it has no input to be beside: torch.full is that
_FUNCTIONAL = {f.name: f for f in map(_Functional, _core.op_table()) if f.inputs and f.name not in _WITHOUT}
functional = list(_FUNCTIONAL)  # ops with a functional form


def functional_schema(name: str) -> str:
    """torch's declaration of an op's functional form."""
    return _FUNCTIONAL[name].schema()


def _register(library) -> list[str]:
    names = []
    for row in _core.op_table():
        library.define(schema(row), tags=(torch.Tag.needs_fixed_stride_order,))
        run = _implementation(row)
        library.impl(row["name"], run, "CPU")
        library.impl(row["name"], run, "CUDA")
        torch.library.register_fake(f"vivace::{row['name']}", _fake, lib=library)
        if form := _FUNCTIONAL.get(row["name"]):
            library.define(form.schema(), tags=(torch.Tag.needs_fixed_stride_order,))
            for backend in ("CPU", "CUDA"):
                library.impl(f"{form.name}.new", form.run, backend)
            torch.library.register_fake(f"vivace::{form.name}.new", form.fake, lib=library)
        names.append(row["name"])
    return names


# Kept for the life of the process: the registrations end with it.
_library = torch.library.Library("vivace", "DEF")
names = _register(_library)
