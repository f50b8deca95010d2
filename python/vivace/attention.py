"""Attention with hooks of your own, compiled into the kernels that ops.attention runs.

    from vivace import attention
    soft = attention.variant(logits="s + bias[h, j - pos + 8]", mask="abs(j - pos) <= reach", extra={"bias": "f32", "reach": int})
    soft(q=q, k=k, v=v, out=out, mask="full", bias=bias, reach=4)

One variant serves decode, chunks and prefill, dense and paged keys, every chip. The first call of a kind compiles
(about a second, cached). docs/attention-variants.md has the hooks and three worked examples.
"""
from dataclasses import dataclass

import numpy as np

from vivace import _core
from vivace.attention_expression import INDICES, Expression
from vivace.errors import InvalidArgumentError

__all__ = ["Variant", "variant"]

_AT = dict.fromkeys(INDICES, "int")
# hook: names it knows, what it gives, its C++ parameters after `const Extra& extra`
_HOOKS = {
    "logits": (_AT | {"s": "float"}, "float", "logit", "float s, const At& at"),
    "mask": (_AT, "bool", "visible", "const At& at"),
    "query": ({k: "int" for k in ("t", "pos", "slot", "h", "kv", "d")} | {"x": "float"}, "float", "query", "float x, const At& at, int d"),
    "key": ({k: "int" for k in ("slot", "kv", "j", "d")} | {"x": "float"}, "float", "key", "float x, const At& at, int d"),
    "output": ({k: "int" for k in ("t", "pos", "slot", "h", "kv", "d")} | {"x": "float"}, "float", "output", "float x, const At& at, int d"),
}
_NUMBERS = {float: "f32", int: "i32"}


@dataclass
class Field:
    """An extra tensor or number of a variant."""

    name: str
    tensor: bool
    dtype: str
    rank: "int | None" = None  # as its expressions index it


class Variant:
    """Made by variant(). Call it with the ports and attributes of ops.attention and the extras, all by name."""

    def __init__(self, label, hooks, fields, softmax, text, name):
        self.label, self.hooks, self.fields, self.softmax = label, hooks, fields, softmax
        self.text = text if text is not None else _struct(name, hooks)
        self._core = _core.attention_variant(label, self.text, name, softmax, [(f.name, f.tensor, f.dtype) for f in fields.values()])
        self._on_host = text is None

    def __call__(self, **arguments):
        if self._on_host and isinstance(arguments.get("q"), np.ndarray):
            from vivace import attention_host

            return attention_host.run(self, arguments)
        if not isinstance(arguments.get("q"), np.ndarray):
            _find_nvrtc()
        self._core(**arguments)

    def compile(self, arch: str, **shape) -> dict:
        """Compiles for a chip without a GPU what a call of this shape would run: T, Hq, Hkv, D, places, dtype, kv_dtype."""
        _find_nvrtc()
        return self._core.compile(arch, **shape)

    def __repr__(self):
        return f"attention.Variant({self.label}: {', '.join(self.hooks) or 'C++'}{'' if self.softmax else ', no softmax'})"


def variant(source=None, name=None, *, mask=None, logits=None, query=None, key=None, output=None, softmax=True, extra=None, label=None) -> Variant:
    """A variant of attention: expressions for some of the hooks, or `source`, C++ that defines the struct `name`.

    mask    whether a key that the call's own mask lets through is visible
    logits  the score, from s = cap(scale * head_scale * q . k + slope * (j - pos))
    query, key, output  element d of a head, from x
    softmax=False: a logit is itself the weight of its value; then lse and sinks have no meaning.
    extra   {"bias": "f32", "gain": float, "reach": int}: tensors by dtype (f32, bf16, f16, i32; up to three axes,
            read as bias[h, j], 0 outside of their shape) and numbers.

    Expressions know t, pos, slot, h, kv and j (query, its position, slot, head, kv head, key's place).
    Errors: InvalidArgumentError shows the expression and where; CompileError at the first use the line of `source`.
    """
    fields = {n: _field(n, kind) for n, kind in (extra or {}).items()}
    texts = {h: t for h, t in {"logits": logits, "mask": mask, "query": query, "key": key, "output": output}.items() if t is not None}
    if (source is None) == (not texts):
        raise InvalidArgumentError("attention variant: give expressions for hooks or `source`, one of the two")
    if source is not None:
        if not isinstance(source, str) or not isinstance(name, str):
            raise TypeError(f"attention variant: wanted source and name as str, got {type(source).__name__} and {type(name).__name__}")
        return Variant(label or f"{name}.cu", {}, fields, softmax, source, name)
    taken = {n for known, *_ in _HOOKS.values() for n in known} & set(fields)
    if taken:
        raise InvalidArgumentError(f"attention variant: extra {sorted(taken)[0]!r} is a name that expressions have already")
    hooks = {h: Expression(h, text, _HOOKS[h][0], fields, _HOOKS[h][1]) for h, text in texts.items()}
    return Variant(label or "expressions", hooks, fields, softmax, None, name or "Expressions")


def _field(name, kind):
    if kind in _NUMBERS:
        return Field(name, False, _NUMBERS[kind])
    if isinstance(kind, str):
        return Field(name, True, kind)
    raise InvalidArgumentError(f"attention variant: extra {name!r}: wanted float, int or a tensor's dtype as a string, got {kind!r}")


def _struct(name, hooks):
    lines = [f"struct {name} : Variant {{"]
    for hook, e in hooks.items():
        _, kind, cpp, parameters = _HOOKS[hook]
        lines.append(f"  static {kind} {cpp}(const Extra& extra, {parameters}) {{ return {e.cpp}; }}")
    return "\n".join([*lines, "};"])


def _find_nvrtc():
    from vivace import jit

    jit.find_nvrtc()
