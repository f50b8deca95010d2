"""Whisper in e4m3: `fp8`, a scale a token, and `fp8_static`, calibrated from sound. Random weights (tests/fixtures/whisper and drawn shapes), the real ones, and what is refused."""
import functools
import json
import random

import numpy as np
import pytest

import vivace
from tests import speech_data
from tests.test_transcribe import errors, plain
from tests.test_whisper import CONFIG, DEVICE, WANT, folder, hear, load, request, sound, values  # noqa: F401: folder is a fixture
from vivace import _core, audio, cli
from vivace.speech import calibration

PLANS = ["fp8", "fp8_static"]
LAYERS = CONFIG["encoder_layers"], CONFIG["decoder_layers"]
SOUND = 4 * LAYERS[0]                 # the point whose codes become keys and values of cross-attention
SITES = SOUND + 1 + 6 * LAYERS[1] + 1


def tokens():
    return WANT["greedy.initial_tokens"].tolist() + WANT["greedy.tokens"].tolist()


def cosine(a, b):
    a, b = (np.frombuffer(v, np.float32).astype(np.float64).ravel() for v in (a, b))
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.fixture(scope="module")
def scales(folder):  # noqa: F811
    return load(folder, precision="bf16").calibrate([sound()])


@pytest.fixture(scope="module")
def models(folder, scales):  # noqa: F811
    """f32 and both plans, which have heard the sound."""
    out = {p: load(folder, precision=p, windows=8, rows=16, act_scales=scales if p == "fp8_static" else []) for p in ("f32", *PLANS)}
    for m in out.values():
        hear(m)
    return out


@pytest.mark.parametrize("precision", PLANS)
def test_near_f32(models, precision):
    """Every product but the convolutions', the head among them, takes e4m3 with e4m3: each such matrix and each such row costs a product's cosine some 3.3e-4."""
    a, b = models["f32"], models[precision]
    assert cosine(a.encoded(0), b.encoded(0)) >= 0.997
    assert min(cosine(x.tobytes(), y.tobytes()) for x, y in zip(*(values(m.logits(0, tokens()), CONFIG["vocab_size"]) for m in (a, b)))) >= 0.99
    facts = {k: json.loads(v) for k, v in dict(b.report()).items()}
    assert set(facts["forms"]["encoder"].values()) == set(facts["forms"]["decoder"].values()) == {facts["forms"]["head"]} == {"e4m3"}
    assert facts["forms"]["convolutions"] == facts["forms"]["embedding"] == "bf16"
    assert facts["activations_to_e4m3"] == {"fp8": "by token", "fp8_static": "calibrated"}[precision] and json.loads(dict(a.report())["activations_to_e4m3"]) is None


@pytest.mark.parametrize("precision", PLANS)
def test_side_by_side(folder, models, scales, precision):  # noqa: F811
    """Windows together and candidates together, captured and eager: the bits of each alone."""
    m, x = models[precision], sound()
    windows = [(x, 10 * i, 3000 - 350 * i, m.peak(x)) for i in range(8)]
    requests = [request(), request("greedy_prompt", window=1, candidates=5, most=24), request("greedy_translate", window=2, temperature=0.8, candidates=3, seed=5)]
    eager = load(folder, precision=precision, windows=8, rows=16, eager=True,  # as many windows: on a GPU they decide how cross-attention cuts its keys
                 act_scales=scales if precision == "fp8_static" else [])
    eager.encode(windows[:3])
    m.encode(windows)
    together, encoded = m.decode(requests), [m.encoded(i) for i in range(8)]
    assert together == eager.decode(requests) == [m.decode([r])[0] for r in requests]
    assert encoded[:3] == [eager.encoded(i) for i in range(3)]
    for i in (0, 3, 7):
        m.encode(windows[i:i + 1])
        assert m.encoded(0) == encoded[i]
    hear(m)


def test_each_scale_is_of_one_place(folder, models, scales):  # noqa: F811
    """Twice a scale is the same codes an exponent on, but for those that are cut off or become subnormal; a thousandth cuts values off. Points of windows change what is
    encoded and with it text; that of cross-attention's keys and values and those of text change text alone."""
    plain_, before = models["fp8_static"], tokens()
    encoded, logits = plain_.encoded(0), plain_.logits(0, before)

    def with_scales(changed):
        m = load(folder, precision="fp8_static", act_scales=changed)
        hear(m)
        return m.encoded(0), m.logits(0, before)
    twice = with_scales([2 * s for s in scales])
    assert cosine(twice[0], encoded) >= 0.9995 and cosine(twice[1], logits) >= 0.998  # a dozen points, codes below 2^-6 at each a bit shorter
    for i in range(SITES):
        heard, said = with_scales([s / 1000 if k == i else s for k, s in enumerate(scales)])
        assert (heard != encoded) == (i < SOUND) and said != logits, i


