"""Whispers nobody wrote down, and what they hear, as text.py has language models."""
import random

import numpy as np

from tests.random_models import checkpoint

EOT, ROOM = 40, 1551  # ordinary words lie below the end; tokens of a vocabulary with one language
LONGEST = 80          # positions
PLANS = ("f32", "f32", "bf16", "bf16", "f16", "w8a16", "fp8", "fp8_static")


def draw(seed, device="cpu"):
    r = random.Random(f"whisper {seed}")
    heads, wide = r.choice((1, 2, 3, 5)), r.choice((4, 8, 16, 20, 32, 64, 64))
    width, fours = heads * wide, lambda most: 4 * r.randint(4, most // 4)
    case = {"kind": "whisper", "seed": seed, "precision": r.choice(PLANS), "heads": heads, "dim": wide, "layers": [r.randint(1, 3), r.randint(1, 3)], "mlp": [r.choice((width, 4 * width, fours(256))), r.choice((width, 128, 4 * width, fours(256)))],
            "mels": r.choice((80, 128)), "source": r.choice((20, 33, 75, 150)), "vocab": ROOM + r.randint(0, 90), "windows": r.choice((1, 2, 3)), "rows": r.choice((1, 1, 3, 5))}
    if r.random() < 0.12:  # a step is one launch where "decode_layers" says so
        case |= {"precision": "bf16", "rows": 1, "dim": 64, "heads": r.choice((1, 2, 3)), "mlp": [case["mlp"][0], 64 * r.randint(1, 6)]}
    case["sounds"] = [sound(r, case) for _ in range(case["windows"])]
    case["requests"] = [{"window": r.randrange(case["windows"]), "words": r.randint(0, 9), "most": r.randint(1, 6), "candidates": r.randint(1, case["rows"]), "temperature": r.choice((0.0, 0.0, 0.7)), "seed": r.randrange(100),
                         "timestamps": r.random() < 0.3} for _ in range(r.randint(1, 4))]
    return case


def sound(r, case):
    frames = 2 * case["source"]
    return {"seed": r.randrange(1 << 16), "samples": r.randint(401, 160 * frames + 800), "first": r.choice((0, 0, r.randint(0, frames))), "frames": r.choice((frames, frames, r.randint(0, frames)))}


def samples(s):
    """Noise that comes and goes, and a tone."""
    rng, n = np.random.default_rng(s["seed"]), s["samples"]
    at = np.arange(n)
    return (rng.normal(0, 0.1, n) * np.abs(np.sin(at * rng.uniform(1e-4, 1e-2))) + 0.2 * np.sin(at * rng.uniform(0.01, 1))).astype(np.float32)


def config(case):
    return {"architectures": ["WhisperForConditionalGeneration"], "d_model": case["heads"] * case["dim"], "num_mel_bins": case["mels"], "vocab_size": case["vocab"], "eos_token_id": EOT, "max_source_positions": case["source"],
            "max_target_positions": LONGEST, "encoder_layers": case["layers"][0], "decoder_layers": case["layers"][1], "encoder_attention_heads": case["heads"], "decoder_attention_heads": case["heads"],
            "encoder_ffn_dim": case["mlp"][0], "decoder_ffn_dim": case["mlp"][1], "activation_function": "gelu"}


def shapes(case):
    H, out = case["heads"] * case["dim"], {}

    def both(name, *shape, bias=True):
        out[name + ".weight"] = shape
        if bias:
            out[name + ".bias"] = shape[:1]

    both("model.encoder.conv1", H, case["mels"], 3), both("model.encoder.conv2", H, H, 3)
    out |= {"model.encoder.embed_positions.weight": (case["source"], H), "model.decoder.embed_positions.weight": (LONGEST, H), "model.decoder.embed_tokens.weight": (case["vocab"], H)}
    for part, layers, mlp in zip(("encoder", "decoder"), case["layers"], case["mlp"]):
        for i in range(layers):
            at = f"model.{part}.layers.{i}."
            for attention in ("self_attn",) + ("encoder_attn",) * (part == "decoder"):
                for t in ("q", "k", "v", "out"):
                    both(f"{at}{attention}.{t}_proj", H, H, bias=t != "k")
                both(f"{at}{attention}_layer_norm", H)
            both(at + "fc1", mlp, H), both(at + "fc2", H, mlp), both(at + "final_layer_norm", H)
        both(f"model.{part}.layer_norm", H)
    return out


def write(case, folder):
    return checkpoint.write(case["seed"], shapes(case), config(case), folder)


def simpler(case):
    asked, sounds = case["requests"], case["sounds"]
    for i in range(len(asked)):
        if len(asked) > 1:
            yield case | {"requests": asked[:i] + asked[i + 1:]}
    for i in range(len(sounds)):
        if len(sounds) > 1:
            at = lambda w: w - (w > i)  # noqa: E731
            yield case | {"sounds": sounds[:i] + sounds[i + 1:], "windows": case["windows"] - 1, "requests": [q | {"window": min(at(q["window"]), len(sounds) - 2)} for q in asked]}
    for key, value in (("precision", "f32"), ("layers", [1, 1]), ("heads", 1), ("dim", 4), ("mels", 80), ("vocab", ROOM), ("mlp", [16, 16]), ("source", 20)):
        if case[key] != value:
            frames = {"sounds": [s | {"first": min(s["first"], 40), "frames": min(s["frames"], 40)} for s in sounds]} if key == "source" else {}
            yield case | {key: value} | frames
    if case["rows"] > 1:
        yield case | {"rows": 1, "requests": [q | {"candidates": 1} for q in asked]}
    for i, q in enumerate(asked):
        for change in ({"words": 0}, {"most": 1}, {"candidates": 1}, {"temperature": 0.0}, {"timestamps": False}):
            if q | change != q:
                yield case | {"requests": asked[:i] + [q | change] + asked[i + 1:]}
    for i, s in enumerate(sounds):
        for change in ({"first": 0}, {"frames": 2 * case["source"]}, {"samples": 401}):
            if s | change != s:
                yield case | {"sounds": sounds[:i] + [s | change] + sounds[i + 1:]}
