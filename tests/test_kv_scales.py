"""Checkpoints that bring scales of an e4m3 cache (`k_scale`, `v_scale`): each spelling, codes bit for bit as the reference makes them, and what
is refused. On the host or (`pytest --device cuda`) on a GPU. About 10 s."""
import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.reference.decoder_numpy import Decoder
from tests.test_hybrid import load as core_of
from tests.test_model_steps import DEVICE, FIXTURES, IDS, decode, load, open_core, prefill
from tests.test_mtp import with_drafts

TINY = FIXTURES / "tiny"
NAMES = ("llama_untied", "qwen2", "qwen3_moe", "gemma3", "gpt2", "qwen35", "qwen35_moe")
SPELLINGS = {"compressed": ("k_scale", "v_scale"), "modelopt": ("k_proj.k_scale", "v_proj.v_scale"), "older": ("k_proj.output_scale", "v_proj.output_scale"), "attn": ("attn.k_scale", "attn.v_scale")}
SCHEME = {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}}
K, V = np.float32(0.0173), np.float32(0.041)
SOME = IDS[:40]


def tensors_of(name):
    return {k: v for f in sorted((TINY / name).glob("model*.safetensors")) for k, v in load_file(f).items()}


def attending(name, config):
    """What names of each attention begin with."""
    if name == "gpt2":
        return [f"transformer.h.{i}.attn." for i in range(config["n_layer"])]
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    return [f"model.layers.{i}.self_attn." for i, kind in enumerate(kinds) if kind != "linear_attention"]


def folder(path, name, spelling="compressed", scales=(K, V), form=lambda s: np.array([s], np.float32), change=None, more=None, nested=False):
    """A tiny checkpoint with scales, of layer i (i + 1) times the given ones; `change` takes all its tensors."""
    config, tensors = json.loads((TINY / name / "config.json").read_text()), tensors_of(name)
    if spelling:
        for i, of in enumerate(attending(name, config)):
            tensors |= {of + n: form(s * np.float32(i + 1)) for n, s in zip(SPELLINGS[spelling], scales)}
    if change:
        change(tensors)
    if nested:
        tensors = {k.replace("model.", "model.language_model.", 1) if k.startswith("model.") else k: v for k, v in tensors.items()}
        config = {"model_type": "qwen3_5", "architectures": [config["architectures"][0].replace("CausalLM", "ConditionalGeneration")], "text_config": config, "tie_word_embeddings": config["tie_word_embeddings"]}
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config | (more or {})))
    save_file(tensors, path / "model.safetensors")
    return path


def e4m3(x):
    """Saturating: ml_dtypes makes NaN of what is too large."""
    return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def seen(core, ids):
    """[(op, port, values)] of one step."""
    core.start(0)
    return [(op, port, np.frombuffer(raw, np.float32).reshape(shape)[:len(ids)]) for op, port, raw, shape, _ in core.observe([(t, i, 0, True) for i, t in enumerate(ids)])
            if port not in ("k_cache", "v_cache", "state") and raw]


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_codes_and_what_is_read_of_them(tmp_path, name, precision):
    """Codes are the reference's, bit for bit. What attention makes of them, and the product behind it, are as exact as float64 of just these codes."""
    path = folder(tmp_path / "m", name)
    config = json.loads((path / "config.json").read_text())
    core = open_core(path, precision, max_batch=32, kv_dtype="e4m3")
    heads, layers = config.get("num_attention_heads", config.get("n_head")), len(attending(name, config))
    values = [v for v in seen(core, SOME[:20]) if v[0] in ("qkv_rope", "cast", "attention")]
    assert [(op, port) for op, port, _ in values] == [("qkv_rope", "q"), ("qkv_rope", "k_out"), ("qkv_rope", "v_out"), ("cast", "out"), ("attention", "out")] * layers
    at = np.arange(20)
    for i in range(layers):
        q, k, v, codes, out = (v for _, _, v in values[5 * i:5 * i + 5])
        k_scale, v_scale = K * np.float32(i + 1), V * np.float32(i + 1)
        got_k, got_v = codes.reshape(20, 2, *k.shape[1:]).swapaxes(0, 1)
        np.testing.assert_array_equal(got_k, e4m3(k / k_scale))
        np.testing.assert_array_equal(got_v, e4m3(v / v_scale))
        if name == "gemma3":
            continue  # whose windows and scale its own tests hold
        want = np.empty(out.shape)
        for h in range(heads):
            g = h * k.shape[1] // heads
            s = np.where(at[:, None] >= at, q[:, h].astype(np.float64) @ (got_k[:, g] * np.float64(k_scale)).T / np.sqrt(q.shape[2]), -np.inf)
            w = np.exp(s - s.max(1, keepdims=True))
            want[:, h] = w / w.sum(1, keepdims=True) @ got_v[:, g]
        np.testing.assert_allclose(out, want, rtol=0, atol=(2e-6 if precision == "f32" else 1.5 / 256) * np.abs(want).max())


