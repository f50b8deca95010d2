"""Replies of models as they are drawn for tests: what is written, and what a client must be told of it. Who draws a reply knows its
parts, so no second parser is needed to judge the first."""
from __future__ import annotations

import json
import random

WORDS = ["sum", "a b", "", "x", "zwölf", "日本", "🙂", "e\u0301", "<", "</", "<tool", "</tool_call", "{", "}", '"', "\\", "\n", "tab\t", "think>", "0", "true", "null", "-1.5", ":", ",", "<parameter", "]"]
NAMES = ["get_weather", "add", "functions.run-it", "f", "größe"]
KEYS = ["city", "n", "deep", "x_1", "flag"]


def _text(r, forbidden=()):
    while True:
        text = "".join(r.choice(WORDS) for _ in range(r.randrange(6)))
        if not any(f in text for f in forbidden):
            return text


def _value(r, depth=0, forbidden=()):
    kind = r.randrange(7 if depth < 3 else 5)
    if kind <= 1:
        return _text(r, forbidden)
    if kind == 2:
        return r.choice([0, -7, 12345678901234567890, 3.25, 1e-9, -2.5e30])
    if kind == 3:
        return r.choice([True, False, None])
    if kind == 4:
        return r.choice([{}, []])
    if kind == 5:
        return [_value(r, depth + 1, forbidden) for _ in range(r.randrange(1, 4))]
    return {k: _value(r, depth + 1, forbidden) for k in r.sample(KEYS, r.randrange(1, 4))}


def _space(r, some=False):
    return "".join(r.choice(" \n\t") for _ in range(r.randrange(1 if some else 0, 3)))


def _json(r, value):
    return json.dumps(value, ensure_ascii=r.random() < 0.3, indent=r.choice([None, None, 1]))


def _json_call(r, name, arguments, key):
    first, second = f'"name": {_json(r, name)}', f'"{key}": {_json(r, arguments)}'
    parts = [first, second] if r.random() < 0.8 else [second, first]
    if r.random() < 0.2:
        parts.insert(r.randrange(3), '"type": "function"')
    s = lambda: _space(r) if r.random() < 0.3 else ""  # noqa: E731
    return "{" + s() + f",{s()} ".join(parts) + s() + "}"


def _xml_value(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


def _xml_call(name, arguments):
    return f"<function={name}>\n" + "".join(f"<parameter={k}>\n{_xml_value(v)}\n</parameter>\n" for k, v in arguments.items()) + "</function>"


def _braces(value, quote):
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_braces(v, quote)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_braces(v, quote) for v in value) + "]"
    return json.dumps(value)


FORBIDDEN = {"hermes": (), "llama": (), "qwen_xml": ("</parameter>",), "gemma": ('<|"|>',), "functiongemma": ("<escape>",)}
MARKS = {"hermes": ("<tool_call>", "</tool_call>"), "qwen_xml": ("<tool_call>", "</tool_call>"), "llama": ("<|python_tag|>", ""), "gemma": ("<|tool_call>", "<tool_call|>"),
         "functiongemma": ("<start_function_call>", "<end_function_call>")}
THINK = {"think": ("<think>", "</think>"), "gemma": ("<|channel>thought", "<channel|>")}


def _kind(value):
    return "string" if isinstance(value, str) else "other"


def _call(r, form):
    """A call as it is written, its name and arguments, and of what kind its parameters are."""
    name = r.choice(NAMES)
    forbidden = FORBIDDEN[form]
    arguments = {k: _value(r, 0, forbidden) for k in r.sample(KEYS, r.randrange(4))}
    opens, closes = MARKS[form]
    if form in ("hermes", "llama"):
        body = _json_call(r, name, arguments, r.choice(["arguments", "parameters"]))
    elif form == "qwen_xml":
        if r.random() < 0.2:
            opens = closes = ""
        body = _xml_call(name, arguments)
    else:
        body = f"call:{name}" + _braces(arguments, '<|"|>' if form == "gemma" else "<escape>")
    inside = (lambda: "\n") if form == "qwen_xml" else (lambda: _space(r))
    return (opens + inside() + body + inside() + closes if opens else body), name, arguments


