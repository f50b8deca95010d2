"""Curves of receipts as drawings: a decode step and a prompt of bench/results/<chip>/llm_curves.json, a policy's call of vla.json.

    python3 tools/draw_curves.py [--chip h200]

A line is a model, dashed beneath it the time that its bytes take at the copy rate, or its arithmetic. Both axes double from tick to tick.
"""
import argparse
import json
import math
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HEIGHT, LEFT, TOP = 430, 300, 52, 34  # of a panel; its margins
COLOURS = ["#0b6e99", "#b5482a", "#4b7f2c", "#7a4b94", "#8a6d1d", "#3f4d5a"]
HORIZON, VIEWS = 50, 2  # of the calls whose other number grows


def rows_of(receipt: dict, metric: str) -> list[tuple]:
    """(case as a dict, dtype, (ms, floor ms)) of the rows that have a floor."""
    rows = [(dict(pair.split("=", 1) for pair in row["case"].split(",")), row) for row in receipt["rows"]]
    return [(case, row["dtype"], (row["p50_us"] / 1e3, row["limit_us"] / 1e3)) for case, row in rows if case.get("metric") == metric and row.get("limit_us")]


def several(points) -> dict:
    """{label: [(x, ms, floor ms)]} of (label, x, times), where a label has more than one x."""
    lines = {}
    for label, x, times in points:
        lines.setdefault(label, {})[x] = times
    return {label: [(x, *times) for x, times in sorted(line.items())] for label, line in sorted(lines.items()) if len(line) > 1}


def llm_curves(receipt: dict) -> dict:
    """{title: lines} by context, by sequences (at the least context of each model) and by the tokens of a prompt."""
    steps = [(f"{case['model']} {dtype}", int(case["batch"]), int(case["ctx"]), times) for case, dtype, times in rows_of(receipt, "graph")]
    least = {name: min(ctx for other, _, ctx, _ in steps if other == name) for name, *_ in steps}
    return {
        "ms a step by context (dashed: its bytes at 4.25 TB/s)": several((f"{name}, 1 sequence", ctx, times) for name, batch, ctx, times in steps if batch == 1),
        "ms a step by sequences": several((f"{name}, context {ctx:,}", batch, times) for name, batch, ctx, times in steps if ctx == least[name]),
        "ms a prompt by its tokens (dashed: its arithmetic, or bytes)": several((f"{case['model']} {dtype}", int(case["prompt"]), times) for case, dtype, times in rows_of(receipt, "prefill")),
    }


def policy_curves(receipt: dict) -> dict:
    """{title: lines} of a whole call, both graphs in a row, by cameras and by horizon."""
    calls = [(case, dtype, times) for case, dtype, times in rows_of(receipt, "replay") if not {"batch", "codes", "partition"} & case.keys()]
    own = lambda case: case["policy"].removesuffix("-base")  # noqa: E731
    horizons = {own(case): HORIZON if own(case) in ("pi05", "pi0") else int(case["horizon"]) for case, *_ in calls}
    return {
        "ms a call by cameras (dashed: bytes or arithmetic)": several((f"{own(case)} {dtype}, horizon {case['horizon']}", int(case["views"]), times) for case, dtype, times in calls if int(case["horizon"]) == horizons[own(case)]),
        "ms a call by horizon": several((f"{own(case)} {dtype}, {case['views']} cameras", int(case["horizon"]), times) for case, dtype, times in calls if int(case["views"]) == VIEWS),
    }


def doublings(values) -> list[float]:
    first, last = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    return [2.0**e for e in range(first, last + 1)]


def short(x: float) -> str:
    return f"{x / 1024:g}k" if x >= 1024 else f"{x:g}"


def panel(lines: dict, title: str, left: float, top: float) -> list[str]:
    top += TOP
    points = [p for line in lines.values() for p in line]
    xs, ys = doublings([p[0] for p in points]), doublings([v for p in points for v in p[1:]])
    wide, high = WIDTH - LEFT - 16, HEIGHT - TOP - 34 - 14 * len(lines)
    at_x = lambda x: left + LEFT + wide * math.log2(x / xs[0]) / max(1, math.log2(xs[-1] / xs[0]))  # noqa: E731
    at_y = lambda y: top + high * (1 - math.log2(y / ys[0]) / max(1, math.log2(ys[-1] / ys[0])))  # noqa: E731
    out = [f'<text x="{left + LEFT}" y="{top - TOP + 18:g}" font-weight="bold">{title}</text>']
    for y in ys:
        out.append(f'<path d="M{at_x(xs[0]):.1f} {at_y(y):.1f}H{at_x(xs[-1]):.1f}" stroke="#d5d5d5"/><text x="{left + LEFT - 6}" y="{at_y(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in xs:
        out.append(f'<text x="{at_x(x):.1f}" y="{top + high + 16:.1f}" text-anchor="middle">{short(x)}</text>')
    for i, (label, line) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        for which, dash in ((1, ""), (2, ' stroke-dasharray="4 3"')):
            path = "L".join(f"{at_x(p[0]):.1f} {at_y(p[which]):.1f}" for p in line)
            out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{2 if which == 1 else 1}"{dash}/>')
        out += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(ms):.1f}" r="2.5" fill="{colour}"><title>{x:,}: {ms:.3f} ms, floor {floor:.3f}</title></circle>' for x, ms, floor in line]
        out.append(f'<text x="{left + LEFT}" y="{top + high + 34 + 14 * i:.1f}" fill="{colour}">{label}</text>')
    return out


def draw(receipt: dict, curves) -> str:
    panels = curves(receipt)
    if not all(panels.values()):
        raise ValueError("no curve in this receipt: " + "; ".join(title for title, lines in panels.items() if not lines))
    body = [part for i, (title, lines) in enumerate(panels.items()) for part in panel(lines, title, i % 2 * WIDTH, i // 2 * HEIGHT)]
    wide, high = 2 * WIDTH, (len(panels) + 1) // 2 * HEIGHT
    size = f'width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
    of = f"<!-- of the receipt of {receipt['date']} -->"
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">', of, '<rect width="100%" height="100%" fill="#fff"/>', *body, "</svg>", ""])


DRAWINGS = {"docs/models/llm-curves.svg": ("llm_curves", llm_curves), "docs/models/policy-curves.svg": ("vla", policy_curves)}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--chip", default="h200")
    chip = p.parse_args().chip
    for target, (suite, curves) in DRAWINGS.items():
        (ROOT / target).write_text(draw(json.loads((ROOT / f"bench/results/{chip}/{suite}.json").read_text()), curves))


if __name__ == "__main__":
    main()
