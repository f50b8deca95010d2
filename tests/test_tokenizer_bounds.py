"""A tokenizer that passes the load cannot take the process at the first prompt: time, memory and output of encoding and
decoding are bounded whatever its rules are. The files of the audit, made here."""
import json
import random
import resource
import signal
import struct
import threading
import time

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

import vivace
from vivace import _core, bounded, tokenizer_bounded
from vivace.text import load_text
from vivace.tokenizer_rules import LLAMA3, QWEN2, QWEN35, unusual

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(**parts):
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate([*ALPHABET, "aa"])}, merges=[("a", "a")]))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    for name, value in parts.items():
        setattr(tok, name, value)
    return tok


def saved(tok, folder, change=None):
    data = json.loads(tok.to_str())
    if change:
        change(data)
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return load_text(str(folder), {})


HOSTILE = {
    "lengthens twice": lambda: byte_level(normalizer=normalizers.Sequence([normalizers.Replace("a", "a" * 7000), normalizers.Replace("a", "a" * 7000)])),
    "doubles forty times": lambda: byte_level(normalizer=normalizers.Sequence([normalizers.Replace("a", "aa")] * 40)),
    "cubic pattern": lambda: byte_level(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split(Regex("[^Z]*[^Z]*[Z][Y]"), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)])),
    "lengthens by a pattern": lambda: byte_level(normalizer=normalizers.Replace(Regex("."), "a" * 5000)),
}


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(tokenizer_bounded, "SECONDS", 0.5)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_rules_of_encoding(tmp_path, name, quick):
    text = saved(HOSTILE[name](), tmp_path)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(vivace.LimitExceededError, match="more than|memory|at most|ended the process"):
        text.encode("a" * 3999 + "Z")
    assert time.process_time() - start < 2 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    assert name == "lengthens by a pattern" or text.encode("b")[-1:] == [ALPHABET.index("b")]
    assert any("a process of its own" in n for n in text.notes)  # the next one is served as ever


def test_hostile_rules_of_decoding(tmp_path, quick):
    text = saved(byte_level(decoder=decoders.Sequence([decoders.Replace("a", "aa")] * 40)), tmp_path)
    with pytest.raises(vivace.LimitExceededError):
        text.decode(text.encode("aaaa"))
    step = text.stream()
    with pytest.raises(vivace.LimitExceededError):
        [step(i) for i in text.encode("aaaa")]
    assert text.decode(text.encode("b")) == "b"


def test_hostile_rules_while_added_tokens_are_normalised(tmp_path, quick, monkeypatch):
    """The library normalises added tokens when it reads the file."""
    monkeypatch.setattr(bounded, "START_SECONDS", 3.0)
    tok = byte_level()
    tok.add_tokens([AddedToken("a" * 100, normalized=True)])
    doubles = json.loads(HOSTILE["doubles forty times"]().to_str())["normalizer"]
    with pytest.raises((vivace.LimitExceededError, vivace.CorruptDataError), match="memory|more than|ended the process"):
        saved(tok, tmp_path, lambda d: d.update(normalizer=doubles))


def test_long_unigram_pieces(tmp_path, quick, monkeypatch):
    tok = Tokenizer(models.Unigram([("<unk>", 0.0)] + [("a" * k, -1.0 * k) for k in range(1, 600)], unk_id=0))
    text = saved(tok, tmp_path)
    assert any("a piece of more than 64 characters" in n for n in text.notes)
    assert text.encode("a" * 1000) == tok.encode("a" * 1000).ids
    monkeypatch.setattr(tokenizer_bounded, "SECONDS_A_CHAR", 0.0)
    with pytest.raises(vivace.LimitExceededError, match="more than 0.5 seconds"):
        text.encode("a" * 200_000)


def test_unusual_but_honest_rules_give_the_librarys_ids(tmp_path):
    tok = byte_level(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"[0-9]+|[a-z]+| "), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]),
                     normalizer=normalizers.Replace("\u00df", "ss"))
    tok.add_special_tokens([AddedToken("<|im_end|>", normalized=False)])
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    text = saved(tok, tmp_path)
    draw = random.Random(5)
    for _ in range(100):
        s = "".join(draw.choice(["aa", "a", " ", "1", "\u00df", "\u65e5", "\U0001f642", "<|im_end|>"]) for _ in range(draw.randrange(12)))
        ids = text.encode(s, special=True)
        assert ids == tok.encode(s).ids and text.decode(ids) == tok.decode(ids)
        step = text.stream()
        assert "".join(step(i) for i in ids).startswith(tok.decode(ids).rstrip("\ufffd"))
    assert text.chat_ids([{"role": "user", "content": "a<|im_end|>a"}]).count(tok.token_to_id("<|im_end|>")) == 1
    assert text.tokenizer.get_vocab_size() == tok.get_vocab_size() and text.tokenizer.id_to_token(0) == tok.id_to_token(0)
    text.tokenizer.save(str(tmp_path / "again.json"))
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_other_threads_and_ctrl_c_go_on_meanwhile(tmp_path, monkeypatch):
    text, beats = saved(HOSTILE["cubic pattern"](), tmp_path), []
    monkeypatch.setattr(tokenizer_bounded, "SECONDS", 30.0)
    text.encode("b")
    stop = threading.Event()

    def beat():
        while not stop.wait(0.005):
            beats.append(time.monotonic())
    thread = threading.Thread(target=beat)
    thread.start()
    signal.setitimer(signal.ITIMER_REAL, 0.6)
    handler = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            text.encode("a" * 3999 + "Z")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        stop.set()
        thread.join()
    assert time.monotonic() - start < 5 and len(beats) > 20
    assert text.encode("b")


