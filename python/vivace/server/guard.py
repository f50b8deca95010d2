"""What every request passes first: a request id, the host's name, a key, and errors as JSON."""
from __future__ import annotations

import contextlib
import logging
import os
import time

import msgspec
from starlette.exceptions import HTTPException

from vivace.server.anthropic import error_body
from vivace.server.auth import Identity, Keys
from vivace.server.errors import ApiError
from vivace.server.web import Bodies, Call, Left

log = logging.getLogger("vivace.server")
OPEN = ("/livez", "/")  # the routes without a key: the page is the same for everybody
ID_CHARS = 128
KEY_PROTOCOL = "openai-insecure-api-key."


class Guard:
    def __init__(self, app, engine, keys: Keys, hosts: frozenset[str] | None, sockets: dict | None = None, origins=()):
        """`hosts`: names under which the server may be asked; None: any. Without keys they keep a page of elsewhere, whose name
        was made to mean this machine, from asking. `sockets`: path -> what serves a WebSocket there; browsers let pages of every origin open one, so
        that origins other than the server's own and `origins` are refused here."""
        self._app, self._engine, self._keys, self._hosts = app, engine, keys, hosts
        self._sockets, self._origins = sockets or {}, frozenset(origins)
        self._bodies = Bodies(engine.limits.bodies_bytes)

    async def __call__(self, scope, receive, send):
        if scope["type"] == "websocket":
            return await self._socket(scope, receive, send)
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        call = Call(scope, receive, send, request_id=_request_id(scope["headers"]), identity=Identity("nobody"), limits=self._engine.limits, bodies=self._bodies)
        scope["vivace.call"] = call
        status = 499  # the client left
        try:
            try:
                self._pass(call)
                scope["app"] = self  # starlette then raises its 404s and 405s
                await self._app(scope, receive, send)
                status = call.status
            except HTTPException as e:
                raise ApiError(e.status_code, f"{scope['method'][:20]} {scope['path'][:80]}: {e.detail}", code="not_found" if e.status_code == 404 else "method_not_allowed", headers=dict(e.headers or {})) from None
            except Left:
                pass
            except ApiError:
                raise
            except Exception as e:
                log.exception("request %s", call.request_id)
                raise ApiError(500, f"an error of the server's own ({type(e).__name__}); its log has more under this request's id", code="internal") from e
        except ApiError as e:
            status = e.status
            await self._refuse(call, e)
        finally:
            route = scope.get("route")
            self._engine.metrics.request(getattr(route, "path", "other"), status, time.monotonic() - call.began)

    async def _socket(self, scope, receive, send) -> None:
        """A WebSocket: refused with an HTTP answer, or served."""
        call = Call(scope, receive, send, request_id=_request_id(scope["headers"]), identity=Identity("nobody"), limits=self._engine.limits, bodies=self._bodies)
        status, path = 101, scope["path"]
        await receive()  # websocket.connect
        scope["headers"] = [*scope["headers"], *((b"x-api-key", p[len(KEY_PROTOCOL):].encode()) for p in scope["subprotocols"] if p.startswith(KEY_PROTOCOL))]  # browsers can say no header
        try:
            self._pass(call)
            if (origin := call.header(b"origin")) is not None and origin.decode("latin-1") not in self._origins and origin.split(b"://")[-1] != call.header(b"host"):
                raise ApiError(403, f"origin {origin[:80].decode('latin-1')!r}: pages of elsewhere may ask where --cors-origin names them", code="wrong_origin")
            if path not in self._sockets:
                raise ApiError(404, f"{path[:80]}: no WebSocket is served there", code="not_found")
            await self._sockets[path](scope, receive, send, self._engine)
        except Left:
            pass
        except ApiError as e:  # before it was accepted
            status, body = e.status, msgspec.json.encode(e.body())
            head = [(b"content-type", b"application/json"), (b"x-request-id", call.request_id.encode()), *((k.encode(), v.encode("latin-1", "replace")) for k, v in e.headers.items())]
            with contextlib.suppress(OSError):
                await send({"type": "websocket.http.response.start", "status": status, "headers": head})
                await send({"type": "websocket.http.response.body", "body": body})
        except OSError:  # the client is gone
            pass
        except Exception:
            status = 500
            log.exception("websocket %s", call.request_id)
            with contextlib.suppress(Exception):
                await send({"type": "websocket.close", "code": 1011})
        finally:
            self._engine.metrics.request(path if path in self._sockets else "other", status, time.monotonic() - call.began)

    async def _refuse(self, call: Call, e: ApiError) -> None:
        if call.status:
            return call.abort()  # in the middle of a body that is no stream
        headers = dict(e.headers)
        if call.work_began or e.status >= 500:
            headers.setdefault("x-should-retry", "false")
        theirs = call.scope["path"].startswith("/v1/messages")
        await call.json(error_body(e, call.request_id) if theirs else e.body(), e.status, headers)

    def _pass(self, call: Call) -> None:
        if call.scope["path"] == "/livez":
            return
        if self._hosts is not None:
            host = (call.header(b"host") or b"").decode("latin-1").lower()
            name = host[:host.rfind("]") + 1] if host.startswith("[") else host.split(":")[0]
            if name not in self._hosts:
                raise ApiError(403, f"host {name[:80]!r}: this server is asked as {', '.join(sorted(self._hosts))}", code="wrong_host")
        identity = self._keys.identify(call.scope["headers"])
        if identity is None and call.scope["path"] not in OPEN:
            raise ApiError(401, "a valid API key is wanted, as `Authorization: Bearer KEY` or `x-api-key: KEY`", code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        call.identity = identity or call.identity


def _request_id(headers) -> str:
    given = next((v for k, v in headers if k == b"x-request-id"), b"")
    text = given.decode("latin-1")
    return text if 0 < len(text) <= ID_CHARS and text.isascii() and text.isprintable() else f"req-{os.urandom(12).hex()}"
