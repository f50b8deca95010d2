"""Fixtures that are kept as .xz, because the repository has a size: their contents by the name without it."""
import json
import lzma

from safetensors.numpy import load


def packed_json(path):
    return json.loads(lzma.open(f"{path}.xz").read())


def packed_tensors(path):
    """{name: array} of a safetensors file."""
    return load(lzma.open(f"{path}.xz").read())
