"""What load_model(), generate(), load_policy() and control.Runner take, by name: each value is looked at before the core sees it, so that a wrong one is an
InvalidArgumentError that names the option, what is wanted and what came, and not a signature of the core's."""
from __future__ import annotations

import difflib
import inspect
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from vivace import _core
from vivace.errors import InvalidArgumentError
from vivace.files import printable

INT32, INT64 = 1 << 31, 1 << 63


def shown(value) -> str:
    """A value as an error tells it: short, printable, whatever its class does."""
    try:
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return f"{type(value).__name__} {tuple(value.shape)} of {value.dtype}"
        text = printable(repr(value), 60)
    except Exception:  # of a class of the caller's
        return type(value).__name__
    return text if type(value) in (int, float, str, bytes, list, tuple, dict, set, bool, type(None)) else f"{type(value).__name__} {text}"


def wrong(call: str, name: str, wanted: str, value) -> InvalidArgumentError:
    return InvalidArgumentError(f"{call}: {name}: wanted {wanted}, got {shown(value)}")


class Bad(Exception):
    """A value that an option does not take; its text is what is wanted."""


def whole(low: int, high: int) -> Callable:
    """A whole number from low to high; NumPy's count, booleans and floats do not."""
    def read(value):
        try:
            n = operator.index(value) if not isinstance(value, bool) else None
        except TypeError:
            n = None
        if n is None or not low <= n <= high:
            raise Bad(f"a whole number from {low} to {high}")
        return n

    return read


def number(value) -> float:
    """A finite number; ranges are the engine's to judge."""
    try:
        n = float(value) if not isinstance(value, (str, bytes, bool)) else None
    except (TypeError, ValueError, OverflowError):
        n = None
    if n is None or not math.isfinite(n) or abs(n) > 3.4028234663852886e38:
        raise Bad("a finite number")
    return n


def real(value) -> float:
    """Any number, infinite ones and NaN too, where the core judges them."""
    try:
        return float(value) if not isinstance(value, (str, bytes, bytearray, bool)) else number(value)
    except Bad:
        raise Bad("a number") from None
    except Exception:  # what a class of the caller's raises, an int beyond f64
        raise Bad("a number") from None


def positive(value) -> float:
    try:
        n = number(value)
    except Bad:
        n = 0.0
    if n <= 0:
        raise Bad("a positive number")
    return n


def percent(low: int) -> Callable:
    """Above `low`, to 100."""
    def read(value) -> float:
        n = number(value)
        if not low < n <= 100:
            raise Bad(f"a value above {low}, to 100")
        return n

    return read


def text(value) -> str:
    if not isinstance(value, str):
        raise Bad("a text")
    return value


def utf8(value) -> str:
    """A text that has bytes: what is no UTF-8 comes as surrogates."""
    try:
        text(value).encode()
    except UnicodeEncodeError:
        raise Bad("a text that is UTF-8") from None
    return value


def path(value) -> str:
    try:
        name = os.fspath(value)
    except TypeError:
        name = None
    if not isinstance(name, str) or "\0" in name:
        raise Bad("a path or a name as text")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Bad("a path or a name that is UTF-8") from None
    return name


def flag(value) -> bool:
    if not (isinstance(value, (bool, int)) or type(value).__name__ in ("bool_", "bool")) or value not in (0, 1):
        raise Bad("True or False")
    return bool(value)


def floats(value):
    """Numbers of any shape as a dense f32 array; those beyond f32 become infinite, which the core refuses."""
    import numpy

    try:
        array = numpy.asarray(value)
        if array.dtype.kind not in "OSUMmcb":  # objects, texts, times, complex numbers, booleans
            with numpy.errstate(all="ignore"):
                return numpy.ascontiguousarray(array, numpy.float32).reshape(array.shape)
    except Exception as e:  # whatever a foreign array's conversion raises
        raise Bad(f"numbers ({type(e).__name__}: {printable(str(e), 80)})") from None
    raise Bad("numbers")


