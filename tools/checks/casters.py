"""One nanobind conversion a type, in all files of the module."""

import re
from pathlib import Path

from . import source

PURPOSE = "who converts a std type in python/src includes nanobind's header for it, or the linker may take another file's conversion"
CAST = re.compile(r"\bcast<([^();]*)>\(")
TYPE = re.compile(r"\bstd::(\w+)")


def run(root: Path) -> list[str]:
    out = []
    for name in source.files(root, "python/src/", ends=(".cc", ".h")):
        code = source.cpp_code(source.text(root, name))
        for number, line in enumerate(code.splitlines(), 1):
            for what in (t for m in CAST.finditer(line) for t in TYPE.findall(m[1])):
                if f"#include <nanobind/stl/{what}.h>" not in code:
                    out.append(f"{name}:{number}: converts a std::{what} without #include <nanobind/stl/{what}.h>")
    return out
