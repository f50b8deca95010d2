"""Answers that keep to a grammar: JSON of a schema, a regular expression, a Lark grammar. llguidance (the extra `vivace[structured]`)
says which tokens may come next; the engine draws among them.

A grammar is a program of whoever asks, so what it may take is bounded before (size, depth, repetitions), while it is compiled (time of the
processor, states) and for every mask. What cannot be kept is refused; nothing is answered without its grammar.
"""
from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import OrderedDict

from vivace import _core
from vivace.errors import Error, InvalidArgumentError, LimitExceededError, UnsupportedError

MAX_BYTES = 64 << 10
MAX_DEPTH = 32          # of a schema
MAX_REPEATS = 4000      # of one place in a pattern: nested counts multiply
COMPILE_SECONDS = 0.25  # of the processor
MASK_SECONDS = 0.25     # of the processor, a mask
WAIT_SECONDS = 10       # for a compilation, whatever the machine does besides
COMPILING = 2           # at once
CACHED = 64
LIMITS = dict(initial_lexer_fuel=500_000, step_lexer_fuel=100_000, step_max_items=20_000, max_lexer_states=20_000, max_grammar_size=100_000,
              precompute_large_lexemes=False, verbose_errors=False)
# One way to write a value: with free white space a model may write nothing else until its tokens are used up.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}
KINDS = ("json_schema", "regex", "grammar")


def llguidance():
    try:
        import llguidance
    except ImportError:
        raise UnsupportedError(f"{', '.join(KINDS)}: they need llguidance; pip install 'vivace[structured]'") from None
    return llguidance


def _bad(kind: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{kind}: {why.strip()[:500]}")


def check_repeats(pattern: str, kind: str) -> None:
    """Refuses counted repetitions that multiply beyond MAX_REPEATS: automata have a state for each."""
    most, groups, last, i = 1, [], 1, 0  # of what was closed last: how often its parts repeat
    inside = 1
    while i < len(pattern):
        c = pattern[i]
        if c == "\\":
            i, last = i + 2, 1
            continue
        if c == "[":
            end = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.S).match(pattern, i)
            i, last = end.end() if end else len(pattern), 1
            continue
        if c == "(":
            groups.append(inside)
            inside = last = 1
        elif c == ")":
            last, inside = inside, groups.pop() if groups else 1
        elif c == "{" and (count := re.compile(r"\{(\d{0,9})(,(\d{0,9}))?\}").match(pattern, i)):
            last *= max(1, int(count[3] or count[1] or 1))
            i = count.end() - 1
        else:
            last = 1
        inside = max(inside, last)
        most = max(most, last)
        if most > MAX_REPEATS:
            raise _bad(kind, f"a pattern repeats one place more than {MAX_REPEATS} times; bound the length elsewhere (maxLength), or less")
        i += 1


