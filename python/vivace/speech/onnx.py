"""Tensors of an ONNX file: the initializers of its graph, and nothing that runs."""
from __future__ import annotations

import numpy as np

from vivace import files
from vivace.errors import CorruptDataError, UnsupportedError

_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_DIMS, _TYPE, _FLOATS, _NAME, _RAW = 1, 2, 4, 8, 9
_FLOAT = 1
_MOST_TENSORS, _MOST_AXES = 4096, 8


def _varint(data, at, file) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise CorruptDataError(f"{file}: a number has no end")


def _fields(data, file):
    """(number, value) of each field of a message: whole numbers, and bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at, file)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at, file)
        elif kind in (1, 2, 5):
            size, at = _varint(data, at, file) if kind == 2 else (8 if kind == 1 else 4, at)
            if size > len(data) - at:
                raise CorruptDataError(f"{file}: a field says {size} bytes, its message ends after {len(data) - at}")
            value, at = data[at:at + size], at + size
        else:
            raise CorruptDataError(f"{file}: a field of kind {kind}: no ONNX file")
        yield key >> 3, value


def _tensor(data, file) -> tuple[str, np.ndarray]:
    dims, kind, raw, name = [], None, b"", ""
    for number, value in _fields(data, file):
        if number in (_DIMS, _TYPE) and not isinstance(value, int) or number in (_FLOATS, _NAME, _RAW) and isinstance(value, int):
            raise CorruptDataError(f"{file}: field {number} of a tensor is of another kind")
        if number == _DIMS:
            dims.append(value)
        elif number == _TYPE:
            kind = value
        elif number == _NAME:
            name = bytes(value).decode("utf-8", "backslashreplace")
        elif number in (_RAW, _FLOATS):
            raw = value
    if kind != _FLOAT:
        raise UnsupportedError(f"{file}: tensor {files.printable(name)}: wanted f32, got type {kind}")
    size = 4
    for n in dims:
        size *= n
    if len(dims) > _MOST_AXES or size != len(raw):
        raise CorruptDataError(f"{file}: tensor {files.printable(name)}: {dims[:_MOST_AXES]} of f32 is {size} bytes, the file has {len(raw)}")
    return name, np.frombuffer(raw, "<f4").reshape(dims)


def initializers(file) -> dict[str, np.ndarray]:
    """Views of the file's bytes by name. Errors: NotFoundError, IoError, LimitExceededError, CorruptDataError; UnsupportedError for others than f32."""
    graphs = [v for number, v in _fields(memoryview(files.read_bytes(file)), file) if number == _MODEL_GRAPH]
    if len(graphs) != 1 or isinstance(graphs[0], int):
        raise CorruptDataError(f"{file}: wanted one graph, got {len(graphs)}: no ONNX file")
    out = {}
    for number, value in _fields(graphs[0], file):
        if number != _GRAPH_INITIALIZER:
            continue
        if isinstance(value, int) or len(out) >= _MOST_TENSORS:
            raise CorruptDataError(f"{file}: its tensors are none, or more than {_MOST_TENSORS}")
        name, w = _tensor(value, file)
        if name in out:
            raise CorruptDataError(f"{file}: tensor {files.printable(name)} is there twice")
        out[name] = w
    return out
