"""precision="fp8_static": scales from prompts, kept under a digest of the checkpoint, the plan and the prompts."""
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.test_model_steps import DEVICE, IDS, decode, open_core, prefill
from vivace import _core, calibrate

TINY = Path(__file__).parent / "fixtures" / "tiny"
NAMES = ["llama_untied", "qwen3", "gemma3", "gpt2", "qwen2", "mixtral", "qwen3_moe", "qwen35", "qwen35_moe"]
PROMPTS = [IDS[:60], [7, 7, 9]]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """No scales kept from other tests."""
    monkeypatch.setattr(calibrate, "cache_dir", lambda: tmp_path / "cache")


def static_core(path, scales, **options):
    open_core(path, "bf16")
    return _core.load_text_model(str(path), **{**dict(device=DEVICE, precision="fp8_static", kv_dtype="auto", threads=2, context=0, max_batch=32, prefill_chunk=128, act_scales=scales), **options})


@pytest.mark.parametrize("name", NAMES)
def test_static_scales_err_about_as_dynamic_ones(name):
    """Against float64: at most half more than scales made in the step, which fit each row."""
    want = load_file(TINY / name / "expected.safetensors")
    ids = want["prompt_ids"].tolist()
    scales = calibrate.act_scales(TINY / name, [ids], device=DEVICE)
    size = np.linalg.norm(want["prompt_logits"])
    error = lambda core: np.linalg.norm(decode(core, ids, 32) - want["prompt_logits"]) / size  # noqa: E731
    fixed, dynamic = static_core(TINY / name, scales), error(open_core(TINY / name, "fp8", max_batch=32))
    assert error(fixed) <= 1.5 * dynamic
    assert np.linalg.norm(prefill(fixed, ids, [len(ids)]) - want["prompt_logits"][-1]) <= 3 * dynamic * np.linalg.norm(want["prompt_logits"][-1])


def test_scales_are_magnitudes_over_the_largest_code():
    """Places in the order of the step: checked against what observe() shows of the same prompt."""
    core = open_core(TINY / "llama_untied", "bf16", max_batch=2)
    seen = [(op, port, np.frombuffer(raw, np.float32).reshape(shape)) for op, port, raw, shape, _ in core.observe([(t, i, 0, i == 19) for i, t in enumerate(IDS[:20])])]
    inputs = [np.abs(v[:20] if i < 8 else v[:1]).max() for i, v in enumerate(
        [v for op, port, v in seen if port == "out" and op in ("norm", "attention", "gated_gemm")])]
    got = core.calibrate([IDS[:20]], 100.0)
    assert len(got) == len(inputs) == 4 * int(dict(core.report())["layers"]) + 1
    np.testing.assert_array_equal(np.float32(got), np.float32(inputs) / np.float32(448))
    lower = core.calibrate([IDS[:20]], 90.0)
    assert all(a <= b for a, b in zip(lower, got)) and lower != got


def test_rows_have_the_same_bits_alone_and_beside_others():
    scales = calibrate.act_scales(TINY / "llama_untied", PROMPTS, device=DEVICE)
    core = static_core(TINY / "llama_untied", scales, max_batch=48)
    whole = decode(core, IDS[:60], 48)
    for piece in (1, 7, 32):
        np.testing.assert_array_equal(decode(core, IDS[:60], piece), whole)
    np.testing.assert_array_equal(decode(static_core(TINY / "llama_untied", scales, max_batch=48, eager=True), IDS[:60], 5), whole)


def test_kept_until_the_checkpoint_the_percentile_or_the_prompts_change(tmp_path, monkeypatch):
    folder = tmp_path / "m"
    shutil.copytree(TINY / "llama_untied", folder)
    loads = []
    load = _core.load_text_model
    monkeypatch.setattr(calibrate._core, "load_text_model", lambda *a, **k: loads.append(1) or load(*a, **k))
    first = calibrate.act_scales(folder, PROMPTS, device=DEVICE)
    assert calibrate.act_scales(folder, PROMPTS, device=DEVICE) == first and len(loads) == 1
    kept = [p for p in (tmp_path / "cache/calibration").glob("*.json") if p.name != "digests.json"]
    kept[0].write_text(kept[0].read_text()[:140])  # cut off
    assert calibrate.act_scales(folder, PROMPTS, device=DEVICE) == first and len(loads) == 2
    assert json.loads(kept[0].read_text().partition("\n")[2])["plan"] == "fp8_static"
    calibrate.act_scales(folder, PROMPTS, percentile=99.0, device=DEVICE)
    calibrate.act_scales(folder, PROMPTS[:1], device=DEVICE)
    assert len(loads) == 4
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][3] *= 2
    save_file(weights, folder / "model.safetensors")
    calibrate.act_scales(folder, PROMPTS, device=DEVICE)
    assert len(loads) == 5