def frames(value) -> list:
    """A frame, or None, a camera; what a frame is, the core looks at."""
    if isinstance(value, (str, bytes, bytearray, dict, set, frozenset)) or not hasattr(value, "__iter__"):
        raise Bad("a list with a frame, or None, for each camera in order")
    try:
        return list(value)
    except Exception:
        raise Bad("a list with a frame, or None, for each camera in order") from None


def flags(value) -> list[bool]:
    """A sequence of booleans."""
    if isinstance(value, (str, bytes, bytearray, dict, set, frozenset)) or not hasattr(value, "__iter__"):
        raise Bad("a sequence of True and False")
    try:
        return [flag(v) for v in value]
    except Bad:
        raise Bad("a sequence of True and False") from None


def token_ids(value) -> list[int]:
    """A sequence of token ids: lists, tuples, ranges, arrays. Text, bytes, sets and dicts are none, though their items may be numbers."""
    if isinstance(value, (str, bytes, bytearray, set, frozenset, dict)):
        raise Bad("a sequence of token ids")
    one = whole(-INT32, INT32 - 1)
    try:
        return [one(v) for v in value]
    except TypeError:
        raise Bad("a sequence of token ids") from None
    except Bad:
        raise Bad("token ids, each a whole number below 2^31") from None


def dims(value) -> list[int]:
    """A shape: whole numbers; what they may be, the core judges."""
    read = whole(-INT64, INT64 - 1)
    if isinstance(value, (str, bytes, bytearray, set, frozenset, dict)):
        raise Bad("a shape: a whole number for each axis")
    try:
        return [read(n) for n in value]
    except (TypeError, Bad):
        raise Bad("a shape: a whole number for each axis") from None


def prompt_ids(value) -> list[int]:
    try:
        return token_ids(value)
    except Bad:
        raise Bad("a text, a list of messages, or token ids, each below 2^31") from None


def texts(value) -> list[str]:
    """A text or several."""
    items = [value] if isinstance(value, str) else [] if isinstance(value, (bytes, bytearray)) or not hasattr(value, "__iter__") else list(value)
    if not all(isinstance(i, str) for i in items) or (not items and not (isinstance(value, (list, tuple)))):
        raise Bad("a text or a sequence of texts")
    return items


def stops(value) -> list:
    """What ends an answer: a text or several, or token ids."""
    try:
        return texts(value)
    except Bad:
        pass
    try:
        return token_ids(value)
    except Bad:
        raise Bad("a text, a sequence of texts, or one of token ids, each a whole number below 2^31") from None


def plain_list(value) -> list:
    if not isinstance(value, (list, tuple)):
        raise Bad("a list")
    return list(value)


def biases(value) -> dict[int, float]:
    """{token: value}; -inf forbids."""
    if not hasattr(value, "items"):
        raise Bad("a dict {token: value added to its logit}")
    token, out = whole(-INT32, INT32 - 1), {}
    for k, v in value.items():
        try:
            out[token(k)] = v if isinstance(v, float) else number(v)  # the range is the vocabulary's and f32's
        except Bad:
            raise Bad(f"a dict of token ids and numbers; {shown(k)}: {shown(v)} is none") from None
    return out


def names(value) -> list[str]:
    """A sequence of texts; a text alone is none."""
    if isinstance(value, (str, bytes, bytearray, dict)) or not hasattr(value, "__iter__"):
        raise Bad("a sequence of names")
    items = list(value)
    if not all(isinstance(i, str) for i in items):
        raise Bad("a sequence of names")
    return [utf8(i) for i in items]


def entries(value) -> dict:
    if not isinstance(value, dict) or not all(isinstance(k, str) for k in value):
        raise Bad("a dict with texts as keys")
    return value


def callable_(value):
    if not callable(value):
        raise Bad("a function")
    return value


def among(*names: str) -> Callable:
    """One of these words."""
    def read(value):
        if not isinstance(value, str) or value not in names:
            raise Bad(" or ".join(names))
        return value

    return read