def test_values_have_their_scale_behind_the_next_product(tmp_path):
    """o's product of what attention gave, times v_scale, joins the residual stream."""
    core = open_core(folder(tmp_path / "m", "llama_untied"), "f32", max_batch=32, kv_dtype="e4m3")
    values, o = seen(core, SOME[:20]), tensors_of("llama_untied")
    at = [i for i, (op, _, _) in enumerate(values) if op == "attention"]
    before = next(v for op, _, v in values if op == "embedding")
    joined = next(v for op, _, v in values[at[0] + 1:] if op == "gemm")
    want = values[at[0]][2].reshape(20, -1).astype(np.float64) @ o["model.layers.0.self_attn.o_proj.weight"].T.astype(np.float64) * np.float64(V) + before
    np.testing.assert_allclose(joined, want, rtol=0, atol=1e-5 * np.abs(want).max())


def stretched(weights, k=2.0**7, v=2.0**-5):
    """Keys k times as large and queries less by it, values v times and their product more: all by powers of two, which round nothing."""
    for key, w in weights.items():
        for part, by in (("q_proj", 1 / k), ("k_proj", k), ("v_proj", v), ("o_proj", 1 / v)):
            if f".{part}." in key:
                weights[key] = w * np.float32(by)


@pytest.mark.parametrize("precision", ["f32", "bf16", "fp8", "w8a16", "q8"])
@pytest.mark.parametrize("name", ["llama_untied", "qwen2", "mixtral"])
def test_a_power_of_two_moves_from_weights_to_scales(tmp_path, name, precision):
    """Both checkpoints say the same model, so each bit is the same."""
    if precision == "q8" and DEVICE != "cpu":
        pytest.skip("a plan of the host")
    plain, wide = folder(tmp_path / "plain", name), folder(tmp_path / "wide", name, scales=(K * np.float32(2**7), V * np.float32(2**-5)), change=stretched)
    one, other = (open_core(p, precision, max_batch=32, kv_dtype="e4m3") for p in (plain, wide))
    np.testing.assert_array_equal(decode(one, SOME, 32), decode(other, SOME, 32))
    np.testing.assert_array_equal(prefill(one, SOME, [23, 17]), prefill(other, SOME, [23, 17]))


@pytest.mark.parametrize("name, scale", [("llama_untied", 30000.0), ("qwen35", 30000.0), ("qwen35_moe", 1e-4)])
def test_scales_keep_what_scale_one_loses(tmp_path, name, scale):
    """Values far out of e4m3's range: with their scale they err as usual ones do, without it they are lost."""
    scale = np.float32(scale)

    def change(tensors):
        for key in tensors:
            if ".self_attn.v_proj." in key:
                tensors[key] = tensors[key] * scale
            elif ".self_attn.o_proj." in key:
                tensors[key] = tensors[key] / scale

    config = json.loads((TINY / name / "config.json").read_text())
    exact = Decoder(config, tensors_of(name)).logits(SOME)
    far = {}
    for what, how in {"scaled": {"scales": (np.float32(0.02), np.float32(0.02) * scale)}, "lost": {"spelling": None}}.items():
        got = decode(open_core(folder(tmp_path / what, name, change=change, **how), "f32", max_batch=32, kv_dtype="e4m3"), SOME, 32)
        far[what] = np.linalg.norm(got - exact) / np.linalg.norm(exact)
    usual = decode(open_core(TINY / name, "f32", max_batch=32, kv_dtype="e4m3"), SOME, 32)
    assert far["scaled"] < 1.5 * np.linalg.norm(usual - exact) / np.linalg.norm(exact) < far["lost"], far


