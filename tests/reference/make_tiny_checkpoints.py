"""Writes tests/fixtures/tiny/<family>/: random checkpoints in the hub's format and what they must give.

    python -m tests.reference.make_tiny_checkpoints        # needs torch and transformers (pins in README.md)

Each folder holds config.json, float32 safetensors and expected.safetensors:
    prompt_ids [24] i32, prompt_logits [24, V] f32, greedy_ids [64] i32, greedy_gaps [64] f32,
    values.NN.NAME [4, width] f32: at rows 0, 7, 15, 23 of the prompt what enters and leaves each part of each layer
computed by `transformers` in float64, so that a float32 engine may be compared closely; a gap is the
step's top-1 minus top-2 logit.  Weights are larger than a usual initialisation, so that attention is
far from uniform and no greedy step is a near-tie; the prompt runs past the "original" context of the
rope scalings, so that ignoring one changes every later row.
"""
from __future__ import annotations

import argparse
import contextlib
import copy
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "tiny"
PROMPT, TOKENS, MIN_GAP = 24, 64, 0.01
ROWS = [0, 7, 15, 23]

COMMON = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, vocab_size=192, max_position_embeddings=128, rms_norm_eps=1e-5,
              hidden_act="silu", torch_dtype="float32", bos_token_id=1, eos_token_id=2)
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
GEMMA = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=192,
             max_position_embeddings=128, rms_norm_eps=1e-6, hidden_activation="gelu_pytorch_tanh", sliding_window=8,
             attention_bias=False, torch_dtype="float32", bos_token_id=2, eos_token_id=1)

# config.json is written by hand in the form that most published checkpoints have (rope_theta and
# rope_scaling side by side); "llama_untied" has the newer rope_parameters instead.
FAMILIES = {
    "llama": dict(model_type="llama", architectures=["LlamaForCausalLM"], **COMMON, rope_theta=10000.0,
                  rope_scaling=LLAMA3, tie_word_embeddings=True, attention_bias=False, mlp_bias=False),
    "llama_untied": dict(model_type="llama", architectures=["LlamaForCausalLM"], **COMMON,
                         rope_parameters={"rope_theta": 500000.0, **LLAMA3}, tie_word_embeddings=False),
    "llama_linear": dict(model_type="llama", architectures=["LlamaForCausalLM"],
                         **{**COMMON, "hidden_size": 32, "num_key_value_heads": 1, "num_attention_heads": 2},
                         rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 2.0}, tie_word_embeddings=True),
    "qwen2": dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], **COMMON, rope_theta=1000000.0,
                  tie_word_embeddings=True, use_sliding_window=False),
    "qwen3": dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"],
                  **{**COMMON, "hidden_size": 32, "rms_norm_eps": 1e-6}, head_dim=32, rope_theta=1000000.0,
                  tie_word_embeddings=True, attention_bias=False, use_sliding_window=False),
    "qwen3_yarn": dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"],
                       **{**COMMON, "hidden_size": 32, "rms_norm_eps": 1e-6},
                       head_dim=16, rope_theta=10000.0, rope_scaling=YARN, tie_word_embeddings=False, attention_bias=False, use_sliding_window=False),
    # Published gemma3 files spread the two thetas; "gemma3_params" has the newer form and lists its layers.
    "gemma3": dict(model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], **GEMMA, num_hidden_layers=4,
                   sliding_window_pattern=3, rope_theta=1000000.0, rope_local_base_freq=10000.0,
                   rope_scaling={"rope_type": "linear", "factor": 8.0}, query_pre_attn_scalar=24),
    "gemma3_params": dict(model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], **GEMMA, num_hidden_layers=3,
                          layer_types=["full_attention", "sliding_attention", "sliding_attention"], query_pre_attn_scalar=16,
                          rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 500000.0},
                                           "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}),
    "mixtral": dict(model_type="mixtral", architectures=["MixtralForCausalLM"],
                    **{**COMMON, "hidden_size": 32, "intermediate_size": 32}, rope_theta=1000000.0, sliding_window=None,
                    num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False),
    "qwen3_moe": dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"],
                      **{**COMMON, "hidden_size": 32, "rms_norm_eps": 1e-6}, head_dim=16, rope_theta=1000000.0,
                      num_experts=6, num_experts_per_tok=3, moe_intermediate_size=16, norm_topk_prob=True,
                      decoder_sparse_step=1, mlp_only_layers=[], tie_word_embeddings=True, use_sliding_window=False),
    "gpt2": dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_embd=32, n_layer=2, n_head=4, n_ctx=128, n_positions=128,
                 vocab_size=192, layer_norm_epsilon=1e-5, activation_function="gelu_new", bos_token_id=1, eos_token_id=2)}
