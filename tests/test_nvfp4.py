"""NVFP4 folders as ModelOpt and as compressed-tensors write them, of dense models, experts and hybrids: the reference dequantization, bit for
bit. Checkpoints are written here, from the tiny ones. On the host or (`pytest --device cuda`) on a GPU."""
import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.op_data import E2M1
from tests.test_fp4 import rewrite
from tests.test_model_steps import DEVICE, FIXTURES, IDS, decode, load, open_core, prefill

TINY = FIXTURES / "tiny"
SCHEMES = {"modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}},
           "compressed": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
                          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, "input_activations": None}}}}
NAMES = ("llama_untied", "qwen3_moe", "qwen35", "qwen35_moe")
Q, OUT = "model.layers.3.self_attn.q_proj.weight", "model.layers.0.linear_attn.out_proj.weight"


def apart(weights):
    """Experts that lie in one tensor as ones of their own: what is quantized is a matrix."""
    out = {}
    for k, w in weights.items():
        if k.endswith("experts.gate_up_proj") or k.endswith("experts.down_proj"):
            stem = k.rsplit(".", 1)[0]
            for e, one in enumerate(w):
                parts = zip(("gate_proj", "up_proj"), np.split(one, 2)) if "gate_up" in k else [("down_proj", one)]
                out |= {f"{stem}.{e}.{n}.weight": np.ascontiguousarray(p) for n, p in parts}
        else:
            out[k] = w
    return out


def quantized(w, whole):
    """Codes, two a byte, the first in the low half, and e4m3 scales of 16."""
    blocks = w.reshape(w.shape[0], -1, 16)
    scale = (np.abs(blocks).max(-1) / np.float32(6) / whole).clip(2**-6, 448).astype(ml_dtypes.float8_e4m3fn)
    near = np.abs(np.abs(blocks / (scale.astype(np.float32) * whole)[..., None])[..., None] - E2M1[:8]).argmin(-1)
    codes = (near + 8 * (blocks < 0)).reshape(w.shape).astype(np.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, scale


def values_of(codes, scale):
    """[N, K] of codes [N, K/2], with f32 scales [N, K/16]."""
    e2m1 = E2M1.astype(np.float32)[np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)]
    return e2m1 * np.repeat(scale, 16, 1)


def folders(tmp_path, name, layout, whole=lambda key: np.float32(2**-9)):
    """(a folder of FP4, one of the values that it stands for)."""
    weights, fp4, values = apart(load_file(TINY / name / "model.safetensors") if (TINY / name / "model.safetensors").exists() else
                                 {k: v for f in sorted((TINY / name).glob("model*.safetensors")) for k, v in load_file(f).items()}), {}, {}
    for k, w in weights.items():
        if w.ndim != 2 or ".layers." not in k or w.shape[1] % 16:
            fp4[k] = values[k] = w
            continue
        scale_2 = whole(k)
        codes, block = quantized(w.astype(np.float32), scale_2)
        stored = block.astype(np.float32)
        if layout == "modelopt":
            fp4 |= {k: codes, k + "_scale": block, k + "_scale_2": np.array(scale_2)}
            scale = stored * scale_2
        else:
            divisor = np.float32(1) / scale_2
            fp4 |= {k + "_packed": codes, k + "_scale": block, k + "_global_scale": np.array([divisor]), k.replace("weight", "input_global_scale"): np.ones(1, np.float32)}
            scale = stored / divisor
        values[k] = values_of(codes, scale).astype(ml_dtypes.bfloat16)
    config = json.loads((TINY / name / "config.json").read_text())
    for folder, tensors, more in ((tmp_path / "fp4", fp4, {"quantization_config": SCHEMES[layout]}), (tmp_path / "values", values, {})):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config | more))
        save_file(tensors, folder / "model.safetensors")
    return tmp_path / "fp4", tmp_path / "values"


def telling_scales():
    """Those of 200,000 drawn ones with which a value divided by the reciprocal, and multiplied, become two bf16 numbers."""
    scale = np.random.default_rng(1).uniform(2**-9, 2**-8, 200000).astype(np.float32)[:, None]
    divisor = np.float32(1) / scale
    stored, value = (np.float32(a) for a in np.meshgrid(1 + np.arange(8) / 8, (1, 1.5)))
    by = [(value.ravel() * s).astype(ml_dtypes.bfloat16) for s in (stored.ravel() / divisor, stored.ravel() * (np.float32(1) / divisor))]
    return scale[(by[0] != by[1]).any(1), 0]


TELLING = telling_scales()


def drawn_scale(key):
    """Of each matrix its own."""
    return TELLING[sum(key.encode()) % len(TELLING)]


