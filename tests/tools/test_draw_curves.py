"""The drawing of a step's curves says what its receipt says."""
import json
import re
from pathlib import Path

import pytest

from tools import draw_curves

ROOT = Path(__file__).resolve().parents[2]


def receipt(rows):
    return {"date": "2026-01-01T00:00:00Z", "rows": [{"case": f"model={m},batch={b},ctx={c},metric={metric}", "dtype": "bf16", "p50_us": us, "limit_us": us / 2} for m, b, c, us, metric in rows]}


def test_points_are_the_receipts():
    rows = [("m", 1, 1024, 1000.0, "graph"), ("m", 1, 4096, 2000.0, "graph"), ("m", 8, 1024, 4000.0, "graph"), ("m", 1, 2048, 9e9, "step")]
    context, batch = draw_curves.curves(receipt(rows))
    assert context == {"m bf16, 1 sequence": [(1024, 1.0, 0.5), (4096, 2.0, 1.0)]}
    assert batch == {"m bf16, context 1,024": [(1, 1.0, 0.5), (8, 4.0, 2.0)]}
    drawing = draw_curves.draw(receipt(rows))
    titles = re.findall(r"<title>(.*?)</title>", drawing)
    assert titles == ["1,024: 1.000 ms, floor 0.500", "4,096: 2.000 ms, floor 1.000", "1: 1.000 ms, floor 0.500", "8: 4.000 ms, floor 2.000"]
    y = [float(v) for v in re.findall(r'cy="([\d.]+)"', drawing)]
    assert y[0] > y[1] and y[2] > y[3]  # more time is higher up


def test_a_receipt_without_curves():
    with pytest.raises(ValueError, match="several contexts and several batches"):
        draw_curves.draw(receipt([("m", 1, 1024, 1000.0, "graph")]))


def test_the_page_shows_the_receipt_that_is_there():
    drawing, source = ROOT / "docs/models/llm-curves.svg", ROOT / "bench/results/h200/llm_curves.json"
    if not drawing.exists() and not source.exists():
        pytest.skip("neither is there: bench/bench_llm_device.py --parts curves, then tools/draw_curves.py")
    assert drawing.read_text() == draw_curves.draw(json.loads(source.read_text()))