# Linear heads of which two share a key head, head sizes unlike, a quarter of a head that rotates.
HYBRID = dict(hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=192, max_position_embeddings=256,
              rms_norm_eps=1e-6, hidden_act="silu", torch_dtype="float32", bos_token_id=1, eos_token_id=2, attention_bias=False, attn_output_gate=True,
              layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"], full_attention_interval=4,
              linear_conv_kernel_dim=4, linear_key_head_dim=12, linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, mamba_ssm_dtype="float32",
              rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_interleaved": True, "mrope_section": [1, 1, 0]})
FAMILIES |= {
    "qwen35": dict(model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"], **HYBRID, intermediate_size=48, tie_word_embeddings=False),
    "qwen35_moe": dict(model_type="qwen3_5_moe_text", architectures=["Qwen3_5MoeForCausalLM"],
                       **{**HYBRID, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "full_attention_interval": 2}, tie_word_embeddings=True, num_experts=6, num_experts_per_tok=2,
                       moe_intermediate_size=16, shared_expert_intermediate_size=24)}
SHARDED = ("qwen3",)  # in two files with an index


def randomize(model, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Gemma multiplies embeddings by sqrt(hidden): of unit size they would drown the layers.
    embed = 2 / np.sqrt(model.config.hidden_size) if "gemma" in model.config.model_type else 1.0
    for name, p in model.named_parameters():
        if name.endswith("A_log"):
            value = np.log(rng.uniform(0.05, 2.0, p.shape))  # states that keep some tokens for long
        elif p.ndim >= 2:
            scale = embed if "embed" in name or ".wte" in name or ".wpe" in name else 1.6 / np.sqrt(p.shape[-1])
            value = rng.standard_normal(p.shape) * scale
        elif name.endswith("bias"):
            value = rng.standard_normal(p.shape) * 0.5
        else:
            value = 1.0 + 0.3 * rng.standard_normal(p.shape)
        p.data = torch.from_numpy(value.astype(np.float32).astype(np.float64))  # exact in the float32 file


def greedy(model, prompt: np.ndarray) -> tuple[list[int], list[float]]:
    """Recomputes the whole sequence each step: no cache takes part in the expected values."""
    ids, gaps = list(prompt), []
    for _ in range(TOKENS):
        logits = model(torch.tensor([ids])).logits[0, -1].numpy()
        second, first = np.partition(logits, -2)[-2:]
        ids.append(int(logits.argmax()))
        gaps.append(float(first - second))
    return ids[len(prompt):], gaps


# Parts of a layer: what enters them, and for whole layers what leaves. Experts are fused in memory, so of them only
# what enters and leaves the block is seen.
PARTS = {"attn.c_attn": "normed", "self_attn.q_proj": "normed", "attn.c_proj": "attended", "self_attn.o_proj": "attended", "mlp": "mlp_normed",
         "mlp.down_proj": "mlp_inner", "linear_attn.in_proj_qkv": "normed", "linear_attn.norm": "delta", "linear_attn.out_proj": "gated", "mlp.c_proj": "mlp_inner"}


def values(model, prompt: np.ndarray) -> dict[str, np.ndarray]:
    """Intermediates of one pass, numbered in the order in which they come up."""
    seen, hooks = {}, []

    def keep(name, tensor):
        rows = tensor.reshape(PROMPT, -1)[ROWS].numpy()
        seen[f"values.{len(seen):02}.{name}"] = np.ascontiguousarray(rows, np.float32)

    layers = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    for i, layer in enumerate(layers):
        for part, name in PARTS.items():
            try:
                module = layer.get_submodule(part)
            except AttributeError:
                continue
            hooks.append(module.register_forward_pre_hook(lambda _, args, name=f"layer{i}.{name}": keep(name, args[0])))
        hooks.append(layer.register_forward_hook(lambda _, args, out, name=f"layer{i}.out": keep(name, out[0] if isinstance(out, tuple) else out)))
    model(torch.tensor(prompt[None]))
    for hook in hooks:
        hook.remove()
    return seen


def hub_tensors(model) -> dict[str, np.ndarray]:
    """Weights under the names that published files have: in memory transformers fuses experts."""
    if model.config.model_type == "qwen3_5_moe_text":  # published as in memory, though transformers saves it otherwise
        return {name: np.ascontiguousarray(t.numpy(), np.float32) for name, t in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        copy.deepcopy(model).float().save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
    return {name: np.ascontiguousarray(t, np.float32) for name, t in tensors.items()}


def write_weights(model, folder: Path, sharded: bool, tied: bool) -> int:
    tensors = {name: t for name, t in hub_tensors(model).items() if not (tied and name == "lm_head.weight")}
    if not sharded:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return (folder / "model.safetensors").stat().st_size
    names, index = list(tensors), {}
    for part, chosen in enumerate((names[: len(names) // 2], names[len(names) // 2:]), start=1):
        file = f"model-{part:05d}-of-00002.safetensors"
        save_file({n: tensors[n] for n in chosen}, folder / file, metadata={"format": "pt"})
        index.update({n: file for n in chosen})
    size = sum(t.nbytes for t in tensors.values())
    text = json.dumps({"metadata": {"total_size": size}, "weight_map": index}, indent=1)
    (folder / "model.safetensors.index.json").write_text(text + "\n")
    return size


def kept_seed(name: str) -> list[int]:
    """That of the fixture as it is: its weights stay what they are where they still serve (tiny_gguf/ is made of some)."""
    file = FIXTURES / name / "expected.safetensors"
    if not file.exists():
        return []
    with safe_open(file, "numpy") as f:
        return [int(f.metadata()["seed"])]


@contextlib.contextmanager
def float64_throughout(name: str):
    """Linear layers of hybrids compute in float32 whatever the model is: 1e-4 of a logit."""
    kept = torch.float32, torch.Tensor.float
    if name.startswith(("qwen35", "qwen3_next")):
        torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.Tensor.float = kept


@torch.no_grad()
def write(name: str, out: Path) -> None:
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(FAMILIES[name], indent=1) + "\n")
    # From the file, as a user's would be; eager attention is the plainest path.
    config = transformers.AutoConfig.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")
    for seed in (*kept_seed(name), *range(200)):
        model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
        randomize(model, seed)
        prompt = np.random.default_rng(seed + 1000).integers(3, config.vocab_size, PROMPT)
        with float64_throughout(name):
            ids, gaps = greedy(model, prompt)
        if min(gaps) >= MIN_GAP and len(set(ids)) >= 8:  # no near-tie, no short loop
            break
    else:
        raise SystemExit(f"{name}: no seed gave greedy gaps of {MIN_GAP}")
    size = write_weights(model, folder, name in SHARDED, config.tie_word_embeddings)
    with float64_throughout(name):
        logits = model(torch.tensor(prompt[None])).logits[0].numpy()
        between = values(model, prompt)
    save_file({"prompt_ids": prompt.astype(np.int32), "prompt_logits": np.ascontiguousarray(logits, np.float32),
               "greedy_ids": np.array(ids, np.int32), "greedy_gaps": np.array(gaps, np.float32), **between},
              folder / "expected.safetensors",
              metadata={"source": f"transformers {transformers.__version__}, torch {torch.__version__}, float64",
                        "seed": str(seed)})
    print(f"{name}: {len(between)} values, seed {seed}, {size} bytes, min gap {min(gaps):.3f}, {len(set(ids))} distinct tokens")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", type=Path, default=FIXTURES)
    ap.add_argument("--only", choices=sorted(FAMILIES), nargs="*")
    args = ap.parse_args()
    torch.set_num_threads(1)
    for name in args.only or FAMILIES:
        write(name, args.out)


if __name__ == "__main__":
    main()
