"""Fingerprints of what a result depends on: sources without their comments and layout, references, tests, kernels.

Names of files are no part of one, so that a renamed file is the same file. What the kernels' fingerprints are is told
by tests/kernels.json (tools/kernel_table makes it), so that checks need no compiler.
"""
import ast
import hashlib
import json
import re
from functools import lru_cache
from pathlib import Path

DIGITS = 12
TABLE = "tests/kernels.json"
_CPP = (".h", ".cuh", ".cc", ".cu", ".c", ".inc", ".def")
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|\s+|\w+|[^\w\s]', re.S)
_INCLUDE = re.compile(r'^\s*#\s*include\s+"(vivace/[^"]+)"', re.M)


def short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _cpp(text: str) -> str:
    """Tokens, a line each; comments and layout do not count, nor does where a long string is broken in two (a raw
    string's inside does not matter to anyone here)."""
    tokens = []
    for t in TOKEN.findall(text.replace("\\\n", "\n")):  # a macro's lines are layout too
        if t.isspace() or t.startswith(("//", "/*")):
            continue
        if t[0] == '"' and tokens and tokens[-1][0] == '"' and len(t) > 1:
            tokens[-1] = tokens[-1][:-1] + t[1:]
        else:
            tokens.append(t)
    return "\n".join(tokens)


def _undocumented(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
            node.body = body[1:] or [ast.Pass()]
    return tree


def _plain(node) -> str:
    """A syntax tree as text that every version of Python writes alike."""
    if isinstance(node, ast.AST):
        fields = [(f, _plain(v)) for f, v in ast.iter_fields(node) if v not in (None, []) and f not in ("ctx", "kind", "type_comment", "type_params")]
        return f"{type(node).__name__}({', '.join(f'{f}={v}' for f, v in fields)})"
    return f"[{', '.join(map(_plain, node))}]" if isinstance(node, list) else repr(node)


@lru_cache(maxsize=None)
def _of_file(path: Path, _stamp) -> str:
    data = path.read_bytes()
    try:
        if path.suffix in _CPP:
            return _cpp(data.decode())
        if path.suffix == ".py":
            return _plain(_undocumented(ast.parse(data)))
    except (UnicodeDecodeError, SyntaxError):
        pass  # then its bytes are what it is
    return hashlib.sha256(data).hexdigest()


def content(root: Path, name: str) -> str:
    """A file without comments and layout."""
    path = Path(root) / name
    s = path.stat()
    return _of_file(path, (s.st_mtime_ns, s.st_size))


def sources(root: Path, files) -> str:
    """Of files, in whatever order and by whatever name."""
    return "tokens:" + hashlib.sha256("\n\0".join(sorted(content(root, f) for f in files)).encode()).hexdigest()


def closure(root: Path, name: str) -> list[str]:
    """A file and every file of the project that it includes, directly or through others."""
    seen, todo = set(), [name]
    while todo:
        f = todo.pop()
        path = Path(root) / f
        if f in seen or not path.is_file():
            continue
        seen.add(f)
        todo += _INCLUDE.findall(path.read_text(errors="replace"))
    return sorted(seen)


def kernel_sources(root: Path, op: str, header: str) -> str:
    """Of all that decides which kernels an op has and what they are: a change asks for its rows of the table anew."""
    return short(sources(root, {*closure(root, f"vivace/ops/{op}.h"), *closure(root, header if header.startswith("vivace/") else f"vivace/{header}")}))


def table(root: Path) -> dict:
    """tests/kernels.json; {} of a tree without one."""
    path = Path(root) / TABLE
    return json.loads(path.read_text()) if path.is_file() else {"ops": {}}


def outdated(root: Path) -> list[str]:
    """Ops whose kernels' sources have changed since the table was made."""
    return [op for op, row in table(root)["ops"].items()
            if not (Path(root) / f"vivace/ops/{op}.h").is_file() or kernel_sources(root, op, row["header"]) != row["sources"]]


def kernels_of(row: dict) -> str:
    """All kernels of an op together, as a row of the table has them."""
    return short("\n".join(sorted(row["kernels"].values())))


def reference(root: Path, op: str) -> str | None:
    """Of an op's float64 reference and bound; its list of cases is no part of it, for a row names its case."""
    path = Path(root) / f"tests/ref/{op}.py"
    if not path.is_file():
        return None
    tree = _undocumented(ast.parse(path.read_bytes()))
    kept = [n for n in tree.body if not _is_cases(n)]
    return short("\n".join(_plain(n) for n in kept))


def _is_cases(node) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []
    if any(isinstance(t, ast.Name) and t.id == "CASES" for t in targets):
        return True
    return isinstance(node, ast.Expr) and "CASES" in {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}  # CASES.extend(...)


def test(root: Path, name: str, function: str) -> str | None:
    """Of one test: the function itself and what its file holds beside tests. None where there is no such test."""
    path = Path(root) / name
    if not path.is_file():
        return None
    tree = _undocumented(ast.parse(path.read_bytes()))
    own = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function]
    if not own:
        return None
    shared = [n for n in tree.body if not (isinstance(n, ast.FunctionDef) and n.name.startswith("test_"))]
    return short("\n".join(_plain(n) for n in [*own, *shared]))
