"""CUDA's names on a host without a GPU: tensors asked for on a GPU are made on the host, where Vivace's ops run too.

What has no counterpart there, as a captured graph, skips the test that asks for it.
"""
import types

import pytest
import torch
from torch.overrides import TorchFunctionMode

CAPABILITY = (9, 0)  # that of the chip for which the tests are chosen


def _is_gpu(x):
    return isinstance(x, torch.device) and x.type == "cuda" or isinstance(x, str) and x.split(":")[0] == "cuda"


class _OnHost(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "cuda":  # Tensor.cuda()
            return args[0]
        if name == "to" and len(args) > 1 and isinstance(args[1], int) and not isinstance(args[1], bool):
            args = (args[0], "cpu", *args[2:])
        if _is_gpu(kwargs.get("device")) or name != "to" and isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        if kwargs.pop("pin_memory", None):
            pass
        return func(*("cpu" if _is_gpu(a) else a for a in args), **kwargs)


def _needs_gpu(what):
    class Needs:
        def __init__(self, *_, **__):
            pytest.skip(f"{what} needs a GPU")

    return Needs


def install():
    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.set_device = cuda.synchronize = cuda.empty_cache = cuda.manual_seed = cuda.manual_seed_all = lambda *_: None
    cuda.get_device_capability = lambda *_: CAPABILITY
    cuda.get_device_properties = lambda *_: types.SimpleNamespace(multi_processor_count=132, shared_memory_per_block_optin=232448, major=9, minor=0, total_memory=1 << 36, name="host")
    cuda.is_current_stream_capturing = lambda: False
    for name in ("CUDAGraph", "Stream", "Event", "graph"):
        setattr(cuda, name, _needs_gpu(f"torch.cuda.{name}"))
    torch.Tensor.pin_memory = lambda self, *_: self
    _OnHost().__enter__()
