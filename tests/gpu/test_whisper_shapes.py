"""Whisper of large-v3's and turbo's shape on random weights: logits and greedy ids against the formulas in torch (and against transformers, where that is
installed), narrow precisions, and windows side by side with the bits of each alone. Needs --device cuda."""
import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.op_data import device

if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from tests.ref.stft_mel import bands, hann, logarithms, powers  # noqa: E402
from vivace import _core  # noqa: E402

CONFIGS = Path(__file__).resolve().parents[2] / "bench" / "configs"
SHAPES = ["whisper-large-v3-turbo", "whisper-large-v3"]
IDS = 64
ENCODER, LOGITS = 2e-4, 5e-4  # as tests/fixtures/whisper has them for f32; on the CPU 1.5e-6 and 2.9e-6, by six layers of 256
TIE = 2 * LOGITS               # two logits that are nearer say nothing about which is first


def config_of(name):
    return json.loads((CONFIGS / name / "config.json").read_text())


def weights_of(c, seed):
    """{transformers' name: f32 tensor on the device}: branches as wide as their inputs, logits a few units apart."""
    g = torch.Generator(device="cuda").manual_seed(seed)
    H, out = c["d_model"], {}

    def rand(name, *shape, std):
        out[name] = torch.randn(*shape, generator=g, device="cuda") * std

    def norm(name):
        out[name + ".weight"] = 1 + torch.randn(H, generator=g, device="cuda") * 0.05
        rand(name + ".bias", H, std=0.05)

    def dense(name, n, k, bias=True):
        rand(name + ".weight", n, k, std=0.6 / math.sqrt(k))
        if bias:
            rand(name + ".bias", n, std=0.02)

    def attention(at):
        for key in ("q", "k", "v", "out"):
            dense(f"{at}.{key}_proj", H, H, key != "k")

    rand("encoder.conv1.weight", H, c["num_mel_bins"], 3, std=1 / math.sqrt(3 * c["num_mel_bins"]))
    rand("encoder.conv2.weight", H, H, 3, std=1 / math.sqrt(3 * H))
    for i in (1, 2):
        rand(f"encoder.conv{i}.bias", H, std=0.02)
    rand("encoder.embed_positions.weight", c["max_source_positions"], H, std=0.5)
    rand("decoder.embed_positions.weight", c["max_target_positions"], H, std=0.05)
    rand("decoder.embed_tokens.weight", c["vocab_size"], H, std=0.06)
    for side, layers, mlp in (("encoder", c["encoder_layers"], c["encoder_ffn_dim"]), ("decoder", c["decoder_layers"], c["decoder_ffn_dim"])):
        for i in range(layers):
            at = f"{side}.layers.{i}"
            attention(at + ".self_attn")
            norm(at + ".self_attn_layer_norm")
            if side == "decoder":
                attention(at + ".encoder_attn")
                norm(at + ".encoder_attn_layer_norm")
            dense(at + ".fc1", mlp, H)
            dense(at + ".fc2", H, mlp)
            norm(at + ".final_layer_norm")
        norm(side + ".layer_norm")
    return out


def write(folder, c, weights):
    """A hub folder."""
    table, at = {}, 0
    for name, t in weights.items():
        table["model." + name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + 4 * t.numel()]}
        at += 4 * t.numel()
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for t in weights.values():
            f.write(memoryview(t.cpu().numpy()).cast("B"))
    (folder / "config.json").write_text(json.dumps(c))


def sound(seed, seconds=30.0):
    rng, at = np.random.default_rng(seed), np.arange(round(16000 * seconds)) / 16000
    x = sum(rng.uniform(0.02, 0.2) * np.sin(2 * np.pi * (f := rng.uniform(80, 3000)) * at + f * np.sin(at * rng.uniform(1, 9)) / 40) for _ in range(4))
    return (x * (np.sin(at * rng.uniform(2, 7)) > -0.5) + rng.normal(0, 0.003, len(at))).astype(np.float32)


def features(x, bins):
    """[bins, 3000] of 30 s in f64, with silence behind them, and the loudest band."""
    filters = np.array(_core.mel_filters(bins)).reshape(bins, 201)
    power, _ = powers(np.concatenate([x[200:0:-1], x, np.zeros(200)])[None], hann(400).astype(np.float64), 160, "none", 3000)
    mel = logarithms(bands(power[0], filters))
    return torch.tensor(((np.maximum(mel, mel.max() - 8) + 4) / 4).T, dtype=torch.float32, device="cuda").contiguous(), float(mel.max())


