"""engine/text: byte-level BPE in C++ beside the tokenizers library, on tokenizers trained here and a published one."""
import json
import os
import random
import re
import unicodedata
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import vivace
from vivace import _core, fetch
from vivace.text import load_text
from vivace.tokenizer_rules import LLAMA3, QWEN2

TEXTS = (Path(__file__).parent / "fixtures/text/founding.txt").read_text()
EDGES = ["", " ", "  ", "\n", " \n ", "a  b", "a \n\n b", "\t\tx", "it's  It'S I'LL we'Re 'ſx 'd'", "abc123456 7", "１２３ ①②Ⅻ", "x\u00a0\u3000y", "...!?\r\n\r\nz", "日本語テキスト", "a\u2028b",
         "🙂👩‍👩‍👧 ok", "Ünïcödé straße ß", "    indented = [1, 2]\n\n\n", "\r\n", "a\r\rb", "'", "''s", " 's", "\u0085x", "ǅ ʰ ª º", "\U00011de3\U0001d7d8x"]
KINDS = ("gpt2", "digits", "llama3", "qwen2")


def steps(kind):
    if kind in ("gpt2", "digits"):
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        return level if kind == "gpt2" else pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3 if kind == "llama3" else QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    """The library's tokenizer and ours, of the same file."""
    tok = Tokenizer(models.BPE(ignore_merges=request.param == "llama3"))
    if request.param == "qwen2":
        tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer, tok.decoder = steps(request.param), decoders.ByteLevel()
    tok.train_from_iterator([TEXTS, *EDGES], trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tok.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False), AddedToken("<|end|>x", special=True, normalized=False)])
    tok.add_tokens([AddedToken("<tool>", normalized=False)])
    folder = tmp_path_factory.mktemp(request.param)
    tok.save(str(folder / "tokenizer.json"))
    return tok, _core.load_byte_pairs(str(folder)), request.param


def same(tok, ours, text, kind):
    for special in (False, True):
        tok.encode_special_tokens = not special
        if kind == "qwen2" and composes(text):
            with pytest.raises(vivace.UnsupportedError, match="which NFC may change"):
                ours.encode(text.encode(), special)
            continue
        want = tok.encode(text, add_special_tokens=False).ids
        got = ours.encode(text.encode(), special)
        assert got == want, (text, got, want)
        assert ours.decode(got).decode() == tok.decode(want, skip_special_tokens=True)
        assert ours.decode(got, streamed=True).decode() == tok.decode(want, skip_special_tokens=True)


def composes(text):
    return any(unicodedata.combining(c) or unicodedata.normalize("NFC", c) != c or c in "\u0300\u0301\u0308" or 0x1161 <= ord(c) < 0x1176 or 0x11a8 <= ord(c) < 0x11c3 for c in text)


def test_ids_are_the_librarys(pair):
    tok, ours, kind = pair
    for text in [TEXTS, *EDGES, *TEXTS.split("\n"), "a<|end|>x<tool> <|end|><|end", "<|end|>"]:
        same(tok, ours, text, kind)


def test_random_strings(pair):
    """Alphabets where classes meet: spaces, ends of lines, digits, quotes, letters and characters of every class."""
    tok, ours, kind = pair
    draw = random.Random(7)
    alphabets = ["ab 1\n", " \t\r\n'sStT", "a1 .,'\n\u00a0", "".join(chr(c) for c in (*range(0x20, 0x250), 0x4e00, 0x3042, 0xac00, 0x0660, 0x2160, 0x1f600, 0x2003, 0x2028, 0x1d7ce, 0x10400))]
    count = int(os.environ.get("VIVACE_BPE_STRINGS", "6000"))
    for i in range(count):
        alphabet = alphabets[i % 4]
        same(tok, ours, "".join(draw.choice(alphabet) for _ in range(draw.randrange(1, 24))), kind)


