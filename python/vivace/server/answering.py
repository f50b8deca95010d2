"""A request's way from its prompt to the last byte: streamed or whole, in whatever shape its route gives it."""
from __future__ import annotations

import asyncio
import contextlib
import time

from vivace.errors import LimitExceededError
from vivace.server.engine import Asked, Engine, Group, Used
from vivace.server.errors import ApiError
from vivace.server.records import Record, Records
from vivace.server.web import EVENT_HEADERS, Call, Left

CANCELLED = {  # None: nobody is there to be told
    "left": None, "stalled": None,
    "deadline": lambda: ApiError(408, "the deadline of this request has passed", code="deadline_exceeded", kind="timeout_error", headers={"x-should-retry": "false"}),
    "shutdown": lambda: ApiError(503, "the server has shut down before this answer was whole", code="shutting_down", headers={"x-should-retry": "false"}),
}


class Shape:
    """What a route makes of replies. `form`: how the outbox writes a stream: "chat" or "completion" (events, with `head` and `tail`
    around each choice), or "records", of which events() then makes some."""

    form, head, tail, logprobs = "records", b"", b"", False

    def ping(self) -> bytes:
        """What keeps a silent stream open."""
        return b": ping\n\n"

    def first(self, used: Used) -> bytes:
        """Events before all others."""
        return b""

    def events(self, records: list[Record]) -> bytes:
        """Events of a stream of records."""
        raise NotImplementedError

    def last(self, used: Used) -> bytes:
        """Events after all others."""
        return b""

    def error(self, e: ApiError) -> bytes:
        """The last event of a stream that fails."""
        raise NotImplementedError

    def body(self, records: list[Record], used: Used) -> dict:
        """A whole answer."""
        raise NotImplementedError


def deadline_of(call: Call) -> float | None:
    """When the answer must be there, by this process's clock. Errors: ApiError 400, 408."""
    given = call.header(b"x-request-deadline-ms")
    if given is None:
        return None
    if not given.isdigit() or len(given) > 9:
        raise ApiError(400, f"x-request-deadline-ms: wanted milliseconds from now, 0 to 999999999, got {given[:20].decode('latin-1')!r}", code="invalid_value", param="x-request-deadline-ms")
    at = call.began + int(given) / 1000
    in_time(at)
    return at


def in_time(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise ApiError(408, "the deadline of this request passed before work began", code="deadline_exceeded", kind="timeout_error", headers={"x-should-retry": "false"})


async def answer(call: Call, engine: Engine, asked: list[Asked], shape: Shape, *, stream: bool, deadline: float | None) -> None:
    in_time(deadline)
    tokens = sum(len(a.ids) for a in asked)
    with engine.admitted(len(asked), tokens, stream=stream):
        group = engine.submit(call, asked, shape, whole=not stream, deadline=deadline)
        call.work_began = True
        engine.metrics.prompt(tokens)
        late = asyncio.get_running_loop().call_later(max(0, deadline - time.monotonic()), group.cancel, "deadline") if deadline is not None else None
        try:
            async with call.watched(lambda: group.cancel("left")):
                await (_stream if stream else _whole)(call, engine, group, shape)
        finally:
            if late is not None:
                late.cancel()
            group.close()
            if group.used().tokens:
                engine.metrics.cache(group.choices())


def _ended(group: Group) -> None:
    """Raises what ended an answer that is not whole."""
    if group.cause is not None:
        made = CANCELLED[group.cause]
        raise Left if made is None else made()
    try:
        group.check()
    except ApiError:
        if group.deadline is not None and time.monotonic() >= group.deadline:  # the engine saw it first
            raise CANCELLED["deadline"]() from None
        raise


async def _whole(call: Call, engine: Engine, group: Group, shape: Shape) -> None:
    records, found = Records(), []
    while not group.over():
        await group.news()
        found += records.of(group.read())
    _ended(group)
    await call.json(shape.body(found, group.used()))


async def _stream(call: Call, engine: Engine, group: Group, shape: Shape) -> None:
    """Headers go out with the first event, so that what fails before it has a status of its own; or with the first ping."""
    records, opening = Records() if shape.form == "records" else None, []
    try:
        while True:
            if data := group.read():
                _opened(group, shape, opening)  # before what follows it is counted
                if records is not None:
                    data = shape.events(records.of(data))
                await _send(call, group, shape, opening, data)
                engine.metrics.sent.add((time.monotonic_ns() - group.given_ns) * 1e-9)
            elif group.over():
                break
            elif records is None and call.status and call.wire is not None and (socket := call.wire.free()) is not None:
                if await _direct(call, group, socket):
                    await _send(call, group, shape, opening, shape.ping())
            else:
                await group.news()
                if not group.unread():
                    await _send(call, group, shape, opening, shape.ping())
        _ended(group)
        await _send(call, group, shape, opening, shape.last(group.used()), last=True)
    except ApiError as e:
        if not call.status:
            raise
        await _send(call, group, shape, opening, shape.error(e), last=True)  # and nothing that says it was whole


async def _direct(call: Call, group: Group, socket: int) -> bool:
    """The outbox writes events to the socket, until all is over, the client takes no more at once, or it has heard nothing for long: True."""
    with contextlib.suppress(LimitExceededError):  # no descriptor is left: this loop goes on writing
        group.attach(socket)
    try:
        await group.news()
        silent = not group.unread()
    finally:
        rest = group.detach()
    if rest:
        await call.rest(rest)
    return silent


def _opened(group: Group, shape: Shape, opening: list[bytes]) -> bytes:
    if not opening:
        opening.append(shape.first(group.used()))
    return opening[0]


async def _send(call: Call, group: Group, shape: Shape, opening: list[bytes], data: bytes, *, last: bool = False) -> None:
    if not call.status:
        await call.begin(EVENT_HEADERS)
        data = _opened(group, shape, opening) + data
    if data or last:
        await call.part(data, last=last)
    group.heard = time.monotonic()
