"""Writes tests/fixtures/tiny_gguf/<name>.gguf from the hub checkpoints of tests/fixtures/tiny.

    python -m tests.reference.make_tiny_ggufs              # needs gguf, numpy, safetensors

The matrices are block-quantized by the `gguf` package, so these files exercise a reader's block formats,
its GGUF metadata, llama's permuted q/k rows (interleaved rope), `rope_freqs.weight` and tied heads.
<name>.expected.safetensors holds, from the NumPy reference in float64:
    prompt_ids [24] i32, and for each act mode in (f32, q8):
    <act>.prompt_logits [24, V] f32, <act>.greedy_ids [32] i32, <act>.greedy_gaps [32] f32
The prompt is the first whose greedy gaps are all >= MIN_GAP in both modes.
"""
from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

from . import checkpoints, rope
from .llama_numpy import Llama

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
PROMPT, TOKENS, MIN_GAP = 24, 32, 0.1

# name -> (hub folder, type of the layer matrices, type of token_embd and output)
FILES = {"llama_q4_0": ("llama", "Q4_0", "Q8_0"), "llama_q4_1": ("llama", "Q4_1", "Q8_0"),
         "llama_untied_q8_0": ("llama_untied", "Q8_0", "Q8_0"), "llama_f16": ("llama_linear", "F16", "F16"),
         "qwen2_q4_0": ("qwen2", "Q4_0", "Q4_0"), "qwen3_q8_0": ("qwen3", "Q8_0", "F16")}


def interleave(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows (i, i + D/2) of every head become neighbours, as GGUF stores llama's q and k."""
    return w.reshape(heads, 2, -1, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)


def write_gguf(path: Path, source: str, matrix_type: str, embed_type: str) -> None:
    config, weights = checkpoints.load(FIXTURES / "tiny" / source)
    w = gguf.GGUFWriter(path, config.arch)
    w.add_block_count(config.layers)
    w.add_context_length(config.context)
    w.add_embedding_length(config.hidden)
    w.add_feed_forward_length(weights["blk.0.ffn_gate.weight"].shape[0])
    w.add_head_count(config.heads)
    w.add_head_count_kv(config.kv_heads)
    w.add_layer_norm_rms_eps(config.eps)
    w.add_rope_freq_base(config.rope_base)
    if config.head_dim * config.heads != config.hidden:
        w.add_key_length(config.head_dim)
        w.add_value_length(config.head_dim)
    else:
        w.add_rope_dimension_count(config.head_dim)
    w.add_vocab_size(config.vocab)
    w.add_tokenizer_model("no_vocab")
    scaling = config.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(scaling["factor"])
    elif kind == "llama3":
        plain, _ = rope.frequencies(config.rope_base, config.rope_dim, None)
        scaled, _ = rope.frequencies(config.rope_base, config.rope_dim, scaling)
        w.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    for name, weight in weights.items():
        if isinstance(weight, np.ndarray):
            w.add_tensor(name, weight.astype(np.float32))
            continue
        values = weight.w.astype(np.float32)
        if config.arch == "llama" and name.endswith(("attn_q.weight", "attn_k.weight")):
            values = interleave(values, config.heads if "attn_q" in name else config.kv_heads)
        type_name = embed_type if name in ("token_embd.weight", "output.weight") else matrix_type
        kind = gguf.GGMLQuantizationType[type_name]
        w.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_expected(path: Path) -> None:
    models = {act: Llama(path, act=act, dtype=np.float64) for act in ("f32", "q8")}
    for seed in range(300):
        prompt = np.random.default_rng(seed).integers(3, models["f32"].config.vocab, PROMPT)
        runs = {act: m.greedy(prompt, TOKENS) for act, m in models.items()}
        least = min(min(gaps) for _, gaps in runs.values())
        if least >= MIN_GAP and all(len(set(ids)) >= 6 for ids, _ in runs.values()):
            break
    else:
        raise SystemExit(f"{path.name}: no prompt gave greedy gaps of {MIN_GAP}")
    out = {"prompt_ids": prompt.astype(np.int32)}
    for act, model in models.items():
        model.reset()
        out[f"{act}.prompt_logits"] = np.ascontiguousarray(model.forward(prompt, all_logits=True), np.float32)
        out[f"{act}.greedy_ids"] = np.array(runs[act][0], np.int32)
        out[f"{act}.greedy_gaps"] = np.array(runs[act][1], np.float32)
    save_file(out, path.with_suffix(".expected.safetensors"), metadata={"seed": str(seed)})
    print(f"{path.name}: {path.stat().st_size} bytes, seed {seed}, min gap {least:.3f}")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", type=Path, default=FIXTURES / "tiny_gguf")
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, spec in FILES.items():
        path = args.out / f"{name}.gguf"
        write_gguf(path, *spec)
        write_expected(path)


if __name__ == "__main__":
    main()
