"""load_policy() and predict(): each wrong value of each argument is a vivace.Error that names it, never the binding's own."""
import os
import random
import threading

import numpy as np
import pytest

import vivace
from tests.test_options import VALUES
from tests.test_policy import FIXTURES, fast_observation, load, load_fast, observation
from vivace.options import OBSERVATION, POLICY
from vivace.policy import load_policy

PATH = FIXTURES / "pi05_tiny"


class Broken:
    """Nothing about it can be asked."""

    def __getattr__(self, name):
        raise RuntimeError("planted")

    def __repr__(self):
        raise RuntimeError("planted")

    def __iter__(self):
        raise RuntimeError("planted")


MORE = [*VALUES, "\ud800", Broken(), [None], [Broken()], np.zeros((2, 3)), np.zeros(3, complex), np.array(["a"]), np.zeros((3, 4, 3), np.uint8), [[1, 2], [3]], memoryview(b"abc"), b"", "a\0b", os]


@pytest.mark.parametrize("name", POLICY)
def test_each_option_of_a_load_takes_a_value_or_names_itself(name):
    """Of a folder that is not there: what is right gets as far as looking for it."""
    given, refused = {"config": "pi05", "device": "cpu"}, 0
    for value in MORE:
        with pytest.raises(vivace.Error) as e:
            load_policy(FIXTURES / "none", **given | {name: value})
        if not isinstance(e.value, vivace.NotFoundError):
            refused += 1
            assert type(e.value) is vivace.InvalidArgumentError and name in str(e.value) and str(e.value).isprintable(), value
    assert refused >= (1 if name == "calibration" else 10)


def test_names_nobody_knows():
    with pytest.raises(vivace.InvalidArgumentError, match="no option 'num_view', did you mean num_views"):
        vivace.load_model(PATH, config="pi05", num_view=3)
    for path in (None, 3, b"x", "a\0b", Broken()):
        with pytest.raises(vivace.InvalidArgumentError, match="load_policy: path: wanted a path"):
            load_policy(path, config="pi05")
    with load("pi05", "pi05_tiny", "a") as model:
        for call in (lambda: model.predict_batch([dict(observation("pi05_tiny", "a"), sede=3)]), lambda: model.calibrate([dict(image=[])])):
            with pytest.raises(vivace.InvalidArgumentError, match="did you mean (seed|images)"):
                call()
        for wrong in (None, 3, "a", {}, [3], [None], [[]], dict(images=[None])):
            for call in (model.predict_batch, model.calibrate):
                with pytest.raises(vivace.InvalidArgumentError, match="observations"):
                    call(wrong)
        with pytest.raises(vivace.InvalidArgumentError, match="images"):
            model.predict_batch([{"prompt": [2]}])


WRONG = [(dict(seed=1.5), "predict: seed: wanted a whole number from 0 to .*, got 1.5"), (dict(seed="1"), "seed"), (dict(seed=True), "seed"), (dict(seed=-1), "seed"), (dict(seed=1 << 64), "seed"),
         (dict(prompt=[2, 17.5]), "prompt: wanted"), (dict(prompt=[2**31]), "prompt"), (dict(prompt=b"go"), "prompt"), (dict(prompt=3), "prompt"), (dict(prompt={2, 3}), "prompt"), (dict(prompt="\ud800"), "prompt: wanted a text that is UTF-8"),
         (dict(images={"top": 1}), "images: wanted a list with a frame"), (dict(images=3), "images"), (dict(images="ab"), "images"), (dict(images=["ab", None]), "camera 0"), (dict(images=[None, 3]), "camera 1"), (dict(images=[Broken(), None]), "camera 0"),
         (dict(state="abc"), "state: wanted numbers"), (dict(state=Broken()), "state: wanted numbers"), (dict(state=[1j]), "state"), (dict(state=[[1.0]]), "state: wanted 1 axes, got 2"), (dict(state=3.0), "state: wanted 1 axes, got 0"), (dict(state=[1e300]), "state is not finite"),
         (dict(state=["1"]), "state: wanted numbers"), (dict(state=[True]), "state: wanted numbers"), (dict(noise=3), "noise"), (dict(noise=np.zeros((10, 31))), "noise: wanted rows of 32, got 31"), (dict(noise=[["a"] * 32] * 10), "noise"), (dict(action_prefix=[[0.0] * 31]), "action_prefix"),
         (dict(future_actions=[0.0] * 32), "future_actions: wanted at most 10 rows of 32, got .32."), (dict(future_actions=np.zeros((11, 32))), "future_actions: wanted at most 10 rows"), (dict(future_actions=np.full((1, 32), np.nan)), "future_actions: a value is not finite"),
         (dict(future_actions=np.zeros((1, 32)), state=None), "future_actions: the state that they lead on from is missing"), (dict(future_actions="a"), "future_actions"), (dict(future_actions=np.zeros((1, 32)), future_steps=3), "future_steps")]


