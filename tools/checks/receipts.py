"""Receipts keep their form; rows that no longer speak for the tree are counted."""

import json
from pathlib import Path

from tools import fingerprint, receipt
from tools.receipt_rows import Now, is_part, stale

from . import source

PURPOSE = "receipts under */results/ keep their form; stale rows are counted"


def _receipts(root: Path):
    for name in source.files(root, ends=(".json",)):
        if name.startswith(("tests/results/", "bench/results/")):
            try:
                yield name, json.loads(source.text(root, name))
            except ValueError as e:
                yield name, e


def run(root: Path) -> list[str]:
    out = []
    for name, data in _receipts(root):
        if isinstance(data, ValueError):
            out.append(f"{name}: not JSON: {data}")
            continue
        if name.count("/") != 3:
            out.append(f"{name}: receipts lie at results/<chip>/<suite>.json")
        elif name.split("/")[2] != name.split("/")[2].lower():
            out.append(f"{name}: the chip's folder is lower case")
        out += [f"{name}: {e}" for e in receipt.errors(data, Path(name).stem)]
    return out


def notes(root: Path) -> list[str]:
    out, now = [], Now(root)
    if old := fingerprint.outdated(root):
        out.append(f"{fingerprint.TABLE}: sources of {', '.join(old[:6])}{', ...' if len(old) > 6 else ''} changed since: run tools/kernel_table, or rows of these ops cannot be judged")
    for name, data in _receipts(root):
        if isinstance(data, dict) and not receipt.errors(data):
            if found := stale(root, data, now):
                all_rows = sum(not is_part(row) for row in data["rows"])
                most = "; ".join(f"{n} by {why}" for why, n in found.most_common(3)) + ("; ..." if len(found) > 3 else "")
                out.append(f"{name}: {found.total()} of {all_rows} rows are stale ({most})")
    return out
