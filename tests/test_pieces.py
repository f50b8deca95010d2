"""engine/text: SentencePiece in C++. tests/fixtures/pieces holds small models of the kinds that checkpoints have, trained with
the sentencepiece library, and what that library makes of texts and of rows of ids."""
import json
import os
import random
import struct
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import vivace
from tests.packed import packed_file, packed_json
from vivace import _core
from vivace.text import load_text

FIXTURES = Path(__file__).parent / "fixtures"
MODELS = ["llama", "paligemma", "unigram"]
TEXTS = (FIXTURES / "text/founding.txt").read_text()
ALPHABETS = ["ab 1\n", " \t\r\n'sStT", "a1 .,'\n\u00a0\u2581", "".join(chr(c) for c in (*range(0x20, 0x250), 0x301, 0x4e00, 0xac00, 0x1f600, 0x2003, 0xfb01)), "etaoin shrdlu ,.",
             ["the ", "gov", "<sep>", "<loc0000>", "\u2581\u2581", " ", "ment", "tion", "\n", "ab"]]


def stored_model(name):
    path = FIXTURES / f"pieces/{name}.model"
    return packed_file(path) if name == "unigram" else path


def strings(count, seed):
    draw, words = random.Random(seed), TEXTS.split()
    for i in range(count):
        kind = i % 8
        yield " ".join(draw.choice(words) for _ in range(draw.randrange(1, 9))) if kind > 5 else "".join(draw.choice(ALPHABETS[kind]) for _ in range(draw.randrange(1, 24)))


@pytest.fixture(params=MODELS)
def stored(request):
    return _core.load_tokenizer(str(stored_model(request.param))), packed_json(FIXTURES / f"pieces/{request.param}.json")


def test_ids_and_texts_are_the_librarys(stored):
    ours, want = stored
    assert ours.size() == want["pieces"]
    for text, ids, back in want["cases"]:
        assert ours.encode(text.encode()) == ids, text
        assert ours.decode(ids).decode() == back, text
    for ids, back in want["rows"]:
        assert ours.decode(ids).decode() == back, ids


@pytest.mark.parametrize("name", MODELS)
def test_random_strings(name):
    sentencepiece = pytest.importorskip("sentencepiece")
    library, ours = sentencepiece.SentencePieceProcessor(model_file=str(stored_model(name))), _core.load_tokenizer(str(stored_model(name)))
    for text in strings(int(os.environ.get("VIVACE_PIECES_STRINGS", "4000")), 1):
        want = library.encode(text)
        assert ours.encode(text.encode()) == want, text
        assert ours.decode(want).decode() == library.decode(want), text


def test_names_of_control_tokens():
    ours = _core.load_tokenizer(str(FIXTURES / "pieces/llama.model"))
    assert ours.find("<s>") == 1 and ours.find("nothing like it") == -1
    assert 1 not in ours.encode(b"<s>a</s>") and ours.encode(b"<s>a</s>", True) == [1, *ours.encode(b"a"), 2]


@pytest.mark.parametrize("name", ["plain", "prefix"])
def test_gguf(name):
    """As the tokenizer that Python builds of the same file, which is held to the sentencepiece library by test_spm.py."""
    path = str(FIXTURES / f"spm/{name}.gguf")
    want, ours = load_text("", _core.read_metadata(path)), _core.load_tokenizer(path)
    for text in ["", " ", "<s>a b</s>", "x<s>", TEXTS, *(s for s, _ in packed_json(FIXTURES / f"spm/{name}.json")["cases"]), *strings(1500, 2)]:
        for special in (False, True):
            assert ours.encode(text.encode(), special) == want.encode(text, special=special), text


