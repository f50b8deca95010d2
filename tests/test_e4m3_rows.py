"""e4m3 matrices with one scale a tensor, a row or a block (`weight_scale`), as compressed-tensors, fbgemm, ModelOpt and AutoFP8 write them, of every
family: the reference dequantization, bit for bit, and codes that stay codes. On the host or (`pytest --device cuda`) on a GPU. About 15 s."""
import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests import test_nvfp4
from tests.random_models.e4m3 import EIGHT, LAYOUTS, SCHEMES, quantized, values_of
from tests.reference.decoder_numpy import Decoder
from tests.test_fp4 import read, rewrite
from tests.test_model_steps import FIXTURES, IDS, decode, load, open_core, prefill
from tests.test_nvfp4 import apart
from vivace import cli

TINY = FIXTURES / "tiny"
NAMES = ("llama_untied", "qwen2", "qwen3", "gemma3", "mixtral", "qwen3_moe", "qwen35", "qwen35_moe")
WHERE = [(name, layout) for name in NAMES for layout in LAYOUTS if name in ("llama_untied", "qwen35_moe") or layout in ("compressed channel", "modelopt tensor")]
Q, DOWN = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"


def tensors_of(name):
    return {k: v for f in sorted((TINY / name).glob("model*.safetensors")) for k, v in load_file(f).items()}


def folders(tmp_path, name, layout, powers=False, less=lambda key: False):
    """(a folder of e4m3, one of the 16-bit values that it stands for, the exact values). `powers`: scales are powers of two and every row has e4m3's
    largest, so that quantizing the values gives the codes again. `less`: matrices that stay as they are."""
    rng, held, wide, exact = np.random.default_rng(7), {}, {}, {}
    for k, w in apart(tensors_of(name)).items():
        if w.ndim != 2 or ".layers." not in k or less(k):
            held[k] = wide[k] = w if not less(k) else w.astype(ml_dtypes.bfloat16)
            exact[k] = w.astype(np.float32)
            continue
        codes, scale = quantized(w.astype(np.float32), layout, rng, powers)
        held |= {k: codes, k + "_scale": scale}
        if layout in ("compressed tensor", "modelopt tensor", "fp8"):
            held[k.replace("weight", "input_scale")] = np.array(rng.uniform(0.01, 0.1, np.shape(scale)), np.float32)
        exact[k] = values_of(codes, scale)
        wide[k] = exact[k].astype(scale.dtype if scale.dtype == np.float16 else ml_dtypes.bfloat16)
    config = json.loads((TINY / name / "config.json").read_text())
    for folder, tensors, more in ((tmp_path / "e4m3", held, {"quantization_config": SCHEMES[layout]}), (tmp_path / "values", wide, {})):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config | more))
        save_file(tensors, folder / "model.safetensors")
    return tmp_path / "e4m3", tmp_path / "values", exact


@pytest.mark.parametrize("name, layout", WHERE)
def test_the_values_of_the_reference(tmp_path, name, layout):
    e4m3, values, _ = folders(tmp_path, name, layout)
    for precision in ("f32", "bf16", "w4a16"):
        got, want = (decode(open_core(p, precision, max_batch=32), IDS[:40], 32) for p in (e4m3, values))
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name, layout", [x for x in WHERE if x[1] != "compressed block"])
def test_codes_that_stay_codes(tmp_path, name, layout):
    """Where the plan would make the same codes and scales of the values, it has the bits of that; `native` has those of w8a16."""
    e4m3, values, _ = folders(tmp_path, name, layout, powers=True)
    for precision, like in (("w8a16", "w8a16"), ("fp8", "fp8"), ("native", "w8a16")):
        options = dict(max_batch=32) | ({} if precision == "fp8" else {"lm_head_dtype": "plain"})
        got, want = open_core(e4m3, precision, **options), open_core(values, like, **options)
        assert json.loads(dict(got.report())["forms"])["layers"]["o"] == "e4m3"
        np.testing.assert_array_equal(decode(got, IDS[:40], 32), decode(want, IDS[:40], 32))
        np.testing.assert_array_equal(prefill(got, IDS[:40], [40]), prefill(want, IDS[:40], [40]))


