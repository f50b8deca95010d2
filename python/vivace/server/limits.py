"""What a request, a connection and all of them together may cost. Each limit is tested at N and N + 1."""
from __future__ import annotations

import difflib
from dataclasses import dataclass, fields

from vivace.errors import InvalidArgumentError


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 4 << 20
    audio_bytes: int = 25 << 20  # of a body with a sound file
    audio_s: float = 7200.0  # of sound
    bodies_bytes: int = 64 << 20  # of all requests that are being read
    header_bytes: int = 16 << 10
    connections: int = 512
    send_bytes: int = 64 << 10  # that the kernel keeps for a client that reads slowly; it doubles them
    streams: int = 64  # answers on their way as events
    realtime: int = 16  # sessions of /v1/realtime
    realtime_bytes: int = 1 << 20  # of one of their messages
    realtime_s: float = 3600.0  # that one lasts
    messages: int = 1024
    images: int = 16  # of a request's messages
    stops: int = 4
    stop_bytes: int = 256
    logit_biases: int = 1024
    choices: int = 8
    tools: int = 128
    schema_bytes: int = 64 << 10
    schema_depth: int = 32
    prompts: int = 64  # of one /v1/completions
    tokens_in_queue: int = 1 << 20  # of prompts that answer or wait
    responses: int = 256  # that later requests may go on from
    response_s: float = 3600.0  # for which they are kept
    capsules: int = 32
    capsule_bytes: int = 1 << 30  # on the host, all together, and of one that is brought
    header_s: float = 10.0
    body_s: float = 60.0
    idle_s: float = 75.0
    stalled_s: float = 10.0  # for which a client may take nothing of its answer
    ping_s: float = 15.0  # of silence in a stream until a comment keeps proxies from closing it


def parse(given: list[str]) -> Limits:
    """Limits of NAME=VALUE each; others keep their defaults."""
    types, values = {f.name: type(f.default) for f in fields(Limits)}, {}
    for text in given:
        name, equals, value = text.partition("=")
        if name not in types:
            near = difflib.get_close_matches(name, types, 1, 0.5)
            raise InvalidArgumentError(f"limit {name[:40]!r}: {f'did you mean {near[0]}' if near else 'there is none'}; wanted NAME=VALUE of {', '.join(types)}")
        try:
            values[name] = types[name](value) if equals else None
        except ValueError:
            values[name] = None
        if values[name] is None or not 0 < values[name] < 1 << 40:
            raise InvalidArgumentError(f"limit {name}: wanted NAME=VALUE with {'a number' if types[name] is float else 'a whole number'} above 0, got {text[:60]!r}")
    return Limits(**values)
