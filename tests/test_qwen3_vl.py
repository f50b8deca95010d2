"""Qwen3-VL's steps against what transformers computed in float64 from the same random weights (tests/fixtures/qwen3_vl); with
VIVACE_TEST_DEVICE=cuda on a GPU. f32 within 1e-4 of logits that are up to 38 large; bf16 by direction."""
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import vivace
from vivace import _core
from tests.packed import packed_tensors

FIXTURE = Path(__file__).parent / "fixtures" / "qwen3_vl"
DEVICE = os.environ.get("VIVACE_TEST_DEVICE", "cpu")
DEVICE = DEVICE if DEVICE.startswith("cuda") else "cpu"
EXPECTED = packed_tensors(FIXTURE / "expected.safetensors")
CASES = ("one", "several", "first", "text")
IMAGE, SIDE, F32, BF16 = 7, 8, 1e-4, 0.999


def load(path=FIXTURE, **options):
    """The core's model, which steps are asked of."""
    return _core.load_text_model(str(path), **{"precision": "f32", "kv_dtype": "f32", "device": DEVICE, "max_batch": 32, "context": 64, "prefill_chunk": 128, "max_image_tokens": 10, "threads": 2 * (DEVICE == "cpu"), **options})


def images_of(case):
    return [EXPECTED[f"{case}.image.{i}"] for i in range(sum(k.startswith(f"{case}.image.") for k in EXPECTED))]


def see(core, case, first=0):
    for i, image in enumerate(images_of(case)):
        core.see(first + i, image.tobytes(), *image.shape[:2])


def rows_of(case, slot=0, first=0, tokens=10):
    """A row a token: images lie in places from `first` on. What angles add to a token's own place is from transformers' positions."""
    ids, positions = EXPECTED[f"{case}.ids"].tolist(), EXPECTED[f"{case}.positions"]
    rows, image, k = [], first - 1, 0
    for pos, token in enumerate(ids):
        at = -1
        if token == IMAGE:
            if pos == 0 or ids[pos - 1] != IMAGE:
                image, k = image + 1, 0
            at, k = image * tokens + k, k + 1
        rows.append((token, pos, slot, True, at, *(int(positions[a, pos]) - pos for a in range(3))))
    return rows


def logits(core, rows):
    core.step(rows)
    data, n, vocab = core.logits()
    return np.frombuffer(data, np.float32).reshape(n, vocab)


def prompt(core, case, rows=None, slot=0):
    core.start(slot, 0.0, 0)
    see(core, case)
    return logits(core, rows or rows_of(case, slot))


@pytest.fixture(scope="module")
def model():
    return load()


@pytest.mark.parametrize("case", CASES)
def test_every_row_of_a_prompt(model, case):
    np.testing.assert_allclose(prompt(model, case), EXPECTED[f"{case}.logits"], rtol=0, atol=F32)


@pytest.mark.parametrize("case", CASES)
def test_answers_go_on_from_where_images_end(model, case):
    """The words behind an image one at a time, as drawn tokens are fed: steps of the decode class."""
    rows, want = rows_of(case), EXPECTED[f"{case}.logits"]
    tail = 1 + max((i for i, r in enumerate(rows) if r[4] >= 0), default=4)
    prompt(model, case, rows[:tail])
    for i in range(tail, len(rows)):
        np.testing.assert_allclose(logits(model, [rows[i]]), want[i:i + 1], rtol=0, atol=F32)


def test_side_by_side_as_alone(model):
    alone = {case: prompt(model, case) for case in ("one", "first", "text")}
    rows = []
    for slot, (case, first) in enumerate((("text", 0), ("one", 2), ("first", 1))):
        model.start(slot, 0.0, 0)
        see(model, case, first)
        rows += [(*r[:3], i >= len(EXPECTED[f"{case}.ids"]) - 10, *r[4:]) for i, r in enumerate(rows_of(case, slot, first))]
    got = logits(model, rows)
    assert np.array_equal(got, np.concatenate([alone[c][-10:] for c in ("text", "one", "first")]))


