"""What each launch of a program took, by kernel: a table, and a roofline against this chip's limits.

    from vivace import profiler
    with profiler.kernel("rows") as k:      # what is launched inside
        ops.norm(x, out=y)
    print(k.table())
    k.save("rows.svg")                      # also .json, .txt

`vivace profile SCRIPT` does it for a whole program; there kernel() names parts of it. docs/profiling.md says what the numbers are.
"""
from __future__ import annotations

import html
import json
import math
import sysconfig
import threading
import time
from functools import lru_cache
from pathlib import Path

from vivace import _core
from vivace.errors import Error, FailedPreconditionError, InvalidArgumentError

__all__ = ["Kernel", "Profile", "kernel", "limits", "profile"]

# Flops that one SM does in a clock, by compute capability: dense f16 and bf16 products with f32 sums.
MMA_FLOPS = {80: 2048, 86: 1024, 87: 2048, 89: 1024, 90: 4096, 100: 8192, 103: 8192, 110: 8192, 120: 1024, 121: 1024}

_running: Profile | None = None
_turn = threading.Lock()


@lru_cache(maxsize=None)
def limits(device: str) -> dict:
    """{"bytes_per_s", "flops_per_s", "source"} of "cpu" or "cuda:N". A GPU's are its memory's rated speed and its dense 16-bit products at
    the highest clock; a CPU has none that is published for it, so a copy of 64 MiB and an f32 product of 768 are timed here, the best of five.
    What is not known is None. Errors: InvalidArgumentError, UnsupportedError."""
    if device == "cpu":
        return _measured()
    if not (isinstance(device, str) and device.startswith("cuda:") and device[5:].isdigit()):
        raise InvalidArgumentError(f"profiler.limits: device is {device!r}, wanted cpu or cuda:N")
    info = _core.device_info(int(device[5:]))
    try:
        clock = _core.device_state(int(device[5:]))["max_sm_mhz"] * 1e6
    except Error:  # no NVML
        clock = -1
    rate = MMA_FLOPS.get(info["capability"])
    return {"bytes_per_s": info["peak_bytes_per_s"] or None, "flops_per_s": info["sm_count"] * rate * clock if rate and clock > 0 else None,
            "source": f"{info['name']}: rated memory, dense 16-bit products at the highest clock"}


def _measured() -> dict:
    from vivace import array

    def best(work) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return min(times)

    x, to = (array.zeros((16 << 20,), dtype="f32", device="cpu") for _ in range(2))
    n = 768
    a = array.ones((n, n), dtype="f32", device="cpu")
    return {"bytes_per_s": 2 * x.nbytes / best(lambda: array.positive(x, out=to)), "flops_per_s": 2 * n**3 / best(lambda: a @ a),
            "source": f"this CPU, {_core.threads()} threads: a copy of 64 MiB, an f32 product of {n}, timed here"}


