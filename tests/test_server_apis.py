"""/v1/messages as the `anthropic` package reads it, /v1/responses as `openai` does: text, reasoning, calls of tools, streamed and
whole, over a model that is made to say what a test wants.

About 15 s."""
import json

import anthropic
import openai
import pytest

from tests.serving import NAME, data_of
from tests.test_server_tools import ADD, CALL, SUM, WEATHER, free, served  # noqa: F401  fixtures

TOOLS = [{"name": "get_weather", "description": "Weather of a city.", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}, {"name": "add", "input_schema": {"type": "object"}}]
FUNCTIONS = [{"type": "function", "name": t["name"], "parameters": t["input_schema"], "strict": False} for t in TOOLS]
ASK = [{"role": "user", "content": "What is the weather in Zürich?"}]
SAID = {  # what the model says -> (reasoning, text, calls)
    "It rains.": ("", "It rains.", []), f"Let me see. {CALL}\n{ADD}": ("", "Let me see.", [WEATHER, SUM]), f"<think>Hm.</think>Yes.{ADD}": ("Hm.", "Yes.", [SUM]), CALL: ("", "", [WEATHER]),
}


@pytest.fixture
def ask(served):  # noqa: F811
    engine, client = served
    url = str(client.base_url).removesuffix("/v1/")
    return engine, anthropic.Anthropic(base_url=url, api_key="none", max_retries=0), client


def of_blocks(blocks):
    kinds = {"thinking": "", "text": ""}
    for b in blocks:
        if b.type in kinds:
            kinds[b.type] += getattr(b, b.type)
    return kinds["thinking"], kinds["text"], [(b.name, b.input) for b in blocks if b.type == "tool_use"]


@pytest.mark.parametrize("says", SAID)
def test_messages(ask, says):
    engine, client, _ = ask
    engine.says, engine.cut_off = says, False
    reasoning, text, calls = SAID[says]
    want = (reasoning, text, [(name, json.loads(arguments)) for name, arguments in calls])
    how = dict(model=NAME, max_tokens=4096, messages=ASK, tools=TOOLS, system=[{"type": "text", "text": "Be terse.", "cache_control": {"type": "ephemeral"}}])
    whole = client.messages.create(**how)
    assert of_blocks(whole.content) == want and whole.stop_reason == ("tool_use" if calls else "end_turn") and whole.usage.output_tokens > 0
    with client.messages.stream(**how) as stream:
        events = list(stream)
        final = stream.get_final_message()
    assert of_blocks(final.content) == want and final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens
    assert [e.type for e in events if e.type in ("message_start", "message_stop")] == ["message_start", "message_stop"]
    starts, stops = ([e.index for e in events if e.type == f"content_block_{k}"] for k in ("start", "stop"))
    assert starts == stops == list(range(len(whole.content)))
    assert client.messages.count_tokens(**{k: how[k] for k in ("model", "messages", "tools", "system")}).input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_a_loop_of_tools_in_messages(ask):
    engine, client, _ = ask
    engine.says, engine.cut_off = CALL, False
    call = client.messages.create(model=NAME, max_tokens=512, messages=ASK, tools=TOOLS)
    engine.says = "9 degrees, END of it."
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.content[0].id, "content": [{"type": "text", "text": "rain, 9 C"}]}]}
    again = client.messages.create(model=NAME, max_tokens=512, messages=[*ASK, {"role": "assistant", "content": call.content}, result], tools=TOOLS, stop_sequences=["nothing", "END"])
    assert (again.content[0].text, again.stop_reason, again.stop_sequence) == ("9 degrees, ", "stop_sequence", "END")
    assert "<tool_response>\nrain, 9 C\n</tool_response>" in engine.prompts[0] and '{"name": "get_weather", "arguments": {"city": "Zürich 🙂"}}' in engine.prompts[0]
    engine.says, engine.cut_off = "cut", True
    assert client.messages.create(model=NAME, max_tokens=512, messages=ASK).stop_reason == "max_tokens"


def test_errors_of_messages(ask):
    engine, client, _ = ask
    how = dict(model=NAME, max_tokens=16, messages=ASK)
    wrong = [dict(model="claude"), dict(max_tokens=0), dict(extra_body={"temperature": 1.5}), dict(messages=[]), dict(messages=[{"role": "system", "content": "x"}]), dict(messages=[*ASK, {"role": "assistant", "content": "It"}]),
             dict(tools=TOOLS, tool_choice={"type": "tool", "name": "nobody"}), dict(tools=TOOLS, tool_choice={"type": "some"}), dict(tool_choice={"type": "any"}),
             dict(extra_body={"output_config": {"format": {"type": "xml"}}}), dict(extra_body={"output_config": {"effort": "high"}}), dict(tools=[{"type": "bash_20250124", "name": "bash"}]), dict(stop_sequences=["x"] * 5),
             dict(messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]}])]
    for fields in wrong:
        with pytest.raises(anthropic.APIStatusError) as e:
            client.messages.create(**{**how, **fields})
        body = e.value.response.json()
        kind = "not_found_error" if e.value.status_code == 404 else "invalid_request_error"
        assert body["type"] == "error" and body["error"]["type"] == kind and body["request_id"] == e.value.response.headers["x-request-id"], fields


def of_items(items):
    reasoning = "".join(p.text for i in items if i.type == "reasoning" for p in i.content)
    text = "".join(p.text for i in items if i.type == "message" for p in i.content)
    return reasoning, text, [(i.name, i.arguments) for i in items if i.type == "function_call"]