def test_a_long_ordinary_text_leaves_the_lock_to_others(tmp_path):
    text, beats, stop = saved(byte_level(), tmp_path), [], threading.Event()

    def beat():
        while not stop.wait(0.001):
            beats.append(1)
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        ids = text.encode("ab c " * 200_000)
    finally:
        stop.set()
        thread.join()
    assert len(ids) == 1_000_000 and len(beats) > 20
    with pytest.raises(vivace.LimitExceededError, match="4194305 characters, at most 4194304 are encoded"):
        text.encode("a" * ((4 << 20) + 1))


def test_the_ordinary_path_stays_fast(tmp_path):
    """An 8,000-character prompt: what is spent beside the library's own call, 0.7 ms of its 2 on a quiet machine. The least
    of paired differences, held to 2 ms or, on a machine that is slower or busy, to the library's own time there."""
    tok = byte_level()
    text, prompt = saved(tok, tmp_path), "What is a word? " * 500
    pairs = [(_timed(lambda: text.encode(prompt)), _timed(lambda: tok.encode(prompt))) for _ in range(25)]
    beside, library = min(ours - theirs for ours, theirs in pairs), min(theirs for _, theirs in pairs)
    assert beside < max(2e-3, library), f"{beside * 1e3:.1f} ms beside the library's call of {library * 1e3:.1f} ms"


def _timed(f):
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def test_published_rules_run_in_this_process():
    for pattern in (LLAMA3, QWEN2, QWEN35):
        tok = byte_level(normalizer=normalizers.NFC(), pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]))
        assert unusual(json.loads(tok.to_str()), {"type": "BPE"}) is None
    spm = dict(normalizer=normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]),
               decoder=decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]))
    assert unusual(json.loads(byte_level(**spm).to_str()), {}) is None