@pytest.mark.parametrize("form", [lambda s: np.array(s, np.float32), lambda s: np.array([s], np.float32), lambda s: np.array([[s]], np.float32)], ids=["number", "1", "1x1"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings(tmp_path, spelling, form):
    want = decode(open_core(folder(tmp_path / "want", "qwen35"), "bf16", max_batch=32, kv_dtype="e4m3"), SOME, 32)
    got = decode(open_core(folder(tmp_path / "got", "qwen35", spelling, form=form, more={"quantization_config": SCHEME}), "bf16", max_batch=32, kv_dtype="e4m3"), SOME, 32)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_scales_of_16_bits_and_nested_names(tmp_path, dtype):
    def form(s):
        return np.array([s]).astype(dtype)

    def wide(s):
        return form(s).astype(np.float32)

    got, want = folder(tmp_path / "half", "qwen35", form=form, nested=True), folder(tmp_path / "whole", "qwen35", form=wide)
    np.testing.assert_array_equal(*(decode(open_core(p, "bf16", max_batch=32, kv_dtype="e4m3"), SOME, 32) for p in (got, want)))


def test_one_scale_for_both(tmp_path):
    def both(tensors):
        for key in [k for k in tensors if k.endswith(".k_scale")]:
            tensors[key.replace("k_scale", "kv_scale")] = tensors.pop(key)
            tensors.pop(key.replace("k_scale", "v_scale"))

    want, got = folder(tmp_path / "want", "llama_untied", scales=(K, K)), folder(tmp_path / "got", "llama_untied", change=both)
    np.testing.assert_array_equal(*(decode(open_core(p, "bf16", max_batch=32, kv_dtype="e4m3"), SOME, 32) for p in (got, want)))


@pytest.mark.parametrize("name", ["llama_untied", "qwen35"])
def test_other_caches_read_none(tmp_path, name):
    """And scales of 1 are none."""
    path = folder(tmp_path / "m", name)
    for kv in ("auto", "f32"):
        with load(path, "bf16", kv_dtype=kv) as model:
            assert model.report()["kv_scales"] == "unread"
    np.testing.assert_array_equal(*(decode(open_core(p, "bf16", max_batch=32), SOME, 32) for p in (path, TINY / name)))
    ones = folder(tmp_path / "ones", name, scales=(np.float32(1), np.float32(1)), change=lambda t: t.update({k: np.ones(1, np.float32) for k in t if k.endswith("_scale")}))
    np.testing.assert_array_equal(*(decode(open_core(p, "bf16", max_batch=32, kv_dtype="e4m3"), SOME, 32) for p in (ones, TINY / name)))
    with load(path, "bf16", kv_dtype="e4m3") as model, load(TINY / name, "bf16", kv_dtype="e4m3") as plain:
        assert (model.report()["kv_scales"], plain.report()["kv_scales"]) == ("used", None)


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen35"])
def test_bits_do_not_depend_on_how_rows_are_grouped(tmp_path, name):
    """Hybrids take several rows of a sequence as a prompt's, and these are of another class than one row where a GPU has classes."""
    path = folder(tmp_path / "m", name)
    core, paged = (open_core(path, "bf16", max_batch=32, kv_dtype="e4m3", num_kv_blocks=n) for n in (0, 64))
    eager = open_core(path, "bf16", max_batch=32, kv_dtype="e4m3", eager=True)
    want = decode(core, SOME, 32)
    for other, piece in ((core, 1), (core, 7), (paged, 7), (eager, 32)):
        if piece > 1 or name != "qwen35" or DEVICE == "cpu":
            np.testing.assert_array_equal(decode(other, SOME, piece, slot=1), want)
    np.testing.assert_array_equal(prefill(core, IDS, [1, 64, 35]), prefill(paged, IDS, [100]))


@pytest.mark.parametrize("name", ["llama_untied", "qwen2", "mixtral"])
def test_calibrated_places_move_with_values(tmp_path, name):
    """Of fp8_static too each bit is the same, where the scale of what attention gives is less by as much as its values are."""
    plain, wide = folder(tmp_path / "plain", name), folder(tmp_path / "wide", name, scales=(K * np.float32(2**7), V * np.float32(2**-5)), change=stretched)
    act = np.array(open_core(plain, "bf16").calibrate([SOME], 100.0), np.float32)
    moved = act.copy()
    moved[1:-1:4] *= np.float32(2**-5)  # the second of a layer's four places; behind the layers is the head's
    one, other = (decode(core_of(p, precision="fp8_static", context=128, max_batch=32, kv_dtype="e4m3", act_scales=list(a)), SOME, 32) for p, a in ((plain, act), (wide, moved)))
    np.testing.assert_array_equal(one, other)


def test_calibrated_scales_are_of_the_same_values(tmp_path):
    """fp8_static of a checkpoint with scales errs no more than of one without: what attention gives is quantized before v_scale."""
    config = json.loads((TINY / "qwen35/config.json").read_text())
    exact, far = Decoder(config, tensors_of("qwen35")).logits(SOME), {}
    for what, path in {"scaled": folder(tmp_path / "m", "qwen35", scales=(K, V)), "plain": TINY / "qwen35"}.items():
        act = open_core(path, "bf16").calibrate([SOME], 100.0)
        got = decode(core_of(path, precision="fp8_static", max_batch=32, kv_dtype="e4m3", act_scales=act), SOME, 32)
        far[what] = np.linalg.norm(got - exact)
    assert far["scaled"] < 1.2 * far["plain"], far
    with pytest.raises(vivace.UnsupportedError, match="calibrate: with scales of an e4m3 cache"):
        open_core(tmp_path / "m", "bf16", kv_dtype="e4m3").calibrate([SOME], 100.0)


@pytest.mark.parametrize("own", [False, True])
def test_guesses_change_no_token(tmp_path, own):
    """The draft layer has scales of its own, or none."""
    path = with_drafts(tmp_path / "m", "qwen35")
    tensors = load_file(path / "model.safetensors")
    for of in [*attending("qwen35", json.loads((path / "config.json").read_text())), *(["mtp.layers.0.self_attn."] if own else [])]:
        tensors |= {of + "k_scale": np.array([K]), of + "v_scale": np.array([V])}
    save_file(tensors, path / "model.safetensors")
    options = {"device": DEVICE, "precision": "bf16", "kv_dtype": "e4m3", "context": 256, "max_batch": 8}
    with vivace.load_model(path, **options) as plain, vivace.load_model(path, mtp=3, **options) as model:
        for n in (1, 30):
            want, got = (m.generate_ids(IDS[:n], max_tokens=40) for m in (plain, model))
            assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs)
        assert model.report()["guesses"]["right"] > 0


def put(key, value):
    return lambda t: t.update({key: value})


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 1, 1)])
def test_a_scale_a_head_where_all_are_equal(tmp_path, shape):
    """As attn_head schemes store them: one scale of all heads."""
    one, heads = (open_core(folder(tmp_path / n, "llama_untied", form=form), "bf16", kv_dtype="e4m3", max_batch=32) for n, form in
                  (("one", lambda s: np.array([s], np.float32)), ("heads", lambda s: np.full(shape, s, np.float32))))
    np.testing.assert_array_equal(decode(one, SOME, 32), decode(heads, SOME, 32))


