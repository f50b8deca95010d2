"""Importing this module registers every op as torch.ops.vivace.<op>, made from the op table.

    import torch, vivace.torch_ops
    torch.ops.vivace.norm(x, weight=w, out=y, eps=1e-5)     # writes y, returns nothing
    y = torch.ops.vivace.norm(x, weight=w, eps=1e-5)        # the functional form: y is new

An op takes its outputs as arguments, as in vivace.ops, and declares which it writes; so torch.compile
traces it, orders it and allocates nothing for it. Its functional form, the overload `new`, makes them, and
copies of what the op updates. CPU tensors run on the CPU kernels, CUDA tensors on torch's current stream.
The ops have no autograd formula: they are for inference.
"""
import ast
import operator

import torch

from vivace import _core, ops
from vivace.errors import InvalidArgumentError, InvalidShapeError

__all__ = ["functional", "functional_schema", "names", "schema"]

_TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
          "i32": torch.int32, "i64": torch.int64, "i8": torch.int8, "u8": torch.uint8}

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


class _Functional:
    """The overload `new` of an op: inputs alone, what it writes returned. Required ports that the op updates (a state, a workspace) are taken
    and returned as new tensors, behind the outputs; optional outputs and updates are those of the other form alone."""

    def __init__(self, row):
        self.name, self.ports = row["name"], row["ports"]
        self.outs = [p for p in self.ports if p["io"] == "out" and not p["optional"]]
        self.updates = [p for p in self.ports if p["io"] == "inout" and not p["optional"]]
        self.inputs = [p for p in self.ports if p["io"] == "in" or p in self.updates]
        self.attrs = row["attrs"]
        self.typed = [p for p in self.outs if "|" in p["dtypes"]]

        # Outputs whose shapes do not follow from the inputs', or from optional ones alone: the caller says them, or may.
        self.shaped = {p["name"]: "" if self._unknown(p, self.inputs) else "?" for p in self.outs if self._unknown(p, [i for i in self.inputs if not i["optional"]])}

    def _unknown(self, out, inputs) -> bool:
        known = {n for p in inputs for d in p["shape"].split(",") for n in [_symbol(d)] if n}
        return "?" in out["shape"] or not _symbols(out["shape"]) <= known

    def schema(self) -> str:
        required = [f"Tensor {p['name']}" for p in self.inputs if not p["optional"]]
        named = [f"Tensor? {p['name']}=None" for p in self.inputs if p["optional"]]
        named += [f"{_TYPES[a['kind']]} {a['name']}={_default(a)}" for a in self.attrs]
        named += ["ScalarType? dtype=None"] if self.typed else []
        named = [f"SymInt[]{may} {name}_shape{'=None' if may else ''}" for name, may in sorted(self.shaped.items(), key=lambda s: s[1])] + named
        count = len(self.outs) + len(self.updates)
        returned = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        return f"{self.name}.new({', '.join(required + (['*', *named] if named else []))}) -> {returned}"

    def results(self, given, dtype, shapes):
        """New outputs for inputs of these shapes: name -> tensor. `shapes`: of outputs, where the caller says them."""
        dims = {}
        for p in self.inputs:
            if (x := given.get(p["name"])) is not None:
                _bind(dims, p["shape"], x.shape)
        like = next(iter(given.values()))
        made = {}
        for p in self.outs:
            try:
                shape = shapes[p["name"]] if p["name"] in shapes else [_value(d, dims) for d in p["shape"].split(",")]
            except KeyError as e:
                raise InvalidShapeError(f"{self.name}: {p['name']} [{p['shape']}]: nothing that was given says {e}; give {p['name']}_shape") from None
            made[p["name"]] = torch.empty(shape, dtype=self.dtype_of(p, given | made, dtype), device=like.device)
        return made

    def dtype_of(self, port, tensors, asked):
        if port["dtypes"].startswith("="):
            return tensors[port["dtypes"][1:]].dtype
        allowed = [_TORCH[d] for d in port["dtypes"].split("|")]
        first = next(iter(tensors.values())).dtype
        wanted = asked if asked is not None and port in self.typed else first if first in allowed else allowed[0]
        if wanted not in allowed:
            raise InvalidArgumentError(f"{self.name}: dtype: {port['name']} is one of {port['dtypes']}, got {wanted}")
        return wanted

    def split(self, args, named):
        required = [p["name"] for p in self.inputs if not p["optional"]]
        everything = dict(zip(required, args)) | {k: v for k, v in named.items() if v is not None}
        dtype, shapes = everything.pop("dtype", None), {name: everything.pop(f"{name}_shape") for name in self.shaped if f"{name}_shape" in everything}
        tensors = {p["name"]: everything.pop(p["name"]) for p in self.inputs if p["name"] in everything}
        return tensors, everything, dtype, shapes

    def returned(self, made, updated):
        values = (*made.values(), *updated.values())
        return values[0] if len(values) == 1 else values

    def run(self, *args, **named):
        given, attrs, dtype, shapes = self.split(args, named)
        made, updated = self.results(given, dtype, shapes), {p["name"]: given[p["name"]].clone() for p in self.updates}
        getattr(ops, self.name)(**given | updated, **made, **attrs)
        return self.returned(made, updated)

    def fake(self, *args, **named):
        given, _, dtype, shapes = self.split(args, named)
        return self.returned(self.results(given, dtype, shapes), {p["name"]: torch.empty_like(given[p["name"]]) for p in self.updates})


def _symbols(shape: str) -> set[str]:
    return {n.id for d in shape.split(",") for n in ast.walk(ast.parse(d, mode="eval")) if isinstance(n, ast.Name)}


def _symbol(dim: str) -> str | None:
    """The symbol that an axis of this dim says: of N, 2*N and N/2."""
    if "?" in dim:
        return None
    node = ast.parse(dim, mode="eval").body
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        node = node.right if isinstance(node.left, ast.Constant) else node.left if isinstance(node.right, ast.Constant) else node
    return node.id if isinstance(node, ast.Name) else None


def _bind(dims, shape, sizes):
    """Symbols that an input's axes say."""
    for dim, size in zip(shape.split(","), sizes):
        name = _symbol(dim)
        if name is None or name in dims:
            continue
        node = ast.parse(dim, mode="eval").body
        if isinstance(node, ast.Name):
            dims[name] = size
        elif isinstance(node.op, ast.Mult):
            dims[name] = size // (node.left if isinstance(node.left, ast.Constant) else node.right).value
        elif isinstance(node.right, ast.Constant):
            dims[name] = size * node.right.value


_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv}


def _value(dim, dims):
    def value(node):
        if isinstance(node, ast.BinOp):
            return _ARITHMETIC[type(node.op)](value(node.left), value(node.right))
        return dims[node.id] if isinstance(node, ast.Name) else node.value

    return value(ast.parse(dim, mode="eval").body)


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
