"""The drawings of curves say what their receipts say."""
import json
import re
from pathlib import Path

import pytest

from tools import draw_curves
from tools.draw_curves import DRAWINGS, draw, llm_curves, policy_curves

ROOT = Path(__file__).resolve().parents[2]


def receipt(rows):
    return {"date": "2026-01-01T00:00:00Z", "rows": [{"case": case, "dtype": "bf16", "p50_us": us, "limit_us": floor and us / 2} for case, us, floor in rows]}


LLM = receipt([("model=m,batch=1,ctx=1024,metric=graph", 1000.0, True), ("model=m,batch=1,ctx=4096,metric=graph", 2000.0, True), ("model=m,batch=8,ctx=1024,metric=graph", 4000.0, True), ("model=m,batch=1,ctx=2048,metric=step", 9e9, True),
               ("model=m,prompt=512,metric=prefill", 7000.0, True), ("model=m,prompt=128,metric=prefill", 6000.0, True), ("model=n,prompt=128,metric=prefill", 1.0, True)])
CALL = "policy=pi05-base,views={},{}horizon={},steps=10,metric={}"
POLICY = receipt([(CALL.format(2, "", 50, "replay"), 9000.0, True), (CALL.format(1, "", 50, "replay"), 8000.0, True), (CALL.format(2, "", 10, "replay"), 7000.0, True), (CALL.format(2, "batch=8,", 50, "replay"), 9e9, True),
                  (CALL.format(3, "", 50, "predict"), 9e9, True), (CALL.format(3, "", 50, "replay"), 9e9, False), ("policy=groot-n17,views=1,horizon=40,steps=4,metric=replay", 5000.0, True), ("policy=groot-n17,views=2,horizon=40,steps=4,metric=replay", 6000.0, True)])


def points(curves):
    return [{label: [p[:2] for p in line] for label, line in lines.items()} for lines in curves.values()]


def test_points_are_the_receipts():
    assert points(llm_curves(LLM)) == [{"m bf16, 1 sequence": [(1024, 1.0), (4096, 2.0)]}, {"m bf16, context 1,024": [(1, 1.0), (8, 4.0)]}, {"m bf16": [(128, 6.0), (512, 7.0)]}]
    assert points(policy_curves(POLICY)) == [{"groot-n17 bf16, horizon 40": [(1, 5.0), (2, 6.0)], "pi05 bf16, horizon 50": [(1, 8.0), (2, 9.0)]}, {"pi05 bf16, 2 cameras": [(10, 7.0), (50, 9.0)]}]


def test_where_they_are_drawn():
    drawing = draw(LLM, llm_curves)
    assert re.findall(r"<title>(.*?)</title>", drawing) == ["1,024: 1.000 ms, floor 0.500", "4,096: 2.000 ms, floor 1.000", "1: 1.000 ms, floor 0.500", "8: 4.000 ms, floor 2.000", "128: 6.000 ms, floor 3.000", "512: 7.000 ms, floor 3.500"]
    y = [float(v) for v in re.findall(r'cy="([\d.]+)"', drawing)]
    assert y[0] > y[1] and y[2] > y[3] and y[4] > y[5]  # more time is higher up
    assert min(y[4:]) > draw_curves.HEIGHT > max(y[:4])  # the third panel is below


@pytest.mark.parametrize("curves", [llm_curves, policy_curves])
def test_a_receipt_without_curves(curves):
    with pytest.raises(ValueError, match="no curve in this receipt: ms a (step by context|call by cameras)"):
        draw(receipt([("model=m,batch=1,ctx=1024,metric=graph", 1000.0, True)]), curves)


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_the_page_shows_the_receipt_that_is_there(drawing):
    suite, curves = DRAWINGS[drawing]
    assert (ROOT / drawing).read_text() == draw(json.loads((ROOT / f"bench/results/h200/{suite}.json").read_text()), curves)
