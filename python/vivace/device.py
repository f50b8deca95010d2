"""The GPUs of this machine: one query, info(), and the questions that programs ask of it.

Where there is no usable driver or GPU, has_...() and is_integrated() are False and the others raise UnsupportedError with
what is missing.
"""
from functools import lru_cache

from vivace import _core
from vivace._core import device_count as count
from vivace.errors import UnsupportedError
from vivace.options import INT32, one, whole

__all__ = ["count", "get_sm_version", "has_fp8", "has_green_contexts", "has_nvfp4", "has_pdl", "has_wgmma", "info", "is_integrated", "state"]


_info = lru_cache(maxsize=None)(_core.device_info)


def _number(call: str, device) -> int:
    return one(call, "device", whole(-INT32, INT32 - 1), device)


def info(device: int = 0) -> dict:
    """What the chip is and can do: name, arch ("sm_90a"), sm_count, memory_bytes, smem_per_block, fp8, fp4, ..."""
    return _info(_number("info", device))


def state(device: int = 0) -> dict:
    """Memory, clocks and temperature now."""
    return _core.device_state(_number("state", device))


def get_sm_version(device: int = 0) -> int:
    """Compute capability x 10: 90 for an H200."""
    return info(device)["capability"]


def _has(what: str, device: int) -> bool:
    """False where there is no GPU to have it."""
    try:
        return info(device)[what]
    except UnsupportedError:
        return False


def has_nvfp4(device: int = 0) -> bool:
    """Whether the tensor cores multiply 4-bit floats."""
    return _has("fp4", device)


def has_fp8(device: int = 0) -> bool:
    return _has("fp8", device)


def has_wgmma(device: int = 0) -> bool:
    return _has("wgmma", device)


def has_pdl(device: int = 0) -> bool:
    """Whether a kernel may start before its predecessor ends (programmatic dependent launch)."""
    return _has("pdl", device)


def has_green_contexts(device: int = 0) -> bool:
    return _has("green_contexts", device)


def is_integrated(device: int = 0) -> bool:
    """Whether GPU and CPU share one memory."""
    return _has("integrated", device)
