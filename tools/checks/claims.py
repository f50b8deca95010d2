"""A figure that users read is a receipt's, and says its commit where the code has changed since."""

import re
from pathlib import Path

from tools import figures

from . import source

PURPOSE = "figures in README and docs are those of receipts, and stale ones say their commit"
MEASURED = re.compile(r"\d(?:[\d.,]*\d)? ?(?:us|µs|ms|GB/s|TFLOP/s|tokens/s|tokens a second)\b")
LINK_OR_CODE = re.compile(r"\[[^\]\n]*\]\([^)\n]*\)|`[^`\n]*`")
NO_CLAIM = re.compile(r"<!-- no claim: [^>\n]+ -->")  # a goal, an order of magnitude, another's figure: it says which


def _user_page(name: str) -> bool:
    return name == "README.md" or (name.startswith("docs/") and not name.startswith("docs/design/"))


def run(root: Path) -> list[str]:
    out, receipts = [], figures.Receipts(root)
    for name in source.files(root, ends=(".md",)):
        body = source.text(root, name)
        out += [f"{name}:{line}" for line in figures.put_right(root / name, body, receipts)[1]]
        if _user_page(name):
            prose = figures.FENCE.sub(lambda m: "\n" * m.group(0).count("\n"), body)
            for at, line in enumerate(prose.splitlines(), 1):
                if not NO_CLAIM.search(line) and (m := MEASURED.search(LINK_OR_CODE.sub("", line))):
                    out.append(f"{name}:{at}: {m.group(0)!r} names no receipt: link it to its row (tools/figures.py), or say <!-- no claim: why -->")
    return out