L1 = "model.layers.1.self_attn."
BAD = [(put(L1 + "k_scale", np.array([-0.5], np.float32)), vivace.CorruptDataError, r"layers.1.self_attn.k_scale: wanted a positive finite scale, got -0.5"),
       (put(L1 + "v_scale", np.zeros(1, np.float32)), vivace.CorruptDataError, "v_scale: wanted a positive finite scale, got 0"),
       (put(L1 + "v_scale", np.full(1, np.nan, np.float32)), vivace.CorruptDataError, "v_scale: wanted a positive finite scale, got nan"),
       (put(L1 + "k_scale", np.full(1, np.inf, ml_dtypes.bfloat16)), vivace.CorruptDataError, "k_scale: wanted a positive finite scale, got inf"),
       (put(L1 + "k_scale", np.ones(3, np.float32)), vivace.InvalidShapeError, r"k_scale: wanted one scale of all heads, \[1\], got \[3\]"),
       (put(L1 + "k_scale", np.ones((1, 2), np.float32)), vivace.InvalidShapeError, r"k_scale: wanted one scale of all heads, \[1\], got \[1, 2\]"),
       (put(L1 + "k_scale", np.array([0.5, 0.25], np.float32)), vivace.UnsupportedError, r"k_scale: heads 0 and 1 have scales 0.5 and 0.25; an e4m3 cache has one scale of all heads"),
       (put(L1 + "v_scale", np.array([[[0.5]], [[1]]], np.float32)), vivace.UnsupportedError, r"v_scale: heads 0 and 1 have scales 0.5 and 1;.*load with kv_dtype auto"),
       (put(L1 + "v_scale", np.array([0.5, 0], np.float32)), vivace.CorruptDataError, r"v_scale: wanted a positive finite scale, got 0"),
       (put(L1 + "k_scale", np.ones(1, np.int32)), vivace.UnsupportedError, "k_scale: wanted f32, bf16 or f16, got i32"),
       (lambda t: t.pop(L1 + "k_scale"), vivace.NotFoundError, "self_attn.k_scale is missing"),
       (lambda t: t.pop(L1 + "v_scale"), vivace.NotFoundError, "self_attn.v_scale is missing"),
       (lambda t: [t.pop(L1 + n) for n in ("k_scale", "v_scale")], vivace.NotFoundError, "layers.1.self_attn.k_scale is missing; all layers that attend have both or none"),
       (lambda t: [t.pop(L1.replace("1", "0") + n) for n in ("k_scale", "v_scale")], vivace.NotFoundError, "layers.1.self_attn.k_scale is there, and not those of layers before it"),
       (put(L1.replace("1", "0") + "k_proj.k_scale", np.ones(1, np.float32)), vivace.CorruptDataError, "are both there: wanted one")]


