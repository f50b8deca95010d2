"""Writes tests/fixtures/vla/groot_n16_tiny/: a random GR00T N1.6 with the hub's names, and what it must give.

    python -m tests.reference.make_tiny_groot_n16        # needs torch and transformers (pins in README.md)

The assembled reference: vision tower and language model are transformers' (Siglip2VisionModel, Qwen3Model), pixel_unshuffle and
the connector between them torch's, all in float64 but for learned positions, which are scaled in f32. The head is that of
groot_numpy.py, which tests/test_groot.py holds to lerobot's values. Weights are bf16. expected.safetensors has of each case `c`:
c.image.K [H, W, 3] u8 (absent: the camera is off), c.ids [n] i32 with one token an image, c.state, c.noise, c.embodiment, and
c.vision_out (patches of a token side by side), c.image_embeds, c.llm_layerI_out, c.backbone_features, c.vlln, c.actions, f32.
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
from transformers import Qwen3Config, Qwen3Model, Siglip2VisionConfig, Siglip2VisionModel

from tests.reference.groot_numpy import Groot16

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "vla" / "groot_n16_tiny"
PATCH, MERGE, WIDTH, TEXT, LAYERS, VOCAB, IMAGE, HEADS, DIM, FF, OUT, STATE, ACTION, HORIZON, SLOTS, PLACES = 14, 2, 32, 48, 3, 512, 500, 2, 16, 40, 24, 10, 12, 9, 3, 16
VISION = dict(hidden_size=WIDTH, intermediate_size=44, num_hidden_layers=2, num_attention_heads=2, patch_size=PATCH, num_patches=16, hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6)
QWEN = dict(hidden_size=TEXT, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=VOCAB, rms_norm_eps=1e-6)
DIT = dict(num_layers=5, num_attention_heads=HEADS, attention_head_dim=DIM, output_dim=OUT)
CONFIG = {"model_type": "Gr00tN1d6", "architectures": ["Gr00tN1d6"], "model_name": "nvidia/Eagle-Block2A-2B-v2", "backbone_embedding_dim": TEXT, "select_layer": LAYERS, "max_state_dim": STATE, "max_action_dim": ACTION,
          "action_horizon": HORIZON, "hidden_size": FF, "input_embedding_dim": HEADS * DIM, "max_seq_len": PLACES, "max_num_embodiments": SLOTS, "diffusion_model_cfg": DIT, "attend_text_every_n_blocks": 2,
          "num_inference_timesteps": 4, "num_timestep_buckets": 1000, "use_vlln": True, "add_pos_embed": True, "use_alternate_vl_dit": True, "image_target_size": [112, 140],
          "backbone": {"image_token_id": IMAGE, "text": QWEN | {"rope_theta": 1e6}, "vision": VISION | {"use_rope": False, "use_windows_attn": False}}}
CASES = {"a": ([(56, 84), (84, 56)], 12, 10, 2), "b": ([None, (112, 140)], 5, 7, 0), "c": ([(28, 28), (56, 56)], 1, 1, 1)}  # cameras, words, values of state, embodiment


def head_shapes():
    at, D, out = "action_head.", HEADS * DIM, {}

    def both(name, *shape):
        out[name + ".weight"], out[name + ".bias"] = shape, shape[:1]

    both(at + "vlln", TEXT)
    for i in range(DIT["num_layers"]):
        b, keys = f"{at}model.transformer_blocks.{i}.", D if i % 2 else TEXT
        both(b + "norm1.linear", 2 * D, D), both(b + "attn1.to_q", D, D), both(b + "attn1.to_k", D, keys), both(b + "attn1.to_v", D, keys), both(b + "attn1.to_out.0", D, D)
        both(b + "ff.net.0.proj", 4 * D, D), both(b + "ff.net.2", D, 4 * D)
    both(at + "model.timestep_encoder.timestep_embedder.linear_1", D, 256), both(at + "model.timestep_encoder.timestep_embedder.linear_2", D, D)
    both(at + "model.proj_out_1", 2 * D, D), both(at + "model.proj_out_2", OUT, D)
    out[at + "position_embedding.weight"] = (PLACES, D)
    for name, k, n in (("state_encoder.layer1", STATE, FF), ("state_encoder.layer2", FF, D), ("action_encoder.W1", ACTION, D), ("action_encoder.W2", 2 * D, D), ("action_encoder.W3", D, D), ("action_decoder.layer1", OUT, FF), ("action_decoder.layer2", FF, ACTION)):
        out[f"{at}{name}.W"], out[f"{at}{name}.b"] = (SLOTS, k, n), (SLOTS, n)
    return out


def drawn(rng, name, shape):
    value = rng.standard_normal(shape)
    if name.endswith(".W"):
        value /= math.sqrt(shape[1])
    elif name.endswith((".b", ".bias")):
        value *= 0.2
    elif len(shape) == 1:
        value = 1 + 0.2 * value
    else:
        value *= 0.3 if "position" in name else 1.0 if "embed_tokens" in name else 1.2 / math.sqrt(np.prod(shape[1:]))
    return value.astype(ml_dtypes.bfloat16)


class Backbone:
    def __init__(self, rng):
        torch.set_default_dtype(torch.float64)
        vision = Siglip2VisionConfig(**VISION, attn_implementation="eager")
        vision.vision_use_head = False
        self.vision = Siglip2VisionModel(vision).eval()
        self.text = Qwen3Model(Qwen3Config(**QWEN, num_hidden_layers=LAYERS, max_position_embeddings=1024, pad_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, attn_implementation="eager")).eval()
        wide = WIDTH * MERGE * MERGE
        self.connector = torch.nn.Sequential(torch.nn.LayerNorm(wide), torch.nn.Linear(wide, TEXT), torch.nn.GELU(), torch.nn.Linear(TEXT, TEXT))
        self.weights = {}
        for prefix, module in (("backbone.model.vision_model.vision_model.", self.vision), ("backbone.model.mlp1.", self.connector), ("backbone.model.language_model.model.", self.text)):
            for name, p in module.named_parameters():
                value = drawn(rng, prefix + name, tuple(p.shape))
                p.data = torch.from_numpy(value.astype(np.float64))
                self.weights[prefix + name] = value

    def tokens(self, image):
        """(patches in their token's order behind the tower, tokens)."""
        lines, columns = (n // PATCH for n in image.shape[:2])
        x = torch.from_numpy(image.astype(np.float64)) / 255 * 2 - 1
        x = x.reshape(lines, PATCH, columns, PATCH, 3).permute(0, 2, 1, 3, 4).reshape(1, lines * columns, -1)
        out = self.vision(pixel_values=x, pixel_attention_mask=torch.ones(1, lines * columns, dtype=torch.long), spatial_shapes=torch.tensor([[lines, columns]])).last_hidden_state[0]
        plane = out.T.reshape(1, WIDTH, lines, columns)
        squares = out.reshape(lines // MERGE, MERGE, columns // MERGE, MERGE, WIDTH).permute(0, 2, 1, 3, 4).reshape(-1, WIDTH)
        return squares, self.connector(F.pixel_unshuffle(plane, MERGE).flatten(2)[0].T)

    def __call__(self, images, ids):
        patches, pictures = zip(*(self.tokens(i) for i in images if i is not None))
        seen, at, rows, is_image = {"vision_out": torch.cat(patches), "image_embeds": torch.cat(pictures)}, iter(pictures), [], []
        for i in ids:
            rows.append(next(at) if i == IMAGE else self.text.embed_tokens(torch.tensor([int(i)])))
            is_image += [i == IMAGE] * len(rows[-1])
        got = self.text(inputs_embeds=torch.cat(rows)[None], output_hidden_states=True)
        seen |= {f"llm_layer{n}_out": got.hidden_states[n + 1][0] for n in range(LAYERS - 1)}
        return seen | {"backbone_features": got.last_hidden_state[0]}, np.array(is_image)


@torch.no_grad()
def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    weights_rng, rng, out = np.random.default_rng(61), np.random.default_rng(62), {}
    backbone = Backbone(weights_rng)
    weights = backbone.weights | {name: drawn(weights_rng, name, shape) for name, shape in head_shapes().items()}
    save_file(weights, FOLDER / "model.safetensors", metadata={"format": "pt"})
    head = Groot16({k: v.astype(np.float64) for k, v in weights.items()}, CONFIG)
    for case, (cameras, words, values, embodiment) in CASES.items():
        images = [None if c is None else rng.integers(0, 256, (*c, 3), np.uint8) for c in cameras]
        ids = [*rng.integers(0, IMAGE, words).tolist(), *[t for i in images if i is not None for t in (501, IMAGE, 502)], 503]
        given = {"ids": np.int32(ids), "state": rng.standard_normal(values).astype(np.float32), "noise": rng.standard_normal((HORIZON, ACTION)).astype(np.float32), "embodiment": np.int32([embodiment])}
        out |= {f"{case}.image.{k}": i for k, i in enumerate(images) if i is not None} | {f"{case}.{k}": v for k, v in given.items()}
        got, is_image = backbone(images, ids)
        got = {k: v.numpy() for k, v in got.items()}
        got["vlln"] = head.norm(got["backbone_features"], "action_head.vlln", 1e-5)
        got["actions"] = head.flow(got["backbone_features"], is_image, given["state"], given["noise"], embodiment, 4)
        out |= {f"{case}.{k}": np.ascontiguousarray(v, np.float32) for k, v in got.items()}
        print(case, {k: (v.shape, round(float(np.abs(v).max()), 3)) for k, v in got.items()})
    save_file(out, FOLDER / "expected.safetensors", metadata={"source": f"transformers {transformers.__version__}, torch {torch.__version__}, float64"})


if __name__ == "__main__":
    main()
