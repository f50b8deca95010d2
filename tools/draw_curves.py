"""The curves of bench/results/<chip>/llm_curves.json as a drawing: a decode step against context and against sequences.

    python3 tools/draw_curves.py [bench/results/h200/llm_curves.json] [docs/models/llm-curves.svg]

A line is a model, dashed beneath it the time that its bytes take at the copy rate. Both axes double from tick to tick.
"""
import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HEIGHT, LEFT, TOP = 430, 300, 52, 34  # of a panel; its margins
COLOURS = ["#0b6e99", "#b5482a", "#4b7f2c", "#7a4b94", "#8a6d1d", "#3f4d5a"]


def curves(receipt: dict) -> tuple[dict, dict]:
    """By context and by batch: {label: [(x, ms, floor ms)]}. A model whose rows differ in one of the two only has one curve."""
    rows = []
    for row in receipt["rows"]:
        case = dict(pair.split("=", 1) for pair in row["case"].split(","))
        if case.get("metric") == "graph":
            rows.append((case["model"], row["dtype"], int(case["batch"]), int(case["ctx"]), row["p50_us"] / 1e3, row["limit_us"] / 1e3))
    context, batch = {}, {}
    for model, dtype, b, c, ms, floor in rows:
        if b == 1:
            context.setdefault(f"{model} {dtype}, 1 sequence", set()).add((c, ms, floor))
        if c == min(r[3] for r in rows if r[:2] == (model, dtype)):
            batch.setdefault(f"{model} {dtype}, context {c:,}", set()).add((b, ms, floor))
    several = lambda lines: {k: sorted(v) for k, v in sorted(lines.items()) if len({p[0] for p in v}) > 1}  # noqa: E731
    return several(context), several(batch)


def doublings(values) -> list[float]:
    first, last = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    return [2.0**e for e in range(first, last + 1)]


def short(x: float) -> str:
    return f"{x / 1024:g}k" if x >= 1024 else f"{x:g}"


def panel(lines: dict, title: str, left: float) -> list[str]:
    points = [p for line in lines.values() for p in line]
    xs, ys = doublings([p[0] for p in points]), doublings([v for p in points for v in p[1:]])
    wide, high = WIDTH - LEFT - 16, HEIGHT - TOP - 34 - 14 * len(lines)
    at_x = lambda x: left + LEFT + wide * math.log2(x / xs[0]) / max(1, math.log2(xs[-1] / xs[0]))  # noqa: E731
    at_y = lambda y: TOP + high * (1 - math.log2(y / ys[0]) / max(1, math.log2(ys[-1] / ys[0])))  # noqa: E731
    out = [f'<text x="{left + LEFT}" y="18" font-weight="bold">{title}</text>']
    for y in ys:
        out.append(f'<path d="M{at_x(xs[0]):.1f} {at_y(y):.1f}H{at_x(xs[-1]):.1f}" stroke="#d5d5d5"/><text x="{left + LEFT - 6}" y="{at_y(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in xs:
        out.append(f'<text x="{at_x(x):.1f}" y="{TOP + high + 16:.1f}" text-anchor="middle">{short(x)}</text>')
    for i, (label, line) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        for which, dash in ((1, ""), (2, ' stroke-dasharray="4 3"')):
            path = "L".join(f"{at_x(p[0]):.1f} {at_y(p[which]):.1f}" for p in line)
            out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{2 if which == 1 else 1}"{dash}/>')
        out += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(ms):.1f}" r="2.5" fill="{colour}"><title>{x:,}: {ms:.3f} ms, floor {floor:.3f}</title></circle>' for x, ms, floor in line]
        out.append(f'<text x="{left + LEFT}" y="{TOP + high + 34 + 14 * i:.1f}" fill="{colour}">{label}</text>')
    return out


def draw(receipt: dict) -> str:
    context, batch = curves(receipt)
    if not context or not batch:
        raise ValueError("no curve in this receipt: it needs rows of metric=graph for several contexts and several batches")
    body = panel(context, "ms a step by context (dashed: its bytes at 4.25 TB/s)", 0) + panel(batch, "ms a step by sequences", WIDTH)
    size = f'width="{2 * WIDTH}" height="{HEIGHT}" viewBox="0 0 {2 * WIDTH} {HEIGHT}"'
    of = f"<!-- of the receipt of {receipt['date']} -->"
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">', of, '<rect width="100%" height="100%" fill="#fff"/>', *body, "</svg>", ""])


def main() -> None:
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "bench/results/h200/llm_curves.json"
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs/models/llm-curves.svg"
    target.write_text(draw(json.loads(source.read_text())))


if __name__ == "__main__":
    main()
