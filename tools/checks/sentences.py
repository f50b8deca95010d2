"""What users read is written in short sentences."""

import re
import statistics
from pathlib import Path

from . import source

PURPOSE = "user pages have short sentences: 18 words in the median, 45 at most"
MEDIAN, LONGEST = 18, 45
SHORTEST = 3  # what has fewer words is a label and would only pull the median down
BLANKED = re.compile(r"^[ \t]*```.*?^[ \t]*```|<!--.*?-->|^[ \t]*(?:\||#{1,6} )[^\n]*", re.M | re.S)  # code, comments, tables, headings
LINK = re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)")
MARKED = re.compile(r" at [0-9a-f]{7}$")  # which tools/figures.py puts behind a stale figure
PARAGRAPH = re.compile(r"\n[ \t]*\n|\n[ \t]*(?:[-*]|\d+\.)[ \t]+")  # a list's item is one, too
END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\.\.)[.!?][)\"'*_]*(?=\s|$)")
LINKED = re.compile(r"\]\(([^)\s#]+\.md)[^)]*\)")


def user_pages(root: Path) -> list[str]:
    """README.md and what the first section of docs/index.md leads to in docs/. A README.md there stands for its folder."""
    sections = re.split(r"^## ", source.text(root, "docs/index.md") if (root / "docs/index.md").is_file() else "", flags=re.M)
    linked = {f"docs/{m}" for m in LINKED.findall(sections[1] if len(sections) > 1 else "")}
    folders = tuple(page.removesuffix("README.md") for page in linked if page.endswith("/README.md"))
    return [f for f in source.files(root, ends=(".md",)) if f == "README.md" or f in linked or folders and f.startswith(folders)]


def sentences(body: str) -> list[tuple[int, str]]:
    """(line, sentence) of a page's prose; a piece of inline code is one word."""
    # What is left out keeps its lines, so that numbers stay right; it ends a paragraph.
    body = BLANKED.sub(lambda m: "\n" * m.group(0).count("\n"), body)
    body = LINK.sub(lambda m: MARKED.sub("", m.group(1)), body)
    body = re.sub(r"`[^`]*`", lambda m: "code" + "\n" * m.group(0).count("\n"), body)
    out, begin = [], 0
    for stop in [m.span() for m in PARAGRAPH.finditer(body)] + [(len(body), len(body))]:
        for end in [begin + m.end() for m in END.finditer(body[begin:stop[0]])] + [stop[0]]:
            piece = body[begin:end]
            if piece.strip():
                line = 1 + body.count("\n", 0, begin + len(piece) - len(piece.lstrip()))
                out.append((line, " ".join(piece.split())))
            begin = end
        begin = stop[1]
    return out


def words(sentence: str) -> int:
    return sum(1 for w in sentence.split() if re.search(r"\w", w))


def run(root: Path) -> list[str]:
    out = []
    for name in user_pages(root):
        counts = []
        for line, sentence in sentences(source.text(root, name)):
            counts.append(n := words(sentence))
            if n > LONGEST:
                out.append(f"{name}:{line}: a sentence of {n} words, at most {LONGEST}: '{' '.join(sentence.split()[:8])} ...'")
        counts = [n for n in counts if n >= SHORTEST]
        if counts and (median := statistics.median(counts)) > MEDIAN:
            out.append(f"{name}: {median:g} words a sentence in the median, at most {MEDIAN}: one thought a sentence")
    return out
