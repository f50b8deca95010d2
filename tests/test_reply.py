"""The parser of models' replies (serve/reply_parser.h): what was written comes out apart, whatever pieces it came in."""
import itertools
import json
import random

import pytest
from tokenizers import Tokenizer, models

from tests import replies
from vivace import _core
from vivace.errors import InvalidArgumentError
from vivace.text import Text

TOOLS = [("f", [("a", "other"), ("b", "string")]), ("g", [])]


def joined(deltas) -> dict:
    """What a client puts together, after looking at every delta."""
    out = {"text": "", "reasoning": "", "calls": []}
    for kind, *rest in deltas:
        if kind in ("text", "reasoning"):
            assert rest[0], "no empty delta"
            out[kind] += rest[0]
        elif kind == "call":
            index, call_id, name = rest
            assert index == len(out["calls"]) and name
            out["calls"].append([call_id, name, ""])
        else:
            index, text = rest
            assert index == len(out["calls"]) - 1 and text
            out["calls"][index][2] += text
    assert len({c[0] for c in out["calls"]}) == len(out["calls"]), "ids differ"
    return out


def parse(pieces, why="stop", named=False, **options) -> dict:
    parser = _core.ReplyParser(**options)
    deltas = [d for piece in pieces for d in parser.feed(piece)]
    last, finish = parser.finish(why, named)
    return joined(deltas + last) | {"finish": finish, "over": parser.over()}


def cut(data: bytes, places) -> list[bytes]:
    places = [0, *sorted(places), len(data)]
    return [data[a:b] for a, b in zip(places, places[1:])]


@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_drawn(first):
    for seed in range(first, first + 250):
        case = replies.drawn(seed)
        data, want, options = case["text"].encode(), case["want"], case["options"]
        got = parse([data], **options)
        calls = [(name, json.loads(arguments)) for _, name, arguments in got["calls"]]
        assert {"text": got["text"], "reasoning": got["reasoning"], "calls": calls, "finish": got["finish"]} == want, (seed, case["text"])
        r = random.Random(seed)
        for pieces in ([bytes([b]) for b in data], *(cut(data, [r.randrange(len(data) + 1) for _ in range(r.randrange(1, 9))]) for _ in range(4))):
            assert parse(pieces, **options) == got, seed
        # cut short anywhere, it is never told as calls that are to be made
        short = parse([data[:r.randrange(len(data) + 1)]], why="length", **options)
        assert short["finish"] == "length"


@pytest.mark.parametrize("form,text", replies.ODD)
def test_every_cut_of_odd_ones(form, text):
    data = text.encode()
    options = dict(calls=form, reasoning="think", tools=TOOLS)
    whole = parse([data], **options)
    for i in range(len(data) + 1):
        for j in range(i, len(data) + 1, 1 if len(data) < 120 else 17):
            assert parse(cut(data, [i, j]), **options) == whole
    for end in range(len(data)):  # and of each beginning
        begun = parse([data[:end]], **options)
        assert parse([bytes([b]) for b in data[:end]], **options) == begun


def test_all_splits_of_short_ones():
    """Characters of several bytes, broken ones, and stop strings that begin inside each other."""
    for data, stop in [("aé🙂b".encode(), []), (b"\xf0\x9f\x99a\xe2\x28\xff", []), (b"abcabcabd", ["abd"]), (b"xabcdy", ["abcd", "bc"]), (b"aaaaab", ["aab", "aaaab"]), ("né🙂".encode(), ["🙂"]),
                       (b"\xf0\x9f\x99", []), (b" \n x \n", [])]:
        whole = parse([data], stop=stop)
        text = data.decode("utf-8", "replace")
        ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
        assert whole["text"] == (text[:min(ends)[1]] if ends else text)
        assert whole["over"] == bool(ends)
        for n in range(len(data)):
            for places in itertools.combinations(range(1, len(data)), n):
                assert parse(cut(data, places), stop=stop) == whole


def test_nothing_waits_without_need():
    """Text is given out as soon as no marker can begin in it; arguments as they grow."""
    parser = _core.ReplyParser(calls="hermes", reasoning="think", tools=TOOLS)
    assert parser.feed(b"Hello") == [("text", "Hello")]
    assert parser.feed(b" world <") == [("text", " world")]
    assert parser.feed(b"b>") == [("text", " <b>")]
    assert parser.feed(b'\n<tool_call>\n{"name": "f", "arg') == []
    assert parser.feed(b'uments": {"a"') == [("call", 0, "call_0", "f"), ("arguments", 0, '{"a"')]
    assert parser.feed(b": 1") == [("arguments", 0, ": 1")]
    assert parser.feed(b"}}\n</tool_call>\n") == [("arguments", 0, "}")]
    assert parser.finish("stop") == ([], "tool_calls")
    strings = _core.ReplyParser(calls="qwen_xml", tools=TOOLS)
    assert strings.feed(b"<function=f>\n<parameter=b>\nab") == [("call", 0, "call_0", "f"), ("arguments", 0, '{"b": "ab')]


def test_given():
    """Tokens go with the text that they are in: how far that is known."""
    parser = _core.ReplyParser(calls="hermes", stop=["END"], tools=TOOLS)
    seen = []
    for piece in ["é <", "b", " E", "N", "N", "\n<tool_call>", '{"name": "f", "arguments"', ": {", "}}</tool_call> x", " END tail"]:
        parser.feed(piece.encode())
        seen.append(parser.given())
    assert seen == [3, 5, 6, 6, 9, 10, 10, 49, 65, 66]