@pytest.mark.parametrize("layout", ["compressed channel", "modelopt tensor"])
@pytest.mark.parametrize("name", ["llama_untied", "qwen35"])
def test_codes_err_less_than_their_values_in_bf16(tmp_path, name, layout):
    """Of any scales: a code times its scale is not rounded to bf16."""
    e4m3, values, exact = folders(tmp_path, name, layout)
    right = Decoder(json.loads((values / "config.json").read_text()), exact).logits(IDS[:40])
    errors = [np.linalg.norm(decode(open_core(p, precision, max_batch=32, lm_head_dtype="plain"), IDS[:40], 32) - right) for p, precision in ((e4m3, "native"), (values, "bf16"))]
    assert errors[0] <= 1.1 * errors[1], errors


MIXED = {"quant_method": "compressed-tensors", "format": "mixed-precision",
         "config_groups": {"group_0": {"format": "float-quantized", "weights": EIGHT | {"strategy": "channel"}}, "group_1": {"format": "nvfp4-pack-quantized", "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}


@pytest.mark.parametrize("name", ["llama_untied", "qwen35"])
def test_both_formats_in_one_folder(tmp_path, name):
    """MLPs in FP4, the others in e4m3, as groups with formats of their own say."""
    e4m3, values, _ = folders(tmp_path, name, "compressed channel", less=lambda k: ".mlp." in k)
    tensors, config = read(values / "model.safetensors"), json.loads((e4m3 / "config.json").read_text()) | {"quantization_config": MIXED}
    held = read(e4m3 / "model.safetensors")
    for k in [k for k in held if ".mlp." in k]:
        codes, block = test_nvfp4.quantized(held.pop(k).astype(np.float32), np.float32(2**-9))
        held |= {k + "_packed": codes, k + "_scale": block, k + "_global_scale": np.array([2**9], np.float32)}
        tensors[k] = test_nvfp4.values_of(codes, block.astype(np.float32) / np.float32(2**9)).astype(ml_dtypes.bfloat16)
    save_file(held, e4m3 / "model.safetensors")
    save_file(tensors, values / "model.safetensors")
    (e4m3 / "config.json").write_text(json.dumps(config))
    for precision in ("f32", "bf16"):
        got, want = (decode(open_core(p, precision, max_batch=32), IDS[:40], 32) for p in (e4m3, values))
        np.testing.assert_array_equal(got, want)
    with load(e4m3, "native") as model:
        assert {k: v for k, v in model.report()["forms"]["layers"].items() if k in ("qkv", "o", "gate_up", "down")} == {"qkv": "e4m3", "o": "e4m3", "gate_up": "e2m1", "down": "e2m1"}


def test_what_was_done_is_said(tmp_path, capsys):
    """Parts of one product of which one is bf16 become 16 bits; so do routers and experts."""
    e4m3, _, _ = folders(tmp_path / "a", "qwen3", "compressed tensor", less=lambda k: k == Q)
    with load(e4m3, "native") as model:
        report = model.report()
        assert report["stored"] == {"e4m3 by tensor": {"kept": 11, "dequantized": 2}} and report["unread_tensors"] == {"*.input_scale": 13}
        assert report["forms"]["layers"] == {"qkv": "bf16, e4m3", "o": "e4m3", "gate_up": "e4m3", "down": "e4m3"}
    with load(e4m3, "bf16") as model:
        assert model.report()["stored"] == {"e4m3 by tensor": {"kept": 0, "dequantized": 13}}
    moe, _, _ = folders(tmp_path / "b", "qwen3_moe", "compressed channel")
    with load(moe, "native") as model:
        stored = model.report()["stored"]["e4m3 by row"]
        config = json.loads((moe / "config.json").read_text())
        layers = config["num_hidden_layers"]
        assert stored == {"kept": 4 * layers, "dequantized": layers * (1 + 3 * config["num_experts"])}
    assert cli.main(["plan", "--model", str(moe), "--precision", "native", "--device", "cpu"]) == 0
    assert f"on disk: e4m3 by row, {4 * layers} matrices kept, {stored['dequantized']} dequantized to 16 bits" in capsys.readouterr().out


def change(key, value):
    return lambda t: t.pop(key) if value is None else t.update({key: value(t[key])})


def of_row(n, value):
    def f(scale):
        scale = scale.copy()
        scale.reshape(-1)[n] = value
        return scale
    return f


BAD = [("compressed channel", change(DOWN + "_scale", None), vivace.UnsupportedError, r"down_proj.weight is e4m3 without scales in .*weight_scale or .*weight_scale_inv"),
       ("compressed channel", change(DOWN + "_scale", lambda s: s.T.copy()), vivace.InvalidShapeError, r"weight_scale, a scale a row, or \[1\]: wanted \[64, 1\], got \[1, 64\]"),
       ("compressed channel", change(DOWN + "_scale", lambda s: np.ones((192, 1), s.dtype)), vivace.InvalidShapeError, r"wanted \[64, 1\], got \[192, 1\]"),
       ("modelopt rows", change(DOWN + "_scale", lambda s: s[1:].copy()), vivace.InvalidShapeError, r"wanted \[64, 1\], got \[63\]"),
       ("compressed channel", change(DOWN + "_scale", lambda s: s.astype(np.int8)), vivace.UnsupportedError, "weight_scale: wanted f32, bf16 or f16, got i8"),
       ("compressed channel", lambda t: t.update({DOWN + "_scale_inv": np.ones((1, 2), np.float32)}), vivace.CorruptDataError, "are both there: wanted one"),
       ("compressed block", change(DOWN + "_scale", lambda s: np.ones((2, 2), s.dtype)), vivace.InvalidShapeError, "down_proj.weight_scale, a scale a row"),
       *((layout, change(DOWN + "_scale", of_row(0, value)), vivace.CorruptDataError, f"down_proj.weight_scale: wanted positive finite scales, got {said}")
         for layout in ("compressed channel", "compressed tensor", "modelopt tensor", "fbgemm") for value, said in ((np.nan, "-?nan"), (-0.5, "-0.5"), (0, "0.0"), (np.inf, "inf"))),
       ("fbgemm", change(DOWN + "_scale", of_row(-1, -1)), vivace.CorruptDataError, "wanted positive finite scales, got -1")]


@pytest.mark.parametrize("layout, spoil, error, match", BAD)
def test_bad_scales(tmp_path, layout, spoil, error, match):
    e4m3, _, _ = folders(tmp_path, "llama_untied", layout)
    rewrite(e4m3, spoil)
    for precision in ("f32", "native"):
        with pytest.raises(error, match=match):
            load(e4m3, precision)


def weights(**what):
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"} | what}}}


@pytest.mark.parametrize("scheme, match", [
    (weights(num_bits=4), "config_groups.group_0.weights: wanted symmetric 8-bit floats.*got 4-bit float"), (weights(type="int"), "got 8-bit int"), (weights(symmetric=False), "wanted symmetric"),
    (weights(strategy="group", group_size=128), "strategy 'group'"), (weights(strategy="block", block_structure=[64, 128]), r"a block of \[128, 128\]"), (weights(strategy="block"), "strategy 'block'"),
    (SCHEMES["compressed channel"] | {"transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}}, "transforms are not served"),
    ({"quant_method": "fp8", "fmt": "e5m2"}, "are served, got quant_method 'fp8'"), ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "quant_algo 'FP8_PB_WO'"),
    ({"quant_method": "compressed-tensors", "format": "int-quantized"}, "format 'int-quantized'"),
    ({"quant_method": "compressed-tensors", "format": "mixed-precision"}, "format 'mixed-precision'"), ({"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {"group_0": {"format": "pack-quantized", "weights": EIGHT}}}, "format 'pack-quantized' is not served")])
def test_other_schemes_are_refused_by_name(tmp_path, scheme, match):
    e4m3, _, _ = folders(tmp_path, "llama_untied", "compressed channel")
    config = json.loads((e4m3 / "config.json").read_text()) | {"quantization_config": scheme}
    (e4m3 / "config.json").write_text(json.dumps(config))
    with pytest.raises(vivace.UnsupportedError, match=match):
        load(e4m3, "f32")


@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x != "compressed f16"])  # whose values are f16 first
def test_converted_to_gguf(tmp_path, layout):
    from vivace.convert import convert

    e4m3, values, _ = folders(tmp_path, "qwen3", layout)
    convert(e4m3, tmp_path / "m.gguf", dtype="bf16")
    convert(values, tmp_path / "want.gguf", dtype="bf16")
    got, want = (decode(open_core(tmp_path / f, "f32", max_batch=32), IDS[:40], 32) for f in ("m.gguf", "want.gguf"))
    np.testing.assert_array_equal(got, want)


def test_codes_without_scales_are_not_converted(tmp_path):
    from vivace.convert import convert

    e4m3, _, _ = folders(tmp_path, "qwen3", "compressed channel")
    rewrite(e4m3, change(DOWN + "_scale", None))
    with pytest.raises(vivace.UnsupportedError, match="down_proj.weight is e4m3 without scales"):
        convert(e4m3, tmp_path / "m.gguf", dtype="bf16")
