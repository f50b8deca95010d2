"""vivace.options: each wrong value of each option is an InvalidArgumentError that names it; right ones come through."""
import math
import pathlib
import random

import numpy as np
import pytest

import vivace
from vivace import options
from vivace.convert import convert
from vivace.fetch import UnknownModel, fetch
from vivace.options import GENERATE, LOAD, checked, one

VALUES = [None, True, -1, 0, 4, 4.0, 2**31, 2**31 - 1, 2**63, 2**63 - 1, 2**70, 1.5, 1e300, math.inf, -math.inf, math.nan, "4", "a", b"abc", [], [1], [2**31], ["a"], [1.5], [True], (1, 2), {1, 2},
          {}, {"a": 1.0}, {1: "b"}, {1: 1e300}, {1: -math.inf}, {0: 1.5}, object(), np.int64(5), np.float32(0.5), np.arange(3), range(3), lambda t: None, pathlib.Path("x"), 10**400]


def test_a_table_of_what_comes_through():
    right = {"max_tokens": [None, 4, np.int64(5)], "temperature": [0, 1.5, np.float32(0.5)], "seed": [0, 2**63 - 1], "stop": [[], [1], (1, 2), range(3), np.arange(3), "a", ["a", "b"]],
             "stop_text": ["a", ["a"], []], "logit_bias": [None, {}, {0: 1.5}, {1: -math.inf}], "mask": [None, print], "top_k": [0, 4]}
    for name, values in right.items():
        for value in values:
            checked("generate", GENERATE, {name: value})
    assert checked("generate", GENERATE, {"stop": np.arange(3), "temperature": np.float32(0.5), "stop_text": "a"}) == {"stop": [0, 1, 2], "temperature": 0.5, "stop_text": ["a"]}
    assert type(checked("load_model", LOAD, {"context": np.int32(7)})["context"]) is int


@pytest.mark.parametrize("name, value, said", [
    ("max_tokens", 2**31, "max_tokens: wanted a whole number from"), ("max_tokens", "4", "got '4'"), ("max_tokens", 4.0, "got 4.0"), ("seed", None, "seed: wanted a whole number"), ("seed", -1, "seed: wanted a whole number from 0"),
    ("seed", 2**63, f"got {2**63}"), ("stop", 5, "stop: wanted a text, a sequence of texts, or one of token ids.*, got 5"), ("stop", ["a", 1], "token ids, each"),
    ("stop", b"abc", "or one of token ids"), ("stop", {1, 2}, "or one of token ids"), ("logit_bias", {"a": 1.0}, "'a': 1.0 is none"), ("logit_bias", {0: 10**400}, "0: 1000000"),
    ("logit_bias", [1], "a dict"), ("temperature", math.nan, "a finite number, got nan"), ("temperature", "hot", "a finite number"), ("top_p", True, "a finite number"), ("mask", 3, "a function"),
    ("stop_text", [1], "a text or a sequence"), ("max_new_tokens", 3, "no option 'max_new_tokens', did you mean max_tokens"), ("zzz", 3, "no option 'zzz'; options: max_tokens,"), ("\x1b[31m", 3, r"x1b\[31m")])
def test_wrong_values_name_the_option(name, value, said):
    with pytest.raises(vivace.InvalidArgumentError, match=said) as e:
        checked("generate", GENERATE, {name: value})
    assert str(e.value).startswith("generate: ") and str(e.value).isprintable()


def test_every_value_of_every_option_is_taken_or_refused():
    """43 values x 29 options, and 2,000 nested ones: no other exception."""
    rng = random.Random(22)
    nested = [rng.choice([lambda v: (v,), lambda v: [[v]], lambda v: {0: v}, lambda v: {repr(v): v}, lambda v: [v] * 3])(rng.choice(VALUES)) for _ in range(2000)]
    tables = [(GENERATE, n) for n in GENERATE] + [(LOAD, n) for n in LOAD]
    refused = 0
    for table, name in tables:
        for value in VALUES:
            try:
                checked("call", table, {name: value})
            except vivace.InvalidArgumentError:
                refused += 1
    for value in nested:
        try:
            one("call", "x", rng.choice([r for t, n in tables for r in [t[n]]]), value)
        except vivace.InvalidArgumentError:
            refused += 1
    assert refused > 1500


def test_paths():
    assert one("load_model", "path", options.path, pathlib.Path("x")) == "x"
    for bad in (b"x", 3, None, "a\0b", "a\udcff", pathlib.Path("\ud800")):
        with pytest.raises(vivace.InvalidArgumentError, match="a path or a name"):
            one("load_model", "path", options.path, bad)


