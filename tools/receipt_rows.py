"""Which rows of a receipt still speak for the tree.

A row is stale when the machine code of its kernels, its reference, its test or what its whole suite rests on has changed
since it was measured; comments, layout and renames change none of these.
"""
import re
from collections import Counter
from pathlib import Path

from tools import fingerprint


def is_part(row: dict) -> bool:
    """A row that says how a process of the run ended, and no result."""
    return row["case"].startswith("part=")


def label_of(row: dict) -> str:
    """What a row of a test receipt calls its test."""
    m = re.match(r"test=([^,]+)", row["case"])
    return m.group(1) if m else row.get("note") or ""


def function_of(row: dict) -> str:
    """The test function behind a row; the op tests' have short names."""
    label = label_of(row)
    return label if label.startswith("test_") else f"test_{label or 'result'}"


class Now:
    """Fingerprints of the tree as it is."""

    def __init__(self, root: Path):
        self.root, self._known = Path(root), {}
        self.table = {op: row["kernels"] for op, row in fingerprint.table(self.root)["ops"].items()}

    def _once(self, key, make):
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def kernels(self, op):
        return self._once(("kernels", op), lambda: fingerprint.kernels_of({"kernels": self.table[op]}) if op in self.table else None)

    def codes(self, op):
        return self._once(("codes", op), lambda: set(self.table.get(op, {}).values()))

    def reference(self, op):
        return self._once(("reference", op), lambda: fingerprint.reference(self.root, op))

    def test(self, name, function):
        return self._once(("test", name, function), lambda: fingerprint.test(self.root, name, function))

    def sources(self, files):
        gone = [f for f in files if not (self.root / f).is_file()]
        return f"{gone[0]} is gone" if gone else self._once(("sources", *files), lambda: fingerprint.sources(self.root, files))


def why_stale(row: dict, data: dict, now: Now) -> str | None:
    """Why a row of a receipt no longer speaks for the tree, or None."""
    run = data["runs"][row["run"]] if "run" in row else data  # an earlier run's rows keep what they depended on
    src, op, kernels = run["sources"], row["op"], run.get("kernels", {})
    if now.sources(src["files"]) != src["digest"]:
        return "sources of the whole suite"
    if row.get("kernel"):
        if not set(row["kernel"].split("+")) <= now.codes(op):
            return f"kernels of {op}"
    elif changed := [o for o in ([op] if op in kernels else kernels) if now.kernels(o) != kernels[o]]:
        return f"kernels of {', '.join(changed[:4])}{', ...' if len(changed) > 4 else ''}"
    if op in (known := run.get("references", {})) and now.reference(op) != known[op]:
        return f"the reference of {op}"
    if held := run.get("tests", {}).get(label_of(row)):
        if now.test(*held[:2]) != held[2]:
            return f"test {held[1]}"
    return None


def stale(root: Path, data: dict, now: Now | None = None) -> Counter:
    """Rows that no longer speak for the tree, counted by why."""
    now = now or Now(root)
    return Counter(why for row in data["rows"] if not is_part(row) and (why := why_stale(row, data, now)))
