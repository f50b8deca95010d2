#!/usr/bin/env python3
"""Writes the table of FlashInfer's own tests into docs/flashinfer.md, between its two markers, from the rows of a GPU run.

    python tools/flashinfer_table.py [tests/results/h200/flashinfer.json] [--note TEXT]

A receipt, or the rows as JSON lines that `flashinfer_judge.py --out` wrote. `--note` says more of the run, above the table.
"""
import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOC, RECEIPT = ROOT / "docs/flashinfer.md", ROOT / "tests/results/h200/flashinfer.json"
BEGIN, END = "<!-- table of flashinfer_table.py -->", "<!-- end of table -->"
METRICS = ("pass", "refused", "wrong")


def rows_of(path):
    text = path.read_text()
    whole = json.loads(text) if path.suffix == ".json" else {"rows": list(map(json.loads, text.splitlines()))}
    return whole["rows"], f"{whole['chip']}, {whole['date'][:10]}, commit {whole['commit'][:9]}" if "chip" in whole else ""


def table(rows):
    """A line a file in which a test passed or was wrong; files of which every test was refused are counted in one."""
    counts = {}
    for row in rows:
        if not row["case"].startswith("file="):
            continue  # how the run's process ended
        case = dict(pair.split("=") for pair in row["case"].split(","))
        counts.setdefault(case["file"], dict.fromkeys(METRICS, 0))[case["metric"]] = row["n"]
    total = {m: sum(c[m] for c in counts.values()) for m in METRICS}
    refused = [f for f, c in counts.items() if not c["pass"] and not c["wrong"]]
    lines = [f"| `{f}` | {c['pass']:,} | {c['refused']:,} | {c['wrong']:,} |" for f, c in counts.items() if f not in refused]
    if refused:
        lines.append(f"| {len(refused)} files of which nothing is served | 0 | {sum(counts[f]['refused'] for f in refused):,} | 0 |")
    return ["| file | passed | refused | wrong or error |", "|---|---|---|---|", *lines, f"| all | {total['pass']:,} | {total['refused']:,} | {total['wrong']:,} |"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("rows", nargs="?", type=Path, default=RECEIPT)
    p.add_argument("--doc", type=Path, default=DOC)
    p.add_argument("--note", default="")
    args = p.parse_args()
    rows, run = rows_of(args.rows)
    text = args.doc.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        p.error(f"{args.doc} wants {BEGIN} and {END} once each")
    above = ": ".join(filter(None, (run, args.note)))
    lines = [BEGIN, *([above, ""] if above else []), *table(rows), END]
    args.doc.write_text(text[: text.index(BEGIN)] + "\n".join(lines) + text[text.index(END) + len(END) :])


if __name__ == "__main__":
    sys.exit(main())
