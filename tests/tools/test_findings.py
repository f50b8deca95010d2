"""tests/findings.md: every finding has a row, and what the rows name is there."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FINDINGS = [*(f"A{i}" for i in range(1, 8)), *(f"B{i}" for i in range(1, 10)), *(f"C{i}" for i in range(1, 12)),
            *(f"S{1 if i < 5 else 2 if i < 12 else 3 if i < 22 else 4}-{i}" for i in range(1, 23))]


def rows(text):
    return re.findall(r"^\| ((?:[ABC]\d+|S\d-\d+)[^|]*) \| (.*) \|$", text, re.M)


def missing(text, root):
    """What the rows name and the tree has not."""
    out = []
    for _, held in rows(text):
        for file, name in re.findall(r"`([\w/]+\.(?:py|cc))::(\w+)`", held):
            path = root / "tests" / file
            body = path.read_text() if path.is_file() else ""
            if not re.search(rf"^(?:async )?def {name}\(|^void {name}\(|^TEST\w*\(\w+, {name}\)", body, re.M):
                out.append(f"{file}::{name}")
        for file, words in re.findall(r"`(docs/[\w/]+\.md)` \"([^\"]+)\"", held):
            if words not in (root / file).read_text():
                out.append(f"{file}: {words}")
    return out


def test_every_finding_is_held():
    text = (ROOT / "tests/findings.md").read_text()
    named = [i for title, _ in rows(text) for i in re.findall(r"\b(?:[ABC]\d+|S\d-\d+)\b", title.split(" ", 1)[0] + (title if title.startswith("S2-6,") else ""))]
    assert sorted(set(named)) == sorted(FINDINGS)
    bare = [title for title, held in rows(text) if "::" not in held and not re.fullmatch(r"as (?:A|B|C)\d+", held)]
    assert not bare and missing(text, ROOT) == []


def test_what_is_gone_is_named():
    row = '| A1 x | `test_cli.py::test_that_never_was`, `nosuch.py::test_x`; stays: `docs/errors.md` "no such sentence" |'
    assert missing(row, ROOT) == ["test_cli.py::test_that_never_was", "nosuch.py::test_x", "docs/errors.md: no such sentence"]
