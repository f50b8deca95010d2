"""Writes tests/fixtures/qwen3_vl/: a random Qwen3-VL in the hub's format, and what it must give.

    python -m tests.reference.make_tiny_qwen3_vl        # needs torch and transformers (pins in README.md)

expected.safetensors has of each case `c`: c.ids [n] i32 (an image's tokens each stand), c.image.K [H, W, 3] u8,
c.positions [3, n] i32, c.logits [n, V] f32, and of the first image of a case c.tokens [m, width] f32, as transformers
computes them in float64. Images are of the network's sizes: multiples of a token's side.
"""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "qwen3_vl"
IMAGE, PATCH, MERGE = 7, 4, 2
TEXT = dict(hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=32, vocab_size=192, max_position_embeddings=512,
            rms_norm_eps=1e-6, hidden_act="silu", attention_bias=False, rope_theta=5000000.0, rope_scaling={"mrope_interleaved": True, "mrope_section": [8, 4, 4], "rope_type": "default"}, tie_word_embeddings=True)
VISION = dict(depth=4, hidden_size=16, intermediate_size=32, num_heads=2, out_hidden_size=48, patch_size=PATCH, spatial_merge_size=MERGE, temporal_patch_size=2, in_channels=3, num_position_embeddings=36,
              deepstack_visual_indexes=[0, 2, 3], hidden_act="gelu_pytorch_tanh")
CONFIG = dict(architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl", image_token_id=IMAGE, video_token_id=8, vision_start_token_id=5, vision_end_token_id=6, tie_word_embeddings=True,
              text_config={"model_type": "qwen3_vl_text", **TEXT}, vision_config={"model_type": "qwen3_vl", **VISION})
# Words, and images of so many tokens' lines and columns.
CASES = {"one": [5, (2, 3), 4], "several": [3, (1, 1), 1, (4, 2), 2, (2, 5), 6], "first": [(3, 3), 2], "text": [17]}


def randomize(model, seed):
    rng = np.random.default_rng(seed)
    for name, p in model.named_parameters():
        if p.ndim >= 2:
            value = rng.standard_normal(p.shape) * (1.0 if "embed_tokens" in name or "pos_embed" in name else 1.3 / np.sqrt(np.prod(p.shape[1:])))
        else:
            value = rng.standard_normal(p.shape) * 0.3 + (0 if name.endswith("bias") else 1)
        p.data = torch.from_numpy(value.astype(np.float32).astype(np.float64))


def patches(image):
    """As transformers' processor lays them out: both frames the same, values in [-1, 1]."""
    H, W, _ = image.shape
    h, w = H // PATCH, W // PATCH
    x = (image.astype(np.float64) / 255 - 0.5) / 0.5
    x = x.transpose(2, 0, 1).reshape(3, h // MERGE, MERGE, PATCH, w // MERGE, MERGE, PATCH).transpose(1, 4, 2, 5, 0, 3, 6).reshape(h * w, 3, 1, PATCH, PATCH)
    return np.repeat(x, 2, axis=2).reshape(h * w, -1), [1, h, w]


@torch.no_grad()
def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_pretrained(FOLDER, attn_implementation="eager")).double().eval()
    randomize(model, 1)
    save_file({n: np.ascontiguousarray(p.numpy(), np.float32) for n, p in model.state_dict().items() if n != "lm_head.weight" and "inv_freq" not in n}, FOLDER / "model.safetensors", metadata={"format": "pt"})
    rng, out = np.random.default_rng(2), {}
    for case, pieces in CASES.items():
        ids, images = [], []
        for piece in pieces:
            if isinstance(piece, int):
                ids += rng.integers(9, 192, piece).tolist()
            else:
                side = PATCH * MERGE
                images.append(rng.integers(0, 256, (piece[0] * side, piece[1] * side, 3), np.uint8))
                ids += [IMAGE] * (piece[0] * piece[1])
        ids = torch.tensor([ids])
        seen = [patches(i) for i in images]
        given = dict(pixel_values=torch.from_numpy(np.concatenate([p for p, _ in seen])), image_grid_thw=torch.tensor([g for _, g in seen])) if images else {}
        kinds = (ids == IMAGE).int()
        positions = model.model.get_rope_index(ids, image_grid_thw=given.get("image_grid_thw"), mm_token_type_ids=kinds)[0][:, 0]
        logits = model(input_ids=ids, mm_token_type_ids=kinds, **given).logits[0]
        out |= {f"{case}.ids": ids[0].numpy().astype(np.int32), f"{case}.positions": positions.numpy().astype(np.int32), f"{case}.logits": np.ascontiguousarray(logits.numpy(), np.float32)}
        out |= {f"{case}.image.{k}": i for k, i in enumerate(images)}
        print(case, ids.shape, float(logits.abs().max()))
    save_file(out, FOLDER / "expected.safetensors", metadata={"source": f"transformers {transformers.__version__}, torch {torch.__version__}, float64"})


if __name__ == "__main__":
    main()
