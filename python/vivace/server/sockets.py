"""uvicorn's WebSocket connection with bounds: frames of a message, a client that takes nothing, and pings that wait behind sound."""
from __future__ import annotations

import logging

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

MOST_FRAMES = 1024  # of one message
_QUIET = logging.getLogger("vivace.server.sockets")  # what clients do wrong is no line of the log; Guard writes down what the server does
_QUIET.setLevel(logging.CRITICAL)


class Sockets(WebSocketsSansIOProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.logger = _QUIET

    def handle_connect(self, event):
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["vivace.abort"] = self.transport.abort

    def handle_cont(self, event):
        if len(self.frames) >= MOST_FRAMES:
            self.conn.fail(1008, f"a message in more than {MOST_FRAMES} frames")
            self.frames = []
            return self.handle_parser_exception()
        return super().handle_cont(event)

    def keepalive_timeout(self):
        """Where the server itself has not read on, the client's answer waits behind what it sent before."""
        if self.read_paused:
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
        else:
            super().keepalive_timeout()
