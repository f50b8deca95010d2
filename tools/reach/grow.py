"""A wider network that answers as a narrower one does, before training goes on: new places hold zeros until something writes them.

What writes into a stream of values gets rows of zeros, what reads from it fresh columns, a new hidden unit fresh rows and, where it
is read, columns of zeros: each of them has a gradient. Norms divide by fewer values' worth, which their weights take back."""
import math

import torch

from .model import EMBED, EXPERT, PROJECTOR, TEXT, VISION, parameters

WRITES = ("out_proj.weight", "fc2.weight", "o_proj.weight", "down_proj.weight", "patch_embedding.weight", "position_embedding.weight", "action_in_proj.weight", ".dense.weight")


def grown(old: dict, was: dict, config: dict) -> dict:
    """Weights of `config`, of those of `was`; depths, sizes of heads and of pictures are the same."""
    old = {k: v.clone() for k, v in old.items()}
    _centre(old)
    less = {at: math.sqrt(was[tower]["width"] / config[tower]["width"]) for at, tower in ((VISION, "vision"), (TEXT, "text"), (EXPERT, "expert"))}
    old[EMBED] *= less[TEXT]  # what is looked up is multiplied by the root of the width
    _times(old, was, config)
    out = parameters(config, old[EMBED].shape[0])
    for name, new in out.items():
        have = old[name]
        at = next((t for t in less if name.startswith(t)), None)
        if name.endswith((".dense.weight", ".dense.bias")):  # scale, shift and gate, of which each grew
            scale, shift, gate = have.clone().chunk(3)
            one = float(name.endswith("bias"))
            scale = (scale + one) * less[at] - one
            parts = new.chunk(3)
            if name.endswith("weight"):
                new.zero_()
            for part, value in zip(parts, (scale, shift, gate)):
                _put(part, value)
            continue
        if "norm" in name and name.endswith("weight"):
            have = have * less[at] if at == VISION else (1 + have) * less[at] - 1
        if name == EMBED or name.endswith(WRITES) and not name.startswith("action_out_proj"):
            new.zero_()
        elif name == PROJECTOR + ".weight":
            new[have.shape[0]:] = 0
        elif name == "time_mlp_out.weight":
            new[:have.shape[0], have.shape[1]:] = 0
        _put(new, have)
    return out


def _put(new, have):
    new[tuple(slice(n) for n in have.shape)] = have


def _centre(p):
    """LayerNorm takes a mean away, which is another one among more values: none is left to take."""
    for name, w in p.items():
        if name.startswith(VISION) and name.endswith(("out_proj.weight", "fc2.weight", "patch_embedding.weight", "out_proj.bias", "fc2.bias", "patch_embedding.bias")):
            w -= w.mean(0, keepdim=True)
        elif name.startswith(VISION) and "position" in name:
            w -= w.mean(1, keepdim=True)


def _times(p, was, config):
    """A time is told in as many waves as half the width: what the old ones were read as, of the new ones, by least squares."""
    t = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]

    def waves(width):
        half = width // 2
        angle = 2 * math.pi * t / (4e-3 * (4.0 / 4e-3) ** (torch.arange(half, dtype=torch.float64) / (half - 1)))
        return torch.cat([angle.sin(), angle.cos()], 1)

    old, new = waves(was["expert"]["width"]), waves(config["expert"]["width"])
    want = old @ p["time_mlp_in.weight"].double().T
    square = new.T @ new + 1e-4 * len(t) * torch.eye(new.shape[1], dtype=torch.float64)
    p["time_mlp_in.weight"] = torch.linalg.solve(square, new.T @ want).T.float()
