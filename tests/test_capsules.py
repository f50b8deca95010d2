"""Capsules: what goes on from one says what would have been said; files that are cut, changed or foreign are errors of a kind.

About 15 s."""
import itertools
import json
import os
import random
import resource
import struct

import pytest

import vivace
from tests.test_model_steps import IDS, load
from tests.test_pages import PATH
from vivace import _core, capsule, capsule_file

NAME = "smollm2-135m-instruct"
KEY = b"a key of the tests, 32 bytes long"
HOW = [dict(), dict(temperature=1.0, seed=7), dict(temperature=0.8, seed=3, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, top_k=40), dict(temperature=0.9, seed=1, min_tokens=25, salt="mine")]


def tokens_of(stream):
    return [(c.token, c.logprob, c.finish) for c in stream]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_an_answer_goes_on_where_it_stood(how, precision, tmp_path):
    """At any token, in memory, on the host and from a file, in a model that has forgotten all of it: the same bits as without."""
    ids, path = IDS[:70], tmp_path / "capsule"
    with load(PATH, precision, context=128, max_batch=4) as model:
        want = tokens_of(model._stream(ids, None, max_tokens=40, **how))
        for cut in (1, 17, 39):
            stream = model._stream(ids, None, max_tokens=40, **how)
            assert [(c.token, c.logprob, c.finish) for c in (next(stream) for _ in range(cut))] == want[:cut]
            kept = stream.capsule()
            assert kept.tier == "device" and kept.positions == 70 + cut - 1 and len(kept.tokens) == 70 + cut and kept.bytes > 0
            assert tokens_of(stream) == want[cut:], "who is looked at goes on"
            for one in (kept, kept.fork()):
                again = model.restore(one)
                assert tokens_of(again) == want[cut:]
                assert again.cache()[0] == 70 + cut - 1, "nothing is computed twice"
            one = again = None
            kept.save(path, key=KEY)
            assert (path.stat().st_mode & 0o777) == 0o600
            host = kept.fork().to_host()
            kept.close()
            assert (host.tier, kept.tier) == ("host", "none") and tokens_of(model.restore(host)) == want[cut:]
    with load(PATH, precision, context=128, max_batch=3) as other:
        again = other.restore(path, key=KEY)
        assert tokens_of(again) == want[39:] and again.cache()[0] == 108
        assert other._live.pending() == 0


def test_capsules_of_what_goes_on_from_capsules():
    with load(PATH, "f32", context=128, max_batch=2) as model:
        want = tokens_of(model._stream(IDS[:50], None, max_tokens=30, temperature=1.0, seed=5))
        stream, got = model._stream(IDS[:50], None, max_tokens=30, temperature=1.0, seed=5), []
        while len(got) < 29:
            got.append(next(stream))
            stream = model.restore(stream.capsule())
        assert [(c.token, c.logprob, c.finish) for c in got] + tokens_of(stream) == want
        with pytest.raises(vivace.InvalidArgumentError, match="this answer is over"):
            stream.capsule()


def test_a_full_pool_and_what_stays_free():
    """Capsules hold blocks up to a bound; the next ones are copies on the host, and answers find room all the same."""
    with load(PATH, "f32", context=128, max_batch=2) as model:
        kept = []
        for i in range(4):
            stream = model._stream(IDS[i:i + 60], None, max_tokens=8)
            next(stream)
            kept.append(stream.capsule())
            stream.close()
        assert {c.tier for c in kept} == {"device", "host"}
        for i in range(3):
            assert len(model.generate_ids(IDS[i:i + 90], max_tokens=30, seed=i).tokens) == 30
        for c in kept:
            assert model.restore(c).cache is not None and len(tokens_of(model.restore(c))) == 7
        kept = c = None
        model.generate_ids(IDS[:3], max_tokens=2)
        count, available, _ = model._live.blocks()
        assert available == count
    with load(PATH, "f32", context=128, num_kv_blocks=0) as model:
        stream = model._stream(IDS[:20], None, max_tokens=5)
        next(stream)
        with pytest.raises(vivace.UnsupportedError, match="num_kv_blocks"):
            stream.capsule()


