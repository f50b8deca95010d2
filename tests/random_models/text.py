"""Language models nobody wrote down: a case is a small dict of numbers, from which checkpoint, prompts and requests follow."""
import json
import random

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from tests.random_models import e4m3
from tests.test_nvfp4 import SCHEMES, apart, quantized, values_of

FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "gemma3_text": "Gemma3ForCausalLM", "mixtral": "MixtralForCausalLM",
            "qwen3_moe": "Qwen3MoeForCausalLM", "gpt2": "GPT2LMHeadModel"}
HYBRIDS = {"qwen3_5_text": "Qwen3_5ForCausalLM", "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM", "qwen3_next": "Qwen3NextForCausalLM"}
EXPERTS = ("mixtral", "qwen3_moe", "qwen3_5_moe_text", "qwen3_next")
DIMS = (32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256)
GREEDY = {}
WHOLE = np.float32(2**-9)  # scale of a whole FP4 matrix
CONTEXT = 256
PAGE = 64


def draw(seed, device="cpu", crowd=False, hybrid=False):
    """The case of a seed. `crowd`: 40 sequences on heads in groups of 8 and 16, several of them. `hybrid`: layers with a recurrent state."""
    r = random.Random(f"text {seed} {'hybrid' if hybrid else crowd}")
    most = r.choice((512, 1024, 2048)) if device == "cpu" else 4096  # values of all query heads
    family = r.choice(["llama", "qwen3", "qwen2"] if crowd else ["qwen3_5_text", "qwen3_5_moe_text"] if hybrid else list(FAMILIES))
    if family == "qwen3_5_moe_text" and random.Random(f"next {seed}").random() < 0.5:
        family = "qwen3_next"
    while True:
        dim = r.choice(DIMS)
        group = r.choice((8, 16)) if crowd else r.choice((1, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16))
        kv = r.choice((2, 4)) if crowd else r.choice((1, 1, 2, 2, 3, 4, 8, 16))
        if family == "gpt2":
            group = 1
        if group * kv <= 64 and group * kv * dim <= most and (not crowd or group * kv <= 32):
            break
    precision = r.choice(("f32", "f32", "bf16", "bf16", "bf16", "w8a16", "fp8", "int4"))
    if group * kv * dim % 32 and precision == "int4":
        precision = "bf16"
    unit = 32 if precision == "int4" else 8 if r.random() < 0.5 else 16
    width = lambda least, top: unit * r.randint(-(-least // unit), top // unit)  # noqa: E731
    case = {"kind": "text", "seed": seed, "family": family, "layers": r.choice((2, 2, 3, 4)), "kv": kv, "group": group, "dim": dim, "hidden": width(32, 160), "mlp": width(32, 224),
            "vocab": r.choice((97, 128, 193, 256, 509)), "tied": r.random() < 0.5, "precision": precision, "kv_dtype": "auto" if precision != "f32" else r.choice(("f32", "f32", "f16")),
            "max_batch": 40 if crowd else r.choice((1, 2, 3, 4, 7, 8, 9, 16, 17)), "chunk": r.choice((16, 64, 128)), "paged": r.random() < 0.4, "ahead": r.choice((0, 1, 3))}
    if r.random() < 0.1:
        case["kv_dtype"] = "e4m3"
    if hybrid:
        k_heads, wide = r.choice((1, 2, 3, 4)), 32 if precision == "int4" else 1
        case |= {"paged": case["paged"] and device == "cpu", "linear": {"k_heads": k_heads, "v_heads": k_heads * r.choice((1, 1, 2, 3, 4)), "k_dim": r.choice((1, 8, 12, 16, 33, 64, 96, 128)), "v_dim": wide * r.choice((1, 2, 3, 4)) if wide > 1 else r.choice((1, 8, 16, 20, 33, 64, 128)),
                                            "taps": r.choice((2, 3, 4, 4, 4, 5))}, "interval": r.choice((1, 2, 2, 3)), "part": r.choice((0.25, 0.25, 0.5, 1.0))}
    elif family not in ("gpt2", "gemma3_text"):
        case["rope"] = r.choice((None, None, {"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
                                 {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}))
    if family == "gemma3_text":
        case |= {"window": r.choice((1, 2, 7, 8, 9, 16, 31, 64, 65)), "pattern": r.choice((1, 2, 3, 6))}
    if family in EXPERTS:
        experts = r.choice((2, 4, 5, 8, 16))
        case |= {"experts": experts, "used": r.randint(1, min(experts, 4)), "renormalize": r.random() < 0.5}
    if hybrid:
        stored(random.Random(f"stored {seed}"), case)
    if family != "gpt2" and not case.get("stored") and (r8 := random.Random(f"e4m3 {seed}")).random() < 0.25:
        case |= {"stored": r8.choice(e4m3.LAYOUTS), "precision": "native" if case["precision"] == "bf16" and r8.random() < 0.5 else case["precision"]}
    case["requests"] = [request(r, case) for _ in range(40 if crowd else r.randint(1, min(12, 2 * case["max_batch"] + 2)))]
    if hybrid and family in EXPERTS:
        case["shared"] = r.choice((case["mlp"], case["hidden"]))  # as wide as the others: with 16-bit weights one of them
    return case


def stored(r, case):
    """Some hybrids are FP4 on disk, some calibrated; some e4m3 caches come with scales."""
    how = r.choice((None, None, None, "fp8_static", *SCHEMES))
    if how in SCHEMES:
        case |= {"stored": how, "precision": r.choice(("f32", "bf16", "native"))}
    elif how:
        case |= {"precision": how, "input_scales": random.Random(f"inputs {case['seed']}").random() < 0.5}
    if case["kv_dtype"] != "e4m3" and r.random() < 0.9:
        case["kv_dtype"] = "f32" if case["precision"] == "f32" else "auto"
    else:
        case |= {"kv_dtype": "e4m3", "kv_scales": r.random() < 0.7}


def request(r, case):
    chunk = case["chunk"]
    prompt = r.choice((1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, chunk - 1, chunk, chunk + 1, PAGE - 1, PAGE, PAGE + 1, r.randint(1, 150), r.randint(1, 150)))
    if case["max_batch"] == 40:
        prompt = r.randint(1, 70)
    ways = (GREEDY, GREEDY, {"temperature": 0.8}, {"temperature": 1.2, "top_k": 5}, {"temperature": 1.0, "top_p": 0.7, "repetition": 1.3}, {"repetition": 1.4, "presence": 0.5},
            {"temperature": 1.1, "min_p": 0.1, "frequency": 0.4})
    out = {"prompt": prompt, "tokens": r.choice((1, 2, 5, 8, 12, 20)), "ids": r.randrange(1 << 16), "sampling": dict(r.choice(ways))}
    if "temperature" in out["sampling"]:
        out["sampling"]["seed"] = r.randrange(1000)
    if r.random() < 0.4:
        out["arrives"] = r.randint(1, 12)  # before this step
    if r.random() < 0.1:
        out["cancelled"] = r.randint(1, 6)  # once so many tokens are there
    return out


def ids_of(case, request):
    return np.random.default_rng(request["ids"]).integers(0, case["vocab"], request["prompt"]).tolist()


def config(case):
    heads = case["kv"] * case["group"]
    c = {"model_type": case["family"], "architectures": [(FAMILIES | HYBRIDS)[case["family"]]], "vocab_size": case["vocab"], "torch_dtype": "float32"}
    if case["family"] == "gpt2":
        return c | {"n_embd": heads * case["dim"], "n_layer": case["layers"], "n_head": heads, "n_positions": CONTEXT, "n_inner": case["mlp"], "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
    c |= {"hidden_size": case["hidden"], "intermediate_size": case["mlp"], "num_hidden_layers": case["layers"], "num_attention_heads": heads, "num_key_value_heads": case["kv"], "head_dim": case["dim"],
          "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": case["tied"]}
    if case.get("rope"):
        c["rope_scaling"] = case["rope"]
    if case["family"] == "gemma3_text":
        c |= {"hidden_activation": "gelu_pytorch_tanh", "sliding_window": case["window"], "sliding_window_pattern": case["pattern"], "query_pre_attn_scalar": case["dim"], "rope_local_base_freq": 1000.0}
    if case["family"] in HYBRIDS:
        n = case["linear"]
        c |= {"linear_num_key_heads": n["k_heads"], "linear_num_value_heads": n["v_heads"], "linear_key_head_dim": n["k_dim"], "linear_value_head_dim": n["v_dim"], "linear_conv_kernel_dim": n["taps"],
              "layer_types": ["linear_attention" if recurrent(case, i) else "full_attention" for i in range(case["layers"])], "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": case["part"]}}
        if case["family"] in EXPERTS:
            c |= {"num_experts": case["experts"], "num_experts_per_tok": case["used"], "moe_intermediate_size": case["mlp"], "norm_topk_prob": case["renormalize"], "shared_expert_intermediate_size": case.get("shared", case["hidden"])}
    if case["family"] == "mixtral":
        c |= {"num_local_experts": case["experts"], "num_experts_per_tok": case["used"]}
    if case["family"] == "qwen3_moe":
        c |= {"num_experts": case["experts"], "num_experts_per_tok": case["used"], "moe_intermediate_size": case["mlp"], "norm_topk_prob": case["renormalize"]}
    return c


def recurrent(case, i):
    """Of the last layers one attends."""
    return case["family"] in HYBRIDS and (case["layers"] - 1 - i) % (case["interval"] + 1) != 0


def shapes(case):
    """hub name -> shape; of GPT-2 matrices lie the other way."""
    heads, kv, dim, V, family = case["kv"] * case["group"], case["kv"], case["dim"], case["vocab"], case["family"]
    H, M = (heads * dim if family == "gpt2" else case["hidden"]), case["mlp"]
    if family == "gpt2":
        out = {"wte.weight": (V, H), "wpe.weight": (CONTEXT, H), "ln_f.weight": (H,), "ln_f.bias": (H,)}
        for i in range(case["layers"]):
            for name, shape in {"ln_1.weight": (H,), "ln_2.weight": (H,), "attn.c_attn.weight": (H, 3 * H), "attn.c_proj.weight": (H, H), "mlp.c_fc.weight": (H, M), "mlp.c_proj.weight": (M, H)}.items():
                out[f"h.{i}.{name}"] = shape
                out[f"h.{i}.{name.replace('weight', 'bias')}"] = shape[-1:]
        return out
    out = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,)} | ({} if case["tied"] else {"lm_head.weight": (V, H)})
    for i in range(case["layers"]):
        layer = {"self_attn.q_proj.weight": (heads * dim, H), "self_attn.k_proj.weight": (kv * dim, H), "self_attn.v_proj.weight": (kv * dim, H), "self_attn.o_proj.weight": (H, heads * dim),
                 "input_layernorm.weight": (H,), "post_attention_layernorm.weight": (H,)}
        if family in HYBRIDS:
            layer["self_attn.q_proj.weight"] = (2 * heads * dim, H)
            layer |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
        if recurrent(case, i):
            n = case["linear"]
            wide, C = n["v_heads"] * n["v_dim"], 2 * n["k_heads"] * n["k_dim"] + n["v_heads"] * n["v_dim"]
            layer = {k: v for k, v in layer.items() if not k.startswith("self_attn")} | {f"linear_attn.{k}": v for k, v in {
                "in_proj_qkv.weight": (C, H), "in_proj_z.weight": (wide, H), "in_proj_b.weight": (n["v_heads"], H), "in_proj_a.weight": (n["v_heads"], H), "conv1d.weight": (C, 1, n["taps"]),
                "A_log": (n["v_heads"],), "dt_bias": (n["v_heads"],), "norm.weight": (n["v_dim"],), "out_proj.weight": (H, wide)}.items()}
            if family == "qwen3_next":  # by key head
                layer = {k: v for k, v in layer.items() if "in_proj" not in k} | {"linear_attn.in_proj_qkvz.weight": (C + wide, H), "linear_attn.in_proj_ba.weight": (2 * n["v_heads"], H)}
        if family == "qwen2":
            layer |= {f"self_attn.{n}_proj.bias": (w * dim,) for n, w in (("q", heads), ("k", kv), ("v", kv))}
        if family in ("qwen3", "qwen3_moe", "gemma3_text"):
            layer |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
        if family == "gemma3_text":
            layer |= {"pre_feedforward_layernorm.weight": (H,), "post_feedforward_layernorm.weight": (H,)}
        if family == "qwen3_5_moe_text":
            layer |= {"mlp.gate.weight": (case["experts"], H), "mlp.experts.gate_up_proj": (case["experts"], 2 * M, H), "mlp.experts.down_proj": (case["experts"], H, M)}
        elif family in EXPERTS:
            block, names = ("block_sparse_moe", ("w1", "w3", "w2")) if family == "mixtral" else ("mlp", ("gate_proj", "up_proj", "down_proj"))
            layer[f"{block}.gate.weight"] = (case["experts"], H)
            for e in range(case["experts"]):
                layer |= {f"{block}.experts.{e}.{n}.weight": shape for n, shape in zip(names, ((M, H), (M, H), (H, M)))}
        else:
            layer |= {"mlp.gate_proj.weight": (M, H), "mlp.up_proj.weight": (M, H), "mlp.down_proj.weight": (H, M)}
        if family in HYBRIDS and family in EXPERTS:
            S = case.get("shared", H)
            layer |= {f"mlp.shared_expert{k}.weight": v for k, v in {"_gate": (1, H), ".gate_proj": (S, H), ".up_proj": (S, H), ".down_proj": (H, S)}.items()}
        out |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return out


def weights(case):
    rng = np.random.default_rng(case["seed"])
    out = {}
    for name, shape in shapes(case).items():
        if name.endswith("A_log"):
            value = np.log(rng.uniform(0.02, 2.0, shape))  # some heads keep tokens for long
        elif len(shape) > 1:
            wide = shape[0] if case["family"] == "gpt2" and "wte" not in name and "wpe" not in name else shape[-1]
            scale = 1.2 / np.sqrt(wide) if "embed" not in name and "wte" not in name and "wpe" not in name else 2 / np.sqrt(shape[1]) if case["family"] == "gemma3_text" else 1.0
            value = rng.standard_normal(shape) * scale
        else:
            value = 0.3 * rng.standard_normal(shape) + (0 if name.endswith("bias") or case["family"] == "gemma3_text" else 1)
        out[name] = value.astype(np.float32)
    return out


def fp4(case, w):
    """(tensors as the case's scheme stores matrices of layers, what they stand for)."""
    layout, held, values = case["stored"], {}, {}
    for name, x in w.items():
        parts = []
        for key, part in apart({name: x}).items():  # experts are quantized one by one: gate and up of each
            if ".layers." not in key or part.ndim != 2 or part.shape[1] % 16:
                held[key] = part
                parts.append(part)
                continue
            codes, block = quantized(part, WHOLE)
            scales = {"_scale_2": np.array(WHOLE)} if layout == "modelopt" else {"_global_scale": np.array([1 / WHOLE], np.float32)}
            held |= {key + ("" if layout == "modelopt" else "_packed"): codes, key + "_scale": block} | {key + k: v for k, v in scales.items()}
            value = values_of(codes, block.astype(np.float32) * WHOLE)
            parts.append(value if case["precision"] == "native" else value.astype(ml_dtypes.bfloat16).astype(np.float32))
        values[name] = np.concatenate(parts).reshape(x.shape)
    return held, values


def eight(case, w):
    """The same of e4m3, whatever the width. Matrices that a plan keeps are not rounded to 16 bits."""
    rng, held, values = np.random.default_rng(case["seed"]), {}, {}
    keeps = case["precision"] in ("native", "w8a16", "fp8", "fp8_static") and case["stored"] != "compressed block"
    for name, x in w.items():
        parts = []
        for key, part in apart({name: x}).items():
            if ".layers." not in key or part.ndim != 2:
                held[key] = part
                parts.append(part)
                continue
            codes, scale = e4m3.quantized(part, case["stored"], rng)
            held |= {key: codes, key + "_scale": scale}
            value = e4m3.values_of(codes, scale)
            parts.append(value if keeps else value.astype(np.float16 if scale.dtype == np.float16 else ml_dtypes.bfloat16).astype(np.float32))
        values[name] = np.concatenate(parts).reshape(x.shape)
    return held, values


def write(case, folder):
    """The checkpoint; returns what its weights stand for."""
    held = values = weights(case)
    c = config(case)
    if case.get("stored"):
        held, values = (eight if case["stored"] in e4m3.SCHEMES else fp4)(case, held)
        c["quantization_config"] = (SCHEMES | e4m3.SCHEMES)[case["stored"]]
    if case.get("kv_scales"):
        rng = np.random.default_rng(case["seed"])
        held = held | {f"model.layers.{i}.self_attn.{n}_scale": np.exp(rng.uniform(-6, 2, 1)).astype(np.float32) for i in range(case["layers"]) if not recurrent(case, i) for n in "kv"}
    (folder / "config.json").write_text(json.dumps(c))
    save_file(held, folder / "model.safetensors")
    return values


def add_input_scales(folder, sites):
    """As `input_scale` of each product; of those that share their rows one has the site's and the others less."""
    tensors, places = load_file(folder / "model.safetensors"), (("q_proj", "k_proj", "v_proj", "in_proj_qkv", "in_proj_z", "in_proj_qkvz"), ("o_proj", "out_proj"), ("mlp.gate_proj", "mlp.up_proj"), ("mlp.down_proj",))
    for i, scale in enumerate(sites[:-1]):
        names = [k.removesuffix("weight") for k in tensors if k.startswith(f"model.layers.{i // 4}.") and k.endswith(tuple(f"{n}.weight" for n in places[i % 4])) and ".experts." not in k and "shared" not in k]
        for j, name in enumerate(names):
            tensors[name + "input_scale"] = np.array([scale / (1 + (j - i) % len(names))], np.float32)
    save_file(tensors, folder / "scaled")
    (folder / "scaled").replace(folder / "model.safetensors")  # which a model may have mapped


def simpler(case):
    """Cases that say less, boldest first."""
    requests = case["requests"]
    for some in ([requests[:len(requests) // 2], requests[len(requests) // 2:]] if len(requests) > 1 else []) + [requests[:i] + requests[i + 1:] for i in range(len(requests)) if len(requests) > 1]:
        if some:
            yield case | {"requests": some}
    plain = {"stored": None, "kv_scales": False, "input_scales": False, "paged": False, "rope": None, "tied": True, "ahead": 1, "precision": "f32", "kv_dtype": "f32" if case["precision"] == "f32" else case["kv_dtype"]}
    for key, value in plain.items():
        if key in case and case[key] != value:
            yield case | {key: value}
    if case["family"] in HYBRIDS:
        n = case["linear"]
        least = {"k_heads": 1, "v_heads": n["v_heads"] // n["k_heads"], "k_dim": 8, "v_dim": 8, "taps": 2}
        yield from (case | {"linear": n | {k: v} | ({"v_heads": least["v_heads"]} if k == "k_heads" else {})} for k, v in least.items() if k != "v_heads" and v < n[k])
    elif case["family"] != "llama":
        yield {k: v for k, v in case.items() if k not in ("window", "pattern", "experts", "used", "renormalize")} | {"family": "llama"}
    for key, least in (("layers", 1), ("kv", 1), ("group", 1), ("dim", 32), ("hidden", 32), ("mlp", 32), ("vocab", 97), ("max_batch", 1), ("chunk", 16), ("experts", 2)):
        for less in dict.fromkeys((least, case.get(key, 0) // 2 // least * least)):
            if least <= less < case.get(key, 0) and not (key == "experts" and less < case["used"]):
                yield case | {key: less}
    for i, one in enumerate(requests):
        less = [one | {"sampling": {}}] if one["sampling"] else []
        less += [{k: v for k, v in one.items() if k != key} for key in ("arrives", "cancelled") if key in one]
        less += [one | {"prompt": n} for n in dict.fromkeys((1, one["prompt"] // 2, one["prompt"] - 1)) if 0 < n < one["prompt"]]
        less += [one | {"tokens": n} for n in dict.fromkeys((1, one["tokens"] // 2, one["tokens"] - 1)) if 0 < n < one["tokens"]]
        yield from (case | {"requests": requests[:i] + [o] + requests[i + 1:]} for o in less)
