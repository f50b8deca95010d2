"""Vivace: a real-time inference engine for robots, agents and speech.

    import vivace
    model = vivace.load_model("model.gguf")

Importing it loads the core and nothing else; what needs more is imported at first use.
"""
import importlib
from typing import TYPE_CHECKING

from vivace import _core, errors
from vivace._core import Capture, View, threads
from vivace.errors import *  # noqa: F403  Error, InvalidShapeError, ...

if TYPE_CHECKING:  # what is imported at first use, for editors and type checkers
    from vivace import array, attention, calibrate, control, device, jit, ops, policy, policy_client, policy_host, robot_client, schedule, verify  # noqa: F401
    from vivace.array import Array  # noqa: F401
    from vivace.loaded import Loaded as Model  # noqa: F401
    from vivace.model import load_model  # noqa: F401
    from vivace.policy_client import PolicyClient  # noqa: F401
    from vivace.policy_host import PolicyHost  # noqa: F401
    from vivace.robot_client import RobotClient  # noqa: F401
    from vivace.schedule import Scheduler, best_effort, burstable, guaranteed  # noqa: F401

__version__ = _core.__version__

# Name -> the module that has it, imported at first use, and its name there: None is the module itself.
_lazy = {"load_model": ("vivace.model", "load_model"), "Model": ("vivace.loaded", "Loaded"), "Array": ("vivace.array", "Array"), "PolicyClient": ("vivace.policy_client", "PolicyClient"), "PolicyHost": ("vivace.policy_host", "PolicyHost"), "RobotClient": ("vivace.robot_client", "RobotClient"),
         **{name: ("vivace.schedule", name) for name in ("Scheduler", "best_effort", "burstable", "guaranteed")},
         **{name: (f"vivace.{name}", None) for name in ("array", "attention", "audio", "calibrate", "control", "device", "jit", "ops", "policy", "policy_client", "policy_host", "robot_client", "schedule", "speech", "verify")}}

__all__ = ["Capture", "View", "__version__", "set_threads", "threads", "view", *errors.__all__, *_lazy]


def view(array, *, dtype, shape):
    """The dense memory of `array` read as another dtype, block formats among them: view(u8, dtype="q4_1", shape=(4, 64))."""
    try:
        return _core.view(array, dtype=dtype, shape=shape)
    except TypeError:
        from vivace import options

        if array is None:
            raise options.wrong("view", "array", "memory", array) from None
        return _core.view(array, dtype=options.one("view", "dtype", options.text, dtype), shape=options.one("view", "shape", options.dims, shape))


def set_threads(n) -> None:
    """Number of threads that CPU ops use, the calling one included; 0 means one a physical core.

    Captures made before it can no longer be replayed."""
    try:
        _core.set_threads(n)
    except TypeError:
        from vivace import options

        _core.set_threads(options.one("set_threads", "n", options.whole(0, 1024), n))


def __getattr__(name):
    if name not in _lazy:
        raise AttributeError(f"module 'vivace' has no attribute {name!r}")
    module, attribute = _lazy[name]
    value = importlib.import_module(module)
    if attribute is not None:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
