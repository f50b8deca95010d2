"""Calls of tools and reasoning over HTTP, as the `openai` package reads them. The model is made to say what a test wants: its
tokens are those that it would draw anyway, with other bytes.

About 20 s."""
import dataclasses
import json
import random
import time

import jsonschema
import llguidance
import msgspec
import openai
import pytest

import vivace
from tests import chat_templates
from tests.serving import NAME, comply, inside, model_path
from vivace import _core, structured
from vivace.server import constraints, tools
from vivace.server.engine import Engine
from vivace.server.limits import Limits
from vivace.server.tokens import token_bytes

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


@pytest.mark.parametrize("more,code", [(0, "context_length_exceeded"), (1, "invalid_value")])
def test_bytes_of_a_tool(served, more, code):
    one = tool(description="")["function"]
    one["description"] = "x" * (Limits().schema_bytes - len(msgspec.json.encode(one)) + more)
    with pytest.raises(openai.BadRequestError) as e:
        served[1].chat.completions.create(model=NAME, messages=ASK, tools=[{"type": "function", "function": one}])
    assert e.value.code == code


@pytest.fixture(scope="module")
def free():
    """The same model, which says what it likes."""
    with vivace.load_model(model_path(), device="cpu", context=1024, max_batch=2) as model:
        model._text = dataclasses.replace(model.text, template=chat_templates.THINKING)
        with inside(model, Engine) as (engine, url):
            yield engine, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("form, case", [("openai-chat", "chat-tool-calling"), ("open-responses", "tool-calling"), ("anthropic", "anth-tool-calling")])
def test_llm_comply(free, form, case):
    """A public conformance suite: a call that must be made."""
    comply(str(free[1].base_url).removesuffix("/v1/"), form, [case])


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


SIGNS = {"qwen_xml": "<function=", "gemma": "<|tool_call>", "functiongemma": "<start_function_call>", "hermes": "<tool_call>"}
ITEM = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
ALL = {"type": "object", "properties": {"unit": {"type": "string", "enum": ["C", "F", "\u00e9t\u00e9 \"x\""]}, "code": {"type": "string", "pattern": "^[a-c]{2,4}$"}, "city": {"type": "string", "description": "free"}, "maybe": {"type": ["string", "null"]},
                                         "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2}, "on": {"type": "boolean"}, "low": {"anyOf": [{"type": "number", "minimum": -5, "maximum": 5}, {"const": "none"}]}},
       "required": ["unit", "code", "on"], "additionalProperties": False, "$defs": {"item": ITEM}}


def written(form: str, name: str, values: dict) -> str:
    """A call as a family writes it; of `values` texts are free ones, and what is JSON is JSON."""
    if form == "hermes":
        return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(values, ensure_ascii=False)}}}\n</tool_call>'
    plain = lambda k, v: isinstance(v, str) and k in ("unit", "city", "maybe")  # noqa: E731
    of = lambda k, v, quote="": f"{quote}{v}{quote}" if plain(k, v) else json.dumps(v)  # noqa: E731
    if form == "qwen_xml":
        return f"<tool_call>\n<function={name}>\n" + "".join(f"<parameter={k}>\n{of(k, v)}\n</parameter>\n" for k, v in values.items()) + "</function>\n</tool_call>"
    opens, closes, quote = ("<|tool_call>", "<tool_call|>", '<|"|>') if form == "gemma" else ("<start_function_call>", "<end_function_call>", "<escape>")
    return f"{opens}call:{name}{{" + ",".join(f"{k}:{of(k, v, quote)}" for k, v in values.items()) + f"}}{closes}"


@pytest.mark.parametrize("form", SIGNS)
def test_grammars_of_calls(free, form, monkeypatch):
    """What a family writes of arguments that keep to their schema passes, and is read as these arguments; others do not."""
    engine = free[0]
    monkeypatch.setattr(engine, "calls", form)
    given = tools.checked([tool(parameters=ALL), tool(name="g")], engine.limits)
    words = llguidance.LLTokenizer(engine.text.tokenizer.to_str(), n_vocab=engine.vocab)

    def passes(text, several=True, names=("f", "g")):
        grammar = llguidance.LLMatcher.grammar_from_lark(constraints.calls(engine, given, list(names), several=several)["grammar"])
        matcher = llguidance.LLMatcher(words, grammar)
        assert not matcher.get_error()
        return matcher.validate_tokens(ids := engine.text.encode(text)) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()

    def read(text):
        parser = _core.ReplyParser(calls=form, tools=tools.kinds(given, held=True))
        deltas = parser.feed(text.encode())
        rest, finish = parser.finish("stop")
        return [d[2] for d in [*deltas, *rest] if d[0] == "arguments"]

    good = [dict(unit="C", code="ab", on=True), dict(unit="été \"x\"", code="abca", city="Zürich, {a}\n:", maybe="x", items=[{"n": 3}, {"n": 0}], on=False, low=-1.5), dict(unit="F", code="cc", maybe=None, items=[], on=True, low="none")]
    for values in good:
        values = {k: values[k] for k in ALL["properties"] if k in values}
        text = written(form, "f", values)
        assert passes(text) and passes(text, several=False, names=["f"]) and not passes(text, names=["g"]), text
        assert json.loads("".join(read(text))) == values
    for wrong in (dict(unit="K", code="ab", on=True), dict(unit="C", code="ad", on=True), dict(code="ab", on=True), dict(unit="C", code="ab", on=1), dict(unit="C", code="ab", items=[{"n": 10}], on=True), dict(unit="C", code="ab", on=True, low=6),
                  dict(code="ab", unit="C", on=True), dict(unit="C", code="ab", on=True, more=1)):
        assert not passes(written(form, "f", wrong)), wrong
    one, between = written(form, "g", {}), "" if "gemma" in form else "\n"
    assert passes(f"{one}{between}{one}") and not passes(f"{one}{between}{one}", several=False) and not passes(one[:-1]) and not passes("x" + one)


