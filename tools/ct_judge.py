#!/usr/bin/env python3
"""Compares what is loaded of compressed-tensors' own files with what compressed-tensors makes of them.

    python tools/ct_judge.py make DIR     # needs torch, transformers and compressed-tensors; no vivace
    python tools/ct_judge.py check DIR    # needs vivace; the status is 1 if a bit differs

`make` compresses tiny models in each scheme and writes the folder beside one of its decompressed values. `check` loads both in
bf16: logits of 40 tokens are the same, bit for bit, where all weights are.
"""
import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT / "tests/fixtures/tiny"
NAMES = ("llama_untied", "qwen3", "qwen35")
SCHEMES = ("FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16")


def scales(module, args, torch):
    """What min-max observers give a matrix: a scale of each part that shares one."""
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    w = module.weight.data
    if args.strategy == "tensor":
        parts = w.reshape(1, -1)
    elif args.strategy == "channel":
        parts = w
    elif args.strategy == "block":
        down, across = (-(-n // 128) for n in w.shape)
        padded = torch.zeros(down * 128, across * 128, dtype=w.dtype)
        padded[:w.shape[0], :w.shape[1]] = w
        parts = padded.reshape(down, 128, across, 128).swapaxes(1, 2).reshape(down, across, -1)
    else:  # of 16 columns, beside one of all
        module.weight_global_scale.data.copy_(generate_gparam(w.min(), w.max()))
        parts = w.reshape(w.shape[0], -1, args.group_size)
    whole = getattr(module, "weight_global_scale", None)
    scale, _ = calculate_qparams(parts.min(-1).values, parts.max(-1).values, args, **({} if whole is None else {"global_scale": whole}))
    module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))


def make(target):
    import torch
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme, apply_quantization_config, preset_name_to_scheme
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    for name in NAMES:
        for scheme in SCHEMES:
            model = AutoModelForCausalLM.from_pretrained(TINY / name, dtype=torch.bfloat16)
            apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": preset_name_to_scheme(scheme, ["Linear"])}, ignore=["lm_head"]))
            for module in model.modules():
                if isinstance(getattr(module, "quantization_scheme", None), QuantizationScheme):
                    scales(module, module.quantization_scheme.weights, torch)
                    if hasattr(module, "input_scale"):
                        module.input_scale.data.fill_(0.03)
            compressor = ModelCompressor.from_pretrained_model(model)
            folder = target / f"{name}.{scheme}"
            for part, step in (("compressed", compressor.compress_model), ("values", compressor.decompress_model)):
                step(model)
                (folder / part).mkdir(parents=True)
                tensors = {k: v.contiguous().clone() for k, v in model.state_dict().items() if part == "compressed" or "scale" not in k}
                save_file(tensors, folder / part / "model.safetensors")
                (folder / part / "config.json").write_text((TINY / name / "config.json").read_text())
                if part == "compressed":
                    compressor.update_config(folder / part)
            print(f"{name} {scheme}: {sum('scale' in k for k in model.state_dict())} scales")


def check(source):
    import numpy as np

    from vivace import _core

    wrong = 0
    for folder in sorted(source.iterdir()):
        logits, stored = [], None
        for part in ("compressed", "values"):
            core = _core.load_text_model(str(folder / part), device="cpu", precision="bf16", kv_dtype="f32", threads=2, context=0, max_batch=40, prefill_chunk=128, eager=False)
            core.start(0)
            core.step([((i * 37 + 5) % 190, i, 0, True) for i in range(40)])
            logits.append(np.frombuffer(core.logits()[0], np.float32))
            stored = stored or json.loads(dict(core.report())["stored"])
        same = np.array_equal(logits[0].view(np.uint32), logits[1].view(np.uint32)) and bool(stored)
        wrong += not same
        print(f"{folder.name}: {'the same bits' if same else 'WRONG'}; {stored}")
    return 1 if wrong else 0


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.RawDescriptionHelpFormatter, epilog=__doc__)
    p.add_argument("step", choices=["make", "check"])
    p.add_argument("folder", type=Path)
    args = p.parse_args()
    return make(args.folder) if args.step == "make" else check(args.folder)


if __name__ == "__main__":
    sys.exit(main())
