"""What the outbox says of replies that are not written as events of their own, line by line."""
from __future__ import annotations

import msgspec


class Record(msgspec.Struct):
    i: int  # choice
    k: str  # "text", "reasoning", "call", "arguments" or "finish"
    x: int  # of a call, from 0; of a finish which stop string was met, -1: none
    d: str  # a call's id
    t: str  # text; of a call its name; of a finish why
    n: int  # of a finish: tokens that were drawn
    p: list[tuple[int, float, list[tuple[int, float]]]]  # tokens that the text came from, with their logprobs and the likeliest in their place


_decoder = msgspec.json.Decoder(Record)


class Records:
    """Lines that may come in pieces."""

    def __init__(self):
        self._rest = b""

    def of(self, data: bytes) -> list[Record]:
        whole, found, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest
        return _decoder.decode_lines(whole) if found else []
