"""Compiling at run time: your own kernels, and the warm-up of the ops'.

    import vivace
    scale = vivace.jit(source, "scale")                  # compiled at the first call, cached on disk
    scale(x, 2.0, n, grid=(n + 255) // 256, block=256)   # x: any device array; launched, not waited for

The module itself is the function. Source text is trusted like the program that passes it: never pass
text that came over a network.
"""
import sys
import types

from vivace import _core
from vivace._core import JitKernel, add_pack, forbid_compiling, kernel_timings

__all__ = ["JitKernel", "add_pack", "forbid_compiling", "jit", "kernel_timings", "prewarm"]

_nvrtc_path_added = False


def jit(source: str, name: str, *, label: str | None = None) -> JitKernel:
    """The kernel `name` of CUDA C++ `source`: an extern "C" name or an expression such as "ns::k<float>".
    `label` stands for the source in errors."""
    if not isinstance(source, str) or not isinstance(name, str):
        raise TypeError(f"jit: wanted source and name as str, got {type(source).__name__} and {type(name).__name__}")
    find_nvrtc()
    return _core.jit_kernel(source, name, label or name.split("<")[0] + ".cu")


def prewarm(ops=(), *, device: int = 0, progress=None) -> None:
    """Loads every kernel of `ops` (all by default), compiling in parallel those that no pack and no cache
    has. `progress(done, total, kernel)` is called after each."""
    find_nvrtc()
    _core.prewarm(list(ops), device, progress)


def find_nvrtc() -> None:
    """Lets the core find the NVRTC wheel of this Python environment."""
    global _nvrtc_path_added
    if not _nvrtc_path_added:
        import sysconfig

        _core.add_search_path(sysconfig.get_path("platlib"))
        _core.set_helper_command(_helper_command())
        _nvrtc_path_added = True


def _helper_command():
    """An interpreter that loads the core alone, for processes that compile; none in a program that embeds Python, whose
    sys.executable may be anything."""
    import os

    if not (sys.executable and os.path.basename(sys.executable).startswith("python")):
        return []
    load = "import importlib.machinery as m, importlib.util as u; s = u.spec_from_loader('_core', m.ExtensionFileLoader('_core', {0!r})); c = u.module_from_spec(s); s.loader.exec_module(c); c.serve_compiles()"
    return [sys.executable, "-I", "-S", "-c", load.format(_core.__file__)]


class _Callable(types.ModuleType):
    def __call__(self, source, name, *, label=None):
        return jit(source, name, label=label)


sys.modules[__name__].__class__ = _Callable
