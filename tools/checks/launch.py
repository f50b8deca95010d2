"""One checked launch(), no lost Status, no assert that prints nothing."""

import re
from pathlib import Path

from . import source

PURPOSE = "no raw launches, no discardable Status or Result, no bare assert"
TYPED = re.compile(
    r"(?:class|struct)\s+(?P<nd>\[\[nodiscard[^\]]*\]\]\s*)?(?:VV_\w+\s+)?(?P<t>Status|Result)\s*"
    r"(?:final\s*)?[{:]"
)
RETURNS = re.compile(
    r"^[ \t]*(?P<nd>\[\[nodiscard[^\]]*\]\][ \t]*)?"
    r"(?:(?:inline|static|constexpr|virtual|friend|explicit)[ \t]+)*"
    r"(?P<t>Status|Result)\b[^;{}()=\n]*?[ \t&>](?P<f>\w+)\(",
    re.M,
)


def _line(code: str, at: int) -> int:
    return code.count("\n", 0, at) + 1


def run(root: Path) -> list[str]:
    out = []
    code = {n: source.cpp_code(source.text(root, n), strings=False)
            for n in source.files(root, "vivace/", source.CPP)}
    typed = {m.group("t") for c in code.values() for m in TYPED.finditer(c) if m.group("nd")}
    for name, body in code.items():
        for m in re.finditer(r"<<<", body):
            out.append(f"{name}:{_line(body, m.start())}: raw launch; use the one launch()")
        for m in re.finditer(r"(?<!\w)assert\s*\(", body):
            out.append(f"{name}:{_line(body, m.start())}: bare assert; use a check that prints both sides")
        if not name.endswith((".h", ".hpp")):
            continue
        for m in TYPED.finditer(body):
            if not m.group("nd"):
                out.append(f"{name}:{_line(body, m.start())}: {m.group('t')} is not [[nodiscard]]")
        for m in RETURNS.finditer(body):
            if not m.group("nd") and m.group("t") not in typed:
                out.append(f"{name}:{_line(body, m.start())}: {m.group('f')}() returns "
                           f"{m.group('t')} and is not [[nodiscard]]")
    return out