def test_kept_scales_of_another_number_are_made_again(tmp_path):
    """What another version kept, whole and under the same name, for a plan with other products."""
    options = dict(device=DEVICE, precision="fp8_static", calibration=PROMPTS)
    with vivace.load_model(TINY / "llama_untied", **options) as model:
        want = model.generate_ids(IDS[:5], max_tokens=6).tokens
    folder = calibrate.Cache(tmp_path / "cache" / "calibration")
    [name] = [f.name for f in (tmp_path / "cache" / "calibration").glob("*.json") if f.name != "digests.json"]
    whole = json.loads(folder.read(name))
    for scales in (whole["act_scales"][:3], whole["act_scales"] * 2):
        folder.write(name, json.dumps(whole | {"act_scales": scales}).encode())
        with vivace.load_model(TINY / "llama_untied", **options) as model:
            assert model.generate_ids(IDS[:5], max_tokens=6).tokens == want
        assert json.loads(folder.read(name)) == whole


def test_answers_through_load_model():
    with vivace.load_model(TINY / "llama_untied", device=DEVICE, precision="fp8_static", calibration=PROMPTS) as model:
        assert model.report()["precision"] == "fp8_static"
        assert len(model.generate_ids(IDS[:5], max_tokens=6).tokens) == 6


@pytest.mark.parametrize("options, error, what", [
    (dict(precision="bf16", calibration=PROMPTS), vivace.InvalidArgumentError, "only precision='fp8_static'"),
    (dict(precision="fp8_static", calibration=[]), vivace.InvalidArgumentError, "no prompt"),
    (dict(precision="fp8_static", calibration=[[]]), vivace.InvalidArgumentError, "nothing was seen"),
    (dict(precision="fp8_static", calibration=PROMPTS, percentile=40.0), vivace.InvalidArgumentError, r"percentile: wanted a value above 50, to 100, got 40"),
    (dict(precision="fp8_static", calibration=[[10**6]]), vivace.InvalidArgumentError, "outside the vocabulary")])
def test_bad_input(options, error, what):
    with pytest.raises(error, match=what):
        vivace.load_model(TINY / "llama_untied", device=DEVICE, **options)


def test_scales_of_another_model_are_refused():
    with pytest.raises(vivace.Error, match=r"act_scales: precision fp8_static wants 9, .* got 3"):
        static_core(TINY / "llama_untied", [1.0] * 3)
    with pytest.raises(vivace.InvalidArgumentError, match="act_scales: wanted positive finite values, got nan"):
        static_core(TINY / "llama_untied", [float("nan")] * 9)
    with pytest.raises(vivace.Error, match="act_scales: precision bf16 wants 0"):
        static_core(TINY / "llama_untied", [1.0] * 9, precision="bf16")
    with pytest.raises(vivace.UnsupportedError, match="calibrate: precision fp8 has no unrounded activations"):
        open_core(TINY / "llama_untied", "fp8").calibrate([[1, 2]], 100.0)


def test_nan_activations_are_named(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(TINY / "llama_untied", folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][7] = np.nan
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(vivace.UnsupportedError, match="an activation of quantization point 0 is NaN"):
        calibrate.act_scales(folder, [[1, 7]], device=DEVICE)


def test_command_line(tmp_path, capsys):
    from vivace import cli

    file = tmp_path / "prompts"
    file.write_text("")
    assert cli.main(["calibrate", "--model", str(TINY / "llama_untied"), "--device", DEVICE, "--prompts", str(file)]) == 1
    assert "no prompt" in capsys.readouterr().err
    assert cli.main(["calibrate", "--model", str(TINY / "llama_untied"), "--device", DEVICE, "--prompts", str(tmp_path / "gone")]) == 1
    assert "gone: No such file" in capsys.readouterr().err
