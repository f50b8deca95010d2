"""The model behind the server: what is prepared off the loop, what is let in, and answers on their way."""
from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec import json

import vivace
from vivace import _core
from vivace.batch import SCHEDULED
from vivace.errors import Error, LimitExceededError
from vivace.server.errors import busy, of_engine, shutting_down
from vivace.server.kept import Kept
from vivace.server.limits import Limits
from vivace.server.tokens import token_bytes

PREPARING = 2  # threads that render templates and tokenise
BEHIND = 10    # how much later than the engine's they get a processor (nice): what is not let in yet keeps nobody waiting who is


def _behind() -> None:
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + BEHIND)


class Engine:
    def __init__(self, model, name: str, limits: Limits, *, max_batch: int, max_waiting: int, metrics, defaults, keep_times: int = 0):
        """`keep_times`: how many of the outbox's times to the socket are kept one by one, for benches."""
        self.model, self.name, self.limits, self.metrics = model, name, limits, metrics
        self.text, self.context, self.vocab = model.text, model._live.limits()["context"], model._live.limits()["vocab"]
        self.sees = "images" in model._live.limits()
        self.defaults, self.created = defaults, int(time.time())
        facts = model.report()
        plan = [vivace.__version__, *(str(facts[k]) for k in ("path", "device", "precision", "kv_dtype", "head_dtype", "invariance"))]
        self.fingerprint = f"vivace-{hashlib.sha256(json.encode(plan)).hexdigest()[:12]}"
        self.most = max_batch + max_waiting
        self.max_batch = max_batch
        self.calls, self.reasoning = self.text.replies["calls"], self.text.replies["reasoning"]
        self.tokens, drop = token_bytes(self.text, self.vocab, self._markers())
        self.outbox = _core.Outbox(model._live, self.tokens, drop, keep_times)
        self.groups: set[Group] = set()
        self.choices = self.prompt_tokens = self.streams = 0  # of requests that answer or wait
        self.idle_since_ns = time.monotonic_ns()  # when nothing was asked of the engine last
        self.draining = False
        self.speech = None  # a speech.Speech, where one is served beside it
        self.scheduler = None  # a vivace.Scheduler, where the model is one of its tenants
        self.kept = Kept(limits)
        self.capsule_key: bytes | None = None  # of capsules that leave the server
        self._pool = ThreadPoolExecutor(PREPARING, "vivace-prepare", _behind)
        self._capsules = ThreadPoolExecutor(1, "vivace-capsules")
        self._notifier = self._sweeper = None

    def _markers(self) -> set[str]:
        """Control tokens that a reply's parser goes by."""
        found = set(_core.reasoning_markers(self.reasoning)) if self.reasoning else set()
        form = _core.call_form(self.calls) if self.calls else {}
        return found | {form[k] for k in ("open", "close", "quote") if form.get(k)}

    async def prepare(self, work: Callable, *args):
        """work(*args) on a thread of the pool. Threads that it begins are as far behind, so that it must not begin the engine's: that is with_engine()."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    async def with_engine(self, work: Callable, *args):
        """work(*args), which waits for the engine's steps, on a thread for that."""
        return await asyncio.get_running_loop().run_in_executor(self._capsules, work, *args)

    def begin(self) -> None:
        """On the loop that serves."""
        self._notifier = _core.Notifier.with_descriptor()
        asyncio.get_running_loop().add_reader(self._notifier.descriptor(), self._rung)
        self._sweeper = asyncio.ensure_future(self._sweep())

    def close(self) -> None:
        """Once its loop is over."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._capsules.shutdown(wait=True, cancel_futures=True)
        self.outbox.close()
        self.outbox = self._notifier = self._sweeper = None
        self.groups.clear()
        self.kept.clear()

    def _rung(self) -> None:
        """The outbox has news for some."""
        self._notifier.acknowledge()
        for group in self.groups:
            if group.waits is not None and group.unread():
                group.wake()

    async def _sweep(self) -> None:
        """A client that takes nothing for too long is cut off: what waits for it is bounded, and its slot is free. One that hears nothing
        for long gets a ping."""
        pause = min(1.0, self.limits.stalled_s / 4, self.limits.ping_s / 4)
        while True:
            await asyncio.sleep(pause)
            now = time.monotonic()
            for group in list(self.groups):
                since = group.call.sending_since
                if since is not None and now - since > self.limits.stalled_s:
                    group.cancel("stalled")
                    group.call.abort()
                elif group.waits is not None and now - max(group.heard, group.sent_ns * 1e-9) > self.limits.ping_s:
                    group.wake()

    def queue_age(self) -> float:
        """Seconds since the oldest of those was let in who have no token yet; 0: there is none."""
        since = min((g.begun for g in self.groups if not g.tokens and not g.over()), default=None)
        return 0.0 if since is None else time.monotonic() - since

    def retry_ms(self) -> int:
        """When a place may be free, as far as the last answers tell."""
        return int(min(60_000, max(100, 1000 * self.model._live.retry_after())))

    @contextmanager
    def admitted(self, choices: int, prompt_tokens: int, *, stream: bool):
        """Room for a request, taken at once for all its choices. Errors: ApiError 429, 503."""
        if self.draining:
            raise shutting_down()
        if self.choices + choices > self.most:
            self.metrics.rejected("queue")
            raise busy(f"{self.choices} answers are made or wait already, at most {self.most} may; ask again later", self.retry_ms())
        if self.prompt_tokens + prompt_tokens > max(self.limits.tokens_in_queue, prompt_tokens):
            self.metrics.rejected("tokens")
            raise busy(f"prompts of {self.prompt_tokens} tokens are answered or wait already, at most {self.limits.tokens_in_queue} may", self.retry_ms())
        if stream and self.streams >= self.limits.streams:
            self.metrics.rejected("streams")
            raise busy(f"{self.streams} streams are open already, and no more are kept", self.retry_ms())
        if not self.choices:
            self.idle_since_ns = time.monotonic_ns()
        self.choices += choices
        self.prompt_tokens += prompt_tokens
        self.streams += stream
        try:
            yield
        finally:
            self.choices -= choices
            self.prompt_tokens -= prompt_tokens
            self.streams -= stream

    def submit(self, call, asked: list["Asked"], shape, *, whole: bool, deadline: float | None) -> "Group":
        """Begins to answer. Of choices with one prompt the first computes it for all. Errors: ApiError."""
        if self._notifier is None:
            self.begin()
        choices, firsts, leader = [], [], 0
        left = {} if deadline is None else {"deadline": max(1e-3, deadline - time.monotonic())}
        try:
            for i, a in enumerate(asked):
                request, _ = self.model._prepare(a.ids, self.text, **a.options, **left)
                first = i == 0 or a.ids is not asked[i - 1].ids
                firsts.append(first)
                handle = self._submitted(request, 0 if first else leader)
                leader = handle.number if first else leader
                choices.append((handle, a.reply, a.echo, a.named))
            stream = self.outbox.open(choices, form="records" if whole else shape.form, head=shape.head, tail=shape.tail, logprobs=shape.logprobs, whole=whole, reader=self._notifier)
        except Error as e:
            raise of_engine(e, began=False) from None
        return Group(self, call, stream, firsts, deadline, asked[0].not_brought)

    def _submitted(self, request: dict, leader: int):
        """The engine's handle. Errors: ApiError 429 where it would take the request later, Error."""
        try:
            return self.model._submit(request, self.outbox.bell, leader)
        except LimitExceededError as e:
            _core.check_request(self.model._live, **{k: v for k, v in request.items() if k not in SCHEDULED})  # raises what never fits
            self.metrics.rejected("deadline" if "deadline" in str(e) else "queue")
            raise busy(str(e), self.retry_ms()) from None

    def cancel_all(self, cause: str) -> None:
        for group in list(self.groups):
            group.cancel(cause)