def test_there_are_telling_scales():
    assert len(TELLING) >= 8


@pytest.mark.parametrize("layout", SCHEMES)
@pytest.mark.parametrize("name", NAMES)
def test_the_values_of_the_reference(tmp_path, name, layout):
    fp4, values = folders(tmp_path, name, layout, drawn_scale)
    for precision in ("f32", "bf16", "fp8"):
        got, want = (decode(open_core(p, precision, max_batch=32), IDS[:40], 32) for p in (fp4, values))
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", NAMES)
def test_codes_that_stay_codes(tmp_path, name):
    """Both layouts have the same bits, and no more error than bf16 makes of the values; a gate that shares a matrix with q is FP4 too."""
    (tmp_path / "divides").mkdir()
    (fp4, values), (other, _) = folders(tmp_path, name, "modelopt"), folders(tmp_path / "divides", name, "compressed")
    exact, bf16 = (decode(open_core(values, p, max_batch=32), IDS[:40], 32) for p in ("f32", "bf16"))
    for precision in ("native", "w4a16"):
        options = dict(max_batch=32, lm_head_dtype="plain")
        got = open_core(fp4, precision, **options)
        forms = json.loads(dict(got.report())["forms"])["layers"]
        assert {forms[k] for k in ("qkv", "o")} == {"e2m1"} and forms["down"] == ("bf16" if "moe" in name else "e2m1"), forms
        logits = decode(got, IDS[:40], 32)
        np.testing.assert_array_equal(decode(open_core(other, precision, **options), IDS[:40], 32), logits)
        assert np.linalg.norm(logits - exact) <= 1.3 * np.linalg.norm(bf16 - exact)
        np.testing.assert_array_equal(prefill(open_core(other, precision, **options), IDS[:40], [40]), prefill(got, IDS[:40], [40]))


def change(key, suffix, value):
    return lambda t: t.pop(key + suffix) if value is None else t.update({key + suffix: value(t[key + suffix])})


def with_nan(scales):
    scales = scales.copy()
    scales[1, 1] = np.nan
    return scales


BAD = [("compressed", change(OUT, "_scale", None), vivace.UnsupportedError, "out_proj.weight_packed is u8 without scales in .*weight_scale and .*weight_global_scale"),
       ("compressed", change(OUT, "_global_scale", None), vivace.UnsupportedError, "without scales"), ("modelopt", change(OUT, "_scale_2", None), vivace.UnsupportedError, "without scales"),
       ("compressed", change(Q, "_packed", lambda w: w[:, 1:].copy()), vivace.InvalidShapeError, "q_proj.weight_packed: wanted"),
       ("compressed", change(Q, "_packed", None), vivace.NotFoundError, "q_proj.weight is missing"),
       ("compressed", change(Q, "_packed", lambda w: w.astype(np.float32)), vivace.UnsupportedError, "weight_packed: wanted u8, got f32"),
       ("compressed", change(Q, "_scale", lambda s: s[1:].copy()), vivace.InvalidShapeError, "q_proj.weight_scale: wanted"),
       ("compressed", change(Q, "_global_scale", lambda s: np.ones(2, np.float32)), vivace.InvalidShapeError, "weight_global_scale: wanted"),
       ("compressed", change(Q, "_global_scale", lambda s: s * np.float32(np.nan)), vivace.CorruptDataError, "wanted a positive finite scale"),
       ("compressed", change(Q, "_global_scale", lambda s: s * np.float32(0) + np.float32(1e-44)), vivace.CorruptDataError, "no reciprocal"),
       *((layout, change(key, "_scale", with_nan), vivace.CorruptDataError, "weight_scale: a scale is NaN") for layout in SCHEMES for key in (Q, OUT))]


@pytest.mark.parametrize("layout, spoil, error, match", BAD)
@pytest.mark.parametrize("precision", ["f32", "native"])
def test_bad_folders(tmp_path, layout, spoil, error, match, precision):
    fp4, _ = folders(tmp_path, "qwen35", layout)
    rewrite(fp4, spoil)
    with pytest.raises(error, match=match):
        load(fp4, precision)


@pytest.mark.parametrize("layout", SCHEMES)
@pytest.mark.parametrize("size", [32, 128])
def test_other_groups_are_refused(tmp_path, layout, size):
    fp4, _ = folders(tmp_path, "qwen35", layout)
    config = json.loads((fp4 / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = size
    (fp4 / "config.json").write_text(json.dumps(config))
    with pytest.raises(vivace.UnsupportedError, match=f"group_size: FP4 with a scale for 16 columns is served, got one for {size}"):
        load(fp4, "native")
