"""A Whisper whose steps of one token are one launch (decode_layers_cross) against the same by launches: its logits, its text, its words, what report() says,
and when it is not taken. `pytest --device cuda` runs the kernel; on the CPU the op's own arithmetic takes its place."""
import json

import numpy as np
import pytest

from tests.test_whisper import CONFIG, DEVICE
from vivace import _core
from vivace.errors import InvalidArgumentError, UnsupportedError
from vivace.speech import load_speech

# Two heads of 64; otherwise as the fixture.
SHAPE = {"d_model": 128, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 192, "decoder_ffn_dim": 320, "encoder_layers": 1, "decoder_layers": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("whisper")
    config = {k: v for k, v in CONFIG.items() if k not in ("special", "decoding")} | SHAPE
    (out / "config.json").write_text(json.dumps(config | {"architectures": ["WhisperForConditionalGeneration"], "eos_token_id": CONFIG["special"]["eot"], "activation_function": "gelu"}))
    return out


def load(folder, **options):
    model = _core.load_speech(str(folder), device=DEVICE, **{"precision": "bf16", "random_weights": True, "rows": 1, **options})
    x = np.random.default_rng(0).normal(0, 0.1, 160000).astype(np.float32)
    model.encode([(x, 0, 1000, model.peak(x))])
    return model


@pytest.fixture(scope="module")
def both(folder):
    return load(folder, decode_layers="on"), load(folder, decode_layers="off")


def lead(model):
    t = model.tokens()
    return [t["sot"], t["no_timestamps"]] if not t["multilingual"] else [t["sot"], t["first_language"], t["transcribe"], t["no_timestamps"]]


def logits(model, ids):
    """By steps of one row: what a token alone gives behind those in front of it."""
    rows = []
    for n in range(1, len(ids) + 1):
        # 65 rows are one step of 64 and one of one.
        long = [ids[i % len(ids)] for i in range(64)] + [ids[n - 1]]
        rows.append(np.frombuffer(model.logits(0, long), np.float32).reshape(65, -1)[-1])
    return np.array(rows)


def test_logits(both):
    """Rows of bf16 between ops are off by 2^-9 each, some fifteen of them a layer: 3e-3 rms of what a layer adds, twice that where two ways are compared."""
    ids = [1, 7, 40, 12, 99]
    a, b = (logits(m, ids) for m in both)
    off = np.sqrt(np.square(a - b).mean(-1) / np.square(b).mean(-1)).max()
    assert off < 0.02 and not np.array_equal(a, b)
    assert np.array_equal(logits(both[0], ids), a), "other bits in the same steps"


def decoded(model, **more):
    t = model.tokens()
    return model.decode([{"window": 0, "prompt": lead(model), "suppress": [t["eot"]], "timestamps": False, "most": 40, "logprobs": True, **more}])[0]


def test_text(both, folder):
    """Answers of both ways: where they part, the two tokens' log-probabilities are as near to each other as bf16 tells apart. Eager steps have a graph's bits."""
    (a, _, _, said), (b, _, _, told) = (decoded(m) for m in both)
    assert len(a) == len(b) == 40
    part = next((i for i in range(40) if a[i] != b[i]), 40)
    np.testing.assert_allclose(said[:part], told[:part], atol=0.05)
    if part < 40:
        assert abs(said[part] - told[part]) < 0.05
    eager = decoded(load(folder, decode_layers="on", eager=True))
    assert list(eager[0]) == list(a) and list(eager[3]) == list(said)


def test_what_is_followed(both):
    """Cross-attention of steps of one row: its queries are those that the one launch leaves."""
    heads = [(layer, head) for layer in range(3) for head in range(2)]
    asked = {"heads": heads, "content": 500, "margin": 0, "rewind": 1500, "prompt": lead(both[0]), "suppress": [both[0].tokens()["eot"]], "timestamps": False, "most": 12}
    (tokens, places, *_), (told, wanted, *_) = (m.follow(asked) for m in both)
    same = next((i for i, (x, y) in enumerate(zip(tokens, told)) if x != y), len(told))
    assert same > 0 and np.mean(np.array(places[:same]) == np.array(wanted[:same])) > 0.7


def test_calibration_sees_what_steps_enter(both):
    """Steps of one row too, whose activations stay inside the one launch otherwise: the scales are those of a model whose steps are launches, and its own steps are as before."""
    x = np.random.default_rng(1).normal(0, 0.1, 160000).astype(np.float32)
    a, b = (m.calibrate([x]) for m in both)
    assert a == b and len(a) > 20
    for m in both:
        m.encode([(x, 0, 1000, m.peak(x))])
    assert len(decoded(both[0])[0]) == 40


def test_report(both, folder):
    said = [json.loads(dict(m.report())["decode_layers"]) for m in both]
    assert said == ["used", "launches: off"]
    launches = [int(dict(m.report())["step_launches"]) for m in both]
    assert launches[0] < launches[1] - 3 * 8
    assert json.loads(dict(load(folder).report())["decode_layers"]) == ("launches: no kernel for this device" if DEVICE == "cpu" else "used")


@pytest.mark.parametrize("options, why", [({"rows": 5}, "rows is 5"), ({"precision": "f32"}, "weights and activations are not bf16"), ({"precision": "w8a16"}, "weights and activations are not bf16")])
def test_when_it_is_not_taken(folder, options, why):
    options = {"precision": "bf16", "rows": 1, **options}
    with load_speech(folder, device=DEVICE, random_weights=True, **options) as model:
        assert why in model.report()["decode_layers"]
    with pytest.raises(UnsupportedError, match=f"decode_layers on: .*{why}"):
        load_speech(folder, device=DEVICE, random_weights=True, decode_layers="on", **options)


def test_other_heads_and_other_words(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text()) | {"decoder_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="decode_layers on: heads of 32, wanted 64"):
        load_speech(tmp_path, device=DEVICE, precision="bf16", rows=1, random_weights=True, decode_layers="on")
    with pytest.raises(InvalidArgumentError, match="decode_layers: wanted auto, on or off, got 'yes'"):
        load_speech(folder, device=DEVICE, precision="bf16", rows=1, random_weights=True, decode_layers="yes")
