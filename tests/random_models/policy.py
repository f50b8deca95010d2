"""Robot policies nobody wrote down, as text.py has language models."""
import json
import random

import numpy as np
from safetensors.numpy import save_file

JOINT = "paligemma_with_expert."


def draw(seed, device="cpu"):
    r = random.Random(f"policy {seed}")
    family = r.choice(("pi05", "pi05", "pi0", "pi0fast"))
    eighths = lambda least, top: 8 * r.randint(least // 8, top // 8)  # noqa: E731
    vision_heads, vision_dim = r.choice((1, 2, 3, 4)), r.choice((16, 24, 32, 64, 72))
    case = {"kind": "policy", "seed": seed, "family": family, "precision": r.choice(("f32", "f32", "bf16", "bf16", "fp8")), "patch": r.choice((8, 14, 14, 16)), "side": r.randint(2, 6),
            "vision": [vision_heads * vision_dim, r.randint(1, 2), eighths(32, 160), vision_heads, vision_heads, vision_dim],  # width, layers, mlp, heads, kv heads, head dim
            "text": [eighths(32, 128), r.randint(1, 3), eighths(32, 192), *r.choice(((8, 1), (4, 1), (4, 2), (6, 2), (1, 1), (8, 8), (16, 1))), r.choice((16, 32, 64, 72, 128))],
            "vocab": r.choice((128 + 64, 300, 511)), "views": r.randint(1, 3), "batch": r.choice((1, 2, 2, 3, 5)), "words": r.choice((8, 20, 33)), "action_dim": r.choice((1, 7, 8, 32, 32, 33)),
            "horizon": r.choice((1, 2, 7, 10, 15, 16, 31, 32, 33, 50, 63, 64, 65)), "steps": r.randint(1, 4)}
    # The engine counts times from a width's half: even, and at least 4.
    case["expert"] = [eighths(32, 96), case["text"][1], eighths(32, 128), r.choice((case["text"][3], case["text"][4])), *case["text"][4:]]
    case["observations"] = [observation(r, case) for _ in range(case["batch"] + r.randint(0, 2))]
    r = random.Random(f"policy, static {seed}")  # apart, so that the other cases are what they were
    if family == "pi05" and r.random() < 0.35:
        case |= {"precision": "fp8_static", "expert_reads": r.choice(("bf16", "e4m3", "e4m3"))}
    return case


def observation(r, case):
    on = [r.random() < 0.75 for _ in range(case["views"])]
    if r.random() < 0.5 or not any(on):
        on = [True] * case["views"]
    out = {"seed": r.randrange(1 << 16), "on": on, "words": r.choice((0, 1, case["words"], r.randint(0, case["words"])))}
    if case["family"] == "pi05" and case["horizon"] > 1 and r.random() < 0.25:
        out["frozen"] = r.randint(1, case["horizon"] - 1)
    return out


def given(case, o):
    """What load_policy's predict() takes."""
    rng, side = np.random.default_rng(o["seed"]), case["side"] * case["patch"]
    frames = [rng.integers(0, 256, (side, side, 3), np.uint8) for _ in o["on"]]
    noise = rng.standard_normal((case["horizon"], case["action_dim"])).astype(np.float32)
    state = rng.standard_normal(case["action_dim"]).astype(np.float32) if case["family"] == "pi0" else None
    frozen = rng.standard_normal((o["frozen"], case["action_dim"])).astype(np.float32) if o.get("frozen") else None
    words = rng.integers(0, case["vocab"], o["words"]).tolist() + ([2] if case["family"] == "pi0fast" else [])
    return dict(frames=[f if on else None for f, on in zip(frames, o["on"])], tokens=words, state=state, noise=None if case["family"] == "pi0fast" else noise, seed=0, end_token=-1, action_prefix=frozen)


def config(case):
    tower = lambda t: dict(zip(("width", "depth", "mlp_dim", "num_heads", "num_kv_heads", "head_dim"), t))  # noqa: E731
    vision = {k: v for k, v in tower(case["vision"]).items() if k not in ("num_kv_heads", "head_dim")}
    return {"text": tower(case["text"]), "expert": tower(case["expert"]), "vision": vision | {"image_size": case["side"] * case["patch"], "patch_size": case["patch"]}, "action_dim": case["action_dim"],
            "state_dim": case["action_dim"]}


def shapes(case):
    (VH, VL, VM, *_), (H, L, M, heads, kv, dim), (EH, _, EM, eheads, *_) = case["vision"], case["text"], case["expert"]
    D, p, vision, text, expert = case["action_dim"], case["patch"], JOINT + "paligemma.model.vision_tower.vision_model.", JOINT + "paligemma.model.language_model.", JOINT + "gemma_expert.model."
    out = {}

    def both(name, *shape):
        out[name + ".weight"], out[name + ".bias"] = shape, shape[:1]

    def layer(at, H, M, heads, adaptive):
        out.update({f"{at}self_attn.q_proj.weight": (heads * dim, H), f"{at}self_attn.k_proj.weight": (kv * dim, H), f"{at}self_attn.v_proj.weight": (kv * dim, H), f"{at}self_attn.o_proj.weight": (H, heads * dim),
                    f"{at}mlp.gate_proj.weight": (M, H), f"{at}mlp.up_proj.weight": (M, H), f"{at}mlp.down_proj.weight": (H, M)})
        for n in ("input_layernorm", "post_attention_layernorm"):
            both(f"{at}{n}.dense", 3 * H, H) if adaptive else out.update({f"{at}{n}.weight": (H,)})

    both(vision + "embeddings.patch_embedding", VH, 3, p, p)
    out[vision + "embeddings.position_embedding.weight"] = (case["side"] ** 2, VH)
    for i in range(VL):
        at = f"{vision}encoder.layers.{i}."
        for n in "qkv":
            both(f"{at}self_attn.{n}_proj", VH, VH)
        both(at + "self_attn.out_proj", VH, VH)
        both(at + "mlp.fc1", VM, VH), both(at + "mlp.fc2", VH, VM)
        both(at + "layer_norm1", VH), both(at + "layer_norm2", VH)
    both(vision + "post_layernorm", VH)
    both(JOINT + "paligemma.model.multi_modal_projector.linear", H, VH)
    out[JOINT + "paligemma.lm_head.weight"] = (case["vocab"], H)
    for i in range(L):
        layer(f"{text}layers.{i}.", H, M, heads, False)
    out[text + "norm.weight"] = (H,)
    if case["family"] == "pi0fast":
        return out
    adaptive = case["family"] == "pi05"
    for i in range(L):
        layer(f"{expert}layers.{i}.", EH, EM, eheads, adaptive)
    both("action_in_proj", EH, D), both("action_out_proj", D, EH)
    if adaptive:
        both(expert + "norm.dense", 3 * EH, EH), both("time_mlp_in", EH, EH), both("time_mlp_out", EH, EH)
    else:
        out[expert + "norm.weight"] = (EH,)
        both("state_proj", EH, D), both("action_time_mlp_in", EH, 2 * EH), both("action_time_mlp_out", EH, EH)
    return out


def write(case, folder):
    rng, out = np.random.default_rng(case["seed"]), {}
    for name, shape in shapes(case).items():
        if len(shape) > 1:
            value = rng.standard_normal(shape) * (1.2 / np.sqrt(np.prod(shape[1:])) if "position" not in name else 0.3)
        else:
            value = 0.2 * rng.standard_normal(shape) + (1 if "layer_norm" in name or "post_layernorm" in name else 0) * name.endswith("weight")
        out[name] = value.astype(np.float32)
    (folder / "config.json").write_text(json.dumps(config(case)))
    save_file(out, folder / "model.safetensors")
    return out


def simpler(case):
    seen = case["observations"]
    for i in range(len(seen)):
        if len(seen) > 1:
            yield case | {"observations": seen[:i] + seen[i + 1:]}
    if case.get("expert_reads") == "e4m3":
        yield case | {"expert_reads": "bf16"}
    for key, value in (("precision", "f32"), ("batch", 1), ("steps", 1), ("horizon", 1), ("action_dim", 1), ("side", 2), ("patch", 8), ("vocab", 192)):
        if case[key] != value:
            at = [{k: v for k, v in o.items() if k != "frozen"} for o in seen] if key == "horizon" else seen
            yield case | {key: value, "observations": at}
    for key, value in (("horizon", case["horizon"] // 2), ("batch", case["batch"] - 1)):
        if value > 0:
            yield case | {key: value, "observations": [o | ({"frozen": min(o["frozen"], value - 1)} if "frozen" in o and key == "horizon" else {}) for o in seen]}
    if case["views"] > 1:
        yield case | {"views": 1, "observations": [o | {"on": [True]} for o in seen]}
    for less in ([case["text"][0], 1, *case["text"][2:]], [32, case["text"][1], 32, *case["text"][3:]], [*case["text"][:3], 1, 1, 16]):
        if less != case["text"]:
            yield case | {"text": less, "expert": [*case["expert"][:1], less[1], *case["expert"][2:3], less[3], *less[4:]]}
    for less in ([16, 1, 32, 1, 1, 16], [case["vision"][0], 1, *case["vision"][2:]]):
        if less != case["vision"]:
            yield case | {"vision": less}
    for i, o in enumerate(seen):
        for change in ({"words": 0}, {"words": o["words"] // 2}, {"on": [True] * case["views"]}):
            if o | change != o:
                yield case | {"observations": seen[:i] + [o | change] + seen[i + 1:]}
        if "frozen" in o:
            yield case | {"observations": seen[:i] + [{k: v for k, v in o.items() if k != "frozen"}] + seen[i + 1:]}
