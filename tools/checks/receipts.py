"""Receipts keep their form; those whose sources changed since are named."""

import json
from pathlib import Path

from tools import receipt

from . import source

PURPOSE = "receipts under */results/ keep their form; stale ones are listed"


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
    out = []
    for name, data in _receipts(root):
        if isinstance(data, dict) and not receipt.errors(data):
            if why := receipt.stale(root, data):
                out.append(f"{name}: {why}; run again: {data['command']}")
    return out
