"""Links in the docs lead somewhere."""

import re
from pathlib import Path

from . import source

PURPOSE = "relative links and anchors in *.md resolve; every page of docs/ is in the index"
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)(?: \"[^\"\n]*\")?\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)


def anchors(body: str) -> set[str]:
    heads = re.findall(r"^#{1,6}\s+(.+?)\s*$", FENCE.sub("", body), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


def run(root: Path) -> list[str]:
    out = []
    linked = set()
    for name in source.files(root, ends=(".md",)):
        body = source.text(root, name)
        # Blank fences, keep their lines, so that numbers stay right.
        prose = FENCE.sub(lambda m: "\n" * m.group(0).count("\n"), body)
        for m in LINK.finditer(prose):
            target, _, anchor = m.group(1).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            line = prose.count("\n", 0, m.start()) + 1
            path = (root / name).parent / target if target else root / name
            if not path.exists():
                out.append(f"{name}:{line}: {m.group(1)} leads nowhere")
            elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()):
                out.append(f"{name}:{line}: {m.group(1)}: no such heading")
            if name.startswith("docs/") and path.exists():
                linked.add(path.resolve())
    index = root / "docs/index.md"
    if index.is_file():
        reach = {index.resolve(), (root / "docs/README.md").resolve()} | linked
        out += [f"{name}: docs/index.md leads to no page that links here"
                for name in source.files(root, "docs/", (".md",)) if (root / name).resolve() not in reach]
    return out
