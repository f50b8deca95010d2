#!/usr/bin/env python3
"""Figures in Markdown come from receipts: a figure is a link to its receipt, and the link's title names the row.

    [4.02 ms](bench/results/h200/llm.json "p50_us in ms of model=qwen3-8b,batch=1,ctx=1024,kv=bf16,metric=step as bf16")

Title: COLUMN [in UNIT] of CASE [as DTYPE] [with OP]. The first number of the link's text is the figure, to the decimals
that it has. Where the row is stale (docs/receipts.md) the text ends with " at " and the commit that was measured.

    python tools/figures.py            # says what is wrong, exit status 1
    python tools/figures.py --write    # puts every figure and commit right
"""
import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.receipt_rows import Now, why_stale  # noqa: E402

LINK = re.compile(r'\[(?P<text>[^\]\n]*)\]\((?P<path>[^)\s]*results/[\w./-]+\.json) "(?P<title>[^"\n]+)"\)')
TITLE = re.compile(r"(?P<column>\w+)(?: in (?P<unit>\S+))? of (?P<case>\S+)(?: as (?P<dtype>\S+))?(?: with (?P<op>\S+))?")
NUMBER = re.compile(r"\d[\d,]*(?:\.(\d+))?")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
COMMIT = re.compile(r" at [0-9a-f]{7}$")
UNITS = {"us": lambda us: us, "ms": lambda us: us / 1e3, "s": lambda us: us / 1e6, "/s": lambda us: 1e6 / us, "%": lambda part: part * 100}


class Receipts:
    """Receipts that were read, and what the tree says of their rows."""

    def __init__(self, root: Path):
        self.root, self._read, self._now = root, {}, None

    def row(self, path: Path, title: dict):
        """The receipt and its one row that `title` names. Errors: ValueError."""
        if path not in self._read:
            try:
                self._read[path] = json.loads(path.read_text())
            except (OSError, ValueError) as e:
                raise ValueError(f"{path.name} cannot be read: {e}") from e
        data = self._read[path]
        rows = [r for r in data["rows"] if r["case"] == title["case"] and all(title[k] in (None, r.get(k)) for k in ("dtype", "op"))]
        if len(rows) != 1:
            raise ValueError(f"{len(rows)} rows of {path.name} are {title['case']}{' as ' + title['dtype'] if title['dtype'] else ''}; wanted one")
        return data, rows[0]

    def stale(self, row, data) -> bool:
        self._now = self._now or Now(self.root)
        return why_stale(row, data, self._now) is not None


def _figure(row: dict, title: dict, text: str) -> str:
    """The first number of `text`, replaced by what the row says."""
    value = row.get(title["column"])
    if value is None:
        raise ValueError(f"the row has no {title['column']}")
    unit = title["unit"] or ("us" if title["column"].endswith("_us") else None)
    if unit is not None and unit not in UNITS:
        raise ValueError(f"unit {unit!r} is none of {', '.join(UNITS)}")
    number = NUMBER.search(text)
    if number is None:
        raise ValueError(f"{text!r} has no figure")
    made = f"{UNITS[unit](value) if unit else value:,.{len(number.group(1) or '')}f}"
    return text[: number.start()] + made + text[number.end() :]


def put_right(page: Path, body: str, receipts: Receipts) -> tuple[str, list[str]]:
    """`body` as receipts have it, and what was wrong: a line each, with the line's number first."""
    wrong, code = [], [m.span() for m in FENCE.finditer(body)]

    def link(m: re.Match) -> str:
        if any(a <= m.start() < b for a, b in code):
            return m[0]
        say = lambda what: wrong.append(f"{body.count(chr(10), 0, m.start()) + 1}: {what}")  # noqa: E731
        title = TITLE.fullmatch(m["title"])
        if title is None:
            say(f"title {m['title']!r} is not COLUMN [in UNIT] of CASE [as DTYPE] [with OP]")
            return m[0]
        try:
            data, row = receipts.row((page.parent / m["path"]).resolve(), title.groupdict())
            text = _figure(row, title.groupdict(), COMMIT.sub("", m["text"]))
        except ValueError as e:
            say(str(e))
            return m[0]
        if receipts.stale(row, data):
            text += f" at {(data['runs'][row['run']] if 'run' in row else data)['commit'][:7]}"
        if text != m["text"]:
            say(f"[{m['text']}] is {text} in {Path(m['path']).name}: tools/figures.py --write")
        return m[0].replace(f"[{m['text']}]", f"[{text}]", 1)

    return LINK.sub(link, body), wrong


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--write", action="store_true", help="put every figure and commit right")
    args = p.parse_args()
    receipts, left = Receipts(ROOT), 0
    from tools.checks import source

    for name in source.files(ROOT, ends=(".md",)):
        body = source.text(ROOT, name)
        made, wrong = put_right(ROOT / name, body, receipts)
        if args.write and made != body:
            (ROOT / name).write_text(made)
            wrong = put_right(ROOT / name, made, receipts)[1]
        left += len(wrong)
        for line in wrong:
            print(f"{name}:{line}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