@pytest.mark.parametrize("says", SAID)
def test_responses(ask, says):
    engine, _, client = ask
    engine.says, engine.cut_off = says, False
    how = dict(model=NAME, input=ASK, tools=FUNCTIONS, instructions="Be terse.")
    whole = client.responses.create(**how)
    assert of_items(whole.output) == SAID[says] and whole.status == "completed" and whole.output_text == SAID[says][1]
    events = list(client.responses.create(**how, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events))) and events[0].type == "response.created" and events[-1].type == "response.completed"
    final = events[-1].response
    assert of_items(final.output) == SAID[says] and final.usage.output_tokens == whole.usage.output_tokens and final.usage.input_tokens == whole.usage.input_tokens
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == SAID[says][1]
    assert "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta") == "".join(a for _, a in SAID[says][2])
    added, done = ([e.output_index for e in events if e.type == f"response.output_item.{k}"] for k in ("added", "done"))
    assert added == done == list(range(len(final.output)))
    with client.responses.stream(**how) as stream:
        assert of_items(stream.get_final_response().output) == SAID[says]


def test_a_loop_of_tools_in_responses(ask):
    engine, _, client = ask
    engine.says, engine.cut_off = f"Let me see.{CALL}{ADD}", False
    first = client.responses.create(model=NAME, input=ASK, tools=FUNCTIONS)
    engine.says = "It rains."
    outputs = [{"type": "function_call_output", "call_id": i.call_id, "output": f"{i.name} says 9"} for i in first.output if i.type == "function_call"]
    again = client.responses.create(model=NAME, input=[*ASK, *first.output, *outputs], tools=FUNCTIONS)
    assert again.output_text == "It rains." and engine.prompts[0].count("<tool_call>") >= 2 and "add says 9" in engine.prompts[0]
    engine.says, engine.cut_off = "cut", True
    cut = client.responses.create(model=NAME, input="Hi")
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    for fields in (dict(conversation="conv_1"), dict(background=True), dict(text={"format": {"type": "xml"}}), dict(text={"format": "json"}), dict(tools=[{"type": "web_search"}]), dict(tool_choice={"type": "function", "name": "nobody"}), dict(tool_choice="must"),
                   dict(input=[{"type": "item_reference", "id": "x"}]), dict(truncation="auto"), dict(reasoning={"effort": "high"})):
        with pytest.raises(openai.BadRequestError):
            client.responses.create(**{"model": NAME, "input": "Hi", "tools": FUNCTIONS, **fields})


def test_events_of_both_are_named(ask):
    """Each event's name is its data's type, as clients that go by names want it."""
    import http.client

    engine, _, client = ask
    engine.says, engine.cut_off = f"Hm. {CALL}", False
    for path, body in (("/v1/messages", {"model": NAME, "max_tokens": 64, "messages": ASK, "stream": True}), ("/v1/responses", {"model": NAME, "input": "Hi", "stream": True})):
        connection = http.client.HTTPConnection(client.base_url.host, client.base_url.port, timeout=60)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        text = connection.getresponse().read().decode()
        connection.close()
        names = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
        assert names == [d["type"] for d in data_of(text)] and "[DONE]" not in text


@pytest.fixture
def both(free):  # noqa: F811
    """A model that says what it likes."""
    return anthropic.Anthropic(base_url=str(free[1].base_url).removesuffix("/v1/"), api_key="none", max_retries=0), free[1]


ADDS = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_calls_that_must_be_made_in_messages(both, choice):
    tools = [{"name": "add", "input_schema": ADDS}, {"name": "sub", "input_schema": ADDS}]
    how = dict(model=NAME, max_tokens=200, messages=ASK, tools=tools, tool_choice=choice | {"disable_parallel_tool_use": True}, extra_body={"temperature": 0})
    whole = both[0].messages.create(**how)
    [block] = whole.content
    assert whole.stop_reason == "tool_use" and block.name in ("add", *(["sub"] if choice["type"] == "any" else [])) and 0 <= block.input["a"] <= 99
    with both[0].messages.stream(**how) as stream:
        [streamed] = stream.get_final_message().content
    assert (streamed.name, streamed.input) == (block.name, block.input)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "add"}])
def test_calls_that_must_be_made_in_responses(both, choice):
    tools = [{"type": "function", "name": n, "parameters": ADDS, "strict": True} for n in ("add", "sub")]
    how = dict(model=NAME, input=ASK, tools=tools, tool_choice=choice, parallel_tool_calls=False, max_output_tokens=200, temperature=0)
    whole = both[1].responses.create(**how)
    [item] = whole.output
    assert whole.status == "completed" and item.type == "function_call" and item.name in ("add", *(["sub"] if choice == "required" else [])) and list(json.loads(item.arguments)) == ["a"]
    *_, last = both[1].responses.create(**how, stream=True)
    assert last.response.output[0].arguments == item.arguments


def test_formats_on_both(both):
    form = {"type": "json_schema", "schema": ADDS}
    said = both[1].responses.create(model=NAME, input="Hi", text={"format": form | {"name": "x", "strict": True}}, max_output_tokens=60)
    assert list(json.loads(said.output_text)) == ["a"] and said.text.format.type == "json_schema"
    assert both[1].responses.create(model=NAME, input="Hi", text={"format": {"type": "json_object"}}, max_output_tokens=8).output_text.startswith("{")
    whole = both[0].messages.create(model=NAME, max_tokens=60, messages=[{"role": "user", "content": "Hi"}], extra_body={"output_config": {"format": form}})
    assert list(json.loads(whole.content[-1].text)) == ["a"]
