"""Writes tests/fixtures/vla/smolvla_tiny/: a random SmolVLA with lerobot's names, and what it must give.

    python -m tests.reference.make_tiny_smolvla        # needs torch and transformers (pins in README.md)

Towers, connector, norms, projections and feed-forwards are transformers' (SmolVLM, Llama), put together here as the paper and
lerobot's configuration say: which token sees which, positions, the flow. All in float64 but images, which are scaled in
f32. Weights are bf16. expected.safetensors has of each case `c`: c.image.K [H, W, 3] u8 (absent: the camera is off), c.ids
[n] i32, c.state, c.noise, and c.image_tokens, c.k.L, c.v.L (keys and values of the prefix), c.x [steps, horizon, A]
(after each step), f32.
"""
from __future__ import annotations

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaModel, SmolVLMConfig, SmolVLMModel

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "vla" / "smolvla_tiny"
SIDE, PATCH, SCALE, LAYERS, HEADS, KV, DIM, VOCAB, STATE, ACTION, HORIZON, STEPS, EVERY = 32, 8, 2, 4, 3, 1, 16, 64, 6, 7, 9, 5, 2
VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE, patch_size=PATCH)
LLAMA = dict(num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=DIM, rms_norm_eps=1e-5, hidden_act="silu", vocab_size=VOCAB)
TEXT, EXPERT = dict(LLAMA, hidden_size=48, intermediate_size=48), dict(LLAMA, hidden_size=24, intermediate_size=40)
tower = lambda c: {"width": c["hidden_size"], "depth": c["num_hidden_layers"], "mlp_dim": c["intermediate_size"], "num_heads": c["num_attention_heads"]}  # noqa: E731
llama = lambda c: tower(c) | {"num_kv_heads": KV, "head_dim": DIM}  # noqa: E731
CONFIG = {"type": "smolvla", "chunk_size": HORIZON, "max_state_dim": STATE, "max_action_dim": ACTION, "num_steps": STEPS, "num_vlm_layers": LAYERS, "num_expert_layers": -1, "self_attn_every_n_layers": EVERY,
          "expert_width_multiplier": 0.5, "attention_mode": "cross_attn", "resize_imgs_with_padding": [SIDE, SIDE], "tokenizer_max_length": 48, "min_period": 0.004, "max_period": 4.0,
          "input_features": {"observation.images.top": {}, "observation.images.wrist": {}, "observation.state": {}},
          "vision": tower(VISION) | {"image_size": SIDE, "patch_size": PATCH, "scale_factor": SCALE}, "text": llama(TEXT), "expert": llama(EXPERT)}
CASES = {"a": ([(24, 40), (32, 32)], 5, 6), "b": ([None, (48, 20)], 11, 4), "c": ([(44, 28), None], 1, 6)}  # cameras, words, values of state


def drawn(rng, name, shape):
    if len(shape) < 2:
        value = rng.standard_normal(shape) * 0.3 + (0 if name.endswith("bias") else 1)
    else:
        value = rng.standard_normal(shape) * (1.0 if "embed" in name and "patch" not in name else 1.3 / math.sqrt(np.prod(shape[1:])))
    return torch.from_numpy(value.astype(np.float32)).to(torch.bfloat16).double()


def pixels(image):
    """Scaled to fit in f32, padded on the left and above, black being -1."""
    height, width, _ = image.shape
    ratio = max(width / SIDE, height / SIDE)
    h, w = int(height / ratio), int(width / ratio)
    x = F.interpolate(torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255, size=(h, w), mode="bilinear", align_corners=False)
    return (F.pad(x, (SIDE - w, 0, SIDE - h, 0), value=0) * 2 - 1).double()


def turn(x, pos):
    """[T, heads, D] by halves."""
    half = DIM // 2
    angle = pos[:, None].double() / 10000 ** (torch.arange(half).double() / half)
    c, s = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat([x[..., :half] * c - x[..., half:] * s, x[..., half:] * c + x[..., :half] * s], -1)