class Reference:
    """The formulas of the paper in torch, in one dtype."""

    def __init__(self, c, weights, dtype=torch.float32):
        self.c, self.w = c, {k: v.to(dtype) for k, v in weights.items()}
        self.dtype = dtype

    def linear(self, x, name):
        return F.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.w[name + ".weight"], self.w[name + ".bias"])

    def attend(self, x, source, at, heads, causal=False):
        split = lambda t: t.view(len(t), heads, -1).transpose(0, 1)  # noqa: E731
        q, k, v = split(self.linear(x, at + ".q_proj")), split(self.linear(source, at + ".k_proj")), split(self.linear(source, at + ".v_proj"))
        scores = (q @ k.transpose(1, 2)).float() / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
        return self.linear((scores.softmax(-1).to(self.dtype) @ v).transpose(0, 1).reshape(len(x), -1), at + ".out_proj")

    def mlp(self, x, at):
        return self.linear(F.gelu(self.linear(self.norm(x, at + ".final_layer_norm"), at + ".fc1")), at + ".fc2")

    def encode(self, mel):
        x = mel.to(self.dtype)[None]
        for i, stride in ((1, 1), (2, 2)):
            x = F.gelu(F.conv1d(x, self.w[f"encoder.conv{i}.weight"], self.w[f"encoder.conv{i}.bias"], stride, 1))
        x = x[0].T + self.w["encoder.embed_positions.weight"]
        for i in range(self.c["encoder_layers"]):
            at = f"encoder.layers.{i}"
            n = self.norm(x, at + ".self_attn_layer_norm")
            x = x + self.attend(n, n, at + ".self_attn", self.c["encoder_attention_heads"])
            x = x + self.mlp(x, at)
        return self.norm(x, "encoder.layer_norm")

    def logits(self, sound, tokens):
        x = self.w["decoder.embed_tokens.weight"][tokens] + self.w["decoder.embed_positions.weight"][: len(tokens)]
        heads = self.c["decoder_attention_heads"]
        for i in range(self.c["decoder_layers"]):
            at = f"decoder.layers.{i}"
            n = self.norm(x, at + ".self_attn_layer_norm")
            x = x + self.attend(n, n, at + ".self_attn", heads, causal=True)
            x = x + self.attend(self.norm(x, at + ".encoder_attn_layer_norm"), sound, at + ".encoder_attn", heads)
            x = x + self.mlp(x, at)
        return (self.norm(x, "decoder.layer_norm") @ self.w["decoder.embed_tokens.weight"].T).float()


def transformers_logits(c, weights, mel, tokens):
    """None where it is not installed."""
    try:
        from transformers import WhisperConfig, WhisperForConditionalGeneration
    except ImportError:
        return None
    with torch.device("cuda"):
        model = WhisperForConditionalGeneration(WhisperConfig(**{k: v for k, v in c.items() if k != "architectures"})).eval()
    missing, more = model.load_state_dict({"model." + k: v for k, v in weights.items()}, strict=False)
    assert not more and set(missing) <= {"proj_out.weight"}, (missing, more)
    model.tie_weights()
    with torch.no_grad():
        return model(input_features=mel[None], decoder_input_ids=torch.tensor([tokens], device="cuda")).logits[0].float()


def cosines(a, b):
    return F.cosine_similarity(torch.tensor(a).double(), b.double().cpu(), dim=-1)


def load(folder, **options):
    return _core.load_speech(str(folder), device="cuda", **{"precision": "f32", **options})


def request(t, **more):
    return {"prompt": [t["sot"], t["first_language"], t["transcribe"], t["no_timestamps"]], "suppress": [t["eot"]], "timestamps": False, "most": IDS, **more}


