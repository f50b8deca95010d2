"""Capsules: a conversation, or an answer on its way, as it stands, to go on from as often as one likes (docs/capsules.md)."""
from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path

from vivace import _core, capsule_file, structured
from vivace.errors import CorruptDataError, InvalidArgumentError, LimitExceededError, UnsupportedError
from vivace.options import GENERATE, checked

PLAN = ("family", "precision", "kv_dtype", "head_dtype", "invariance", "layers", "forms", "activations", "device")  # of report(): what bits depend on, beside whether steps are one launch
PIECES, PIECE = 64, 64 << 10  # of each of a checkpoint's files, spread evenly, what its digest is of
KINDS = ("session", "answer")
DEARER = "dearer"  # why an answer found nothing computed: its capsule was not brought back
MEASURED = 3  # restores of a model before their time is believed
NOT_KEPT = ("draft", "num_speculative_tokens", "deadline")  # of options: of this call, or without effect on the answer


@functools.lru_cache(maxsize=16)
def _file_digest(path: str, size: int, changed: int) -> bytes:
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with open(path, "rb") as f:
        for i in range(PIECES if size > PIECES * PIECE else 1):
            f.seek((size - PIECE) * i // (PIECES - 1) if size > PIECES * PIECE else 0)
            digest.update(f.read(PIECE if size > PIECES * PIECE else size))
    return digest.digest()


def _digest_of(place: str) -> bytes:
    path = Path(place)
    found = sorted(p for p in path.iterdir() if p.suffix in (".safetensors", ".gguf", ".json")) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for p in found:
        facts = p.stat()
        digest.update(p.suffix.encode() + _file_digest(str(p), facts.st_size, facts.st_mtime_ns))
    return digest.digest()


def bound(model) -> capsule_file.Bound:
    """To what keys, values and states of this model are bound. Errors: UnsupportedError for one without blocks."""
    page, block_bytes, state_bytes = model._live.block()
    if not page:
        raise UnsupportedError('capsule: this model keeps no blocks of keys and values; load it with num_kv_blocks="full"')
    facts = model.report()
    one = {"decode_layers": "used"} if facts["decode_layers"] == "used" else {}
    plan = json.dumps({k: facts[k] for k in PLAN} | one, sort_keys=True)
    build = Path(_core.__file__)
    return capsule_file.Bound(_digest_of(model._path), hashlib.sha256(plan.encode()).digest(), _file_digest(str(build), build.stat().st_size, build.stat().st_mtime_ns), page, block_bytes, state_bytes)


class Capsule:
    """How things stood when it was made; it never changes. Made by capsule() of a session or of a stream, read by model.restore()."""

    def __init__(self, model, state: dict, tokens: list[int], salt: str, *, snapshot=None, host=None, positions: int = 0, pure: int = 0):
        """`host`: its keys and values in host memory, as bytes of a file or as _core.HostBytes."""
        if isinstance(host, bytes):
            host = _core.host_bytes(model._live, host) if host else None
        self._model, self.state, self.tokens, self._salt = model, state, tokens, salt
        self._snapshot, self._host, self.positions, self._pure = snapshot, host, positions, pure

    def __repr__(self):
        return f"<Capsule of {self.state['kind']}: {len(self.tokens)} tokens, {self.bytes} bytes, {self.tier}>"

    @property
    def tier(self) -> str:
        """Where its keys and values are: "device" (held where the model has them), "host", or "none" once it is closed, or has none."""
        return "device" if self._snapshot is not None else "host" if self._host else "none"

    @property
    def bytes(self) -> int:
        return self._snapshot.bytes if self._snapshot is not None else len(self._host or ())

    def fork(self) -> "Capsule":
        """Another one of the same; nothing is copied."""
        return Capsule(self._model, self.state, self.tokens, self._salt, snapshot=self._snapshot, host=self._host, positions=self.positions, pure=self._pure)

    def to_host(self) -> "Capsule":
        """Copies its keys and values to host memory and lets go of the model's."""
        if self._snapshot is not None:
            self._host, self._snapshot = self._snapshot.read(), None
        return self

    def save(self, path, *, key: bytes | None = None, expires: int = 0) -> None:
        """As a file, sealed with `key` (default: one of this user's own). `expires`: seconds since 1970, 0: never."""
        capsule_file.save(path, self.content(expires), bound(self._model), key)

    def content(self, expires: int = 0) -> capsule_file.Content:
        """What its file holds."""
        host = self._snapshot.read() if self._snapshot is not None else self._host
        return capsule_file.Content(self.state, self.tokens, self.positions, self._pure, host.copy() if host is not None else b"", expires)

    def close(self) -> None:
        self._snapshot = self._host = None
        self.positions = self._pure = 0

    def bring(self) -> str:
        """Its keys and values to where requests find them, as long as nobody needs their place. Not where all of them are there, nor where computing
        those that are missing takes less time, as far as both were measured here: then "dearer", else ""."""
        if self._snapshot is not None or not self.positions:
            return ""
        missing = self.positions - _core.take_snapshot(self._model._live, self._salt.encode(), self.tokens, 0).positions
        if missing <= 0:
            return ""
        if dearer(self._model._live.rates(), self.bytes, missing):
            return DEARER
        try:
            _core.write_snapshot(self._model._live, self._salt.encode(), self.tokens, self.positions, self._pure, self._host)
        except LimitExceededError:  # no room: they are computed again
            pass
        return ""


def dearer(rates: tuple[float, float, int], bytes: int, tokens: int) -> bool:
    """Whether bringing so many bytes takes longer than computing so many tokens of a prompt. `rates`: seconds a token, seconds a byte, of how many restores."""
    prefill, restore, restores = rates
    return restores >= MEASURED and 0 < prefill * tokens <= restore * bytes


def make(model, state: dict, tokens: list[int], salt: str, request: int = 0) -> Capsule:
    """A capsule of what is known of `tokens` under `salt`. `request`: number of the answer that they are of, 0: none that is on its way."""
    if len(tokens) < 2:
        return Capsule(model, state, tokens, salt)
    bound(model)
    own = model._live, salt.encode(), tokens
    try:
        snapshot = _core.take_snapshot(*own, request, keep=True)
        return Capsule(model, state, tokens, salt, snapshot=snapshot, positions=snapshot.positions, pure=snapshot.pure)
    except LimitExceededError:  # held where they are they would be missing to others
        snapshot = _core.take_snapshot(*own, request)
        return Capsule(model, state, tokens, salt, host=snapshot.read(), positions=snapshot.positions, pure=snapshot.pure)


def kept(options: dict) -> dict:
    """Options of generate() as a capsule keeps them: plain data. Errors: InvalidArgumentError for a function."""
    if options.get("mask") is not None:
        raise InvalidArgumentError("capsule: mask: a function cannot be kept; use json_schema, regex or grammar")
    out = {k: v for k, v in options.items() if v is not None and k not in (*NOT_KEPT, "mask")}
    if "json_schema" in out:
        out["json_schema"] = structured.schema_text(out["json_schema"])
    if "logit_bias" in out:
        out["logit_bias"] = [[int(k), float(v)] for k, v in out["logit_bias"].items()]
    return {k: float(v) if isinstance(v, float) else v for k, v in out.items()}


def options_of(state: dict) -> dict:
    """The same as generate() takes them. Errors: CorruptDataError."""
    try:
        options = dict(state["options"])
        if "logit_bias" in options:
            options["logit_bias"] = {int(k): float(v) for k, v in options["logit_bias"]}
        return checked("restore", GENERATE, options)
    except (KeyError, TypeError, ValueError, InvalidArgumentError) as e:
        raise CorruptDataError(f"capsule: its options are none of generate(): {e}") from None


def _checked_state(state: dict) -> dict:
    """Of a file. Errors: CorruptDataError."""
    def texts(messages):
        return isinstance(messages, list) and all(isinstance(m, dict) and set(m) == {"role", "content"} and all(isinstance(v, str) for v in m.values()) for m in messages)

    def ids(value):
        return isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 31 for v in value)

    fine = state.get("kind") in KINDS and isinstance(state.get("options"), dict)
    if fine and state["kind"] == "session":
        fine = texts(state.get("system")) and texts(state.get("turns")) and ids(state.get("prompt")) and isinstance(state.get("forgotten"), int)
    elif fine:
        fine = isinstance(state.get("drawn"), int) and 0 <= state["drawn"] and isinstance(state.get("max_tokens"), int) and isinstance(state.get("text"), bool)
    if not fine:
        raise CorruptDataError("capsule: its state is not one that capsule() makes")
    return state


def restore(model, source, key: bytes | None):
    """What goes on from a capsule or its file: a Session, or a Stream."""
    if isinstance(source, Capsule):
        if source._model is not model:
            raise InvalidArgumentError("restore: this capsule is of another loaded model; save it, and restore the file")
        capsule = source.fork()
    else:
        found = capsule_file.read(os.fspath(source), bound(model), key)
        state = _checked_state(found.state)
        capsule = Capsule(model, state, found.tokens, options_of(state).get("salt", ""), host=found.blocks, positions=found.positions, pure=found.pure)
    options = options_of(capsule.state)
    if capsule.state["kind"] == "session":
        from vivace.session import Session

        return Session.of_capsule(model, capsule, options)
    return model._resumed(capsule, options)
