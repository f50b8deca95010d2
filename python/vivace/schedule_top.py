"""Schedulers of this user's processes, as they publish themselves: a file each, and the table of `vivace top`."""
from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path

from vivace.errors import FailedPreconditionError


def folder() -> Path:
    """Where schedulers publish: the user's own, readable by nobody else. Errors: FailedPreconditionError where somebody else has it."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    path = Path(base) / f"vivace-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    facts = path.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077 or path.is_symlink():
        raise FailedPreconditionError(f"{path}: it belongs to somebody else, or others may read it; remove it, or set XDG_RUNTIME_DIR")
    return path


class Publisher:
    """Writes what `snapshot()` gives to a file of this process, every so often, until it is closed."""

    def __init__(self, snapshot, every: float):
        self._snapshot, self._every, self._over = snapshot, every, threading.Event()
        self._path = folder() / f"sched-{os.getpid()}.json"
        self._write()
        self._thread = threading.Thread(target=self._run, name="vivace-publish", daemon=True)
        self._thread.start()

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._snapshot()), encoding="utf-8")
        new.replace(self._path)

    def _run(self) -> None:
        while not self._over.wait(self._every):
            try:
                self._write()
            except Exception:  # a full disk is no reason to end a robot's process
                pass

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)


def snapshots() -> list[dict]:
    """What is published; files of processes that are gone are removed."""
    out = []
    for file in sorted(folder().glob("sched-*.json")):
        try:
            pid = int(file.stem.split("-", 1)[1])
            os.kill(pid, 0)
            out.append({"pid": pid, **json.loads(file.read_text(encoding="utf-8"))})
        except (ProcessLookupError, ValueError):
            file.unlink(missing_ok=True)
        except OSError:
            continue
    return out


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f}"


HEAD = ("TENANT", "CLASS", "SHARE", "PROMISED", "CALLS", "MISSED", "OVERRUN", "REFUSED", "p50 ms", "p99.9 ms", "MAX ms", "WAIT p99.9", "MiB")


def table(shots: list[dict]) -> str:
    if not shots:
        return "no scheduler publishes itself: vivace.Scheduler(...).publish() in the program that has one"
    lines = []
    for s in shots:
        now = s["now"]
        lines.append(f"pid {s['pid']}  {now['device']}  {'healthy' if now['healthy'] else 'A CALL IS LOST'}  promised {now['utilisation']:.2f}  waiting {now['queue_depth']}  "
                     f"gate shut {now['gate_closed_us'] / max(now['up_us'], 1):.1%}")
        if pool := s.get("pool"):
            lines.append(f"pool of arrays and models, MiB: used {_mib(pool['used'])}  peak {_mib(pool['peak_used'])}  held {_mib(pool['mapped'])}  limit {_mib(pool['capacity']) if pool['capacity'] else 'none'}  "
                         f"allocations {pool['allocations']}  failed {pool['failures']}")
        for t in s.get("streams", ()):
            name = "cpu" if t["device"] == "cpu" else f"{t['device']} stream {t['handle']:#x}"
            lines.append(f"{name}: launches {t['launches']}  replays {t['replays']}  copies {t['copies']} of {_mib(t['copied_bytes'])} MiB  waits {t['waits']}  host waits {t['host_waits']}")
        rows = [HEAD]
        for name, t in s["tenants"].items():
            response, wait = t["response_us"], t["wait_us"]
            rows.append((name, t["class"] + (" (demoted)" if t["demoted"] else ""), f"{t['share']:.1%}", f"{t['promised']:.1%}", str(t["calls"]), str(t["missed"]), str(t["overruns"]), str(t["rejected"]),
                         *(f"{response[k] / 1e3:.2f}" for k in ("p50", "p999", "max")), f"{wait['p999'] / 1e3:.2f}", _mib(t["bytes"])))
        widths = [max(len(r[i]) for r in rows) for i in range(len(HEAD))]
        lines += ["  ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(r, widths))) for r in rows]
    return "\n".join(lines)
