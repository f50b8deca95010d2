"""SentencePiece tokenizers out of GGUF metadata, against the sentencepiece library's stored answers."""
from pathlib import Path

import pytest

import vivace
from tests.packed import packed_json
from vivace import _core
from vivace.text import load_text

FIXTURES = Path(__file__).parent / "fixtures" / "spm"
NAMES = sorted(p.stem for p in FIXTURES.glob("*.gguf"))


def metadata(name):
    return _core.read_metadata(str(FIXTURES / f"{name}.gguf"))


@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_sentencepiece(name):
    text, cases = load_text("", metadata(name)), packed_json(FIXTURES / f"{name}.json")["cases"]
    # To sentencepiece a user's own piece of the form <|...|> is one in every text; here only where names are asked for.
    wrong = [(s, want, got) for s, want in cases if (got := text.encode(s, special="<|turn|>" in s)) != want]
    assert not wrong, f"{len(wrong)} of {len(cases)}, first {wrong[0]}"


@pytest.mark.parametrize("name", NAMES)
def test_ids_give_the_text_back(name):
    text = load_text("", metadata(name))
    for s, ids in packed_json(FIXTURES / f"{name}.json")["cases"]:
        if "\u2581" in s:
            continue  # means a space
        assert text.decode(ids) == s
        step = text.stream()
        streamed = "".join(step(i) for i in ids)
        assert s.startswith(streamed) or streamed.lstrip(" ") == s.lstrip(" "), (s, streamed)


def test_special_names_in_text_stay_text():
    marked = load_text("", metadata("plain"))
    assert marked.tokenizer.token_to_id("<|turn|>") not in marked.encode("a<|turn|>b") and marked.decode(marked.encode("a<|turn|>b")) == "a<|turn|>b"
    text = load_text("", metadata("prefix"))
    assert text.bos not in text.encode("<s>") and text.encode("<s>", special=True) == [text.bos]
    assert text.prompt_ids("x")[0] == text.bos


@pytest.mark.parametrize("changes,error,match", [
    ({"tokenizer.ggml.scores": None}, vivace.CorruptDataError, "scores: wanted 700 entries, got none"),
    ({"tokenizer.ggml.scores": [0.0]}, vivace.CorruptDataError, "scores: wanted 700 entries, got 1"),
    ({"tokenizer.ggml.token_type": [1]}, vivace.CorruptDataError, "token_type: wanted 700"),
    ({"tokenizer.ggml.tokens": []}, vivace.CorruptDataError, "tokens"),
    ({"tokenizer.ggml.tokens": ["a"] * 700}, vivace.CorruptDataError, "699 duplicates"),
    ({"tokenizer.ggml.unknown_token_id": 700}, vivace.CorruptDataError, "unknown_token_id: wanted a token, got 700"),
    ({"tokenizer.ggml.model": "t5"}, vivace.UnsupportedError, "got 't5'"),
])
def test_bad_metadata(changes, error, match):
    meta = {k: v for k, v in {**metadata("prefix"), **changes}.items() if v is not None}
    with pytest.raises(error, match=match):
        load_text("", meta)


def test_a_token_too_long_to_split_is_refused():
    meta = metadata("prefix")
    meta["tokenizer.ggml.tokens"] = [*meta["tokenizer.ggml.tokens"][:-1], "a" * 5000]
    with pytest.raises(vivace.LimitExceededError, match="5000 characters"):
        load_text("", meta)
