"""Folders of Qwen3-Next: drawn models against transformers' values, and against the same weights as a folder of Qwen3.5 with experts, bit for
bit. On the host or (`pytest --device cuda`) on a GPU. About 10 s."""
import hashlib
import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.random_models import e4m3, text
from tests.reference.decoder_numpy import Decoder, Summed
from tests.test_model_steps import FIXTURES, IDS, decode, load, open_core, prefill
from tests.test_mtp import core_of as draft_core, fed, last
from tests.test_nvfp4 import SCHEMES

FIXTURE = FIXTURES / "qwen3_next.safetensors"
PROMPT, ROWS = [t % 97 for t in IDS[:50]], list(range(0, 50, 7))
TOLERANCE = 1e-5  # of a row's norm, in f32: as in test_hybrid.py


def drawn(k_heads=2, each=2, seed=1, **changed):
    return {"kind": "text", "seed": seed, "family": "qwen3_next", "layers": 3, "kv": 2, "group": 2, "dim": 16, "hidden": 64, "mlp": 32, "vocab": 97, "tied": False, "precision": "f32", "interval": 2, "part": 0.25,
            "linear": {"k_heads": k_heads, "v_heads": k_heads * each, "k_dim": 16, "v_dim": 32, "taps": 4}, "experts": 5, "used": 2, "renormalize": True, "shared": 32} | changed


# Heads that no other order fits; of each the layers that attend, head sizes and experts differ.
CASES = {"2x2": drawn(), "3x1": drawn(3, 1, 2, layers=2, interval=1, tied=True), "1x4": drawn(1, 4, 3, renormalize=False, shared=48, kv=1, group=3), "2x3": drawn(2, 3, 4, layers=4, interval=3, part=0.5)}


def published(config):
    """As published files write it: rope's values apart, no list of kinds of layers where the interval says them."""
    rope = config.pop("rope_parameters")
    return config | {"rope_theta": rope["rope_theta"], "partial_rotary_factor": rope["partial_rotary_factor"], "rope_scaling": None, "decoder_sparse_step": 1, "mlp_only_layers": []}


def written(folder, case, weights=None):
    weights = text.weights(case) if weights is None else weights
    (folder / "config.json").write_text(json.dumps(published(text.config(case))))
    save_file(weights, folder / "model.safetensors")
    return weights


def digest(weights):
    return np.frombuffer(hashlib.sha256(b"".join(k.encode() + weights[k].tobytes() for k in sorted(weights))).digest(), np.uint8)


