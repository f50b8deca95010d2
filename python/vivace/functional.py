"""The functional form of each op: inputs go in, what the op writes comes out as new tensors. Shapes and dtypes of that follow from the op
table; frameworks whose functions return tensors (torch_ops, jax_ops) build on it. Nothing of a framework is imported here.
"""
import ast
import operator

from vivace.errors import InvalidArgumentError, InvalidShapeError

__all__ = ["Form"]


class Form:
    """One row of the op table: inputs alone, what it writes returned. Required ports that the op updates (a state, a workspace) are taken and
    returned as new tensors, behind the outputs. Optional outputs and updates are there for who asks for them.
    """

    def __init__(self, row):
        self.name, self.ports, self.attrs = row["name"], row["ports"], row["attrs"]
        self.outs = [p for p in self.ports if p["io"] == "out" and not p["optional"]]
        self.updates = [p for p in self.ports if p["io"] == "inout" and not p["optional"]]
        self.inputs = [p for p in self.ports if p["io"] == "in" or p in self.updates]
        self.optional_outs = [p for p in self.ports if p["io"] == "out" and p["optional"]]
        self.optional_updates = [p for p in self.ports if p["io"] == "inout" and p["optional"]]
        inputs = {p["name"] for p in self.inputs}
        self.by_scale = [p for p in self.outs if p["name"] != "out" and f"{p['name']}_scale" in inputs]  # e4m3 where their scale is given
        self.typed = [p for p in self.outs if "|" in p["dtypes"] and p not in self.by_scale]

        # Outputs whose shapes do not follow from the inputs', or from optional ones alone: the caller says them, or may.
        required = [i for i in self.inputs if not i["optional"]]
        self.shaped = {p["name"]: "" if self._unknown(p, self.inputs) else "?" for p in self.outs if self._unknown(p, required)}

    @staticmethod
    def _unknown(out, inputs) -> bool:
        known = {n for p in inputs for d in p["shape"].split(",") for n in [_symbol(d)] if n}
        return "?" in out["shape"] or not _symbols(out["shape"]) <= known

    def results(self, given, dtype=None, shapes=None, asked=()):
        """{output: (shape, dtype)} for inputs {port: (shape, dtype)}. `dtype`: of outputs that leave a choice; `shapes`: of outputs, where the
        caller says them; `asked`: names of optional outputs. Dtypes are the op table's names, or whatever stands for one that it lacks.
        Errors: InvalidShapeError (nothing says a dim), InvalidArgumentError (a dtype that the output cannot have).
        """
        dims, types = {}, {name: of for name, (_, of) in given.items()}
        for p in self.ports:
            if p["name"] in given:
                _bind(dims, p["shape"], given[p["name"]][0])
        made = {}
        for p in (*self.outs, *(p for p in self.optional_outs if p["name"] in asked)):
            name = p["name"]
            try:
                if shapes and name in shapes:
                    shape = shapes[name]
                    _bind(dims, p["shape"], shape)
                elif "?" in p["shape"]:
                    raise InvalidShapeError(f"{self.name}: {name}: no input's shape says its own; give {name}_shape")
                else:
                    shape = [_value(d, dims) for d in p["shape"].split(",")]
            except KeyError as e:
                raise InvalidShapeError(f"{self.name}: {name} [{p['shape']}]: nothing that was given says {e}; give {name}_shape") from None
            types[name] = self._dtype(p, types, dtype)
            made[name] = (tuple(shape), types[name])
        return made

    def _dtype(self, port, types, asked):
        if port["dtypes"].startswith("="):
            return types[port["dtypes"][1:]]
        allowed = port["dtypes"].split("|")
        first = next(iter(types.values()))
        if port in self.by_scale:
            return "e4m3" if f"{port['name']}_scale" in types else types.get("out", first)
        wanted = asked if asked is not None and port in self.typed else first if first in allowed else allowed[0]
        if wanted not in allowed:
            raise InvalidArgumentError(f"{self.name}: dtype: {port['name']} is one of {port['dtypes']}, got {wanted}")
        return wanted

    def split(self, args, named):
        """(inputs, attributes, dtype, shapes) of a call: required inputs by position, the rest by name; None is not given."""
        required = [p["name"] for p in self.inputs if not p["optional"]]
        everything = dict(zip(required, args)) | {k: v for k, v in named.items() if v is not None}
        outs = [p["name"] for p in (*self.outs, *self.optional_outs)]
        dtype, shapes = everything.pop("dtype", None), {name: everything.pop(f"{name}_shape") for name in outs if f"{name}_shape" in everything}
        inputs = {p["name"]: everything.pop(p["name"]) for p in (*self.inputs, *self.optional_updates) if p["name"] in everything}
        return inputs, everything, dtype, shapes


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
