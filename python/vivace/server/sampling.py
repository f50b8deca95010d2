"""What the engine is asked, of a request's fields."""
from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from msgspec import json

from vivace.server.auth import PRIORITIES
from vivace.server.errors import ApiError, bad
from vivace.server.limits import Limits

INT63 = 1 << 63
MOST_TOPS = 20


@dataclass(frozen=True)
class Defaults:
    """Of a request that does not say: OpenAI's, unless the checkpoint or who started the server says otherwise."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None  # None: another one for each request

    @classmethod
    def of(cls, drawn: dict, *, temperature: float | None, top_p: float | None, seed: int | None) -> "Defaults":
        """`drawn`: of the checkpoint's generation_config.json."""
        given = {"temperature": temperature, "top_p": top_p}
        return cls(**drawn | {n: v for n, v in given.items() if v is not None}, seed=seed)


def ranged(value, name: str, low, high, default):
    if value is None:
        return default
    if not low <= value <= high:
        raise bad(f"{name}: wanted {low} to {high}, got {value}", name, "invalid_value")
    return value


def stops(given, limits: Limits, name: str = "stop") -> list[bytes]:
    texts = [given] if isinstance(given, str) else given or []
    if len(texts) > limits.stops:
        raise bad(f"{name}: {len(texts)} strings, at most {limits.stops}", name, "invalid_value")
    found = [t.encode() for t in texts]
    if (wrong := next((s for s in found if not 1 <= len(s) <= limits.stop_bytes), None)) is not None:
        raise bad(f"{name}: wanted strings of 1 to {limits.stop_bytes} bytes, got one of {len(wrong)}", name, "invalid_value")
    return found


def biases(given: dict[str, float] | None, vocab: int, limits: Limits) -> dict[int, float]:
    if not given:
        return {}
    if len(given) > limits.logit_biases:
        raise bad(f"logit_bias: {len(given)} tokens, at most {limits.logit_biases}", "logit_bias", "invalid_value")
    out = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 12 and int(key) < vocab):
            raise bad(f"logit_bias: {key[:20]!r} is no token of the vocabulary [0, {vocab})", "logit_bias", "invalid_value")
        out[int(key)] = ranged(value, "logit_bias", -100.0, 100.0, 0.0)
    return out


TIERS = {None: None, "auto": None, "default": None, "standard_only": None, "flex": "batch", "priority": "interactive"}  # service_tier -> class


def priority(given: str | None, tier: str | None, identity) -> str:
    """The class of a request. Errors: ApiError 400, 403."""
    if tier not in TIERS:
        raise bad(f"service_tier: wanted auto, default, flex or priority, got {tier[:40]!r}", "service_tier", "invalid_value")
    wanted = given or TIERS[tier] or max("interactive", identity.priority, key=PRIORITIES.index)
    if wanted not in PRIORITIES:
        raise bad(f"priority: wanted {', '.join(PRIORITIES)}, got {wanted[:40]!r}", "priority", "invalid_value")
    if PRIORITIES.index(wanted) < PRIORITIES.index(identity.priority):
        raise ApiError(403, f"priority: this key may ask for {identity.priority} and what comes after it, not for {wanted}", code="priority_not_allowed", param="priority")
    return wanted


def salt(identity, given: str | None, limits: Limits) -> str:
    """Whose computed beginnings a request may find. What the request says keeps those of one key apart from each other, never together."""
    if given is None:
        return identity.salt
    if not 1 <= len(given) <= limits.stop_bytes:
        raise bad(f"cache_salt: wanted 1 to {limits.stop_bytes} characters, got {len(given)}", "cache_salt", "invalid_value")
    return hashlib.sha256(json.encode([identity.salt, given])).hexdigest()


def tops(wanted: bool | None, count: int | None, name: str = "top_logprobs") -> int:
    if count is not None and not wanted:
        raise bad(f"{name}: it needs logprobs: true", name, "invalid_value")
    return ranged(count, name, 0, MOST_TOPS, 0)


def options(asked, call, *, max_tokens: int, vocab: int, defaults: Defaults, top_logprobs: int = 0, service_tier: str | None = None) -> list[dict]:
    """Options of the engine, one dict a choice: choices differ in their seed, which is the request's plus the choice's number."""
    limits = call.limits
    n = ranged(asked.n, "n", 1, limits.choices, 1)
    seed = ranged(asked.seed, "seed", -INT63, INT63 - 1, defaults.seed)
    seed = int.from_bytes(os.urandom(7), "little") if seed is None else seed
    if len(asked.stop_token_ids or ()) > limits.stop_bytes:
        raise bad(f"stop_token_ids: {len(asked.stop_token_ids)} tokens, at most {limits.stop_bytes}", "stop_token_ids", "invalid_value")
    common = dict(
        max_tokens=max_tokens,
        temperature=ranged(asked.temperature, "temperature", 0.0, 2.0, defaults.temperature),
        top_p=max(ranged(asked.top_p, "top_p", 0.0, 1.0, defaults.top_p), 1e-6),  # 0: the likeliest token alone
        top_k=ranged(asked.top_k, "top_k", 0, vocab, defaults.top_k),
        min_p=ranged(asked.min_p, "min_p", 0.0, 1.0, defaults.min_p),
        presence_penalty=ranged(asked.presence_penalty, "presence_penalty", -2.0, 2.0, 0.0),
        frequency_penalty=ranged(asked.frequency_penalty, "frequency_penalty", -2.0, 2.0, 0.0),
        repetition_penalty=ranged(asked.repetition_penalty, "repetition_penalty", 0.01, 100.0, defaults.repetition_penalty),
        stop=[ranged(t, "stop_token_ids", 0, vocab - 1, 0) for t in asked.stop_token_ids or ()],
        min_tokens=ranged(asked.min_tokens, "min_tokens", 0, max_tokens, 0),
        logit_bias=biases(asked.logit_bias, vocab, limits) or None,
        top_logprobs=top_logprobs,
        priority=priority(asked.priority, service_tier, call.identity),
        deterministic=bool(asked.deterministic),
        salt=salt(call.identity, asked.cache_salt, limits),
    )
    return [common | {"seed": (seed + i) % INT63} for i in range(n)]


def most_tokens(given: int | None, name: str, prompt_tokens: int, context: int, *, cut: bool = False) -> int:
    """Tokens that an answer may have; `cut`: more than fit are asked for as a matter of course, and mean as many as fit. Errors: ApiError 400 where prompt and answer do not fit the context."""
    room = context - prompt_tokens + 1  # the last token of an answer is not fed back
    if prompt_tokens < 1:
        raise bad("the prompt has no tokens", "prompt", "invalid_value")
    if room < 1:
        raise bad(f"the prompt has {prompt_tokens} tokens, and the context {context}", code="context_length_exceeded")
    if given is None:
        return room
    if not 1 <= given:
        raise bad(f"{name}: wanted at least 1, got {given}", name, "invalid_value")
    if given > room and not cut:
        raise bad(f"{prompt_tokens} tokens of the prompt and {given} of the answer ({name}) are more than the context of {context}", name, "context_length_exceeded")
    return min(given, room)
