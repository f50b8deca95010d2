"""`--device cuda`: the op tests with their arrays in GPU memory. `--receipt`: writes tests/results/<chip>/ops.json
from what test_ops.py compared, if everything ran. `--rows FILE`: the rows of that receipt alone, a line each. `--share
I/N`: a part of the tests, so that N processes run all of them."""
import json
import os
import re
from pathlib import Path

import pytest

COUNTED = {"test_result": None, "test_same_bits": "same_bits", "test_row_count": "row_count"}
MODELS = ("model_steps", "pages", "fp4", "int4", "layer_stream", "drafts", "calibrate", "verify", "policy", "policy_forms", "policy_expert", "demo", "whisper", "groot", "groot_n16", "smolvla", "qwen3_vl", "images", "hybrid", "hybrid_reuse", "mtp", "groot_frames")  # whole models, where --device says


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where the op tests' arrays lie: cpu, cuda, cuda:1; torch-cpu: torch tensors on the host")
    parser.addoption("--receipt", action="store_true", help="write the receipt of the op tests to tests/results/cpu/ops.json")
    parser.addoption("--share", metavar="I/N", default="0/1", help="every N-th of the chosen tests, from the I-th on")
    parser.addoption("--rows", metavar="FILE", help="append the rows of the op tests to FILE, one JSON object a line")


def pytest_configure(config):
    os.environ["VIVACE_TEST_DEVICE"] = config.getoption("--device")  # read when tests/op_data.py is imported


@pytest.hookimpl(trylast=True)  # behind -k
def pytest_collection_modifyitems(config, items):
    config.receipt_rows = []
    first, step = map(int, config.getoption("--share").split("/"))
    if step > 1:
        kept = items[first::step]
        config.hook.pytest_deselected(items=[i for n, i in enumerate(items) if n % step != first])
        items[:] = kept


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    name = getattr(item, "originalname", None)
    model = item.path.stem.removeprefix("test_") if item.path.stem.removeprefix("test_") in MODELS else None
    counted = name in COUNTED or model or "tests/gpu/" in item.nodeid or "test_ops_bad" in item.nodeid
    if report.when != "call" or report.skipped or not counted:
        return
    facts, p = dict(report.user_properties), getattr(getattr(item, "callspec", None), "params", {})
    row = {"op": p.get("op", "all"), "case": f"test={name}", "tool": "pytest", "note": facts.get("note", COUNTED.get(name, name)),
           "max_err": facts.get("max_err"), "bound": facts.get("bound"), "pass": report.passed}
    if model:
        given = re.sub(r"[^\w.+/-]+", "_", getattr(getattr(item, "callspec", None), "id", ""))
        row |= {"op": model, "case": f"test={name}" + (f",with={given}" if given else "")}
    elif "case" in p:
        if "op" in p and os.environ["VIVACE_TEST_DEVICE"].startswith("cuda"):
            from tests.case_kernels import fingerprints  # it imports what --device decides
            row["kernel"] = fingerprints(row["op"], p["case"])
        row |= {"case": p["case"].id + (f",values={p['distribution']}" if "distribution" in p else ""), "dtype": next(iter(p["case"].dtypes.values()))}
    item.config.receipt_rows.append(row)


def pytest_sessionfinish(session, exitstatus):
    config = session.config
    rows = getattr(config, "receipt_rows", None)
    if not rows:
        return
    if config.getoption("--rows"):
        with open(config.getoption("--rows"), "a") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
    if not config.getoption("--receipt"):
        return
    import vivace
    from tools.receipt import Receipt

    rows = [r for r in rows if r["note"] is None]
    ops = sorted({row["op"] for row in rows})
    sources = ["vivace/base/*.h", "vivace/cpu/**/*.h", "vivace/cpu/**/*.cc", "vivace/ops/*.h", "vivace/ops/ops.def",
               "tests/ref/common.py", *(f"tests/ref/{op}.py" for op in ops), "tests/op_data.py", "tests/op_run.py", "tests/test_ops.py"]
    r = Receipt("ops", chip="cpu", sources=sources, command="pytest tests/test_ops.py --receipt", versions={"vivace": vivace.__version__})
    for row in rows:
        r.row(**row)
    path = r.write("tests")
    config.get_terminal_writer().line(f"\nreceipt: {path.relative_to(Path(r.root))}, {len(r.data['rows'])} rows")
