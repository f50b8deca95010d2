"""The outbox: replies of any text, cut into tokens at any byte, give the same whole, as events and as records, whoever reads how slowly.

About 8 s."""
import asyncio
import json
import random
import re
import sys

import pytest

import vivace
from tests.replies import ODD, drawn
from tests.test_model import PATH
from vivace import _core
from vivace.server.records import Records

VOCAB = 512


@pytest.fixture(scope="module")
def model():
    with vivace.load_model(PATH, device="cpu", context=128, max_batch=4) as m:
        assert m._live.limits()["vocab"] >= 64
        yield m


def draw(model, seed, count):
    """`count` tokens of a random model, no two alike, and how to draw them again."""
    how = dict(max_tokens=count, temperature=1.0, seed=seed, presence_penalty=1e5)
    tokens = model.generate_ids([1 + seed % 7, 2, 3], **how).tokens
    assert len(set(tokens)) == count
    return tokens, dict(ids=[1 + seed % 7, 2, 3], **how)


class Script:
    """A vocabulary that makes a model say what a test wants: pieces of each text, as the tokens that will be drawn."""

    def __init__(self, model, text: bytes, r: random.Random, *, seed: int, most=24):
        cuts = sorted(r.sample(range(1, len(text)), min(len(text) - 1, r.randrange(most)))) if len(text) > 1 else []
        self.pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
        self.tokens, self.how = draw(model, seed, len(self.pieces))
        table = [b""] * model._live.limits()["vocab"]
        for token, piece in zip(self.tokens, self.pieces):
            table[token] = piece
        self.box = _core.Outbox(model._live, table, False)
        self.model = model

    def choice(self, options, echo="", named=False):
        how = dict(self.how)
        request, _ = self.model._prepare(how.pop("ids"), None, **how)
        return self.model._submit(request, self.box.bell), _core.ReplyOptions(**options), echo, named

    def open(self, options, *, choices=1, **how):
        self.reader = _core.Notifier.with_descriptor()
        return self.box.open([self.choice(options) for _ in range(choices)], reader=self.reader, **how)


def everything(stream, reader, pause=0.0) -> bytes:
    async def read():
        loop, news, out = asyncio.get_running_loop(), asyncio.Event(), b""
        loop.add_reader(reader.descriptor(), lambda: (reader.acknowledge(), news.set()))
        while not stream.over():
            if not stream.unread():
                news.clear()
                if not stream.unread():
                    await asyncio.wait_for(news.wait(), 20)
            if pause:
                await asyncio.sleep(pause)
            out += stream.read()
        stream.check()
        return out

    return asyncio.run(read())


def told(text: bytes, options, finish="length"):
    """What the parser alone makes of it, in one piece."""
    parser = _core.ReplyParser(**options)
    deltas = parser.feed(text)
    rest, said = parser.finish("stop" if parser.over() else finish)
    out = {"text": "", "reasoning": "", "calls": [], "finish": said}
    for kind, *of in [*deltas, *rest]:
        if kind == "call":
            out["calls"].append([of[1], of[2], ""])
        elif kind == "arguments":
            out["calls"][of[0]][2] += of[1]
        else:
            out[kind] += of[0]
    return out


def of_records(records):
    out = {"text": "", "reasoning": "", "calls": [], "finish": None}
    for r in records:
        assert out["finish"] is None
        if r.k == "call":
            assert r.x == len(out["calls"])
            out["calls"].append([r.d, r.t, ""])
        elif r.k == "arguments":
            out["calls"][r.x][2] += r.t
        else:
            out[r.k] = (out[r.k] or "") + r.t
    return out


def of_events(text):
    """Of chat.completion.chunk events; each delta is checked as clients read it."""
    out, begun = {"text": "", "reasoning": "", "calls": [], "finish": None}, False
    for e in re.findall(r"^data: (.*)\n\n", text, re.M):
        [c] = json.loads(e)["choices"]
        delta = c["delta"]
        assert out["finish"] is None and (begun or delta == {"role": "assistant", "content": "", "refusal": None})
        begun = True
        out["text"] += delta.get("content") or ""
        out["reasoning"] += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(out["calls"]) and set(call) == {"index", "id", "type", "function"} and call["function"]["arguments"] == ""
                out["calls"].append([call["id"], call["function"]["name"], ""])
            else:
                assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                out["calls"][call["index"]][2] += call["function"]["arguments"]
        out["finish"] = c["finish_reason"]
    return out


