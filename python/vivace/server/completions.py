"""POST /v1/completions."""
from __future__ import annotations

import os
import time

from vivace import _core
from vivace.errors import Error
from vivace.server import sampling
from vivace.server.answering import Shape, answer, deadline_of, in_time
from vivace.server.engine import Asked
from vivace.server.errors import bad, of_engine, unsupported
from vivace.server.fields import known, refuse, stream_options
from vivace.server.frames import DONE, around, event, usage
from vivace.server.schema import COMPLETION, Completion
from vivace.server.web import Call

REFUSED = {"suffix": ("", "this model fills no gaps")}


def prompts(given, limits) -> list:
    """Texts, or lists of token ids, one a prompt."""
    several = given if isinstance(given, list) and (not given or not isinstance(given[0], int)) else [given]
    if not 1 <= len(several) <= limits.prompts:
        raise bad(f"prompt: wanted 1 to {limits.prompts} prompts, got {len(several)}", "prompt", "invalid_value")
    for prompt in several:
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(isinstance(t, int) for t in prompt)):
            raise bad("prompt: wanted a text, a list of texts, a list of tokens, or a list of such lists", "prompt", "invalid_type")
    return several


def encoded(engine, several: list) -> list[list[int]]:
    """On a thread of the pool. Errors: InvalidArgumentError, LimitExceededError."""
    out = []
    for prompt in several:
        ids = engine.text.prompt_ids(prompt) if isinstance(prompt, str) else prompt
        if wrong := next((i for i in ids if not 0 <= i < engine.vocab), None):
            raise bad(f"prompt: token {wrong} is outside the vocabulary [0, {engine.vocab})", "prompt", "invalid_value")
        out.append(ids)
    return out


async def completions(call: Call, engine) -> None:
    asked = await call.read(COMPLETION)
    deadline = deadline_of(call)
    known(asked.model, engine)
    refuse(asked, REFUSED)
    if asked.best_of not in (None, asked.n or 1):
        raise unsupported("best_of", "only the number of choices itself")
    if asked.echo and asked.logprobs is not None:
        raise unsupported("echo", "not together with logprobs: those of a prompt are not computed")
    stream_options(asked)
    stops = sampling.stops(asked.stop, call.limits)
    try:
        ids = await engine.prepare(encoded, engine, prompts(asked.prompt, call.limits))
    except Error as e:
        raise of_engine(e, began=False) from None
    in_time(deadline)
    top = sampling.tops(True, asked.logprobs, "logprobs")
    each = [sampling.options(asked, call, max_tokens=sampling.most_tokens(asked.max_tokens, "max_tokens", len(i), engine.context), vocab=engine.vocab, defaults=engine.defaults, top_logprobs=top) for i in ids]
    echoed = [engine.text.decode(i) if asked.echo else "" for i in ids]
    read = _core.ReplyOptions(stop=[s.decode() for s in stops])
    choices = [Asked(i, o, read, echo) for i, options, echo in zip(ids, each, echoed) for o in options]
    await answer(call, engine, choices, CompletionShape(engine, asked, sum(map(len, ids)), len(choices)), stream=bool(asked.stream), deadline=deadline)


class CompletionShape(Shape):
    """An answer as text_completion, whole or as events, which the outbox writes."""

    form = "completion"

    def __init__(self, engine, asked: Completion, prompt_tokens: int, choices: int):
        self._engine, self._prompt_tokens, self._choices, self.logprobs = engine, prompt_tokens, choices, asked.logprobs is not None
        self._head = {"id": f"cmpl-{os.urandom(12).hex()}", "object": "text_completion", "created": int(time.time()), "model": engine.name, "system_fingerprint": engine.fingerprint}
        self._usage_wanted = bool(asked.stream_options and asked.stream_options.include_usage)
        self.head, self.tail = around(self._head, self._usage_wanted)

    def last(self, used) -> bytes:
        return (event({**self._head, "choices": [], "usage": usage(self._prompt_tokens, used)}) if self._usage_wanted else b"") + DONE

    def error(self, e) -> bytes:
        return event(e.body())

    def _logprobs(self, records) -> dict | None:
        if not self.logprobs:
            return None
        out, offset = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}, 0
        names = lambda token: self._engine.tokens[token].decode("utf-8", "replace")  # noqa: E731
        for token, logprob, top in (t for r in records for t in r.p):
            text, said = names(token), {}
            for other, value in [*top, (token, logprob)]:
                said.setdefault(names(other), value)
            for key, value in zip(out, (text, logprob, said, offset)):
                out[key].append(value)
            offset += len(text)
        return out

    def body(self, records, used) -> dict:
        choices = []
        for i in range(self._choices):
            own = [r for r in records if r.i == i]
            choices.append({"index": i, "text": "".join(r.t for r in own if r.k == "text"), "logprobs": self._logprobs(own), "finish_reason": next(r.t for r in own if r.k == "finish")})
        return self._head | {"choices": choices, "usage": usage(self._prompt_tokens, used)}
