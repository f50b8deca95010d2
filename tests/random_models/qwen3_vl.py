"""Qwen3-VL models nobody wrote down, and prompts in which words and images of any size take turns."""
import json
import random

import numpy as np
from safetensors.numpy import save_file

IMAGE = 3
CONTEXT = 256
MERGE = 2


def draw(seed, device="cpu"):
    r = random.Random(f"qwen3_vl {seed}")
    eighths = lambda least, top: 8 * r.randint(least // 8, top // 8)  # noqa: E731
    vision = [r.choice((1, 2, 3)), r.choice((8, 16, 24, 64)), r.randint(1, 3), eighths(16, 96)]  # heads, head dim, layers, mlp
    kv, group = r.choice((1, 1, 2, 3)), r.choice((1, 2, 2, 3, 4, 8))
    text = [kv * group, kv, r.choice((16, 32, 40, 64, 80, 128)), r.randint(1, 4), eighths(16, 128)]  # heads, kv heads, head dim, layers, mlp
    levels = r.randint(0, min(vision[2], text[3]))
    pairs = text[2] // 2
    case = {"kind": "qwen3_vl", "seed": seed, "precision": r.choice(("f32", "f32", "bf16", "bf16", "w8a16", "fp8")), "patch": r.choice((4, 8, 14, 16)), "grid": r.randint(1, 9), "vision": vision,
            "levels": sorted(r.sample(range(vision[2]), levels)), "text": text, "hidden": eighths(32, 160), "vocab": r.choice((64, 97, 300)), "tied": r.random() < 0.5,
            "sections": [r.randint(0, (pairs + 1) // 3) for _ in range(2)],  # of lines and columns
            "max_batch": r.choice((1, 2, 4, 8, 17)), "chunk": r.choice((16, 64, 128)), "most": r.choice((1, 4, 9, 20))}  # tokens of an image
    case["requests"] = [request(r, case) for _ in range(r.randint(1, 4))]
    return case


def request(r, case):
    """Words by their number, images by lines and columns of tokens: none, one or several, also side by side and at the ends."""
    pieces = [size(r, case) if r.random() < 0.5 else r.choice((1, 2, 3, 9, 17, r.randint(1, 30))) for _ in range(r.randint(1, 7))]
    return {"pieces": pieces if any(isinstance(p, int) for p in pieces) or r.random() < 0.5 else [*pieces, 1], "ids": r.randrange(1 << 16)}


def size(r, case):
    lines = r.randint(1, min(case["most"], 6))
    return [lines, r.randint(1, case["most"] // lines)]


def prompt_of(case, request):
    """(tokens, in which an image is one; images [H, W, 3] u8)."""
    rng, side, tokens, images = np.random.default_rng(request["ids"]), MERGE * case["patch"], [], []
    for piece in request["pieces"]:
        if isinstance(piece, int):
            tokens += rng.integers(IMAGE + 1, case["vocab"], piece).tolist()
        else:
            tokens.append(IMAGE)
            images.append(rng.integers(0, 256, (piece[0] * side, piece[1] * side, 3), np.uint8))
    return tokens, images


def rows_of(case, request):
    """A row a token of a sequence: (token, which image or -1, which of its tokens, time, line, column)."""
    tokens, images = prompt_of(case, request)
    side, rows, now, image = MERGE * case["patch"], [], 0, 0
    for token in tokens:
        if token != IMAGE:
            rows.append((token, -1, 0, now, now, now))
            now += 1
            continue
        lines, columns = images[image].shape[0] // side, images[image].shape[1] // side
        rows += [(IMAGE, image, k, now, now + k // columns, now + k % columns) for k in range(lines * columns)]
        now, image = now + max(lines, columns), image + 1
    return rows


def config(case):
    vh, vd, vl, vm = case["vision"]
    heads, kv, dim, layers, mlp = case["text"]
    lines, columns = case["sections"]
    text = {"model_type": "qwen3_vl_text", "hidden_size": case["hidden"], "intermediate_size": mlp, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim, "vocab_size": case["vocab"],
            "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 5e6, "rope_scaling": {"mrope_interleaved": True, "mrope_section": [dim // 2 - lines - columns, lines, columns], "rope_type": "default"},
            "tie_word_embeddings": case["tied"]}
    vision = {"model_type": "qwen3_vl", "depth": vl, "hidden_size": vh * vd, "intermediate_size": vm, "num_heads": vh, "out_hidden_size": case["hidden"], "patch_size": case["patch"], "spatial_merge_size": MERGE, "temporal_patch_size": 2,
              "num_position_embeddings": case["grid"] ** 2, "deepstack_visual_indexes": case["levels"], "hidden_act": "gelu_pytorch_tanh"}
    return {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "image_token_id": IMAGE, "video_token_id": IMAGE - 1, "vision_start_token_id": 0, "vision_end_token_id": 1,
            "tie_word_embeddings": case["tied"], "text_config": text, "vision_config": vision}


def shapes(case):
    vh, vd, vl, vm = case["vision"]
    heads, kv, dim, layers, mlp = case["text"]
    H, V, p, out = case["hidden"], vh * vd, case["patch"], {}
    visual, language = "model.visual.", "model.language_model."

    def both(name, *shape):
        out[name + ".weight"], out[name + ".bias"] = shape, shape[:1]

    both(visual + "patch_embed.proj", V, 3, 2, p, p)
    out[visual + "pos_embed.weight"] = (case["grid"] ** 2, V)
    for i in range(vl):
        at = f"{visual}blocks.{i}."
        both(at + "norm1", V), both(at + "norm2", V), both(at + "attn.qkv", 3 * V, V), both(at + "attn.proj", V, V), both(at + "mlp.linear_fc1", vm, V), both(at + "mlp.linear_fc2", V, vm)
    for name, width in [("merger", V)] + [(f"deepstack_merger_list.{i}", 4 * V) for i in range(len(case["levels"]))]:
        both(f"{visual}{name}.norm", width), both(f"{visual}{name}.linear_fc1", 4 * V, 4 * V), both(f"{visual}{name}.linear_fc2", H, 4 * V)
    out |= {language + "embed_tokens.weight": (case["vocab"], H), language + "norm.weight": (H,)} | ({} if case["tied"] else {"lm_head.weight": (case["vocab"], H)})
    for i in range(layers):
        at = f"{language}layers.{i}."
        out |= {at + n + ".weight": s for n, s in {"input_layernorm": (H,), "post_attention_layernorm": (H,), "self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,), "self_attn.q_proj": (heads * dim, H), "self_attn.k_proj": (kv * dim, H),
                                                   "self_attn.v_proj": (kv * dim, H), "self_attn.o_proj": (H, heads * dim), "mlp.gate_proj": (mlp, H), "mlp.up_proj": (mlp, H), "mlp.down_proj": (H, mlp)}.items()}
    return out


def write(case, folder):
    rng, out = np.random.default_rng(case["seed"]), {}
    for name, shape in shapes(case).items():
        value = rng.standard_normal(shape)
        if name.endswith(".bias"):
            value *= 0.2
        elif len(shape) == 1:
            value = 1 + 0.2 * value
        else:
            value *= 0.3 if "pos_embed" in name else 1 if "embed_tokens" in name else 1.2 / np.sqrt(np.prod(shape[1:]))
        out[name] = value.astype(np.float32)
    (folder / "config.json").write_text(json.dumps(config(case)))
    save_file(out, folder / "model.safetensors")
    return out


def simpler(case):
    """Cases that say less, boldest first."""
    requests = case["requests"]
    yield from (case | {"requests": requests[:i] + requests[i + 1:]} for i in range(len(requests)) if len(requests) > 1)
    for key, value in (("precision", "f32"), ("levels", []), ("sections", [0, 0]), ("tied", True), ("max_batch", 1), ("patch", 4), ("grid", 1), ("hidden", 32), ("vocab", 64), ("chunk", 16)):
        if case[key] != value:
            yield case | {key: value}
    for key, at in (("vision", 2), ("text", 3)):
        if case[key][at] > 1:
            less = case[key][:at] + [case[key][at] - 1] + case[key][at + 1:]
            yield case | {key: less, "levels": [n for n in case["levels"] if n < less[2]] if key == "vision" else case["levels"][:less[3]]}
    for i, one in enumerate(requests):
        less = [one["pieces"][:k] + one["pieces"][k + 1:] for k in range(len(one["pieces"])) if len(one["pieces"]) > 1]
        less += [one["pieces"][:k] + [1 if isinstance(p, int) else [1, 1]] + one["pieces"][k + 1:] for k, p in enumerate(one["pieces"]) if p not in (1, [1, 1])]
        yield from (case | {"requests": requests[:i] + [one | {"pieces": pieces}] + requests[i + 1:]} for pieces in less)