@pytest.fixture(scope="module", params=["plain", "prefix", "cut"])
def listed(request, tmp_path_factory):
    """A tokenizer.json as hubs make it of a SentencePiece model: BPE whose merges are listed, bytes for what is unknown."""
    tok = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    replace = normalizers.Replace(" ", "\u2581")
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace]) if request.param == "prefix" else replace
    if request.param == "cut":
        tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("\u2581", "merged_with_next"), pre_tokenizers.Split(Regex("[,;:\n]"), "isolated")])
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()] + ([decoders.Strip(" ", 1, 0)] if request.param == "prefix" else []))
    tok.train_from_iterator(TEXTS.split("\n"), trainers.BpeTrainer(vocab_size=900, special_tokens=["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{b:02X}>" for b in range(256))], show_progress=False))
    data = json.loads(tok.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x") and t["content"] != "<unk>"]
    tok = Tokenizer.from_str(json.dumps(data))
    tok.add_tokens([AddedToken("<loc0000>", normalized=False)])
    folder = tmp_path_factory.mktemp(request.param)
    tok.save(str(folder / "tokenizer.json"))
    return tok, folder


def test_tokenizer_json(listed):
    tok, folder = listed
    ours = _core.load_tokenizer(str(folder))
    for text in ["", TEXTS, "a<loc0000>b <bos>", *strings(4000, 3)]:
        for special in (False, True):
            tok.encode_special_tokens = not special
            want = tok.encode(text, add_special_tokens=False).ids
            assert ours.encode(text.encode(), special) == want, text
            if "\u2581" not in text and not text.startswith(" "):
                assert ours.decode(want).decode() == tok.decode(want, skip_special_tokens=True), text


def test_tokenizer_json_without_bytes():
    """The demonstration's: what is unknown is one token, however long a row of it."""
    folder = str(Path(vivace.__file__).parent / "demo" / "tiny-pi05")
    tok, ours = Tokenizer.from_file(folder + "/tokenizer.json"), _core.load_tokenizer(folder)
    for text in ["", "Task: reach the red ball, State: 12 255 0;\nAction: ", "\u00e9\u00e9 \u00e9,\u00e9", "<unk><bos>", TEXTS, *strings(4000, 5)]:
        for special in (False, True):
            tok.encode_special_tokens = not special
            assert ours.encode(text.encode(), special) == tok.encode(text, add_special_tokens=False).ids, text


def test_which_of_several_counts(listed, tmp_path):
    _, folder = listed
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "model.safetensors").touch()
    assert _core.load_tokenizer(str(tmp_path / "model.safetensors")).size() == _core.load_tokenizer(str(folder)).size()
    (tmp_path / "tokenizer.model").write_bytes((FIXTURES / "pieces/llama.model").read_bytes())
    assert _core.load_tokenizer(str(tmp_path)).find("</s>") == 2
    (tmp_path / "none").mkdir()
    with pytest.raises(vivace.NotFoundError, match="neither tokenizer.model nor tokenizer.json"):
        _core.load_tokenizer(str(tmp_path / "none"))


def test_texts_that_are_none(stored):
    ours, _ = stored
    for bad, at in ((b"a\xff", 1), (b"\xc0\x80", 0), (b"ok\xed\xa0\x80", 2), (b"x\xe2\x82", 1)):
        with pytest.raises(vivace.InvalidArgumentError, match=f"byte {at} of the text"):
            ours.encode(bad)
    for bad in (-1, ours.size()):
        with pytest.raises(vivace.InvalidArgumentError, match="outside"):
            ours.decode([bad])


def test_a_long_text_takes_no_square_time(stored):
    ours, _ = stored
    assert len(ours.encode(b"ab" * 100_000)) > 1000


# ---- models that are none ----

def field(number, wire, body):
    return bytes([number << 3 | wire]) + (struct.pack("B", len(body)) + body if wire == 2 else body)


def entry(text=b"a", score=0.0, kind=1):
    return field(1, 2, field(1, 2, text) + field(2, 5, struct.pack("<f", score)) + field(3, 0, bytes([kind])))


UNK = entry(b"<unk>", 0, 2)


