"""What a scheduler's tenants did, as a trace that Perfetto opens (also chrome://tracing) and as a picture."""
from __future__ import annotations

import html
import json
from pathlib import Path

from vivace import files
from vivace.errors import CorruptDataError, InvalidArgumentError

COLOURS = {"wait": "#d9a520", "call": "#c03a2b", "step": "#3b75af", "stand_back": "#c9d6e2"}
SAYS = {"wait": "waits for its turn", "call": "guaranteed call", "step": "step", "stand_back": "stands back"}
WIDTH, ROW, LEFT, MOST = 1200, 28, 160, 20_000


def perfetto(spans: list[tuple]) -> dict:
    """Of Scheduler.trace(): a track a tenant, times from the first span on."""
    begin = min((at for _, _, at, _ in spans), default=0.0)
    tracks = {name: i + 1 for i, name in enumerate(dict.fromkeys(tenant for tenant, *_ in spans))}
    events = [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "vivace scheduler"}}]
    events += [{"name": "thread_name", "ph": "M", "pid": 1, "tid": track, "args": {"name": name}} for name, track in tracks.items()]
    events += [{"name": kind, "ph": "X", "pid": 1, "tid": tracks[tenant], "ts": round(at - begin, 3), "dur": round(us, 3)} for tenant, kind, at, us in spans]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def read(path: str) -> list[tuple]:
    """The spans of a file that Scheduler.save_trace() wrote. Errors: NotFoundError, CorruptDataError."""
    try:
        data = json.loads(files.read_text(path))
        names = {e["tid"]: e["args"]["name"] for e in data["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name"}
        return [(str(names[e["tid"]]), e["name"], float(e["ts"]), float(e["dur"])) for e in data["traceEvents"] if e["ph"] == "X" and e["name"] in SAYS]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptDataError(f"{path}: no trace of a scheduler ({type(e).__name__}: {e})") from None


def svg(spans: list[tuple]) -> str:
    """A timeline, a row a tenant; of very many spans the last."""
    spans = sorted(spans, key=lambda s: s[2])[-MOST:]
    if not spans:
        raise InvalidArgumentError("trace: it has no spans; nothing ran yet")
    begin, end = spans[0][2], max(at + us for _, _, at, us in spans)
    scale = (WIDTH - LEFT - 10) / max(end - begin, 1e-9)
    rows = {name: i for i, name in enumerate(dict.fromkeys(tenant for tenant, *_ in spans))}
    height = ROW * (len(rows) + 2)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">', f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    for name, i in rows.items():
        out.append(f'<text x="6" y="{ROW * i + 18}">{html.escape(name)}</text>')
    for kind in ("step", "stand_back", "wait", "call"):  # what stands back lies upon its step
        for tenant, of, at, us in spans:
            if of == kind:
                out.append(f'<rect x="{LEFT + (at - begin) * scale:.2f}" y="{ROW * rows[tenant] + 4}" width="{max(us * scale, 0.3):.2f}" height="{ROW - 8}" fill="{COLOURS[kind]}"><title>{SAYS[kind]}: {us:.0f} us</title></rect>')
    for i in range(6):
        us = (end - begin) * i / 5
        out.append(f'<text x="{LEFT + us * scale:.0f}" y="{ROW * len(rows) + 18}" fill="#555" text-anchor="{"end" if i == 5 else "start"}">{us / 1e3:.1f} ms</text>')
    for i, (kind, says) in enumerate(SAYS.items()):
        out.append(f'<rect x="{LEFT + 180 * i}" y="{ROW * (len(rows) + 1)}" width="14" height="14" fill="{COLOURS[kind]}"/><text x="{LEFT + 180 * i + 20}" y="{ROW * (len(rows) + 1) + 12}">{says}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def write(spans: list[tuple], path) -> None:
    """As its name ends: .json for Perfetto, .svg, .html."""
    kind = Path(path).suffix
    if kind not in (".json", ".svg", ".html"):
        raise InvalidArgumentError(f"trace: wanted a file that ends in .json, .svg or .html, got {files.printable(str(path), 200)!r}")
    text = json.dumps(perfetto(spans)) if kind == ".json" else svg(spans)
    if kind == ".html":
        text = f'<!doctype html><meta charset="utf-8"><title>vivace scheduler</title>{text}'
    files.write_text(path, text)
