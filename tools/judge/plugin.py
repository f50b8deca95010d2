"""The pytest plugin of a judged file: a seeded sample, the time, a row a test.

Reads VIVACE_JUDGE, a JSON object: device, rows (a file), seed, seconds, most. A test whose row is there already is not run again:
after a crash, or an error that a GPU context does not outlive, the judge starts the rest anew.
"""
import gc
import json
import os
import random
import time
from pathlib import Path

import pytest

from tools.judge import host, names

SET = json.loads(os.environ["VIVACE_JUDGE"])
REFUSALS = ("UnsupportedError", "InvalidArgumentError", "InvalidShapeError", "InvalidDTypeError", "LimitExceededError")


def refuses(exc):
    """Whether an error says that a thing is not served: an op's complaint of what the compatibility module gave it is a fault of that."""
    kinds = [c.__name__ for c in type(exc).__mro__]
    return "UnsupportedError" in kinds or any(k in REFUSALS for k in kinds) and str(exc).startswith("flashinfer")


# Words of a test's name -> why its assertion is not wanted here.
DECLINED = {
    "cuda_graph_bad_scale": "declined: a captured append reads its scales on the device and no kernel traps; bad ones are an error before capture",
    "rejects_mismatched_q_len": "declined: wants errors of backends that this library does not have: several queries a request are served by all",
    "rejects_unaligned_workspace_buffer": "declined: wants an error for an unaligned workspace; workspaces are ignored",
    "cta_tile_q_smem_probe": "declined: reads the tile that FlashInfer's planner picked from its private plan; plans have no tiles here",
    "backend_neutral_alias": "declined: asks whether two names that are not served are one",
    "layernorm_quant_invalid_inputs": "declined: wants errors for float16 and for rows of a wider array, which are served",
    "workspace_undersized_rejected": "declined: wants an error for a small workspace; workspaces are ignored",
    "rejects_misaligned_input": "declined: wants an error for an input that starts at any address, which is served",
    "fp8_kv_plan_rejects_fp16_q": "declined: wants an error for float16 queries over e4m3 latents, which are served",
    "auto_warns_once_on_blackwell": "declined: wants a warning of which of FlashInfer's kernels a Blackwell chip gets",
    "rejects_unequal_kv_strides": "declined: wants an error for keys and values of other strides, which are served",
}
ROWS = Path(SET["rows"])
START = time.monotonic()


def write(**row):
    with ROWS.open("a") as f:
        f.write(json.dumps(row) + "\n")


def pytest_configure(config):
    if SET["device"] == "cpu":
        host.install()
    names.install()
    for mark in ("arch_blackwell", "arch_hopper", "long_running", "solo", "shard_group", "gpu_2", "gpu_4", "gpu_8", "nvep"):
        config.addinivalue_line("markers", f"{mark}: FlashInfer's")


def pytest_collection_modifyitems(config, items):
    """A test function's cases in a drawn order, and a case of each function in turn, so that whatever the time, each is seen."""
    done = {row["id"] for row in map(json.loads, ROWS.read_text().splitlines()) if "id" in row} if ROWS.exists() else set()
    if not done:
        write(collected=len(items))
    rng, by_function = random.Random(SET["seed"]), {}
    for item in items:
        by_function.setdefault(getattr(item, "originalname", item.name), []).append(item)
    for cases in by_function.values():
        rng.shuffle(cases)
    turns = [[cases[i] for cases in by_function.values() if i < len(cases)] for i in range(max(map(len, by_function.values()), default=0))]
    for item in items:
        for words, why in DECLINED.items():
            if words in item.name and item.nodeid not in done:
                write(id=item.nodeid, result="refused", reason=why, seconds=0)
                done.add(item.nodeid)
    items[:] = [item for turn in turns for item in turn if item.nodeid not in done]


def pytest_collectreport(report):
    if report.failed:
        exc = str(report.longrepr).strip().splitlines()[-1]
        write(collected=0)
        missing = "ModuleNotFoundError" in exc and "flashinfer" not in exc  # scipy, cudnn, ...: not on this machine
        write(id=report.nodeid, result="skip" if missing else "refused" if "UnsupportedError" in exc else "error", reason=f"import: {exc}", seconds=0)
    elif report.skipped:
        write(collected=0)
        write(id=report.nodeid, result="skip", reason=str(report.longrepr[2]), seconds=0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    write(begins=item.nodeid)
    if SET["device"] != "cpu":
        import torch

        gc.collect()
        if torch.cuda.memory_reserved() > 4 << 30:
            torch.cuda.empty_cache()
    result = yield
    if time.monotonic() - START > SET["seconds"]:
        item.session.shouldstop = "the time is over"
    return result


def judged(exc):
    """(result, reason) of what a test raised."""
    kinds = [c.__name__ for c in type(exc).__mro__]
    line = " ".join(str(exc).split())[:300]
    if refuses(exc):
        return "refused", f"{type(exc).__name__}: {line}"
    if "OutOfMemoryError" in kinds or "out of memory" in line:
        return "memory", line
    if SET["device"] == "cpu" and ("AcceleratorError" in kinds or "Found no NVIDIA driver" in line):
        return "skip", "needs a GPU"
    cause = exc.__context__
    if isinstance(exc, AssertionError) and "pattern" in line.lower() and cause is not None and refuses(cause):
        return "refused", f"{type(cause).__name__}, in other words than FlashInfer's: {' '.join(str(cause).split())[:200]}"
    if isinstance(exc, (AssertionError, pytest.fail.Exception)):
        return "wrong", line
    return "error", f"{type(exc).__name__}: {line}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    row = {"id": item.nodeid, "seconds": round(call.duration, 3)}
    if report.skipped:
        write(**row, result="skip", reason=str(call.excinfo.value)[:300] if call.excinfo else "")
    elif report.failed:
        result, reason = judged(call.excinfo.value)
        write(**row, result=result, reason=reason, when=report.when)
        if "CUDA error" in reason or "AcceleratorError" in reason:
            os._exit(9)  # this context is of no more use
    elif report.when == "call":
        write(**row, result="pass", reason="")
    return report
