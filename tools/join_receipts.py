#!/usr/bin/env python3
"""Puts the receipts of one or more device calls in place: join_receipts.py [--merge] [--out ROOT] RESULTS ...

RESULTS is a folder that device_run.py packed (it holds tests/results or bench/results). A suite that one call wrote is
copied, one that several calls wrote is joined if tools/receipt.py finds that they belong together, and refused if not.
--merge, for calls that ran stale rows alone: rows of ops that were not run again stay, with the run that they are from.
"""
import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.receipt import join, merge, results, text  # noqa: E402


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("results", nargs="+", type=Path)
    p.add_argument("--out", type=Path, default=ROOT, help="default: this checkout")
    p.add_argument("--merge", action="store_true", help="keep the rows of ops that these calls did not run")
    args = p.parse_args()
    found, refused = {}, 0
    for folder in args.results:
        files = sorted(f for kind in ("tests", "bench") for f in folder.glob(f"{kind}/results/*/*.json"))
        if not files:
            p.error(f"{folder}: no receipt below tests/results or bench/results")
        for f in files:
            found.setdefault(f.relative_to(folder), []).append(json.loads(f.read_text()))
    for name, parts in found.items():
        try:
            data = parts[0] if len(parts) == 1 else join(parts)
            if args.merge and (args.out / name).exists():
                data = merge(json.loads((args.out / name).read_text()), data)
        except ValueError as e:
            refused += 1
            print(f"REFUSED  {name}: {e}")
            continue
        to = args.out / name
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text(data))
        print(f"{name}: {results(data['rows'])} results of {len(parts)} calls, {results(data['rows'], lambda row: row.get('pass') is False)} failed")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
