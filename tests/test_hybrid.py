"""Hybrids: layers that carry a state along tokens (tests/fixtures/tiny/qwen35, qwen35_moe; test_model.py holds both to transformers),
on the host or (`pytest --device cuda`) on a GPU."""
import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.op_data import decode, encode
from tests.reference.decoder_numpy import Decoder
from tests.test_model_steps import DEVICE
from vivace import _core

TINY = Path(__file__).parent / "fixtures" / "tiny"
NAMES = ("qwen35", "qwen35_moe")
LONG = 200  # tokens of a prompt: three chunks of 64 and some
TOLERANCE = 1e-5  # of all rows' norm, in f32: sums over 200 positions in a state that hands its error on. Seen: 3.5e-6


def load(path, **options):
    return _core.load_text_model(str(path), **{"device": DEVICE, "precision": "f32", "kv_dtype": "f32", "threads": 2, "context": 256, "max_batch": 4, "prefill_chunk": 256} | options)


def drawn(n, seed=0):
    return np.random.default_rng(seed).integers(3, 192, n).tolist()


def last(core):
    raw, rows, vocab = core.logits()
    return np.frombuffer(raw, np.float32).reshape(rows, vocab).copy()


def feed(core, ids, cuts, slot=0, start=True):
    """Logits of the last token of each piece; `cuts`: how long each is."""
    if start:
        core.start(slot)
    out, at = [], 0
    for n in cuts:
        part = ids[at:at + n]
        core.step([(t, at + i, slot, i == len(part) - 1) for i, t in enumerate(part)])
        out.append(last(core)[0])
        at += n
    return np.array(out)


def same(got, want, one_class=False, bound=2 * TOLERANCE):
    """Bit for bit; on a GPU only where all rows went in steps of prompts, since answers' rows are another class.
    bound: of two classes' distance; without one each is within TOLERANCE of the exact."""
    if DEVICE == "cpu" or one_class:
        np.testing.assert_array_equal(got, want)
    else:
        far = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert far < bound, far


def every(n, total=LONG):
    return [min(n, total - at) for at in range(0, total, n)]


@pytest.fixture(scope="module", params=NAMES)
def whole(request):
    """(name, ids, logits of every position): all in one step."""
    ids = drawn(LONG)
    core = load(TINY / request.param, max_batch=LONG)
    core.start(0)
    core.step([(t, i, 0, True) for i, t in enumerate(ids)])
    return request.param, ids, last(core)


def test_long_prompts_match_the_reference(whole):
    name, ids, logits = whole
    reference = Decoder(json.loads((TINY / name / "config.json").read_text()), load_file(TINY / name / "model.safetensors"))
    want = reference.logits(ids)
    clear = len(ids) if np.all(reference.closest > 1e-4) else int(np.argmax(reference.closest <= 1e-4))
    assert clear > 64
    far = np.linalg.norm(logits[:clear] - want[:clear]) / np.linalg.norm(want[:clear])
    assert far < TOLERANCE, far


@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 65, 128])
def test_a_state_goes_from_chunk_to_chunk(whole, n):
    """Wherever a prompt is cut, every cut's last token has the bits that it has in one piece."""
    name, ids, logits = whole
    cuts = every(n)
    got = feed(load(TINY / name), ids, cuts)
    same(got, logits[np.cumsum(cuts) - 1], n > 1)


@pytest.mark.parametrize("eager", [False, True])
def test_drawn_cuts(whole, eager):
    name, ids, logits = whole
    core, r = load(TINY / name, eager=eager), random.Random(7)
    for slot in (0, 2, 0, 3):
        cuts = []
        while sum(cuts) < LONG:
            cuts.append(min(r.choice((1, 1, 2, 3, 4, 5, 17, 31, 90)), LONG - sum(cuts)))
        same(feed(core, ids, cuts, slot), logits[np.cumsum(cuts) - 1])


def test_sequences_side_by_side(whole):
    """Steps with rows of several sequences, answers and prompts together, one that ends and one that begins in its slot."""
    name, ids, logits = whole
    core, r = load(TINY / name), random.Random(3)
    at, checked = {slot: 0 for slot in range(4)}, 0
    for slot in at:
        core.start(slot)
    for _ in range(60):
        rows, seen = [], []
        for slot in r.sample(range(4), r.randint(1, 4)):
            if at[slot] >= LONG or (at[slot] > 0 and r.random() < 0.05):  # cancelled, and another takes its place
                at[slot] = 0
                if r.random() < 0.5:
                    core.start(slot)
            n = min(r.choice((1, 1, 1, 2, 9, 40)), LONG - at[slot])
            rows += [(ids[at[slot] + i], at[slot] + i, slot, i == n - 1) for i in range(n)]
            at[slot] += n
            seen.append(at[slot] - 1)
        core.step(rows)
        same(last(core), logits[seen])
        checked += len(seen)
    assert checked > 100