def test_every_character_has_the_librarys_class():
    """Cuts of the oracle's pieces around each character, in the split that tells letters, numbers, spaces and others apart."""
    folders = {}
    for kind in ("llama3", "digits"):
        tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
        tok.pre_tokenizer = steps(kind)
        folders[kind] = tok
    classes = {r"\p{L}": set(), r"\p{N}": set(), r"\s": set()}
    every = [chr(c) for c in range(0x110000) if not 0xd800 <= c < 0xe000]
    for pattern, found in classes.items():
        removed = pre_tokenizers.Split(Regex(pattern), "removed")
        for at in range(0, len(every), 4096):
            block = every[at:at + 4096]
            kept = {c for piece, _ in removed.pre_tokenize_str("".join(block)) for c in piece}
            found.update(c for c in block if c not in kept)
    source = (Path(__file__).parent.parent / "vivace/engine/text/unicode.cc").read_text()
    for name, pattern in (("kLetters", r"\p{L}"), ("kNumbers", r"\p{N}")):
        table = re.search(name + r"\[\] = \{(.*?)\n\};", source, re.S)[1]
        ours = {chr(c) for a, b in re.findall(r"\{(0x[0-9a-f]+), (0x[0-9a-f]+)\}", table) for c in range(int(a, 16), int(b, 16) + 1)}
        assert ours == classes[pattern], name


def test_a_long_run_of_letters_takes_no_square_time(pair):
    tok, ours, kind = pair
    same(tok, ours, "ab" * 20_000, kind)


def test_a_published_vocabulary():
    try:
        path = fetch.path_of("smollm2-135m-instruct")
    except vivace.Error:
        pytest.skip("SmolLM2 is not fetched here")
    want, ours = load_text(str(path), _core.read_metadata(str(path))), _core.load_byte_pairs(str(path))
    for text in [TEXTS, *EDGES, "<|im_start|>user\nhi<|im_end|>"]:
        for special in (False, True):
            assert ours.encode(text.encode(), special) == want.encode(text, special=special)
    assert ours.find("<|im_end|>") == want.eos[0] and ours.size() == want.tokenizer.get_vocab_size()


def test_bytes_that_are_no_text(pair):
    tok, ours, _ = pair
    singles = {tok.id_to_token(i): i for i in range(ours.size())}
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    draw = random.Random(3)
    for _ in range(300):
        ids = [singles[draw.choice(names)] for _ in range(draw.randrange(1, 7))]
        assert ours.decode(ids).decode() == tok.decode(ids)
    for bad, at in ((b"a\xff", 1), (b"\xc0\x80", 0), (b"ok\xed\xa0\x80", 2), (b"\xf4\x90\x80\x80", 0), (b"x\xe2\x82", 1)):
        with pytest.raises(vivace.InvalidArgumentError, match=f"byte {at} of the text"):
            ours.encode(bad)
    with pytest.raises(vivace.InvalidArgumentError, match="outside"):
        ours.decode([ours.size()])


@pytest.mark.parametrize("change, error, what", [
    (lambda j: j["model"].update(type="Unigram"), vivace.UnsupportedError, "wanted byte-level BPE, got Unigram"),
    (lambda j: j["model"].update(byte_fallback=True), vivace.UnsupportedError, "byte_fallback"),
    (lambda j: j.update(normalizer={"type": "Lowercase"}), vivace.UnsupportedError, "normalizer: Lowercase"),
    (lambda j: j["pre_tokenizer"].update(add_prefix_space=True), vivace.UnsupportedError, "space before the text"),
    (lambda j: j.update(pre_tokenizer={"type": "Whitespace"}), vivace.UnsupportedError, "pre_tokenizer: Whitespace"),
    (lambda j: j["model"]["merges"].append(["zzzz", "q"]), vivace.CorruptDataError, "not in the vocabulary"),
    (lambda j: j["model"]["merges"].append("one"), vivace.CorruptDataError, "not two words"),
    (lambda j: j["model"]["vocab"].update(again=0), vivace.CorruptDataError, "two tokens have id 0"),
    (lambda j: j["model"]["vocab"].update(far=1 << 40), vivace.CorruptDataError, "outside"),
    (lambda j: j["added_tokens"].append({"id": 5, "content": "w", "lstrip": True}), vivace.UnsupportedError, "with lstrip"),
    # a text with the id of a name that steers: found by fuzz_tokenizer, plain text became the name
    (lambda j: j["added_tokens"].extend([{"id": 5, "content": "w"}, {"id": 5, "content": "<|v|>"}]), vivace.CorruptDataError, "two added tokens have id 5"),
    (lambda j: j.pop("model"), vivace.Error, "model")])
def test_what_is_refused(tmp_path, change, error, what):
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    tok.pre_tokenizer = steps("gpt2")
    data = json.loads(tok.to_str())
    change(data)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(error, match=what):
        _core.load_byte_pairs(str(tmp_path))
