"""A copied run is a function that was not written."""

import re
from collections import defaultdict
from pathlib import Path

from . import source

PURPOSE = "no copied run over 20 lines"
RUN = 20
NOISE = re.compile(r"^(?:[{}()\[\];,]*|#\s*(?:include|pragma)\b.*|import\s.*|from\s.*import.*|using\s.*)$")


def _normalised(root: Path, name: str) -> list[tuple[int, str]]:
    body = source.text(root, name)
    if name.endswith(source.CPP):
        body = source.cpp_code(body)
    else:
        body = re.sub(r"(?m)^\s*#.*$", "", body)
    lines = ((n, re.sub(r"\s+", "", line)) for n, line in enumerate(body.splitlines(), 1))
    return [(n, line) for n, line in lines if not NOISE.match(line)]


def run(root: Path) -> list[str]:
    size = RUN + 1
    lines = {name: _normalised(root, name) for name in source.code_files(root)}
    places = defaultdict(list)
    for name, body in lines.items():
        for i in range(len(body) - size + 1):
            places[hash(tuple(line for _, line in body[i:i + size]))].append((name, i))
    starts = {}  # (name, name, distance) -> end of the last reported run, so that each is named once
    out = []
    for found in sorted(p for p in places.values() if len(p) > 1):
        a = found[0]
        for b in found[1:]:
            if a[0] == b[0] and abs(a[1] - b[1]) < size:
                continue  # a run that overlaps itself: a table of like rows
            key = (a[0], b[0], b[1] - a[1])
            fresh = a[1] > starts.get(key, -2) + 1
            starts[key] = a[1]
            if fresh:
                out.append(f"{a[0]}:{lines[a[0]][a[1]][0]} and {b[0]}:{lines[b[0]][b[1]][0]} "
                           f"share a run over {RUN} lines")
    return out
