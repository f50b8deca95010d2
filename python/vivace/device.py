"""The GPUs of this machine: one query, info(), and the questions that programs ask of it.

Everything here raises UnsupportedError with what is missing where there is no usable driver or GPU.
"""
from functools import lru_cache

from vivace import _core
from vivace._core import device_count as count

__all__ = ["count", "get_sm_version", "has_fp8", "has_green_contexts", "has_nvfp4", "has_pdl", "has_wgmma", "info", "is_integrated", "state"]


@lru_cache(maxsize=None)
def info(device: int = 0) -> dict:
    """What the chip is and can do: name, arch ("sm_90a"), sm_count, memory_bytes, smem_per_block, fp8, fp4, ..."""
    return _core.device_info(device)


def state(device: int = 0) -> dict:
    """Memory, clocks and temperature now."""
    return _core.device_state(device)


def get_sm_version(device: int = 0) -> int:
    """Compute capability x 10: 90 for an H200."""
    return info(device)["capability"]


def has_nvfp4(device: int = 0) -> bool:
    """Whether the tensor cores multiply 4-bit floats."""
    return info(device)["fp4"]


def has_fp8(device: int = 0) -> bool:
    return info(device)["fp8"]


def has_wgmma(device: int = 0) -> bool:
    return info(device)["wgmma"]


def has_pdl(device: int = 0) -> bool:
    """Whether a kernel may start before its predecessor ends (programmatic dependent launch)."""
    return info(device)["pdl"]


def has_green_contexts(device: int = 0) -> bool:
    return info(device)["green_contexts"]


def is_integrated(device: int = 0) -> bool:
    """Whether GPU and CPU share one memory."""
    return info(device)["integrated"]
