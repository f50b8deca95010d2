"""tools/flashinfer_judge.py counts what tests of FlashInfer's form do, also one that takes the process with it."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = '''
import inspect
import os
import subprocess
import sys
import pytest
import torch
import flashinfer
import vivace
from flashinfer.prefill import single_prefill_with_kv_cache
from flashinfer.utils import has_flashinfer_jit_cache, is_sm100a_supported
from flashinfer.no.such.module import Thing


class Derived(Thing):
    pass


@pytest.mark.parametrize("n", range(5))
def test_passes(n):
    q = torch.randn(3, 2, 16, device="cuda:0")
    assert single_prefill_with_kv_cache(q, q, q).device.type == "cpu" and has_flashinfer_jit_cache()


def test_absent():
    Thing.of[2].that(1)


def test_other_words():
    q = torch.zeros(3, 2, 16).to(0)
    with pytest.raises(ValueError, match="some other words"):
        flashinfer.single_prefill_with_kv_cache(q, q, q, kv_layout="none")


def test_in_a_process_of_its_own():
    code = "from flashinfer.quantization import packbits; import flashinfer, torch; assert flashinfer.packbits is packbits; torch.zeros(1, device='cuda')"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_asks_for_parameters():
    inspect.signature(flashinfer.mla.Thing.run)


def test_part_of_a_module():
    try:
        flashinfer.triton.cascade.variable_length_merge_states(1)
    except flashinfer.utils.GPUArchitectureError:
        pytest.skip("not raised here")


def test_is_wrong():
    assert flashinfer.packbits(torch.ones(8)).item() == 254


def test_an_ops_complaint():
    vivace.ops.norm(torch.zeros(3, 4), out=torch.zeros(2, 4))


def test_breaks():
    {}["key"]


def test_takes_all_with_it():
    os._exit(7)


@pytest.mark.skipif(not is_sm100a_supported(None), reason="not this chip")
def test_is_skipped():
    pass


def test_graph():
    torch.cuda.CUDAGraph()
'''


def test_counts(tmp_path):
    pytest.importorskip("torch")
    folder = tmp_path / "theirs/tests/attention"
    folder.mkdir(parents=True)
    for f in (folder.parent, folder):
        (f / "__init__.py").write_text("")
    (folder / "test_mixed.py").write_text(TESTS)
    (folder / "test_unimportable.py").write_text("import flashinfer\nX = flashinfer.no.such_thing()\n")
    got = subprocess.run([sys.executable, ROOT / "tools/flashinfer_judge.py", "--tests", tmp_path / "theirs", "--device", "cpu", "--jobs", "2", "--work", tmp_path / "work", "--out", tmp_path / "rows.jsonl"],
                         capture_output=True, text=True)
    assert got.returncode == 1, got.stdout + got.stderr
    lines = {line.split()[0]: list(map(int, line.split()[1:])) for line in got.stdout.splitlines() if line.startswith(("test_", "all"))}
    # of, pass, refused, wrong, error, late, skip, memory
    assert lines["test_mixed"] == [16, 6, 4, 1, 3, 0, 2, 0], got.stdout
    assert lines["test_unimportable"] == [0, 0, 1, 0, 0, 0, 0, 0], got.stdout
    assert "in other words than FlashInfer's" in got.stdout and "the process ended in this test" in got.stdout
    rows = {r["case"]: r for r in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())}
    assert rows["file=test_mixed,metric=wrong"]["n"] == 4 and not rows["file=test_mixed,metric=wrong"]["pass"] and rows["file=test_mixed,metric=pass"]["n"] == 6
