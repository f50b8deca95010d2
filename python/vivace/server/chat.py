"""POST /v1/chat/completions."""
from __future__ import annotations

import os
import time

from vivace import _core
from vivace.errors import Error
from vivace.server import constraints, sampling, tools
from vivace.server.answering import Shape, answer, deadline_of, in_time
from vivace.server.engine import Asked
from vivace.server.errors import of_engine, unsupported
from vivace.server.fields import known, refuse, stream_options
from vivace.server.frames import DONE, around, event, logprob, usage
from vivace.server.messages import conversation
from vivace.server.schema import CHAT, Chat
from vivace.server.web import Call

# What is known and not served: the value that asks for nothing, and why any other is refused.
REFUSED = {
    "functions": (None, "deprecated and not served; use tools"), "function_call": (None, "deprecated and not served; use tool_choice"), "audio": (None, "this model gives text"),
    "prediction": (None, "not served"), "web_search_options": (None, "this server asks nobody else"), "chat_template": (None, "templates come from the checkpoint alone"),
    "chat_template_kwargs": (None, "values for the checkpoint's template are not taken from requests"),
    "store": (False, "nothing is kept; send false or leave it out"), "verbosity": (None, "this model has no such setting"), "reasoning_effort": ("none", "this model has no such setting"),
}


def checked(asked: Chat, engine) -> None:
    known(asked.model, engine)
    refuse(asked, REFUSED)
    if asked.modalities not in (None, ["text"]):
        raise unsupported("modalities", "this model gives text")
    stream_options(asked)


class Prompt:
    """A conversation with its tools: ids, and how what the model says to it is read. `named`: it must be a call of one tool."""

    def __init__(self, ids: list[int], text: str, engine, said_tools: list[dict], one_call: bool):
        self.ids, self.named, self._tools = ids, False, said_tools
        self._reply = dict(calls=engine.calls if said_tools else None, reasoning=engine.reasoning, one_call=one_call, tools=tools.kinds(said_tools),
                           in_reasoning=engine.reasoning is not None and _core.ends_in_reasoning(text, engine.reasoning))

    def asked(self, options: dict, stops: list[bytes], id_prefix: str = "call_") -> Asked:
        prefix = f"{id_prefix}{os.urandom(9).hex()}_"
        return Asked(self.ids, options, _core.ReplyOptions(stop=[s.decode() for s in stops], id_prefix=prefix, **self._reply), named=self.named)

    async def keeps_to(self, engine, keeps: dict) -> dict:
        """Options that hold a reply to `keeps`, compiled off the loop. Errors: ApiError 400 with the reason."""
        if keeps.get("grammar", "").startswith(constraints.CALLS):
            self._reply["tools"] = tools.kinds(self._tools, held=True)
        try:
            if keeps and self._reply["in_reasoning"]:
                keeps = constraints.behind_thought(keeps, engine.reasoning)
            if keeps:
                await engine.prepare(engine.model._matcher, engine.text, None, dict(keeps))
        except Error as e:
            raise of_engine(e, began=False) from None
        return keeps


async def prompt_of(engine, said: list[dict], given_tools: list[dict], *, one_call: bool, salt: str) -> Prompt:
    """Renders and tokenises; turns that were tokenised under this salt are not tokenised again. Errors: ApiError."""
    values = {"tools": given_tools} if given_tools else {}
    try:
        ids, text = await engine.prepare(lambda: engine.model._chat_prompt(said, owner=salt, **values))
    except Error as e:
        raise of_engine(e, began=False) from None
    return Prompt(ids, text, engine, given_tools, one_call)


async def chat(call: Call, engine) -> None:
    asked = await call.read(CHAT)
    deadline = deadline_of(call)
    checked(asked, engine)
    stops = sampling.stops(asked.stop, call.limits)
    one_call = asked.parallel_tool_calls is False
    given, keeps, named = constraints.held(engine, asked.tool_choice, asked.tools or [], tools.checked(asked.tools or [], call.limits), constraints.of_format(asked.response_format), one_call=one_call)
    prompt = await prompt_of(engine, conversation(asked.messages, engine.text.template, call.limits, calls=engine.calls, sees=engine.sees), given, one_call=one_call, salt=sampling.salt(call.identity, asked.cache_salt, call.limits))
    prompt.named = named
    keeps = await prompt.keeps_to(engine, keeps)
    in_time(deadline)
    name = "max_completion_tokens" if asked.max_completion_tokens is not None else "max_tokens"
    most = sampling.most_tokens(getattr(asked, name), name, len(prompt.ids), engine.context)
    each = sampling.options(asked, call, max_tokens=most, vocab=engine.vocab, defaults=engine.defaults, top_logprobs=sampling.tops(asked.logprobs, asked.top_logprobs), service_tier=asked.service_tier)
    await answer(call, engine, [prompt.asked(o | keeps, stops) for o in each], ChatShape(engine, asked, len(prompt.ids), len(each)), stream=bool(asked.stream), deadline=deadline)


class ChatShape(Shape):
    """An answer as chat.completion, or chat.completion.chunk events, which the outbox writes."""

    form = "chat"

    def __init__(self, engine, asked: Chat, prompt_tokens: int, choices: int):
        self._engine, self._prompt_tokens, self._choices, self.logprobs = engine, prompt_tokens, choices, bool(asked.logprobs)
        self._head = {"id": f"chatcmpl-{os.urandom(12).hex()}", "object": "chat.completion", "created": int(time.time()), "model": engine.name, "system_fingerprint": engine.fingerprint}
        self._usage_wanted = bool(asked.stream_options and asked.stream_options.include_usage)
        self.head, self.tail = around(self._head | {"object": "chat.completion.chunk"}, self._usage_wanted)

    def last(self, used) -> bytes:
        used = event({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage(self._prompt_tokens, used)}) if self._usage_wanted else b""
        return used + DONE

    def error(self, e) -> bytes:
        return event(e.body())

    def body(self, records, used) -> dict:
        choices = [self._choice(i, [r for r in records if r.i == i]) for i in range(self._choices)]
        return self._head | {"choices": choices, "usage": usage(self._prompt_tokens, used)}

    def _choice(self, i: int, records) -> dict:
        said = lambda kind: "".join(r.t for r in records if r.k == kind)  # noqa: E731
        calls = [{"id": r.d, "type": "function", "function": {"name": r.t, "arguments": "".join(a.t for a in records if a.k == "arguments" and a.x == r.x)}} for r in records if r.k == "call"]
        message = {"role": "assistant", "content": said("text") or (None if calls else ""), "refusal": None, "annotations": []}
        if reasoning := said("reasoning"):
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        logprobs = {"content": [logprob(self._engine.tokens, *t) for r in records for t in r.p], "refusal": None} if self.logprobs else None
        return {"index": i, "message": message, "logprobs": logprobs, "finish_reason": said("finish")}
