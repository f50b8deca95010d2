"""uvicorn's HTTP/1.1 connection with bounds: bytes and time of a request's head, time of its body, number of connections. One
request at a time: what a client sends before its answer is whole is dropped, and the connection ends with the answer, so that a
client that leaves is always noticed."""
from __future__ import annotations

import socket

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from vivace.server.errors import ApiError
from vivace.server.limits import Limits


class _Pipelined(Exception):
    pass


class Wire:
    """A connection's socket, below HTTP, for answers whose chunks the outbox writes."""

    def __init__(self, transport):
        self._transport = transport

    def write(self, raw: bytes) -> bool:
        """Whether the connection still takes bytes. One whose client left is closed before anybody here hears of it; uvloop raises where it is written to."""
        if self._transport.is_closing():
            return False
        self._transport.write(raw)
        return True

    def free(self) -> int | None:
        """The descriptor where nothing waits to be written to it, and it stays open."""
        t = self._transport
        return None if t.is_closing() or t.get_write_buffer_size() else t.get_extra_info("socket").fileno()


def protocol(limits: Limits, refused):
    """The protocol's class. `refused(status)`: told of each request that never became one."""

    class Protocol(HttpToolsProtocol):
        def connection_made(self, transport):
            self._timer, self._in_head, self._refusal, self._raw, self._head = None, True, None, 0, 0
            super().connection_made(transport)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_bytes)
            if len(self.connections) > limits.connections:
                self._refuse(ApiError(503, f"{limits.connections} connections are open already", code="too_many_connections", headers={"x-should-retry": "true"}))
            else:
                self._bound(limits.header_s, "headers", limits.header_s)

        def connection_lost(self, exc):
            self._unbound()
            super().connection_lost(exc)

        def data_received(self, data):
            if self.transport.is_closing():
                return
            if self._answering():
                self.cycle.keep_alive = False  # more than one request at a time
                return
            if self._in_head:
                if self._timer is None:  # the first bytes of another request
                    self._bound(limits.header_s, "headers", limits.header_s)
                self._raw += len(data)
            super().data_received(data)
            if self._in_head and self._raw > limits.header_bytes and not self.transport.is_closing():
                self._too_long()

        def on_message_begin(self):
            if self._answering():
                raise _Pipelined
            self._in_head, self._head = True, 0
            super().on_message_begin()

        def on_url(self, url):
            self._count(len(url))
            super().on_url(url)

        def on_header(self, name, value):
            self._count(len(name) + len(value) + 4)  # ": " and the end of the line
            super().on_header(name, value)

        def on_headers_complete(self):
            if self.transport.is_closing():
                return
            self._in_head, self._raw = False, 0
            self._bound(limits.body_s, "body", limits.body_s)
            self.scope["vivace.abort"] = self.transport.abort
            if self.transport.get_extra_info("sslcontext") is None:
                self.scope["vivace.wire"] = Wire(self.transport)
            super().on_headers_complete()

        def handle_websocket_upgrade(self):
            self._unbound()
            super().handle_websocket_upgrade()

        def on_message_complete(self):
            self._unbound()
            self._in_head = True
            super().on_message_complete()

        def send_400_response(self, msg):
            """The parser, or one of the above, has refused what came."""
            if self._answering():
                self.cycle.keep_alive = False
            else:
                self._refuse(self._refusal or ApiError(400, "this is no HTTP/1.1 request", code="invalid_http"))

        def _answering(self) -> bool:
            """A request is whole, and its answer is not."""
            return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

        def _count(self, size):
            self._head += size
            if self._head > limits.header_bytes:
                self._refusal = self._long_head()
                raise ValueError("head")

        @staticmethod
        def _long_head() -> ApiError:
            return ApiError(431, f"request line and headers: more than {limits.header_bytes} bytes", code="headers_too_large")

        def _too_long(self):
            self._refuse(self._long_head())

        def _bound(self, seconds, what, shown):
            self._unbound()
            self._timer = self.loop.call_later(seconds, self._refuse, ApiError(408, f"the {what} of the request did not come within {shown:g} s", code="request_timeout"))

        def _unbound(self):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _refuse(self, error: ApiError):
            self._unbound()
            if self.transport is None or self.transport.is_closing():
                return
            cycle = self.cycle
            if cycle is not None and cycle.response_complete and not self._in_head:  # it was answered before its body came
                return self.transport.close()
            if cycle is not None and not cycle.response_complete:  # it waits for its body, which does not come
                cycle.disconnected = True
                cycle.message_event.set()
                if cycle.response_started:
                    return self.transport.abort()
            refused(error.status)
            body = msgspec.json.encode(error.body())
            head = [STATUS_LINE[error.status], b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)]
            head += [f"{k}: {v}\r\n".encode() for k, v in error.headers.items()]
            self.transport.write(b"".join([*head, b"\r\n", body]))
            self.transport.close()

    return Protocol