def twin(case, weights):
    """The weights (or codes, or scales of rows) under the names of Qwen3.5, whose rows are by part: all queries, all keys, all values."""
    out, n = {}, case["linear"]
    wide = n["v_heads"] // n["k_heads"] * n["v_dim"]
    parts = lambda w, *rows: [p.reshape(-1, *w.shape[1:]) for p in np.split(w.reshape(n["k_heads"], -1, *w.shape[1:]), np.cumsum(rows), 1)]  # noqa: E731
    for name, w in weights.items():
        stem, _, end = name.partition("in_proj_")
        if end and w.size > 1:
            kind, _, end = end.partition(".")
            q, *rest = parts(w, n["k_dim"], n["k_dim"], wide) if kind == "qkvz" else parts(w, n["v_heads"] // n["k_heads"])
            pieces = {"qkv": np.concatenate([q, *rest[:2]]), "z": rest[2]} if kind == "qkvz" else {"b": q, "a": rest[0]}
            out |= {f"{stem}in_proj_{k}.{end}": np.ascontiguousarray(v) for k, v in pieces.items()}
        elif end:
            kind, _, end = end.partition(".")
            out |= {f"{stem}in_proj_{k}.{end}": w.copy() for k in (("qkv", "z") if kind == "qkvz" else ("b", "a"))}
        else:
            out[name] = w
    return out


def pair(tmp_path, case, weights=None, scheme=None, more=None):
    """(a folder of Qwen3-Next, one of Qwen3.5 with the same values)."""
    weights = (text.weights(case) if weights is None else weights) | (more or {})
    folders = tmp_path / "next", tmp_path / "twin"
    for folder, tensors, family in zip(folders, (weights, twin(case, weights)), ("qwen3_next", "qwen3_5_moe_text")):
        folder.mkdir()
        config = text.config(case | {"family": family}) | ({"quantization_config": scheme} if scheme else {})
        (folder / "config.json").write_text(json.dumps(published(config)))
        save_file(tensors, folder / "model.safetensors")
    return folders


def same(folders, precision):
    one, other = (open_core(p, precision, max_batch=32) for p in folders)
    assert json.loads(dict(one.report())["family"]) == "qwen3_next"
    np.testing.assert_array_equal(decode(one, PROMPT, 32), decode(other, PROMPT, 32))
    np.testing.assert_array_equal(prefill(one, PROMPT, [33, 17]), prefill(other, PROMPT, [33, 17]))
    return one


@pytest.mark.parametrize("name", CASES)
def test_transformers_values(tmp_path, name):
    """Logits of a whole prompt, step by step and in pieces, and the greedy text."""
    want, case = load_file(FIXTURE), CASES[name]
    weights = written(tmp_path, case)
    np.testing.assert_array_equal(digest(weights), want[f"{name}.weights"], err_msg="NumPy draws other weights than those that transformers saw")
    logits = want[f"{name}.logits"]
    config = json.loads((tmp_path / "config.json").read_text())
    right = Decoder(config, weights).logits(PROMPT)[ROWS]
    far = [np.linalg.norm(Decoder(config, weights, Summed(np.random.default_rng(i))).logits(PROMPT)[ROWS] - right, axis=1) for i in range(8)]
    most = np.maximum(TOLERANCE * np.linalg.norm(logits, axis=1), 3 * np.sqrt(np.mean(np.square(far), 0)))  # the rule of test_model_steps.f32_tolerance
    near = lambda got, rows=slice(None): np.testing.assert_array_less(np.linalg.norm(got - logits[rows], axis=1), most[rows])  # noqa: E731
    near(right)
    for piece in (1, 7, 50):
        near(decode(open_core(tmp_path, max_batch=64), PROMPT, piece)[ROWS])
    core = open_core(tmp_path, max_batch=64)
    near(np.array([prefill(core, PROMPT[:r + 1], [r + 1 - r // 2, r // 2]) for r in ROWS[1:]]), slice(1, None))
    with load(tmp_path) as model:
        assert model.generate_ids(PROMPT, max_tokens=32).tokens == want[f"{name}.greedy"].tolist()
        assert not model.report()["unread_tensors"]


@pytest.mark.parametrize("precision", ["f32", "bf16", "fp8"])
@pytest.mark.parametrize("k_heads, each", [(2, 3), (3, 1), (1, 4)])
def test_the_bits_of_qwen35(tmp_path, k_heads, each, precision):
    same(pair(tmp_path, drawn(k_heads, each)), precision)


@pytest.mark.parametrize("precision", ["f32", "bf16", "native"])
@pytest.mark.parametrize("layout", ["compressed channel", "modelopt tensor", "modelopt", "compressed"])
def test_quantized_layouts(tmp_path, layout, precision):
    """Codes and scales go with their rows: kept where they are kept of Qwen3.5."""
    case = drawn(2, 3, stored=layout, precision=precision)
    held, _ = (text.eight if layout in e4m3.SCHEMES else text.fp4)(case, text.weights(case))
    core = same(pair(tmp_path, case, held, (SCHEMES | e4m3.SCHEMES)[layout]), precision)
    kept = sum(s["kept"] for s in json.loads(dict(core.report())["stored"]).values())
    assert (kept > 0) == (precision == "native")


def test_blocks_that_rows_share(tmp_path):
    """128 x 128 blocks go over the borders of key heads: the values of the reference dequantization, in their places."""
    case = drawn(2, 3, hidden=144, stored="compressed block")
    held, values = text.eight(case, text.weights(case))
    folders = tmp_path / "blocks", tmp_path / "values"
    for folder, weights in zip(folders, (held, {k: v.astype(ml_dtypes.bfloat16) if ".layers." in k and v.ndim == 2 else v for k, v in values.items()})):
        folder.mkdir()
        written(folder, case, weights)
    same(folders, "f32")


def test_draft_layers(tmp_path):
    """`mtp.*`, as published: guesses of the same layer beside Qwen3.5, bit for bit."""
    case, rng = drawn(2, 3), np.random.default_rng(4)
    weights, H, of = text.weights(case), case["hidden"], "model.layers.2."  # which attends
    more = {k.replace(of, "mtp.layers.0."): (rng.standard_normal(w.shape) * w.std()).astype(np.float32) for k, w in weights.items() if k.startswith(of)}
    more |= {f"mtp.{n}.weight": (0.2 * rng.standard_normal(H)).astype(np.float32) for n in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    more["mtp.fc.weight"] = (rng.standard_normal((H, 2 * H)) / np.sqrt(2 * H)).astype(np.float32)
    folders, guesses = pair(tmp_path, case, weights, more=more), []
    with load(folders[0]) as model:
        assert model.report()["unread_tensors"].keys() == {"mtp.*"}
    for path in folders:
        core = draft_core(path, context=128)
        ids = PROMPT[:30]
        ids.append(fed(core, ids, 2))
        guesses.append((core.draft([(ids[p + 1], p, 2, p == 29) for p in range(30)], 3), last(core).tolist()))
        assert not json.loads(dict(core.report())["unread_tensors"])
    assert guesses[0] == guesses[1]


QKVZ, BA = "model.layers.0.linear_attn.in_proj_qkvz.weight", "model.layers.0.linear_attn.in_proj_ba.weight"


def cut(name, rows):
    return lambda w: w.update({name: w[name][:rows]})


@pytest.mark.parametrize("change, config, error, match", [
    (lambda w: w.pop(QKVZ), {}, vivace.NotFoundError, f"{QKVZ} is missing"), (lambda w: w.pop(BA), {}, vivace.NotFoundError, f"{BA} is missing"),
    (cut(QKVZ, -1), {}, vivace.InvalidShapeError, rf"{QKVZ}: wanted \[320, 64\], got \[319, 64\]"), (cut(QKVZ, 160), {}, vivace.InvalidShapeError, r"wanted \[320, 64\], got \[160, 64\]"),
    (cut(BA, 4), {}, vivace.InvalidShapeError, rf"{BA}: wanted \[8, 64\], got \[4, 64\]"), (lambda w: w.update({BA: w[BA][:, :-1].copy()}), {}, vivace.InvalidShapeError, r"wanted \[8, 64\], got \[8, 63\]"),
    (cut("model.layers.2.self_attn.q_proj.weight", 64), {}, vivace.InvalidShapeError, r"q_proj.weight: wanted \[128, 64\], got \[64, 64\]"),
    (lambda w: w.pop("model.layers.0.mlp.shared_expert_gate.weight"), {}, vivace.NotFoundError, "shared_expert_gate.weight is missing"),
    (lambda w: w.pop("model.layers.0.mlp.experts.4.up_proj.weight"), {}, vivace.NotFoundError, "experts.4.up_proj.weight is missing"),
    (None, {"linear_num_value_heads": 3}, vivace.InvalidArgumentError, "3 linear value heads are no multiple of 2 linear key heads"), (None, {"linear_num_key_heads": 0}, vivace.InvalidArgumentError, "linear key heads: wanted 1 to"),
    (None, {"linear_num_value_heads": 0}, vivace.InvalidArgumentError, "linear value heads: wanted 1 to"), (None, {"linear_key_head_dim": 8}, vivace.InvalidShapeError, f"{QKVZ}: wanted"),
    (None, {"layer_types": ["linear_attention"] * 3}, vivace.UnsupportedError, "all linear_attention"), (None, {"layer_types": ["linear_attention"]}, vivace.InvalidShapeError, "a list of 3 layers"),
    (None, {"mlp_only_layers": [1]}, vivace.UnsupportedError, "mlp_only_layers"), (None, {"decoder_sparse_step": 2}, vivace.UnsupportedError, "decoder_sparse_step"), (None, {"num_experts": 0}, vivace.InvalidArgumentError, "experts: wanted 1 to"),
    (None, {"partial_rotary_factor": 1.5}, vivace.InvalidArgumentError, "partial_rotary_factor")])
def test_bad_folders(tmp_path, change, config, error, match):
    weights = text.weights(drawn())
    if change:
        change(weights)
    written(tmp_path, drawn(), weights)
    (tmp_path / "config.json").write_text(json.dumps(json.loads((tmp_path / "config.json").read_text()) | config))
    with pytest.raises(error, match=match):
        load(tmp_path)