@pytest.mark.parametrize("rules, model, why", [
    ({"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}}, {}, "normalizer: Replace of 'a'"),
    ({"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "a"}}, {}, "normalizer: Replace of"),
    ({"normalizer": {"type": "Replace", "pattern": {"Regex": "a*"}, "content": ""}}, {}, "Replace of 'a*'"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, {}, "normalizer: Precompiled"),
    ({"normalizer": {"type": "Prepend", "prepend": "a" * 17}}, {}, "Prepend"),
    ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 17}}, {}, "17 steps"),
    ({"normalizer": "NFC"}, {}, "normalizer: None"),
    ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(a|a)*b"}}]}]}}, {}, "Split at"),
    ({"pre_tokenizer": {"type": "New"}}, {}, "pre_tokenizer: New"),
    ({"decoder": {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}}, {}, "decoder: Replace"),
    ({"decoder": {"type": "Strip", "content": " ", "start": 1 << 40, "stop": 0}}, {}, "decoder: Strip"),
    ({}, {"type": "WordPiece", "max_input_chars_per_word": 10**9}, "max_input_chars_per_word"),
    ({}, {"type": "BPE", "continuing_subword_prefix": "#" * 999}, "continuing_subword_prefix"),
    ({}, {"type": "Other"}, "model: Other"),
])
def test_what_is_unusual(rules, model, why):
    import re

    assert re.search(re.escape(why), unusual(rules, model))


def test_a_key_that_is_escaped_is_the_same_key(tmp_path):
    tok = HOSTILE["doubles forty times"]()
    source = tok.to_str().replace('"normalizer"', '"n\\u006frmalizer"', 1)
    (tmp_path / "tokenizer.json").write_text(source)
    assert any("normalizer: 40 steps" in n for n in load_text(str(tmp_path), {}).notes)


def test_hostile_rules_inside_gguf(quick):
    text = load_text("", {"tokenizer.ggml.model": "no_vocab", "tokenizer.huggingface.json": HOSTILE["doubles forty times"]().to_str()})
    with pytest.raises(vivace.LimitExceededError):
        text.encode("aaa")


def test_processes_go_with_their_tokenizers(tmp_path):
    text = saved(HOSTILE["doubles forty times"](), tmp_path)
    text.encode("b")
    process = text.tokenizer._process.process
    del text
    import gc
    gc.collect()
    assert process.poll() is not None


# ---- C++: tables that are walked a byte a step, and caps on what a file may put into them ----

def field(number, wire, body):
    head = bytes([number << 3 | wire])
    size = b""
    n = len(body)
    while wire == 2:
        size += bytes([n & 127 | (128 if n > 127 else 0)])
        n >>= 7
        if not n:
            break
    return head + size + body


def pieces(texts, kind=1, model=1):
    """A serialised SentencePiece model: texts with falling scores."""
    entry = lambda text, score, k: field(1, 2, field(1, 2, text) + field(2, 5, struct.pack("<f", score)) + field(3, 0, bytes([k])))  # noqa: E731
    return entry(b"<unk>", 0.0, 2) + b"".join(entry(t, -float(i + 1), kind) for i, t in enumerate(texts)) + field(2, 2, field(3, 0, bytes([model])))


def load(folder, model):
    (folder / "tokenizer.model").write_bytes(model)
    return _core.load_tokenizer(str(folder))


def spent(f):
    start = time.process_time()
    f()
    return time.process_time() - start


def test_cpp_many_added_tokens(tmp_path):
    """100,000 names and 100 KB of text: 20 s before, when each was tried at each byte."""
    data = json.loads(byte_level().to_str())
    first = len(data["model"]["vocab"])
    data["added_tokens"] = [{"id": first + i, "content": f"<t{i}>", "special": i % 2 == 0, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False} for i in range(100_000)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    ours = _core.load_tokenizer(str(tmp_path))
    assert ours.encode(b"<t99999>a<t99998>", True) == [first + 99999, ALPHABET.index("a"), first + 99998] and ours.encode(b"<t99999>") == [first + 99999]
    assert spent(lambda: ours.encode(b"<t9999" * 17_000, True)) < 1 and spent(lambda: ours.encode(b"a" * 100_000)) < 1


@pytest.mark.parametrize("kind, model", [(1, 1), (4, 1), (4, 2), (1, 2), (5, 2)], ids=["unigram", "unigram, user's own", "BPE, user's own", "BPE", "BPE, unused"])
def test_cpp_long_pieces(tmp_path, kind, model):
    """Every a^k: steps a byte are bounded by the longest that is accepted; longer ones are refused."""
    ours = load(tmp_path, pieces([b"a" * k for k in range(1, 1024)], kind, model))
    assert spent(lambda: ours.encode(b"a" * 100_000)) < 4
    assert len(ours.encode(b"a" * 100_000)) >= 98
    with pytest.raises(vivace.LimitExceededError, match="60000 bytes"):
        load(tmp_path, pieces([b"a" * 60_000], kind, model))


def test_cpp_names_that_nearly_match(tmp_path):
    """No a^k, but a^k b for every k: each place of a text of a's walks as far as it can."""
    ours = load(tmp_path, pieces([b"a" * k + b"b" for k in range(1, 1000)], 4, 2))
    assert spent(lambda: ours.encode(b"a" * 100_000)) < 4


def test_cpp_bytes_in_all(tmp_path):
    with pytest.raises(vivace.LimitExceededError, match="bytes of tokens that are matched whole, at most 8388608"):
        load(tmp_path, pieces([b"%06d" % i + b"x" * 1000 for i in range(9000)], 4, 2))


def rules(trie, becomes):
    raw = struct.pack(f"<{len(trie)}I", *trie)
    return field(3, 2, field(2, 2, struct.pack("<I", len(raw)) + raw + becomes))


def test_cpp_rules_that_lengthen_or_go_round(tmp_path):
    # A trie that leads from 'a' to itself: without a bound each place of the text walks to the text's end.
    trie = [0] * 256
    trie[0], trie[ord("a")] = 0, ord("a") | ord("a") << 10
    ours = load(tmp_path, pieces([b"a"], 1, 2) + rules(trie, b"\0"))
    assert spent(lambda: ours.encode(b"a" * 100_000)) < 2
    # 'a' becomes a thousand characters.
    trie = [0] * 512
    trie[0], trie[ord("a")] = 0, ord("a") | 1 << 8 | (ord("a") ^ 300) << 10
    trie[300] = 1 << 31
    ours = load(tmp_path, pieces([b"b"], 1, 2) + rules(trie, b"b" * 1000 + b"\0"))
    with pytest.raises(vivace.LimitExceededError, match="rules make more than 16 bytes of one"):
        ours.encode(b"a" * 5000)


def test_cpp_texts_and_tokens_beyond_the_caps(tmp_path):
    ours = load(tmp_path, pieces([b"a"]))
    with pytest.raises(vivace.LimitExceededError, match="at most 67108864 are encoded"):
        ours.encode(b"a" * ((64 << 20) + 1))
    with pytest.raises(vivace.LimitExceededError, match="bytes stand for what is unknown"):
        load(tmp_path, pieces([b"a"]) + field(2, 2, b"\xe2\x02\xb8\x17" + b"x" * 3000))
    data = json.loads(byte_level().to_str())
    data["model"]["vocab"]["x" * 5000] = 999
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(vivace.LimitExceededError, match="of 5000 bytes, at most 4096"):
        _core.load_tokenizer(str(tmp_path / "tokenizer.json"))
