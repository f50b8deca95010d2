"""What a chip has stands in one row of base/arch.h, and nowhere else."""

import re
from pathlib import Path

from . import source

PURPOSE = "sizes and features of chips come from chip() of base/arch.h: no SM count, no shared-memory size, no comparison of Arch elsewhere"
TABLE = "vivace/base/arch.h"
# Headers of kernels, which NVRTC reads, do not know the table; an assertion holds them to it.
HELD = {"vivace/kernels/norm/norm.h": "vivace/ops/norm.h", "vivace/kernels/attention/attention.h": "vivace/ops/attention_gpu.h"}
SIZES = re.compile(r"\b(?:(?:99|100|113|114|163|164|227|228) ?(?:\* ?1024|<< ?10)|101376|102400|166912|167936|232448|233472)\b")
COUNT = re.compile(r"(?:[=<>*/%?:]|return) ?132\b(?!,)")
COMPARED = re.compile(r"\barch\w*(?:\(\))? ?(?:[<>]=?|[!=]=) ?Arch::sm")


def run(root: Path) -> list[str]:
    out = []
    for name in source.files(root, "vivace/", ends=source.CPP):
        if name == TABLE or (name in HELD and "static_assert(" in source.text(root, HELD[name])):
            continue
        for number, line in enumerate(source.cpp_code(source.text(root, name)).splitlines(), 1):
            for pattern, what in ((SIZES, "a chip's shared memory"), (COUNT, "a chip's SM count"), (COMPARED, "a comparison of chips")):
                if m := pattern.search(line):
                    out.append(f"{name}:{number}: {m[0].strip()}: {what} is asked of chip() in {TABLE}")
    return out