def asked(seed):
    """A reply's bytes and options: one that was drawn, an odd one, or one of any bytes, some with a stop string cut from it."""
    r = random.Random(seed)
    if seed % 3 == 0:
        reply = drawn(seed)
        text, options = reply["text"].encode(), reply["options"]
    elif seed % 3 == 1:
        calls, text = ODD[seed // 3 % len(ODD)]
        text, options = text.encode(), dict(calls=calls, reasoning=r.choice([None, "think"]), tools=[("f", [("a", "string")]), ("g", [])])
    else:
        text, options = bytes(r.choice([r.randrange(256), 0xF0, 0x9F, 0x98, 0x80, 0x22, 0x5C, 0x0A]) for _ in range(r.randrange(1, 60))), {}
    text = text or b"."
    if r.random() < 0.3:
        said = text.decode("utf-8", "ignore")
        at = r.randrange(len(said) + 1)
        options = {**options, "stop": [said[at:at + 3] or "?"]}
    return r, text, options


@pytest.mark.parametrize("shard", range(4))
def test_every_cut_and_form_says_the_same(model, shard):
    for seed in range(shard, 240, 4):
        r, text, options = asked(seed)
        script = Script(model, text, r, seed=seed)
        want = told(text, options)
        whole = Records().of(everything(script.open(options, form="records", whole=True), script.reader))
        lines = Records().of(everything(script.open(options, form="records"), script.reader))
        assert of_records(whole) == want == of_records(lines), (seed, text)
        got = everything(script.open(options, form="chat", head=b'data: {"choices":[', tail=b"]}\n\n", logprobs=bool(seed % 2)), script.reader).decode()
        assert of_events(got) == want, (seed, text, got)
        assert len({(x.i, x.k) for x in whole if x.k != "call" and x.k != "arguments"}) == len([x for x in whole if x.k not in ("call", "arguments")]) or want["calls"], "one record a kind"
        script.box.close()


def test_tokens_go_with_their_text(model):
    """Logprobs: every token once, in order, up to the stop string; the same in events, records and whole."""
    for seed in range(40):
        r = random.Random(seed)
        text = "".join(r.choice("abc🙂é ") for _ in range(r.randrange(2, 40)))
        stop = text[at:at + 2] if (at := r.randrange(len(text))) < len(text) - 1 and seed % 2 else "\0"
        script = Script(model, text.encode(), r, seed=seed)
        options = dict(stop=[stop])
        whole = [t[0] for x in Records().of(everything(script.open(options, form="records", whole=True, logprobs=True), script.reader)) for t in x.p]
        lines = [t[0] for x in Records().of(everything(script.open(options, form="records", logprobs=True), script.reader)) for t in x.p]
        said = text.split(stop)[0].encode()
        covered, want = 0, []
        for token, piece in zip(script.tokens, script.pieces):
            if stop not in text or covered < len(said):
                want.append(token)
            covered += len(piece)
        assert whole == lines == want, (text, stop)
        events = everything(script.open(options, form="chat", head=b'data: {"choices":[', tail=b"]}\n\n", logprobs=True), script.reader).decode()
        bytes_ = [bytes(t["bytes"]) for e in re.findall(r"^data: (.*)$", events, re.M) for t in (json.loads(e)["choices"][0]["logprobs"] or {"content": []})["content"]]
        assert bytes_ == script.pieces[:len(want)]
        script.box.close()


def test_a_slow_reader_gets_everything(model):
    """More than the ring holds: the reply waits, events are written together, and nothing is lost."""
    r = random.Random(3)
    text = ("".join(r.choice("xyz🙂") for _ in range(30_000))).encode()
    script = Script(model, text, r, seed=5, most=60)
    for whole in (False, True):
        got = Records().of(everything(script.open({}, form="records", whole=whole, choices=3), script.reader, pause=0.01))
        for i in range(3):
            assert "".join(x.t for x in got if x.i == i and x.k == "text").encode() == text
    script.box.close()


def test_cancel_and_leave(model):
    """A stream that is cancelled ends without a finish; one that is dropped gives its slots back; the others go on."""
    r = random.Random(1)
    script = Script(model, b"abcdefghijklmnopqrstuvwxyz" * 2, r, seed=2, most=40)
    kept = script.open({}, form="records")
    for _ in range(20):
        reader = script.reader
        gone = script.open({}, form="records", choices=2)
        if r.random() < 0.5:
            gone.cancel()
            everything(gone, script.reader)
        del gone
        script.reader = reader
    assert "".join(x.t for x in Records().of(everything(kept, script.reader)) if x.k == "text") == "abcdefghijklmnopqrstuvwxyz" * 2
    for _ in range(1000):
        if model._live.pending() == 0:
            break
        __import__("time").sleep(0.01)
    assert model._live.pending() == 0 and script.box.stats()["failed"] == 0
    script.box.close()


def test_a_model_that_closes(model):
    with vivace.load_model(PATH, device="cpu", context=128, max_batch=1) as other:
        script = Script(other, b"abc" * 20, random.Random(1), seed=2, most=50)
        streams = [script.open({}, form="records") for _ in range(40)]  # the last has not begun when the model closes
        reader = script.reader
        other._live.close()
        with pytest.raises(vivace.ClosedError):
            everything(streams[-1], reader)
        script.box.close()


def test_its_threads_hold_nothing_of_pythons(model):
    """What they drop last would else want the interpreter's lock, on a thread that streams wait for, or that somebody with the lock waits for."""
    script = Script(model, b"some words", random.Random(1), seed=5)
    references = [sys.getrefcount(script.box)]
    stream = script.open({}, choices=2, form="records")
    reader = sys.getrefcount(script.reader)
    references.append(sys.getrefcount(script.box))
    assert everything(stream, script.reader) and reader == 2 and references[0] == references[1]
