"""The routes, as one ASGI application around an Engine."""
from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router

from vivace.server import anthropic, capsules, others
from vivace.server.auth import Keys
from vivace.server.chat import chat
from vivace.server.completions import completions
from vivace.server.guard import Guard
from vivace.server.hearing import nothing_says
from vivace.server.openapi import openapi
from vivace.server.page import page
from vivace.server.realtime import PATH, realtime
from vivace.server.responses import compact, forget, responses, stored
from vivace.server.speech import transcriptions, translations

ROUTES = [
    ("POST", "/v1/chat/completions", chat), ("POST", "/v1/completions", completions), ("POST", "/v1/responses", responses),
    ("GET", "/v1/responses/{id}", stored), ("DELETE", "/v1/responses/{id}", forget), ("POST", "/v1/responses/compact", compact),
    ("POST", "/v1/capsules", capsules.create), ("GET", "/v1/capsules", capsules.every), ("PUT", "/v1/capsules", capsules.put), ("GET", "/v1/capsules/{id}", capsules.one),
    ("DELETE", "/v1/capsules/{id}", capsules.drop), ("POST", "/v1/capsules/{id}/fork", capsules.fork), ("GET", "/v1/capsules/{id}/bytes", capsules.take),
    ("POST", "/v1/messages", anthropic.messages), ("POST", "/v1/messages/count_tokens", anthropic.count),
    ("POST", "/v1/audio/transcriptions", transcriptions), ("POST", "/v1/audio/translations", translations),
    ("GET", "/v1/models", others.models), ("GET", "/v1/models/{id:path}", others.model),
    ("GET", "/v1/tenants", others.tenants), ("POST", "/tokenize", others.tokenize), ("POST", "/detokenize", others.detokenize),
    ("GET", "/", page), ("GET", "/livez", others.live), ("GET", "/readyz", others.ready), ("GET", "/health", others.ready),
    ("GET", "/progress", others.progress), ("GET", "/openapi.json", openapi), ("GET", "/metrics", others.metrics),
]

# Those that a server of speech alone answers; the others say that it has no language model.
HEARING = ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/models", "/v1/models/{id:path}", "/livez", "/readyz", "/health", "/progress", "/openapi.json", "/metrics")


def routes_of(engine) -> list:
    """The routes that answer."""
    return [r for r in ROUTES if engine.model is not None or r[1] in HEARING]


class _Endpoint:
    """A handler as plain ASGI: starlette routes to it and does nothing more."""

    def __init__(self, handler, engine):
        self._handler, self._engine = handler, engine

    async def __call__(self, scope, receive, send):
        await self._handler(scope["vivace.call"], self._engine)


def make_app(engine, *, keys: Keys | None = None, hosts: frozenset[str] | None = None, origins: list[str] = ()):
    """An ASGI application. `origins`: pages that may ask from a browser; none unless named."""
    served = routes_of(engine)
    router = Router([Route(path, _Endpoint(handler if (method, path, handler) in served else nothing_says, engine), methods=[method]) for method, path, handler in ROUTES], redirect_slashes=False)
    app = Guard(router, engine, keys or Keys(), hosts, {PATH: realtime}, origins)
    if origins:
        app = CORSMiddleware(app, allow_origins=list(origins), allow_methods=["GET", "POST", "PUT", "DELETE"], allow_headers=["authorization", "content-type", "x-api-key", "x-request-id"], expose_headers=["x-request-id", "retry-after-ms"])
    return app
