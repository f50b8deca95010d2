"""Receipts: measured results that can be checked. Their form lives here; which rows are stale, in receipt_rows.py.

Benchmarks and tests write theirs so:

    from tools.receipt import Receipt
    r = Receipt("norm", chip="cpu", sources=["vivace/cpu/norm/norm.cc"], command="vivace bench norm")
    r.row(op="norm", case="T=1,H=576", dtype="f32", p50_us=0.4, n=200)
    r.write("bench")                     # bench/results/cpu/norm.json, replaced whole

docs/receipts.md explains the fields.
"""

import datetime
import glob
import json
import os
import platform
import re
import subprocess
from pathlib import Path

from tools import fingerprint
from tools.receipt_rows import Now, function_of, is_part, label_of

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = 1
TOP = {
    "schema": int, "suite": str, "command": str, "chip": str, "sm": (str, type(None)),
    "driver": (str, type(None)), "cuda": (str, type(None)), "clocks_mhz": (dict, type(None)),
    "host": dict, "date": str, "commit": str, "tactics": (str, type(None)), "versions": dict,
    "sources": dict, "limits": (dict, type(None)), "rows": list,
}
MAY = {"kernels": dict, "references": dict, "tests": dict, "runs": list}  # what rows depend on, and where those of other runs are from
NUMBERS = (
    "p50_us", "p99_us", "p999_us", "n", "bytes", "flops", "limit_us", "share", "peer_p50_us",
    "ratio", "max_err", "bound", "alike",
)
TEXTS = ("op", "case", "dtype", "tactic", "peer", "note", "tool", "kernel")
CASE = re.compile(r"^[\w]+=[^,= ]+(?:,[\w]+=[^,= ]+)*$")


def expand(root: Path, patterns: list[str]) -> list[str]:
    """Files of the patterns, sorted within each; a pattern that matches nothing is an error."""
    out: list[str] = []
    for p in patterns:
        found = sorted(f for f in glob.glob(p, root_dir=root, recursive=True) if (Path(root) / f).is_file())
        if not found:
            raise FileNotFoundError(f"receipt sources: nothing matches {p!r} under {root}")
        out += [f for f in found if f not in out]
    return out


def commit(root: Path) -> str:
    """The hash of HEAD, or 'dirty' when tracked files other than receipts differ from it."""
    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True).stdout.strip()
    head = git("rev-parse", "HEAD")
    return head if head and not git("status", "--porcelain", "-uno", "--", ".", ":!*/results/*") else "dirty"


def host() -> dict:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (m := re.search(r"model name\s*:\s*(.+)", info.read_text())):
        cpu = m.group(1).strip()
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0))}


def tactics() -> str | None:
    """Digest of the table of tiles that this process would use; None where vivace is not installed."""
    try:
        from vivace import _core
    except ImportError:
        return None
    return _core.gemm_tactics_digest()


class Receipt:
    def __init__(self, suite: str, *, chip: str, sources: list[str], command: str, root: Path = ROOT, tests: tuple = (), references: bool = False, kernels: bool = True, **facts):
        """chip: 'cpu', or the product name a GPU reports; facts: any of sm, driver, cuda, clocks_mhz,
        tactics, versions, limits. sources: paths or globs from the root, of what every row depends on. tests: globs of
        files with test functions that rows name. references: rows are held to tests/ref/<op>.py. On a GPU rows also
        depend on the kernels that they ran, unless `kernels` says that they ran none of the ops'."""
        if unknown := set(facts) - set(TOP):
            raise ValueError(f"receipt: no such field: {', '.join(sorted(unknown))}")
        files = expand(root, sources)
        if chip != "cpu":  # what these make is known by its machine code
            files = [f for f in files if not f.startswith(("vivace/kernels/", "vivace/ops/"))] or files
        self.root, self.tests, self.references, self.kernels = Path(root), expand(root, tests), references, kernels and chip != "cpu"
        self.data = {
            "schema": SCHEMA, "suite": suite, "command": command, "chip": chip, "sm": None,
            "driver": None, "cuda": None, "clocks_mhz": None, "host": host(),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "commit": commit(root), "tactics": None if chip == "cpu" or "tactics" in facts else tactics(), "versions": {},
            "sources": {"digest": fingerprint.sources(root, files), "files": files},
            "limits": None, "rows": [],
        } | facts

    def row(self, *, op: str, case: str, **fields) -> None:
        """One result. Missing figures are null; share and ratio are derived here."""
        row = {"op": op, "case": case} | fields
        if row.get("limit_us") and row.get("p50_us"):
            row["share"] = row["limit_us"] / row["p50_us"]
        if row.get("peer_p50_us") and row.get("p50_us"):
            row["ratio"] = row["peer_p50_us"] / row["p50_us"]
        if isinstance(row.get("note"), str):
            row["note"] = row["note"].replace(f"{ROOT}/", "")  # files are named from the root, whatever machine it was
        if errors := row_errors(row):
            raise ValueError(f"receipt row {op} {case}: {'; '.join(errors)}")
        self.data["rows"].append(row)

    def depend(self, root: Path = ROOT) -> None:
        """Fills in, from the sources below `root`, the fingerprints of what the rows depend on."""
        now, rows = Now(root), [row for row in self.data["rows"] if not is_part(row)]
        used = {row["op"] for row in rows}
        if self.kernels:
            self.data["kernels"] = {op: now.kernels(op) for op in sorted(now.table if used - set(now.table) else used)}
        if self.references:
            self.data["references"] = {op: h for op in sorted(used) if (h := now.reference(op))}
        if self.tests:
            found = {}
            for label, function in {(label_of(row), function_of(row)) for row in rows}:
                for name in self.tests:
                    if h := now.test(name, function):
                        found[label] = [name, function, h]
            self.data["tests"] = dict(sorted(found.items()))

    def write(self, kind: str, folder: str | None = None) -> Path:
        """kind: 'bench' or 'tests'; folder: the short chip name, 'h200' or 'cpu'."""
        self.depend()
        short = folder or self.data["chip"].split()[-1].lower()
        path = self.root / kind / "results" / short / f"{self.data['suite']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(text(self.data))
        part.replace(path)
        return path