def attend(q, k, v, seen):
    k, v = (t.repeat_interleave(HEADS // KV, 1) for t in (k, v))
    scores = torch.einsum("thd,lhd->htl", q, k) / math.sqrt(DIM)
    return torch.einsum("htl,lhd->thd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v).reshape(len(q), -1)


class SmolVla:
    def __init__(self, rng):
        torch.set_default_dtype(torch.float64)
        own = SmolVLMConfig(vision_config=VISION, text_config={"model_type": "llama", **TEXT, "pad_token_id": None}, scale_factor=SCALE, pad_token_id=0, attn_implementation="eager")
        self.vlm, self.expert = SmolVLMModel(own).eval(), LlamaModel(LlamaConfig(**EXPERT)).eval()
        self.expert.embed_tokens = None
        for i, layer in enumerate(self.expert.layers):
            if i % EVERY:
                layer.self_attn.k_proj, layer.self_attn.v_proj = (torch.nn.Linear(KV * DIM, KV * DIM, bias=False) for _ in range(2))
        H, E = TEXT["hidden_size"], EXPERT["hidden_size"]
        self.top = torch.nn.ModuleDict({"state_proj": torch.nn.Linear(STATE, H), "action_in_proj": torch.nn.Linear(ACTION, E), "action_out_proj": torch.nn.Linear(E, ACTION),
                                        "action_time_mlp_in": torch.nn.Linear(2 * E, E), "action_time_mlp_out": torch.nn.Linear(E, E)})
        self.weights = {}
        for prefix, module in (("model.vlm_with_expert.vlm.model.", self.vlm), ("model.vlm_with_expert.lm_expert.", self.expert), ("model.", self.top)):
            for name, p in module.named_parameters():
                p.data = drawn(rng, name, tuple(p.shape))
                self.weights[prefix + name] = p.data.float().numpy().astype(ml_dtypes.bfloat16)

    def project(self, layer, x):
        x, a = layer.input_layernorm(x), layer.self_attn
        return (p(x).view(len(x), -1, DIM) for p in (a.q_proj, a.k_proj, a.v_proj))

    def finish(self, layer, x, attended):
        x = x + layer.self_attn.o_proj(attended)
        return x + layer.mlp(layer.post_attention_layernorm(x))

    def actions(self, images, ids, state, noise):
        seen = {}
        pictures = [self.vlm.connector(self.vlm.vision_model(pixel_values=pixels(i)).last_hidden_state)[0] for i in images if i is not None]
        seen["image_tokens"] = torch.cat(pictures)
        wide = math.sqrt(TEXT["hidden_size"])
        padded = F.pad(torch.from_numpy(state).double(), (0, STATE - len(state)))
        x = torch.cat([*(p * wide for p in pictures), self.vlm.text_model.embed_tokens(torch.from_numpy(ids).long()) * wide, self.top["state_proj"](padded)[None]])
        n = len(x)
        pos, visible = torch.arange(n), torch.ones(n, n, dtype=bool)
        visible[:-1, -1] = False  # the state sees the others, and they do not see it
        cache = []
        for i, layer in enumerate(self.vlm.text_model.layers):
            q, k, v = self.project(layer, x)
            cache.append((turn(k, pos), v))
            seen[f"k.{i}"], seen[f"v.{i}"] = cache[-1]
            x = self.finish(layer, x, attend(turn(q, pos), *cache[-1], visible))
        E, steps, at = EXPERT["hidden_size"], [], torch.from_numpy(noise).double()
        own = torch.arange(HORIZON)
        causal = torch.cat([torch.ones(HORIZON, n, dtype=bool), torch.ones(HORIZON, HORIZON, dtype=bool).tril()], 1)
        for s in range(STEPS):
            share = torch.linspace(0, 1, E // 2)
            angle = 2 * math.pi * (1 - s / STEPS) / (4e-3 * (4.0 / 4e-3) ** share)
            time = torch.cat([angle.sin(), angle.cos()]).expand(HORIZON, E)
            y = self.top["action_time_mlp_out"](F.silu(self.top["action_time_mlp_in"](torch.cat([self.top["action_in_proj"](at), time], -1))))
            for i, layer in enumerate(self.expert.layers):
                k, v = cache[i]
                if i % EVERY:
                    a = layer.self_attn
                    q = a.q_proj(layer.input_layernorm(y)).view(HORIZON, -1, DIM)
                    k, v = (p(t.reshape(n, -1)).view(n, -1, DIM) for p, t in ((a.k_proj, k), (a.v_proj, v)))
                    y = self.finish(layer, y, attend(turn(q, own), k, v, torch.ones(HORIZON, n, dtype=bool)))
                else:
                    q, mine, value = self.project(layer, y)
                    y = self.finish(layer, y, attend(turn(q, n + own), torch.cat([k, turn(mine, n + own)]), torch.cat([v, value]), causal))
            at = at - self.top["action_out_proj"](self.expert.norm(y)) / STEPS
            steps.append(at)
        return seen | {"x": torch.stack(steps)}


@torch.no_grad()
def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    model, rng, out = SmolVla(np.random.default_rng(31)), np.random.default_rng(32), {}
    save_file(model.weights, FOLDER / "model.safetensors", metadata={"format": "pt"})
    for case, (cameras, words, values) in CASES.items():
        images = [None if c is None else rng.integers(0, 256, (*c, 3), np.uint8) for c in cameras]
        given = {"ids": rng.integers(0, VOCAB, words).astype(np.int32), "state": rng.standard_normal(values).astype(np.float32), "noise": rng.standard_normal((HORIZON, ACTION)).astype(np.float32)}
        out |= {f"{case}.image.{k}": i for k, i in enumerate(images) if i is not None} | {f"{case}.{k}": v for k, v in given.items()}
        got = model.actions(images, **given)
        out |= {f"{case}.{k}": np.ascontiguousarray(v.numpy(), np.float32) for k, v in got.items()}
        print(case, {k: (tuple(v.shape), float(v.abs().max())) for k, v in got.items()})
    save_file(out, FOLDER / "expected.safetensors", metadata={"source": f"transformers {transformers.__version__}, torch {torch.__version__}, float64"})


if __name__ == "__main__":
    main()
