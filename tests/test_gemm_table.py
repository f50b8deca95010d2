"""The table of gemm's tiles: printed, loaded, refused; `vivace tune` without a GPU."""
import json
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from tests.op_data import contents, reference
from tests.op_run import Run
from vivace import _core, errors, tune


@pytest.fixture(autouse=True)
def shipped():
    yield
    _core.load_gemm_tactics("")


def rows():
    return [line for line in _core.gemm_tactics().splitlines() if not line.startswith("#")]


def cli(*args, env=None):
    import os

    return subprocess.run([sys.executable, "-m", "vivace.cli", *args], capture_output=True, text=True, timeout=120, env=os.environ | (env or {}))


def test_printed_rows_load_again_with_the_same_digest():
    text, digest = _core.gemm_tactics(), _core.gemm_tactics_digest()
    assert len(rows()) > 50 and digest.startswith("sha256:")
    _core.load_gemm_tactics(text)
    assert _core.gemm_tactics() == text and _core.gemm_tactics_digest() == digest


def test_rows_take_the_place_of_the_weight_s_shipped_ones():
    shipped = rows()
    dtype, N, K = shipped[0].split()[:3]
    row = f"{dtype} {N} {K} 64 128 64 1 1 1.50"
    _core.load_gemm_tactics(row + "\n# nothing\n")
    now = rows()
    assert [r for r in now if r.split()[:3] == [dtype, N, K]] == [row]
    assert [r for r in now if r.split()[:3] != [dtype, N, K]] == [r for r in shipped if r.split()[:3] != [dtype, N, K]]


def picked(T, N, K):
    x, w, out = (np.zeros(shape, ml_dtypes.bfloat16) for shape in ((T, K), (N, K), (T, N)))
    return re.search(r"GemmWgmma{(\d+), (\d+), \d+, \d+, (\d+), (\d+)", _core.picked_kernel("gemm", 90, x=x, w=w, out=out)).groups()


def test_a_row_serves_from_three_quarters_of_its_tokens():
    _core.load_gemm_tactics("bf16 528 128 1024 64 64 1 1 1.00\n")
    row = ("64", "64", "1", "1")
    assert picked(1024, 528, 128) == picked(769, 528, 128) == row
    free = {T: picked(T, 528, 128) for T in (768, 1025)}
    _core.load_gemm_tactics("bf16 528 128 1024 128 256 2 1 1.00\n")
    assert picked(1024, 528, 128) == ("128", "256", "2", "1") and free == {T: picked(T, 528, 128) for T in free}


def test_a_row_of_few_tokens_serves_from_half_of_them():
    _core.load_gemm_tactics("bf16 528 128 64 128 64 1 1 1.00\n")
    assert picked(64, 528, 128) == picked(33, 528, 128) == ("128", "64", "1", "1")
    assert picked(32, 528, 128) == picked(17, 528, 128) == ("64", "32", "1", "1")


def test_shipped_rows_are_layouts_that_serve_their_product():
    for row in rows():
        dtype, N, K, T, *layout, us = row.split()
        assert tuple(map(int, layout)) in _core.gemm_layouts(dtype, int(N), int(K), int(T)), row
        assert float(us) > 0


@pytest.mark.parametrize("text, said", [
    ("bf16 64 64 8 64 8 1", "line 1: a row is"), ("bf16 64 64 8 64 8 1 1 0 7", "line 1: a row is"), ("\nf32 64 64 8 64 8 1 1 0", "line 2: dtype"),
    ("bf16 0 64 8 64 8 1 1 0", "at least 1"), ("bf16 64 64 8 63 8 1 1 0", "no tactic has rows=63"),
])
def test_a_bad_row_is_refused_and_changes_nothing(text, said):
    before = _core.gemm_tactics()
    with pytest.raises(errors.CorruptDataError, match=said):
        _core.load_gemm_tactics(text)
    assert _core.gemm_tactics() == before


def test_the_command_prints_them_and_reads_a_file(tmp_path):
    data = json.loads(cli("ops", "--tactics", "--json").stdout)
    assert data["digest"] == _core.gemm_tactics_digest() and len(data["gemm"]) == len(rows())
    own = tmp_path / "own.txt"
    own.write_text("bf16 3 5 8 64 8 1 1 2.25\n")
    assert "bf16 3 5 8 64 8 1 1 2.25" in cli("ops", "--tactics", env={"VIVACE_TACTICS": str(own)}).stdout
    own.write_text("bf16 3 5\n")
    failed = cli("ops", "--tactics", env={"VIVACE_TACTICS": str(own)})
    assert failed.returncode == 1 and "own.txt" in failed.stderr and "line 1" in failed.stderr


@pytest.mark.parametrize("words, tokens", [(["64"], "8"), (["64x0"], "8"), (["64x64"], "0"), (["64x64"], "eight")])
def test_tune_refuses_what_is_no_shape(words, tokens):
    with pytest.raises(errors.InvalidArgumentError):
        tune.gemm(tune.weights(words), tune.counts(tokens), ["bf16"])


@pytest.mark.parametrize("op, tiles", [("gemm", {(r, t) for r in (64, 128) for t in (128, 192, 256)}), ("gated_gemm", {(64, 128), (64, 256), (128, 128), (128, 256)})])
def test_cases_take_the_tiles_of_gemm_widened(op, tiles):
    """What chooses a tile by cycles may move every small case to one of them; large prompts would run what no test does."""
    cases = [c for c in reference(op).CASES if c.dims["T"] > 64 and c.dtypes["x"] == "bf16" and c.dtypes["w"] not in ("bf16", "f16", "f32")]
    picked = [_core.picked_kernel(op, 90, **Run(op, c, contents(op, c, "normal")).arguments()) for c in cases]
    assert {tuple(map(int, m.groups())) for k in picked if (m := re.search(r"gemm_mixed_input<.*GemmWgmma{(\d+), (\d+),", k))} >= tiles
    if op == "gemm":  # tiles of weights in registers, and whether outputs leave beside the next tile's products
        held = {(int(m[1]), int(m[2]), m[3] != "0") for k in picked if (m := re.search(r"gemm_mixed_held<.*GemmWgmma{(\d+), (\d+), .*, 0, 0, (\d+), false, true}", k))}
        assert held == {(192, 128, False)} | {(r, t, s) for r, t in ((64, 128), (128, 128), (64, 256), (128, 256)) for s in (False, True)}


def test_cases_take_the_rings_of_x():
    """Every form in which TMA brings x beside widened weights: rows of W a warp, tokens, elements of K that places hold."""
    cases = [c for c in reference("gemm").CASES if 1 < c.dims["T"] <= 64]
    picked = [_core.picked_kernel("gemm", 90, **Run("gemm", c, contents("gemm", c, c.distributions[0])).arguments()) for c in cases]
    rings = {tuple(map(int, m.groups())) for k in picked if (m := re.search(r"GemmWeightOnly{2, 4, (\d), (\d), \d, \d, (\d+), .*true}>", k))}
    assert rings >= {(1, 1, 4096), (1, 1, 6144), (1, 1, 8192), (1, 1, 16384), (1, 2, 4096), (1, 4, 2048), (2, 4, 2048)}
