"""Answers that keep to a grammar: valid to the last token, refused with a reason where they cannot be, and no burden to others."""
import json
import threading
import time

import jsonschema
import pytest

import vivace
from vivace import fetch, structured
from vivace.errors import Error, InvalidArgumentError, LimitExceededError

llguidance = pytest.importorskip("llguidance")

SHORT, FEW = {"type": "string", "maxLength": 12}, {"type": "integer", "minimum": 0, "maximum": 999}


def thing(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SCHEMAS = [
    thing(name=SHORT, age=FEW), thing(), SHORT, FEW, {"type": "boolean"}, {"type": "null"}, {"enum": ["red", "green", "blue"]}, {"const": {"a": [1, None]}},
    {"type": "array", "items": FEW, "minItems": 2, "maxItems": 4}, thing(list={"type": "array", "items": SHORT, "maxItems": 2}), thing(inner=thing(deep=thing(deeper=FEW))),
    {"anyOf": [thing(kind={"const": "a"}, n=FEW), thing(kind={"const": "b"}, s=SHORT)]}, {"type": ["string", "null"], "maxLength": 8}, {"type": "string", "pattern": "^[a-z]{2,5}-[0-9]{3}$"},
    {"type": "string", "format": "date"}, {"type": "string", "format": "uuid"}, thing(x={"type": "number", "minimum": -1, "maximum": 1, "multipleOf": 0.25}), {"type": "array", "prefixItems": [FEW, SHORT], "items": False, "minItems": 2},
    {"$defs": {"leaf": thing(v=FEW)}, "type": "array", "items": {"$ref": "#/$defs/leaf"}, "minItems": 1, "maxItems": 2}, thing(quote={"type": "string", "enum": ['"', "\\", "ü", "🙂", "a\nb"]}, t={"enum": [True]}),
]


@pytest.fixture(scope="module")
def model():
    with vivace.load_model(fetch.path_of("smollm2-135m-instruct"), device="cpu", context=512, max_batch=4) as m:
        yield m


@pytest.fixture(scope="module")
def tokenizer(model):
    return llguidance.LLTokenizer(model.text.tokenizer.to_str(), n_vocab=model._live.limits()["vocab"], eos_token=model.text.eos)


def kept_to(tokenizer, grammar, answer):
    """llguidance itself, asked anew at every prefix: each token was allowed, and the answer ends where it may."""
    m = llguidance.LLMatcher(tokenizer, grammar)
    for token in answer.tokens:
        bits = m.compute_bitmask()
        assert bits[token // 8] >> token % 8 & 1, "a token that the grammar forbids"
        assert m.consume_token(token)
    assert answer.finish != "stop" or m.is_accepting()


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_schemas(model, tokenizer, number):
    schema = SCHEMAS[number]
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=structured.JSON_STYLE)
    for how in (dict(), dict(temperature=1.2, top_p=0.95, seed=number)):
        answer = model.generate("Write a record as JSON.", json_schema=schema, max_tokens=100, **how)
        assert answer.finish == "stop", answer
        jsonschema.validate(json.loads(answer.text), schema)
        kept_to(tokenizer, grammar, answer)


def test_regex_and_grammar(model, tokenizer):
    date = model.generate("Give me a date.", regex=r"[0-9]{4}-(0[1-9]|1[0-2])-[0-9]{2}", max_tokens=20)
    assert date.finish == "stop" and len(date.text) == 10
    kept_to(tokenizer, llguidance.LLMatcher.grammar_from_regex(r"[0-9]{4}-(0[1-9]|1[0-2])-[0-9]{2}"), date)
    assert model.generate("Yes or no?", grammar='start: "yes" | "no"', max_tokens=20).text in ("yes", "no")
    assert "".join(c.text for c in model.stream("Yes or no?", grammar='start: "a" "b" "c" "d" "efghijk"', max_tokens=20)) == "abcdefghijk"


def test_text_schemas_and_classes(model):
    class Record:
        @staticmethod
        def model_json_schema():
            return thing(n=FEW)
    for schema in (json.dumps(thing(n=FEW)), Record):
        assert list(json.loads(model.generate("A number.", json_schema=schema, max_tokens=30).text)) == ["n"]


def test_beside_others(model):
    """Two that keep to schemas and two that are free: each is the answer that it is alone."""
    asks = [dict(json_schema=SCHEMAS[0], temperature=1.0, seed=3), dict(temperature=0.8, seed=5), dict(json_schema=SCHEMAS[8], seed=7), dict()]
    alone = [model.generate(f"Ask {i}.", max_tokens=24, **a).tokens for i, a in enumerate(asks)]
    for _ in range(2):
        streams = [model.stream(f"Ask {i}.", max_tokens=24, **a) for i, a in enumerate(asks)]
        got = [None] * len(asks)

        def read(i):
            got[i] = [c.token for c in streams[i] if c.token is not None]
        threads = [threading.Thread(target=read, args=(i,)) for i in range(len(asks))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert got == alone
    answers = model.generate_batch(["one", "two", "three"], json_schema=SCHEMAS[0], max_tokens=40)
    assert all(json.loads(a.text) for a in answers)


def test_a_reader_that_sleeps_holds_up_no_mask(model):
    """Masks are made apart from who reads."""
    stream = model.stream("A record.", json_schema=SCHEMAS[0], max_tokens=60)
    until = time.monotonic() + 30
    while not stream._request.unread() or time.monotonic() < until:
        before = stream._request.unread()
        time.sleep(0.3)
        if stream._request.unread() == before and before > 3:
            break
    json.loads("".join(c.text for c in stream))


def test_cancel(model):
    """Answers that are left in the middle: slots are free again, and the thread of masks ends with the last."""
    for how in range(6):
        stream = model.stream("Go on.", json_schema={"type": "array", "items": FEW, "minItems": 60}, max_tokens=200)
        for _, _chunk in zip(range(how), stream):
            pass
        stream.close()
    assert json.loads(model.generate("A record.", json_schema=SCHEMAS[0], max_tokens=60).text)
    worker, until = model._grammars.worker, time.monotonic() + 10
    while worker._thread is not None and time.monotonic() < until:
        time.sleep(0.05)
    assert worker._thread is None


def test_lengths(model):
    cut = model.generate("Go on.", json_schema={"type": "array", "items": FEW, "minItems": 60}, max_tokens=9)
    assert cut.finish == "length" and len(cut.tokens) == 9
    for most in (1, 2, 3, 5, 8):  # forced tokens count, and never pass the end
        assert len(model.generate("A record.", json_schema=SCHEMAS[0], max_tokens=most).tokens) <= most
    assert model.generate("A word.", regex="(ab){2,}", min_tokens=9, max_tokens=30).tokens.__len__() >= 9
    short = model.generate("Yes or no?", grammar='start: "yes" | "no"', min_tokens=9, max_tokens=20)
    assert short.text in ("yes", "no"), "the grammar's end is the answer's"


def deep(n):
    schema = SHORT
    for _ in range(n):
        schema = thing(a=schema)
    return schema


BAD = [
    (dict(json_schema={"type": "strin"}), "Invalid type"), (dict(json_schema={"not": {}}), "not"), (dict(json_schema={"$ref": "#"}), "no answer"), (dict(json_schema={"$ref": "http://127.0.0.1/x"}), "not present|fetch"),
    (dict(json_schema={"$ref": "file:///etc/passwd"}), "not present|fetch"), (dict(json_schema={"enum": []}), "nsatisfiable"), (dict(json_schema={"type": "array", "minItems": 5, "maxItems": 2}), "minItems"),
    (dict(json_schema={"type": "string", "pattern": "(a|b"}), "unclosed"), (dict(json_schema={"type": "string", "pattern": "^(a{1000}){1000}$"}), "repeats"), (dict(json_schema={"patternProperties": {"(x{99}){99}": {}}}), "repeats"),
    (dict(json_schema=[1]), "an object"), (dict(json_schema="{"), "no JSON"), (dict(json_schema={1, 2}), "an object"), (dict(json_schema="x" * 70_000), "at most"), (dict(json_schema={"description": "x" * 70_000}), "at most"),
    (dict(json_schema=deep(60)), "deeper"), (dict(json_schema="[" * 5000), "JSON"), (dict(json_schema={"x-guidance": {"lenient": True}, "not": {}}), "x-guidance"),
    (dict(json_schema={"properties": {"a": {"x-guidance": {}}}}), "x-guidance"), (dict(regex="("), "unclosed"), (dict(regex="(?=x)"), "look"), (dict(regex="a{5000}"), "repeats"), (dict(regex="a" * 70_000), "at most"),
    (dict(regex="(" * 5000 + "a" + ")" * 5000), ""), (dict(grammar="start: x"), "unknown name"), (dict(grammar="start: " + "(" * 3000 + '"a"' + ")" * 3000), "nested"), (dict(grammar=""), ""),
    (dict(grammar="%import common.NOPE\nstart: NOPE"), ""), (dict(grammar="start: @other"), "unknown"), (dict(regex="a", grammar='start: "a"'), "one of"), (dict(regex="a", mask=lambda t: None), "mask"),
    (dict(regex="a", draft="lookup"), "draft"), (dict(regex=7), "regex"), (dict(grammar=b"x"), "grammar"), (dict(min_tokens=9), "min_tokens"), (dict(min_tokens=-1), "min_tokens"),
]


@pytest.mark.parametrize("options,why", BAD, ids=range(len(BAD)))
def test_refused(model, options, why):
    """Never unconstrained: an error that says why, and soon."""
    start = time.thread_time()
    with pytest.raises(InvalidArgumentError, match=f"(?i){why}"):
        model.generate("x", max_tokens=4, **options)
    assert time.thread_time() - start < 1


def test_budget(model, monkeypatch):
    """What takes too long to compile is refused, whoever asks for it again too; and what takes too long in a mask ends its own answer alone."""
    monkeypatch.setattr(structured, "COMPILE_SECONDS", 0.0)
    slow = {"type": "object", "properties": {f"k{i}": {"type": "string", "pattern": f".*a{i}.*b"} for i in range(600)}}
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="longer than"):
            model.generate("x", json_schema=slow, max_tokens=4)
    monkeypatch.setattr(structured, "MASK_SECONDS", 0.0)
    free = model.stream("Hello", max_tokens=20)
    with pytest.raises(LimitExceededError, match="a mask of its grammar"):
        model.generate("x", json_schema={"type": "array", "items": FEW, "minItems": 60}, max_tokens=40)
    assert sum(c.token is not None for c in free) > 3


def test_without_the_library(model, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(vivace.UnsupportedError, match=r"vivace\[structured\]"):
        structured.llguidance()


def test_needs_a_tokenizer(model):
    with pytest.raises(Error, match="tokenizer"):
        model.generate_ids([5], max_tokens=4, regex="a")