@pytest.mark.parametrize("data, error, what", [
    (b"", vivace.CorruptDataError, "without pieces"),
    (b"\xff" * 11, vivace.CorruptDataError, "more than 64 bits"),
    (b"\x80", vivace.CorruptDataError, "cut off"),
    (b"\x0a\x7fab", vivace.CorruptDataError, "field 1 has 127 bytes, 2 are left"),
    (b"\x0b", vivace.CorruptDataError, "wire type 3"),
    (UNK + entry() + entry(), vivace.CorruptDataError, "two pieces are 'a'"),
    (UNK + entry(b"\xff"), vivace.CorruptDataError, "piece 1 is no UTF-8"),
    (UNK + entry(b""), vivace.CorruptDataError, "piece 1 is empty"),
    (UNK + b"".join(field(1, 2, field(1, 2, b"%x" % i)) for i in range(310_000)), vivace.LimitExceededError, r"piece 30\d{4} of 5 bytes: at most 30"),
    (UNK + entry(kind=9), vivace.CorruptDataError, "of kind 9"),
    (UNK + entry(score=float("nan")), vivace.CorruptDataError, "no number"),
    (UNK + entry() + b"\x12\x02\x18\x03", vivace.UnsupportedError, "of type 3: wanted unigram"),
    (UNK + entry() + b"\x12\x03\xc0\x01\x01", vivace.UnsupportedError, "spaces behind words"),
    (UNK + entry() + b"\x1a\x02\x28\x00", vivace.UnsupportedError, "spaces stay spaces"),
    (UNK + entry() + b"\x1a\x04\x12\x02ab", vivace.CorruptDataError, "hold no trie"),
    (UNK + entry() + b"\x1a\x8c\x10\x12\x89\x10" + struct.pack("<II", 4, 0) + b"a" * 2048 + b"\0", vivace.LimitExceededError, "makes 2048 bytes, at most 1024"),
])
def test_models_that_are_none(tmp_path, data, error, what):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(error, match=what):
        _core.load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("name", ["paligemma", "unigram"])
def test_cut_off_and_changed_models(tmp_path, name):
    """Cut or changed, a model is read or refused with a typed error; what is read, encodes."""
    good, draw = stored_model(name).read_bytes(), random.Random(4)
    file, read = tmp_path / "tokenizer.model", 0
    for i in range(400):
        data = bytearray(good[: draw.randrange(1, len(good))] if i % 4 == 0 else good)
        for _ in range(draw.randrange(1, 6)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        file.write_bytes(bytes(data))
        try:
            ours = _core.load_tokenizer(str(file))
        except vivace.Error:
            continue
        read += 1
        ours.decode(ours.encode("put the red block\u3000\uff21 <loc0000>\n\u0301".encode()))
    assert read > 10


@pytest.mark.parametrize("change, error, what", [
    (lambda j: j["model"].update(type="Unigram"), vivace.UnsupportedError, "got Unigram"),
    (lambda j: j["model"].update(ignore_merges=True), vivace.UnsupportedError, "ignore_merges"),
    (lambda j: j.update(normalizer={"type": "Lowercase"}), vivace.UnsupportedError, "normalizer: Lowercase"),
    (lambda j: j.update(normalizer=None), vivace.UnsupportedError, "normalizer: none"),
    (lambda j: j.update(pre_tokenizer={"type": "Whitespace"}), vivace.UnsupportedError, "pre_tokenizer: Whitespace"),
    (lambda j: j.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "[e]"}, "behavior": "Isolated", "invert": False}), vivace.UnsupportedError, "it cuts the piece"),
    (lambda j: j.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": False}), vivace.UnsupportedError, "a Split at"),
    (lambda j: j["model"]["merges"].append(["zzzz", "q"]), vivace.CorruptDataError, "not in the vocabulary"),
    (lambda j: j["model"]["vocab"].update(again=0), vivace.CorruptDataError, "two tokens have id 0"),
    (lambda j: j["model"]["vocab"].update(far=1 << 40), vivace.CorruptDataError, "outside"),
    (lambda j: j["added_tokens"].append({"id": 5, "content": "w", "lstrip": True}), vivace.UnsupportedError, "with lstrip"),
    (lambda j: j["added_tokens"].extend([{"id": 5, "content": "w"}, {"id": 5, "content": "<|v|>"}]), vivace.CorruptDataError, "two added tokens have id 5"),
])
def test_what_is_refused(listed, tmp_path, change, error, what):
    data = json.loads((listed[1] / "tokenizer.json").read_text())
    change(data)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(error, match=what):
        _core.load_tokenizer(str(tmp_path))