def _cupti() -> list[str]:
    """Where CUPTI may be: this environment's wheels, then where the loader looks, then toolkits."""
    wheels = sorted(str(p) for p in Path(sysconfig.get_path("platlib")).glob("nvidia/**/lib/libcupti.so.*"))
    return [*reversed(wheels), "libcupti.so.13", "libcupti.so.12", "libcupti.so", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so", "/usr/local/cuda/lib64/libcupti.so"]


class Profile:
    """The launches of a time. `rows`: a dict a kernel, with region, device, op, kernel (symbol), calls, launches (of a call: more than 1 of a
    graph), bytes and flops (of a call, 0: unknown), us (all calls), least_us, most_us, mean_us, share (of all time on that device),
    bytes_per_s, flops_per_s, and fraction: the time that the chip's limits allow over the time that it took, None where neither is known."""

    def __init__(self, report: dict | None = None):
        self._report = report

    def _done(self) -> dict:
        if self._report is None:
            raise FailedPreconditionError("profiler: it still runs; its numbers come when it is over")
        return self._report

    @property
    def timer(self) -> str:
        """What was read: "cupti ...", "events", "host clock" (the CPU's ops always by the last)."""
        return self._done()["timer"]

    @property
    def note(self) -> str:
        """Why CUPTI was not taken; empty where it was, and on the CPU."""
        return self._done()["note"]

    @property
    def wall_us(self) -> float:
        return self._done()["wall_us"]

    @property
    def rows(self) -> list[dict]:
        raw = self._done()["rows"]
        total = {}
        for r in raw:
            total[r["device"]] = total.get(r["device"], 0.0) + r["us"]
        rows = []
        for r in raw:
            limit, seconds = limits(r["device"]), r["us"] / 1e6
            mean, calls = r["us"] / r["calls"], r["calls"]
            least = max((r[w] / limit[f"{w}_per_s"] for w in ("bytes", "flops") if r[w] and limit[f"{w}_per_s"]), default=None)
            rows.append({**r, "mean_us": mean, "share": r["us"] / total[r["device"]] if total[r["device"]] else 0.0,
                         "bytes_per_s": r["bytes"] * calls / seconds if r["bytes"] and seconds else None,
                         "flops_per_s": r["flops"] * calls / seconds if r["flops"] and seconds else None,
                         "fraction": least * calls / seconds if least is not None and seconds else None})
        return sorted(rows, key=lambda r: -r["us"])

    def table(self, most: int = 40) -> str:
        """The longest first; what is beyond `most` rows is one line."""
        rows = self.rows
        head = ("KERNEL", "CALLS", "TOTAL us", "MEAN us", "SHARE", "BYTES", "GB/s", "GFLOP/s", "OF LIMIT")
        cells = [head]
        for r in rows[:most]:
            name = f"{r['region']}: {_name(r)}" if r["region"] else _name(r)
            cells.append((name, f"{r['calls']}", f"{r['us']:.1f}", f"{r['mean_us']:.2f}", f"{r['share']:.1%}", f"{r['bytes']:,}" if r["bytes"] else "-",
                          *(f"{r[k] / 1e9:.1f}" if r[k] else "-" for k in ("bytes_per_s", "flops_per_s")), "-" if r["fraction"] is None else f"{r['fraction']:.1%}"))
        widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
        lines = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip() for row in cells]
        if rest := rows[most:]:
            lines.append(f"and {len(rest)} more, {sum(r['us'] for r in rest):.1f} us")
        lines.append(f"{sum(r['calls'] for r in rows)} calls, {sum(r['us'] for r in rows):.1f} us of {self.wall_us:.1f} us, by {self.timer}")
        lines += [f"limits of {d}: {_limit(limits(d))}" for d in sorted({r["device"] for r in rows})]
        return "\n".join(lines + ([f"note: {self.note}"] if self.note else []))

    def as_dict(self) -> dict:
        """Rows, timer, note, wall_us, limits: what save() writes as .json."""
        rows = self.rows
        return {"rows": rows, "timer": self.timer, "note": self.note, "wall_us": self.wall_us, "limits": {d: limits(d) for d in sorted({r["device"] for r in rows})}}

    def svg(self) -> str:
        """A roofline: a point a kernel whose bytes and flops are known, its size by its share; kernels that only move bytes stand at the left."""
        return _roofline(self.rows)

    def save(self, path) -> None:
        """Writes .svg, .json or .txt, whole or not at all. Errors: InvalidArgumentError (another ending), those of the file system."""
        from vivace import files

        make = {".svg": self.svg, ".json": lambda: json.dumps(self.as_dict()), ".txt": self.table}.get(Path(path).suffix)
        if make is None:
            raise InvalidArgumentError(f"profiler: {path}: wanted .svg, .json or .txt")
        text = make()
        with files.new_file(str(path)) as f:
            f.write(text.encode())


class profile(Profile):
    """`with profiler.profile(timer="auto") as p:` sees every launch of this process until its end; then p has the numbers. timer: "auto" takes
    CUPTI where the machine has it, else pairs of events around each launch; "events", "cupti". Errors: FailedPreconditionError where one is on;
    UnsupportedError where CUPTI is asked for and not there."""

    def __init__(self, timer: str = "auto"):
        super().__init__()
        self._timer = timer

    def __enter__(self):
        global _running
        with _turn:
            _core.start_profile(self._timer, _cupti())
            _running = self
        return self

    def __exit__(self, *why):
        global _running
        with _turn:
            _running = None
            self._report = _core.stop_profile()


class Kernel(Profile):
    """A part of a program by name: kernel()."""

    def __init__(self, name: str):
        super().__init__()
        if not isinstance(name, str) or not name or "/" in name:
            raise InvalidArgumentError(f"profiler.kernel: wanted a name without '/', got {name!r}")
        self.name, self._whole, self._region = name, None, name

    def __enter__(self):
        self._own = profile() if _running is None else None
        self._whole = self._own.__enter__() if self._own else _running
        stack = _names()
        stack.append(self.name)
        self._region = "/".join(stack)
        _core.enter_region(self.name)
        return self

    def __exit__(self, *why):
        _names().pop()
        _core.leave_region()
        if self._own:
            self._own.__exit__(*why)

    def _done(self) -> dict:
        if self._whole is None:
            raise FailedPreconditionError(f"profiler.kernel({self.name!r}): nothing was measured; use it in a with statement")
        whole = self._whole._done()
        return {**whole, "rows": [r for r in whole["rows"] if r["region"] == self._region or r["region"].startswith(self._region + "/")]}


_held = threading.local()


def _names() -> list:
    return _held.__dict__.setdefault("names", [])


def kernel(name: str) -> Kernel:
    """`with profiler.kernel(name) as k:` measures what this thread launches inside, or names it within a profile that is on. Names nest:
    "step/attention". Within a profile k's numbers come when that is over."""
    return Kernel(name)