@pytest.mark.parametrize("name", SHAPES)
def test_against_the_formulas(name, tmp_path, record_property):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    c = config_of(name)
    weights = weights_of(c, 7)
    write(tmp_path, c, weights)
    x = sound(1)
    mel, peak = features(x, c["num_mel_bins"])
    model = load(tmp_path)
    model.encode([(x, 0, 3000, peak)])
    t = model.tokens()
    (ids, _, _), = model.decode([request(t)])
    assert len(ids) == IDS
    tokens = request(t)["prompt"] + ids
    heard = np.frombuffer(model.encoded(0), np.float32).reshape(1500, -1)
    got = np.frombuffer(model.logits(0, tokens), np.float32).reshape(len(tokens), -1).copy()
    del model
    with torch.no_grad():
        ref = Reference(c, weights)
        encoded = ref.encode(mel)
        want = ref.logits(encoded, tokens)
        narrow = Reference(c, weights, torch.bfloat16)
        theirs = cosines(narrow.logits(narrow.encode(mel), tokens).cpu().numpy(), want).min().item()
        del narrow
    sound_off, off = np.abs(heard - encoded.cpu().numpy()).max(), np.abs(got - want.cpu().numpy()).max()
    other = transformers_logits(c, weights, mel, tokens)
    agree = None if other is None else (other - want).abs().max().item()
    del ref, weights
    torch.cuda.empty_cache()

    best = want[len(tokens) - IDS - 1:-1].clone()
    best[:, t["eot"]] = float("-inf")
    top = best.topk(2, -1)
    clear = (top.values[:, 0] - top.values[:, 1]).cpu().numpy() > TIE
    said = dict(encoder=float(sound_off), logits=float(off), clear=int(clear.sum()), torch_bf16_cosine=theirs, transformers=agree)
    for precision in ("bf16", "f16"):
        model = load(tmp_path, precision=precision)
        model.encode([(x, 0, 3000, peak)])
        said[precision] = cosines(np.frombuffer(model.logits(0, tokens), np.float32).reshape(len(tokens), -1).copy(), want).min().item()
        del model
    print(name, said)
    record_property("note", ", ".join(f"{k}={v:.6g}" for k, v in said.items() if v is not None))
    assert agree is None or agree < LOGITS, said
    assert sound_off < ENCODER and off < LOGITS, said
    assert clear.sum() >= IDS - 8 and (np.array(ids)[clear] == top.indices[:, 0].cpu().numpy()[clear]).all(), said
    assert all(said[p] >= 0.9995 for p in ("bf16", "f16")), said


@pytest.mark.parametrize("name, precision", [(SHAPES[0], "bf16"), (SHAPES[0], "w8a16"), (SHAPES[0], "fp8"), (SHAPES[0], "fp8_static"), (SHAPES[1], "bf16"), (SHAPES[1], "fp8_static")])
def test_windows_side_by_side(name, precision):
    """1, 2, 7, 8 and 16 windows together: encoder, text and scores of each have the bits that it has alone."""
    shape = {"device": "cuda", "random_weights": True}
    scales = _core.load_speech(str(CONFIGS / name), precision="bf16", rows=1, **shape).calibrate([sound(0, 30)]) if precision == "fp8_static" else []
    model = _core.load_speech(str(CONFIGS / name), precision=precision, windows=16, rows=16, act_scales=scales, **shape)
    t, sounds = model.tokens(), [sound(s, 4 + 26 * (s % 3 == 0)) for s in range(16)]
    windows = [(x, 0, min(3000, len(x) // 160), model.peak(x)) for x in sounds]
    alone = []
    for w in windows:
        model.encode([w])
        alone.append((model.encoded(0), model.decode([request(t, most=24)])[0]))
    assert len({a for a, _ in alone}) == 16
    for n in (2, 7, 8, 16):
        model.encode(windows[:n])
        assert [model.encoded(i) for i in range(n)] == [a for a, _ in alone[:n]], n
        assert model.decode([request(t, window=i, most=24) for i in range(n)]) == [text for _, text in alone[:n]], n
    model.encode(windows[:3])
    beams = model.decode([request(t, window=1, most=24, candidates=5), request(t, window=2, most=24)])
    assert beams[1] == alone[2][1] and beams[0] == model.decode([request(t, window=1, most=24, candidates=5)])[0]


def test_streams_and_alignment_take_their_turns():
    """What follows cross-attention, and alignment, twice: the same places."""
    model = _core.load_speech(str(CONFIGS / SHAPES[0]), device="cuda", precision="bf16", windows=2, rows=8, random_weights=True)
    t, x = model.tokens(), sound(3)
    model.encode([(x, 0, 3000, model.peak(x))])
    ask = {**request(t, most=16), "heads": [(3, 0), (2, 3)], "content": 1500, "margin": 0, "rewind": 1500}
    first = model.follow(ask)
    assert first == model.follow(ask) and len(first[0]) == len(first[1]) == 16 and first[0] == model.decode([request(t, most=16)])[0][0]
    lead = request(t)["prompt"][:3]
    starts, p = model.align(0, lead, [1000 + i for i in range(20)], 3000, [(3, 0), (2, 3)])
    assert starts == sorted(starts) and starts[0] >= 0 and starts[-1] < 1500 and len(p) == 20 and model.align(0, lead, [1000 + i for i in range(20)], 3000, [(3, 0), (2, 3)]) == (starts, p)