def pages(value) -> int:
    """A number of KV blocks as the core takes it."""
    if isinstance(value, str) and value in ("auto", "full"):
        return {"auto": -2, "full": -1}[value]
    try:
        n = whole(-INT32, INT32 - 1)(value)
    except Bad:
        n = -1
    if n < 0:
        raise Bad("auto, full or a whole number from 0 on")
    return n


def place(value):
    """A tenant's place at a scheduler."""
    if not isinstance(value, _core.Tenant):
        raise Bad("what a vivace.Scheduler's load_model() gives")
    return value


def embodiment(value):
    """A number, or a name of the checkpoint's embodiment_id.json."""
    if isinstance(value, str):
        return utf8(value)
    try:
        return whole(0, INT32 - 1)(value)
    except Bad:
        raise Bad("a number from 0 on, or a name of the checkpoint's embodiment_id.json") from None


def maybe(read: Callable) -> Callable:
    return lambda value: None if value is None else read(value)


GENERATE = {
    "max_tokens": maybe(whole(-INT32, INT32 - 1)), "temperature": maybe(number), "top_k": maybe(whole(-INT32, INT32 - 1)), "top_p": maybe(number), "min_p": maybe(number),
    "repetition_penalty": maybe(number), "presence_penalty": number, "frequency_penalty": number, "seed": whole(0, INT64 - 1), "stop": stops,
    "stop_text": texts, "logit_bias": maybe(biases), "mask": maybe(callable_), "min_tokens": whole(-INT32, INT32 - 1), "json_schema": maybe(lambda v: v), "regex": maybe(utf8), "grammar": maybe(utf8),
    "draft": maybe(lambda v: v), "num_speculative_tokens": whole(-INT32, INT32 - 1),
    "priority": among("robot", "interactive", "batch"), "deadline": maybe(positive), "salt": utf8, "reuse": flag, "deterministic": flag,
    "top_logprobs": whole(0, 20),
}
DRAWN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")  # None: as the checkpoint says, else off
PROMPT = {"tools": maybe(plain_list), "enable_thinking": maybe(flag), "images": maybe(plain_list)}  # of messages, for the checkpoint's template


class Draws(TypedDict, total=False):
    """The options of generate() as editors and type checkers see them; GENERATE reads them."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop: str | Sequence[str] | Sequence[int]
    stop_text: str | Sequence[str]
    logit_bias: Mapping[int, float] | None
    mask: Callable[[list[int]], Sequence[bool] | None] | None
    min_tokens: int
    json_schema: Any
    regex: str | None
    grammar: str | None
    draft: Any
    num_speculative_tokens: int
    priority: Literal["robot", "interactive", "batch"]
    deadline: float | None
    salt: str
    reuse: bool
    deterministic: bool
    top_logprobs: int


class Options(Draws, total=False):
    """Those of calls that take messages."""

    tools: list[Any] | None
    enable_thinking: bool | None
    images: list[Any] | None


def shows(method, kind, *defaults) -> None:
    """Of a method with **options: help() and inspect show them by name, with the defaults that the functions `defaults` have."""
    known = {n: p.default for f in defaults for n, p in inspect.signature(f).parameters.items() if p.default is not p.empty}
    signature = inspect.signature(method)
    given = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    named = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None if n in DRAWN else known.get(n), annotation=getattr(a, "__forward_arg__", a)) for n, a in kind.__annotations__.items()]
    method.__signature__ = signature.replace(parameters=[*given, *named])


def completed(given: dict, defaults: dict) -> dict:
    """Options as the core takes them: the checkpoint's `defaults` for those that were not given or None, `stop` by what it holds."""
    if given.get("draft") not in (None, "off"):
        defaults = {}  # guesses are for answers without penalties
    out = defaults | {n: v for n, v in given.items() if v is not None}
    if out.get("stop") and isinstance(out["stop"][0], str):
        out["stop_text"] = [*out.get("stop_text", ()), *out.pop("stop")]
    return out