@pytest.mark.parametrize("seed", range(3))
def test_blocks_that_lie_apart(seed):
    """Copies go by neighbours: whatever order a sequence's blocks are in, where they were and where they come to."""
    draw = random.Random(seed)
    with load(PATH, "f32", context=128, max_batch=5, num_kv_blocks=16) as model:
        def crowd():
            streams = [model._stream([draw.randrange(3, 190) for _ in range(draw.randrange(1, 68))], None, max_tokens=60, salt=f"{draw.random()}") for _ in range(4)]
            for s in draw.sample(streams, 4):
                for _ in range(draw.randrange(60)):
                    next(s)
                if draw.random() < 0.5:
                    s.close()
            return streams

        for turn in range(3):
            others = crowd()
            prompt = [draw.randrange(3, 190) for _ in range(draw.randrange(66, 100))]
            want = tokens_of(model._stream(prompt, None, max_tokens=20, salt=f"alone {turn}", reuse=False))
            stream = model._stream(prompt, None, max_tokens=20, salt=f"{turn}")
            got = [next(stream) for _ in range(10)]
            kept = stream.capsule().to_host()
            stream.close()
            del others
            held = crowd()
            live, place = model._live, f"elsewhere {turn}".encode()
            blocks = _core.write_snapshot(live, place, kept.tokens, kept.positions, kept._pure, kept._host)
            assert _core.take_snapshot(live, place, kept.tokens).positions == kept.positions
            assert _core.take_snapshot(live, place, kept.tokens).read().copy() == kept._host.copy()
            again = model._stream(kept.tokens, None, max_tokens=10, salt=place.decode())
            assert [(c.token, c.logprob, c.finish) for c in got] + tokens_of(again) == want
            del held, blocks


def test_what_is_dearer():
    for rates, size, tokens, want in [((0.0, 0.0, 0), 10, 10, False), ((1e-3, 1e-9, 2), 10**9, 1, False), ((1e-3, 1e-9, 3), 10**9, 999, True), ((1e-3, 1e-9, 3), 10**9, 1000, True), ((1e-3, 1e-9, 3), 10**9, 1001, False),
                                      ((0.0, 1e-9, 3), 10**9, 1, False)]:
        assert capsule.dearer(rates, size, tokens) == want, (rates, size, tokens)


def test_capsules_come_back_where_that_is_cheaper(monkeypatch):
    """What it costs is measured; a capsule that is there already is not brought again; one that is dearer is computed, and the answer says so."""
    with load(PATH, "f32", context=128, max_batch=2) as model:
        assert model._live.rates() == (0.0, 0.0, 0)
        stream = model._stream(IDS[:100], None, max_tokens=20, salt="mine")
        want = tokens_of(stream)
        assert model._live.rates()[0] > 0 and model._live.rates()[2] == 0
        stream = model._stream(IDS[:100], None, max_tokens=20, salt="mine")
        first = [next(stream) for _ in range(3)]
        kept = stream.capsule().to_host()
        stream.close()
        assert [c.token for c in first] == [t for t, _, _ in want[:3]]

        def again(restores):
            got = model.restore(kept)
            assert tokens_of(got) == want[3:]
            assert model._live.rates()[2] == restores
            return got.cache()[0], got.cache()[2]

        def forget():
            for i in range(4):
                model.generate_ids([7 + i, *IDS[:120]], max_tokens=8, salt=f"other {i}")

        assert again(0)[0] == 102, "all of it is there still"
        for n in range(1, 4):
            forget()
            assert again(n)[0] == 102
        assert model._live.rates()[1] > 0
        asked = []
        monkeypatch.setattr(capsule, "dearer", lambda *a: asked.append(a) or True)
        forget()
        cached, miss = again(3)
        assert cached < 102 and miss == "dearer"
        [(rates, size, missing)] = asked
        assert rates[0] > 0 and rates[1:] == model._live.rates()[1:] and size == kept.bytes and missing == 102 - cached


def test_a_session_forks_and_comes_back(tmp_path):
    path = tmp_path / "talk"
    with vivace.load_model(NAME, device="cpu", context=1024, max_batch=3) as model:
        chat = model.session(system="You answer in few words.", max_tokens=12, temperature=0.7, seed=4)
        empty = chat.capsule()
        first = chat.send("Name a colour.").text
        kept = chat.capsule()
        want = chat.send("Another one?")
        forks = [model.restore(kept), model.restore(kept.fork())]
        for fork in forks:
            got = fork.send("Another one?")
            assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs) and fork.messages == chat.messages
        assert forks[0].send("And a fruit?").tokens == forks[1].send("And a fruit?").tokens
        assert model.restore(empty).send("Name a colour.").text == first
        kept.save(path, key=KEY)
    with vivace.load_model(NAME, device="cpu", context=1024) as other:
        chat = other.restore(path, key=KEY)
        got = chat.send("Another one?")
        assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs) and got.cached_tokens >= len(kept.tokens) - 1


