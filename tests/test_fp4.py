"""FP4 folders (ModelOpt's NVFP4): what convert writes is what precision="w4a16" makes while loading, bit for bit."""
import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.op_data import E2M1
from tests.test_model_steps import DEVICE, FIXTURES, HUB, IDS, decode, load, open_core, prefill
from vivace.convert import convert

TINY = FIXTURES / "tiny"
UP = "model.layers.0.mlp.up_proj.weight"


def folder(tmp_path, name="llama_untied"):
    convert(TINY / name, tmp_path / "fp4", dtype="e2m1")
    return tmp_path / "fp4"


def read(file):
    """Tensors of a .safetensors file; safetensors' own reader for numpy knows no e4m3."""
    raw = file.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    types = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "U8": np.uint8}
    return {n: np.frombuffer(raw[start + t["data_offsets"][0]:start + t["data_offsets"][1]], types[t["dtype"]]).reshape(t["shape"])
            for n, t in json.loads(raw[8:start]).items() if n != "__metadata__"}


def rewrite(folder, change):
    """`change` takes the tensors; e4m3 ones are arrays of ml_dtypes."""
    file = folder / "model.safetensors"
    tensors = read(file)
    change(tensors)
    save_file(tensors, file)


@pytest.mark.parametrize("name", [n for n in HUB if n not in ("gpt2", "qwen35", "qwen35_moe")])
def test_the_bits_of_w4a16(tmp_path, name):
    fp4 = folder(tmp_path, name)
    with load(fp4, "w4a16") as model:
        assert model.report()["weight_dtype"] == "e2m1"
    want = open_core(TINY / name, "w4a16", max_batch=32)
    for precision, head in (("w4a16", "auto"), ("native", "e4m3")):  # native keeps FP4 and would leave the head as stored
        got = open_core(fp4, precision, max_batch=32, lm_head_dtype=head)
        np.testing.assert_array_equal(decode(got, IDS[:40], 32), decode(want, IDS[:40], 32))
        np.testing.assert_array_equal(prefill(got, IDS[:40], [40]), prefill(want, IDS[:40], [40]))


def test_the_same_folder_by_way_of_gguf(tmp_path):
    convert(TINY / "qwen3", tmp_path / "m.gguf", dtype="f32")
    convert(tmp_path / "m.gguf", tmp_path / "by_gguf", dtype="e2m1")
    got, want = (read(p / "model.safetensors") for p in (tmp_path / "by_gguf", folder(tmp_path, "qwen3")))
    assert got.keys() == want.keys()
    for n in want:
        assert got[n].shape == want[n].shape and got[n].tobytes() == want[n].tobytes(), n


def test_streamed_layers_keep_their_codes(tmp_path):
    fp4 = folder(tmp_path)
    got, want = (decode(open_core(fp4, "native", max_batch=32, gpu_layers=n), IDS[:32], 32) for n in (1, -1))
    np.testing.assert_array_equal(got, want)


