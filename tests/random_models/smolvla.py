"""SmolVLAs nobody wrote down, as policy.py has openpi's policies."""
import random

import numpy as np

from tests.random_models import checkpoint

TOP = "model.vlm_with_expert."


def draw(seed, device="cpu"):
    r = random.Random(f"smolvla {seed}")
    eighths = lambda least, top: 8 * r.randint(least // 8, top // 8)  # noqa: E731
    heads, dim = r.choice((1, 2, 3)), r.choice((16, 24, 32, 64))
    layers, kv = r.randint(1, 4), r.choice(((3, 1), (4, 2), (2, 2), (1, 1), (15, 5), (8, 1)))
    case = {"kind": "smolvla", "seed": seed, "precision": r.choice(("f32", "f32", "bf16")), "patch": r.choice((4, 8, 14, 16)), "shuffle": r.choice((1, 2, 3, 4)), "squares": r.randint(1, 3),
            "vision": [heads * dim, r.randint(1, 2), eighths(32, 128), heads], "text": [eighths(32, 128), layers, eighths(32, 160), *kv, r.choice((16, 32, 64))], "expert": [eighths(16, 96), eighths(32, 128)], "every": r.choice((0, 1, 2, 2, 3)),
            "vocab": r.choice((64, 300)), "views": r.randint(1, 3), "batch": r.choice((1, 2, 2, 3)), "words": r.choice((1, 8, 21)), "state_dim": r.choice((1, 6, 7, 32)), "action_dim": r.choice((1, 7, 8, 32, 33)),
            "horizon": r.choice((1, 2, 7, 10, 16, 31, 33, 50)), "steps": r.randint(1, 4)}
    case["observations"] = [observation(r, case) for _ in range(case["batch"] + r.randint(0, 2))]
    return case


def observation(r, case):
    on = [r.random() < 0.75 for _ in range(case["views"])]
    if not any(on):
        on[0] = True
    return {"seed": r.randrange(1 << 16), "on": on, "words": r.randint(1, case["words"]), "state": r.randint(1, case["state_dim"])}


def given(case, o):
    """What load_policy's predict() takes."""
    rng, side = np.random.default_rng(o["seed"]), case["squares"] * case["shuffle"] * case["patch"]
    frames = [rng.integers(0, 256, (side, side, 3), np.uint8) if on else None for on in o["on"]]
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    return dict(frames=frames, tokens=rng.integers(0, case["vocab"], o["words"]).tolist(), state=normal(o["state"]), noise=normal(case["horizon"], case["action_dim"]), seed=0, end_token=1, action_prefix=None)


def config(case):
    width, depth, mlp, heads = case["vision"]
    H, layers, M, q, kv, dim = case["text"]
    E, EM = case["expert"]
    side, llama = case["squares"] * case["shuffle"] * case["patch"], {"depth": layers, "num_heads": q, "num_kv_heads": kv, "head_dim": dim}
    return {"type": "smolvla", "chunk_size": case["horizon"], "max_state_dim": case["state_dim"], "max_action_dim": case["action_dim"], "num_steps": case["steps"], "num_vlm_layers": layers, "self_attn_every_n_layers": case["every"],
            "resize_imgs_with_padding": [side, side], "vision": {"width": width, "depth": depth, "mlp_dim": mlp, "num_heads": heads, "image_size": side, "patch_size": case["patch"], "scale_factor": case["shuffle"]},
            "text": llama | {"width": H, "mlp_dim": M}, "expert": llama | {"width": E, "mlp_dim": EM}}


def shapes(case):
    width, depth, mlp, _ = case["vision"]
    H, layers, M, q, kv, dim = case["text"]
    E, EM = case["expert"]
    S, D, s, vision, text, expert = case["state_dim"], case["action_dim"], case["shuffle"], TOP + "vlm.model.vision_model.", TOP + "vlm.model.text_model.", TOP + "lm_expert."
    out = {}

    def both(name, *shape):
        out[name + ".weight"], out[name + ".bias"] = shape, shape[:1]

    both(vision + "embeddings.patch_embedding", width, 3, case["patch"], case["patch"])
    out[vision + "embeddings.position_embedding.weight"] = ((case["squares"] * s) ** 2, width)
    for i in range(depth):
        at = f"{vision}encoder.layers.{i}."
        for n in "qkv":
            both(f"{at}self_attn.{n}_proj", width, width)
        both(at + "self_attn.out_proj", width, width), both(at + "mlp.fc1", mlp, width), both(at + "mlp.fc2", width, mlp), both(at + "layer_norm1", width), both(at + "layer_norm2", width)
    both(vision + "post_layernorm", width)
    out[TOP + "vlm.model.connector.modality_projection.proj.weight"] = (H, width * s * s)
    out[text + "embed_tokens.weight"] = (case["vocab"], H)
    for at, W, inner in ((text, H, M), (expert, E, EM)):
        for i in range(layers):
            keys = kv * dim if at == expert and not (case["every"] and i % case["every"] == 0) else W
            for n, shape in (("self_attn.q_proj", (q * dim, W)), ("self_attn.k_proj", (kv * dim, keys)), ("self_attn.v_proj", (kv * dim, keys)), ("self_attn.o_proj", (W, q * dim)), ("mlp.gate_proj", (inner, W)), ("mlp.up_proj", (inner, W)),
                             ("mlp.down_proj", (W, inner)), ("input_layernorm", (W,)), ("post_attention_layernorm", (W,))):
                out[f"{at}layers.{i}.{n}.weight"] = shape
        out[at + "norm.weight"] = (W,)
    both("model.state_proj", H, S), both("model.action_in_proj", E, D), both("model.action_out_proj", D, E), both("model.action_time_mlp_in", E, 2 * E), both("model.action_time_mlp_out", E, E)
    return out


def write(case, folder):
    return checkpoint.write(case["seed"], shapes(case), config(case), folder)


def simpler(case):
    seen = case["observations"]
    for i in range(len(seen)):
        if len(seen) > 1:
            yield case | {"observations": seen[:i] + seen[i + 1:]}
    for key, value in (("precision", "f32"), ("batch", 1), ("steps", 1), ("horizon", 1), ("action_dim", 1), ("patch", 4), ("shuffle", 1), ("squares", 1), ("every", 1), ("vocab", 64)):
        if case[key] != value:
            yield case | {key: value}
    for less in ([*case["text"][:1], 1, *case["text"][2:]], [32, case["text"][1], 32, *case["text"][3:]], [*case["text"][:3], 1, 1, 16]):
        if less != case["text"]:
            yield case | {"text": less}
    for key, less in (("vision", [16, 1, 32, 1]), ("expert", [16, 32])):
        if case[key] != less:
            yield case | {key: less}
    if case["views"] > 1:
        yield case | {"views": 1, "observations": [o | {"on": [True]} for o in seen]}
    for i, o in enumerate(seen):
        for change in ({"words": 1}, {"on": [True] * case["views"]}, {"state": 1}):
            if o | change != o:
                yield case | {"observations": seen[:i] + [o | change] + seen[i + 1:]}