@pytest.mark.parametrize("grammar", [dict(json_schema={"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}}, "required": ["name", "age"], "additionalProperties": False}),
                                     dict(regex="[a-f]{3}-[0-9]{4}")], ids=lambda g: next(iter(g)))
def test_grammars_go_on(grammar):
    with vivace.load_model(NAME, device="cpu", context=256, max_batch=2) as model:
        ask = dict(max_tokens=40, temperature=1.0, seed=2, **grammar)
        whole = [(c.token, c.text) for c in model.stream("Say it.", **ask)]
        for cut in range(1, len(whole) - 1, 3):
            stream = model.stream("Say it.", **ask)
            said = "".join(next(stream).text for _ in range(cut))
            rest = [(c.token, c.text) for c in model.restore(stream.capsule())]
            assert rest == whole[cut:] or [t for t, _ in rest if t is not None] == [t for t, _ in whole[cut:] if t is not None]
            assert said + "".join(t for _, t in rest) == "".join(t for _, t in whole)
            stream.close()


def test_text_goes_on_inside_a_character_and_a_stop_string():
    with vivace.load_model(NAME, device="cpu", context=256, max_batch=2) as model:
        ask = dict(max_tokens=24, temperature=1.4, seed=21)
        want = [c.text for c in model.stream("Write emoji 🎨🙂 颜色", **ask)]
        stop = "".join(want)[30:34]
        stopped = "".join(c.text for c in model.stream("Write emoji 🎨🙂 颜色", **ask, stop=[stop]))
        for cut in range(1, 10):
            stream = model.stream("Write emoji 🎨🙂 颜色", **ask)
            said = [next(stream).text for _ in range(cut)]
            assert said + [c.text for c in model.restore(stream.capsule())] == want
            stream = model.stream("Write emoji 🎨🙂 颜色", **ask, stop=[stop])
            chunks = list(itertools.islice(stream, cut))
            if "".join(c.text for c in chunks) == stopped:  # met: nothing but that is left to say
                with pytest.raises(vivace.InvalidArgumentError, match="over"):
                    stream.capsule()
            else:
                assert "".join(c.text for c in [*chunks, *model.restore(stream.capsule())]) == stopped
            stream.close()


def test_what_cannot_be_kept(tmp_path):
    with load(PATH, "f32", context=128, max_batch=2, logit_bias=True) as model:
        stream = model._stream(IDS[:20], None, max_tokens=9, mask=lambda tokens: None)
        next(stream)
        with pytest.raises(vivace.InvalidArgumentError, match="mask: a function"):
            stream.capsule()
        stream.close()
        stream = model._stream(IDS[:20], None, max_tokens=9, logit_bias={5: -100.0})
        next(stream)
        kept = stream.capsule()
        assert tokens_of(model.restore(kept)) == tokens_of(stream)
        with load(PATH, "f32", context=128) as other, pytest.raises(vivace.InvalidArgumentError, match="another loaded model"):
            other.restore(kept)
        for wrong in (b"short", "text", b"x" * 1025):
            with pytest.raises(vivace.InvalidArgumentError, match="key"):
                kept.save(tmp_path / "x", key=wrong)
        with pytest.raises(vivace.NotFoundError):
            model.restore(tmp_path / "nothing", key=KEY)
        assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def filed(tmp_path_factory):
    """A model, a file of it, and what it is bound to."""
    path = tmp_path_factory.mktemp("capsules") / "c"
    with load(PATH, "f32", context=128, max_batch=2) as model:
        stream = model._stream(IDS[:70], None, max_tokens=20, temperature=1.0, seed=2)
        for _ in range(5):
            next(stream)
        stream.capsule().save(path, key=KEY)
        stream.close()
        yield model, path, capsule.bound(model)


def test_foreign_files(filed, tmp_path):
    model, path, bound = filed
    with pytest.raises(vivace.CorruptDataError, match="seal"):
        model.restore(path, key=KEY + b"!")
    for what, fields in (("model", {"model": bytes(32)}), ("precision plan", {"plan": bytes(32)}), ("build", {"build": bytes(32)}), ("positions", {"page": 32}), ("bytes", {"block_bytes": bound.block_bytes * 2})):
        with pytest.raises(vivace.InvalidArgumentError, match=what):
            capsule_file.decode(path.read_bytes(), capsule_file.Bound(**vars(bound) | fields), KEY, "c")
    for precision in ("bf16",):
        with load(PATH, precision, context=128) as other, pytest.raises(vivace.InvalidArgumentError, match="another precision plan"):
            other.restore(path, key=KEY)
    content = capsule_file.read(path, bound, KEY)
    capsule_file.save(tmp_path / "old", capsule_file.Content(**vars(content) | {"expires": 1}), bound, KEY)
    with pytest.raises(vivace.InvalidArgumentError, match="time is over"):
        model.restore(tmp_path / "old", key=KEY)
    data = bytearray(path.read_bytes())
    data[8] = 2
    with pytest.raises(vivace.UnsupportedError, match="version 2"):
        capsule_file.decode(bytes(data), bound, KEY, "c")


def test_files_that_are_cut_or_changed(filed):
    """Every byte of the head, every place of a cut, many of the rest: an error of a kind, and never what was not sealed."""
    _, path, bound = filed
    data, r = path.read_bytes(), random.Random(3)
    places = [*range(capsule_file.HEADER.size + 32 + 3 * capsule_file.SECTION.size), *(r.randrange(len(data)) for _ in range(200))]
    want, same = capsule_file.decode(data, bound, KEY, "c"), 0
    for at in places:
        changed = bytearray(data)
        changed[at] ^= 1 << r.randrange(8)
        try:
            same += capsule_file.decode(bytes(changed), bound, KEY, "c") == want  # between sections nothing is read
            assert at > capsule_file.HEADER.size + 32 + 3 * capsule_file.SECTION.size
        except (vivace.CorruptDataError, vivace.UnsupportedError):
            pass
    for length in [*range(0, 400), *(r.randrange(len(data)) for _ in range(100))]:
        with pytest.raises(vivace.CorruptDataError):
            capsule_file.decode(data[:length], bound, KEY, "c")
    with pytest.raises(vivace.CorruptDataError):
        capsule_file.decode(data + b"\0", bound, KEY, "c")


def test_files_of_who_has_the_key(filed, tmp_path):
    """Sealed all the same: numbers of any size in header, table and state are errors, nothing is read beyond the file, and what is taken fits the model."""
    import hmac

    model, path, bound = filed
    data, r, errors = path.read_bytes(), random.Random(9), set()
    header, table = capsule_file.HEADER, 3 * capsule_file.SECTION.size
    for _ in range(1500):
        changed = bytearray(data)
        for _ in range(r.randint(1, 3)):
            at = r.choice([*range(8, 24), *range(120, header.size), *range(header.size + 32, header.size + 32 + table)])
            size = r.choice([1, 4, 8])
            changed[at:at + size] = r.choice([bytes(size), b"\xff" * size, struct.pack("<q", r.randrange(1 << 62))[:size]])
        changed = bytes(changed[:len(data)])
        mac = hmac.digest(KEY, changed[:header.size] + changed[header.size + 32:header.size + 32 + table], "sha256")
        try:
            got = capsule_file.decode(changed[:header.size] + mac + changed[header.size + 32:], bound, KEY, "c")
            assert got.pure <= got.positions <= len(got.tokens) and len(got.blocks) == -(-got.positions // bound.page) * bound.block_bytes
        except vivace.Error as e:
            errors.add(type(e).__name__)
    assert errors >= {"CorruptDataError", "InvalidArgumentError"}
    content = capsule_file.read(path, bound, KEY)
    good = content.state
    for state in ({}, {"kind": "robot"}, good | {"drawn": -1}, good | {"drawn": 1 << 40}, good | {"max_tokens": "9"}, good | {"options": []}, good | {"options": {"temperature": "hot"}}, good | {"options": {"nothing": 1}},
                  good | {"max_tokens": 10**9}, {"kind": "session", "options": {}, "system": [], "turns": [5], "prompt": [], "forgotten": 0}):
        capsule_file.save(tmp_path / "s", capsule_file.Content(**vars(content) | {"state": state}), bound, KEY)
        with pytest.raises((vivace.CorruptDataError, vivace.LimitExceededError)):
            model.restore(tmp_path / "s", key=KEY)
    for tokens in ([1 << 20] * len(content.tokens), [-1] * len(content.tokens)):
        capsule_file.save(tmp_path / "t", capsule_file.Content(**vars(content) | {"tokens": tokens}), bound, KEY)
        with pytest.raises(vivace.InvalidArgumentError, match="outside the"):
            model.restore(tmp_path / "t", key=KEY)
    assert json.dumps(good) and model._live.pending() == 0


def test_a_full_disk(filed, tmp_path):
    """An error of a kind, nothing is left of the file, what was there before stays, and the model goes on."""
    model, path, bound = filed
    content, old = capsule_file.read(path, bound, KEY), tmp_path / "old"
    old.write_bytes(b"of before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in (0, 1, 4096, path.stat().st_size - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            for target in (old, tmp_path / "new"):
                with pytest.raises(vivace.IoError, match=target.name):
                    capsule_file.save(target, content, bound, KEY)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in tmp_path.iterdir()] == ["old"] and old.read_bytes() == b"of before"
    mode = os.stat("/dev/full").st_mode
    with pytest.raises(vivace.IoError, match="No space left"):
        capsule_file.save("/dev/full", content, bound, KEY)
    assert os.stat("/dev/full").st_mode == mode
    capsule_file.save(old, content, bound, KEY)
    assert old.read_bytes()[:120] == path.read_bytes()[:120] and len(tokens_of(model.restore(old, key=KEY))) == 15


def test_the_key_is_this_users_own(filed, tmp_path, monkeypatch):
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path / "cache" / "x"))
    key = capsule_file.own_key()
    assert len(key) == 32 and capsule_file.own_key() == key
    [file] = tmp_path.rglob("capsule.key")
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(vivace.InvalidArgumentError, match="chmod 600"):
        capsule_file.own_key()
