"""Clients that others wrote, each through one loop of tools, streams and a schema. Skipped where they are not installed (vivace[judges]).

About 10 s."""
import json
import os

import pytest

from tests.serving import NAME
from tests.test_server_tools import ADD, CALL, TOOLS, free, served  # noqa: F401  fixtures

SCHEMA = {"title": "Person", "description": "A person.", "type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["name", "age"], "additionalProperties": False}


@pytest.fixture(scope="module")
def lang():
    return pytest.importorskip("langchain_openai")


def chat(lang, client, **fields):
    return lang.ChatOpenAI(model=NAME, base_url=str(client.base_url), api_key="none", max_retries=0, **fields)


def test_langchain_loops_over_tools(lang, served):  # noqa: F811
    from langchain_core.messages import HumanMessage, ToolMessage

    engine, client = served
    engine.says, engine.cut_off = f"Let me see. {CALL}\n{ADD}", False
    model = chat(lang, client).bind_tools(TOOLS)
    ask = [HumanMessage("What is the weather in Zürich?")]
    said = model.invoke(ask)
    assert said.content == "Let me see." and [(c["name"], c["args"]) for c in said.tool_calls] == [("get_weather", {"city": "Zürich 🙂"}), ("add", {"a": -1500.0})]
    assert said.usage_metadata["input_tokens"] > 0 and said.response_metadata["finish_reason"] == "tool_calls"
    whole = None
    for chunk in model.stream(ask):
        whole = chunk if whole is None else whole + chunk
    assert whole.content == said.content and [(c["name"], c["args"]) for c in whole.tool_calls] == [(c["name"], c["args"]) for c in said.tool_calls]
    engine.says = "It rains."
    again = model.invoke([*ask, said, *(ToolMessage(f"{c['name']} says 9", tool_call_id=c["id"]) for c in said.tool_calls)])
    assert again.content == "It rains." and not again.tool_calls and "add says 9" in engine.prompts[0]


def test_langchain_gets_structure(lang, free):  # noqa: F811
    for method in ("json_schema", "function_calling"):
        got = chat(lang, free[1], temperature=0, max_tokens=80).with_structured_output(SCHEMA, method=method).invoke("Describe a person.")
        assert set(got) == {"name", "age"} and 0 <= got["age"] <= 99 and len(got["name"]) <= 12, (method, got)
    logs = chat(lang, free[1], max_tokens=3, logprobs=True, top_logprobs=2, temperature=0).invoke("Hi").response_metadata["logprobs"]["content"]
    assert len(logs) == 3 and all(len(t["top_logprobs"]) == 2 for t in logs)


@pytest.fixture(scope="module")
def lite():
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask a server of its makers
    return pytest.importorskip("litellm")


def test_litellm_loops_over_tools(lite, served):  # noqa: F811
    engine, client = served
    engine.says, engine.cut_off = f"Let me see. {CALL}\n{ADD}", False
    how = dict(model=f"openai/{NAME}", api_base=str(client.base_url), api_key="none", tools=TOOLS, num_retries=0)
    ask = [{"role": "user", "content": "What is the weather in Zürich?"}]
    calls = lambda message: [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or []]  # noqa: E731
    said = lite.completion(messages=ask, **how).choices[0]
    assert said.message.content == "Let me see." and calls(said.message) == [("get_weather", {"city": "Zürich 🙂"}), ("add", {"a": -1500.0})] and said.finish_reason == "tool_calls"
    chunks = list(lite.completion(messages=ask, stream=True, stream_options={"include_usage": True}, **how))
    whole = lite.stream_chunk_builder(chunks, messages=ask)
    assert whole.choices[0].message.content == "Let me see." and calls(whole.choices[0].message) == calls(said.message) and whole.usage.completion_tokens > 5
    engine.says = "It rains."
    answers = [{"role": "tool", "tool_call_id": c.id, "content": f"{c.function.name} says 9"} for c in said.message.tool_calls]
    again = lite.completion(messages=[*ask, said.message.model_dump(), *answers], **how).choices[0]
    assert again.message.content == "It rains." and again.finish_reason == "stop" and "add says 9" in engine.prompts[0]


def test_langchain_goes_on_from_responses(lang, free):  # noqa: F811
    model = chat(lang, free[1], use_responses_api=True, temperature=0, max_tokens=8)
    first = model.invoke("Name a colour.")
    second = model.invoke("Another one?", previous_response_id=first.response_metadata["id"])
    assert second.text and second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"] and json.dumps(second.response_metadata["id"])