def text(data: dict) -> str:
    """A receipt as it is kept: a line a row, so that a difference of two receipts is one of rows; seven digits a figure, and no empty notes, errors or bounds.
    Results without figures that say the same (a test of many parameters) are one row, and `alike` says how many."""
    def brief(v):
        return float(f"{v:.7g}") if isinstance(v, float) else v

    def line(row):
        return json.dumps({k: brief(v) for k, v in row.items() if v is not None or k not in ("note", "max_err", "bound")}, separators=(",", ":"))

    rows, alike = [], {}
    for row in data["rows"]:
        if "tool" not in row or "alike" in row:
            rows.append(row)
        elif (same := line(row)) in alike:
            alike[same]["alike"] = alike[same].get("alike", 1) + 1
        else:
            rows.append(alike.setdefault(same, dict(row)))
    head = json.dumps(data | {"rows": []}, indent=1)
    lines = ",\n".join(" " + line(row) for row in rows)
    return (head.replace('"rows": []', f'"rows": [\n{lines}\n ]') if lines else head) + "\n"


def results(rows: list[dict], of=lambda row: True) -> int:
    """How many results the rows of a test receipt are, of those that `of` takes."""
    return sum(row.get("alike", 1) for row in rows if of(row))


CUT = "cut off"  # how the note of a part begins that time did not allow; another call may bring it
SAME = ("schema", "suite", "chip", "sm", "driver", "cuda", "host", "commit", "tactics", "versions", "sources")


def join(parts: list[dict]) -> dict:
    """One receipt of what several calls of one commit wrote on machines of one kind; its command lists them, each with
    its time. Limits and clocks, which are measured anew in each call, stay only where all agree. Every row stays, also one
    that two calls have (a test whose cases they shared): none hides another's failure. A part that one call cut off, and
    that another brought to its end, is not a failure."""
    if len(parts) < 2:
        raise ValueError(f"receipts to join: at least two, got {len(parts)}")
    first = parts[0]
    for p in parts:
        if wrong := errors(p):
            raise ValueError(f"receipt of {p.get('command')!r}: {wrong[0]}")
        if p["commit"] == "dirty":
            raise ValueError(f"receipt of {p['command']!r}: its commit is 'dirty'; only calls of a commit are joined")
        if other := [k for k in SAME if p[k] != first[k]]:
            raise ValueError(f"receipts of different {other[0]}: {first[other[0]]!r} in {first['command']!r}, {p[other[0]]!r} in {p['command']!r}")
    parts = sorted(parts, key=lambda p: p["date"])
    both = {k: first[k] if all(p[k] == first[k] for p in parts) else None for k in ("limits", "clocks_mhz")}
    ended = {row["case"] for p in parts for row in p["rows"] if row["case"].startswith("part=") and row.get("pass")}

    def made_up(row):
        return row["case"] in ended and row.get("pass") is False and str(row.get("note")).startswith(CUT)

    return first | both | {"command": "; ".join(f"{p['command']} ({p['date']})" for p in parts), "date": parts[0]["date"],
                           "rows": [row for p in parts for row in p["rows"] if not made_up(row)]}