def test_rows_that_pad_a_step_touch_no_state(whole):
    """Three answers in a step for four: the last row is that of an older step."""
    name, ids, logits = whole
    core = load(TINY / name)
    for slot in range(4):
        feed(core, ids, [30 + slot], slot)
    for step in range(4):
        which = range(4) if step % 2 == 0 else range(3)
        at = [30 + s + step - (step // 2 if s == 3 else 0) for s in which]
        core.step([(ids[p], p, s, True) for s, p in zip(which, at)])
        same(last(core), logits[at])


def test_a_copied_state_goes_on_as_the_first(whole):
    """To a place that keeps it and back, over one that has gone on; keys and values behind it are written again."""
    name, ids, logits = whole
    core = load(TINY / name, num_kv_blocks=16)
    kept = core.limits()["max_batch"]
    feed(core, ids, [30])
    core.copy_state(0, kept)
    core.step([(t, 30 + i, 0, i == 6) for i, t in enumerate(drawn(7, 9))])
    core.copy_state(kept, 0, times=2)
    core.step([(t, 30 + i, 0, i == 19) for i, t in enumerate(ids[30:50])])
    same(last(core)[0], logits[49])
    for pair in ((0, kept + 1000), (-1, 0)):
        with pytest.raises(vivace.InvalidArgumentError, match="copy_state: state .* is outside"):
            core.copy_state(*pair)


@pytest.mark.parametrize("name", NAMES)
def test_answers_alone_and_together(name):
    want = load_file(TINY / name / "expected.safetensors")
    ids, greedy = want["prompt_ids"].tolist(), want["greedy_ids"].tolist()
    prompts = [ids, drawn(70, 1), drawn(1, 2), ids[:5], drawn(33, 3)]
    with vivace.load_model(TINY / name, device=DEVICE, precision="f32", kv_dtype="f32", max_batch=1) as model:
        alone = [model.generate_ids(p, max_tokens=40).tokens for p in prompts]
        assert alone[0] == greedy[:40]
    for options in ({"max_in_flight_steps": 3}, {"prefill_chunk": 16}):
        with vivace.load_model(TINY / name, device=DEVICE, precision="f32", kv_dtype="f32", max_batch=3, **options) as model:
            with ThreadPoolExecutor(len(prompts)) as pool:
                got = list(pool.map(lambda p: model.generate_ids(p, max_tokens=40).tokens, prompts))
            assert got == alone, options


def test_positions_only_go_forward():
    core, ids = load(TINY / "qwen35"), drawn(12)
    core.start(0)
    core.step([(t, i, 0, i == 7) for i, t in enumerate(ids[:8])])
    for rows in ([(5, 7, 0, True)], [(5, 9, 0, True)], [(5, 3, 1, True)], [(5, 8, 0, False), (5, 10, 0, True)]):
        with pytest.raises(vivace.Error, match="does not follow its recurrent state"):
            core.step(rows)
    with pytest.raises(vivace.Error, match="lie apart"):
        core.step([(5, 8, 0, False), (5, 0, 1, False), (5, 9, 0, True)])
    core.step([(ids[8], 8, 0, True)])  # what was refused changed nothing
    got = last(core)
    core.step([(t, i, 1, i == 8) for i, t in enumerate(ids[:9])])
    same(last(core), got)
    core.step([(t, i, 0, i == 8) for i, t in enumerate(ids[:9])])  # position 0 begins anew, without a start
    same(last(core), got)


def nested(tmp_path, name):
    """The same model as a part of one that sees, as published checkpoints are."""
    config, folder = json.loads((TINY / name / "config.json").read_text()), tmp_path / name
    folder.mkdir()
    arch = config.pop("architectures")[0].replace("CausalLM", "ConditionalGeneration")
    (folder / "config.json").write_text(json.dumps({"architectures": [arch], "model_type": "qwen3_5", "text_config": config, "vision_config": {"depth": 1}, "tie_word_embeddings": config["tie_word_embeddings"]}))
    weights = load_file(TINY / name / "model.safetensors")
    out = {k.replace("model.", "model.language_model.", 1): v for k, v in weights.items()} | {"mtp.fc.weight": np.zeros((4, 4), np.float32), "model.visual.pos_embed.weight": np.zeros((4, 4), np.float32)}
    save_file(out, folder / "model.safetensors")
    return folder


def test_published_layouts_are_the_same_model(tmp_path, whole):
    name, ids, logits = whole
    folder = nested(tmp_path, name)
    same(feed(load(folder), ids, [LONG]), logits[-1:], True)
    with vivace.load_model(folder, device=DEVICE) as model, vivace.load_model(TINY / name, device=DEVICE) as plain:
        assert (model.report()["unread_tensors"], plain.report()["unread_tensors"]) == ({"mtp.*": 1, "model.visual.*": 1}, {})
    if name != "qwen35_moe":
        return
    weights = load_file(TINY / name / "model.safetensors")
    for key in [k for k in weights if ".experts." in k]:  # each expert apart, as transformers saves them
        for e, w in enumerate(weights.pop(key)):
            stem = key.rsplit(".", 1)[0] + f".{e}."
            parts = dict(zip(("gate_proj", "up_proj"), np.split(w, 2))) if "gate_up" in key else {"down_proj": w}
            weights |= {f"{stem}{n}.weight": np.ascontiguousarray(p) for n, p in parts.items()}
    folder = tmp_path / "apart"
    folder.mkdir()
    shutil.copy(TINY / name / "config.json", folder)
    save_file(weights, folder / "model.safetensors")
    same(feed(load(folder), ids, [LONG]), logits[-1:], True)


@pytest.mark.parametrize("precision", ["bf16", "w8a16"])
def test_a_shared_expert_of_the_others_size_is_one_more(tmp_path, precision):
    """16-bit experts: it is chosen by moe_route, and what comes out is as near the reference as where it stays apart, which it
    does in f32, and where rows of zeros make it wider."""
    source, weights = json.loads((TINY / "qwen35_moe" / "config.json").read_text()), load_file(TINY / "qwen35_moe" / "model.safetensors")
    few, width, ids = source["num_experts_per_tok"], source["moe_intermediate_size"], drawn(40, 5)
    weights = {k: 3 * v if "shared_expert_gate" in k else v for k, v in weights.items()}  # some rows take much of it, some little
    far, chosen, first = {}, {}, None
    for extra in (0, 8):
        folder, own = tmp_path / str(extra), dict(weights)
        folder.mkdir()
        for key in [k for k in own if ".shared_expert." in k]:
            axis = 1 if "down_proj" in key else 0
            own[key] = np.pad(np.take(own[key], range(width), axis), [(0, extra * (axis == a)) for a in (0, 1)])
        (folder / "config.json").write_text(json.dumps(source | {"shared_expert_intermediate_size": width + extra}))
        save_file(own, folder / "model.safetensors")
        reference = Decoder(json.loads((folder / "config.json").read_text()), own)
        want, clear = reference.logits(ids), reference.closest > 0.05  # whose choice no rounding changes
        first = want if first is None else first
        np.testing.assert_allclose(want, first, rtol=0, atol=1e-9)
        assert clear.sum() > 4
        clear = np.arange(len(ids)) < max(4, np.argmin(clear))
        for plan in ("f32", precision):
            core = load(folder, precision=plan, kv_dtype="f32" if plan == "f32" else "auto", max_batch=len(ids))
            core.start(0)
            core.step([(t, i, 0, True) for i, t in enumerate(ids)])
            got = last(core)
            far[extra, plan] = np.linalg.norm(got[clear] - want[clear]) / np.linalg.norm(want[clear])
            core.start(0)
            chosen[extra, plan] = {shape[-1] for op, port, _, shape, _ in core.observe([(t, i, 0, i == 4) for i, t in enumerate(ids[:5])]) if (op, port) == ("moe_route", "weights")}
    assert chosen == {(0, "f32"): {few}, (0, precision): {few + 1}, (8, "f32"): {few}, (8, precision): {few}}
    assert far[0, precision] < 1.25 * far[8, precision] < {"bf16": 0.1, "w8a16": 0.3}[precision] and far[0, "f32"] < TOLERANCE > far[8, "f32"], far


def of_blocks(w):
    """What q4_0 of it stands for."""
    return decode(encode(w.reshape(-1, w.shape[-1]), "q4_0"), "q4_0", w.shape).astype(np.float32)


def test_a_shared_expert_of_int4_is_one_more(tmp_path):
    """It is q4_0 as the others are, and chosen by moe_route; of another width it stays apart, in 16 bits."""
    source, weights = json.loads((TINY / "qwen35_moe" / "config.json").read_text()), load_file(TINY / "qwen35_moe" / "model.safetensors")
    few, E, H, M, rng, ids = source["num_experts_per_tok"], source["num_experts"], source["hidden_size"], 32, np.random.default_rng(6), drawn(40, 6)
    shapes = {"experts.gate_up_proj": (E, 2 * M, H), "experts.down_proj": (E, H, M), "shared_expert.gate_proj.weight": (M, H), "shared_expert.up_proj.weight": (M, H), "shared_expert.down_proj.weight": (H, M)}
    weights = {k: 4 * v if k.endswith("mlp.gate.weight") else v for k, v in weights.items()}  # a choice that roundings seldom change
    drawn_anew = {k: (rng.standard_normal(shape) * 0.4).astype(np.float32) for k in weights for end, shape in shapes.items() if k.endswith(end)}
    for extra in (0, 32):
        folder, own = tmp_path / str(extra), weights | drawn_anew
        folder.mkdir()
        for key in [k for k in own if ".shared_expert." in k]:
            own[key] = np.pad(own[key], [(0, extra * (axis == ("down_proj" in key))) for axis in (0, 1)])
        config = source | {"moe_intermediate_size": M, "shared_expert_intermediate_size": M + extra}
        (folder / "config.json").write_text(json.dumps(config))
        save_file(own, folder / "model.safetensors")
        narrow = [k for k in own if "_proj" in k and "in_proj_a" not in k and "in_proj_b" not in k and (extra == 0 or ".shared_expert." not in k)]
        reference = Decoder(config, own | {k: of_blocks(own[k]) for k in narrow})
        want = reference.logits(ids)
        clear = np.arange(len(ids)) < np.argmin(reference.closest > 0.2)  # rows in front of the first whose choice a rounding may change
        assert clear.sum() >= 4
        core = load(folder, precision="int4", kv_dtype="auto", lm_head_dtype="plain", max_batch=len(ids))
        core.start(0)
        core.step([(t, i, 0, True) for i, t in enumerate(ids)])
        far = np.linalg.norm(last(core)[clear] - want[clear]) / np.linalg.norm(want[clear])
        core.start(0)
        routed = {shape[-1] for op, port, _, shape, _ in core.observe([(t, i, 0, i == 4) for i, t in enumerate(ids[:5])]) if (op, port) == ("moe_route", "weights")}
        forms = json.loads(dict(core.report())["forms"])["layers"]
        print(f"{extra}: {far:.4f} of {clear.sum()} rows")
        assert routed == {few + (extra == 0)} and far < 0.1
        assert forms["gate_up"] == forms["down"] == "q4_0" and forms.get("shared_expert") == (None if extra == 0 else "bf16")


def test_what_is_not_served_says_so(tmp_path):
    with vivace.load_model(TINY / "qwen35", device=DEVICE, max_batch=4) as model:
        with pytest.raises(vivace.UnsupportedError, match="recurrent state cannot go back"):
            model.generate_ids(drawn(9), max_tokens=4, draft="lookup", num_speculative_tokens=2)
        assert model.report()["recurrent_layers"] == 3 and model.report()["state_bytes"] == 3 * 4 * (352 + 4 * 12 * 16)


CONFIGS = [({"layer_types": ["linear_attention"] * 4}, "one at least must be full_attention"), ({"layer_types": ["linear_attention"] * 3}, "expected a list of 4 layers"),
           ({"layer_types": ["linear_attention", "sliding_attention", "full_attention", "full_attention"]}, "linear_attention or full_attention"), ({"linear_num_value_heads": 3}, "no multiple of 2 linear key heads"),
           ({"linear_conv_kernel_dim": 9}, "wanted 2 to 8"), ({"linear_conv_kernel_dim": 1}, "wanted 2 to 8"), ({"linear_key_head_dim": 0}, "linear key head dim"), ({"linear_value_head_dim": 513}, "linear value head dim"),
           ({"attn_output_gate": False}, "attn_output_gate"), ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0}}, "partial_rotary_factor"), ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.5}}, "partial_rotary_factor"),
           ({"layer_types": None, "full_attention_interval": 0}, "full_attention_interval"), ({"linear_num_key_heads": None}, "linear_num_key_heads"),
           ({"linear_key_head_dim": 8}, "linear_attn.in_proj_qkv")]


@pytest.mark.parametrize("change,match", CONFIGS)
def test_wrong_configs(tmp_path, change, match):
    config = json.loads((TINY / "qwen35" / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    shutil.copy(TINY / "qwen35" / "model.safetensors", tmp_path)
    with pytest.raises(vivace.Error, match=match):
        load(tmp_path)


def test_the_interval_stands_for_a_list(tmp_path, whole):
    name, ids, logits = whole
    config = json.loads((TINY / name / "config.json").read_text())
    del config["layer_types"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(TINY / name / "model.safetensors", tmp_path)
    same(feed(load(tmp_path), ids, [LONG]), logits[-1:], True)
