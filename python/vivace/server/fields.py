"""Checks that several routes share."""
from __future__ import annotations

from vivace.server.errors import ApiError, bad, unsupported


def known(name: str, engine) -> None:
    if name != engine.name:
        raise ApiError(404, f"model {name[:80]!r} is not served here; this server has {engine.name!r}", code="model_not_found", param="model")


def refuse(asked, table: dict) -> None:
    """`table`: field -> (the value that asks for nothing, why any other is refused)."""
    for name, (nothing, why) in table.items():
        value = getattr(asked, name)
        if value is not None and value != nothing and value != []:
            raise unsupported(name, why)


def stream_options(asked) -> None:
    if asked.stream_options is not None and not asked.stream:
        raise bad("stream_options: only with stream: true", "stream_options", "invalid_value")
