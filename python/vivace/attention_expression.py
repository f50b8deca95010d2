"""Expressions of vivace.attention.variant(): a small part of Python, checked and typed, as C++ for the kernels
and as NumPy for host arrays.

    int and float literals, True, False; + - * / // % **; comparisons, chained too; and, or, not; & | ^ ~ << >>;
    a if c else b; the names of the hook; extras by name, tensors as bias[h, j]; and FUNCTIONS.
"""
import ast
import math

import numpy as np

from vivace.errors import InvalidArgumentError

INDICES = ("t", "pos", "slot", "h", "kv", "j")
FUNCTIONS = {  # name: (C++, NumPy, how many arguments)
    "exp": ("expf", np.exp, 1), "log": ("logf", np.log, 1), "sqrt": ("sqrtf", np.sqrt, 1), "tanh": ("tanhf", np.tanh, 1), "sin": ("sinf", np.sin, 1),
    "cos": ("cosf", np.cos, 1), "floor": ("floorf", np.floor, 1), "sigmoid": ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), 1),
    "abs": ("absolute", np.abs, 1), "min": ("minimum", np.minimum, 2), "max": ("maximum", np.maximum, 2), "where": ("where", np.where, 3),
    "int": ("static_cast<int>", lambda x: np.trunc(x).astype(np.int32), 1), "float": ("static_cast<float>", lambda x: np.asarray(x, np.float32), 1),
}
_COMPARE = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_BITS = {ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^"}


class Expression:
    """One hook's text, checked. `names`: name -> "int" or "float"; `extra`: name -> Field."""

    def __init__(self, hook, text, names, extra, wanted):
        self.hook, self.text, self.names, self.extra = hook, text, names, extra
        if not isinstance(text, str):
            raise TypeError(f"attention variant: {hook} must be a string, got {type(text).__name__}")
        self.source = text.strip()
        try:
            self.tree = ast.parse(self.source, mode="eval").body
        except SyntaxError as e:
            raise self.error(e.msg, (e.offset or 1) - 1, e.lineno or 1) from None
        code, kind = self.emit(self.tree)
        if wanted == "bool" and kind != "bool":
            raise self.error(f"wanted true or false, this is {kind}", 0)
        self.cpp = code if kind == wanted else f"static_cast<float>({code})"
        self.code = compile(ast.Expression(self.tree), f"<{hook}>", "eval")

    def error(self, why, column, line=1):
        shown = self.source.splitlines() or [""]
        return InvalidArgumentError(f"attention variant: {self.hook}: {why}\n    {shown[min(line, len(shown)) - 1]}\n    {' ' * column}^")

    def fail(self, node, why):
        raise self.error(why, node.col_offset, node.lineno)

    def emit(self, node):
        """(C++, "int" | "float" | "bool")"""
        method = getattr(self, "_" + type(node).__name__.lower(), None)
        if method is None:
            self.fail(node, f"{type(node).__name__} is not part of the expressions of variants")
        return method(node)

    def _constant(self, node):
        v = node.value
        if isinstance(v, bool):
            return ("true" if v else "false"), "bool"
        if isinstance(v, int):
            if not -2**31 <= v < 2**31:
                self.fail(node, "the integer does not fit 32 bits")
            return str(v), "int"
        if isinstance(v, float) and math.isfinite(v):
            return f"{np.float32(v)!r}".split("(")[-1].rstrip(")") + "f", "float"
        self.fail(node, f"a number was expected, got {v!r}")

    def _name(self, node):
        if node.id == "inf":
            return "__int_as_float(0x7f800000)", "float"
        if node.id in self.names:
            kind = self.names[node.id]
            return (f"at.{node.id}" if node.id in INDICES else node.id), kind
        field = self.extra.get(node.id)
        if field is None:
            known = [*self.names, *self.extra, *FUNCTIONS, "inf"]
            self.fail(node, f"no name '{node.id}' here; there are {', '.join(known)}")
        if field.tensor:
            self.fail(node, f"{node.id} is a tensor: give indices, such as {node.id}[h]")
        return f"extra.{node.id}", ("int" if field.dtype == "i32" else "float")

    def _subscript(self, node):
        field = self.extra.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if field is None or not field.tensor:
            self.fail(node, "only extra tensors have indices")
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not 1 <= len(indices) <= 3:
            self.fail(node, f"a tensor takes 1 to 3 indices, got {len(indices)}")
        if field.rank not in (None, len(indices)):
            self.fail(node, f"{node.value.id} has {field.rank} indices elsewhere, {len(indices)} here")
        field.rank = len(indices)
        parts = []
        for i in indices:
            code, kind = self.emit(i)
            if kind != "int":
                self.fail(i, f"an index must be an integer, this is {kind}")
            parts.append(code)
        return f"extra.{node.value.id}({', '.join(parts)})", ("int" if field.dtype == "i32" else "float")

    def number(self, node):
        code, kind = self.emit(node)
        return (f"static_cast<int>({code})", "int") if kind == "bool" else (code, kind)

    def truth(self, node):
        code, kind = self.emit(node)
        return code if kind == "bool" else f"({code} != 0)"

    def both(self, a, b):
        """Two numbers of one kind."""
        (x, kx), (y, ky) = self.number(a), self.number(b)
        if kx == ky:
            return x, y, kx
        return (x if kx == "float" else f"static_cast<float>({x})"), (y if ky == "float" else f"static_cast<float>({y})"), "float"

    def _binop(self, node):
        op = type(node.op)
        if op in _BITS:
            (x, kx), (y, ky) = self.emit(node.left), self.emit(node.right)
            if kx != ky or kx == "float":
                self.fail(node, f"{_BITS[op]} wants two truths or two integers, got {kx} and {ky}")
            return f"({x} {_BITS[op]} {y})", kx
        x, y, kind = self.both(node.left, node.right)
        if op in _ARITHMETIC:
            return f"({x} {_ARITHMETIC[op]} {y})", kind
        if op is ast.Div:
            return f"divide(static_cast<float>({x}), static_cast<float>({y}))", "float"
        if op is ast.FloorDiv:
            return f"floor_divide({x}, {y})", kind
        if op is ast.Mod:
            return f"modulo({x}, {y})", kind
        if op is ast.Pow:
            return f"powf({x}, {y})", "float"
        if op in (ast.LShift, ast.RShift) and kind == "int":
            return f"shift_{'left' if op is ast.LShift else 'right'}({x}, {y})", "int"
        self.fail(node, f"{type(node.op).__name__} does not take {kind}")

    def _unaryop(self, node):
        if isinstance(node.op, ast.Not):
            return f"(!{self.truth(node.operand)})", "bool"
        code, kind = self.emit(node.operand)
        if isinstance(node.op, ast.Invert):
            if kind == "float":
                self.fail(node, "~ wants a truth or an integer")
            return (f"(!{code})" if kind == "bool" else f"(~{code})"), kind
        code, kind = self.number(node.operand)
        return f"({'-' if isinstance(node.op, ast.USub) else ''}{code})", kind

    def _boolop(self, node):
        return "(" + (" && " if isinstance(node.op, ast.And) else " || ").join(self.truth(v) for v in node.values) + ")", "bool"

    def _compare(self, node):
        parts, left = [], node.left
        for op, right in zip(node.ops, node.comparators):
            if type(op) not in _COMPARE:
                self.fail(node, f"{type(op).__name__} is not a comparison of numbers")
            x, y, _ = self.both(left, right)
            parts.append(f"{x} {_COMPARE[type(op)]} {y}")
            left = right
        return "(" + " && ".join(parts) + ")", "bool"

    def choose(self, condition, yes, no):
        kinds = {self.emit(yes)[1], self.emit(no)[1]}
        if kinds == {"bool"}:
            return f"({self.truth(condition)} ? {self.emit(yes)[0]} : {self.emit(no)[0]})", "bool"
        x, y, kind = self.both(yes, no)
        return f"({self.truth(condition)} ? {x} : {y})", kind

    def _ifexp(self, node):
        return self.choose(node.test, node.body, node.orelse)

    def _call(self, node):
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name not in FUNCTIONS:
            self.fail(node, f"no such function; there are {', '.join(FUNCTIONS)}")
        cpp, _, count = FUNCTIONS[name]
        if node.keywords or len(node.args) != count or any(isinstance(a, ast.Starred) for a in node.args):
            self.fail(node, f"{name} takes {count} argument{'s' * (count > 1)}")
        if name == "where":
            return self.choose(*node.args)
        if name in ("min", "max"):
            x, y, kind = self.both(*node.args)
            return f"{cpp}({x}, {y})", kind
        code, kind = self.number(node.args[0])
        if name == "abs":
            return f"{cpp}({code})", kind
        return f"{cpp}(static_cast<float>({code}))", ("int" if name == "int" else "float")


class HostTensor:
    """An extra tensor as NumPy expressions index it: 0 outside of its shape, as in the kernels."""

    def __init__(self, array):
        self.array = array

    def __getitem__(self, index):
        index = np.broadcast_arrays(*[np.asarray(i, np.int64) for i in (index if isinstance(index, tuple) else (index,))])
        inside = np.ones(index[0].shape, bool)
        for i, n in zip(index, self.array.shape):
            inside &= (i >= 0) & (i < n)
        return np.where(inside, self.array[tuple(np.where(inside, i, 0) for i in index)], 0)


class _Vector(ast.NodeTransformer):
    """and, or, not, chains and conditionals of scalars become those of arrays."""

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        name = "_and" if isinstance(node.op, ast.And) else "_or"
        return self._call(name, node.values, node)

    def visit_UnaryOp(self, node):
        self.generic_visit(node)
        return self._call("_not", [node.operand], node) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node):
        self.generic_visit(node)
        return self._call("where", [node.test, node.body, node.orelse], node)

    def visit_Compare(self, node):
        self.generic_visit(node)
        pairs = zip([node.left, *node.comparators], node.ops, node.comparators)
        parts = [ast.Compare(a, [op], [b]) for a, op, b in pairs]
        return parts[0] if len(parts) == 1 else self._call("_and", parts, node)

    @staticmethod
    def _call(name, args, node):
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), args, []), node)


_HOST = {name: f for name, (_, f, _) in FUNCTIONS.items()} | {
    "inf": np.float32(np.inf), "_not": np.logical_not, "__builtins__": {},
    "_and": lambda *v: np.logical_and.reduce(np.broadcast_arrays(*v)), "_or": lambda *v: np.logical_or.reduce(np.broadcast_arrays(*v))}


def on_host(expression, values):
    """The expression's value for NumPy arrays by name."""
    tree = ast.fix_missing_locations(ast.Expression(_Vector().visit(ast.parse(expression.source, mode="eval").body)))
    with np.errstate(all="ignore"):
        return eval(compile(tree, f"<{expression.hook}>", "eval"), _HOST | values)  # noqa: S307: checked by emit()
