"""Device memory for the op tests: torch tensors behind the slots of tests/op_data.py.

VIVACE_TEST_DEVICE names torch's device: "cuda", "cuda:1"; "torch-cpu" runs the same path on host tensors,
so that this file is tested where there is no GPU.
"""
import os

import numpy as np
import torch

import vivace

NAME = os.environ["VIVACE_TEST_DEVICE"].removeprefix("torch-")
ON_GPU = NAME != "cpu"
TORCH = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "i64": torch.int64, "i32": torch.int32,
    "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
}
_arena = None  # (tensor, bytes in use): see arena()


class arena:  # noqa: N801
    """`with arena(size) as a:` slots made inside lie in one tensor `a`, which one copy resets."""

    def __init__(self, size):
        self.memory, self.used = torch.full((size,), 0xFF, dtype=torch.uint8, device=NAME), 0

    def __enter__(self):
        global _arena
        assert _arena is None, "arenas do not nest"
        _arena = self
        return self

    def __exit__(self, *_):
        global _arena
        _arena = None

    def take(self, size):
        at, self.used = self.used, self.used + -(-size // 512) * 512
        if self.used > self.memory.numel():
            raise MemoryError(f"arena of {self.memory.numel()} bytes is too small, wanted {self.used}")
        return self.memory[at : at + size]


def allocate(size):
    return _arena.take(size) if _arena else torch.empty(size, dtype=torch.uint8, device=NAME)


def upload(to, array):
    to.copy_(torch.from_numpy(array))


def download(array, tensor):
    array[...] = tensor.cpu().numpy()


def typed(slot):
    """The slot's rows as a tensor of its dtype."""
    dtype = TORCH[slot.dtype]
    strides = [s // dtype.itemsize for s in slot.strides()]
    at = slot.store.storage_offset() + slot.start
    whole = torch.empty(0, dtype=dtype, device=NAME).set_(slot.store.untyped_storage())
    return whole.as_strided(slot.shape, strides, at // dtype.itemsize)


def rows(slot):
    """The slot's rows as bytes, for vivace.view()."""
    return slot.store.as_strided(slot.bytes.shape, (slot.pitch, 1), slot.store.storage_offset() + slot.start)


class Capture:
    """What vivace.Capture is for host memory: here a CUDA graph of torch's, on a stream of its own."""

    def __init__(self):
        self.graph, self.stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()

    def __enter__(self):
        torch.cuda.synchronize()
        self.context = torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local")
        self.context.__enter__()
        return self

    def __exit__(self, *error):
        return self.context.__exit__(*error)

    def replay(self):
        self.graph.replay()


if not ON_GPU:
    Capture = vivace.Capture  # noqa: F811
