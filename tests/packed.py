"""Fixtures that are kept as .xz, because the repository has a size: their contents by the name without it.
Tensors of 32 bits are smallest by `xz --lzma2=preset=9e,lc=2,lp=2,pb=2`."""
import functools
import json
import lzma
import tempfile
from pathlib import Path

from safetensors.numpy import load


def packed_json(path):
    return json.loads(lzma.open(f"{path}.xz").read())


def packed_tensors(path):
    """{name: array} of a safetensors file."""
    return load(lzma.open(f"{path}.xz").read())


@functools.cache
def folder():
    return tempfile.TemporaryDirectory(prefix="vivace-fixtures-")


@functools.cache
def packed_file(path):
    """Where a file of these contents is, for what reads files; it is gone when the process ends."""
    place = Path(folder().name) / Path(path).name
    place.write_bytes(lzma.open(f"{path}.xz").read())
    return place