CALL = b'<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def test_finish():
    """The same function for a stream and a whole answer: what ends is what a client is told."""
    hermes = dict(calls="hermes", tools=TOOLS)
    assert parse([CALL], **hermes)["finish"] == "tool_calls"
    assert parse([CALL], named=True, **hermes)["finish"] == "stop"
    assert parse([CALL], why="length", **hermes)["finish"] == "length"
    assert parse([CALL], why="cancelled", **hermes)["finish"] == "cancelled"
    assert parse([CALL[:35]], **hermes)["finish"] == "stop", "a call that is not whole must not be made"
    assert parse([CALL])["finish"] == "stop" and parse([CALL])["text"] == CALL.decode(), "no tools, no calls"
    stopped = parse([CALL + b" END", b"more"], why="cancelled", stop=["END"], **hermes)
    assert stopped["finish"] == "tool_calls" and stopped["over"]
    assert parse([b"words END"], why="length", stop=["END"])["finish"] == "stop"


def test_one_call():
    two = parse([CALL + CALL], why="cancelled", calls="hermes", tools=TOOLS, one_call=True)
    assert len(two["calls"]) == 1 and two["over"] and two["finish"] == "tool_calls"


def test_what_breaks_stays_visible():
    """Nothing that the model wrote is lost: it is text, or the tail of the arguments that were begun."""
    broken = parse([b'<tool_call>{"name": "f", "arguments": {"a": tru}}</tool_call> ok'], calls="hermes", tools=TOOLS)
    assert broken["calls"][0][2] == '{"a": tru}}' and broken["text"] == "ok" and broken["finish"] == "stop"
    brace = parse([b'<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call>'], calls="hermes", tools=TOOLS)
    assert brace["calls"][0][2] == '{"a": 1}' and brace["text"] == "" and brace["finish"] == "tool_calls", "a brace that models forget"
    assert parse([b"<tool_call>no"], calls="hermes", tools=TOOLS)["text"] == "<tool_call>no"
    bare = parse([b"<|tool_call>call:f{a:1lfse,b:-, c: 1 2,d:1.5}<tool_call|>"], calls="gemma", tools=TOOLS)
    assert json.loads(bare["calls"][0][2]) == {"a": "1lfse", "b": "-", "c": "1 2", "d": 1.5}, "words without their quotes"
    string = parse([rb'<tool_call>{"name": "f", "arguments": "{\"a\": \"\u00e9\"}"}</tool_call>'], calls="hermes", tools=TOOLS)
    assert string["calls"][0][2] == '{"a": "é"}', "an object that was written as a string"
    words = parse([b'<tool_call>{"name": "f", "arguments": "no object"}</tool_call>'], calls="hermes", tools=TOOLS)
    assert words["calls"][0][2] == '"no object"'


def test_a_call_in_reasoning_is_reasoning():
    got = parse([b"<think>\n" + CALL + b"\n</think>\n\n42"], calls="hermes", reasoning="think", tools=TOOLS)
    assert got["calls"] == [] and got["reasoning"] == CALL.decode() and got["text"] == "42"
    open_ended = parse([CALL], calls="hermes", reasoning="think", in_reasoning=True, tools=TOOLS)
    assert open_ended["calls"] == [] and open_ended["reasoning"] == CALL.decode() and open_ended["finish"] == "stop"


def test_a_bare_call_is_of_a_tool_that_there_is():
    for text, calls in [('{"name": "f", "parameters": {}}', 1), ('{"name": "h", "parameters": {}}', 0), ('{"name": "f", "age": 3}', 0), ('x {"name": "f", "parameters": {}}', 0)]:
        got = parse([text.encode()], calls="llama", tools=TOOLS)
        assert len(got["calls"]) == calls and got["text"] == ("" if calls else text)


def test_a_name_that_never_comes():
    """A call that is not known to be one is held up to a bound, and what it takes is linear in the text."""
    text = b'<tool_call>{"x": "' + b"y" * 200_000
    got = parse([text], calls="hermes", tools=TOOLS)
    assert got["text"] == text.decode() and not got["calls"]
    many = b"<tool_call>" * 50_000
    assert parse([many], calls="hermes", tools=TOOLS)["text"] == many.decode()


def test_formats_of_templates():
    cases = [("<tool_call> <function=", "qwen_xml"), ("<tool_call>{", "hermes"), ("<|python_tag|>", "llama"), ("'Environment: ipython'", "llama"), ("<|tool_call>call:", "gemma"),
             ("<start_function_call>", "functiongemma"), ("plain", None)]
    for template, form in cases:
        assert _core.reply_format(template) == (form, None)
        assert _core.reply_format(template + "</think>") == (form, "think")
    assert _core.reply_format("<|channel>thought") == (None, "gemma")
    assert Text(Tokenizer(models.BPE()), template="<tool_call>{{ '<think>' }}").replies == {"calls": "hermes", "reasoning": "think"}
    assert _core.ends_in_reasoning("user <think> x</think> assistant\n<think>\n", "think")
    assert not _core.ends_in_reasoning("a <think>\n\n</think>\n\n", "think") and not _core.ends_in_reasoning("<think> words", "think")


@pytest.mark.parametrize("options", [dict(calls="nonesuch"), dict(reasoning="nonesuch"), dict(stop=[""]), dict(in_reasoning=True), dict(one_call=True), dict(tools=[("f", [("a", "number")])])])
def test_options_that_cannot_be(options):
    with pytest.raises(InvalidArgumentError, match="reply:"):
        _core.ReplyParser(**options)
