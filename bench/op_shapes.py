"""Shapes that bench_ops.py times: rows of data, no code. An op without rows here runs its reference's cases.

One small language model's step (SmolLM2-135M: H 576, 9 query and 3 key heads of 64, M 1536, V 49152):
T = 1 is a decode step, T = 128 a prefill chunk.
"""
import math

import numpy as np

from tests.ref.common import Case

HEADS = {"Hq": 9, "Hkv": 3, "D": 64}
FREQ = {"inv_freq": lambda rng, shape: 10000.0 ** (-np.arange(shape[0]) / shape[0])}
COUNT = {"pos": lambda rng, shape: np.arange(shape[0]) + 512}
CACHE = {"k_cache": "bf16", "v_cache": "bf16", "pos": "i32"}


def both(dims, *rest, **more):
    """A decode step and a prefill chunk."""
    return [Case({"T": T, **dims}, *rest, **more) for T in (1, 128)]


SHAPES = {
    "norm": [
        *both({"H": 576}, {"x": "f32", "residual": "f32", "weight": "f32", "out": "f32"}),
        *both({"H": 576}, {"x": "bf16", "residual": "bf16", "weight": "bf16", "out": "bf16"}),
    ],
    "embedding": both({"V": 49152, "H": 576}, {"table": "q8_0", "ids": "i32", "out": "f32"}, ranges={"ids": (0, 49152)}),
    "act_mul": both({"H": 1536}, {"x": "f32", "out": "f32"}) + both({"H": 1536}, {"x": "bf16", "out": "bf16"}),
    "rope": both({"N": 9, "D": 64, "R": 32}, {"x": "f32", "inv_freq": "f32", "pos": "i32", "out": "f32"}, values={**FREQ, **COUNT}),
    "qkv_rope": both({**HEADS, "R": 32, "B": 1, "L": 1024, "Hc": 3}, {"qkv": "f32", "q": "f32", **CACHE, "inv_freq": "f32"}, values={**FREQ, **COUNT}),
    "kv_append": both({"Hkv": 3, "D": 64, "B": 1, "L": 1024, "Hc": 3}, {"k": "bf16", "v": "bf16", **CACHE}, values=COUNT),
    "softmax": both({"H": 1024}, {"x": "f32", "out": "f32"}),
    "sample": [
        Case({"T": 1, "V": 49152}, {"logits": "f32", "token": "i32"}, note="greedy"),
        Case({"T": 1, "V": 49152}, {"logits": "f32", "token": "i32", "temperature": "f32", "top_k": "i32", "top_p": "f32", "seed": "i64", "step": "i32"},
             values={"temperature": np.array([0.7]), "top_k": np.array([40]), "top_p": np.array([0.95]), "seed": np.array([7]), "step": np.array([3])}),
    ],
    "advance": [Case({"T": 32, "N": 4, "C": 32}, {p: "i32" for p in ("token", "fed", "pos", "step", "turn", "ring")} | {"logprob": "f32", "ring_logprob": "f32"},
                     ranges={"turn": (0, 4), "pos": (0, 900), "step": (0, 900), "token": (0, 49152), "fed": (0, 49152), "ring": (0, 49152)})],
    "count_tokens": [Case({"T": 1, "S": 1, "V": 49152}, {"ids": "i32", "counts": "i32"}, ranges={"ids": (0, 49152), "counts": (0, 5)})],
    "cast": both({"H": 576}, {"x": "f32", "out": "bf16"}) + both({"H": 576}, {"x": "f32", "out": "e4m3"}),
    "gemm": [
        Case({"T": T, "N": N, "K": K}, {"x": "f32", "w": w, "out": "f32"}, attrs)
        for T in (1, 128) for N, K in ((960, 576), (1536, 576), (576, 1536))
        for w, attrs in (("f32", {}), ("bf16", {}), ("q4_1", {}), ("q4_1", {"act": "q8"}), ("q8_0", {"act": "q8"}))
    ] + [Case({"T": 1, "N": 49152, "K": 576}, {"x": "f32", "w": "q8_0", "out": "f32"}, {"act": "q8"})],
    "attention": [
        Case({"T": T, **HEADS, "Dv": 64, "S": 1, "B": 1, "L": 1024}, {"q": "f32", "k": "bf16", "v": "bf16", "pos": "i32", "out": "f32"},
             values={"pos": lambda rng, shape: np.arange(shape[0]) + 1024 - shape[0]})
        for T in (1, 128)
    ],
}

