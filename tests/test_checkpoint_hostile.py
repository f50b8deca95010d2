"""Checkpoints that lie: every mutation loads, or raises a vivace.Error that says something. A crash ends the run."""
import json
import random
import resource
import shutil

import pytest

import vivace
from tests.test_model import FIXTURES, HUB, open_core
from vivace import _core
from vivace.text import load_text

GGUFS = ["llama_q4_1", "qwen3_q8_0"]
VALUES = [None, True, -1, 0, 1, 3, 2**31, 2**63 - 1, -(2**63), 1e308, -0.0, 1e-320, "", "x", [], [[]], {}, {"a": 1}, ["sliding_attention"] * 3, "sliding_attention"]


def opens(path) -> bool:
    """Whether it loads and takes a step; errors must be Vivace's own and name something."""
    try:
        core = open_core(path, context=16, max_batch=1, prefill_chunk=4)
        core.start(0)
        core.step([(1, 0, 0, True)])
        return True
    except vivace.Error as e:
        assert len(str(e)) > 10
        return False


def mutate(value, rng):
    """One value of a nested config replaced, removed or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        value, key = dict(value), rng.choice(list(value))
        if isinstance(value[key], (dict, list)) and rng.random() < 0.6:
            value[key] = mutate(value[key], rng)
        elif rng.random() < 0.2:
            del value[key]
        else:
            value[key] = rng.choice(VALUES)
        return value
    if isinstance(value, list) and value and rng.random() < 0.7:
        return value + value if rng.random() < 0.5 else [rng.choice(VALUES), *value[1:]]
    return rng.choice(VALUES)


@pytest.mark.parametrize("name", HUB)
def test_config_values(tmp_path, name):
    shutil.copytree(FIXTURES / "tiny" / name, tmp_path / "m")
    config, rng, loaded = json.loads((tmp_path / "m" / "config.json").read_text()), random.Random(name), 0
    for _ in range(150):
        changed = mutate(config, rng)
        (tmp_path / "m" / "config.json").write_text(json.dumps(changed))
        loaded += opens(tmp_path / "m")
    assert 0 < loaded < 150  # some keys do not matter, most do


@pytest.mark.parametrize("name", GGUFS)
def test_gguf_bytes(tmp_path, name):
    whole, rng = (FIXTURES / "tiny_gguf" / f"{name}.gguf").read_bytes(), random.Random(name)
    head = whole.index(b"blk.0") + 4000  # metadata and tensor table: where bytes have meaning
    for _ in range(250):
        raw = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            raw[rng.randrange(head)] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        if rng.random() < 0.2:
            del raw[rng.randrange(len(raw)):]
        (tmp_path / "m.gguf").write_bytes(raw)
        opens(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["mixtral", "gpt2", "gemma3"])
def test_safetensors_header(tmp_path, name):
    shutil.copytree(FIXTURES / "tiny" / name, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    whole, rng = file.read_bytes(), random.Random(name)
    end = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(150):
        raw = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            raw[rng.randrange(end)] = rng.choice(b'0123456789[]{},":FBIe\\ ')
        file.write_bytes(raw)
        opens(tmp_path / "m")


@pytest.mark.parametrize("name", ["prefix", "plain"])
def test_tokenizer_metadata(name):
    """A tokenizer is built from lists that a file may fill with anything."""
    meta, rng = _core.read_metadata(str(FIXTURES / "spm" / f"{name}.gguf")), random.Random(name)
    keys = [k for k in meta if k.startswith("tokenizer.")]
    for _ in range(150):
        changed, key = dict(meta), rng.choice(keys)
        value = changed[key]
        if isinstance(value, list) and rng.random() < 0.7:
            value = list(value)
            value[rng.randrange(len(value))] = rng.choice(["", "a", "\udc80\udcff", "\u2581" * 40, "<s>"]) if isinstance(value[0], str) else rng.choice([0, 1, 2, 3, 6, -1])
            changed[key] = value
        else:
            changed[key] = rng.choice([None, [], -1, 10**6, "", "t5", [1], True])
        try:
            text = load_text("", changed)
            text.decode(text.encode("a \u00e9 \U0001f642"))
        except vivace.Error as e:
            assert len(str(e)) > 10


def test_a_small_file_takes_little_memory(tmp_path):
    """A header that claims much is refused before anything of that size is reserved."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shutil.copytree(FIXTURES / "tiny" / "mixtral", tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_local_experts", "num_hidden_layers", "num_attention_heads"):
        (tmp_path / "m" / "config.json").write_text(json.dumps({**config, key: 1 << 20}))
        assert not opens(tmp_path / "m")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