EACH_RUN = ("commit", "date", "command", "driver", "clocks_mhz", "host", "limits", "tactics", "versions", "sources", *MAY)


def merge(old: dict, new: dict) -> dict:
    """A receipt of which `new` ran a part again: its rows take the place of all rows of the same ops (of models, of drawn calls, which go
    mode by mode, and of a bench that was asked for some cases by --only: of the same cases), the others stay and say by `run` which entry of `runs` they are from."""
    for data in (old, new):
        if wrong := errors(data):
            raise ValueError(f"receipt of {data.get('command')!r}: {wrong[0]}")
    if other := [k for k in ("suite", "chip", "sm") if old[k] != new[k]]:
        raise ValueError(f"receipts of different {other[0]}: {old[other[0]]!r} and {new[other[0]]!r}")
    some = new["command"].startswith("python bench/") and " --only " in new["command"]

    def key(row):
        return row["op"] if row.get("tool") not in (None, "fuzz") and row["op"] != "e2e" and not some else (row["op"], row["case"], row.get("dtype"))

    again = {key(row) for row in new["rows"]}
    parts = {row["case"] for row in new["rows"] if is_part(row)}
    kept = [row for row in old["rows"] if (row["case"] not in parts if is_part(row) else key(row) not in again)]
    runs = [*old.get("runs", []), {k: old[k] for k in EACH_RUN if k in old and k != "runs"}]
    kept = [row | {"run": row.get("run", len(runs) - 1)} for row in kept]
    used = sorted({row["run"] for row in kept})
    kept = [row | {"run": used.index(row["run"])} for row in kept]
    return {k: v for k, v in new.items() if k != "runs"} | ({"runs": [runs[i] for i in used]} if used else {}) | {"rows": [*new["rows"], *kept]}


def row_errors(row: dict) -> list[str]:
    out = [f"{k} is missing" for k in ("op", "case") if not row.get(k)]
    out += [f"{k} is {row[k]!r}, not text" for k in TEXTS if k in row and not isinstance(row[k], (str, type(None)))]
    for k in NUMBERS:
        v = row.get(k)
        if v is not None and (isinstance(v, bool) or not isinstance(v, (int, float))):
            out.append(f"{k} is {v!r}, not a number")
        elif k in ("p50_us", "p99_us", "limit_us", "peer_p50_us") and v == 0:
            out.append(f"{k} is 0; a missing figure is null")
    if row.get("case") and not CASE.match(str(row["case"])):
        out.append(f"case {row['case']!r} is not key=value,key=value")
    if "run" in row and not isinstance(row["run"], int):
        out.append(f"run is {row['run']!r}, not the number of a run")
    if "pass" in row and not isinstance(row["pass"], (bool, type(None))):
        out.append(f"pass is {row['pass']!r}, not true or false")
    return out


def errors(data: object, stem: str | None = None) -> list[str]:
    """What is wrong with the form of a receipt; empty when nothing is."""
    if not isinstance(data, dict):
        return ["not a JSON object"]
    out = [f"{k} is missing" for k in TOP if k not in data]
    out += [f"{k} has type {type(data[k]).__name__}" for k, t in TOP.items() if k in data and not isinstance(data[k], t)]
    out += [f"{k} has type {type(data[k]).__name__}" for k, t in MAY.items() if k in data and not isinstance(data[k], t)]
    if out:
        return out
    if data["schema"] != SCHEMA:
        out.append(f"schema is {data['schema']}, wanted {SCHEMA}")
    if stem is not None and data["suite"] != stem:
        out.append(f"suite is {data['suite']!r} in a file named {stem}.json")
    src = data["sources"]
    if not re.fullmatch(r"(tokens|sha256):[0-9a-f]{64}", str(src.get("digest"))):
        out.append(f"sources.digest is {src.get('digest')!r}")
    if not src.get("files") or not all(isinstance(f, str) for f in src["files"]):
        out.append("sources.files lists no files")
    if not re.fullmatch(r"[0-9a-f]{40}|dirty", data["commit"]):
        out.append(f"commit is {data['commit']!r}, wanted a hash or 'dirty'")
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", data["date"]):
        out.append(f"date is {data['date']!r}, wanted UTC as 2026-01-31T12:00:00Z")
    if not data["rows"]:
        out.append("no rows")
    for i, row in enumerate(data["rows"]):
        out += [f"row {i}: {e}" for e in (row_errors(row) if isinstance(row, dict) else ["not an object"])]
        if isinstance(row, dict) and not 0 <= row.get("run", 0) < max(1, len(data.get("runs", []))):
            out.append(f"row {i}: run {row['run']} of {len(data.get('runs', []))}")
    return out
