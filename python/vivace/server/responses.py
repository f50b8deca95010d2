"""POST /v1/responses: OpenAI's Responses API without a state of the server's: each request brings its whole conversation."""
from __future__ import annotations

import os
import time
from dataclasses import replace

import msgspec

from vivace.server import constraints, sampling, tools
from vivace.server.answering import Shape, answer, deadline_of, in_time
from vivace.server.chat import prompt_of
from vivace.server.errors import ApiError, bad, unsupported
from vivace.server.fields import known, refuse, stream_options
from vivace.server.kept import Talk
from vivace.server.messages import conversation
from vivace.server.schema import RESPONSES, Message, Responses, Sampled
from vivace.server.web import Call

REFUSED = {
    "conversation": (None, "not served; send previous_response_id, or the whole of it as input"), "prompt": (None, "templates of the server's own are not served"),
    "background": (False, "an answer comes with its request"), "top_logprobs": (0, "not served here"), "max_tool_calls": (None, "tools of the server's own are not served"),
    "truncation": ("disabled", "nothing is left out silently; shorten the input"),
}
TEXTS = ("input_text", "output_text", "text")


def _joined(content, at: str) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    for k, part in enumerate(content):
        if part.type not in TEXTS or part.text is None:
            raise bad(f"{at}[{k}]: wanted a part of type 'input_text' with a text, got {part.type[:40]!r}; this model takes text", f"{at}[{k}]", "invalid_value")
    return "\n".join(part.text for part in content)


def said(asked: Responses) -> list[Message]:
    """Input items as OpenAI's messages: calls that stand together are one message's."""
    out = [Message(role="system", content=asked.instructions)] if asked.instructions else []
    if isinstance(asked.input, str):
        return [*out, Message(role="user", content=asked.input)]
    for i, item in enumerate(asked.input):
        at = f"input[{i}]"
        if item.type == "message" and item.role is not None:
            out.append(Message(role=item.role, content=_joined(item.content, f"{at}.content")))
        elif item.type == "function_call" and item.name is not None and item.call_id is not None:
            call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
            if out and out[-1].role == "assistant":
                out[-1].tool_calls = [*(out[-1].tool_calls or []), call]
            else:
                out.append(Message(role="assistant", tool_calls=[call]))
        elif item.type == "function_call_output" and item.call_id is not None:
            out.append(Message(role="tool", tool_call_id=item.call_id, content=_joined(item.output, f"{at}.output")))
        elif item.type != "reasoning":  # what the model thought before is not told it again
            raise bad(f"{at}: wanted a message with a role, a function_call, a function_call_output or reasoning, got type {item.type[:40]!r}", at, "invalid_value")
    return out


def answered(items: list[dict]) -> list[Message]:
    """Items of an output as said() has them of an input."""
    out = [Message(role="assistant", content="")]
    for item in items:
        if item["type"] == "message":
            out[0].content += "".join(p["text"] for p in item["content"])
        elif item["type"] == "function_call":
            try:
                msgspec.json.decode(item["arguments"])
            except msgspec.DecodeError:  # cut off
                continue
            out[0].tool_calls = [*(out[0].tool_calls or []), {"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": item["arguments"]}}]
    return out


def functions(given: list, limits) -> list[dict]:
    flat = []
    for i, tool in enumerate(given):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise bad(f"tools[{i}]: wanted type 'function'; tools of the server's own are not served", f"tools[{i}]", "invalid_value")
        flat.append({"type": "function", "function": {k: tool.get(k) for k in ("name", "description", "parameters", "strict")}})
    return tools.checked(flat, limits)


