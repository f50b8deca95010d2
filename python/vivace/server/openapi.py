"""GET /openapi.json: the routes as OpenAPI 3.1, made of the structs that read the requests."""
from __future__ import annotations

import re

import msgspec

import vivace
from vivace.server import schema
from vivace.server.web import Call

BODIES = {
    "/v1/chat/completions": schema.Chat, "/v1/completions": schema.Completion, "/v1/responses": schema.Responses, "/v1/messages": schema.Messages, "/v1/messages/count_tokens": schema.Counted,
    "/v1/capsules": schema.SealCapsule, "/tokenize": schema.Tokenize, "/detokenize": schema.Detokenize,
}
OCTETS = {("PUT", "/v1/capsules")}
OPEN = ("/livez", "/")
REF = "#/components/schemas/{name}"
STATUSES = {
    400: "the request cannot be served, with the reason", 401: "no valid key", 403: "not for this key, or not under this name", 404: "there is none", 408: "too late", 413: "too long", 415: "another content type",
    422: "not to be understood", 429: "ask again after retry-after-ms", 431: "headers too long", 500: "an error of the server's own", 503: "it shuts down",
}
ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "object", "required": ["message", "type"], "properties": {"message": {"type": "string"}, "type": {"type": "string"}}}}}


def document(engine, routes) -> dict:
    """`routes`: (method, path, handler)."""
    kinds = list(dict.fromkeys(BODIES[path] for _, path, _ in routes if path in BODIES))
    refs, components = msgspec.json.schema_components(kinds, ref_template=REF)
    of = dict(zip(kinds, refs))
    for name in (k.__name__ for k in kinds):
        if "model" in (fields := components[name]["properties"]):
            fields["model"] = {"type": "string", "enum": [engine.name]}
    context = engine.context if kinds else 0
    for name, most in (("n", engine.limits.choices), ("max_tokens", context), ("max_completion_tokens", context), ("max_output_tokens", context)):
        for one in components.values():
            if name in one.get("properties", ()):
                one["properties"][name] = one["properties"][name] | {"minimum": 1, "maximum": most}
    paths: dict[str, dict] = {}
    for method, path, handler in routes:
        path = re.sub(r":\w+", "", path)
        operation: dict = {"operationId": f"{method.lower()}_{re.sub(r'[^a-z0-9]+', '_', path.lower()).strip('_') or 'page'}", "responses": {"default": {"description": "an answer"}}}
        operation["responses"] |= {str(s): {"description": what, "content": {"application/json": {"schema": ERROR}}} for s, what in STATUSES.items()}
        if names := re.findall(r"{(\w+)}", path):
            operation["parameters"] = [{"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names]
        if (method, path) in OCTETS:
            operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
        elif method == "POST" and path in BODIES:
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": of[BODIES[path]]}}}
        if path in OPEN:
            operation["security"] = []
        paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0", "info": {"title": f"Vivace: {engine.name}", "version": vivace.__version__}, "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}, "security": [{"key": []}, {}],
    }


async def openapi(call: Call, engine) -> None:
    from vivace.server.app import routes_of

    await call.json(document(engine, routes_of(engine)))
