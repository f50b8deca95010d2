"""GR00T policies nobody wrote down, as policy.py has openpi's."""
import json
import random

import numpy as np
from safetensors.numpy import save_file

from tests.reference.groot_numpy import Groot, Groot16

IMAGE = 3
ACTIONS = {"state_encoder.layer1": ("S", "F"), "state_encoder.layer2": ("F", "D"), "action_encoder.W1": ("A", "D"), "action_encoder.W2": ("2D", "D"), "action_encoder.W3": ("D", "D"),
           "action_decoder.layer1": ("O", "F"), "action_decoder.layer2": ("F", "A")}


def draw(seed, device="cpu"):
    r = random.Random(f"groot {seed}")
    eighths = lambda least, top: 8 * r.randint(least // 8, top // 8)  # noqa: E731
    vision = [r.choice((1, 2, 3)), r.choice((8, 16, 24, 64)), r.randint(1, 3), eighths(16, 96)]  # heads, head dim, layers, mlp
    adapter = [r.choice((1, 2, 4)), r.choice((16, 32, 64))]
    case = {"kind": "groot", "seed": seed, "precision": r.choice(("f32", "bf16", "fp8")), "patch": r.choice((4, 8, 14, 16)), "grid": r.randint(1, 9), "vision": vision, "levels": sorted(r.sample(range(vision[2]), r.randint(0, vision[2]))),
            "adapter": [*adapter, r.choice((0, 1, 2))], "text": [*r.choice(((4, 2), (2, 2), (4, 1), (3, 1), (8, 2))), r.choice((16, 32, 64)), r.randint(1, 4), eighths(16, 128)], "vocab": r.choice((64, 300)),
            "dit": [r.choice((1, 2, 3)), r.choice((16, 32, 48)), r.randint(1, 6)], "text_every": r.choice((1, 2, 2, 3)), "out": eighths(16, 64), "hidden": eighths(16, 64), "state_dim": r.choice((1, 7, 29, 32)),
            "action_dim": r.choice((1, 7, 8, 29, 33)), "horizon": r.choice((1, 2, 7, 16, 31, 40, 50)), "steps": r.choice((1, 2, 3, 4, 7)), "buckets": r.choice((10, 1000)), "embodiments": r.randint(1, 3), "one": r.random() < 0.25,
            "views": r.randint(1, 3), "batch": r.choice((1, 2, 2, 3)), "words": r.choice((1, 8, 21)), "side": r.randint(1, 4)}
    pairs = case["text"][2] // 2
    case["sections"] = [r.randint(0, (pairs + 1) // 3) for _ in range(2)]  # of lines and columns
    case["observations"] = [observation(r, case) for _ in range(case["batch"] + r.randint(0, 2))]
    case["n16"] = r.random() < 0.4
    return case | ({"levels": [], "sections": [0, 0], "adapter": [*adapter, 0]} if case["n16"] else {})


def observation(r, case):
    on = [r.random() < 0.75 for _ in range(case["views"])]
    if not any(on):
        on[0] = True
    sizes = [[r.randint(1, case["side"]), r.randint(1, case["side"])] if o else None for o in on]
    out = {"seed": r.randrange(1 << 16), "sizes": sizes, "words": r.randint(1, case["words"]), "embodiment": 0 if case["one"] else r.randrange(case["embodiments"]), "state": r.randint(1, case["state_dim"])}
    if r.random() < 0.3:
        overlap = r.randint(1, case["horizon"])
        out |= {"overlap": overlap, "frozen": r.randint(0, overlap)}
    return out


def given(case, o):
    """What load_policy's predict() takes."""
    rng, side = np.random.default_rng(o["seed"]), 2 * case["patch"]
    frames = [None if s is None else rng.integers(0, 256, (s[0] * side, s[1] * side, 3), np.uint8) for s in o["sizes"]]
    words = rng.integers(4, case["vocab"], o["words"]).tolist()
    at = sorted(rng.integers(0, o["words"] + 1, sum(f is not None for f in frames)).tolist(), reverse=True)
    for i in at:
        words.insert(i, IMAGE)
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    return dict(frames=frames, tokens=words, state=normal(o["state"]), noise=normal(case["horizon"], case["action_dim"]), seed=0, end_token=1, action_prefix=None, embodiment=o["embodiment"],
                prev_actions=normal(case["horizon"], case["action_dim"]) if "overlap" in o else None, overlap=o.get("overlap", 0), frozen=o.get("frozen", 0))


def config(case):
    vh, vd, vl, vm = case["vision"]
    ah, ad, al = case["adapter"]
    heads, kv, dim, layers, mlp = case["text"]
    dh, dd, dl = case["dit"]
    stack = lambda h, d, n: {"num_layers": n, "num_attention_heads": h, "attention_head_dim": d}  # noqa: E731
    lines, columns = case["sections"]
    text = {"hidden_size": ah * ad, "intermediate_size": mlp, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim, "vocab_size": case["vocab"], "rms_norm_eps": 1e-6}
    if case["n16"]:
        backbone = {"image_token_id": IMAGE, "text": text | {"rope_theta": 1e6},
                    "vision": {"num_hidden_layers": vl, "hidden_size": vh * vd, "intermediate_size": vm, "num_attention_heads": vh, "num_patches": case["grid"] ** 2, "patch_size": case["patch"]}}
    else:
        backbone = {"image_token_id": IMAGE, "text": text | {"rope_theta": 5e6, "mrope_section": [dim // 2 - lines - columns, lines, columns]},
                    "vision": {"depth": vl, "hidden_size": vh * vd, "intermediate_size": vm, "num_heads": vh, "num_position_embeddings": case["grid"] ** 2, "deepstack_visual_indexes": case["levels"],
                               "patch_size": case["patch"], "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": ah * ad}}
    return {"model_type": "Gr00tN1d6" if case["n16"] else "Gr00tN1d7", "backbone_embedding_dim": ah * ad, "select_layer": layers, "max_state_dim": case["state_dim"], "max_action_dim": case["action_dim"], "action_horizon": case["horizon"],
            "hidden_size": case["hidden"], "input_embedding_dim": dh * dd, "max_seq_len": 64, "max_num_embodiments": case["embodiments"], "diffusion_model_cfg": stack(dh, dd, dl) | {"output_dim": case["out"]},
            "vl_self_attention_cfg": stack(ah, ad, al) if al else None, "attend_text_every_n_blocks": case["text_every"], "num_inference_timesteps": case["steps"], "num_timestep_buckets": case["buckets"],
            "image_target_size": [2 * case["patch"] * case["side"]] * 2, "backbone": backbone}


def shapes(case):
    vh, vd, vl, vm = case["vision"]
    heads, kv, dim, layers, mlp = case["text"]
    H, V, D, p, out = case["adapter"][0] * case["adapter"][1], vh * vd, case["dit"][0] * case["dit"][1], case["patch"], {}
    visual, language, head = "backbone.model.model.visual.", Groot16.language_at if case["n16"] else Groot.language_at, "action_head."

    def both(name, *shape):
        out[name + ".weight"], out[name + ".bias"] = shape, shape[:1]

    if case["n16"]:
        visual = "backbone.model.vision_model.vision_model."
        both(visual + "embeddings.patch_embedding", V, 3 * p * p), both(visual + "post_layernorm", V)
        out[visual + "embeddings.position_embedding.weight"] = (case["grid"] ** 2, V)
        for i in range(vl):
            at = f"{visual}encoder.layers.{i}."
            both(at + "layer_norm1", V), both(at + "layer_norm2", V), both(at + "mlp.fc1", vm, V), both(at + "mlp.fc2", V, vm)
            for n in ("q_proj", "k_proj", "v_proj", "out_proj"):
                both(f"{at}self_attn.{n}", V, V)
        both("backbone.model.mlp1.0", 4 * V), both("backbone.model.mlp1.1", H, 4 * V), both("backbone.model.mlp1.3", H, H)
        out[language + "norm.weight"] = (H,)
    else:
        both(visual + "patch_embed.proj", V, 3, 2, p, p)
        out[visual + "pos_embed.weight"] = (case["grid"] ** 2, V)
        for i in range(vl):
            at = f"{visual}blocks.{i}."
            both(at + "norm1", V), both(at + "attn.qkv", 3 * V, V), both(at + "attn.proj", V, V), both(at + "norm2", V), both(at + "mlp.linear_fc1", vm, V), both(at + "mlp.linear_fc2", V, vm)
        for name, n in (("merger", V), *((f"deepstack_merger_list.{i}", 4 * V) for i in range(len(case["levels"])))):
            both(f"{visual}{name}.norm", n), both(f"{visual}{name}.linear_fc1", 4 * V, 4 * V), both(f"{visual}{name}.linear_fc2", H, 4 * V)
    out[language + "embed_tokens.weight"] = (case["vocab"], H)
    for i in range(layers):
        at = f"{language}layers.{i}."
        for n, shape in (("self_attn.q_proj", (heads * dim, H)), ("self_attn.k_proj", (kv * dim, H)), ("self_attn.v_proj", (kv * dim, H)), ("self_attn.o_proj", (H, heads * dim)), ("mlp.gate_proj", (mlp, H)), ("mlp.up_proj", (mlp, H)),
                         ("mlp.down_proj", (H, mlp)), ("self_attn.q_norm", (dim,)), ("self_attn.k_norm", (dim,)), ("input_layernorm", (H,)), ("post_attention_layernorm", (H,))):
            out[f"{at}{n}.weight"] = shape

    def block(at, width, keys):
        both(at + "attn1.to_q", width, width), both(at + "attn1.to_k", width, keys), both(at + "attn1.to_v", width, keys), both(at + "attn1.to_out.0", width, width)
        both(at + "ff.net.0.proj", 4 * width, width), both(at + "ff.net.2", width, 4 * width)

    both(head + "vlln", H)
    for i in range(case["adapter"][2]):
        at = f"{head}vl_self_attention.transformer_blocks.{i}."
        block(at, H, H), both(at + "norm1", H), both(at + "norm3", H)
    for i in range(case["dit"][2]):
        at = f"{head}model.transformer_blocks.{i}."
        block(at, D, D if i % 2 else H), both(at + "norm1.linear", 2 * D, D)
    both(head + "model.timestep_encoder.timestep_embedder.linear_1", D, 256), both(head + "model.timestep_encoder.timestep_embedder.linear_2", D, D)
    both(head + "model.proj_out_1", 2 * D, D), both(head + "model.proj_out_2", case["out"], D)
    out[head + "position_embedding.weight"] = (64, D)
    sizes = {"S": case["state_dim"], "F": case["hidden"], "D": D, "2D": 2 * D, "A": case["action_dim"], "O": case["out"]}
    for name, (k, n) in ACTIONS.items():
        out[f"{head}{name}.W"], out[f"{head}{name}.b"] = (case["embodiments"], sizes[k], sizes[n]), (case["embodiments"], sizes[n])
    return out


def write(case, folder):
    rng, out = np.random.default_rng(case["seed"]), {}
    for name, shape in shapes(case).items():
        value = rng.standard_normal(shape)
        if name.endswith(".W"):
            value /= np.sqrt(shape[1])
        elif name.endswith((".b", ".bias")):
            value *= 0.2
        elif len(shape) == 1:
            value = 1 + 0.2 * value
        else:
            value *= 0.3 if "pos_embed" in name or "position" in name else 1 if "embed_tokens" in name else 1.2 / np.sqrt(np.prod(shape[1:]))
        out[name] = value.astype(np.float32)
    (folder / "config.json").write_text(json.dumps(config(case)))
    save_file(out, folder / "model.safetensors")
    return out


def simpler(case):
    seen = case["observations"]
    for i in range(len(seen)):
        if len(seen) > 1:
            yield case | {"observations": seen[:i] + seen[i + 1:]}
    without = [{k: v for k, v in o.items() if k not in ("overlap", "frozen")} for o in seen]
    if without != seen:
        yield case | {"observations": without}
    for key, value in (("precision", "f32"), ("batch", 1), ("steps", 1), ("horizon", 1), ("action_dim", 1), ("patch", 4), ("grid", 1), ("levels", []), ("text_every", 2), ("buckets", 1000), ("sections", [0, 0])):
        if case[key] != value:
            yield case | {key: value, "observations": without if key == "horizon" else seen}
    for key, at in (("vision", 2), ("text", 3), ("adapter", 2), ("dit", 2)):
        if case[key][at] > (key != "adapter"):
            less = case[key][:at] + [case[key][at] - 1] + case[key][at + 1:]
            yield case | {key: less, "levels": [n for n in case["levels"] if n < less[2]] if key == "vision" else case["levels"]}
    if case["views"] > 1:
        yield case | {"views": 1, "observations": [o | {"sizes": [next(s for s in o["sizes"] if s)]} for o in seen]}
    for i, o in enumerate(seen):
        for change in ({"words": 1}, {"sizes": [s and [1, 1] for s in o["sizes"]]}, {"embodiment": 0}, {"state": 1}):
            if o | change != o:
                yield case | {"observations": seen[:i] + [o | change] + seen[i + 1:]}
