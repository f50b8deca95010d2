"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the same engine."""
from __future__ import annotations

import os
from typing import Any

import msgspec

from vivace.server import constraints, sampling, tools
from vivace.server.answering import Shape, answer, deadline_of, in_time
from vivace.server.chat import prompt_of
from vivace.server.errors import ApiError, bad, unsupported
from vivace.server.fields import known, refuse
from vivace.server.messages import conversation
from vivace.server.schema import COUNT, MESSAGES, Message, Messages, Sampled
from vivace.server.web import Call

REFUSED = {"container": (None, "nothing is run here"), "mcp_servers": (None, "this server asks nobody else"), "inference_geo": (None, "there is one place")}
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def error_body(e: ApiError, request_id: str) -> dict:
    return {"type": "error", "error": {"type": KINDS.get(e.status, "api_error" if e.status >= 500 else "invalid_request_error"), "message": e.message}, "request_id": request_id}


def _text(blocks, at: str) -> str:
    """Of text, or of blocks of text alone."""
    if isinstance(blocks, str) or blocks is None:
        return blocks or ""
    for i, b in enumerate(blocks):
        if not isinstance(b, dict) or b.get("type") != "text" or not isinstance(b.get("text"), str):
            kind = b.get("type") if isinstance(b, dict) else type(b).__name__
            raise bad(f"{at}[{i}]: wanted a block of type 'text', got {str(kind)[:40]!r}; this model takes text", f"{at}[{i}]", "invalid_value")
    return "\n".join(b["text"] for b in blocks)


def _message(m, at: str) -> list[Message]:
    """A message as OpenAI's: calls are fields of it, results of tools messages of their own, in order."""
    if m.role not in ("user", "assistant"):
        raise bad(f"{at}.role: wanted user or assistant, got {m.role[:40]!r}", f"{at}.role", "invalid_value")
    if isinstance(m.content, str):
        return [Message(role=m.role, content=m.content)]
    out, said, calls, thought = [], [], [], []
    for i, b in enumerate(m.content):
        kind = b.get("type") if isinstance(b, dict) else None
        if kind == "tool_use" and m.role == "assistant" and isinstance(b.get("name"), str) and isinstance(b.get("input"), dict):
            calls.append({"id": str(b.get("id", "")), "type": "function", "function": {"name": b["name"], "arguments": b["input"]}})
        elif kind == "tool_result" and m.role == "user" and isinstance(b.get("tool_use_id"), str):
            out.append(Message(role="tool", tool_call_id=b["tool_use_id"], content=_text(b.get("content"), f"{at}.content[{i}].content")))
        elif kind == "thinking" and m.role == "assistant" and isinstance(b.get("thinking"), str):
            thought.append(b["thinking"])
        else:
            said.append(_text([b], f"{at}.content[{i}]"))
    if said or calls or not out:
        out.append(Message(role=m.role, content="\n".join(said), tool_calls=calls or None, reasoning_content="\n".join(thought) or None))
    return out


def read(asked, engine, limits) -> tuple[list[dict], list[dict], bool, dict]:
    """The conversation and the tools as templates take them, whether one call ends the reply, and what it has to keep to. Errors: ApiError."""
    known(asked.model, engine)
    if not 1 <= len(asked.messages) <= limits.messages:
        raise bad(f"messages: wanted 1 to {limits.messages}, got {len(asked.messages)}", "messages", "invalid_value")
    said = [Message(role="system", content=system)] if (system := _text(asked.system, "system")) else []
    for i, m in enumerate(asked.messages):
        said += _message(m, f"messages[{i}]")
    if asked.messages[-1].role == "assistant":
        raise unsupported("messages", "the last message is the assistant's: an answer is not begun for the model")
    given = []
    for i, tool in enumerate(asked.tools or []):
        if not isinstance(tool, dict) or tool.get("type", "custom") != "custom" or "input_schema" not in tool:
            raise bad(f"tools[{i}]: wanted name and input_schema; tools of the server's own are not served", f"tools[{i}]", "invalid_value")
        given.append({"type": "function", "function": {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool["input_schema"], "strict": tool.get("strict")}})
    choice = asked.tool_choice or {}
    kind, one_call = choice.get("type", "auto"), bool(choice.get("disable_parallel_tool_use"))
    if kind not in ("auto", "none", "any", "tool"):
        raise bad(f"tool_choice.type: wanted auto, any, tool or none, got {str(kind)[:40]!r}", "tool_choice", "invalid_value")
    wanted = {"any": "required", "tool": {"type": "function", "function": {"name": choice.get("name")}}}.get(kind, kind)
    offered, keeps, _ = constraints.held(engine, wanted, given, tools.checked(given, limits), form(asked.output_config), one_call=one_call)
    return conversation(said, engine.text.template, limits, calls=engine.calls), offered, one_call, keeps


def form(given: dict | None) -> dict:
    """Options of output_config. Errors: ApiError 400."""
    if unknown := [k for k in given or {} if k != "format"]:
        raise unsupported(f"output_config.{unknown[0][:40]}", "this model has no such setting")
    if (said := (given or {}).get("format")) is None:
        return {}
    if not isinstance(said, dict) or said.get("type") != "json_schema":
        raise bad("output_config.format: wanted {'type': 'json_schema', 'schema': {...}}", "output_config.format", "invalid_value")
    return constraints.of_format({"type": "json_schema", "json_schema": said})


