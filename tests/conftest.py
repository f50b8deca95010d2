"""`--receipt`: writes tests/results/cpu/ops.json from what test_ops.py compared, if everything ran and passed."""
from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption("--receipt", action="store_true", help="write the receipt of the op tests to tests/results/cpu/ops.json")


def pytest_collection_modifyitems(config, items):
    config.receipt_rows = []


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.when != "call" or getattr(item, "originalname", None) != "test_result":
        return
    facts, p = dict(report.user_properties), item.callspec.params
    first = next(iter(p["case"].dtypes.values()))
    item.config.receipt_rows.append({
        "op": p["op"], "case": f"{p['case'].id},values={p['distribution']}", "dtype": first, "tool": "pytest",
        "max_err": facts.get("max_err"), "bound": facts.get("bound"), "pass": report.passed,
    })


def pytest_sessionfinish(session, exitstatus):
    config = session.config
    if not config.getoption("--receipt") or not getattr(config, "receipt_rows", None):
        return
    import vivace
    from tools.receipt import Receipt

    ops = sorted({row["op"] for row in config.receipt_rows})
    sources = ["vivace/base/*.h", "vivace/cpu/**/*.h", "vivace/cpu/**/*.cc", "vivace/ops/*.h", "vivace/ops/ops.def",
               "tests/ref/common.py", *(f"tests/ref/{op}.py" for op in ops), "tests/op_data.py", "tests/op_run.py", "tests/test_ops.py"]
    r = Receipt("ops", chip="cpu", sources=sources, command="pytest tests/test_ops.py --receipt", versions={"vivace": vivace.__version__})
    for row in config.receipt_rows:
        r.row(**row)
    path = r.write("tests")
    config.get_terminal_writer().line(f"\nreceipt: {path.relative_to(Path(r.root))}, {len(r.data['rows'])} rows")