# Names of the canonical case keys (docs/receipts.md), where they differ from the op's symbols.
KEYS = {"gemm": {"T": "M"}}

# What bench_gpu.py times: op -> variant -> case of T rows and H columns. A variant's peers are in gpu_peers.py.
GPU_SIZES = ((1, 4096), (50, 1024), (968, 2048), (8192, 4096), (32768, 8192))


def divisor(n, most):
    """The largest divisor of n that is not above `most`."""
    return next(d for d in range(most, 0, -1) if n % d == 0)


def gpu_case(op, variant, T, H):
    """The case of a variant at a size, or None where the op has no such size."""
    one = {"T": T, "H": H}
    heads = {"T": T, "Hq": H // 128 * 2 // 3 // 2 * 2 or 2, "Hkv": max(1, H // 128 // 6), "D": 128, "R": 64}
    bf = lambda *ports: dict.fromkeys(ports, "bf16")  # noqa: E731
    frames = divisor(T, max(1, T // 1024))
    lines = divisor(T // frames, math.isqrt(T // frames))  # of patches in a frame
    freq = {"inv_freq": lambda rng, shape: 10000.0 ** (-np.arange(shape[0]) / shape[0])}
    pos = {"pos": (0, 4096)}
    cases = {
        ("norm", "rms"): Case(one, bf("x", "weight", "out")),
        ("norm", "add_rms"): Case(one, bf("x", "residual", "weight", "out")),
        ("norm", "add_rms_fp8"): Case(one, bf("x", "residual", "weight") | {"out": "e4m3", "out_scale": "f32"}, positive=("out_scale",)),
        ("norm", "rms_fp8_row"): Case(one, bf("x", "weight") | {"out": "e4m3", "row_scale": "f32"}),
        ("norm", "layer"): Case(one, bf("x", "weight", "bias", "out"), {"kind": "layer"}),
        ("act_mul", "swiglu"): Case(one, bf("x", "out")),
        ("act_mul", "swiglu_fp8"): Case(one, bf("x") | {"out": "e4m3", "out_scale": "f32"}, positive=("out_scale",)),
        ("act_mul", "gelu_split"): Case(one, bf("gate", "up", "out"), {"act": "gelu_tanh"}),
        ("cast", "copy"): Case(one, bf("x", "out")),
        ("cast", "fp8"): Case(one, bf("x") | {"out": "e4m3"}),
        ("cast", "f32"): Case(one, bf("x") | {"out": "f32"}),
        ("im2col", "patches"): Case({"N": frames, "H": 14 * lines, "W": 14 * (T // frames // lines), "C": 3, "T": T, "K": 592}, {"x": "u8", "scale": "f32", "offset": "f32"} | bf("out"),
                                    {"kernel_h": 14, "kernel_w": 14, "stride_h": 14, "stride_w": 14, "order": "chw"}, ranges={"x": (0, 256)}),
        ("im2col", "conv1d"): Case({"N": frames, "H": 1, "W": T // frames, "C": 1280, "T": T, "K": 3840}, bf("x", "out"), {"kernel_w": 3, "pad_w": 1}),
        ("resize_pad", "triangle"): Case({"T": frames, "H": 480, "W": 640, "C": 3, "OH": 224, "OW": 224}, {"x": "u8", "out": "u8"}, ranges={"x": (0, 256)}),
        ("resize_pad", "linear"): Case({"T": frames, "H": 480, "W": 640, "C": 3, "OH": 224, "OW": 224}, {"x": "u8"} | bf("out"), {"filter": "linear"}, ranges={"x": (0, 256)}),
        ("stft_mel", "30s"): Case({"B": frames, "N": 480000, "W": 400, "F": 201, "M": 80, "T": 3000 * frames}, {"x": "f32", "window": "f32", "filters": "f32", "out": "f32", "peak": "f32"}, positive=("window", "filters")),
        ("mel_clamp", "30s"): Case({"B": frames, "M": 80, "T": 3000 * frames}, {"x": "f32", "peak": "f32"} | bf("out"), ranges={"x": (-10.0, 3.0), "peak": (1.0, 3.0)}),
        ("lstm_cell", "vad"): Case({"T": T, "H": 128}, {"gates": "f32", "cell": "f32", "out": "f32"}),
        ("resample", "44100"): Case({"B": frames, "N": 44100, "U": 160, "K": 134, "O": 16000}, {"x": "f32", "filter": "f32", "out": "f32"}, {"down": 441, "first": -66}),
        ("repeat_heads", "4x"): Case({"T": T, "Hkv": max(1, H // 512), "Hq": 4 * max(1, H // 512), "D": 128}, bf("x", "out")),
        ("softmax", "rows"): Case(one, bf("x", "out")),
        ("rope", "half"): Case({"T": T, "N": H // 128, "D": 128, "R": 64}, bf("x", "out") | {"inv_freq": "f32", "pos": "i32"}, ranges=pos, values=freq),
        ("qkv_rope", "split"): Case(heads, bf("qkv", "q", "k_out", "v_out") | {"inv_freq": "f32", "pos": "i32"}, ranges=pos, values=freq),
        ("qkv_rope", "norm"): Case(heads, bf("qkv", "q", "k_out", "v_out", "q_norm", "k_norm") | {"inv_freq": "f32", "pos": "i32"}, ranges=pos, values=freq),
        ("quantize", "tensor"): Case(one, bf("x") | {"out": "e4m3", "out_scale": "f32"}, positive=("out_scale",)),
        ("quantize", "row"): Case(one, bf("x") | {"out": "e4m3", "row_scale": "f32"}),
        ("quantize", "block"): Case(one, bf("x") | {"out": "e4m3", "block_scale": "f32"}),
        ("dequantize", "row"): Case(one, {"x": "e4m3"} | bf("out") | {"row_scale": "f32"}, positive=("row_scale",)),
        ("gate_residual", "add"): Case(one, bf("x", "residual", "out")),
        ("gate_residual", "gated"): Case(one | {"R": 1}, bf("x", "residual", "gate", "out")),
        ("reduce", "amax"): Case(one, bf("x") | {"out": "f32"}, {"kind": "amax"}),
        ("reduce", "sum"): Case(one, bf("x") | {"out": "f32"}),
        ("fill", "value"): Case(one, bf("out"), {"value": 1.5}),
        ("embedding", "bf16"): Case(one | {"V": 32000}, bf("table", "out") | {"ids": "i32"}, ranges={"ids": (0, 32000)}),
    }
    return cases.get((op, variant))


GPU_VARIANTS = {
    "norm": ("rms", "add_rms", "add_rms_fp8", "rms_fp8_row", "layer"), "act_mul": ("swiglu", "swiglu_fp8", "gelu_split"),
    "cast": ("copy", "fp8", "f32"), "softmax": ("rows",), "rope": ("half",), "qkv_rope": ("split", "norm"), "embedding": ("bf16",),
    "quantize": ("tensor", "row", "block"), "dequantize": ("row",), "gate_residual": ("add", "gated"), "reduce": ("amax", "sum"), "fill": ("value",),
    "im2col": ("patches", "conv1d"), "resize_pad": ("triangle", "linear"), "stft_mel": ("30s",), "mel_clamp": ("30s",), "resample": ("44100",), "lstm_cell": ("vad",), "repeat_heads": ("4x",),
}
_DRAW = {"logits": "f32", "token": "i32", "temperature": "f32", "seed": "i64", "step": "i32"}
_OPTIONS = {"seed": (0, 1 << 30), "step": (0, 1000), "top_k": (40, 41), "top_p": (0.95, 0.950001), "temperature": (0.7, 0.700001), "counts": (0, 2), "repetition": (1.1, 1.100001)}
GPU_SAMPLE = {  # variant -> case
    "topk_topp": Case({"T": 32, "V": 152064}, _DRAW | {"top_k": "i32", "top_p": "f32"}, ranges=_OPTIONS),
    "topk_topp_one": Case({"T": 1, "V": 152064}, _DRAW | {"top_k": "i32", "top_p": "f32"}, ranges=_OPTIONS),
    "penalty_one": Case({"T": 1, "V": 152064, "S": 1}, _DRAW | {"top_k": "i32", "top_p": "f32", "counts": "i32", "repetition": "f32"}, ranges=_OPTIONS),
    "topp": Case({"T": 32, "V": 152064}, _DRAW | {"top_p": "f32"}, ranges=_OPTIONS),
}
