"""Checkpoints for the reference: a GGUF file or a hub folder -> (Config, weights under GGUF's names).

Two-dimensional tensors become `blocks.Dense` or `blocks.Blocks`, one-dimensional ones float64 arrays.
Anything the reference would compute wrongly (an unknown architecture, a sliding window) is refused.
"""
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import blocks


@dataclass(frozen=True)
class Config:
    arch: str                # "llama", "qwen2", "qwen3"
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    rope_base: float
    rope_dim: int            # leading dims of a head that rotate
    rope_interleaved: bool   # GGUF stores llama's q and k rows permuted for interleaved pairs
    rope_scaling: dict | None
    context: int


ARCHS = ("llama", "qwen2", "qwen3")


def load(path: str | Path) -> tuple[Config, dict]:
    path = Path(path)
    return load_hub(path) if path.is_dir() else load_gguf(path)


def load_gguf(path: Path) -> tuple[Config, dict]:
    from gguf import GGUFReader

    reader = GGUFReader(str(path))
    meta = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
    arch = _known(meta["general.architecture"])
    weights = {}
    for t in reader.tensors:
        shape = [int(s) for s in t.shape][::-1]  # GGUF lists the fastest dimension first
        n, k = shape if len(shape) == 2 else (1, shape[0])
        weight = blocks.decode(t.tensor_type.name, t.data, n, k)
        weights[t.name] = weight if len(shape) == 2 else weight.rows([0])[0]

    def get(key, default=None):
        value = meta.get(f"{arch}.{key}", default)
        if value is None:
            raise ValueError(f"{path.name} lacks the metadata key {arch}.{key}")
        return value

    heads, hidden = get("attention.head_count"), get("embedding_length")
    head_dim = get("attention.key_length", hidden // heads)
    config = Config(
        arch=arch, layers=get("block_count"), hidden=hidden, heads=heads,
        kv_heads=get("attention.head_count_kv", heads), head_dim=head_dim,
        vocab=weights["token_embd.weight"].shape[0],
        # The file holds float32; the shortest decimal gives back what its author wrote (1e-5).
        eps=float(str(np.float32(get("attention.layer_norm_rms_epsilon")))),
        rope_base=float(get("rope.freq_base", 10000.0)), rope_dim=get("rope.dimension_count", head_dim),
        rope_interleaved=arch == "llama", rope_scaling=_gguf_scaling(meta, arch), context=get("context_length"))
    return config, weights


def _gguf_scaling(meta, arch):
    prefix = f"{arch}.rope.scaling."
    kind = meta.get(prefix + "type", "none")
    if kind == "none":
        return None
    out = {"rope_type": kind, "factor": float(meta[prefix + "factor"])}
    if kind == "yarn":
        out["original_max_position_embeddings"] = meta[prefix + "original_context_length"]
    return out


HUB_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def load_hub(folder: Path) -> tuple[Config, dict]:
    c = json.loads((folder / "config.json").read_text())
    arch = _known(c["model_type"])
    if c.get("use_sliding_window"):
        raise ValueError("sliding-window attention is not in the reference")
    rope = dict(c.get("rope_scaling") or c.get("rope_parameters") or {})
    heads = c["num_attention_heads"]
    head_dim = c.get("head_dim") or c["hidden_size"] // heads
    config = Config(
        arch=arch, layers=c["num_hidden_layers"], hidden=c["hidden_size"], heads=heads,
        kv_heads=c.get("num_key_value_heads", heads), head_dim=head_dim, vocab=c["vocab_size"],
        eps=c["rms_norm_eps"], rope_base=float(rope.get("rope_theta", c.get("rope_theta", 10000.0))),
        rope_dim=head_dim, rope_interleaved=False, rope_scaling=rope or None, context=c["max_position_embeddings"])
    weights = {}
    for file in sorted(folder.glob("model*.safetensors")):
        for name, array in read_safetensors(file).items():
            weights[_gguf_name(name)] = blocks.Dense(array) if array.ndim == 2 else array.astype(np.float64)
    if c.get("tie_word_embeddings") and "output.weight" in weights:
        raise ValueError("config.json says tied embeddings but the checkpoint holds lm_head.weight")
    return config, weights


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    prefix = ""
    if stem.startswith("model.layers."):
        _, _, layer, stem = stem.split(".", 3)
        prefix = f"blk.{layer}."
    return f"{prefix}{HUB_NAMES[stem]}.{kind}"


def _known(arch: str) -> str:
    if arch not in ARCHS:
        raise ValueError(f"architecture {arch!r} is not one of {', '.join(ARCHS)}")
    return arch


def read_safetensors(file: Path) -> dict[str, np.ndarray]:
    """Floating tensors of one file; bf16 is widened to float32, other types keep theirs."""
    raw = np.fromfile(file, np.uint8)
    size = int(raw[:8].view("<u8")[0])
    header = json.loads(raw[8:8 + size].tobytes())
    dtypes = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}
    out = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + o for o in info["data_offsets"])
        array = raw[begin:end].copy().view(dtypes[info["dtype"]])
        out[name] = (blocks.bf16_to_f32(array) if info["dtype"] == "BF16" else array).reshape(info["shape"])
    return out