@pytest.mark.parametrize("form", SIGNS)
def test_calls_that_must_be_made_in_each_form(free, form, monkeypatch):
    engine = free[0]
    monkeypatch.setattr(engine, "calls", form)
    table, drop = token_bytes(engine.text, engine.vocab, engine._markers())
    monkeypatch.setattr(engine, "outbox", _core.Outbox(engine.model._live, table, drop))
    few = {k: v for k, v in ALL["properties"].items() if k not in ("city", "maybe")}
    asked = [tool(parameters={**ALL, "properties": few})]
    for fields in (dict(tool_choice="required", parallel_tool_calls=False), dict(tool_choice={"type": "function", "function": {"name": "f"}})):
        text, reasoning, calls, finish = ask(free, "", tools=asked, max_tokens=200, temperature=1.0, seed=5, **fields)
        assert (text, reasoning) == ("", "") and len(calls) == 1 and finish in ("tool_calls", "stop")
        jsonschema.validate(json.loads(calls[0][1]), {**ALL, "properties": few})


@pytest.mark.parametrize("form", ["qwen_xml", "gemma"])
@pytest.mark.parametrize("parameters,why", [({"type": "object", "properties": {"a": {}}, "minProperties": 1}, "minProperties"), ({"type": "object", "oneOf": [{}]}, "oneOf"), ({"type": "array"}, "an object"), ({"type": "object", "required": ["b"], "additionalProperties": False}, "'b' is required"),
                                            ({"type": "object", "properties": {"a": {"not": {}}}}, "not"), ({"type": "object", "properties": {"a": {"x-guidance": {}}}}, "x-guidance")])
def test_calls_that_cannot_be_forced(free, form, parameters, why, monkeypatch):
    """400 with the reason; never a call that is not held to its schema."""
    monkeypatch.setattr(free[0], "calls", form)
    with pytest.raises(openai.BadRequestError) as e:
        free[1].chat.completions.create(model=NAME, messages=ASK, tools=[tool(parameters=parameters)], tool_choice="required")
    assert why in e.value.message, e.value.message


def status_of(free, schema, **fields):
    try:
        free[1].chat.completions.create(model=NAME, messages=ASK, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, max_tokens=3, **fields)
        return 200
    except openai.APIStatusError as e:
        assert e.status_code != 400 or len(e.message) > 20
        return e.status_code


def test_schemas_at_their_limits(free):
    for more, status in ((0, 200), (1, 400)):
        schema = {"type": "integer", "description": ""}
        schema["description"] = "x" * (structured.MAX_BYTES - len(json.dumps(schema)) + more)
        assert status_of(free, schema) == status
    deep = lambda n: {"type": "array", "items": deep(n - 1)} if n else {"type": "integer"}  # noqa: E731
    assert status_of(free, deep(structured.MAX_DEPTH - 1)) == 200 and status_of(free, deep(structured.MAX_DEPTH)) == 400
    pattern = lambda n: {"type": "string", "pattern": "^a{%d}$" % n}  # noqa: E731
    assert status_of(free, pattern(structured.MAX_REPEATS)) == 200 and [status_of(free, pattern(n)) for n in (structured.MAX_REPEATS + 1, 2**63, 10**40)] == [400] * 3


@pytest.mark.parametrize("kind,keyword", [("string", "minLength"), ("string", "maxLength"), ("array", "minItems"), ("array", "maxItems"), ("integer", "minimum"), ("integer", "maximum"), ("number", "multipleOf"), ("object", "minProperties"), ("object", "maxProperties")])
def test_numbers_of_schemas(free, kind, keyword):
    """Of any size: kept, or 400 with the reason, and soon."""
    for number in (2**63 - 1, 2**63, 2**64, 10**400, -(2**63), 1e308, 0.5):
        began = time.monotonic()
        assert status_of(free, {"type": kind, keyword: number}) in (200, 400), number
        assert time.monotonic() - began < 30
    assert status_of(free, {"type": "integer"}) == 200


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
