"""Whatever a file says, reading it takes at most 4 x the files + 64 MB: measured, a process a case.

A case writes files and names what reads them; the reader answers or raises a vivace.Error. The process is forked when all
is imported, so that its peak above the start is the reader's own.
"""
import ctypes
import gc
import itertools
import json
import os
import shutil
import string
import struct

import pytest

import vivace
from tests.test_model import FIXTURES, open_core
from vivace import _core, template
from vivace.text import load_text

import jinja2  # noqa: F401  what readers import on first use is no part of what they take
import tokenizers  # noqa: F401

M, ROOM = 1_000_000, 64 << 20
EMPTY = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}


def peak() -> int:
    """Bytes: the largest resident set so far."""
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10


def taken(read) -> tuple[int, str]:
    """Peak bytes above the start of `read` in a child, and how it ended."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # free memory that a child could use again would hide what it takes
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        end, before = "died", peak()
        try:
            read()
            end = "read"
        except vivace.Error as e:
            end = f"{type(e).__name__}: {e}"[:300]
        except BaseException as e:  # the parent must hear of it, whatever it is
            end = f"unexpected {type(e).__name__}: {e}"[:300]
        finally:
            os.write(theirs, json.dumps([peak() - before, end]).encode())
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as f:
        answer = f.read()
    os.waitpid(child, 0)
    assert answer, "the reader's process died"
    return tuple(json.loads(answer))


def holds(read, files, ends: str) -> None:
    size = sum(f.stat().st_size for f in files if f.is_file())
    used, end = taken(read)
    assert used <= 4 * size + ROOM, f"{used / M:.1f} MB for files of {size / M:.1f} MB: {end}"
    assert end == "read" or "Error: " in end and not end.startswith("unexpected"), end
    assert end.startswith(ends), end


def step(path):
    core = open_core(path, context=16, max_batch=1, prefill_chunk=4)
    core.start(0)
    core.step([(1, 0, 0, True)])


# -- JSON: the header of safetensors, the index of shards, config.json ------------------------------------------------

def tensors(count, shape="0", size=0):
    row = '"%x":{"dtype":"F32","shape":[%s],"data_offsets":[%d,%d]}'
    return "{" + ",".join(row % (i, shape, i * size, (i + 1) * size) for i in range(count)) + "}"


JSON = {
    "objects in objects": lambda: '{"a":' * (5 * M),
    "arrays in arrays": lambda: '{"a":' + "[" * (10 * M),
    "many numbers": lambda: '{"a":[' + "0," * (10 * M) + "0]}",
    "as many values as are read": lambda: '{"a":[' + "0            ," * (2 * M) + "0]}",
    "empty objects": lambda: '{"a":[' + "{}," * (7 * M) + "{}]}",
    "many keys": lambda: "{" + ",".join(f'"{i:x}":0' for i in range(2 * M)) + "}",
    "one long string": lambda: '{"a":"' + "x" * (30 * M) + '"}',
    "escapes": lambda: '{"a":"' + "\\n" * (10 * M) + '"}',
    "metadata": lambda: '{"__metadata__":{' + ",".join(f'"{i:05x}":"\\n"' for i in range(60000)) + "}}",
    "more metadata than is read": lambda: '{"__metadata__":{' + ",".join(f'"{i:07x}":"{i:07x}"' for i in range(M)) + "}}",
    "empty tensors": lambda: tensors(50_000),
    "more empty tensors": lambda: tensors(140_000),
    "tensors of rank 8": lambda: tensors(100_000, "1,1,1,1,1,1,1,1", 4),
    "a huge shape": lambda: tensors(3, ",".join(["9223372036854775807"] * 8)),
}


@pytest.mark.parametrize("name", JSON)
def test_json(tmp_path, name):
    body = JSON[name]().encode()
    weights = FIXTURES / "tiny" / "llama" / "model.safetensors"
    for kind in ("header", "index", "config"):
        folder = tmp_path / kind
        folder.mkdir()
        if kind == "header":
            (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(body)) + body + bytes(400_000 if "rank 8" in name else 0))
        elif kind == "index":
            (folder / "model.safetensors.index.json").write_bytes(body)
        else:
            shutil.copy(weights, folder / "model.safetensors")
            (folder / "config.json").write_bytes(body)
        for read in (_core.read_tensors, _core.read_metadata, step):
            holds(lambda: read(str(folder)), folder.iterdir(), "")
        shutil.rmtree(folder)


# -- GGUF -------------------------------------------------------------------------------------------------------------

def text(s: bytes) -> bytes:
    return struct.pack("<Q", len(s)) + s


def strings(key, items):
    return text(key) + struct.pack("<IIQ", 9, 8, len(items)) + b"".join(text(s) for s in items)


def numbers(key, kind, raw, count):
    return text(key) + struct.pack("<IIQ", 9, kind, count) + raw


def gguf(path, *pairs, tensors=0, infos=b"", pairs_said=None):
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, len(pairs) if pairs_said is None else pairs_said) + b"".join(pairs) + infos)
    return path


def words(count, letters=3):
    return [bytes(w) for w in itertools.islice(itertools.product(string.ascii_letters.encode(), repeat=letters), count)]


def vocabulary(count, model=b"gpt2", merges=0, types=1, token=None):
    tokens = [token % i for i in range(count)] if token else words(count)
    yield text(b"tokenizer.ggml.model") + struct.pack("<I", 8) + text(model)
    yield strings(b"tokenizer.ggml.tokens", tokens)
    yield numbers(b"tokenizer.ggml.token_type", 5, struct.pack("<i", types) * count, count)
    yield numbers(b"tokenizer.ggml.scores", 6, struct.pack("<f", -1.0) * count, count)
    if merges:
        yield strings(b"tokenizer.ggml.merges", [t[:1] + b" " + t[1:] for t in itertools.islice(itertools.cycle(tokens), merges)])


GGUF = {
    "a count that is a lie": lambda p: gguf(p, pairs_said=1 << 60),
    "empty strings": lambda p: gguf(p, strings(b"a", [b""] * (3 * M))),
    "short strings": lambda p: gguf(p, strings(b"a", [b"ab"] * (3 * M))),
    "wide strings": lambda p: gguf(p, strings(b"a", ["\U0001f642".encode() + b"a" * 96] * 300_000)),
    "bytes": lambda p: gguf(p, numbers(b"a", 0, bytes(range(256)) * 100_000, 25_600_000)),
    "words": lambda p: gguf(p, numbers(b"a", 4, os.urandom(20 * M), 5 * M)),
    "pairs": lambda p: gguf(p, *(text(b"%05x" % i) + struct.pack("<IB", 0, 1) for i in range(65_000))),
    "tensors": lambda p: gguf(p, tensors=200_000, infos=b"".join(text(b"%05x" % i) + struct.pack("<IIQ", 0, 0, i * 32) for i in range(200_000)) + bytes(200_001 * 32)),
    "one long text": lambda p: gguf(p, text(b"tokenizer.chat_template") + struct.pack("<I", 8) + text("\U0001f642".encode() + b"a" * (20 * M))),
    "a vocabulary": lambda p: gguf(p, *vocabulary(50_000)),
    "a larger vocabulary": lambda p: gguf(p, *vocabulary(600_000, token=b"%06d")),
    "merges": lambda p: gguf(p, *vocabulary(30_000, merges=30_000)),
    "more merges": lambda p: gguf(p, *vocabulary(30_000, merges=600_000)),
    "SentencePiece": lambda p: gguf(p, *vocabulary(60_000, model=b"llama")),
    "pieces with every split": lambda p: gguf(p, text(b"tokenizer.ggml.model") + struct.pack("<I", 8) + text(b"llama"),
                                              strings(b"tokenizer.ggml.tokens", [c * n for c in words(200, 1)[:50] for n in range(1, 300)]),
                                              numbers(b"tokenizer.ggml.scores", 6, struct.pack("<f", -1.0) * (50 * 299), 50 * 299)),
    "control tokens": lambda p: gguf(p, *vocabulary(60_000, types=3, token=b"%080d")),
    "a tokenizer.json inside": lambda p: gguf(p, text(b"tokenizer.ggml.model") + struct.pack("<I", 8) + text(b"no_vocab"),
                                              text(b"tokenizer.huggingface.json") + struct.pack("<I", 8) + text(hub({"model": {"vocab": {f"{i}": i for i in range(400_000)}}}))),
}


def hub(change) -> bytes:
    return json.dumps({**EMPTY, **change, "model": {**EMPTY["model"], **change.get("model", {})}}, separators=(",", ":")).encode()


@pytest.mark.parametrize("name", GGUF)
def test_gguf(tmp_path, name):
    file = GGUF[name](tmp_path / "m.gguf")
    for read in (_core.read_tensors, _core.read_metadata, step, lambda p: load_text(p, _core.read_metadata(p))):
        holds(lambda: read(str(file)), [file], "")


# -- What Python reads beside the weights -----------------------------------------------------------------------------

def token(content, i=0):
    return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def split(pattern):
    return {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}}


PAIRS = [(a, b) for a in string.ascii_letters for b in string.ascii_letters]
TOKENIZERS = {  # name -> (tokenizer.json, whether it is read)
    "ordinary": (lambda: hub({}), True),
    "a vocabulary": (lambda: hub({"model": {"vocab": {w.decode(): i for i, w in enumerate(words(100_000))}}}), True),
    "a larger vocabulary": (lambda: hub({"model": {"vocab": {f"{i}": i for i in range(600_000)}}}), False),
    "merges": (lambda: hub({"model": {"vocab": {c: i for i, c in enumerate([*string.ascii_letters, *map("".join, PAIRS)])}, "merges": [f"{a} {b}" for a, b in PAIRS] * 60}}), True),
    "more merges": (lambda: hub({"model": {"vocab": {c: i for i, c in enumerate([*string.ascii_letters, *map("".join, PAIRS)])}, "merges": PAIRS * 200}}), False),
    "a long token": (lambda: hub({"model": {"vocab": {"x" * (10 * M): 0}}}), True),
    "a long added token": (lambda: hub({"added_tokens": [token("y" * (5 * M))]}), False),
    "long added tokens": (lambda: hub({"added_tokens": [token(f"{i:06d}" * 50, i) for i in range(10_000)]}), False),
    "added tokens": (lambda: hub({"added_tokens": [token(f"<{i}>", i) for i in range(10_000)]}), True),
    "a long pattern": (lambda: hub(split("\\p{L}|" * 300_000)), False),
    "a pattern of the length that is read": (lambda: hub(split("\\p{L}|" * 2_000)), True),
    "a pattern of powers": (lambda: hub(split("(((((a|b|c){50}){50}){50}){50}){50}")), True),
    "normalizers": (lambda: hub({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 300_000}}), False),
    "Unigram": (lambda: hub({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]] + [[w.decode() * 10, -1.0] for w in words(100_000)]}}), False),
    "depth": (lambda: b'{"model":' + b"[" * (5 * M), False),
    "values": (lambda: hub({"model": {"vocab": [[0] * 9] * 300_000}}), False),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizer_json(tmp_path, name):
    body, reads = TOKENIZERS[name]
    (tmp_path / "tokenizer.json").write_bytes(body())
    del body
    holds(lambda: load_text(str(tmp_path), {}), tmp_path.iterdir(), "read" if reads else "LimitExceededError")


@pytest.mark.parametrize("name,body", {
    "arrays": "[" * M, "objects": "[" + "{}," * (4 * M) + "{}]", "numbers": "[" + "0," * (10 * M) + "0]", "a string": '"' + "a" * (20 * M) + '"',
    "a wide string": '{"a": "\U0001f642' + "a" * (20 * M) + '"}', "nested": "[" + ('{"a":' * 400 + "1" + "}" * 400 + ",") * 1000 + "1]"}.items())
@pytest.mark.parametrize("file", ["tokenizer_config.json", "generation_config.json", "chat_template.jinja"])
def test_companions(tmp_path, name, body, file):
    (tmp_path / "tokenizer.json").write_bytes(hub({}))
    (tmp_path / file).write_text(body)
    holds(lambda: load_text(str(tmp_path), {}), tmp_path.iterdir(), "")


def test_a_deep_template_is_bounded_where_it_runs():
    """The template's own process has a limit of its own; nothing of it lands here."""
    source = "{% if 1 %}" * 2000 + "x" + "{% endif %}" * 2000
    used, end = taken(lambda: template.render(source, messages=[]))
    assert used <= 4 * len(source) + ROOM and end.startswith(("LimitExceeded", "CorruptData")), end


@pytest.mark.parametrize("name", ["llama_q4_1", "qwen3_q8_0"])
def test_ordinary_files(name):
    file = FIXTURES / "tiny_gguf" / f"{name}.gguf"
    holds(lambda: step(file), [file], "read")


def test_it_can_fail():
    """The measure sees what a reader takes."""
    used, end = taken(lambda: bytearray(b"x" * (100 << 20)))
    assert used > 95 << 20 and end == "read"