def _check_schema(value, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise _bad("json_schema", f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "x-guidance":
                raise _bad("json_schema", "x-guidance says how a schema is read, which the caller does not decide; leave it out")
            if key == "pattern" and isinstance(item, str):
                check_repeats(item, "json_schema")
            if key == "patternProperties" and isinstance(item, dict):
                for pattern in item:
                    check_repeats(pattern, "json_schema")
            _check_schema(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_schema(item, depth + 1)


def schema_text(schema) -> str:
    """A schema (a dict, JSON text, a pydantic class) as JSON. Errors: InvalidArgumentError."""
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    try:
        if isinstance(schema, str):
            if len(schema) > MAX_BYTES:
                raise _bad("json_schema", f"{len(schema)} characters, at most {MAX_BYTES} are accepted")
            schema = json.loads(schema)
        if not isinstance(schema, dict):
            raise _bad("json_schema", f"wanted an object, got {type(schema).__name__}")
        _check_schema(schema)
        text = json.dumps(schema)
    except InvalidArgumentError:
        raise
    except (TypeError, ValueError, RecursionError) as e:
        raise _bad("json_schema", f"it is no JSON: {e}") from None
    if len(text) > MAX_BYTES:
        raise _bad("json_schema", f"{len(text)} bytes, at most {MAX_BYTES} are accepted")
    return text


def spec_of(options: dict) -> tuple[str, str] | None:
    """What generate() was asked to keep to: a kind and its text; None. Takes its options out of `options`."""
    given = {kind: value for kind in KINDS if (value := options.pop(kind, None)) is not None}
    if not given:
        return None
    if len(given) > 1:
        raise _bad("generate", f"one of {', '.join(KINDS)} at a time, got {' and '.join(given)}")
    (kind, value), = given.items()
    if kind == "json_schema":
        return kind, schema_text(value)
    if len(value.encode()) > MAX_BYTES:
        raise _bad(kind, f"{len(value.encode())} bytes, at most {MAX_BYTES} are accepted")
    check_repeats(value, kind)
    return kind, value


class Grammars:
    """Compiled grammars of one model, and the thread that makes the masks of the answers that keep to them."""

    def __init__(self, text, vocab: int):
        self._lib = llguidance()
        if not text.eos:
            raise UnsupportedError("json_schema, regex, grammar: this checkpoint has no token that ends an answer")
        make = getattr(text.tokenizer, "to_str", None)
        if make is None:
            raise UnsupportedError("json_schema, regex, grammar: this tokenizer runs in a process of its own, and grammars need it here")
        try:
            self._tokenizer = self._lib.LLTokenizer(make(), n_vocab=vocab, eos_token=list(text.eos))
        except ValueError as e:
            raise UnsupportedError(f"json_schema, regex, grammar: llguidance does not take this tokenizer: {str(e)[:200]}") from None
        self._end, self._bytes = text.eos[0], (vocab + 31) // 32 * 4
        self._lock, self._cache, self._compiling = threading.Lock(), OrderedDict(), 0
        self.worker = MaskWorker()

    def matcher(self, spec: tuple[str, str]) -> "Matcher":
        """One answer's place in the grammar. Errors: InvalidArgumentError with the reason, LimitExceededError."""
        key = hashlib.sha256("\0".join(spec).encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            if (found := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
        if found is None:
            found = self._compiled(spec)
            with self._lock:
                self._cache[key] = found
                while len(self._cache) > CACHED:
                    self._cache.popitem(last=False)
        if isinstance(found, Exception):
            raise type(found)(str(found))
        return Matcher(found[0].deep_copy(), found[1], self._end, self._bytes)

    def _compiled(self, spec):
        """The grammar at its beginning and its first mask, or why there is none: made on a thread that may be left behind."""
        with self._lock:
            if self._compiling >= COMPILING:
                raise LimitExceededError(f"{spec[0]}: {COMPILING} grammars are compiled already; ask again")
            self._compiling += 1
        box = []

        def work():
            try:
                box.append(self._compile(*spec))
            finally:
                with self._lock:
                    self._compiling -= 1

        thread = threading.Thread(target=work, name="vivace-grammar", daemon=True)
        thread.start()
        began = time.monotonic()
        while thread.is_alive():
            thread.join(0.02)
            if thread.is_alive() and (_used(thread) > COMPILE_SECONDS or time.monotonic() - began > WAIT_SECONDS):
                return _bad(spec[0], f"compiling it takes longer than {1000 * COMPILE_SECONDS:.0f} ms; make it simpler")
        return box[0] if box else _bad(spec[0], "it cannot be compiled")

    def _compile(self, kind: str, text: str):
        m = self._lib.LLMatcher
        try:
            grammar = m.grammar_from_json_schema(text, overrides=JSON_STYLE) if kind == "json_schema" else m.grammar_from_regex(text) if kind == "regex" else m.grammar_from_lark(text)
            made = m(self._tokenizer, grammar, log_level=0, limits=self._lib.LLParserLimits(**LIMITS))
            mask = made.compute_bitmask() if not made.is_error() else None
        except Exception as e:  # of the library, for what it calls misuse
            return _bad(kind, str(e))
        if made.is_error():
            return _bad(kind, _reason(made))
        return made, mask


def _reason(matcher) -> str:
    why = matcher.get_error().split("\n<state>")[0].removesuffix("<non-verbose/>").strip()
    return "no answer keeps to it" if why.startswith("NoExtension") or not why else why


def _used(thread) -> float:
    """Seconds of the processor."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    except (OSError, AttributeError):  # it ended meanwhile, or no such clock
        return 0.0


class Matcher:
    """An answer's place in its grammar."""

    def __init__(self, matcher, first: bytes, end: int, size: int):
        self._matcher, self.first, self._end, self._size = matcher, first[:size], end, size  # the library has a word more at times

    def replay(self, tokens: list[int]) -> "Matcher":
        """Its place behind `tokens`, of an answer that goes on. Errors: InvalidArgumentError."""
        m = self._matcher
        if tokens and (not m.consume_tokens(tokens) or m.is_stopped()):
            raise InvalidArgumentError("restore: the answer's tokens are not of its grammar, or the grammar ends with them")
        self.first = m.compute_bitmask()[:self._size]
        return self

    def after(self, tokens: list[int]) -> tuple[bytes, list[int]]:
        """What may come after `tokens`, as bits, and what must come before that. Errors: InvalidArgumentError, LimitExceededError."""
        m, began = self._matcher, time.thread_time()
        m.consume_tokens(tokens)
        forced = [] if m.is_stopped() else m.compute_ff_tokens()
        if forced:
            m.consume_tokens(forced)
        if m.is_stopped() and not m.is_error():  # the grammar ends here: so does the answer
            return b"", [*forced, self._end]
        mask = b"" if m.is_error() else m.compute_bitmask()[:self._size]
        if m.is_error():
            raise InvalidArgumentError(f"generate: its grammar cannot be followed: {_reason(m)[:300]}")
        if time.thread_time() - began > MASK_SECONDS:
            raise LimitExceededError(f"generate: a mask of its grammar took longer than {1000 * MASK_SECONDS:.0f} ms; make it simpler")
        return mask, forced


class MaskWorker:
    """A thread that says what may come next, for all answers of a model that keep to grammars; it lives as long as there are any."""

    def __init__(self):
        self.notifier = _core.Notifier()  # rings when one of them has drawn, or is over
        self._lock, self._new, self._thread = threading.Lock(), [], None

    def add(self, masks, matcher: Matcher) -> None:
        with self._lock:
            self._new.append((masks, matcher))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="vivace-masks")
                self._thread.start()
        self.notifier.ring()

    def _run(self) -> None:
        live = []
        while True:
            seen = self.notifier.now()
            with self._lock:
                live += self._new
                self._new = []
                if not live or not threading.main_thread().is_alive():  # the end of the program cancels what is left
                    self._thread = None
                    return
            live = [one for one in live if not self._over(*one)]
            if live:
                self.notifier.wait(seen, 0.2)

    @staticmethod
    def _over(masks, matcher) -> bool:
        if masks.over():
            return True
        if tokens := masks.read():
            try:
                masks.set_mask(*matcher.after(tokens))
            except Exception as e:  # to whom the answer belongs
                masks.fail(isinstance(e, LimitExceededError), str(e) if isinstance(e, Error) else f"generate: its grammar cannot be followed: {e}")
        return False
