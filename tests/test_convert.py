"""vivace convert and fp8 weights: every tiny checkpoint through GGUF and back gives the same logits; block formats as gguf makes them."""
import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from vivace import _core
from tests.packed import packed_json
from tests.test_model import FIXTURES, HUB, TOLERANCE, feed, open_core
from vivace.convert import GGUF_DTYPES, _Tensors, convert, narrow
from vivace.blocks import SIZES, fitting, quantize

GGUF_CANNOT_SAY = {"gemma3_params": "layer_types", "qwen35": "recurrent layers", "qwen35_moe": "recurrent layers"}
SAYABLE = [n for n in HUB if n not in GGUF_CANNOT_SAY]


def logits(path, ids):
    return feed(open_core(path, max_batch=len(ids)), ids)


@pytest.mark.parametrize("name", SAYABLE)
def test_hub_to_gguf_and_back(tmp_path, name):
    want = load_file(FIXTURES / "tiny" / name / "expected.safetensors")
    ids = want["prompt_ids"].tolist()
    facts = convert(FIXTURES / "tiny" / name, tmp_path / "m.gguf", dtype="f32")
    assert facts["bytes"] == (tmp_path / "m.gguf").stat().st_size
    np.testing.assert_allclose(logits(tmp_path / "m.gguf", ids), want["prompt_logits"], rtol=0, atol=TOLERANCE)
    if "llama3" in (FIXTURES / "tiny" / name / "config.json").read_text():
        with pytest.raises(vivace.UnsupportedError, match="rope_freqs"):
            convert(tmp_path / "m.gguf", tmp_path / "back", dtype="f32")
        return
    convert(tmp_path / "m.gguf", tmp_path / "back", dtype="f32")
    np.testing.assert_allclose(logits(tmp_path / "back", ids), want["prompt_logits"], rtol=0, atol=TOLERANCE)
    names = set(load_file(tmp_path / "back" / "model.safetensors"))
    stored = {n for f in (FIXTURES / "tiny" / name).glob("model*.safetensors") for n in load_file(f)}
    assert names == {n.removeprefix("transformer.") for n in stored}