LOAD = {
    "device": text, "precision": text, "kv_dtype": text, "lm_head_dtype": text, "invariance": text, "decode_layers": text, "random_weights": flag, "logit_bias": flag, "generation_config": flag, "percentile": percent(50),
    **{name: whole(-INT32, INT32 - 1) for name in ("threads", "context", "max_batch", "prefill_chunk", "max_in_flight_steps", "gpu_layers", "max_waiting", "max_image_tokens", "mtp")},
    "num_kv_blocks": pages, "tenant": maybe(place), "state_cache_bytes": maybe(whole(0, INT64 - 1)),
    "max_waiting_tokens": whole(1, INT64 - 1), "priority_ageing": real,
}
POLICY = {
    **dict.fromkeys(("config", "device", "precision", "expert", "resize", "statistics", "robot"), utf8), "delta": flags, "random_weights": flag, "percentile": percent(0), "partition": maybe(real), "keep_partition": flag,
    "tokenizer": maybe(path), "codec": path, "calibration": maybe(lambda v: v), "tenant": maybe(place), "embodiment": maybe(embodiment),
    **{name: whole(-INT32, INT32 - 1) for name in ("num_views", "action_horizon", "num_steps", "batch", "prompt_tokens", "threads", "max_action_tokens")},
}
OBSERVATION = {  # but for the prompt, which is text or token ids
    "images": frames, "state": maybe(floats), "noise": maybe(floats), "action_prefix": maybe(floats), "future_actions": maybe(floats), "future_steps": flag, "seed": maybe(whole(0, (1 << 64) - 1)), "end_token": maybe(whole(-INT32, INT32 - 1)),
    "embodiment": maybe(embodiment), "prev_actions": maybe(floats), "overlap": whole(-INT32, INT32 - 1), "frozen": whole(-INT32, INT32 - 1),
}
CLIENT = {
    **dict.fromkeys(("host", "key", "join"), utf8), **{name: whole(-INT32, INT32 - 1) for name in ("port", "ask_after")}, "blend": maybe(whole(-INT32, INT32 - 1)),
    **dict.fromkeys(("max_action_age", "watchdog", "deadline", "connect", "answer", "wait", "most_wait"), real), "future_steps": flag,
}
CONNECTION = {"host": utf8, "key": utf8, "port": whole(1, 65535), "connect": positive, "answer": positive}
ROBOT = {"robot": utf8, "cameras": names}
HOST = {
    **dict.fromkeys(("address", "key", "prompt", "robot"), utf8), "cameras": names, "metadata": maybe(entries), "tokenizer": maybe(path), "seed": whole(0, (1 << 64) - 1),
    **{name: whole(-INT32, INT32 - 1) for name in ("port", "max_clients")}, **dict.fromkeys(("deadline", "idle"), real),
}
RUNNER = {
    **{name: whole(-INT32, INT32 - 1) for name in ("dims", "horizon", "network_dims", "ask_after")}, "join": utf8, "blend": maybe(whole(-INT32, INT32 - 1)), "max_step": floats,
    **dict.fromkeys(("max_action_age", "watchdog", "deadline"), real),
}


def checked(call: str, table: dict[str, Callable], given: dict) -> dict:
    """`given` with every value as the core takes it. Errors: InvalidArgumentError for an option that the table has not, and for a value."""
    out = {}
    for name, value in given.items():
        if name not in table:
            near = difflib.get_close_matches(name, table, 1, 0.5)
            raise InvalidArgumentError(f"{call}: no option {shown(name)}{f', did you mean {near[0]}?' if near else ';'} options: {', '.join(table)}")
        out[name] = one(call, name, table[name], value)
    return out


def one(call: str, name: str, read: Callable, value):
    try:
        return read(value)
    except Bad as e:
        raise wrong(call, name, str(e), value) from None
    except Exception as e:  # of a class of the caller's, which breaks when it is looked at
        raise wrong(call, name, f"a value that can be read ({type(e).__name__} came of it)", value) from e
