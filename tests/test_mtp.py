"""Multi-token prediction of hybrids: the draft layer against a NumPy reference, and its guesses, which change no token. On the host or
(`pytest --device cuda`) on a GPU. About 15 s."""
import json
import random
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import vivace
from tests.reference.decoder_numpy import Decoder
from tests.serving import NAME, inside
from tests.test_hybrid import NAMES, TINY, drawn, last
from tests.test_model_steps import DEVICE
from vivace import _core
from vivace.server.engine import Engine

OPTIONS = {"device": DEVICE, "precision": "f32", "kv_dtype": "f32", "threads": 2, "context": 256, "max_batch": 6, "prefill_chunk": 128}
TOLERANCE = 1e-5  # of a row's norm, in f32: as in test_hybrid.py


def with_drafts(folder, name, likely=True, layers=1.0, **config):
    """A tiny hybrid with a draft layer of drawn weights; `likely`: one that is often right about a model whose next token hangs on the
    last one above all; at `layers` 0 on nothing else, and the draft layer is always right."""
    c = json.loads((TINY / name / "config.json").read_text())
    weights, rng, H = load_file(TINY / name / "model.safetensors"), np.random.default_rng(5), c["hidden_size"]
    of = f"model.layers.{c['layer_types'].index('full_attention')}."
    draft = {"mtp.layers.0." + k[len(of):]: rng.standard_normal(v.shape) * v.std() for k, v in weights.items() if k.startswith(of)}
    draft |= {f"mtp.{n}.weight": 0.2 * rng.standard_normal(H) for n in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    draft["mtp.fc.weight"] = rng.standard_normal((H, 2 * H)) / np.sqrt(2 * H)
    if likely:
        onto = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")
        weights |= {k: v * np.float32(layers * (0.03 if name == "qwen35" else 0.2)) for k, v in weights.items() if k.endswith(onto)}
        draft |= {k: v * layers * 0.05 for k, v in draft.items() if k.endswith(onto)}
        draft |= {"mtp.pre_fc_norm_embedding.weight": np.zeros(H), "mtp.norm.weight": weights["model.norm.weight"]}
        draft["mtp.fc.weight"] = np.concatenate([np.eye(H), layers * 0.02 * rng.standard_normal((H, H))], 1)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(c | {"mtp_num_hidden_layers": 1} | config))
    save_file(weights | {k: np.ascontiguousarray(v, np.float32) for k, v in draft.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module", params=NAMES)
def likely(request, tmp_path_factory):
    return with_drafts(tmp_path_factory.mktemp("mtp") / request.param, request.param)


def core_of(path, mtp=4, **options):
    return _core.load_text_model(str(path), **OPTIONS | {"mtp": mtp} | options)


def fed(core, ids, slot=0, first=0):
    core.start(slot) if first == 0 else None
    core.step([(t, first + i, slot, i == len(ids) - 1) for i, t in enumerate(ids)])
    return int(np.argmax(last(core)[0]))


@pytest.mark.parametrize("config", [{}, {"mtp_hidden_state": "before_norm"}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_draft_layer_is_the_references(tmp_path, name, config):
    """Its logits behind prompts of several lengths, whole and in pieces, and of each guess behind the first."""
    folder = with_drafts(tmp_path / name, name, likely=False, **config)
    reference = Decoder(json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors"))
    replayed, issued = core_of(folder, context=128), core_of(folder, context=128, eager=True)
    for core, n, cut in ((replayed, 2, 0), (issued, 9, 0), (replayed, 40, 17), (replayed, 70, 69)):
        ids = drawn(n, n)
        for first, past in ((0, cut), (cut, n)) if cut else ((0, n),):
            ids[n:] = [fed(core, ids[first:past], 2, first)]
            known = past if past < n else n - 1
            for count in range(1, 5) if past == n else (1,):
                rows = [(ids[p + 1], p, 2, False) for p in range(first, known)] + [(ids[n], n - 1, 2, True)] * (past == n)
                got = core.draft(rows, count)
                if past < n:
                    continue
                want = reference.drafts(ids, count, normed=not config)
                assert got == [np.argmax(want, 1).tolist()]
                far = np.linalg.norm(last(core)[0] - want[-1]) / np.linalg.norm(want[-1])
                assert far < TOLERANCE, (n, count, far)


def test_a_step_leaves_the_state_before_its_guesses(likely):
    """Whatever stood in rows of guesses, the rows behind have the bits that they have without."""
    core, plain, r = core_of(likely), core_of(likely, mtp=0), random.Random(1)
    ids, at = {s: drawn(120, s) for s in range(3)}, {}
    for slot, n in ((0, 20), (1, 3), (2, 41)):
        fed(core, ids[slot][:n], slot)
        fed(plain, ids[slot][:n], slot)
        at[slot] = n
    for _ in range(40):
        slots = r.sample(range(3), r.randint(1, 2))
        fresh = {s: r.randint(1, 2) for s in slots}  # rows that come to stay: of several the first ones were guesses before
        rows = [(ids[s][at[s] + i], at[s] + i, s, True) for s in slots for i in range(fresh[s])]
        guesses = [(r.randrange(192) if r.random() < 0.5 else ids[s][at[s] + fresh[s] + i], at[s] + fresh[s] + i, s, True, True) for s in slots for i in range(r.randint(0, 1))]
        core.step(rows + guesses)
        got = last(core)
        for row, logits in zip(rows, got):
            plain.step([row])
            np.testing.assert_array_equal(logits, last(plain)[0])
        for s in slots:
            at[s] += fresh[s]
    assert sum(at.values()) > 150


def test_guesses_change_no_token(likely):
    """Drawn prompts and options, alone and several at a time: tokens, log-probabilities and ends are those without guesses, greedy and drawn."""
    r, said, right = random.Random(2), 0, Counter()
    requests = []
    for i in range(14):
        how = dict(max_tokens=r.choice((1, 2, 3, 40, 90)))
        if i % 2:
            how |= dict(temperature=r.choice((0.3, 0.8, 1.2)), seed=i) | r.choice(({}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}))
        if r.random() < 0.3:
            how["stop"] = [r.randrange(3, 192) for _ in range(8)]
        if r.random() < 0.15:
            how["repetition_penalty"] = 1.2  # has no guesses
        requests.append((drawn(r.choice((1, 2, 30, 64, 65, 100)), i), how))
    with vivace.load_model(likely, **OPTIONS) as plain:
        want = [plain.generate_ids(p, **how) for p, how in requests]
        assert plain.report()["guesses"] == {"checked": 0, "right": 0}
    for mtp, options in ((1, {}), (2, {"num_kv_blocks": 0}), (3, {"max_in_flight_steps": 3}), (4, {"prefill_chunk": 16}), (4, {"max_batch": 16})):
        with vivace.load_model(likely, mtp=mtp, **OPTIONS | options) as model:
            with ThreadPoolExecutor(3) as pool:
                got = list(pool.map(lambda q: model.generate_ids(q[0], **q[1]), requests))
            assert [(a.tokens, a.logprobs, a.finish) for a in got] == [(a.tokens, a.logprobs, a.finish) for a in want], (mtp, options)
            guesses, said = model.report()["guesses"], said + sum(len(a.tokens) for a in got)
            assert guesses["checked"] > 100 and 0 < guesses["right"] < guesses["checked"], guesses
            right[mtp] = guesses["right"] / guesses["checked"]
            assert model._live.pending() == 0
    assert said > 1000 and right[1] > 0.2, (said, right)


def test_who_asks_for_none_has_none(likely):
    with vivace.load_model(likely, mtp=3, **OPTIONS) as model:
        ids, counts = drawn(30), lambda: model.report()["guesses"]["checked"]
        want = model.generate_ids(ids, max_tokens=30)
        checked = counts()
        assert checked > 0 and model.report()["mtp"] == 3 and model.report()["unread_tensors"] == {}
        assert model.generate_ids(ids, max_tokens=30, draft="off").tokens == want.tokens and counts() == checked
        for how in (dict(presence_penalty=0.1), dict(min_tokens=2), dict(top_logprobs=2), dict(mask=lambda tokens: None)):
            model.generate_ids(ids, max_tokens=5, **how)
            assert counts() == checked, how
        run = model._stream(ids, None, max_tokens=30)
        assert [c.token for c in run if c.token is not None] == want.tokens
        steps, drafted, accepted = run.drafts()
        assert steps + accepted == 29 and drafted >= accepted > 0
        for drafts in (1, 4):  # others' guesses are checked as well
            assert model.generate_ids(ids, max_tokens=30, draft="lookup", num_speculative_tokens=drafts).tokens == want.tokens


def test_drawn_tokens_have_the_models_distribution(likely):
    """A thousand seeds: the second token, of which guesses stood in the step, against its exact probabilities. Chi-square at 1e-4."""
    ids, top, temperature, seeds = drawn(12, 3), 3, 1.3, 1000

    def probabilities(logits):
        kept = np.argsort(-logits, kind="stable")[:top]
        p = np.exp((logits[kept].astype(np.float64) - logits.max()) / temperature)
        return dict(zip(kept.tolist(), p / p.sum()))

    core, exact = core_of(likely, mtp=0), Counter()
    fed(core, ids)
    for token, p in probabilities(last(core)[0]).items():
        fed(core, ids + [token])
        for second, q in probabilities(last(core)[0]).items():
            exact[second] += p * q
    with vivace.load_model(likely, mtp=2, **OPTIONS) as model, ThreadPoolExecutor(2) as pool:
        got = Counter(pool.map(lambda seed: model.generate_ids(ids, max_tokens=3, temperature=temperature, top_k=top, seed=seed).tokens[1], range(seeds)))
        guesses = model.report()["guesses"]
    assert 0.05 < guesses["right"] / guesses["checked"] < 0.95, guesses
    assert set(got) <= set(exact)
    chi = sum((got[t] - seeds * p) ** 2 / (seeds * p) for t, p in exact.items())
    most = {1: 15.1, 2: 18.4, 3: 21.1, 4: 23.5, 5: 25.7, 6: 27.9, 7: 29.9, 8: 31.8}  # 1 - 1e-4 of chi-square with so many degrees
    assert chi < most[len(exact) - 1], (chi, exact, got)


def test_guesses_are_drawn_with_the_noise_of_the_draw(tmp_path):
    """A draft layer that has the model's own distribution: guesses with a noise of their own would be right by chance alone."""
    with vivace.load_model(with_drafts(tmp_path / "alike", "qwen35", layers=0), mtp=4, **OPTIONS) as model:
        tokens = {tuple(model.generate_ids(drawn(12), max_tokens=11, temperature=1.2, seed=seed).tokens) for seed in range(12)}
        guesses = model.report()["guesses"]
    assert len(tokens) == 12 and guesses["checked"] >= 12 * 4 and guesses["right"] == guesses["checked"], guesses


def test_turns_and_those_who_give_way(likely):
    """Beginnings that were computed before, with states kept beside blocks; an answer that waits in host memory with guesses its state lacks."""
    options = OPTIONS | ({} if DEVICE == "cpu" else {"invariance": "strict"})
    with vivace.load_model(likely, **options) as plain, vivace.load_model(likely, mtp=3, **options | {"num_kv_blocks": 5}) as model:
        talk = drawn(70, 4)
        for turn in range(3):
            want = plain.generate_ids(talk, max_tokens=33)
            got = model.generate_ids(talk, max_tokens=33)
            assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs), turn
            assert turn == 0 or got.cached_tokens >= 64
            talk += got.tokens + drawn(5, turn)
        prompts = [drawn(70, 1 if "moe" in likely.name else 2), drawn(65, 7)]  # of whose guesses some are right, or all
        want = [plain.generate_ids(p, max_tokens=120, stop=[]).tokens for p in prompts]
        batcher, got = _core.Batcher(model._live), {}
        rest = dict(max_tokens=120, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0, presence=0.0, frequency=0.0, seed=0, stop=[])
        for p in prompts:  # the second one gives way: 5 blocks are not enough for both
            got[batcher.submit(prompt=p, **rest)] = []
        while not batcher.idle():
            for request, token, _, _ in batcher.step():
                got[request].append(token)
        assert list(got.values()) == want
        del batcher
        count, available, _ = model._live.blocks()
        assert count == available


def test_the_server_guesses_too(likely):
    """Clients at the same time, greedy and drawn: the text that the model has alone, in fewer steps than tokens."""
    openai = pytest.importorskip("openai")
    words = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet())[:192])}, merges=[]))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    words.save(str(likely / "tokenizer.json"))
    with vivace.load_model(likely, mtp=3, **OPTIONS) as model:
        ids = [drawn(20 + i, 30 + i) for i in range(4)]
        how = [dict(max_tokens=25)] * 2 + [dict(max_tokens=25, temperature=0.9, seed=4)] * 2
        want = [model.generate_ids(p, draft="off", **h).tokens for p, h in zip(ids, how)]
        assert model.report()["guesses"]["checked"] == 0
        with inside(model, Engine) as (_, url), openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client, ThreadPoolExecutor(4) as pool:
            said = list(pool.map(lambda a: client.completions.create(model=NAME, prompt=a[0], **{"temperature": 0, **a[1]}).choices[0].text, zip(ids, how)))
        assert said == [model.text.decode(t) for t in want]
        assert model.report()["guesses"]["right"] > 0


