"""Static scales of activations that fp8 checkpoints bring (`input_scale`), under `fp8_static`: the bits of the same scales given, float64 with rows
quantized by them, and what is refused. On the host or (`pytest --device cuda`) on a GPU. About 10 s."""
import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.random_models.e4m3 import SCHEMES, quantized, values_of
from tests.reference.decoder_numpy import Decoder
from tests.reference.policy_numpy import Rounded
from tests.test_calibrate import static_core
from tests.test_e4m3_rows import tensors_of
from tests.test_model_steps import DEVICE, FIXTURES, IDS, decode, load, open_core, prefill
from tests.test_mtp import OPTIONS, with_drafts
from tests.test_nvfp4 import apart
from vivace import _core, calibrate

TINY = FIXTURES / "tiny"
NAMES = ("llama_untied", "qwen2", "qwen3", "gemma3", "mixtral", "qwen3_moe", "qwen35", "qwen35_moe")
SITES = (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "linear_attn.in_proj_qkv", "linear_attn.in_proj_z"), ("self_attn.o_proj", "linear_attn.out_proj"), ("mlp.gate_proj", "mlp.up_proj"), ("mlp.down_proj",))
SOME = IDS[:40]


def products(tensors, layer, site):
    """Names of the products whose rows enter at a site, without `weight`."""
    return [p for p in (f"model.layers.{layer}.{n}" for n in SITES[site]) if p + ".weight" in tensors]


def eight(name, scheme="modelopt tensor"):
    """(tensors of a tiny model with matrices of layers in e4m3, the values they stand for, its config)."""
    rng, held, values = np.random.default_rng(7), {}, {}
    for k, w in apart(tensors_of(name)).items():
        held[k] = values[k] = w
        if w.ndim == 2 and ".layers." in k:
            codes, scale = quantized(w.astype(np.float32), scheme, rng)
            held |= {k: codes, k + "_scale": scale}
            values[k] = values_of(codes, scale)
    return held, values, json.loads((TINY / name / "config.json").read_text()) | {"quantization_config": SCHEMES[scheme]}