def test_fields_and_sizes(tmp_path):
    fp4 = folder(tmp_path)
    config, tensors = json.loads((fp4 / "config.json").read_text()), read(fp4 / "model.safetensors")
    values = {n: w.astype(ml_dtypes.bfloat16) for f in (TINY / "llama_untied").glob("model*.safetensors") for n, w in load_file(f).items()}
    assert config["quantization_config"] == {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]}
    rows, columns = values[UP].shape
    assert (tensors[UP].dtype, tensors[UP].shape) == (np.uint8, (rows, columns // 2))
    assert (tensors[UP + "_scale"].dtype, tensors[UP + "_scale"].shape) == (ml_dtypes.float8_e4m3fn, (rows, columns // 16))
    assert (tensors[UP + "_scale_2"].dtype, tensors[UP + "_scale_2"].shape) == (np.float32, ())
    gate = UP.replace("up_proj", "gate_proj")
    largest = np.float32(max(np.abs(values[n].astype(np.float32)).max() for n in (UP, gate)))
    assert tensors[UP + "_scale_2"] == tensors[gate + "_scale_2"] == largest / np.float32(2688)
    assert tensors["lm_head.weight"].dtype == tensors["model.embed_tokens.weight"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("precision", ["f32", "bf16", "fp8"])
def test_other_plans_take_the_values(tmp_path, precision):
    fp4 = folder(tmp_path, "qwen3_yarn")
    convert(fp4, tmp_path / "values.gguf", dtype="f32")
    convert(tmp_path / "values.gguf", tmp_path / "values", dtype="bf16")
    got, want = (decode(open_core(p, precision, max_batch=32), IDS[:32], 32) for p in (fp4, tmp_path / "values"))
    np.testing.assert_array_equal(got, want)


def test_parts_of_one_product_with_scales_of_their_own(tmp_path):
    """No product takes two scales: these parts become bf16, and the others stay FP4."""
    fp4 = folder(tmp_path)

    def other_scales(tensors):
        for n in ("self_attn.k_proj", "mlp.up_proj"):
            whole = f"model.layers.0.{n}.weight_scale_2"
            tensors[whole] = np.array(tensors[whole] * np.float32(1.1))

    def as_values(tensors):
        for n in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            name = f"model.layers.0.{n}.weight"
            codes, block, whole = (tensors.pop(name + e) for e in ("", "_scale", "_scale_2"))
            values = E2M1.astype(np.float32)[np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)]
            tensors[name] = (values * np.repeat(block.astype(np.float32) * whole, 16, 1)).astype(ml_dtypes.bfloat16)

    rewrite(fp4, other_scales)
    got = decode(open_core(fp4, "native", max_batch=32), IDS[:32], 32)
    rewrite(fp4, as_values)
    np.testing.assert_array_equal(got, decode(open_core(fp4, "native", max_batch=32), IDS[:32], 32))


def scale(value):
    return lambda t: t.update({UP + "_scale_2": np.array(value, np.float32)})


@pytest.mark.parametrize("change, error, match", [
    (lambda t: t.pop(UP + "_scale"), vivace.UnsupportedError, "up_proj.weight is u8 without scales in .*weight_scale and .*weight_scale_2"),
    (lambda t: t.pop(UP + "_scale_2"), vivace.UnsupportedError, "is u8 without scales"),
    (lambda t: t.update({UP: t[UP][:, :-1].copy()}), vivace.InvalidShapeError, "up_proj.weight: wanted"),
    (lambda t: t.update({UP + "_scale": t[UP + "_scale"][:, :-1].copy()}), vivace.InvalidShapeError, "up_proj.weight_scale: wanted"),
    (lambda t: t.update({UP + "_scale": t[UP + "_scale"].astype(np.float32)}), vivace.UnsupportedError, "wanted e4m3 and f32, got f32 and f32"),
    (lambda t: t.update({UP + "_scale_2": np.ones(2, np.float32)}), vivace.InvalidShapeError, "weight_scale_2: wanted"),
    (scale(0), vivace.CorruptDataError, "wanted a positive finite scale, got 0"),
    (scale(np.nan), vivace.CorruptDataError, "wanted a positive finite scale"),
    (scale(-1), vivace.CorruptDataError, "got -1"),
])
@pytest.mark.parametrize("precision", ["f32", "native"])
def test_bad_folders(tmp_path, change, error, match, precision):
    fp4 = folder(tmp_path)
    rewrite(fp4, change)
    with pytest.raises(error, match=match):
        load(fp4, precision)


@pytest.mark.parametrize("scheme", [{"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, {"quant_method": "modelopt"},
                                    {"quant_method": "compressed-tensors", "format": "mixed-precision"}])
def test_other_schemes_are_refused_by_name(tmp_path, scheme):
    fp4 = folder(tmp_path)
    config = json.loads((fp4 / "config.json").read_text())
    (fp4 / "config.json").write_text(json.dumps({**config, "quantization_config": scheme}))
    with pytest.raises(vivace.UnsupportedError, match=f"are served, got quant_method '{scheme['quant_method']}'"):
        load(fp4, "native")


def test_what_convert_refuses(tmp_path):
    with pytest.raises(vivace.UnsupportedError, match="gpt2 stores its products transposed, which e2m1"):
        convert(TINY / "gpt2", tmp_path / "out", dtype="e2m1")
    with pytest.raises(vivace.UnsupportedError, match="safetensors to safetensors of e4m3 or e2m1"):
        convert(TINY / "qwen3", tmp_path / "out", dtype="f16")
    convert(TINY / "gpt2", tmp_path / "gpt2.gguf", dtype="f32")
    with pytest.raises(vivace.UnsupportedError, match="gpt2 stores its products transposed, which e2m1"):
        convert(tmp_path / "gpt2.gguf", tmp_path / "out", dtype="e2m1")
    with pytest.raises(vivace.InvalidArgumentError, match="for a GGUF file, got 'e2m1'"):
        convert(TINY / "qwen3", tmp_path / "m.gguf", dtype="e2m1")
    assert not (tmp_path / "out").exists() and not (tmp_path / "m.gguf").exists()


# Rows whose two largest logits are further apart than bf16's roundings: against f32 those move a logit by at most 4.4 of
# 100 of what the row spans. (Where experts are chosen a rounding may choose another one.)
@pytest.mark.skipif(DEVICE == "cpu", reason="--device cuda runs it")
@pytest.mark.parametrize("name", ["llama_untied", "qwen2", "qwen3", "gemma3"])
def test_the_device_takes_the_hosts_tokens(tmp_path, name):
    fp4 = folder(tmp_path, name)
    host, here = (decode(open_core(fp4, "w4a16", max_batch=32, device=d), IDS[:64], 32) for d in ("cpu", DEVICE))
    first, second = np.sort(host)[:, :-3:-1].T
    clear = first - second > 0.05 * np.ptp(host, axis=1)
    assert clear.sum() >= 24, "the rows say too little"
    np.testing.assert_array_equal(here.argmax(1)[clear], host.argmax(1)[clear])