@pytest.mark.parametrize("name", sorted(GGUF_CANNOT_SAY))
def test_what_gguf_cannot_say_is_refused(tmp_path, name):
    with pytest.raises(vivace.UnsupportedError, match=GGUF_CANNOT_SAY[name]):
        convert(FIXTURES / "tiny" / name, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize("dtype", GGUF_DTYPES)
@pytest.mark.parametrize("name", ["mixtral", "gpt2", "qwen2"])
def test_every_dtype_loads_and_stays_near(tmp_path, name, dtype):
    want = load_file(FIXTURES / "tiny" / name / "expected.safetensors")
    convert(FIXTURES / "tiny" / name, tmp_path / "m.gguf", dtype=dtype)
    got = logits(tmp_path / "m.gguf", want["prompt_ids"].tolist())
    # Relative rounding of the weights, over two layers: the share of the logits' size that may be off.
    share = {"f32": 1e-5, "f16": 0.02, "bf16": 0.1, "q8_0": 0.15}.get(dtype, 1.0)
    assert np.sqrt(np.mean((got - want["prompt_logits"]) ** 2)) < share * want["prompt_logits"].std()
    assert open_core(tmp_path / "m.gguf").report()


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_blocks_equal_gguf(dtype):
    import gguf

    rng = np.random.default_rng(0)
    for scale in (1.0, 1e-3, 1e4):
        x = (rng.standard_normal((40, 96)) * scale).astype(np.float32)
        x[3] = 0
        x[4, :32] = -scale
        want = gguf.quants.quantize(x, gguf.GGMLQuantizationType[dtype.upper()])
        np.testing.assert_array_equal(quantize(x, dtype).reshape(want.shape), want)


@pytest.mark.parametrize("dtype,share", [("q4_k", 1 / 15), ("q5_k", 1 / 31), ("q6_k", 1 / 32)])
def test_k_quants_are_what_gguf_reads(dtype, share):
    """The reference reader and ours see the same values, within half a step of the sub-block and the rounding of its scales."""
    import gguf

    rng = np.random.default_rng(1)
    x = rng.standard_normal((24, 512)).astype(np.float32) * np.exp2(rng.integers(-6, 6, (24, 1))).astype(np.float32)
    x[3], x[4], x[5] = 0, np.abs(x[4]), -np.abs(x[5])
    raw = quantize(x, dtype)
    assert raw.shape == (48, SIZES[dtype][1])
    theirs = gguf.quants.dequantize(raw.reshape(24, -1), gguf.GGMLQuantizationType[dtype.upper()])
    ours = np.empty_like(x)
    vivace.ops.embedding(table=vivace.view(raw.reshape(-1), dtype=dtype, shape=x.shape), ids=np.arange(24, dtype=np.int32), out=ours)
    np.testing.assert_array_equal(ours, theirs)
    blocks = x.reshape(-1, 256)
    width = (np.maximum(blocks.max(1), 0) - np.minimum(blocks.min(1), 0)) if dtype != "q6_k" else np.abs(blocks).max(1)
    # The stored scale and minimum are half a 63rd of the block's largest off each (q6_k: half a 127th), and 2^-11 by f16.
    # Codes are half a step off; in q6_k a whole one, opposite the largest value, where there is a code fewer.
    off = width * (share / 2 + 1 / 63 if dtype != "q6_k" else share + 0.5 / 127)
    assert (np.abs(ours.reshape(-1, 256) - blocks).max(1) <= off * (1 + 2**-9)).all()


def test_a_row_that_blocks_do_not_divide_gets_another_format():
    assert [fitting(d, 640) for d in ("q4_k", "q5_k", "q6_k", "q4_0")] == ["q5_0", "q5_1", "q8_0", "q4_0"]
    assert [fitting(d, 48) for d in ("q4_k", "q8_0", "bf16")] == ["f16", "f16", "bf16"]


def test_narrow_equals_ml_dtypes():
    u = np.random.default_rng(0).integers(0, 2**32, 100000, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([u.view(np.float32), np.array([0, -0.0, np.inf, -np.inf], np.float32)])
    got, want = narrow(x, "bf16").view(ml_dtypes.bfloat16).astype(np.float32), x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(got[~np.isnan(x)], want[~np.isnan(x)])
    assert np.isnan(got[np.isnan(x)]).all()


@pytest.mark.parametrize("name", ["prefix", "plain"])
def test_the_tokenizer_goes_along(tmp_path, name):
    """Its ids stay the same in the form of a hub folder."""
    from vivace import _core
    from vivace.convert import _write_tokenizer
    from vivace.text import load_text

    meta = _core.read_metadata(str(FIXTURES / "spm" / f"{name}.gguf"))
    _write_tokenizer(tmp_path, meta)
    before, after = load_text("", meta), load_text(str(tmp_path), {})
    assert (after.bos, after.eos, after.add_bos) == (before.bos, before.eos, before.add_bos)
    for s, ids in packed_json(FIXTURES / "spm" / f"{name}.json")["cases"]:
        assert after.encode(s) == before.encode(s) and after.encode(s, special="<|turn|>" in s) == ids and after.decode(ids) == before.decode(ids)


def test_bad_calls(tmp_path):
    source = FIXTURES / "tiny" / "llama"
    (tmp_path / "there.gguf").write_bytes(b"x")
    for target, options, error, match in [
            ("m.gguf", {"dtype": "q3_k"}, vivace.InvalidArgumentError, "dtype: wanted one of f32"),
            ("folder", {"dtype": "q8_0"}, vivace.InvalidArgumentError, "for safetensors"),
            ("there.gguf", {}, vivace.InvalidArgumentError, "exists"),
            ("folder", {}, vivace.UnsupportedError, "only safetensors to GGUF")]:
        with pytest.raises(error, match=match):
            convert(source, tmp_path / target, **options)
    with pytest.raises(vivace.NotFoundError):
        convert(tmp_path / "nothing", tmp_path / "m.gguf")
    shutil.copy(source / "model.safetensors", tmp_path / "alone.safetensors")
    with pytest.raises(vivace.NotFoundError, match="config.json"):
        convert(tmp_path / "alone.safetensors", tmp_path / "m.gguf")


# ---- fp8 with block scales -----------------------------------------------------------------------

CONFIG = dict(architectures=["LlamaForCausalLM"], hidden_size=64, intermediate_size=160, num_hidden_layers=1, num_attention_heads=4,
              num_key_value_heads=2, vocab_size=96, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True)
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def fp8_folders(tmp_path, change=None):
    """The same weights as e4m3 with scales, and as the bf16 they mean."""
    rng, fp8, plain = np.random.default_rng(3), {}, {}
    q, kv, m, h = 64, 32, 160, 64
    shapes = {"self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h), "self_attn.o_proj": (h, q),
              "mlp.gate_proj": (m, h), "mlp.up_proj": (m, h), "mlp.down_proj": (h, m)}
    for name, shape in shapes.items():
        name = f"model.layers.0.{name}.weight"
        fp8[name] = rng.standard_normal(shape).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
        scale = rng.uniform(0.05, 0.4, [-(-n // 128) for n in shape]).astype(np.float32)
        fp8[name + "_scale_inv"] = scale
        whole = np.repeat(np.repeat(scale, 128, 0), 128, 1)[:shape[0], :shape[1]]
        plain[name] = (fp8[name].astype(np.float32) * whole).astype(ml_dtypes.bfloat16)
    common = {"model.embed_tokens.weight": rng.standard_normal((96, 64)).astype(ml_dtypes.bfloat16)}
    for n in ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"):
        common[n + ".weight"] = np.ones(64, ml_dtypes.bfloat16)
    if change:
        change(fp8)
    for folder, tensors, extra in (("fp8", fp8, {"quantization_config": FP8}), ("plain", plain, {})):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps({**CONFIG, **extra}))
        save_file(tensors | common, tmp_path / folder / "model.safetensors")
    return tmp_path / "fp8", tmp_path / "plain"


def test_fp8_blocks_equal_the_bf16_they_mean(tmp_path):
    fp8, plain = fp8_folders(tmp_path)
    ids = list(range(20))
    np.testing.assert_array_equal(logits(fp8, ids), logits(plain, ids))
    convert(fp8, tmp_path / "m.gguf", dtype="bf16")
    np.testing.assert_allclose(logits(tmp_path / "m.gguf", ids), logits(plain, ids), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", SAYABLE)
def test_gguf_to_fp8_blocks(tmp_path, name):
    """e4m3 keeps four significant bits, so that weights are off by at most a 16th of themselves, or of their block's 448th."""
    if "llama3" in (FIXTURES / "tiny" / name / "config.json").read_text():
        pytest.skip("GGUF does not give llama3's rope parameters back")
    convert(FIXTURES / "tiny" / name, tmp_path / "m.gguf", dtype="f32")
    if name == "gpt2":
        with pytest.raises(vivace.UnsupportedError, match="transposed"):
            convert(tmp_path / "m.gguf", tmp_path / "fp8", dtype="e4m3")
        return
    convert(tmp_path / "m.gguf", tmp_path / "fp8", dtype="e4m3")
    convert(tmp_path / "m.gguf", tmp_path / "f32", dtype="f32")
    fp8, plain = (_Tensors(_core.read_tensors(str(tmp_path / d))) for d in ("fp8", "f32"))
    codes = [n for n in fp8.entries if fp8.entries[n][0] == "e4m3"]
    assert codes and all(n.endswith("_proj.weight") for n in codes)
    for n in plain.entries:
        want, got = plain[n], fp8[n]
        off = np.abs(want) / 16 + np.abs(want).max() / 448 / 64 if n in codes else np.abs(want) / 256
        assert (np.abs(got - want) <= off).all(), n
    ids = list(range(1, 9))
    assert np.isfinite(logits(tmp_path / "fp8", ids)).all()
    convert(tmp_path / "fp8", tmp_path / "again.gguf", dtype="f32")


def test_hub_to_fp8_blocks(tmp_path):
    """Straight from a hub folder, with what stands beside it: the folder that the way over GGUF gives."""
    source = tmp_path / "hub"
    shutil.copytree(FIXTURES / "tiny" / "qwen3", source)
    (source / "tokenizer_config.json").write_text('{"bos_token": "a"}')
    convert(source, tmp_path / "m.gguf", dtype="f32")
    for origin, folder in ((source, "straight"), (tmp_path / "m.gguf", "over")):
        convert(origin, tmp_path / folder, dtype="e4m3")
    straight, over = (_Tensors(_core.read_tensors(str(tmp_path / d))) for d in ("straight", "over"))
    assert straight.entries.keys() == over.entries.keys() and any(e[0] == "e4m3" for e in straight.entries.values())
    for n in over.entries:
        np.testing.assert_array_equal(straight[n], over[n], n)
    assert (tmp_path / "straight" / "tokenizer_config.json").read_text() == '{"bos_token": "a"}'
    assert json.loads((tmp_path / "straight" / "config.json").read_text())["quantization_config"] == FP8


@pytest.mark.parametrize("change,error,match", [
    (lambda t: t.pop("model.layers.0.mlp.up_proj.weight_scale_inv"), vivace.UnsupportedError, "up_proj.weight is e4m3 without scales"),
    (lambda t: t.update({"model.layers.0.mlp.up_proj.weight_scale_inv": np.ones((1, 1), np.float32)}), vivace.InvalidShapeError, r"wanted \[2, 1\], got \[1, 1\]"),
    (lambda t: t.update({"model.layers.0.mlp.up_proj.weight_scale_inv": np.ones((2, 1), np.int32)}), vivace.UnsupportedError, "wanted f32 or bf16"),
])
def test_bad_fp8_scales(tmp_path, change, error, match):
    with pytest.raises(error, match=match):
        open_core(fp8_folders(tmp_path, change)[0])


def test_a_tokenizer_goes_along_and_back(tmp_path):
    from tests.test_text import hub_folder
    from vivace.text import load_text

    source = tmp_path / "hub"
    shutil.copytree(FIXTURES / "tiny" / "qwen2", source)
    hub_folder(source, tokenizer_config='{"eos_token": "</s>", "bos_token": "a", "add_bos_token": true, "chat_template": "{{ messages[0].content }}b"}',
               generation_config='{"eos_token_id": [3, 1, 2]}')
    convert(source, tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", tmp_path / "back", dtype="f32")
    want, got, back = load_text(str(source), {}), load_text("", _core.read_metadata(str(tmp_path / "m.gguf"))), load_text(str(tmp_path / "back"), {})
    for text in (got, back):
        assert (text.bos, text.eos, text.add_bos, text.template) == (want.bos, want.eos, want.add_bos, want.template) == (0, [3, 1, 2], True, "{{ messages[0].content }}b")
        assert text.encode("ab</s>ba") == want.encode("ab</s>ba") and text.chat_ids([{"role": "user", "content": "ab"}]) == [2, 1]
    with vivace.load_model(tmp_path / "m.gguf", device="cpu") as model:
        assert model.generate("ab", max_tokens=3).finish in ("length", "stop")


def test_a_gguf_without_a_tokenizer_says_so(tmp_path):
    from vivace.text import load_text

    convert(FIXTURES / "tiny" / "llama", tmp_path / "m.gguf")
    meta = _core.read_metadata(str(tmp_path / "m.gguf"))
    with pytest.raises(vivace.NotFoundError, match="no tokenizer"):
        load_text("", meta)
    with pytest.raises(vivace.CorruptDataError, match="bos_token_id: wanted a token"):
        load_text("", {**meta, "tokenizer.huggingface.json": '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}', "tokenizer.ggml.bos_token_id": 9})
    with pytest.raises(vivace.CorruptDataError, match="tokenizer.huggingface.json: byte 1"):
        load_text("", {**meta, "tokenizer.huggingface.json": "{"})