async def responses(call: Call, engine) -> None:
    asked = await call.read(RESPONSES)
    deadline = deadline_of(call)
    known(asked.model, engine)
    refuse(asked, REFUSED)
    stream_options(asked)
    form = (asked.text or {}).get("format") or {"type": "text"}
    if not isinstance(form, dict):
        raise bad("text.format: wanted an object with a type", "text.format", "invalid_type")
    keeps = constraints.of_format({"type": "json_schema", "json_schema": form} if form.get("type") == "json_schema" else form)
    if (asked.reasoning or {}).get("effort") not in (None, "none"):
        raise unsupported("reasoning.effort", "this model has no such setting")
    one_call, choice = asked.parallel_tool_calls is False, asked.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    given, keeps, _ = constraints.held(engine, choice, asked.tools or [], functions(asked.tools or [], call.limits), keeps, one_call=one_call)
    before = engine.kept.previous(asked.previous_response_id, call.identity.name) if asked.previous_response_id is not None else None
    now, not_brought = said(asked), ""
    if before is not None:  # its instructions were for it alone
        now = [*now[:bool(asked.instructions)], *before.messages, *now[bool(asked.instructions):]]
        if before.capsule is not None:
            not_brought = await engine.with_engine(before.capsule.bring)
    talk = conversation(now, engine.text.template, call.limits, calls=engine.calls)
    prompt = await prompt_of(engine, talk, given, one_call=one_call, salt=call.identity.salt)
    keeps = await prompt.keeps_to(engine, keeps)
    in_time(deadline)
    most = sampling.most_tokens(asked.max_output_tokens, "max_output_tokens", len(prompt.ids), engine.context)
    sampled = Sampled(model=asked.model, temperature=asked.temperature, top_p=asked.top_p, presence_penalty=asked.presence_penalty, frequency_penalty=asked.frequency_penalty)
    [options] = sampling.options(sampled, call, max_tokens=most, vocab=engine.vocab, defaults=engine.defaults, service_tier=asked.service_tier)
    choice = prompt.asked(options | keeps, [])
    choice.not_brought = not_brought
    await answer(call, engine, [choice], ResponseShape(engine, asked, options, len(prompt.ids), Talk("", call.identity.name, options["salt"], now[bool(asked.instructions):])), stream=bool(asked.stream), deadline=deadline)


async def stored(call: Call, engine) -> None:
    await call.json(engine.kept.response(call.scope["path_params"]["id"], call.identity.name).body)


async def compact(call: Call, engine) -> None:
    """A name of OpenAI's that would else be taken for a response's. Errors: ApiError 404."""
    raise ApiError(404, "responses are not compacted here; send the part of the conversation that matters as input", code="not_found")


async def forget(call: Call, engine) -> None:
    ident = call.scope["path_params"]["id"]
    engine.kept.forget(ident, call.identity.name)
    await call.json({"id": ident, "object": "response", "deleted": True})


