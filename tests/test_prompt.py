"""Prompts of policies (models/vla/prompt.h), against openpi's rules by what Python's texts can do."""
import json
import math
import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import vivace
from tests.packed import packed_tensors
from vivace import _core

FIXTURES = Path(__file__).parent / "fixtures"
MODEL = str(FIXTURES / "pieces/paligemma.model")
PRE = FIXTURES / "vla/preprocess"
BOS = 2


def words(state):
    return " ".join(str(min(max(math.floor(128.0 * v) + 128, -1), 255)) for v in state)


def parts(family, task, state):
    """As openpi writes it, and lerobot's second BOS of pi0-FAST."""
    if family == "pi0fast":
        return [BOS, f"Task: {task.lower().strip().replace('_', ' ')}, State: {words(state)};\n", BOS]
    clean = task.strip().replace("_", " ").replace("\n", " ")
    return [BOS, clean, "\n"] if family == "pi0" else [BOS, f"Task: {clean}, State: {words(state)};\nAction: "]


def expected(family, task, state):
    """The words' ids are those of test_pieces.py."""
    ours = _core.load_tokenizer(MODEL)
    return [token for part in parts(family, task, state) for token in ([part] if isinstance(part, int) else ours.encode(part.encode()))]


@pytest.mark.parametrize("family", ["pi05", "pi0", "pi0fast"])
def test_prompts_are_pythons(family):
    draw = random.Random(6)
    edges = [0.0, -0.0, 1.0, -1.0, 0.9999999, -1.0000001, 1e30, -1e30, 1 / 128, -1 / 128, 0.4999999]
    tasks = ["", " ", "put_it\nthere ", "\t\u3000Go\u00a0 x\u2029", "\x1c Go X_y\n\n", "İß ÄΩ", *(p["task"] for p in json.loads((PRE / "config.json").read_text())["prompts"])]
    for i in range(400):
        task = tasks[i] if i < len(tasks) else "".join(draw.choice("abcXYZ _\n,.;:019äÖЖ日🙂\u2003") for _ in range(draw.randrange(0, 30)))
        state = [draw.choice(edges) if draw.random() < 0.3 else draw.uniform(-1.2, 1.2) for _ in range(draw.randrange(1, 9))]
        state = [float(v) for v in np.float32(state)]
        assert _core.prompt_parts(family, task, state) == parts(family, task, state), (task, state)
        assert _core.prompt_tokens(MODEL, family, task.encode(), state) == expected(family, task, state), (task, state)


def test_small_letters_of_every_character():
    """pi0-FAST's; letters of a Unicode newer than 14 may stay."""
    for c in map(chr, (*range(1, 0xd800), *range(0xe000, 0x110000))):
        if not c.isspace() and c not in "_\u03a3":
            got = _core.prompt_parts("pi0fast", c, [0.0])[1][len("Task: "):-len(", State: 128;\n")]
            assert got == c.lower() or (got == c and unicodedata.unidata_version > "14.0.0"), hex(ord(c))


def test_a_state_that_is_not_in_the_prompt():
    assert _core.prompt_parts("pi05", " go_there", [], state_words=False) == _core.prompt_parts("pi0", " go_there", [])


def test_the_fixtures_prompts():
    tensors, bins = packed_tensors(PRE / "inputs.safetensors"), load_file(PRE / "expected.safetensors")["state_bins"].tolist()
    given = tensors["prompt_state"].tolist()
    assert _core.prompt_parts("pi05", "", tensors["state_values"].tolist())[1] == f"Task: , State: {' '.join(map(str, bins))};\nAction: "
    for p in json.loads((PRE / "config.json").read_text())["prompts"]:
        ours = _core.load_tokenizer(MODEL)
        assert _core.prompt_tokens(MODEL, "pi05", p["task"].encode(), given) == [BOS, *ours.encode(p["pi05"].encode())]
        assert _core.prompt_tokens(MODEL, "pi0fast", p["task"].encode(), given) == [BOS, *ours.encode(p["fast_openpi_prefix"].encode()), BOS]
        assert _core.prompt_tokens(MODEL, "pi0", p["task"].encode(), []) == [BOS, *(t for part in p["pi0_openpi_parts"] for t in ours.encode(part.encode()))]


@pytest.mark.parametrize("family, task, state, error, what", [
    ("pi06", b"go", [0.0], vivace.InvalidArgumentError, "wanted pi05, pi0, pi0fast or smolvla, got 'pi06'"),
    ("pi05", b"go", [], vivace.InvalidArgumentError, "pi05 writes it into the prompt"),
    ("pi05", b"go", [0.0, float("nan")], vivace.InvalidArgumentError, "value 1 is not finite"),
    ("pi05", b"g\xff", [0.0], vivace.InvalidArgumentError, "UTF-8"),
    ("pi0fast", b"g\xff", [0.0], vivace.InvalidArgumentError, "UTF-8"),
    ("pi0fast", "ΟΔΟΣ".encode(), [0.0], vivace.UnsupportedError, "small letter of U\\+03A3"),
])
def test_what_is_no_prompt(family, task, state, error, what):
    with pytest.raises(error, match=what):
        _core.prompt_tokens(MODEL, family, task, state)


def test_python_takes_a_sentencepiece_model(tmp_path):
    """Named, or beside the checkpoint where there is no tokenizer.json; typed errors for what is no prompt."""
    tiny = FIXTURES / "vla/pi05_tiny"
    frame, state = np.zeros((48, 64, 3), np.uint8), [0.25, -0.5]
    load = dict(config="pi05", num_views=1, action_horizon=4, num_steps=1, statistics="none", device="cpu", precision="f32", threads=2)
    for f in tiny.glob("*"):
        (tmp_path / f.name).symlink_to(f)
    (tmp_path / "tokenizer.model").symlink_to(MODEL)
    ids = _core.prompt_tokens(MODEL, "pi05", b"put it there", state)
    with vivace.load_model(tiny, tokenizer=MODEL, **load) as named, vivace.load_model(tmp_path, **load) as beside:
        want = named.predict([frame], ids, state)
        assert (named.predict([frame], "put it_there", state) == want).all() and (beside.predict([frame], "put it there", state) == want).all()
        with pytest.raises(vivace.InvalidArgumentError, match="value 1 is not finite"):
            named.predict([frame], "go", [0.0, float("nan")])
    with vivace.load_model(tiny, **load) as none, pytest.raises(vivace.NotFoundError, match="neither tokenizer.json nor tokenizer.model"):
        none.predict([frame], "go", state)
