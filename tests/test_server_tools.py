"""Calls of tools and reasoning over HTTP, as the `openai` package reads them. The model is made to say what a test wants: its
tokens are those that it would draw anyway, with other bytes.

About 20 s."""
import dataclasses
import json
import random

import openai
import pytest

import vivace
from tests import chat_templates
from tests.serving import NAME, inside, model_path
from vivace import _core
from vivace.server.engine import Engine

TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}},
         {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}]
ASK = [{"role": "user", "content": "What is the weather in Zürich?"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich 🙂"}}\n</tool_call>'
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": -1.5e3}}\n</tool_call>'


class Scripted(Engine):
    """Says `says`, cut into tokens at random."""

    says, cut_off, drawn = "", False, {}

    def submit(self, call, asked, shape, **how_sent):
        text, r = self.says.encode(), random.Random(4)
        cuts = sorted(r.sample(range(1, len(text)), min(len(text) - 1, 24)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
        how = dict(temperature=1.0, seed=3, presence_penalty=1e5, max_tokens=len(pieces) + 1)
        key = (len(pieces), *asked[0].ids)
        if key not in self.drawn:
            self.drawn[key] = self.model.generate_ids(asked[0].ids, **how).tokens
        drawn = self.drawn[key]
        table = [b""] * self.vocab
        for token, piece in zip(drawn, pieces):
            table[token] = piece
        for a in asked:
            a.options = how | ({"max_tokens": len(pieces)} if self.cut_off else {"stop": [drawn[-1]]})
        self.prompts = [self.text.decode(a.ids) for a in asked]
        self.outbox = _core.Outbox(self.model._live, table, False)
        return super().submit(call, asked, shape, **how_sent)


@pytest.fixture(scope="module")
def served():
    with vivace.load_model(model_path(), device="cpu", context=1024, max_batch=2) as model:
        model._text = dataclasses.replace(model.text, template=chat_templates.THINKING)
        with inside(model, Scripted) as (engine, url):
            assert engine.calls == "hermes" and engine.reasoning == "think"
            yield engine, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def ask(served, says, cut_off=False, **fields):
    """(text, reasoning, calls, finish), the same streamed and whole."""
    engine, client = served
    engine.says, engine.cut_off = says, cut_off
    fields = {"model": NAME, "messages": ASK, "tools": TOOLS, **fields}
    choice = client.chat.completions.create(**fields).choices[0]
    message = choice.message
    whole = (message.content or "", getattr(message, "reasoning_content", "") or "", [(c.function.name, c.function.arguments) for c in message.tool_calls or []], choice.finish_reason)
    ids = [c.id for c in message.tool_calls or []]
    assert len(set(ids)) == len(ids) and all(i.startswith("call_") for i in ids) and (message.content is not None or ids)
    text, reasoning, calls, finish = "", "", [], None
    for chunk in client.chat.completions.create(**fields, stream=True):
        delta = chunk.choices[0].delta
        text, reasoning, finish = text + (delta.content or ""), reasoning + (getattr(delta, "reasoning_content", "") or ""), chunk.choices[0].finish_reason or finish
        for c in delta.tool_calls or []:
            if c.id is not None:
                assert c.index == len(calls) and c.type == "function"
                calls.append([c.function.name, ""])
            calls[c.index][1] += c.function.arguments or ""
    assert (text, reasoning, [tuple(c) for c in calls], finish) == whole
    return whole


WEATHER, SUM = ("get_weather", '{"city": "Zürich 🙂"}'), ("add", '{"a": -1.5e3}')


def test_one_call(served):
    assert ask(served, CALL) == ("", "", [WEATHER], "tool_calls")
    assert json.loads(WEATHER[1]) == {"city": "Zürich 🙂"}


def test_calls_side_by_side(served):
    assert ask(served, f"Let me see. {CALL}\n{ADD}") == ("Let me see.", "", [WEATHER, SUM], "tool_calls")
    assert ask(served, f"{CALL}\n{ADD}", parallel_tool_calls=False) == ("", "", [WEATHER], "tool_calls")


def test_reasoning_is_apart(served):
    assert ask(served, f"<think>\nHm, {CALL}?\n</think>\n\nIt rains.{ADD}") == ("It rains.", f"Hm, {CALL}?", [SUM], "tool_calls")
    assert ask(served, "<think>why</think>because", tools=openai.NOT_GIVEN) == ("because", "why", [], "stop")


def test_what_is_no_call_is_text(served):
    assert ask(served, "<tool_call>soon</tool_call> or not") == ("<tool_call>soon</tool_call> or not", "", [], "stop")
    assert ask(served, CALL, tool_choice="none") == (CALL, "", [], "stop")
    assert ask(served, CALL, tools=openai.NOT_GIVEN) == (CALL, "", [], "stop")


def test_a_call_that_is_cut_off(served):
    text, _, calls, finish = ask(served, CALL[:-20], cut_off=True)
    assert finish == "length" and calls and calls[0][0] == "get_weather" and not calls[0][1].endswith("}")


def test_a_loop_of_tools(served):
    """The call and its answer go back into the prompt as the template writes them."""
    engine, client = served
    engine.says, engine.cut_off = CALL, False
    call = client.chat.completions.create(model=NAME, messages=ASK, tools=TOOLS).choices[0].message
    engine.says = "It rains."
    again = client.chat.completions.create(model=NAME, messages=[*ASK, call, {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "rain, 9 C"}], tools=TOOLS)
    assert again.choices[0].message.content == "It rains." and again.choices[0].finish_reason == "stop"
    prompt = engine.prompts[0]
    assert '{"name": "get_weather", "arguments": {"city": "Zürich 🙂"}}' in prompt and "<tool_response>\nrain, 9 C\n</tool_response>" in prompt and '"get_weather"' in prompt.split("What is")[0]


def test_the_helper_of_the_package(served):
    engine, client = served
    engine.says = f"Well. {CALL}"
    with client.chat.completions.stream(model=NAME, messages=ASK, tools=TOOLS) as stream:
        kinds = [e.type for e in stream]
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds
    assert final.message.tool_calls[0].function.arguments == WEATHER[1] and final.finish_reason == "tool_calls"


def nested(depth):
    schema = {"type": "object"}
    for _ in range(depth):
        schema = {"properties": schema}
    return schema


def tool(**function):
    return {"type": "function", "function": {"name": "f", **function}}


WRONG = {
    "too many": [tool(name=f"f{i}") for i in range(129)], "two of one name": [tool(), tool()], "name": [tool(name="a b")], "long name": [tool(name="a" * 65)], "kind": [{"type": "web_search"}],
    "schema": [tool(parameters=[])], "large": [tool(description="x" * (64 << 10))], "deep": [tool(parameters=nested(32))], "strict": [tool(strict=True)],
}


@pytest.mark.parametrize("what", WRONG)
def test_tools_that_are_none(served, what):
    with pytest.raises(openai.BadRequestError) as e:
        served[1].chat.completions.create(model=NAME, messages=ASK, tools=WRONG[what])
    assert e.value.param.startswith("tools")


def test_tools_at_their_limits(served):
    served[0].says = "ok"
    for tools in ([tool(name=f"f{i}") for i in range(20)], [tool(name="a" * 64)], [tool(parameters=nested(31))]):
        assert served[1].chat.completions.create(model=NAME, messages=ASK, tools=tools).choices[0].message.content == "ok"
    for choice in ("must", {"type": "function", "function": {"name": "sub"}}):
        with pytest.raises(openai.BadRequestError) as e:
            served[1].chat.completions.create(model=NAME, messages=ASK, tools=TOOLS, tool_choice=choice)
        assert e.value.param == "tool_choice"
    for arguments in ("[1]", "{", "12", "[" * 5000):
        with pytest.raises(openai.BadRequestError):
            served[1].chat.completions.create(model=NAME, messages=[*ASK, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]}])


@pytest.fixture(scope="module")
def free():
    """The same model, which says what it likes."""
    with vivace.load_model(model_path(), device="cpu", context=1024, max_batch=2) as model:
        model._text = dataclasses.replace(model.text, template=chat_templates.THINKING)
        with inside(model, Engine) as (engine, url):
            yield engine, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("how", ["required", "named", "one"])
def test_calls_that_must_be_made(free, how):
    """A grammar holds the model to them: whole calls with arguments of their schemas, streamed as whole."""
    tools = [dict(TOOLS[0], function=dict(TOOLS[0]["function"], strict=True, parameters={"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"], "additionalProperties": False})),
             {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer", "maximum": 99}}, "required": ["a"], "additionalProperties": False}}}]
    fields = {"required": dict(tool_choice="required"), "named": dict(tool_choice={"type": "function", "function": {"name": "add"}}), "one": dict(tool_choice="required", parallel_tool_calls=False)}[how]
    for seed in range(2):
        text, reasoning, calls, finish = ask(free, "", tools=tools, max_tokens=160, temperature=1.0, seed=seed, **fields)
        assert (text, reasoning) == ("", "") and finish == {"named": "stop"}.get(how, "tool_calls") and calls
        for name, arguments in calls:
            value = json.loads(arguments)
            assert (list(value) == ["city"] and len(value["city"]) <= 12) if name == "get_weather" else (list(value) == ["a"] and value["a"] <= 99)
        assert how == "required" or len(calls) == 1
        assert how != "named" or calls[0][0] == "add"


def test_response_formats(free):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
    for fields, judge in [({"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}, lambda t: list(json.loads(t)) == ["n"]),
                          ({"type": "regex", "regex": "[ab]{3}"}, lambda t: len(t) == 3 and set(t) <= set("ab")), ({"type": "grammar", "grammar": 'start: "yes" | "no"'}, lambda t: t in ("yes", "no"))]:
        said = ask(free, "", tools=[], response_format=fields, max_tokens=60, extra_body={"min_tokens": 1})
        assert judge(said[0]) and said[3] == "stop", said
    held = ask(free, "", tools=[], response_format={"type": "json_object"}, max_tokens=12)
    assert held[0].startswith("{") and held[3] in ("stop", "length")


@pytest.mark.parametrize("fields,param", [
    (dict(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}), None), (dict(response_format={"type": "json_schema", "json_schema": {"name": "x"}}), "response_format"),
    (dict(response_format={"type": "xml"}), "response_format"), (dict(response_format={"type": "regex", "regex": "("}), None), (dict(response_format={"type": "json_object"}, tools=TOOLS, tool_choice="required"), "response_format"),
    (dict(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nobody"}}), "tool_choice"), (dict(tool_choice="required"), "tool_choice"), (dict(tools=TOOLS, tool_choice="must"), "tool_choice"),
    (dict(tools=[dict(TOOLS[0], function=dict(TOOLS[0]["function"], strict=True))]), "tools"), (dict(tools=[dict(TOOLS[0], function=dict(TOOLS[0]["function"], strict=1))]), "tools[0].function.strict"),
    (dict(tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"x-guidance": {"lenient": True}}}}}}], tool_choice="required"), "tools"),
    (dict(extra_body={"min_tokens": 5}, max_tokens=4), "min_tokens"),
])
def test_constraints_that_cannot_be(free, fields, param):
    """400 with the reason, before anything is generated."""
    with pytest.raises(openai.BadRequestError) as e:
        free[1].chat.completions.create(model=NAME, messages=ASK, **fields)
    assert e.value.param == param and len(e.value.message) > 20