def _name(row: dict) -> str:
    name = f"graph of {row['launches']}" if row["op"] == "graph" else row["op"]
    return f"other {row['kernel'][:60]}" if name == "other" else name


def _limit(limit: dict) -> str:
    memory, math_ = limit["bytes_per_s"], limit["flops_per_s"]
    return f"{'-' if memory is None else f'{memory / 1e9:.0f} GB/s'}, {'-' if math_ is None else f'{math_ / 1e12:.2f} TFLOP/s'} ({limit['source']})"


COLOURS = ("#3b75af", "#c03a2b", "#3c8d5a", "#8e5aa8", "#d9a520", "#5f6b73")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 900, 560, 80, 30, 230, 60


def _roofline(rows: list[dict]) -> str:
    known = [r for r in rows if r["bytes"] and r["us"]]
    if not known:
        raise InvalidArgumentError("profiler: no launch whose bytes are known; there is nothing to draw")
    devices = sorted({r["device"] for r in known})
    points = [(r, r["flops"] / r["bytes"], r["flops_per_s"] or 0.0) for r in known]
    lines = [(d, limits(d)["bytes_per_s"], limits(d)["flops_per_s"]) for d in devices]
    x_of = [i for _, i, _ in points if i > 0] + [f / b for _, b, f in lines if b and f]
    y_of = [v for _, _, v in points if v > 0] + [f for _, _, f in lines if f]
    low_x, high_x = (math.floor(math.log10(min(x_of, default=0.1))) - 1, math.ceil(math.log10(max(x_of, default=10.0))) + 1)
    low_y, high_y = (math.floor(math.log10(min(y_of, default=1e9))), math.ceil(math.log10(max(y_of, default=1e12))))
    high_y = max(high_y, low_y + 1)
    plot_w, plot_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    X = lambda v: LEFT + (math.log10(v) - low_x) / (high_x - low_x) * plot_w
    Y = lambda v: TOP + (high_y - math.log10(v)) / (high_y - low_y) * plot_h
    inside = lambda v: min(max(v, 10.0**low_y), 10.0**high_y)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for e in range(low_x, high_x + 1):
        out.append(f'<line x1="{X(10.0**e):.1f}" x2="{X(10.0**e):.1f}" y1="{TOP}" y2="{TOP + plot_h}" stroke="#e3e7ea"/><text x="{X(10.0**e):.1f}" y="{TOP + plot_h + 18}" text-anchor="middle" fill="#555">1e{e}</text>')
    for e in range(low_y, high_y + 1):
        out.append(f'<line x1="{LEFT}" x2="{LEFT + plot_w}" y1="{Y(10.0**e):.1f}" y2="{Y(10.0**e):.1f}" stroke="#e3e7ea"/><text x="{LEFT - 6}" y="{Y(10.0**e) + 4:.1f}" text-anchor="end" fill="#555">1e{e}</text>')
    out.append(f'<text x="{LEFT + plot_w / 2}" y="{HEIGHT - 14}" text-anchor="middle">flops a byte</text><text x="16" y="{TOP + plot_h / 2}" transform="rotate(-90 16 {TOP + plot_h / 2})" text-anchor="middle">flop/s</text>')
    for n, (device, memory, flops) in enumerate(lines):
        if not memory or not flops:
            continue
        knee = flops / memory
        start = max(10.0**low_x, 10.0**low_y / memory)
        path = f"M {X(start):.1f} {Y(inside(start * memory)):.1f} L {X(knee):.1f} {Y(flops):.1f} L {X(10.0**high_x):.1f} {Y(flops):.1f}"
        out.append(f'<path d="{path}" fill="none" stroke="#333" stroke-width="1.5" stroke-dasharray="{"none" if n == 0 else "6 3"}"><title>{html.escape(device + ": " + _limit(limits(device)))}</title></path>')
    for n, (r, intensity, rate) in enumerate(points):
        colour, radius = COLOURS[n % len(COLOURS)], 3 + 9 * math.sqrt(r["share"])
        at_x, at_y = (X(intensity), Y(inside(rate))) if intensity > 0 and rate > 0 else (LEFT, TOP + plot_h)
        says = f"{_name(r)}: {r['calls']} calls, {r['mean_us']:.2f} us, {r['share']:.1%} of {r['device']}, " + ("limit unknown" if r["fraction"] is None else f"{r['fraction']:.1%} of the limit")
        out.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="{radius:.1f}" fill="{colour}" fill-opacity="0.7"><title>{html.escape(says)}</title></circle>')
        if n < 24:
            y = TOP + 16 * n + 8
            out.append(f'<circle cx="{WIDTH - RIGHT + 14}" cy="{y - 4}" r="4" fill="{colour}"/><text x="{WIDTH - RIGHT + 24}" y="{y}">{html.escape(_name(r)[:26])} {r["share"]:.0%}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
