"""Random weights of drawn sizes as a hub folder: what SmolVLA's and Whisper's cases share."""
import json

import numpy as np
from safetensors.numpy import save_file


def write(seed, shapes, config, folder):
    """{name: f32}: products keep the size of what enters, norms and biases are near one and near none."""
    rng, out = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            value = rng.standard_normal(shape) * (0.3 if "position" in name else 1 if "embed_tokens" in name else 1.2 / np.sqrt(np.prod(shape[1:])))
        else:
            value = 0.2 * rng.standard_normal(shape) + ("norm" in name and name.endswith("weight"))
        out[name] = value.astype(np.float32)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(out, folder / "model.safetensors")
    return out
