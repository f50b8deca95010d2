"""e4m3 matrices with their scales, as others write them."""
import ml_dtypes
import numpy as np

EIGHT = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}


def compressed(weights, activations):
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": EIGHT | weights, "input_activations": EIGHT | activations, "output_activations": None}}}


SCHEMES = {"compressed channel": compressed({"strategy": "channel"}, {"strategy": "token", "dynamic": True}), "compressed tensor": compressed({"strategy": "tensor"}, {"strategy": "tensor"}),
           "compressed block": compressed({"strategy": "block", "block_structure": [128, 128]}, {"strategy": "group", "group_size": 128, "dynamic": True}),
           "compressed f16": compressed({"strategy": "channel"}, {"strategy": "token", "dynamic": True}),
           "fbgemm": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
           "modelopt tensor": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}, "modelopt rows": {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
           "fp8": {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}}
LAYOUTS = tuple(SCHEMES)
TYPES = {"compressed channel": ml_dtypes.bfloat16, "compressed tensor": ml_dtypes.bfloat16, "compressed block": ml_dtypes.bfloat16, "compressed f16": np.float16}


def quantized(w, layout, rng, powers=False):
    """(codes, scales as the layout has them). Scales are drawn around what fits, each its own. `powers`: they are powers of two, and each row has a 448."""
    N, K = w.shape
    down, across = -(-N // 128), -(-K // 128)
    shape = {"compressed tensor": (1, 1), "modelopt tensor": (1, 1), "fp8": (1, 1), "compressed block": (down, across)}.get(layout, (N, 1))
    fits = np.abs(w).max() / 448
    scale = (2.0 ** (np.ceil(np.log2(fits)) + rng.integers(0, 3, shape)) if powers else fits * rng.uniform(1, 3, shape)).astype(TYPES.get(layout, np.float32))
    codes = (w / spread(scale.astype(np.float32), w.shape)).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
    if powers:
        codes[np.arange(N), rng.integers(0, K, N)] = 448
    return codes, scale.reshape({"compressed tensor": (1,), "modelopt tensor": (), "fp8": (), "modelopt rows": (N,)}.get(layout, shape))


def spread(scale, shape):
    """A scale for each value."""
    if scale.size == 1:
        return np.full(shape, scale.reshape(()))
    if scale.size == shape[0] and scale.shape[-1] in (1, shape[0]):
        return np.repeat(scale.reshape(-1, 1), shape[1], 1)
    return np.repeat(np.repeat(scale, 128, 0), 128, 1)[:shape[0], :shape[1]]


def values_of(codes, scale):
    return codes.astype(np.float32) * spread(np.asarray(scale).astype(np.float32), codes.shape)
