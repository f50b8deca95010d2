"""Hybrids as their fp8 releases hold them: matrices in e4m3 with a scale for each 128 x 128 (`weight_scale_inv`), experts apart or in one
tensor. The reference dequantization, bit for bit. On the host or (`pytest --device cuda`) on a GPU."""
import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.test_fp4 import rewrite
from tests.test_model_steps import FIXTURES, IDS, decode, open_core, prefill
from tests.test_nvfp4 import apart

TINY = FIXTURES / "tiny"
CONFIG = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "fmt": "e4m3"}
WIDE = 160  # of the MLPs: more than a block
KEPT = ("in_proj_a", "in_proj_b", "conv1d", "mlp.gate.", "shared_expert_gate", "embed", "lm_head", "norm")  # modules_to_not_convert
GATE_UP, DOWN = "model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj"


def drawn(name):
    """Config and weights of a tiny hybrid whose MLPs are wider than a block."""
    rng = np.random.default_rng(5)
    config, weights = json.loads((TINY / name / "config.json").read_text()), load_file(TINY / name / "model.safetensors")
    was = config.get("moe_intermediate_size", config.get("intermediate_size"))
    config["moe_intermediate_size" if "moe" in name else "intermediate_size"] = WIDE
    for k, w in weights.items():
        if ".mlp." in k and "shared" not in k and "mlp.gate." not in k:
            shape = [WIDE if n == was and not (i == 0 and w.ndim == 3) else 2 * WIDE if "gate_up" in k and i == 1 else n for i, n in enumerate(w.shape)]
            shape = [*w.shape[:-1], WIDE] if "down_proj" in k else shape
            weights[k] = rng.standard_normal(shape).astype(np.float32) * np.float32(0.1)
    return config, weights


def folders(tmp_path, name, together, scale_type=ml_dtypes.bfloat16, nested=False):
    """(a folder of e4m3, one of the bf16 values that it stands for)."""
    rng = np.random.default_rng(3)
    config, weights = drawn(name)
    fp8, values = {}, {}
    for k, w in (weights if together else apart(weights)).items():
        if w.ndim < 2 or any(part in k for part in KEPT):
            fp8[k] = values[k] = w.astype(ml_dtypes.bfloat16)
            continue
        codes = (w * 8).astype(ml_dtypes.float8_e4m3fn)
        scale = rng.uniform(0.05, 0.4, [*w.shape[:-2], *(-(-n // 128) for n in w.shape[-2:])]).astype(scale_type)
        whole = np.repeat(np.repeat(scale.astype(np.float32), 128, -2), 128, -1)[..., : w.shape[-2], : w.shape[-1]]
        fp8 |= {k: codes, k + "_scale_inv": scale}
        values[k] = (codes.astype(np.float32) * whole).astype(ml_dtypes.bfloat16)
    if nested:
        fp8, values = ({k.replace("model.", "model.language_model.", 1) if k.startswith("model.") else k: v for k, v in t.items()} for t in (fp8, values))
        config = {"model_type": name.replace("qwen35", "qwen3_5"), "architectures": [config["architectures"][0].replace("CausalLM", "ConditionalGeneration")], "text_config": config,
                  "tie_word_embeddings": config["tie_word_embeddings"]}
    for folder, tensors, more in (("fp8", fp8, {"quantization_config": CONFIG}), ("values", values, {})):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(config | more))
        save_file(tensors, tmp_path / folder / "model.safetensors")
    return tmp_path / "fp8", tmp_path / "values"


@pytest.mark.parametrize("precision", ["f32", "bf16", "native", "fp8", "w4a16"])
@pytest.mark.parametrize("name, together, how", [("qwen35", True, {}), ("qwen35", True, {"nested": True}), ("qwen35_moe", True, {"scale_type": np.float32}), ("qwen35_moe", False, {}), ("qwen35_moe", False, {"nested": True})])
def test_the_values_of_the_reference(tmp_path, name, together, how, precision):
    fp8, values = (open_core(p, precision, max_batch=32) for p in folders(tmp_path, name, together, **how))
    np.testing.assert_array_equal(decode(fp8, IDS[:40], 32), decode(values, IDS[:40], 32))
    np.testing.assert_array_equal(prefill(fp8, IDS, [64, 36]), prefill(values, IDS, [64, 36]))


@pytest.mark.parametrize("change, error, match", [
    (lambda t: t.pop(GATE_UP + "_scale_inv"), vivace.UnsupportedError, "experts.gate_up_proj is e4m3 without scales in .*gate_up_proj_scale_inv"),
    (lambda t: t.update({DOWN + "_scale_inv": np.ones((6, 1, 1), np.float32)}), vivace.InvalidShapeError, r"down_proj_scale_inv: wanted \[6, 1, 2\], got \[6, 1, 1\]"),
    (lambda t: t.update({DOWN + "_scale_inv": np.ones((1, 2), np.float32)}), vivace.InvalidShapeError, r"wanted \[6, 1, 2\], got \[1, 2\]"),
    (lambda t: t.update({GATE_UP + "_scale_inv": np.ones((6, 3, 1), np.float16)}), vivace.UnsupportedError, "gate_up_proj_scale_inv: wanted f32 or bf16, got f16"),
    (lambda t: t.pop("model.layers.0.linear_attn.out_proj.weight_scale_inv"), vivace.UnsupportedError, "out_proj.weight is e4m3 without scales"),
])
def test_bad_scales(tmp_path, change, error, match):
    fp8, _ = folders(tmp_path, "qwen35_moe", True)
    rewrite(fp8, change)
    with pytest.raises(error, match=match):
        vivace.load_model(fp8)
