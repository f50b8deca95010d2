"""Which tile a product with weights of four bits takes on Hopper, by its shape: where its tiles are more than the SMs, one that
leaves an SM room for a second block. No GPU."""
import re

import ml_dtypes
import numpy as np
import pytest

from vivace import _core
import vivace

BLOCKS = {"q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34), "q4_k": (256, 144), "q6_k": (256, 210)}


def picked(w, T, N, K):
    """The policy's fields, as its header orders them."""
    x, out = np.zeros((T, K), ml_dtypes.bfloat16), np.empty((T, N), ml_dtypes.bfloat16)
    arrays = {"w": vivace.view(np.empty((N, K // 32 * 18), np.uint8), dtype="q4_0", shape=(N, K))}
    if w in ("q8_0", "q4_k", "q6_k"):
        block, size = BLOCKS[w]
        arrays = {"w": vivace.view(np.empty((N, K // block * size), np.uint8), dtype=w, shape=(N, K))}
    if w in ("e4m3", "i8"):
        arrays = {"w": np.empty((N, K), ml_dtypes.float8_e4m3fn if w == "e4m3" else np.int8), "w_row_scale": np.empty(N, np.float32)}
    if w == "i4":
        arrays = {"w": vivace.view(np.empty((N, K // 2), np.uint8), dtype="i4", shape=(N, K)), "w_block_scale": np.empty((N, K // 128), ml_dtypes.bfloat16)}
    if w == "e2m1":
        arrays = {"w": vivace.view(np.empty((N, K // 2), np.uint8), dtype="e2m1", shape=(N, K)), "w_block_scale": np.empty((N, K // 16), ml_dtypes.float8_e4m3fn)}
    kernel = _core.picked_kernel("gemm", 90, x=x, out=out, **arrays)
    return re.search(r"GemmWeightOnly{(.*)}", kernel).group(1).split(", ")


@pytest.mark.parametrize("w, T, N, K, panel", [
    ("q4_0", 1, 24576, 4096, 4096), ("q4_0", 1, 34816, 5120, 8192), ("q4_0", 1, 5120, 17408, 6144), ("q4_0", 1, 4096, 12288, 16384),
    ("q4_0", 2, 34816, 5120, 6144), ("q4_0", 3, 34816, 5120, 4096), ("q4_0", 8, 34816, 5120, 8192), ("q4_0", 2, 4096, 12288, 16384),
    ("e2m1", 1, 34816, 5120, 8192), ("e2m1", 2, 34816, 5120, 4096), ("e2m1", 8, 34816, 5120, 6144), ("e2m1", 2, 5120, 17408, 4096)])
def test_a_long_k_leaves_room_for_a_second_block(w, T, N, K, panel):
    fields = picked(w, T, N, K)
    assert (int(fields[6]), fields[13]) == (panel, "true" if T > 1 else "false")


def by_wgmma(fields):
    return len(fields) == 16 and fields[15] == "true"


def test_many_rows_are_dequantized_for_32_tokens_at_once():
    """64 rows of W a tile: one dequantization serves more sums, if the shared memory holds the step."""
    for T in (17, 32):
        assert picked("q4_0", T, 24576, 4096)[2:4] == ["2", "4"]
    assert picked("q4_0", 16, 24576, 4096)[2:4] == ["1", "2"]


@pytest.mark.parametrize("w", ["e2m1", "i4"])
@pytest.mark.parametrize("T, N, K, tiles", [(16, 24576, 4096, None), (17, 24576, 4096, "4"), (32, 6144, 4096, "4"), (33, 5120, 17408, "8"), (64, 24576, 4096, "8"), (64, 4096, 12288, None), (32, 4096, 4096, None)])
def test_wgmma_multiplies_four_bits_with_scales_where_its_rows_fill_the_chip(w, T, N, K, tiles):
    fields = picked(w, T, N, K)
    assert by_wgmma(fields) == (tiles is not None)
    if tiles:
        assert fields[:5] == ["4", "4", "1", tiles, "1"]


@pytest.mark.parametrize("w, T, N, K, tiles", [
    ("q4_0", 33, 24576, 4096, ["2", "8"]), ("q4_0", 64, 6144, 4096, ["2", "8"]), ("q4_0", 64, 5120, 17408, ["2", "8"]),
    ("q4_0", 64, 4096, 12288, ["2", "4"])])
def test_33_tokens_and_more_in_one_pass_where_rows_fill_the_chip(w, T, N, K, tiles):
    """Stages of x of 128 elements leave room for 64 tokens."""
    fields = picked(w, T, N, K)
    assert fields[2:4] == tiles and fields[6] == ("1024" if tiles[1] == "8" else "2048")


@pytest.mark.parametrize("w", ["e4m3", "q8_0", "i8"])
@pytest.mark.parametrize("T, N, K, warps, panel", [
    (16, 24576, 4096, "2", "4096"), (24, 24576, 4096, "4", "1024"), (32, 6144, 4096, "4", "1024"), (32, 4096, 12288, "2", "2048"),
    (33, 4096, 12288, "4", "1024"), (64, 4096, 4096, "4", "1024"), (64, 24576, 4096, "4", "1024")])
def test_eight_bits_have_64_rows_a_tile_where_these_fill_the_chip(w, T, N, K, warps, panel):
    fields = picked(w, T, N, K)
    assert (fields[0], fields[3], fields[6]) == (warps, "2" if T == 16 else "4", panel)


def drawn(rng):
    """Weights of some format and shape, tokens, and whether short stages of x may serve them."""
    N, K = int(rng.integers(1, 800)) * 32, int(rng.integers(1, 32)) * 512
    w = rng.choice(["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q6_k", "e4m3", "i8", "nvfp4", "i4"])
    group = int(rng.choice([32, 64, 128]))
    scales = {"w_row_scale": np.empty(N, np.float32)} if rng.random() < 0.5 else {"w_block_scale": np.empty((N, K // group), rng.choice([np.float32, np.float16]))}
    if w in BLOCKS:
        block, size = BLOCKS[w]
        arrays = {"w": vivace.view(np.empty((N, K // block * size), np.uint8), dtype=w, shape=(N, K))}
    elif w == "nvfp4":
        arrays = {"w": vivace.view(np.empty((N, K // 2), np.uint8), dtype="e2m1", shape=(N, K)), "w_block_scale": np.empty((N, K // 16), ml_dtypes.float8_e4m3fn)}
    elif w == "i4":
        arrays = {"w": vivace.view(np.empty((N, K // 2), np.uint8), dtype="i4", shape=(N, K)), "w_block_scale": np.empty((N, K // group), np.float32)}
        arrays |= {"w_block_zero": np.empty((N, K // group), np.int8)} if rng.random() < 0.5 else {}
    else:
        arrays = {"w": np.empty((N, K), ml_dtypes.float8_e4m3fn if w == "e4m3" else np.int8)} | scales
    return str(w), int(rng.integers(2, 65)), N, K, arrays


def test_short_stages_serve_only_whom_they_were_made_for():
    """Drawn formats, scales and shapes: a ring of 1024 is for 33 tokens and more of q4_0, and for 17 and more of eight bits; wgmma is for four bits with scales beside them and no zero points."""
    rng, seen, turned = np.random.default_rng(29), set(), set()
    for _ in range(600):
        w, T, N, K, arrays = drawn(rng)
        x, out = np.zeros((T, K), ml_dtypes.bfloat16), np.empty((T, N), ml_dtypes.bfloat16)
        found = re.search(r"GemmWeightOnly{(.*)}", _core.picked_kernel("gemm", 90, x=x, out=out, **arrays))
        fields = found.group(1).split(", ") if found else [""] * 14
        if by_wgmma(fields):
            turned.add((w, fields[3]))
            assert w in ("nvfp4", "i4") and T > (32 if fields[3] == "8" else 16) and "w_block_zero" not in arrays and N > 1056
        elif fields[6] == "1024" and fields[13] == "true":
            seen.add((w, fields[3]))
            assert (w == "q4_0" and T > 32) if fields[3] == "8" else (w in ("q8_0", "e4m3", "i8") and T > 16), (w, T, N, K, fields)
    assert seen == {("q4_0", "8"), ("q8_0", "4"), ("e4m3", "4"), ("i8", "4")}
    assert turned == {(w, tiles) for w in ("nvfp4", "i4") for tiles in "48"}


@pytest.mark.parametrize("w", ["q4_k", "q6_k"])
def test_groups_that_come_eight_at_a_time_keep_stages_of_as_many(w):
    assert picked(w, 64, 24576, 4096)[6] != "1024"


def test_scales_that_start_anywhere_have_a_margin():
    """Rows of 258 entries, and of 256."""
    assert picked("e2m1", 32, 24576, 4128)[14] == "false" and picked("e2m1", 32, 24576, 4096)[14] == picked("e2m1", 64, 24576, 4096)[14] == "true"
    assert not by_wgmma(picked("e2m1", 64, 24576, 4128)), "registers are short there"
    assert picked("e2m1", 32, 4096, 4128)[2:4] == ["1", "4"] and len(picked("e2m1", 32, 4096, 4128)) == 14