@pytest.mark.parametrize("spoil, error, match", BAD)
def test_bad_scales(tmp_path, spoil, error, match):
    path = folder(tmp_path / "m", "llama_untied", change=spoil)
    with pytest.raises(error, match=match):
        load(path, "bf16", kv_dtype="e4m3")
    load(path, "bf16").close()  # no other cache reads them


@pytest.mark.parametrize("config, match", [({"kv_cache_scheme": {"num_bits": 8, "type": "int"}}, "got kv_cache_scheme of 8-bit int"), ({"kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "got kv_cache_scheme of 4-bit float"),
                                           ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}, "got kv_cache_quant_algo 'NVFP4'")])
def test_scales_of_another_format_are_refused(tmp_path, config, match):
    path = folder(tmp_path / "m", "llama_untied", more={"quantization_config": SCHEME | config})
    with pytest.raises(vivace.UnsupportedError, match=match):
        load(path, "bf16", kv_dtype="e4m3")


def test_weights_in_groups_are_no_dense_ones(tmp_path):
    path = folder(tmp_path / "m", "llama_untied", more={"quantization_config": SCHEME | {"config_groups": {"group_0": {"weights": {"num_bits": 8}}}}})
    with pytest.raises(vivace.UnsupportedError, match="format 'dense'"):
        load(path, "bf16")