@pytest.mark.parametrize("call, said", [
    (lambda v: v.set_threads("x"), "set_threads: n: wanted a whole number"), (lambda v: v.set_threads(2**70), "set_threads: n"), (lambda v: v.set_threads(None), "set_threads: n"),
    (lambda v: v.view(np.zeros(4, "u1"), dtype=None, shape=(1,)), "view: dtype: wanted a text, got None"), (lambda v: v.view(np.zeros(4, "u1"), dtype="f32", shape="x"), "view: shape: wanted a shape"),
    (lambda v: v.view(np.zeros(4, "u1"), dtype="f32", shape=(2**70,)), "view: shape"), (lambda v: v.view(None, dtype="f32", shape=(1,)), "view: array: wanted memory, got None"),
    (lambda v: v.array.zeros("x"), "zeros: shape"), (lambda v: v.array.zeros((2**70,)), "zeros: shape"), (lambda v: v.array.zeros(None), "zeros: shape"), (lambda v: v.array.empty(3, dtype=5), "empty: dtype"),
    (lambda v: v.array.empty(3, device=5), "empty: device"), (lambda v: v.array.from_numpy(np.zeros(3), device=None), "from_numpy: device"),
    (lambda v: v.device.info("x"), "info: device: wanted a whole number"), (lambda v: v.device.has_fp8([]), "device"), (lambda v: v.device.state(None), "state: device"), (lambda v: v.device.info(2**70), "info: device"),
    (lambda v: convert(TINY, None), "convert: target: wanted a path"), (lambda v: convert(TINY, "a\0b"), "convert: target"), (lambda v: convert(TINY, "\ud800.gguf"), "convert: target"),
    (lambda v: convert(None, "x"), "wanted a path")])
def test_other_calls_name_what_is_wrong(call, said):
    with pytest.raises((vivace.InvalidArgumentError, vivace.InvalidDTypeError), match=said) as e:
        call(vivace)
    assert str(e.value).isprintable()


def test_names_that_are_none():
    for name in (None, 5, "x\n\ud800"):
        with pytest.raises(UnknownModel, match="no model named") as e:
            fetch(name)
        assert str(e.value).isprintable()
    with pytest.raises(vivace.NotFoundError) as e:
        vivace.load_model("no\nsuch")
    assert str(e.value).startswith(r"no\x0asuch: no such file")


TINY = pathlib.Path(__file__).parent / "fixtures" / "tiny" / "llama_untied"


@pytest.mark.parametrize("call, said", [
    (lambda m: m.generate_ids([1], max_tokens=2**31), "generate: max_tokens: wanted a whole number"), (lambda m: m.generate_ids([1], seed=2**63), "seed"),
    (lambda m: m.generate_ids([2**31]), "ids: wanted token ids"), (lambda m: m.generate_ids(b"abc"), "sequence of token ids, got b'abc'"), (lambda m: m.generate_ids({1, 2}), "sequence of token ids"),
    (lambda m: m.prompt_ids(b"hi"), "prompt: wanted a text, a list of messages, or token ids"), (lambda m: m.generate_ids([1], max_new_tokens=3), "did you mean max_tokens"),
    (lambda m: m.generate_batch("hi"), "prompts: wanted a list of prompts, got 'hi'"), (lambda m: m.generate_ids([1], stop=5), "stop")])
def test_generate_says_which_option(call, said):
    with vivace.load_model(TINY, device="cpu") as model:
        with pytest.raises(vivace.InvalidArgumentError, match=said):
            call(model)
        assert repr(model) == f"<TextModel {TINY}: llama, cpu, precision q8, context {model.report()['context']}, max_batch 1>"
    assert repr(model).endswith("closed>")


@pytest.mark.parametrize("given, said", [(dict(context=2**31), "context"), (dict(precision=8), "precision: wanted a text, got 8"), (dict(contxt=3), "no option 'contxt', did you mean context"),
                                         (dict(max_batch=1.5), "max_batch"), (dict(random_weights="no"), "random_weights: wanted True or False"),
                                         (dict(percentile=-1), "percentile: wanted a value above 50, to 100, got -1")])
def test_load_says_which_option(given, said):
    with pytest.raises(vivace.InvalidArgumentError, match=said):
        vivace.load_model(TINY, device="cpu", **given)
    with pytest.raises(vivace.InvalidArgumentError, match="path_or_name: wanted a path"):
        vivace.load_model(b"x")


@pytest.mark.parametrize("name", ["pi05_tiny", "pi0_tiny"])
def test_a_policy_is_found_without_config(name):
    """Its family is read from the checkpoint; what is missing beside it is still an error."""
    folder = pathlib.Path(__file__).parent / "fixtures" / "vla" / name
    with vivace.load_model(folder, device="cpu", statistics="none") as policy:
        assert policy.report()["family"] == name[:-5]
    with pytest.raises(vivace.NotFoundError, match="statistics: neither norm_stats.json"):
        vivace.load_model(folder, device="cpu")