"""precision="int4" and lm_head_dtype=: weights that become blocks while they load are those that convert writes beforehand."""
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.test_model_steps import DEVICE, FIXTURES, HUB, IDS, decode, load, open_core, prefill
from vivace import cli
from vivace.convert import convert

QWEN = FIXTURES / "tiny" / "qwen3"
# Relative error of all rows against float64 on these fixtures, by 2^-4 of the largest of 32 weights; with half as much again.
INT4 = 0.72


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    """qwen3 as q4_0 in GGUF, and a folder of the values that those blocks stand for: encoding them again gives the same blocks."""
    folder = tmp_path_factory.mktemp("int4")
    convert(QWEN, folder / "a.gguf", dtype="q4_0")
    convert(folder / "a.gguf", folder / "hub", dtype="f32")
    return folder


def test_int4_is_what_convert_writes(blocks):
    stored = open_core(blocks / "a.gguf", "native", max_batch=32)
    made = open_core(blocks / "hub", "int4", max_batch=32, lm_head_dtype="q4_0")
    ids = IDS[:60]
    np.testing.assert_array_equal(decode(made, ids, 32), decode(stored, ids, 32))
    np.testing.assert_array_equal(prefill(made, ids, [60]), prefill(stored, ids, [60]))


@pytest.mark.parametrize("name", HUB)
def test_int4_is_near_f32(name):
    want = load_file(FIXTURES / "tiny" / name / "expected.safetensors")
    ids = want["prompt_ids"].tolist()
    if name in ("gemma3", "gemma3_params", "qwen3_moe", "qwen35", "qwen35_moe"):
        with pytest.raises(vivace.UnsupportedError, match="a scale for each 32 columns"):
            open_core(FIXTURES / "tiny" / name, "int4")
        return
    got = decode(open_core(FIXTURES / "tiny" / name, "int4", max_batch=32), ids, 32)
    error = np.linalg.norm(got - want["prompt_logits"]) / np.linalg.norm(want["prompt_logits"])
    print(f"{name}: {error:.4f}")
    assert 1e-4 < error < INT4, error


# The head alone is rounded: one product's error.
@pytest.mark.parametrize("head, bound", [("plain", 0.012), ("e4m3", 0.05), ("q8_0", 0.0075), ("q4_0", 0.15), ("e2m1", 0.2)])
@pytest.mark.parametrize("name", ["llama_untied", "qwen3"])
def test_heads(name, head, bound):
    path = FIXTURES / "tiny" / name
    plain = decode(open_core(path, "bf16", max_batch=32), IDS[:32], 32)
    got = decode(open_core(path, "bf16", max_batch=32, lm_head_dtype=head), IDS[:32], 32)
    error = np.linalg.norm(got - plain) / np.linalg.norm(plain)
    assert (error == 0) if head == "plain" else (1e-4 < error < bound), error
    with load(path, "bf16", lm_head_dtype=head) as model:
        assert model.report()["head_dtype"] == ("bf16" if head == "plain" else head)


def test_random_weights_of_int4():
    with load(QWEN, "int4", random_weights=True) as model:
        assert model.report()["weight_dtype"] == "q4_0" and len(model.generate_ids(IDS[:5], max_tokens=4).tokens) == 4


def test_a_head_of_no_name():
    with pytest.raises(vivace.InvalidArgumentError, match="lm_head_dtype: wanted auto, plain, e4m3, e2m1, q8_0, q4_0, got 'q3'"):
        load(QWEN, "bf16", lm_head_dtype="q3")


def test_rows_of_codes_want_their_head():
    with pytest.raises(vivace.UnsupportedError, match="lm_head_dtype q4_0: precision fp8 hands its rows over as e4m3; leave lm_head_dtype at auto"):
        load(QWEN, "fp8", lm_head_dtype="q4_0")


@pytest.mark.parametrize("precision", ["int4", "w4a16", "w8a16", "fp8"])
@pytest.mark.parametrize("name, form", [("llama_q4_1", "q4_1"), ("qwen3_q8_0", "q8_0")])
def test_a_plan_that_would_change_nothing_is_refused(name, form, precision, capsys):
    path = FIXTURES / "tiny_gguf" / f"{name}.gguf"
    with pytest.raises(vivace.UnsupportedError, match=f"precision {precision}: the checkpoint's matrices are {form} already; use native"):
        load(path, precision)
    assert cli.main(["run", "--model", str(path), "--device", DEVICE, "--precision", precision, "hi"]) == 1
    assert "error[Unsupported]" in capsys.readouterr().err


def test_a_head_of_blocks_stays(blocks):
    with pytest.raises(vivace.UnsupportedError, match="lm_head_dtype: the checkpoint's is q4_0 already; leave lm_head_dtype at auto"):
        load(blocks / "a.gguf", "native", lm_head_dtype="q8_0")
    with load(blocks / "a.gguf", "int4") as model:
        assert model.report()["head_dtype"] == "q4_0"


@pytest.mark.parametrize("options", [dict(precision="int4"), dict(precision="bf16", lm_head_dtype="q8_0")])
def test_widths_that_blocks_do_not_divide(tmp_path, options):
    config = json.loads((QWEN / "config.json").read_text()) | {"intermediate_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(vivace.UnsupportedError, match="a scale for each 32 columns, which 100 does not divide into"):
        load(tmp_path, random_weights=True, **options)


def test_a_weight_that_is_not_finite(tmp_path):
    shutil.copytree(FIXTURES / "tiny" / "llama_untied", tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][3, 5] = np.inf
    os.remove(tmp_path / "m" / "model.safetensors")
    save_file(weights, tmp_path / "m" / "model.safetensors")
    with pytest.raises(vivace.CorruptDataError, match="a weight is NaN or infinite"):
        load(Path(tmp_path / "m"), "int4")