def test_calibration(folder, scales):  # noqa: F811
    """Of each point the largest magnitude over all windows, over 448. What the model says afterwards is what it said before."""
    m, x = load(folder, precision="bf16"), sound()
    hear(m)
    before = m.encoded(0), m.decode([request()])
    assert len(scales) == SITES and m.calibrate([x]) == scales
    with pytest.raises(vivace.FailedPreconditionError, match="window 0 is not one of the 0"):
        m.encoded(0)
    hear(m)
    assert (m.encoded(0), m.decode([request()])) == before
    other = np.roll(x, 7777)[:40000] * np.float32(0.3)
    both, one, two = (np.array(m.calibrate(given)) for given in ([x, other], [x], [other]))
    assert (both == np.maximum(one, two)).all() and (one != two).any()
    low = np.array(m.calibrate([x, other], 1e-6))
    np.testing.assert_allclose(low, np.minimum(one, two), rtol=1e-5)
    long = np.array(m.calibrate([np.concatenate([x, np.zeros(480000 - len(x) % 480000, np.float32), other])]))  # a window each
    assert (long >= one * 0.5).all()
    exact = np.array(load(folder, precision="f32").calibrate([x]))[:SOUND]
    np.testing.assert_allclose(exact, one[:SOUND], rtol=0.05)


def test_refused(folder, models, scales):  # noqa: F811
    x = sound()
    for precision in ("fp8", "fp8_static"):
        with pytest.raises(vivace.FailedPreconditionError, match=f"calibrate: precision {precision} has no activations of bf16 or f32"):
            models[precision].calibrate([x])
    with pytest.raises(vivace.FailedPreconditionError, match="calibrate: precision f16"):
        load(folder, precision="f16").calibrate([x])
    m = models["f32"]
    for given, percentile, message in (([], 100, "got 0 sounds shorter than a frame"), ([x[:9], x[:0]], 100, "2 sounds shorter than a frame"), ([x], 0, "percentile"), ([x], 101, "percentile"), ([x], float("nan"), "percentile"), ([np.full(1600, np.nan, np.float32)], 100, "not finite")):
        with pytest.raises(vivace.InvalidArgumentError, match=message):
            m.calibrate(given, percentile)
    hear(m)
    for precision, given, message in (("fp8_static", [], f"takes {SITES} of them, got 0"), ("fp8_static", scales[1:], f"got {SITES - 1}"), ("fp8_static", [*scales, 1.0], f"got {SITES + 1}"), ("fp8", scales, "fp8 takes 0 of them"),
                                      ("bf16", scales, "bf16 takes 0 of them"), *(("fp8_static", [*scales[1:], bad], "positive numbers") for bad in (0.0, -1.0, float("inf"), float("nan")))):
        with pytest.raises(vivace.InvalidArgumentError, match=message):
            load(folder, precision=precision, act_scales=given)


