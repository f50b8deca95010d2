"""Lines of C++ are as wide as .clang-format says, at most."""

import re
from pathlib import Path

from . import source

PURPOSE = "lines of C, C++ and CUDA keep .clang-format's ColumnLimit; tables of macros (.def) may be wider"
_ENDS = tuple(e for e in source.CPP if e != ".def")
_LIMIT = re.compile(r"^ColumnLimit:\s*(\d+)", re.M)


def run(root: Path) -> list[str]:
    if not (limit := _LIMIT.search(source.text(root, ".clang-format"))):
        return [".clang-format: names no ColumnLimit"]
    widest = int(limit[1])
    return [
        f"{name}:{number}: {len(line)} characters, at most {widest}; clang-format --lines={number}:{number} breaks it"
        for name in source.files(root, ends=_ENDS)
        for number, line in enumerate(source.text(root, name).splitlines(), 1)
        if len(line) > widest
    ]
