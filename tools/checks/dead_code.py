"""Code that is switched off is deleted; git remembers it."""

import ast
import re
import tokenize
from io import StringIO
from pathlib import Path

from . import source

PURPOSE = "no #if 0, no commented-out code"

# A comment line that is one C++ statement, not a sentence that happens to hold a symbol.
CPP_STATEMENT = re.compile(
    r"""^(?:
        [\w:<>*&,\s\[\].]+\s[*&]?\w+(?:\[\w*\])?\s*=[^=].*;          # T x = ...;
      | [\w.\->\[\]:]+\s*[-+*/|&^]?=[^=].*;                          # a.b += ...;
      | (?:[\w:]+(?:\.|->))*[\w:]+(?:<[^>]*>)?\([^;]*\);             # f(x);
      | (?:return|throw|delete|break|continue|goto)\b[^.]*;
      | (?:if|for|while|switch)\s*\(.*\)\s*(?:\{|.*;)
      | \}?\s*else(?:\s+if\s*\(.*\))?\s*\{
      | \#\s*(?:include\s*["<]|define\s+\w+|ifdef\b|ifndef\b|endif\b|pragma\b).*
      | (?:template\s*<.*>|using\s+\w[\w:\s]*=?[^.]*;|namespace\s+\w+\s*\{)
    )\s*(?://.*)?$""",
    re.X,
)
PY_STRONG = (ast.Import, ast.ImportFrom, ast.Raise, ast.Delete, ast.FunctionDef, ast.ClassDef)


def _example(lines: list[str], i: int, mark: str) -> bool:
    """An indented example below a comment line that ends with a colon is documentation."""
    if not re.match(rf"\s*{mark}\s{{3,}}\S", lines[i]):
        return False
    for j in range(i - 1, -1, -1):
        if not re.match(rf"\s*{mark}", lines[j]):
            return False
        if not re.match(rf"\s*{mark}\s{{3,}}\S", lines[j]):
            return lines[j].rstrip().endswith(":")
    return False


def _cpp(body: str):
    for m in re.finditer(r"^[ \t]*#[ \t]*if[ \t]+(?:0|false)\b", source.cpp_code(body), re.M):
        yield body.count("\n", 0, m.start()) + 1, "#if 0"
    lines = body.splitlines()
    for i, line in enumerate(lines):
        m = re.match(r"\s*//(?!/|!)\s*(.*)", line)
        if m and CPP_STATEMENT.match(m.group(1)) and not _example(lines, i, "//"):
            yield i + 1, f"commented-out code: {m.group(1)[:60]}"


def _py_statement(text: str) -> bool:
    """A comment that parses as a statement nobody writes as a sentence or a formula."""
    for candidate in (text, text + "\n    pass" if text.endswith(":") else ""):
        try:
            tree = ast.parse(candidate)
        except (SyntaxError, ValueError):
            continue
        if len(tree.body) != 1:
            continue
        node = tree.body[0]
        if isinstance(node, PY_STRONG):
            return True
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            return isinstance(target, ast.Attribute) and ast.unparse(target).startswith("self.")
        if isinstance(node, (ast.If, ast.For, ast.While, ast.With)):
            head = node.test if isinstance(node, (ast.If, ast.While)) else None
            return head is None or any(
                isinstance(n, (ast.Call, ast.Compare, ast.Attribute)) for n in ast.walk(head))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func)
            return called in {"print", "breakpoint"} or called.startswith("self.")
    return False


def _py(body: str):
    lines = body.splitlines()
    try:
        tokens = list(tokenize.generate_tokens(StringIO(body).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return
    for t in tokens:
        alone = t.type == tokenize.COMMENT and t.line.strip().startswith("#")
        content = t.string.lstrip("#").strip() if alone else ""
        if content and _py_statement(content) and not _example(lines, t.start[0] - 1, "#"):
            yield t.start[0], f"commented-out code: {content[:60]}"


def run(root: Path) -> list[str]:
    out = []
    for name in source.files(root, ends=source.CODE):
        body = source.text(root, name)
        found = _cpp(body) if name.endswith(source.CPP) else _py(body) if name.endswith(".py") else ()
        out += [f"{name}:{line}: {what}" for line, what in found]
    return out