def drawn(seed: int) -> dict:
    """A reply: the parser's options, the text, and what must come of it."""
    r = random.Random(seed)
    form = r.choice([None, *MARKS])
    reasoning = r.choice([None, *THINK])
    marks = [m for m in ((*MARKS[form], "<function=") if form else ()) if m]
    marks += THINK[reasoning] if reasoning else []
    plain = lambda: _text(r, marks)  # noqa: E731
    text, want = "", {"text": "", "reasoning": "", "calls": []}
    options = {"calls": form, "reasoning": reasoning, "in_reasoning": bool(reasoning) and r.random() < 0.3}
    thought = reasoning and (options["in_reasoning"] or r.random() < 0.5)
    if thought:
        opens, closes = THINK[reasoning]
        inner = plain() + (_call(r, form)[0] if form and r.random() < 0.3 else "") + plain()
        if closes not in inner:
            text += ("" if options["in_reasoning"] and r.random() < 0.7 else _space(r) + opens) + _space(r)
            # what looks like the opening marker at the very beginning of reasoning is it
            if not (options["in_reasoning"] and text.strip() == "" and opens.startswith(inner.strip()[:len(opens)])):
                text += inner + _space(r) + closes + _space(r)
                want["reasoning"] = inner.strip(" \n\t\r")
            else:
                text += "." + closes
                want["reasoning"] = "."
        else:
            thought, options["in_reasoning"] = False, False
    said = plain()
    looks = reasoning and not thought and any(m.startswith(said.lstrip()[:1]) for m in THINK[reasoning])
    if looks or (form == "llama" and said.lstrip().startswith(("{", ";"))):
        said = "." + said
    calls = [_call(r, form) for _ in range(r.randrange(1, 4))] if form and r.random() < 0.7 else []
    tools = [(name, [(k, _kind(v)) for k, v in arguments.items()]) for _, name, arguments in calls]
    seen = set()
    # one name has one list of kinds: the first call's; a later call of it must not disagree
    options["tools"] = []
    kept = []
    for call, tool in zip(calls, tools):
        if tool[0] in seen and form == "qwen_xml":
            continue
        seen.add(tool[0])
        options["tools"].append(tool)
        kept.append(call)
    calls = kept
    bare = form == "llama" and calls and r.random() < 0.6
    if bare:
        said = ""
    text += said
    want["text"] = said.lstrip(" \n\t\r") if thought else said
    if calls:
        want["text"] = want["text"].rstrip(" \n\t\r")
    for i, (written, name, arguments) in enumerate(calls):
        if bare:
            written = written.removeprefix("<|python_tag|>").strip() if r.random() < 0.7 else written
            text += "; " if i else ""
        text += written + _space(r)
        want["calls"].append((name, arguments))
    want["finish"] = "tool_calls" if calls else "stop"
    return {"options": options, "text": text, "want": want}


# Texts that only look like calls, break, or end too soon: nothing is known of them but that no cut changes what they are.
ODD = [
    ("hermes", "<tool_call>not json</tool_call>"), ("hermes", "<tool_call><tool_call>{\"name\": \"f\"}</tool_call>"), ("hermes", "a <tool_cal> b <tool_call"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call> tail'), ("hermes", '<tool_call>{"name": "f", "arguments": {"a": tru}}</tool_call>x'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "<tool_call>{}</tool_call>"}}'), ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}}</tool_call>'), ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call><tool_call>{"name"'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'), ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}'), ("hermes", '<tool_call>' * 5),
    ("hermes", '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 70 + "1" + "}" * 71 + "</tool_call>after"), ("hermes", '<tool_call>{"name": "f", "arguments": 12}</tool_call>'),
    ("llama", '{"name": "Alice", "age": 3}'), ("llama", '{"name": "f", "parameters": {}} and more'), ("llama", "<|python_tag|>print(1)"), ("llama", '{"name": "f", "parameters": {"a": 1}}; {"name": "g"}; x'),
    ("llama", '{}'), ("llama", ' {"type": "function", "name": "f"'), ("qwen_xml", "<function=f><parameter=a>1</function>"), ("qwen_xml", "<tool_call><function=f>\n<parameter=a>\n\n1\n\n</parameter></function>"),
    ("qwen_xml", "<function=f>\n<parameter=b>\nx</para</parameter>\n</function>\n</tool_call>"), ("qwen_xml", "<function=>"), ("qwen_xml", "<function=f>\n</function></tool_c"), ("qwen_xml", "<function=f>text</function>"),
    ("gemma", '<|tool_call>call:f{a:<|"|>x<|"|>,b:{c:[1,tr]}}<tool_call|>'), ("gemma", "<|tool_call>call:f{a:1,}<tool_call|>"), ("gemma", '<|tool_call>call:f{"k":"v\\n",l:}<tool_call|>z'), ("gemma", "<|tool_call>call f{}"),
    ("gemma", '<|tool_call>call:f{<|"|>k<|"|>:bare word ,m:[]}<tool_call|>'), ("functiongemma", "<start_function_call>call:f{a:<escape>x<esc<escape>}<end_function_call>"),
    ("gemma", "<|tool_call>call:f{a:1lfse,b:-,c:1 2,d:tru}<tool_call|>"), (None, "<think>x</think>y"), ("hermes", "<think> a <tool_call>{\"name\": \"f\"}</tool_call></thin</think>\n\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>\n"), ("hermes", " <thin"), ("hermes", "<think>"),
]