class Asked:
    """One choice: a prompt, the engine's options, and how the reply is read."""

    def __init__(self, ids: list[int], options: dict, reply, echo: str = "", named: bool = False):
        self.ids, self.options, self.reply, self.echo, self.named = ids, options, reply, echo, named
        self.not_brought = ""  # why the capsule that it goes on from was not brought back


@dataclass(frozen=True)
class Used:
    """What a request took: tokens that were drawn, in all choices; of its prompts, tokens that were found computed and why not more were; tokens that
    are kept."""

    tokens: int = 0
    cached: int = 0
    written: int = 0
    miss: str | None = None


class Group:
    """The answers to one request. To be closed."""

    def __init__(self, engine: Engine, call, stream, firsts: list[bool], deadline: float | None, not_brought: str = ""):
        """`firsts`: which choices are the first of their prompt."""
        self._engine, self.call, self._stream, self._firsts, self.deadline = engine, call, stream, firsts, deadline
        self._not_brought = not_brought
        self.cause: str | None = None  # why it was cancelled
        self.waits: asyncio.Future | None = None
        self.begun = self.heard = time.monotonic()  # when it was let in; when the client got something last
        self.unread, self.over, self.read, self.attach, self.detach = stream.unread, stream.over, stream.read, stream.attach, stream.detach
        engine.groups.add(self)

    def choices(self) -> list[tuple[int, int, str]]:
        """Of each choice: tokens of its prompt that were found computed, tokens that are kept of it, why not more were found."""
        return [(cached, written, (miss and self._not_brought) or miss) for cached, written, miss in self._stream.cache()]

    def used(self) -> Used:
        firsts = [c for first, c in zip(self._firsts, self.choices()) if first]  # usage counts a prompt once
        return Used(self._stream.tokens(), sum(c for c, _, _ in firsts), sum(w for _, w, _ in self.choices()), next((miss for _, _, miss in firsts if miss), None))

    @property
    def tokens(self) -> int:
        return self._stream.tokens()

    @property
    def given_ns(self) -> int:
        return self._stream.given_ns()

    @property
    def sent_ns(self) -> int:
        return self._stream.sent_ns()

    async def news(self) -> None:
        """Returns when something can be read, all is over, or the client has heard nothing for long."""
        self.waits = asyncio.get_running_loop().create_future()
        try:
            if not self.unread():
                await self.waits
        finally:
            self.waits = None

    def wake(self) -> None:
        if self.waits is not None and not self.waits.done():
            self.waits.set_result(None)

    def cancel(self, cause: str) -> None:
        """Ends what is not over: its slots and blocks are free after the step that is on its way."""
        if self.cause is None and not self.over():
            self.cause = cause
            self._engine.metrics.cancelled(cause)
        self._stream.cancel()

    def check(self) -> None:
        """Raises why the engine failed. Errors: ApiError."""
        try:
            self._stream.check()
        except Error as e:
            raise of_engine(e, began=True) from None

    def close(self) -> None:
        self.cancel("dropped")
        self.detach()
        self._engine.groups.discard(self)
