"""Where a GPU's arrays compute."""
from __future__ import annotations

import threading

from vivace import _core
from vivace.errors import InvalidArgumentError

_held = threading.local()


class stream:
    """`with array.stream(handle):` queues this thread's work with CUDA arrays, and its ops, on a CUDA stream: an integer handle, or what has
    `cuda_stream` (torch) or `ptr` (CuPy). Memory that another stream wrote is waited for on the device. The stream outlives the work."""

    def __init__(self, handle):
        found = handle
        for name in ("cuda_stream", "ptr"):
            found = getattr(handle, name, found)
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise InvalidArgumentError(f"array.stream: wanted a stream's integer handle, or an object with cuda_stream or ptr, got {handle!r}")
        self._handle = found

    def __enter__(self):
        stack = _held.__dict__.setdefault("stack", [])
        stack.append(self._handle)
        _core.set_stream(self._handle)
        return self

    def __exit__(self, *why):
        _held.stack.pop()
        _core.set_stream(_held.stack[-1] if _held.stack else None)