class ResponseShape(Shape):
    """A response, whole or event by event: an item for reasoning, one for each stretch of text, one for each call."""

    def __init__(self, engine, asked: Responses, options: dict, prompt_tokens: int, talk: Talk):
        """`talk`: the conversation up to this response."""
        self._engine, self._talk, self._stored = engine, talk, asked.store is not False
        self._prompt_tokens, self._sequence, self._items, self._finish = prompt_tokens, 0, [], None
        self._open = False
        self._head = {
            "id": f"resp_{os.urandom(16).hex()}", "object": "response", "created_at": int(time.time()), "model": engine.name, "previous_response_id": asked.previous_response_id, "instructions": asked.instructions,
            "error": None, "tools": [{"strict": False, "description": None, "parameters": None, **t} for t in asked.tools or []], "tool_choice": asked.tool_choice or "auto", "truncation": "disabled",
            "parallel_tool_calls": asked.parallel_tool_calls is not False, "text": {"format": (asked.text or {}).get("format") or {"type": "text"}}, "top_p": options["top_p"], "presence_penalty": options["presence_penalty"],
            "frequency_penalty": options["frequency_penalty"], "top_logprobs": 0, "temperature": options["temperature"], "reasoning": {"effort": None, "summary": None},
            "max_output_tokens": asked.max_output_tokens, "max_tool_calls": None, "store": self._stored, "background": False, "service_tier": "default", "metadata": asked.metadata or {},
            "safety_identifier": asked.safety_identifier, "prompt_cache_key": asked.prompt_cache_key,
        }

    def _response(self, status: str, used) -> dict:
        usage = None if used is None else {"input_tokens": self._prompt_tokens, "output_tokens": used.tokens, "total_tokens": self._prompt_tokens + used.tokens,
                                             "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": used.written, "cache_miss": used.miss}, "output_tokens_details": {"reasoning_tokens": 0}}
        over = status in ("completed", "incomplete")
        return {**self._head, "status": status, "completed_at": int(time.time()) if over else None, "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
                "output": self._items if over else [], "usage": usage}

    def _final(self, used) -> dict:
        """Over; kept, unless it was not to be."""
        body = self._response(self._status(), used)
        if self._stored:
            self._engine.kept.add(replace(self._talk, ident=self._head["id"], messages=[*self._talk.messages, *answered(self._items)], body=body))
        return body

    def _event(self, kind: str, **fields) -> bytes:
        value = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(value))

    def first(self, used) -> bytes:
        return self._event("response.created", response=self._response("in_progress", None)) + self._event("response.in_progress", response=self._response("in_progress", None))

    def _at(self) -> dict:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _begin(self, r) -> bytes:
        """Another item."""
        self._open = True
        ident = os.urandom(16).hex()
        if r.k == "call":
            item = {"type": "function_call", "id": f"fc_{ident}", "call_id": r.d, "name": r.t, "arguments": "", "status": "in_progress"}
        elif r.k == "reasoning":
            item = {"type": "reasoning", "id": f"rs_{ident}", "summary": [], "content": []}
        else:
            item = {"type": "message", "id": f"msg_{ident}", "status": "in_progress", "role": "assistant", "content": []}
        self._items.append(item)
        out = self._event("response.output_item.added", output_index=len(self._items) - 1, item=item)
        if r.k == "call":
            return out
        part = {"type": "reasoning_text", "text": ""} if r.k == "reasoning" else {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item["content"].append(part)
        return out + self._event("response.content_part.added", **self._at(), content_index=0, part=part)

    def _end(self, status: str = "completed") -> bytes:
        """The item that is open, if one is."""
        if not self._open:
            return b""
        self._open = False
        item, at = self._items[-1], self._at()
        if "status" in item:
            item["status"] = status
        if item["type"] == "function_call":
            out = self._event("response.function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"])
        else:
            [part] = item["content"]
            logprobs = {} if item["type"] == "reasoning" else {"logprobs": []}
            kind = "response.reasoning.done" if item["type"] == "reasoning" else "response.output_text.done"
            out = self._event(kind, **at, content_index=0, text=part["text"], **logprobs) + self._event("response.content_part.done", **at, content_index=0, part=part)
        return out + self._event("response.output_item.done", output_index=at["output_index"], item=item)

    def _kind(self) -> str | None:
        return {"function_call": "call", "reasoning": "reasoning", "message": "text"}[self._items[-1]["type"]] if self._open else None

    def events(self, records) -> bytes:
        out = []
        for r in records:
            if r.k == "finish":
                self._finish = r
                out.append(self._end("incomplete" if r.t == "length" else "completed"))
            elif r.k == "arguments":
                self._items[-1]["arguments"] += r.t
                out.append(self._event("response.function_call_arguments.delta", **self._at(), delta=r.t))
            else:
                if r.k == "call" or self._kind() != r.k:
                    out += [self._end(), self._begin(r)]
                if r.k != "call":
                    self._items[-1]["content"][0]["text"] += r.t
                    logprobs = {} if r.k == "reasoning" else {"logprobs": []}
                    out.append(self._event("response.reasoning.delta" if r.k == "reasoning" else "response.output_text.delta", **self._at(), content_index=0, delta=r.t, **logprobs))
        return b"".join(out)

    def _status(self) -> str:
        return "incomplete" if self._finish.t == "length" else "completed"

    def last(self, used) -> bytes:
        return self._event(f"response.{self._status()}", response=self._final(used))

    def error(self, e: ApiError) -> bytes:
        failed = {**self._response("failed", None), "error": {"code": e.code or "server_error", "message": e.message}}
        return self._event("error", code=e.code, message=e.message, param=e.param) + self._event("response.failed", response=failed)

    def body(self, records, used) -> dict:
        self.events(records)
        return self._final(used)
