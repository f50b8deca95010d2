"""The oracle is itself checked: against transformers' stored results, gguf's dequantizer and plain loops."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from safetensors.numpy import load_file

from tests.packed import packed_tensors
from tests.reference import blocks, checkpoints
from tests.reference.decoder_numpy import Decoder
from tests.reference.llama_numpy import Llama
from tests.reference.qwen3_vl_numpy import Qwen3Vl

TINY = Path(__file__).resolve().parents[1] / "fixtures" / "tiny"
# The NumPy reference is the Llama family's; the other folders are compared with transformers by test_model.py alone.
FAMILIES = sorted(p.parent.name for p in TINY.glob("*/config.json") if json.loads(p.read_text())["model_type"] in checkpoints.ARCHS)


def test_all_families_are_there():
    assert FAMILIES == ["llama", "llama_linear", "llama_untied", "qwen2", "qwen3", "qwen3_yarn"]


@pytest.mark.parametrize("family", FAMILIES)
# Measured: 4e-5 at most in either dtype, from the float32 rope tables of transformers and the stored
# float32 logits, which reach 32 in magnitude.
@pytest.mark.parametrize("dtype,tolerance", [("float64", 5e-5), ("float32", 1e-4)])
def test_matches_transformers(family, dtype, tolerance):
    expected = checkpoints.read_safetensors(TINY / family / "expected.safetensors")
    model = Llama(TINY / family, dtype=dtype)
    logits = model.forward(expected["prompt_ids"], all_logits=True)
    np.testing.assert_allclose(logits, expected["prompt_logits"], rtol=0, atol=tolerance)
    tokens, gaps = model.greedy(expected["prompt_ids"], len(expected["greedy_ids"]))
    assert tokens == expected["greedy_ids"].tolist()
    np.testing.assert_allclose(gaps, expected["greedy_gaps"], rtol=0, atol=2 * tolerance)


@pytest.mark.parametrize("key,value", [("rms_norm_eps", 1e-2), ("rope_theta", 9000.0), ("rope_scaling", None)])
def test_a_wrong_setting_shows(tmp_path, key, value):
    config = json.loads((TINY / "llama" / "config.json").read_text())
    assert config[key] != value
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    (tmp_path / "model.safetensors").symlink_to(TINY / "llama" / "model.safetensors")
    expected = checkpoints.read_safetensors(TINY / "llama" / "expected.safetensors")
    logits = Llama(tmp_path, dtype="float64").forward(expected["prompt_ids"], all_logits=True)
    assert np.abs(logits - expected["prompt_logits"]).max() > 1e-2


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks(name):
    """Codes against gguf's dequantizer; both products against loops over the definition."""
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[name]
    rng = np.random.default_rng(5)
    n, k, t = 7, 96, 3
    raw = gguf.quants.quantize(rng.standard_normal((n, k)).astype(np.float32), kind)
    dense = gguf.quants.dequantize(raw, kind)
    weight = blocks.decode(name, raw, n, k)
    np.testing.assert_allclose(weight.rows(np.arange(n)), dense, rtol=2e-7, atol=0)
    x = rng.standard_normal((t, k)).astype(np.float32)
    x[1, 32:64] = 0.0  # a block without any magnitude
    np.testing.assert_allclose(weight.product(x, "f32"), x.astype(np.float64) @ dense.T.astype(np.float64), rtol=1e-6, atol=1e-6)

    bytes_per_block = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[name]
    want = np.zeros((t, n))
    for row in range(t):
        for col in range(n):
            for b in range(k // 32):
                block = raw[col, b * bytes_per_block:(b + 1) * bytes_per_block].tobytes()
                d = float(np.frombuffer(block[:2], "<f2")[0])
                head = 4 if name == "Q4_1" else 2
                if name == "Q8_0":
                    codes = [c - 256 if c > 127 else c for c in block[head:]]
                else:
                    codes = [c & 15 for c in block[head:]] + [c >> 4 for c in block[head:]]
                values = x[row, b * 32:(b + 1) * 32]
                amax = np.float32(max(abs(v) for v in values))
                inv = np.float32(127) / amax if amax else np.float32(0)
                q = [int(np.rint(np.float32(v * inv))) for v in values]
                dot, total = sum(c * s for c, s in zip(codes, q)), sum(q)
                dx = float(np.float32(amax / np.float32(127)))
                if name == "Q4_0":
                    want[row, col] += d * dx * (dot - 8 * total)
                elif name == "Q4_1":
                    want[row, col] += d * dx * dot + float(np.frombuffer(block[2:4], "<f2")[0]) * dx * total
                else:
                    want[row, col] += d * dx * dot
    np.testing.assert_allclose(weight.product(x, "q8"), want, rtol=1e-12, atol=1e-12)


def test_rounding_is_to_even_and_saturates_nowhere():
    x = np.zeros((1, 32), np.float32)
    x[0, :5] = [127.0, 0.5, 1.5, -2.5, -127.0]
    codes, d = blocks.quantize_rows(x)
    assert codes[0, 0, :5].tolist() == [127, 0, 2, -2, -127] and d[0, 0] == 1


def test_decode_equals_prefill():
    """Token by token through the cache gives the logits of one pass over all tokens."""
    ids = checkpoints.read_safetensors(TINY / "qwen3" / "expected.safetensors")["prompt_ids"]
    model = Llama(TINY / "qwen3", dtype="float64")
    whole = model.forward(ids, all_logits=True)
    model.reset()
    np.testing.assert_allclose([model.forward([i]) for i in ids], whole, rtol=0, atol=1e-11)


def test_a_batch_changes_nothing():
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, 192, n).tolist() for n in (5, 1, 17)]
    model = Llama(TINY / "llama", dtype="float64")
    for (ids, gaps), prompt in zip(model.greedy_batch(prompts, 8), prompts):
        alone = model.greedy(prompt, 8)
        assert ids == alone[0]
        np.testing.assert_allclose(gaps, alone[1], rtol=0, atol=1e-11)


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="multiple of 32"):
        blocks.quantize_rows(np.ones((1, 33), np.float32))
    with pytest.raises(ValueError, match="Q6_K"):
        blocks.decode("Q6_K", np.zeros(210, np.uint8), 1, 256)
    config = json.loads((TINY / "llama" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(ValueError, match="mamba"):
        checkpoints.load(tmp_path)
    model = Llama(TINY / "llama")
    with pytest.raises(ValueError, match="token ids"):
        model.forward([model.config.vocab])


GGUFS = sorted(p.stem for p in TINY.with_name("tiny_gguf").glob("*.gguf"))


@pytest.mark.parametrize("name", GGUFS)
@pytest.mark.parametrize("act", ["f32", "q8"])
def test_tiny_gguf(name, act):
    """The stored values are this code's own; llama.cpp gave the same greedy ids when they were made."""
    pytest.importorskip("gguf")
    folder = TINY.with_name("tiny_gguf")
    expected = checkpoints.read_safetensors(folder / f"{name}.expected.safetensors")
    model = Llama(folder / f"{name}.gguf", act=act, dtype="float64")
    logits = model.forward(expected["prompt_ids"], all_logits=True)
    np.testing.assert_allclose(logits, expected[f"{act}.prompt_logits"], rtol=0, atol=1e-5)  # stored in float32
    for dtype in ("float64", "float32"):  # in q8 float32's rounding flips codes; the gaps allow for that
        model.configure(act, dtype)
        assert model.greedy(expected["prompt_ids"], 32)[0] == expected[f"{act}.greedy_ids"].tolist()


def test_gguf_and_hub_forms_agree():
    """Permuted rows with interleaved rope are the hub's rows with rotate-half; f16 storage is the only loss."""
    pytest.importorskip("gguf")
    hub = Llama(TINY / "llama_linear", dtype="float64")
    for weight in hub.weights.values():
        if isinstance(weight, blocks.Dense):
            weight.w = weight.w.astype(np.float16).astype(np.float64)
    ids = np.arange(3, 40)
    want = hub.forward(ids, all_logits=True)
    got = Llama(TINY.with_name("tiny_gguf") / "llama_f16.gguf", dtype="float64").forward(ids, all_logits=True)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", sorted(p.parent.name for p in TINY.glob("*/expected.safetensors")))
def test_every_family_equals_transformers(name):
    folder = TINY / name
    want = load_file(folder / "expected.safetensors")
    weights = {k: v for file in folder.glob("model*.safetensors") for k, v in load_file(file).items()}
    got = Decoder(json.loads((folder / "config.json").read_text()), weights).logits(want["prompt_ids"])
    np.testing.assert_allclose(got, want["prompt_logits"], rtol=0, atol=5e-5)  # float32 tables of theirs; seen 4e-5


@pytest.mark.parametrize("case", ["one", "several", "first", "text"])
def test_qwen3_vl_matches_transformers(case):
    """Every row of prompts with images. Measured: 1.1e-5 at most, from the float32 rope tables of transformers and the stored float32 logits, which reach 38 in magnitude."""
    folder = TINY.parent / "qwen3_vl"
    want, config = packed_tensors(folder / "expected.safetensors"), json.loads((folder / "config.json").read_text())
    ids, pad = want[f"{case}.ids"].tolist(), config["image_token_id"]
    images = [want[f"{case}.image.{i}"] for i in range(sum(k.startswith(f"{case}.image.") for k in want))]
    side = config["vision_config"]["patch_size"] * config["vision_config"]["spatial_merge_size"]
    tokens, seen = [], iter(images)
    while ids:
        tokens.append(ids[0])
        ids = ids[np.prod(next(seen).shape[:2]) // side**2 if ids[0] == pad else 1:]
    got = Qwen3Vl(config, load_file(folder / "model.safetensors")).logits([i.astype(np.float64) for i in images], tokens)
    np.testing.assert_allclose(got, want[f"{case}.logits"], rtol=0, atol=5e-5)
