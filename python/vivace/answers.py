"""Answers on their way: what a caller of a model holds while its engine works.

The engine's thread writes events of each request to room that was made when it was submitted; a Stream or an AsyncStream
turns them into chunks on the caller's thread, where masks are called too.
"""
from __future__ import annotations

import asyncio
import time
import weakref
from array import array
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from vivace import _core, images
from vivace.errors import CorruptDataError, Error, InvalidArgumentError, UnsupportedError
from vivace.options import shown


@dataclass(frozen=True)
class StreamEvent:
    """One step of a streamed answer. `text` may be empty while a character is incomplete."""

    text: str
    token: int | None
    logprob: float | None
    finish: str | None = None  # None, "stop", "length" or "cancelled"
    top: tuple[tuple[int, float], ...] = ()  # with top_logprobs: tokens in its place and their log-probabilities, the likeliest first


@dataclass
class Answer:
    """A finished answer. Times are host seconds."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)  # of each token, if asked for
    finish: str | None = None  # "stop", "length", "cancelled"; of generate_batch also "error"
    prompt_tokens: int = 0
    first_token_s: float | None = None  # from the call to the first token
    total_s: float = 0.0
    error: Error | None = None  # of generate_batch: why this prompt alone has no answer
    cached_tokens: int = 0  # of the prompt: computed before
    cache_write_tokens: int = 0  # of prompt and answer: kept for prompts that begin so
    cache_miss: str = ""  # why not more of it was found: cold, evicted, diverged@k, short, class, dearer (a capsule takes longer to bring back), recurrent (keys and values were there, and no state as near), off; "": all there could be

    @property
    def tokens_per_s(self) -> float | None:
        """Decode rate: tokens after the first over the time after the first."""
        if self.first_token_s is None or len(self.tokens) < 2 or self.total_s <= self.first_token_s:
            return None
        return (len(self.tokens) - 1) / (self.total_s - self.first_token_s)

    def add(self, chunk: StreamEvent, elapsed: float) -> None:
        self.text += chunk.text
        if chunk.token is not None:
            if self.first_token_s is None:
                self.first_token_s = elapsed
            self.tokens.append(chunk.token)
            self.logprobs.append(chunk.logprob)
            if chunk.top:
                self.top_logprobs.append(chunk.top)
        self.finish = chunk.finish or self.finish
        self.total_s = elapsed

    def note(self, stream) -> None:
        self.cached_tokens, self.cache_write_tokens, self.cache_miss = stream.cache()


# The request whose mask this thread or task is in, and its model's core.
_masking: ContextVar[tuple | None] = ContextVar("masking", default=None)


def parent_of(core) -> int:
    """The number of the request of this model in whose mask the caller is, or 0."""
    inside = _masking.get()
    return inside[1] if inside is not None and inside[0] is core else 0


def bits_of(allowed, vocab: int) -> bytes:
    """A mask as the engine takes it: bit v % 32 of word v / 32 for token v."""
    import numpy

    try:
        count = None if isinstance(allowed, (str, dict, set, frozenset)) else len(allowed)
        bits = numpy.packbits(numpy.fromiter(map(bool, allowed), numpy.uint8, vocab), bitorder="little").tobytes() if count == vocab else None
    except Exception as e:  # what is no sequence, or a class of the caller's that breaks when it is looked at
        raise InvalidArgumentError(f"mask: wanted {vocab} booleans, one a token, got {shown(allowed)}: {type(e).__name__}") from e
    if bits is None:
        raise InvalidArgumentError(f"mask: wanted {vocab} booleans, one a token, got {shown(allowed) if count is None else count}")
    return bits + bytes(-len(bits) % 4)


class Bias:
    """What is added to the logits of a request, as f32 bytes, and a function that says which tokens may come."""

    def __init__(self, vocab, logit_bias, mask):
        self.mask, self._vocab = mask, vocab
        self.first = b""
        if not logit_bias:
            return
        base = array("f", bytes(4 * vocab))
        for token, value in logit_bias.items():
            if not 0 <= token < vocab:
                raise InvalidArgumentError(f"logit_bias: token {token} is outside the vocabulary [0, {vocab})")
            if value != value or value == float("inf") or array("f", [value])[0] == float("inf"):
                raise InvalidArgumentError(f"logit_bias: token {token}: wanted a finite value or -inf (as f32), got {value}")
            base[token] = value
        self.first = base.tobytes()

    def masked(self, tokens) -> bytes:
        """Bits of what may come after `tokens`; none: everything."""
        allowed = self.mask(list(tokens)) if self.mask is not None else None
        if allowed is None:
            return b""
        bits = bits_of(allowed, self._vocab)
        if not any(bits):
            raise InvalidArgumentError(f"mask: it allows no token after {len(tokens)} of them; allow at least one, or end the answer with stop ids")
        return bits


class StopText:
    """Chunks up to the first of the stop strings, the one that is whole first; text that may begin one is held back until it is known."""

    def __init__(self, stops):
        self._search, self._held = _core.StopStrings(list(stops)), []
        self._known = 0  # characters of what is held that no stop string begins in
        self.met = False

    def take(self, chunk: StreamEvent) -> list[StreamEvent]:
        """The chunks that are known now. After `met`, the last has the finish and nothing must follow."""
        held = self._held
        held.append(chunk)
        self._known += len(self._search.feed(chunk.text.encode()).decode())
        if self._search.met():
            self.met = True
            return list(_cut(held, self._known, "stop"))
        if chunk.finish is not None:
            self._held = []
            return held
        known = []
        while held and len(held[0].text) <= self._known:
            self._known -= len(held[0].text)
            known.append(held.pop(0))
        return known


def _cut(chunks, at, finish) -> Iterator[StreamEvent]:
    """`chunks` up to `at` characters: the tokens that the text before it came from."""
    for c in chunks:
        if at <= 0:
            break
        yield StreamEvent(c.text[:at], c.token, c.logprob, None, c.top)
        at -= len(c.text)
    yield StreamEvent("", None, None, finish)


@dataclass(frozen=True)
class Begun:
    """What an answer was asked with: its prompt, the options, its tokens at most, and whether it is text. Of one that goes on from a capsule, `ids` are prompt and the `earlier`
    tokens that were drawn before."""

    ids: list[int]
    options: dict
    most: int
    text: bool
    earlier: int = 0

    def with_seed(self, more: int) -> "Begun":
        return replace(self, options=self.options | {"seed": (self.options.get("seed", 0) + more) % (1 << 63)})


class _Reader:
    """A request and the chunks of it that were read and not given yet."""

    def __init__(self, model, request, *, prompt_tokens, decode=None, bias=None, stops=(), begun=None):
        self._model, self._request, self._begun = model, request, begun
        self._given: list[int] = []  # tokens
        self._decode, self._bias = decode or (lambda token: ""), bias
        self._stops = StopText(stops) if stops else None
        self._tokens: list[int] = []  # for the mask
        self._ready: deque[StreamEvent] = deque()
        self._over = False
        self.prompt_tokens = prompt_tokens
        self.not_brought = ""  # why the capsule that it goes on from was not brought back

    def _take(self) -> None:
        """Reads what the engine wrote. Calls the mask."""
        for token, logprob, finish, top in self._request.read():
            if self._over:
                return  # a stop string was met
            if finish == "nan_logits":
                raise CorruptDataError("the model's logits are NaN: its weights are broken, or too large for this precision; try precision='f32'")
            if finish == "error":
                self._request.check()
            has = token is not None
            if has and finish is None and self._bias is not None and self._bias.mask is not None:
                self._tokens.append(token)
                self._request.set_mask(self._masked())
            chunk = StreamEvent(self._decode(token) if has else "", token, logprob if has else None, finish, top)
            self._ready.extend(self._stops.take(chunk) if self._stops else [chunk])
            if finish is not None or (self._stops and self._stops.met):
                self._end()

    def _masked(self) -> bytes:
        inside = _masking.set((self._model._live, self._request.number))
        try:
            return self._bias.masked(self._tokens)
        finally:
            _masking.reset(inside)

    def _end(self) -> None:
        self._over = True
        self._request.cancel()  # nothing where it is over

    def _next(self) -> StreamEvent | None:
        """A chunk if one is there; None where none is yet."""
        self._model._live  # closed meanwhile: a clear error
        if not self._ready and not self._over and self._request.unread():
            self._take()
        if not self._ready:
            return None
        chunk = self._ready.popleft()
        if chunk.token is not None:
            self._given.append(chunk.token)
        if chunk.finish is not None:
            self._begun = None
        return chunk

    def capsule(self):
        """How the answer stands behind the last chunk that was given (vivace.capsule.Capsule); model.restore() goes on from there, and so does this.
        Errors: InvalidArgumentError for one that is over, or has a mask."""
        from vivace import capsule

        if (b := self._begun) is None or (self._over and all(c.token is None for c in self._ready)):
            raise InvalidArgumentError("capsule: this answer is over; the session's capsule() keeps a conversation")
        if images.of(b.ids):
            raise UnsupportedError("capsule: an answer to images is not kept; ask again with them")
        state = {"kind": "answer", "options": capsule.kept(b.options), "drawn": b.earlier + len(self._given), "max_tokens": b.most, "text": b.text}
        return capsule.make(self._model, state, [*b.ids, *self._given], b.options.get("salt", ""), self._request.number)

    def cache(self) -> tuple[int, int, str]:
        """Tokens of the prompt that were found computed, and why not more ("diverged@12"), once a chunk came; tokens that are kept, once it is over."""
        cached, written, miss = self._request.cache()
        return cached, written, (miss and self.not_brought) or miss

    def drafts(self) -> tuple[int, int, int]:
        """Of an answer with drafts, once it is over: steps after the prompt, guesses checked, guesses that were right."""
        return self._request.drafts()


class Stream(_Reader):
    """An answer as it is made: an iterator of Chunks, for one thread at a time. It goes on being made while nobody reads;
    close(), the end of a `with`, an exception in a mask and the iterator's end in memory cancel it."""

    def __iter__(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __next__(self) -> StreamEvent:
        try:
            while (chunk := self._next()) is None:
                if self._over:
                    raise StopIteration
                self._request.wait()
            return chunk
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._ready.clear()
        self._end()


class AsyncStream(_Reader):
    """The same for asyncio: an asynchronous iterator. Reading it holds no thread."""

    def __init__(self, model, request, hub, **options):
        super().__init__(model, request, **options)
        self._hub = hub

    def __aiter__(self):
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await self.aclose()

    async def __anext__(self) -> StreamEvent:
        try:
            while (chunk := self._next()) is None:
                if self._over:
                    raise StopAsyncIteration
                await self._hub.news(self._request)
            return chunk
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        self._ready.clear()
        self._end()


class Hub:
    """One descriptor an asyncio loop and model: the engine's thread makes it readable when any of the loop's answers has news."""

    _of: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # loop -> Hub

    def __init__(self, loop):
        self._loop = weakref.ref(loop)
        self.notifier = _core.Notifier.with_descriptor()
        self._waiting: dict = {}  # future -> the request whose news it waits for
        self._watched = False

    @classmethod
    def here(cls) -> "Hub":
        loop = asyncio.get_running_loop()
        if loop not in cls._of:
            cls._of[loop] = cls(loop)
        return cls._of[loop]

    async def news(self, request) -> None:
        """Returns when `request` has events that were not read."""
        loop = self._loop()
        if not self._watched:
            loop.add_reader(self.notifier.descriptor(), self._rung)
            self._watched = True
        future = loop.create_future()
        self._waiting[future] = request
        try:
            if not request.unread():
                await future
        finally:
            del self._waiting[future]
            if not self._waiting:  # nothing of ours keeps the loop, and a loop that ends finds no reader
                loop.remove_reader(self.notifier.descriptor())
                self._watched = False

    def _rung(self) -> None:
        self.notifier.acknowledge()
        for future, request in list(self._waiting.items()):
            if not future.done() and request.unread():
                future.set_result(None)


def collect(stream, start: float | None = None) -> Answer:
    """Runs a stream to its end."""
    start = time.perf_counter() if start is None else start
    answer = Answer(prompt_tokens=getattr(stream, "prompt_tokens", 0))
    for chunk in stream:
        answer.add(chunk, time.perf_counter() - start)
    answer.note(stream)
    return answer


async def acollect(stream: AsyncStream, start: float) -> Answer:
    answer = Answer(prompt_tokens=stream.prompt_tokens)
    async for chunk in stream:
        answer.add(chunk, time.perf_counter() - start)
    answer.note(stream)
    return answer
