"""A request and its answer as plain ASGI: bodies with a bound, JSON out, streams of events, and the client's leaving."""
from __future__ import annotations

import asyncio
import contextlib
import re
import time

import msgspec

from vivace.server.errors import ApiError, bad, busy

EVENT_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")]


class Bodies:
    """Bytes of requests that are being read, over all connections."""

    def __init__(self, most: int):
        self.most, self.bytes = most, 0


class Call:
    """One request on its way through the server."""

    def __init__(self, scope, receive, send, *, request_id: str, identity, limits, bodies: Bodies):
        self.scope, self.receive, self._send = scope, receive, send
        self.request_id, self.identity, self.limits, self._bodies = request_id, identity, limits, bodies
        self.began = time.monotonic()
        self.status = 0  # once the answer has begun
        self.sending_since: float | None = None  # the client takes nothing since then
        self.work_began = False  # trying again would cost as much again
        self.wire = scope.get("vivace.wire")  # of this server's own connections: protocol.Wire

    def header(self, name: bytes) -> bytes | None:
        return next((v for k, v in self.scope["headers"] if k == name), None)

    async def send(self, message) -> None:
        self.sending_since = time.monotonic()
        await self._send(message)
        self.sending_since = None

    async def body(self, wanted: bytes = b"application/json", most: int | None = None) -> bytes:
        """The whole body, of at most `most` bytes (body_bytes). Errors: ApiError 413, 415, 429."""
        kind = (self.header(b"content-type") or b"").split(b";")[0].strip().lower()
        if kind != wanted:  # a form of a page elsewhere cannot send JSON unasked
            raise ApiError(415, f"content-type: wanted {wanted.decode()}, got {kind[:60].decode('latin-1')!r}", code="unsupported_media_type")
        said, most = self.header(b"content-length"), self.limits.body_bytes if most is None else most
        too_long = ApiError(413, f"the body has more than {most} bytes", code="body_too_large", headers={"connection": "close"})
        if said is not None and said.isdigit() and int(said[:20]) > most:
            raise too_long
        parts, size = [], 0
        try:
            while True:
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    raise Left
                part = message.get("body", b"")
                size += len(part)
                self._bodies.bytes += len(part)
                parts.append(part)
                if size > most:
                    raise too_long
                if self._bodies.bytes > self._bodies.most:
                    raise busy(f"{self._bodies.most} bytes of requests are being read already", 500)
                if not message.get("more_body"):
                    return b"".join(parts)
        finally:
            self._bodies.bytes -= size

    async def read(self, decoder: msgspec.json.Decoder):
        """The body as the decoder's type. Errors: those of body(); ApiError 400 names the field."""
        body = await self.body()
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as e:
            message, _, path = str(e).partition(" - at `")
            at = path.rstrip("`").removeprefix("$").lstrip(".")
            if (unknown := re.fullmatch(r"Object contains unknown field `(.*)`", message, re.S)) is not None:
                field = f"{at}.{unknown[1]}" if at else unknown[1]
                raise bad(f"{field[:80]}: no such field", field[:80], "unknown_parameter") from None
            if (missing := re.fullmatch(r"Object missing required field `(.*)`", message)) is not None:
                at = f"{at}.{missing[1]}" if at else missing[1]
                message = "it is missing"
            raise bad(f"{at}: {message}" if at else message, at or None, "invalid_type") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise bad(f"the body is no JSON: {str(e)[:200]}", code="invalid_json") from None
        except RecursionError:
            raise bad("the body is nested too deep", code="invalid_json") from None

    async def json(self, value, status: int = 200, headers: dict[str, str] | None = None) -> None:
        await self.whole(msgspec.json.encode(value), b"application/json", status, headers)

    async def whole(self, body: bytes, kind: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        more = [(k.encode(), v.encode("latin-1", "replace")) for k, v in (headers or {}).items()]
        await self.begin([(b"content-type", kind), (b"content-length", b"%d" % len(body)), *more], status)
        await self.send({"type": "http.response.body", "body": body})

    async def begin(self, headers, status: int = 200) -> None:
        self.status = status
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, (b"x-request-id", self.request_id.encode())]})

    async def part(self, body: bytes, *, last: bool = False) -> None:
        """A piece of a stream. Waits while the client takes nothing, and what was sent before fills its buffer."""
        await self.send({"type": "http.response.body", "body": body, "more_body": not last})

    async def rest(self, raw: bytes) -> None:
        """What is left of a chunk that was begun below HTTP. Waits as part() does. Errors: Left where the connection is closed."""
        if not self.wire.write(raw):
            raise Left
        await self.part(b"")

    def abort(self) -> None:
        """Ends the connection at once, whatever its buffer holds."""
        if (end := self.scope.get("vivace.abort")) is not None:
            end()

    @contextlib.asynccontextmanager
    async def watched(self, left):
        """Inside, left() is called as soon as the client is gone."""
        async def watch():
            while (await self.receive())["type"] != "http.disconnect":
                pass
            left()

        task = asyncio.ensure_future(watch())
        try:
            yield
        finally:
            task.cancel()


class Left(Exception):
    """The client is gone: nobody is there to be told anything."""
