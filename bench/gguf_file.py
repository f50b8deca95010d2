"""GGUF files of a hub configuration's shape; one whose matrices have the formats of llama.cpp's Q4_K_M: random codes, scales that keep sums of one size."""
import gguf
import numpy as np

Kind = gguf.GGMLQuantizationType
SIZES = {Kind.Q4_K: (256, 144), Kind.Q6_K: (256, 210), Kind.F32: (1, 4)}  # elements and bytes of a block
PATTERN = 1 << 16  # blocks of random codes, which a matrix repeats


def is_better(layer, layers) -> bool:
    """Whether Q4_K_M gives a layer's values and downs six bits: in the first and last eighth, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def tensors_of(config):
    """name -> (kind, shape) of Qwen3's layout; an untied head."""
    h, m, v, d, layers = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size", "head_dim", "num_hidden_layers"))
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    out = {"token_embd.weight": (Kind.Q4_K, (v, h)), "output_norm.weight": (Kind.F32, (h,)), "output.weight": (Kind.Q6_K, (v, h))}
    for i in range(layers):
        better = Kind.Q6_K if is_better(i, layers) else Kind.Q4_K
        norms = {"attn_norm": h, "ffn_norm": h, "attn_q_norm": d, "attn_k_norm": d}
        matrices = {"attn_q": (Kind.Q4_K, (q, h)), "attn_k": (Kind.Q4_K, (kv, h)), "attn_v": (better, (kv, h)), "attn_output": (Kind.Q4_K, (h, q)),
                    "ffn_gate": (Kind.Q4_K, (m, h)), "ffn_up": (Kind.Q4_K, (m, h)), "ffn_down": (better, (h, m))}
        out |= {f"blk.{i}.{k}.weight": (Kind.F32, (n,)) for k, n in norms.items()} | {f"blk.{i}.{k}.weight": x for k, x in matrices.items()}
    return out


def bytes_of(kind, shape) -> int:
    n, size = SIZES[kind]
    return int(np.prod(shape)) // n * size


def pattern(kind, rng) -> bytes:
    if kind == Kind.F32:
        return np.ones(PATTERN, np.float32).tobytes()
    blocks = rng.integers(0, 256, (PATTERN, SIZES[kind][1]), np.uint8)
    scale = np.full(PATTERN, 1e-5, np.float16)  # values of some hundredths
    for at in ([208] if kind == Kind.Q6_K else [0, 2]):
        blocks[:, at:at + 2] = scale[:, None].view(np.uint8)
    return blocks.tobytes()


def writer(path, arch, config):
    """A file of llama.cpp's keys without a tokenizer, whose tensors are to come."""
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_key_length(config["head_dim"])
    w.add_value_length(config["head_dim"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_rope_freq_base(config["rope_theta"])
    w.add_vocab_size(config["vocab_size"])
    w.add_tokenizer_model("no_vocab")
    return w


def write(path, config) -> int:
    """Writes the file; bytes of the matrices that a step of one row reads."""
    w, tensors = writer(path, "qwen3", config), tensors_of(config)
    for name, (kind, shape) in tensors.items():
        if kind == Kind.F32:
            w.add_tensor_info(name, shape, np.dtype(np.float32), bytes_of(kind, shape))
        else:  # the writer takes a row's bytes for its elements
            n, size = SIZES[kind]
            w.add_tensor_info(name, (*shape[:-1], shape[-1] // n * size), np.dtype(np.uint8), bytes_of(kind, shape), kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    w.close()
    rng = np.random.default_rng(0)
    patterns = {kind: pattern(kind, rng) for kind in SIZES}
    align = gguf.GGUF_DEFAULT_ALIGNMENT
    with open(path, "ab") as f:
        f.write(bytes(-f.tell() % align))
        for kind, shape in tensors.values():
            left = bytes_of(kind, shape)
            while left:
                left -= f.write(patterns[kind][:left])
            f.write(bytes(-f.tell() % align))
    return sum(bytes_of(*t) for name, t in tensors.items() if name != "token_embd.weight")