def folder(path, tensors, config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")
    return path


def drawn(tensors, calibrated, seed, form=lambda s: np.array([s], np.float32), low=0.3, high=1.2):
    """(input_scale of every product, the largest of each site): around what was calibrated; some clip their largest values."""
    rng, scales, sites = np.random.default_rng(seed), {}, np.ones(len(calibrated), np.float32)
    for i, base in enumerate(calibrated[:-1]):
        parts = products(tensors, i // 4, i % 4)
        own = np.float32(base * rng.uniform(low, high, len(parts)))
        if parts:
            sites[i] = max(np.float32(form(s).reshape(())) for s in own)
        scales |= {p + ".input_scale": form(s) for p, s in zip(parts, own)}
    return scales, sites


@pytest.mark.parametrize("name", NAMES)
def test_the_bits_of_the_same_scales_given(tmp_path, name):
    """Products of one site take the largest of theirs. `lm_head` has one too."""
    held, _, config = eight(name)
    plain = folder(tmp_path / "plain", held, config)
    calibrated = open_core(plain, "bf16").calibrate([SOME], 100.0)
    scales, sites = drawn(held, calibrated, len(name))
    sites[-1] = np.float32(calibrated[-1] * 0.9)
    with_scales = folder(tmp_path / "scales", held | scales | {"lm_head.input_scale": np.array(sites[-1])}, config)
    got, want = open_core(with_scales, "fp8_static", max_batch=32), static_core(plain, sites.tolist())
    facts, others = ({k: json.loads(v) for k, v in dict(c.report()).items()} for c in (got, want))
    assert (facts["activations_to_e4m3"], others["activations_to_e4m3"]) == ("checkpoint", "calibrated") and facts["unread_tensors"] == {}
    np.testing.assert_array_equal(decode(got, SOME, 32), decode(want, SOME, 32))
    np.testing.assert_array_equal(prefill(got, SOME, [33, 7]), prefill(want, SOME, [33, 7]))


class Static(Rounded):
    """Rows enter a product as codes by the scale of its site, those of the head by a scale of their own."""

    def __init__(self):
        super().__init__()
        self.scales = {}

    def of(self, decoder, tensors, sites):
        for i, scale in enumerate(sites[:-1]):
            self.scales |= {id(decoder.w[p.removeprefix("model.") + ".weight"]): scale for p in products(tensors, i // 4, i % 4)}
        return self

    def enters(self, x):
        return x

    def weight(self, w):
        return w

    def weights_alone(self):
        return Rounded(eight=True, entering=False)

    def product(self, x, w):
        scale = self.scales.get(id(w))
        if scale is None:
            return self._codes(x) @ self._codes(self.value(w)).T
        return (np.float32(x) / scale).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * np.float64(scale) @ w.T


@pytest.mark.parametrize("name", ["llama_untied", "qwen3", "qwen35"])
def test_rows_are_quantized_by_them(tmp_path, name):
    """Far nearer to float64 with the same codes than to float64 without: values clip. Without a scale of the head its rows have their own, which here are large."""
    held, values, config = eight(name)
    held["model.norm.weight"] = values["model.norm.weight"] = values["model.norm.weight"] * 4096
    calibrated = open_core(folder(tmp_path / "plain", held, config), "bf16").calibrate([SOME], 100.0)
    scales, sites = drawn(held, calibrated, 5, low=0.1, high=0.3)
    with_scales = folder(tmp_path / "scales", held | scales, config)
    got, arithmetic = decode(open_core(with_scales, "fp8_static", max_batch=32), SOME, 32), Static()
    decoder = Decoder(config, values, arithmetic)
    arithmetic.of(decoder, held, sites)
    want, exact = decoder.logits(SOME), Decoder(config, values).logits(SOME)
    near, far = np.linalg.norm(got - want), np.linalg.norm(exact - want)
    print(f"{name}: {near / far:.3f}")
    assert near < 0.2 * far


@pytest.mark.parametrize("form", [lambda s: np.array(s, np.float32), lambda s: np.array([s], ml_dtypes.bfloat16), lambda s: np.array([s], np.float16)], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("name, scheme", [("llama_untied", "compressed tensor"), ("qwen35_moe", "fp8")])
def test_nothing_is_calibrated(tmp_path, monkeypatch, name, scheme, form):
    """load_model() asks for no prompts, and says so; prompts that are given count more."""
    held, _, config = eight(name, scheme)
    scales, _ = drawn(held, [0.05] * 4 * config["num_hidden_layers"] + [1], 3, form)
    path = folder(tmp_path / "m", held | scales, config)
    monkeypatch.setattr(calibrate, "cache_dir", lambda: tmp_path / "cache")
    with load(path, "fp8_static", calibration=[SOME]) as model:
        assert model.report()["activations_to_e4m3"] == "calibrated" and model.report()["unread_tensors"] == {"*.input_scale": len(scales)}
    monkeypatch.setattr(calibrate, "act_scales", lambda *a, **k: pytest.fail("calibrated"))
    with load(path, "fp8_static") as model:
        assert model.report()["activations_to_e4m3"] == "checkpoint" and not model.report()["unread_tensors"]
        assert len(model.generate_ids(SOME, max_tokens=5).tokens) == 5
    with load(path, "fp8") as model:
        assert model.report()["unread_tensors"] == {"*.input_scale": len(scales)}


def test_guesses_change_no_token(tmp_path):
    """Steps that check guesses hand the head rows with scales of their own too."""
    path = with_drafts(tmp_path / "m", "qwen35")
    tensors = load_file(path / "model.safetensors")
    layers = json.loads((path / "config.json").read_text())["num_hidden_layers"]
    save_file(tensors | drawn(tensors, [0.05] * 4 * layers + [1], 3)[0], path / "model.safetensors")
    options = OPTIONS | {"precision": "fp8_static", "kv_dtype": "auto"}
    with vivace.load_model(path, **options) as plain, vivace.load_model(path, mtp=3, **options) as model:
        assert model.report()["activations_to_e4m3"] == "checkpoint"
        for n, t in ((1, 0.0), (30, 0.8), (65, 0.0)):
            want, got = (m.generate_ids(IDS[:n], max_tokens=40, temperature=t, seed=n) for m in (plain, model))
            assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs)
        assert 0 < model.report()["guesses"]["right"] < model.report()["guesses"]["checked"]


O_SCALE = "model.layers.1.self_attn.o_proj.input_scale"


def test_one_that_is_missing_is_calibrated_with_the_others(tmp_path, monkeypatch):
    held, _, config = eight("llama_untied")
    scales, _ = drawn(held, [0.05] * 9, 3)
    del scales[O_SCALE]
    path = folder(tmp_path / "m", held | scales, config)
    monkeypatch.setattr(calibrate, "cache_dir", lambda: tmp_path / "cache")
    assert not _core.has_input_scales(str(path))
    monkeypatch.setattr(calibrate, "PROMPTS", (SOME,))  # the folder has no tokenizer
    with load(path, "fp8_static") as model:
        assert model.report()["activations_to_e4m3"] == "calibrated" and model.report()["unread_tensors"] == {"*.input_scale": len(scales)}
    with pytest.raises(vivace.FailedPreconditionError, match="act_scales: precision fp8_static wants 9"):
        static_core(path, [])


@pytest.mark.parametrize("value, error, match", [
    (np.zeros(1, np.float32), vivace.CorruptDataError, f"{O_SCALE}: wanted a positive finite scale, got 0"), (np.array([-0.1], np.float32), vivace.CorruptDataError, "wanted a positive finite scale, got -0.1"),
    (np.array([np.nan], np.float32), vivace.CorruptDataError, "wanted a positive finite scale, got nan"), (np.array(np.inf, np.float32), vivace.CorruptDataError, "wanted a positive finite scale, got inf"),
    (np.ones(64, np.float32), vivace.InvalidShapeError, rf"{O_SCALE}: wanted one scale, \[1\], got \[64\]"), (np.ones((1, 2), np.float32), vivace.InvalidShapeError, r"wanted one scale, \[1\], got \[1, 2\]"),
    (np.ones(0, np.float32), vivace.InvalidShapeError, "wanted one scale"), (np.ones(1, np.int32), vivace.UnsupportedError, f"{O_SCALE}: wanted f32, bf16 or f16, got i32"),
    (np.ones(1, np.float64), vivace.Error, "model.safetensors.*F64|wanted f32, bf16 or f16")])
def test_bad_scales(tmp_path, value, error, match):
    held, _, config = eight("llama_untied")
    scales, _ = drawn(held, [0.05] * 9, 3)
    path = folder(tmp_path / "m", held | scales | {O_SCALE: value}, config)
    with pytest.raises(error, match=match):
        load(path, "fp8_static")