def test_broken_weights_are_found(folder, tmp_path):  # noqa: F811
    from safetensors.numpy import load_file, save_file

    merged = {name: value for file in sorted(folder.glob("model-*")) for name, value in load_file(file).items()}
    merged["model.encoder.layers.1.fc1.bias"] = np.full_like(merged["model.encoder.layers.1.fc1.bias"], np.inf)
    save_file(merged, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    m = load(tmp_path, precision="bf16")
    with pytest.raises(vivace.CorruptDataError, match="values that enter product 7 are not finite"):
        m.calibrate([sound()])
    with pytest.raises(vivace.FailedPreconditionError):
        m.encoded(0)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_shapes(tmp_path, seed):
    """Widths that divide into nothing, other mlps and heads, one layer or three: captured as eager, windows together as alone, text near bf16's."""
    r = random.Random(seed)
    heads, wide = r.choice((1, 2, 3, 5)), r.choice((4, 8, 16, 20, 32, 64))
    width = heads * wide
    config = {"architectures": ["WhisperForConditionalGeneration"], "d_model": width, "num_mel_bins": r.choice((80, 128)), "vocab_size": 1515 + r.randint(0, 90), "eos_token_id": 4, "max_source_positions": r.choice((20, 75, 150)),
              "max_target_positions": 64, "encoder_layers": r.randint(1, 3), "decoder_layers": r.randint(1, 3), "encoder_attention_heads": heads, "decoder_attention_heads": heads,
              "encoder_ffn_dim": r.choice((width, 4 * width, 4 * width + 4)), "decoder_ffn_dim": r.choice((width, 4 * width, 2 * width + 8)), "activation_function": "gelu"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 0.1, 320 * config["max_source_positions"]).astype(np.float32)
    load_ = functools.partial(_core.load_speech, str(tmp_path), device=DEVICE, random_weights=True, windows=2, rows=3)
    frames = load_(precision="f32").limits()["frames"]
    half = load_(precision="bf16")
    scales = half.calibrate([x])  # noqa: F811
    assert len(scales) == 4 * config["encoder_layers"] + 6 * config["decoder_layers"] + 2
    windows = [(x, 0, frames, half.peak(x)), (x, 3, frames // 2, half.peak(x))]
    half.encode(windows)
    t = half.tokens()
    text = [t["sot"], t["first_language"], t["transcribe"], t["no_timestamps"], *(int(i) for i in rng.integers(0, 4, 9))]
    ask = [{"window": i, "prompt": text[:4], "suppress": [t["eot"]], "timestamps": False, "most": 5, "candidates": 1 + i} for i in range(2)]
    for precision in PLANS:
        m, eager = (load_(precision=precision, act_scales=scales if precision == "fp8_static" else [], eager=e) for e in (False, True))
        for one in (m, eager):
            one.encode(windows)
        assert [m.encoded(i) for i in range(2)] == [eager.encoded(i) for i in range(2)] and m.decode(ask) == eager.decode(ask) and m.logits(1, text) == eager.logits(1, text), config
        assert cosine(m.encoded(0), half.encoded(0)) >= 0.98 and cosine(m.logits(0, text), half.logits(0, text)) >= 0.9, config
        together = m.encoded(1)
        m.encode(windows[1:])
        assert m.encoded(0) == together, config


# ---- real weights ---------------------------------------------------------------------------------

CALIBRATED = ("0870", "0880")  # of the five sentences
OF = {"whisper-tiny.en": ("0870", "0880", "0890", "0920", "0930"), "whisper-base": ("0890", "0920")}  # those that are heard


@functools.cache
def real(name, precision):
    given = {"calibration": [speech_data.librivox()[k][0] for k in CALIBRATED]} if precision == "fp8_static" else {}
    return vivace.load_model(speech_data.weights(name), device="cpu", threads=2, precision=precision, **given)


@functools.cache
def by_f32(name):
    """Of each sentence: samples, peak, what is encoded, its tokens with what comes before them, and which token is likeliest behind each."""
    out, m = {}, real(name, "f32")
    for which in OF[name]:
        raw, _ = speech_data.librivox()[which]
        x = audio.samples_of(raw, None, 16000)
        peak = m._live.peak(x)
        m._live.encode([(x, 0, len(x) // 160, peak)])
        ids = m._lead("en", "transcribe", True) + [t for s in m.transcribe(raw, language="en", temperature=0.0, condition=False).segments for t in s.tokens]
        m._live.encode([(x, 0, len(x) // 160, peak)])
        out[which] = x, peak, m._live.encoded(0), ids, values(m._live.logits(0, ids), m._live.limits()["vocab"]).argmax(1)
    return out


# bf16 alone has 7 and 1 words of 71 wrong (f32 3 and 1: tiny.en's others are one word, "ill-disposed", and a hyphen), and is off by 1.0 to 1.1 % and 0.9 to 1.9 % in what is encoded.
# Seen: 7, 5 to 7 and 1 words; 99 % and 92 to 97 % of tokens a sentence; 6 to 11 % and 6 to 7 %.
@pytest.mark.parametrize("name, precision, most", [("whisper-tiny.en", "fp8", 7), ("whisper-tiny.en", "fp8_static", 7), ("whisper-base", "fp8_static", 1)])
def test_real_weights(name, precision, most):
    """Words, tokens and what is encoded where there is sound. All five of base: docs/speech.md."""
    m, wrong, same, off = real(name, precision), 0, [], []
    for which in OF[name]:
        raw, text = speech_data.librivox()[which]
        wrong += errors(text, m.transcribe(raw, language="en", temperature=0.0, condition=False).text)
        x, peak, encoded, ids, best = by_f32(name)[which]
        m._live.encode([(x, 0, len(x) // 160, peak)])
        same += (values(m._live.logits(0, ids), m._live.limits()["vocab"]).argmax(1) == best).tolist()
        want, got = (values(v, len(v) // 6000)[:len(x) // 320].astype(np.float64) for v in (encoded, m._live.encoded(0)))
        off.append(np.linalg.norm(got - want) / np.linalg.norm(want))
    assert wrong <= most and np.mean(same) >= 0.9 and max(off) <= 0.12, (wrong, np.mean(same), off)


def test_long_sound():
    """86 seconds, four windows: nothing is lost or said twice."""
    x, want = speech_data.long_form()
    t = real("whisper-tiny.en", "fp8_static").transcribe(x, temperature=0.0, language="en", condition=False)
    assert errors(want, t.text) <= 0.03 * len(plain(want)), t.text
    times = [v for s in t.segments for v in (s.start, s.end)]
    assert times == sorted(times) and times[-1] <= t.duration + 0.001


def test_kept_scales(monkeypatch):
    """The same sounds are heard once; others anew. Scales of another number than the plan wants are made anew."""
    sounds, name, made = [speech_data.librivox()[k][0] for k in CALIBRATED], speech_data.weights("whisper-tiny.en"), []
    real("whisper-tiny.en", "fp8_static")
    core = _core.load_speech
    monkeypatch.setattr(_core, "load_speech", lambda *a, **k: (made.append(k["precision"]), core(*a, **k))[1])
    with vivace.load_model(name, device="cpu", threads=2, precision="fp8_static", calibration=sounds) as m:
        assert made == ["fp8_static"] and m.report()["activations_to_e4m3"] == "calibrated"
    monkeypatch.setattr(calibration, "kept", lambda key, about, make, anew=False: make() if anew else [1.0])
    with vivace.load_model(name, device="cpu", threads=2, precision="fp8_static", calibration=[audio.samples_of(sounds[0], None, 16000)[:20000]]) as m:
        assert made[1:] == ["fp8_static", "bf16", "fp8_static"] and m.report()["precision"] == "fp8_static"


@pytest.mark.parametrize("options, kind, message", [
    (dict(precision="fp8_static"), "InvalidArgumentError", 'calibration: precision="fp8_static" takes its scales from sound; give some, or use "fp8"'),
    (dict(precision="fp8_static", calibration=[]), "InvalidArgumentError", "no sound of a second or more"),
    (dict(precision="fp8_static", calibration=[np.zeros(999, np.float32)]), "InvalidArgumentError", "no sound of a second or more"),
    (dict(precision="fp8_static", calibration="talk.wav"), "InvalidArgumentError", "calibration: wanted a list of sounds"),
    (dict(precision="fp8_static", calibration=[b""]), "CorruptDataError", "an empty file"),
    (dict(precision="fp8_static", calibration=["/nowhere.wav"]), "NotFoundError", "nowhere.wav"),
    (dict(precision="fp8_static", calibration=[np.zeros(16000, np.float32)], percentile=0), "InvalidArgumentError", "percentile"),
    (dict(precision="fp8", calibration=[np.zeros(16000, np.float32)]), "InvalidArgumentError", "only precision='fp8_static' has scales to calibrate, got 'fp8'"),
    (dict(precision="fp4"), "InvalidArgumentError", "precision: wanted auto, f32, bf16, f16, w8a16, fp8, fp8_static, q8, got 'fp4'"),
])
def test_refused_options(options, kind, message):
    with pytest.raises(getattr(vivace, kind), match=message):
        vivace.load_model(speech_data.weights("whisper-tiny.en"), device="cpu", threads=1, **options)


def test_command(tmp_path, capsys):
    """`vivace calibrate --sound`, and `vivace transcribe --calibration` with what that kept."""
    raw, text = speech_data.librivox()["0890"]
    (tmp_path / "a.wav").write_bytes(raw)
    sound_, weights = str(tmp_path / "a.wav"), speech_data.weights("whisper-tiny.en")
    assert cli.main(["calibrate", "--model", weights, "--sound", sound_, "--device", "cpu", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["sounds"] == 1 and len(facts["act_scales"]) == 42 and min(facts["act_scales"]) > 0
    assert cli.main(["transcribe", sound_, "--model", weights, "--device", "cpu", "--precision", "fp8_static", "--calibration", sound_]) == 0
    assert errors(text, capsys.readouterr().out) <= 4
    for given, message in ((["--sound", sound_, "--prompts", sound_], "--prompts: of language models"), ([], "takes its scales from sound")):
        assert cli.main(["calibrate", "--model", weights, "--device", "cpu", *given]) == 1
        assert message in capsys.readouterr().err
    assert cli.main(["transcribe", sound_, "--model", weights, "--device", "cpu", "--calibration", sound_]) == 1
    assert "only precision='fp8_static' has scales" in capsys.readouterr().err
