"""Vivace: a real-time inference engine for robots, agents and speech.

    import vivace
    model = vivace.load_model("model.gguf")

Importing it loads the core and nothing else; what needs more is imported at first use.
"""
import importlib

from vivace import _core, errors
from vivace._core import Capture, View, set_threads, threads, view
from vivace.errors import *  # noqa: F403  Error, InvalidShapeError, ...

__version__ = _core.__version__

# Name -> the module that has it, imported at first use.
_lazy = {"ops": "vivace.ops", "load_model": "vivace.model", "Model": "vivace.model", "Array": "vivace.array", "array": "vivace.array",
         "attention": "vivace.attention",
         "device": "vivace.device", "jit": "vivace.jit"}

__all__ = ["Capture", "View", "__version__", "set_threads", "threads", "view", *errors.__all__, *_lazy]


def __getattr__(name):
    if name not in _lazy:
        raise AttributeError(f"module 'vivace' has no attribute {name!r}")
    module = importlib.import_module(_lazy[name])
    value = module if module.__name__ == f"vivace.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
