"""A decoder whose steps of one token are one launch (decode_layers) against the same by launches: its logits, its text, what report() says, and when it
is not taken. `pytest --device cuda` runs the kernel; on the CPU the op's own arithmetic takes its place."""
import json
import re

import numpy as np
import pytest

import vivace
from tests.test_model_steps import DEVICE, IDS, decode, open_core, prefill
from vivace.errors import InvalidArgumentError, UnsupportedError

SHAPES = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 128},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_attention_heads": 2, "num_key_value_heads": 2},
}


@pytest.fixture(params=SHAPES)
def path(request, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHAPES[request.param] | {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3, "vocab_size": 200, "max_position_embeddings": 256,
                                                                                  "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16"}))
    return tmp_path


def both(path, precision="bf16", **options):
    return [open_core(path, precision, random_weights=True, decode_layers=way, **options) for way in ("on", "off")]


def off_by(a, b):
    """Of a row's own size."""
    return np.sqrt(np.square(a - b).mean(-1) / np.square(b).mean(-1)).max()


@pytest.mark.parametrize("precision", ["bf16", "w8a16"])
@pytest.mark.parametrize("blocks", [0, 4], ids=["dense", "pages"])
def test_logits(path, blocks, precision):
    """Rows of bf16 between ops are off by 2^-9 each, some ten of them a layer: 3e-3 rms of what a layer adds, twice that where two ways are compared. Weights of 0.02
    add little to the embedding's row, but what they add is all that the way changes."""
    one, launches = both(path, precision, num_kv_blocks=blocks)
    a, b = (decode(core, IDS, 1) for core in (one, launches))
    assert off_by(a, b) < 0.02 and not np.array_equal(a, b)
    assert np.array_equal(decode(one, IDS, 1), a), "other bits in the same steps"
    for way in (one, launches):  # behind a prompt, whose steps are launches
        prefill(way, IDS[:70], (70,))
    rows = [[] for _ in range(2)]
    for at in range(70, 90):
        for core, seen in zip((one, launches), rows):
            core.step([(IDS[at], at, 0, True)])
            raw, count, vocab = core.logits()
            seen.append(np.frombuffer(raw, np.float32).reshape(count, vocab).copy())
    assert off_by(*(np.concatenate(seen) for seen in rows)) < 0.02


def test_eager_has_the_bits_of_a_graph(path):
    graph, eager = (open_core(path, "bf16", random_weights=True, decode_layers="on", eager=e) for e in (False, True))
    assert np.array_equal(decode(graph, IDS[:20], 1), decode(eager, IDS[:20], 1))


def test_text(path):
    """Answers of both ways: where they part, the two tokens' logits are as near to each other as bf16 tells apart."""
    with vivace.load_model(path, device=DEVICE, precision="bf16", random_weights=True, decode_layers="on") as one, vivace.load_model(path, device=DEVICE, precision="bf16", random_weights=True, decode_layers="off") as launches:
        a, b = (list(m.generate_ids(IDS[:9], max_tokens=40, temperature=0).tokens) for m in (one, launches))
        assert len(a) == len(b)
        part = next((i for i in range(len(a)) if a[i] != b[i]), None)
        assert one.report()["decode_layers"] == "used" and launches.report()["decode_layers"] == "launches: off"
    if part is not None:
        core = open_core(path, "bf16", random_weights=True, decode_layers="off")
        row = decode(core, [*IDS[:9], *a[:part]], 1)[-1]
        assert abs(row[a[part]] - row[b[part]]) < 0.04 * np.abs(row).max()


@pytest.mark.parametrize("options, why", [({"max_batch": 2}, "max_batch is 2"), ({"invariance": "strict"}, "invariance is strict"), ({"kv_dtype": "f16"}, "the cache is f16"), ({"gpu_layers": 1}, "layers take turns"),
                                          ({"precision": "f32"}, "activations are not bf16"), ({"precision": "fp8"}, "activations are not bf16"), ({"precision": "int4"}, "qkv is q4_0|lie apart|at one distance")])
def test_when_it_is_not_taken(path, options, why):
    options = {"device": DEVICE, "precision": "bf16", "random_weights": True, **options}
    with vivace.load_model(path, **options) as model:
        said = model.report()["decode_layers"]
        assert said.startswith("launches: ") and (re.search(why, said) or DEVICE == "cpu" and "no kernel" in said), said
    with pytest.raises(UnsupportedError, match=f"decode_layers on: .*({why})"):
        vivace.load_model(path, **options, decode_layers="on")


def test_other_families(tmp_path):
    config = SHAPES["llama"] | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
                                "vocab_size": 200, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="decode_layers on: mixtral has layers of another kind"):
        vivace.load_model(tmp_path, device=DEVICE, precision="bf16", random_weights=True, decode_layers="on")
    with pytest.raises(InvalidArgumentError, match="decode_layers: wanted auto, on or off, got 'yes'"):
        vivace.load_model(tmp_path, device=DEVICE, random_weights=True, decode_layers="yes")
