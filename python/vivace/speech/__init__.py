"""Speech to text: vivace.load_model("whisper-tiny.en").transcribe("talk.wav").

Importing it loads nothing: the command line asks it for its options.
"""
import importlib

# Name -> the module that has it, imported at first use, and its name there.
_lazy = {"FORMATS": ("formats", "FORMATS"), "written": ("formats", "written"), "SpeechModel": ("model", "SpeechModel"), "is_speech": ("model", "is_speech"), "load_speech": ("model", "load_speech"),
         "Segment": ("result", "Segment"), "Transcription": ("result", "Transcription"), "Word": ("result", "Word"), "VadSettings": ("vad", "Settings"),
         "SpeechStream": ("stream", "SpeechStream"), "Heard": ("stream", "Heard")}

__all__ = list(_lazy)


def __getattr__(name):
    if name not in _lazy:
        raise AttributeError(f"module 'vivace.speech' has no attribute {name!r}")
    module, attribute = _lazy[name]
    value = globals()[name] = getattr(importlib.import_module(f"vivace.speech.{module}"), attribute)
    return value


def __dir__():
    return sorted(__all__)
