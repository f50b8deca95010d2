"""Hybrids from GGUF files as llama.cpp's converter lays them out, written here by the gguf package: the logits of the same hub folder. On the
host or (`pytest --device cuda`) on a GPU. About 5 s."""
import json

import gguf
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Regex, pre_tokenizers

import vivace
from tests.random_models import text
from tests.test_model_steps import IDS, decode, load, open_core, prefill
from tests.test_mtp import core_of as draft_core, fed, last
from vivace.convert import convert
from vivace.tokenizer_rules import QWEN35

ARCHS = {"qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}
PARTS = {"linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d",
         "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
         "mlp.shared_expert.down_proj": "ffn_down_shexp"}
DRAFT = {"mtp.fc.weight": "eh_proj", "mtp.pre_fc_norm_embedding.weight": "enorm", "mtp.pre_fc_norm_hidden.weight": "hnorm", "mtp.norm.weight": "shared_head_norm"}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
SOME = IDS[:40]


def drawn(family, k_heads=2, each=3, v_dim=32, seed=1):
    """A case of random_models with heads that no other order fits."""
    return {"kind": "text", "seed": seed, "family": family, "layers": 3, "kv": 2, "group": 2, "dim": 16, "hidden": 64, "mlp": 96, "vocab": 193, "tied": False, "precision": "f32", "interval": 2, "part": 0.5,
            "linear": {"k_heads": k_heads, "v_heads": k_heads * each, "k_dim": 16, "v_dim": v_dim, "taps": 4}, "experts": 4, "used": 2, "renormalize": True, "shared": 96}


def tiled(w, heads, first=0, axis=0):
    """Value heads from (key head, which of it) to (which of it, key head)."""
    k, each = heads
    w = np.moveaxis(w, axis, 0)
    head = w[first:].reshape(k, each, -1, *w.shape[1:]).swapaxes(0, 1).reshape(w[first:].shape)
    return np.ascontiguousarray(np.moveaxis(np.concatenate([w[:first], head]), 0, axis))


def of_key_groups(tensors, case):
    """Tensors as `qwen3next` has them: value heads by key head, and of each key head b and a in one matrix."""
    n, out = case["linear"], {}
    back, keys = (n["v_heads"] // n["k_heads"], n["k_heads"]), 2 * n["k_heads"] * n["k_dim"]
    for name, w in tensors.items():
        part = name.split(".")[2] if ".ssm_" in name or ".attn_qkv" in name or ".attn_gate" in name else ""
        out[name] = tiled(w, back, keys if part in ("attn_qkv", "ssm_conv1d") else 0, axis=part == "ssm_out") if part and part != "ssm_norm" else w
    for i in range(case["layers"]):
        if f"blk.{i}.ssm_beta.weight" in out:
            b, a = (out.pop(f"blk.{i}.ssm_{p}.weight").reshape(n["k_heads"], -1, case["hidden"]) for p in ("beta", "alpha"))
            out[f"blk.{i}.ssm_ba.weight"] = np.concatenate([b, a], 1).reshape(-1, case["hidden"])
    return out


def laid_out(case, weights, fused=False):
    """The weights under GGUF's names and in its layout."""
    n, out = case["linear"], {}
    heads, keys = (n["k_heads"], n["v_heads"] // n["k_heads"]), 2 * n["k_heads"] * n["k_dim"]
    for name, w in weights.items():
        if (name.endswith("norm.weight") and "linear_attn" not in name) or "_norm_" in name:
            w = w + 1
        if name in DRAFT:
            out[f"blk.{case['layers']}.nextn.{DRAFT[name]}.weight"] = w
            continue
        name = name.replace("mtp.layers.0.", f"model.layers.{case['layers']}.")
        if name in WHOLE:
            out[WHOLE[name]] = w
            continue
        _, _, layer, rest = name.split(".", 3)
        part, blk = rest.removesuffix(".weight"), f"blk.{layer}."
        if part == "linear_attn.A_log":
            out[blk + "ssm_a"] = tiled(-np.exp(w), heads)
        elif part == "linear_attn.dt_bias":
            out[blk + "ssm_dt.bias"] = tiled(w, heads)
        elif part == "mlp.experts.gate_up_proj":
            gate, up = np.split(w, 2, 1)
            out |= {blk + "ffn_gate_up_exps.weight": w} if fused else {blk + "ffn_gate_exps.weight": np.ascontiguousarray(gate), blk + "ffn_up_exps.weight": np.ascontiguousarray(up)}
        elif part == "mlp.experts.down_proj":
            out[blk + "ffn_down_exps.weight"] = w
        else:
            if part in ("linear_attn.in_proj_qkv", "linear_attn.conv1d"):
                w = tiled(w.reshape(len(w), -1), heads, keys)
            elif part in ("linear_attn.in_proj_z", "linear_attn.in_proj_b", "linear_attn.in_proj_a"):
                w = tiled(w, heads)
            elif part == "linear_attn.out_proj":
                w = tiled(w, heads, axis=1)
            out[f"{blk}{PARTS[part]}.weight"] = w
    return out


def keys_of(case):
    n, arch = case["linear"], ARCHS[case["family"]]
    heads = case["kv"] * case["group"]
    keys = {"block_count": case["layers"], "embedding_length": case["hidden"], "feed_forward_length": case["mlp"], "context_length": text.CONTEXT, "attention.head_count": heads, "attention.head_count_kv": case["kv"],
            "attention.key_length": case["dim"], "attention.value_length": case["dim"], "rope.dimension_count": int(case["dim"] * case["part"]), "full_attention_interval": case["interval"] + 1,
            "ssm.conv_kernel": n["taps"], "ssm.state_size": n["k_dim"], "ssm.group_count": n["k_heads"], "ssm.time_step_rank": n["v_heads"], "ssm.inner_size": n["v_heads"] * n["v_dim"],
            "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0, "rope.dimension_sections": [11, 11, 10, 0]}
    if "moe" in case["family"]:
        keys |= {"expert_count": case["experts"], "expert_used_count": case["used"], "expert_feed_forward_length": case["mlp"], "expert_shared_feed_forward_length": case["shared"]}
        keys.pop("feed_forward_length")
    return arch, keys


def write_gguf(path, case, tensors, quantized=None, **changed):
    """`quantized`: the type of matrices. `changed`: keys below the architecture, "." as "__"; None leaves one out."""
    arch, keys = keys_of(case)
    arch = changed.pop("arch", arch)
    w = gguf.GGUFWriter(path, arch)
    for key, value in (keys | {k.replace("__", "."): v for k, v in changed.items()}).items():
        if value is not None:
            (w.add_float32 if isinstance(value, float) else w.add_array if isinstance(value, list) else w.add_uint32)(f"{arch}.{key}", value)
    for name, x in tensors.items():
        if quantized and x.ndim > 1 and not any(part in name for part in ("conv1d", "gate_inp", "token_embd")):
            w.add_tensor(name, gguf.quants.quantize(x, quantized), raw_dtype=quantized)
        else:
            w.add_tensor(name, np.ascontiguousarray(x, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def pair(tmp_path, case, change=None, **options):
    """(a GGUF file, the hub folder of the same model). `change` takes the file's tensors. `drafts`: with a draft layer."""
    weights, drafts = text.weights(case), options.pop("drafts", False)
    if drafts:
        rng, H, of = np.random.default_rng(4), case["hidden"], f"model.layers.{case['layers'] - 1}."  # which attends
        weights |= {k.replace(of, "mtp.layers.0."): (rng.standard_normal(w.shape) * w.std()).astype(np.float32) for k, w in list(weights.items()) if k.startswith(of)}
        weights |= {k: (0.2 * rng.standard_normal(H) if "norm" in k else rng.standard_normal((H, 2 * H)) / np.sqrt(2 * H)).astype(np.float32) for k in DRAFT}
        options = {"block_count": case["layers"] + 1, "nextn_predict_layers": 1} | options
    tensors = laid_out(case, weights, options.pop("fused", False))
    if change:
        change(tensors)
    file = write_gguf(tmp_path / "m.gguf", case, tensors, **options)
    for name, w in weights.items():
        if name.endswith("A_log"):  # which a file has as a rate
            weights[name] = np.log(np.exp(w).astype(np.float64)).astype(np.float32)
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(text.config(case) | ({"mtp_num_hidden_layers": 1} if drafts else {})))
    save_file(weights, folder / "model.safetensors")
    return file, folder


@pytest.mark.parametrize("precision", ["f32", "bf16", "fp8"])
@pytest.mark.parametrize("family, k_heads, each, options", [("qwen3_5_text", 2, 3, {}), ("qwen3_5_text", 3, 2, {}), ("qwen3_5_text", 1, 4, {}), ("qwen3_5_text", 3, 1, {}), ("qwen3_5_moe_text", 2, 3, {}), ("qwen3_5_moe_text", 2, 2, {"fused": True}),
                                                            ("qwen3_5_moe_text", 2, 2, {"change": lambda t: t.update({k: w[0] for k, w in t.items() if "gate_inp_shexp" in k})})])
def test_the_logits_of_the_hub_folder(tmp_path, family, k_heads, each, options, precision):
    case = drawn(family, k_heads, each)
    one, other = (open_core(p, precision, max_batch=32) for p in pair(tmp_path, case, **options))
    np.testing.assert_array_equal(decode(one, SOME, 32), decode(other, SOME, 32))
    np.testing.assert_array_equal(prefill(one, IDS, [64, 36]), prefill(other, IDS, [64, 36]))


def of_one_input(tensors, case):
    """As the first converters wrote qwen3next: of each key head its query, key, values and gates in one matrix, as hub folders have it."""
    n, out = case["linear"], of_key_groups(tensors, case)
    wide = n["v_heads"] // n["k_heads"] * n["v_dim"]
    for i in range(case["layers"]):
        if f"blk.{i}.attn_gate.weight" in out:
            rows, z = out.pop(f"blk.{i}.attn_qkv.weight"), out.pop(f"blk.{i}.attn_gate.weight")
            q, k, v = np.split(rows, [n["k_heads"] * n["k_dim"], 2 * n["k_heads"] * n["k_dim"]])
            of_heads = [p.reshape(n["k_heads"], w, -1) for p, w in ((q, n["k_dim"]), (k, n["k_dim"]), (v, wide), (z, wide))]
            out[f"blk.{i}.ssm_in.weight"] = np.concatenate(of_heads, 1).reshape(-1, case["hidden"])
    return out


@pytest.mark.parametrize("k_heads, each", [(2, 3), (3, 2), (3, 1), (1, 4)])
@pytest.mark.parametrize("precision, layout", [("f32", of_key_groups), ("bf16", of_key_groups), ("fp8", of_key_groups), ("f32", of_one_input)])
def test_qwen3next(tmp_path, precision, layout, k_heads, each):
    """The same layers in another order of heads."""
    case = drawn("qwen3_5_moe_text", k_heads, each)
    file, folder = pair(tmp_path, case, lambda t: t.update(layout({k: t.pop(k) for k in list(t)}, case)), arch="qwen3next")
    one, other = (open_core(p, precision, max_batch=32) for p in (file, folder))
    assert json.loads(dict(one.report())["family"]) == "qwen3_next"
    np.testing.assert_array_equal(decode(one, SOME, 32), decode(other, SOME, 32))
    np.testing.assert_array_equal(prefill(one, IDS, [64, 36]), prefill(other, IDS, [64, 36]))


def test_bad_qwen3next(tmp_path):
    case = drawn("qwen3_5_moe_text")
    file, _ = pair(tmp_path, case, arch="qwen3next")
    with pytest.raises(vivace.NotFoundError, match="blk.0.ssm_ba.weight is missing"):
        load(file)


@pytest.mark.parametrize("v_dim", [32, 16])  # of 16 two heads share a block of o's columns, which becomes bf16
@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0])
def test_block_quantized(tmp_path, kind, v_dim):
    """Rows and columns move as whole blocks: the values are those of the file."""
    case = drawn("qwen3_5_text", v_dim=v_dim)
    file, folder = pair(tmp_path, case, quantized=kind)
    weights, n = text.weights(case), case["linear"]
    stored = laid_out(case, weights)
    for name, w in weights.items():
        _, _, *rest = name.split(".")
        part = ".".join(rest[1:]).removesuffix(".weight")
        if w.ndim == 2 and part in PARTS and part != "mlp.gate":
            x = gguf.quants.dequantize(gguf.quants.quantize(stored[f"blk.{rest[0]}.{PARTS[part]}.weight"], kind), kind)
            back = lambda x, **how: tiled(x, (n["v_heads"] // n["k_heads"], n["k_heads"]), **how)  # noqa: E731
            if part == "linear_attn.in_proj_qkv":
                x = back(x, first=2 * n["k_heads"] * n["k_dim"])
            elif part in ("linear_attn.in_proj_z", "linear_attn.in_proj_b", "linear_attn.in_proj_a"):
                x = back(x)
            elif part == "linear_attn.out_proj":
                x = back(x, axis=1)
                x = x if v_dim == 32 else x.astype(ml_dtypes.bfloat16)
            weights[name] = x.astype(np.float32)
        elif name == "lm_head.weight":
            weights[name] = gguf.quants.dequantize(gguf.quants.quantize(w, kind), kind)
        elif name.endswith("A_log"):
            weights[name] = np.log(np.exp(w).astype(np.float64)).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    got, want = (decode(open_core(p, "f32", max_batch=32), SOME, 32) for p in (file, folder))
    assert np.linalg.norm(got - want) < 1e-5 * np.linalg.norm(want)
    with load(file, "native") as model:
        assert model.generate_ids(SOME, max_tokens=4).tokens


def test_names_are_the_packages():
    """What gguf's own table makes of hub names, where its version knows them."""
    archs = {getattr(gguf.MODEL_ARCH, n, None) for n in ("QWEN35", "QWEN35MOE")} - {None}
    if len(archs) < 2:
        pytest.skip(f"this gguf has {archs}")
    for arch in archs:
        names = gguf.get_tensor_name_map(arch, 4)
        for hub, ours in PARTS.items():
            known = names.get_name(f"model.layers.1.{hub}")
            assert known in (None, f"blk.1.{ours}"), (hub, known)


def test_the_split_that_files_name_qwen35():
    """As published tokenizers write it: marks go with their letters."""
    assert QWEN35 == r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = pre_tokenizers.Split(Regex(QWEN35), "isolated")
    assert [w for w, _ in split.pre_tokenize_str("ne\u0301e 12 x\u0301!")] == ["ne\u0301e", " ", "1", "2", " x\u0301", "!"]


@pytest.mark.parametrize("family, options", [("qwen3_5_text", {}), ("qwen3_5_moe_text", {}), ("qwen3_5_moe_text", {"fused": True})])
def test_draft_layers(tmp_path, family, options):
    """The block behind the others: guesses of the hub folder's `mtp.*`, bit for bit, whole and in pieces; without `mtp` they are not read."""
    case = drawn(family)
    file, folder = pair(tmp_path, case, drafts=True, **options)
    with load(file) as model:
        assert model.report()["unread_tensors"].keys() == {f"blk.{case['layers']}.*"} and model.report()["layers"] == case["layers"]
    for precision in ("f32", "bf16"):
        logits = []
        for path in (file, folder):
            core = draft_core(path, context=128, precision=precision, kv_dtype="auto" if precision == "bf16" else "f32")
            ids = [t % case["vocab"] for t in IDS[:30]]
            ids.append(fed(core, ids, 2))
            guesses = core.draft([(ids[p + 1], p, 2, p == 29) for p in range(30)], 3)
            logits.append((guesses, last(core)))
            assert not json.loads(dict(core.report())["unread_tensors"])
        assert logits[0][0] == logits[1][0]
        np.testing.assert_array_equal(logits[0][1], logits[1][1])


@pytest.mark.parametrize("change, more, error, match", [
    (lambda t: t.pop("blk.3.nextn.hnorm.weight"), {}, vivace.NotFoundError, "blk.3.nextn.hnorm.weight is missing"), (lambda t: t.pop("blk.3.nextn.eh_proj.weight"), {}, vivace.NotFoundError, "no draft layer .*blk.3.nextn.eh_proj.weight"),
    (lambda t: t.update({"blk.3.nextn.eh_proj.weight": t["blk.3.nextn.eh_proj.weight"][:, 1:]}), {}, vivace.InvalidShapeError, "blk.3.nextn.eh_proj.weight: wanted"),
    (lambda t: t.update({"blk.3.nextn.embed_tokens.weight": np.ones((193, 64), np.float32)}), {}, vivace.UnsupportedError, "a table of its own is not served"),
    (None, {"block_count": 5, "nextn_predict_layers": 2}, vivace.UnsupportedError, "nextn_predict_layers: one draft layer is served, got 2"), (None, {"block_count": 3, "nextn_predict_layers": 0}, vivace.NotFoundError, "no draft layer")])
def test_bad_draft_layers(tmp_path, change, more, error, match):
    file, _ = pair(tmp_path, drawn("qwen3_5_text"), change, drafts=True, **more)
    with pytest.raises(error, match=match):
        load(file, mtp=1, max_batch=4)


@pytest.mark.parametrize("changed, error, match", [
    ({"ssm__group_count": None}, vivace.NotFoundError, "ssm.group_count"), ({"ssm__inner_size": 100}, vivace.InvalidArgumentError, "ssm.inner_size: wanted a multiple of ssm.time_step_rank 6, got 100"),
    ({"ssm__time_step_rank": 0}, vivace.InvalidArgumentError, "ssm.inner_size"), ({"ssm__group_count": 4}, vivace.InvalidArgumentError, "no multiple of 4 linear key heads"),
    ({"full_attention_interval": 0}, vivace.InvalidArgumentError, "full_attention_interval: wanted at least 1"), ({"full_attention_interval": 9}, vivace.UnsupportedError, "all linear_attention"),
    ({"nextn_predict_layers": 3}, vivace.InvalidArgumentError, "nextn_predict_layers: wanted 0 to 2, got 3"), ({"rope__dimension_count": None}, vivace.NotFoundError, "rope.dimension_count"),
    ({"ssm__conv_kernel": 9}, vivace.InvalidArgumentError, "wanted 2 to 8, got 9"),
    ({"change": lambda t: t.update({"blk.0.ssm_a": -t["blk.0.ssm_a"]})}, vivace.CorruptDataError, "ssm_a: wanted negative finite rates"),
    ({"change": lambda t: t.update({"blk.0.ssm_a": t["blk.0.ssm_a"] * np.nan})}, vivace.CorruptDataError, "ssm_a: wanted negative finite rates, got nan"),
    ({"change": lambda t: t.pop("blk.0.ssm_out.weight")}, vivace.NotFoundError, "blk.0.ssm_out.weight is missing"),
    ({"change": lambda t: t.update({"blk.0.ssm_conv1d.weight": t["blk.0.ssm_conv1d.weight"][:-1]})}, vivace.InvalidShapeError, "blk.0.ssm_conv1d.weight: wanted"),
])
def test_bad_files(tmp_path, changed, error, match):
    file, _ = pair(tmp_path, drawn("qwen3_5_text"), **changed)
    with pytest.raises(error, match=match):
        load(file)


def test_files_are_read_and_not_converted(tmp_path):
    file, _ = pair(tmp_path, drawn("qwen3_5_text"))
    with pytest.raises(vivace.UnsupportedError, match="qwen3_5 is not converted"):
        convert(file, tmp_path / "back")
