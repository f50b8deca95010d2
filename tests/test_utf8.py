"""Every decoder of UTF-8 beside Python's own: what malformed bytes become, and at which byte a strict reader stops."""
import json

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import vivace
from vivace import _core

MOST = 4096  # values of one call of the codec
BETWEEN = ord("A")  # ends any sequence: strings beside each other are decoded as alone


def names():
    """GPT-2's character of each byte."""
    printed = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = iter(range(256, 512))
    return [chr(b if b in printed else next(others)) for b in range(256)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bytes")
    tok = Tokenizer(models.BPE(vocab={c: b for b, c in enumerate(names())}, merges=[]))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tok.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def codec(folder):
    """Of codes that are bytes, and no transform: a value is a character's number plus 1."""
    return _core.ActionCodec.open(str(folder / "tokenizer.json"), 1.0, 1)


@pytest.fixture(scope="module")
def pairs(folder):
    return _core.load_byte_pairs(str(folder))


def short_strings():
    """All of one, two and three bytes; of three, those that begin in ASCII are the ones of two."""
    byte = np.arange(256, dtype=np.uint8)
    two = np.stack([np.repeat(byte, 256), np.tile(byte, 256)], 1)
    between = np.full((len(two), 1), BETWEEN, np.uint8)
    yield np.concatenate([np.stack([byte, between[:256, 0]], 1).ravel(), np.concatenate([two, between], 1).ravel()])
    for first in range(0x80, 0x100):
        yield np.concatenate([np.full_like(between, first), two, between], 1).ravel()


def random_strings(count, seed):
    """Bytes where classes meet: both ends of every range that Unicode's table of well-formed sequences has."""
    draw = np.random.default_rng(seed)
    edges = np.uint8([0, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff])
    for _ in range(0, count, 50000):
        each = np.where(draw.random((50000, 7)) < 0.7, draw.choice(edges, (50000, 7)), draw.integers(0, 256, (50000, 7), np.uint8)).astype(np.uint8)
        each[np.arange(7) >= draw.integers(1, 8, 50000)[:, None]] = BETWEEN
        yield each.ravel()


def same(codec, pairs, data):
    text = data.tobytes().decode("utf-8", "replace")
    ids = data.tolist()
    assert pairs.decode(ids) == text.encode()
    assert pairs.decode(ids, streamed=True) == text.encode()
    for at in range(0, len(data), MOST):
        part = data[at:at + MOST]
        want = np.frombuffer(part.tobytes().decode("utf-8", "replace").encode("utf-32-le"), "<u4")
        got = np.float32(codec.decode(ids[at:at + MOST], 1, MOST))
        assert np.array_equal(got[:len(want)], want + np.float32(1)) and not got[len(want):].any()


def test_malformed_bytes_are_replaced_as_python_replaces_them(codec, pairs):
    for data in short_strings():
        same(codec, pairs, data)


def test_random_bytes(codec, pairs):
    for data in random_strings(1_000_000, 5):
        same(codec, pairs, data)


def test_two_that_cannot_go_on(codec, pairs):
    """Overlong and beyond the last plane: their second byte begins nothing and stands for itself."""
    for data in (b"\xe0\x95", b"\xf0\x8d", b"\xed\xa0", b"\xf4\x90"):
        assert codec.decode(list(data), 1, 3) == [0xfffe, 0xfffe, 0]
        assert pairs.decode(list(data)).decode() == pairs.decode(list(data), streamed=True).decode() == "\ufffd\ufffd"
    for data in (b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3"):  # could still go on: one, also where the text ends
        assert codec.decode(list(data), 1, 2) == [0xfffe, 0]
        assert pairs.decode(list(data)).decode() == pairs.decode(list(data), streamed=True).decode() == "\ufffd"


def test_strict_readers_stop_where_python_does(pairs):
    for data in random_strings(50_000, 6):
        for one in data.reshape(-1, 7)[:20_000]:
            one = one.tobytes()
            try:
                one.decode()
            except UnicodeDecodeError as e:
                with pytest.raises(vivace.InvalidArgumentError, match=f"byte {e.start} of the text"):
                    pairs.encode(one)
            else:
                assert pairs.encode(one) == list(one)


def test_json_takes_what_python_takes(tmp_path, folder):
    """A reader of its own, eight bytes at a time: its strings are text for Python, or no file."""
    whole = (folder / "tokenizer.json").read_bytes()
    at = whole.index(b'"model"')
    for data in random_strings(50_000, 7):
        for n, one in enumerate(data.reshape(-1, 7)[:1500]):
            one = b"x" * (n % 9) + bytes(b for b in one.tobytes() if b >= 0x20 and b not in b'"\\')
            (tmp_path / "tokenizer.json").write_bytes(whole[:at] + b'"note": "' + one + b'", ' + whole[at:])
            try:
                one.decode()
            except UnicodeDecodeError:
                with pytest.raises(vivace.CorruptDataError, match="not valid UTF-8"):
                    _core.load_byte_pairs(str(tmp_path))
            else:
                _core.load_byte_pairs(str(tmp_path))