def test_what_is_not_served_says_so(tmp_path):
    folder = with_drafts(tmp_path / "likely", "qwen35")
    for path, options, error, match in ((folder, {"mtp": 5}, vivace.InvalidArgumentError, "wanted 0 to 4 guesses a step, got 5"), (folder, {"mtp": -1}, vivace.InvalidArgumentError, "wanted 0 to 4"),
                                        (folder, {"mtp": 4, "max_batch": 4}, vivace.LimitExceededError, "want max_batch 5 or more, got 4"), (TINY / "qwen35", {"mtp": 1}, vivace.NotFoundError, "the checkpoint has no draft layer"),
                                        (TINY / "qwen3", {"mtp": 1, "context": 128}, vivace.UnsupportedError, "draft layers of qwen3 are not served")):
        with pytest.raises(error, match=match):
            core_of(path, **options)
    config = json.loads((folder / "config.json").read_text())
    for i, (change, error, match) in enumerate((({"mtp_num_hidden_layers": 2}, vivace.UnsupportedError, "one draft layer is served, got 2"), ({"mtp_num_hidden_layers": 0}, vivace.NotFoundError, "no draft layer"),
                                               ({"mtp_use_dedicated_embeddings": True}, vivace.UnsupportedError, "mtp_use_dedicated_embeddings"), ({"mtp_hidden_state": "both"}, vivace.UnsupportedError, "wanted after_norm or before_norm"))):
        other = shutil.copytree(folder, tmp_path / str(i))
        (Path(other) / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(error, match=match):
            core_of(other)
    core, plain = core_of(folder), core_of(folder, mtp=0)
    token = fed(core, drawn(9))
    good = (token, 8, 0, True)
    for rows, count, error, match in (([good], 5, vivace.LimitExceededError, "wanted 1 to mtp = 4"), ([(token, 9, 0, True)], 1, vivace.FailedPreconditionError, r"position 9 of slot 0 is none of its last step's \[0, 9\)"),
                                      ([(192, 8, 0, True)], 1, vivace.InvalidArgumentError, "outside the vocabulary"), ([(token, 8, 6, True)], 1, vivace.InvalidArgumentError, "slot 6"), ([], 1, vivace.LimitExceededError, "wanted 1 to")):
        with pytest.raises(error, match=match):
            core.draft(rows, count)
    with pytest.raises(vivace.UnsupportedError, match="load it with mtp"):
        plain.draft([good], 1)
    for rows, error, match in (([(5, 9, 0, True, True), (6, 9, 0, True)], vivace.InvalidArgumentError, "guesses lie behind all others"), ([(5, 9, 0, True), (6, 11, 0, True, True)], vivace.FailedPreconditionError, "does not follow"),
                               ([(5, 9, 0, False), (6, 10, 0, True, True)], vivace.InvalidArgumentError, "all of whose rows sample")):
        with pytest.raises(error, match=match):
            core.step(rows)
    assert len(core.draft([good], 2)[0]) == 2  # what was refused changed nothing