@pytest.fixture(scope="module")
def pi05():
    with load("pi05", "pi05_tiny", "a", num_steps=1) as model:
        yield model


@pytest.mark.parametrize("change, said", WRONG, ids=lambda v: v if isinstance(v, str) else next(iter(v)))
def test_predict_names_what_is_wrong(pi05, change, said):
    with pytest.raises(vivace.Error, match=said):
        pi05.predict(**observation("pi05_tiny", "a") | change)


@pytest.mark.parametrize("family", ["pi05", "pi0fast"])
def test_every_value_of_every_argument(family, pi05):
    """Alone and nested: an answer or a vivace.Error, nothing else."""
    model, given, rng, refused = (pi05, observation("pi05_tiny", "a"), random.Random(22), 0) if family == "pi05" else (load_fast("a"), fast_observation("a"), random.Random(22), 0)
    call = model.predict if family == "pi05" else model.tokens
    names = ["images", "prompt", "state"] + (["noise", "seed", "action_prefix", "future_actions", "future_steps"] if family == "pi05" else ["end_token"])
    assert set(names) <= {*OBSERVATION, "prompt"}
    for name in names:
        nested = [rng.choice([lambda v: [v], lambda v: (v, None), lambda v: [[v]], lambda v: {0: v}])(rng.choice(MORE)) for _ in range(40)]
        for value in [*MORE, *nested]:
            try:
                call(**given | {name: value})
            except vivace.Error as e:
                assert str(e).isprintable()
                refused += 1
    assert refused > 80 * len(names) - 60
    for wrong in MORE:
        for ask in (lambda: model.normalized(wrong), lambda: model.profile(wrong), lambda: model.profile("actions", wrong), lambda: model.set_prompt(wrong), lambda: model.calibrate([given], wrong)):
            try:
                ask()
            except vivace.Error:
                pass


def test_eight_threads_on_one_policy(pi05):
    """Calls queue: each thread gets its own answer, nobody hangs."""
    given = observation("pi05_tiny", "a") | dict(noise=None)
    want = [pi05.predict(**given, seed=s) for s in range(8)]
    wrong, threads = [], []

    def work(seed):
        for _ in range(6):
            if not (pi05.predict(**given, seed=seed) == want[seed]).all():
                wrong.append(seed)
            pi05.device_us(), pi05.report()

    for seed in range(8):
        threads.append(threading.Thread(target=work, args=(seed,), daemon=True))
        threads[-1].start()
    for t in threads:
        t.join(60)
    assert not wrong and not any(t.is_alive() for t in threads)


@pytest.mark.parametrize("name", ['say "hi"', "a\nb\tc", "back\\b", "Gr\u00fc\u00dfe \U0001f916", "control \x01\x7f"])
def test_a_report_is_json_whatever_the_path(name, tmp_path):
    from tests.test_policy import STATS, with_statistics

    path = tmp_path / name
    path.mkdir()
    with load("pi05", "pi05_tiny", "a", with_statistics(path, "pi05_tiny", STATS), statistics="auto", num_steps=1) as model:
        assert model.report()["statistics"] == str(path / "assets/lab/arm/norm_stats.json")