def test_pieces_of_a_prompt_have_its_bits(model):
    """An image whose tokens enter in two steps, too."""
    whole, rows = prompt(model, "several"), rows_of("several")
    model.start(0, 0.0, 0)
    see(model, "several")
    parts = [(*r[:3], True, *r[4:]) for r in rows]
    assert np.array_equal(np.concatenate([logits(model, parts[:9]), logits(model, parts[9:])]), whole)


@pytest.mark.parametrize("options", [{"eager": True}, {"num_kv_blocks": 8, "max_batch": 32}])
def test_eager_and_pages_have_the_bits(model, options):
    other = load(**options)
    for case in CASES:
        assert np.array_equal(prompt(other, case), prompt(model, case))


def test_text_is_that_of_the_language_model_alone(model, tmp_path):
    """The same weights as a Qwen3, without the tower."""
    import json

    from safetensors.numpy import load_file, save_file

    config = json.loads((FIXTURE / "config.json").read_text())["text_config"] | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rope_scaling": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = {n.replace("language_model.", ""): t for n, t in load_file(FIXTURE / "model.safetensors").items() if "language_model." in n}
    save_file(weights, tmp_path / "model.safetensors")
    rows = rows_of("text")
    qwen3 = load(tmp_path, max_image_tokens=0)
    qwen3.start(0, 0.0, 0)
    assert np.array_equal(logits(qwen3, [r[:4] for r in rows]), prompt(model, "text"))
    ids, options = EXPECTED["text.ids"].tolist(), dict(device=DEVICE, context=64)
    with vivace.load_model(FIXTURE, **options) as sees, vivace.load_model(tmp_path, **options) as qwen3:
        assert sees.generate_ids(ids, max_tokens=20).tokens == qwen3.generate_ids(ids, max_tokens=20).tokens


def test_bf16():
    model = load(precision="bf16", kv_dtype="auto")
    for case in CASES:
        got, want = prompt(model, case), EXPECTED[f"{case}.logits"]
        assert np.vdot(got, want) / np.linalg.norm(got) / np.linalg.norm(want) >= BF16


def test_bad_input(model, tmp_path):
    pixels = bytes(SIDE * SIDE * 3)
    for place, data, h, w, says in ((-1, pixels, SIDE, SIDE, "place -1 is outside"), (99, pixels, SIDE, SIDE, "place 99 is outside"), (0, bytes(4 * 8 * 3), 4, SIDE, "multiples of 8"),
                                    (0, bytes(11 * 64 * 3), 11 * SIDE, SIDE, "at most 10 tokens"), (0, pixels[1:], SIDE, SIDE, "bytes")):
        with pytest.raises(vivace.Error, match=says):
            model.see(place, data, h, w)
    model.start(0, 0.0, 0)
    for at in (-2, 40):
        with pytest.raises(vivace.InvalidArgumentError, match="images' tokens"):
            model.step([(9, 0, 0, True, at, 0, 0, 0)])
    plain = load(FIXTURE.parent / "tiny" / "qwen3", max_image_tokens=0)
    with pytest.raises(vivace.UnsupportedError, match="takes no images"):
        plain.see(0, pixels, SIDE, SIDE)
    with pytest.raises(vivace.InvalidArgumentError, match="takes no images"):
        load(FIXTURE.parent / "tiny" / "qwen3")
    text = (FIXTURE / "config.json").read_text()
    for old, new, says in (('"image_token_id": 7', '"image_token_id": 192', "image_token_id"), ('"mrope_interleaved": true', '"mrope_interleaved": false', "mrope_interleaved"), ('"deepstack_visual_indexes": [', '"deepstack_visual_indexes": [9, ', "deepstack|wanted layers"),
                           ('"out_hidden_size": 48', '"out_hidden_size": 40', "out_hidden_size")):
        folder = tmp_path / says[:9]
        folder.mkdir()
        shutil.copy(FIXTURE / "model.safetensors", folder)
        assert old in text
        (folder / "config.json").write_text(text.replace(old, new))
        with pytest.raises(vivace.Error, match=says):
            load(folder)
