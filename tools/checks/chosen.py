"""Rooms with several kernels an op say at each kernel's head when it is the one that runs."""

from pathlib import Path

from . import source

PURPOSE = "kernels of attention and gemm say at their head when they are chosen"
ROOMS = ("vivace/kernels/attention/", "vivace/kernels/gemm/")


def run(root: Path) -> list[str]:
    out = []
    for name in (f for room in ROOMS for f in source.files(root, room, (".cuh",))):
        text = source.text(root, name)
        if "__global__" in text and "// Chosen when: " not in text.split("#pragma once")[0]:
            out.append(f"{name}:1: a kernel without \"// Chosen when: ...\" above its #pragma once")
    return out
