"""Events of streams as bytes, and what OpenAI's shapes share."""
from __future__ import annotations

import msgspec

json = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


def event(value) -> bytes:
    return b"data: " + json(value) + b"\n\n"


def around(head: dict, usage: bool) -> tuple[bytes, bytes]:
    """What stands before and behind a choice in each event of OpenAI's shape: {**head, "choices": [...], "usage": null where usage comes at the end}."""
    return b"data: " + json(head)[:-1] + b',"choices":[', (b'],"usage":null}' if usage else b"]}") + b"\n\n"


def usage(prompt_tokens: int, used) -> dict:
    """`used`: of engine.Used."""
    return {
        "prompt_tokens": prompt_tokens, "completion_tokens": used.tokens, "total_tokens": prompt_tokens + used.tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": used.written, "cache_miss": used.miss}, "completion_tokens_details": {"reasoning_tokens": 0},
    }


def logprob(names: list[bytes], token: int, value: float, top: list[tuple[int, float]]) -> dict:
    """A drawn token in OpenAI's shape. `names`: bytes of each token."""
    def one(token, value):
        return {"token": names[token].decode("utf-8", "replace"), "logprob": value, "bytes": list(names[token])}

    return {**one(token, value), "top_logprobs": [one(*t) for t in top]}
