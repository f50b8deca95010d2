"""Long files are looked at twice; very long ones say why."""

import re
from pathlib import Path

from . import source

PURPOSE = "code files: above 400 lines a note, above 800 only with a 'size:' line that says why"
LOOK, LIMIT, HEAD = 400, 800, 10
REASON = re.compile(r"^\s*(?://|#|--)\s*size:\s*\S.{15,}", re.M)


def _long(root: Path):
    for name in source.code_files(root):
        body = source.text(root, name)
        lines = len(body.splitlines())
        if lines > LOOK:
            head = "\n".join(body.splitlines()[:HEAD])
            yield name, lines, bool(REASON.search(head))


def run(root: Path) -> list[str]:
    return [
        f"{name}: {lines} lines; split it, or say why in its first {HEAD} lines (// size: reason)"
        for name, lines, reason in _long(root)
        if lines > LIMIT and not reason
    ]


def notes(root: Path) -> list[str]:
    return [
        f"{name}: {lines} lines; does it hold two things?"
        for name, lines, _ in _long(root)
        if lines <= LIMIT
    ]
