"""Each kernel says at its head when it is the one that runs."""

from pathlib import Path

from . import source

PURPOSE = "kernels say at their head when they are chosen"
ROOM = "vivace/kernels/"


def run(root: Path) -> list[str]:
    out = []
    for name in source.files(root, ROOM, (".cuh",)):
        text = source.text(root, name)
        if "__global__" in text and "// Chosen when: " not in text.split("#pragma once")[0]:
            out.append(f"{name}:1: a kernel without \"// Chosen when: ...\" above its #pragma once")
    return out