async def count(call: Call, engine) -> None:
    asked = await call.read(COUNT)
    said, given, _, _ = read(asked, engine, call.limits)
    await call.json({"input_tokens": len((await prompt_of(engine, said, given, one_call=False, salt=call.identity.salt)).ids)})


async def messages(call: Call, engine) -> None:
    asked = await call.read(MESSAGES)
    deadline = deadline_of(call)
    refuse(asked, REFUSED)
    thinking = (asked.thinking or {}).get("type", "disabled")
    if thinking != "disabled" and engine.reasoning is None:
        raise unsupported("thinking", "this model's template writes no reasoning")
    sampling.ranged(asked.temperature, "temperature", 0.0, 1.0, None)
    stops = sampling.stops(asked.stop_sequences, call.limits, "stop_sequences")
    said, given, one_call, keeps = read(asked, engine, call.limits)
    prompt = await prompt_of(engine, said, given, one_call=one_call, salt=call.identity.salt)
    keeps = await prompt.keeps_to(engine, keeps)
    in_time(deadline)
    most = sampling.most_tokens(asked.max_tokens, "max_tokens", len(prompt.ids), engine.context, cut=True)
    sampled = Sampled(model=asked.model, temperature=asked.temperature, top_p=asked.top_p, top_k=asked.top_k)
    [options] = sampling.options(sampled, call, max_tokens=most, vocab=engine.vocab, defaults=engine.defaults, service_tier=asked.service_tier)
    await answer(call, engine, [prompt.asked(options | keeps, stops, "toolu_")], MessageShape(engine, asked, len(prompt.ids)), stream=bool(asked.stream), deadline=deadline)


def _event(value: dict) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), msgspec.json.encode(value))


class MessageShape(Shape):
    """A message, whole or block by block."""

    def __init__(self, engine, asked: Messages, prompt_tokens: int):
        self._prompt_tokens, self._stops = prompt_tokens, asked.stop_sequences or []
        self._head = {"id": f"msg_{os.urandom(12).hex()}", "type": "message", "role": "assistant", "model": engine.name, "container": None, "stop_details": None}
        self._open: str | None = None  # kind of the block that is open
        self._index = -1
        self._finish = None

    def _usage(self, used) -> dict:
        """input_tokens are those that were computed; what is kept of them costs nothing besides."""
        return {"input_tokens": self._prompt_tokens - used.cached, "output_tokens": used.tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": used.cached, "cache_creation": None, "inference_geo": None,
                "output_tokens_details": None, "server_tool_use": None, "service_tier": "standard"}

    def _reason(self, finish) -> dict:
        if finish.x >= 0:
            return {"stop_reason": "stop_sequence", "stop_sequence": self._stops[finish.x]}
        return {"stop_reason": REASONS[finish.t], "stop_sequence": None}

    def first(self, used) -> bytes:
        return _event({"type": "message_start", "message": {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**self._usage(used), "output_tokens": 0}}})

    def ping(self) -> bytes:
        return _event({"type": "ping"})

    @staticmethod
    def _block(r) -> dict[str, Any]:
        if r.k == "text":
            return {"type": "text", "text": "", "citations": None}
        if r.k == "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "tool_use", "id": r.d, "name": r.t, "input": {}, "caller": {"type": "direct"}}

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _event({"type": "content_block_stop", "index": self._index})

    def events(self, records) -> bytes:
        out = b""
        for r in records:
            if r.k == "finish":
                self._finish = r
                out += self._close()
                continue
            if r.k != "arguments" and (r.k == "call" or self._open != r.k):
                out += self._close()
                self._open, self._index = r.k, self._index + 1
                out += _event({"type": "content_block_start", "index": self._index, "content_block": self._block(r)})
            if r.k != "call":
                kind, field = {"text": ("text_delta", "text"), "reasoning": ("thinking_delta", "thinking"), "arguments": ("input_json_delta", "partial_json")}[r.k]
                out += _event({"type": "content_block_delta", "index": self._index, "delta": {"type": kind, field: r.t}})
        return out

    def last(self, used) -> bytes:
        return _event({"type": "message_delta", "delta": {**self._reason(self._finish), "stop_details": None, "container": None}, "usage": self._usage(used)}) + _event({"type": "message_stop"})

    def error(self, e) -> bytes:
        return _event(error_body(e, ""))

    def body(self, records, used) -> dict:
        blocks, written = [], []
        for r in records:
            if r.k == "finish":
                continue
            if r.k == "arguments":
                written[-1].append(r.t)
            else:
                blocks.append(self._block(r))
                written.append([r.t] if r.k != "call" else [])
        for block, pieces in zip(blocks, written):
            if block["type"] == "tool_use":
                try:
                    block["input"] = msgspec.json.decode("".join(pieces) or "{}")
                except msgspec.DecodeError:  # cut off in the middle
                    block["input"] = {}
            else:
                block["text" if block["type"] == "text" else "thinking"] = "".join(pieces)
        return {**self._head, "content": blocks, **self._reason(records[-1]), "usage": self._usage(used)}
