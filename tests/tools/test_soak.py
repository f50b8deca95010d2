"""tools/soak.py: a few seconds of it hold, and each kind of fault that it is there to find is found."""
import json
import time

import pytest

from tools import soak

@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return soak.tiny(tmp_path_factory.mktemp("m"))


@pytest.fixture
def run(folder, capsys):
    def call(*more):
        code = soak.main(["--seconds", "3", "--model", str(folder), "--callers", "3", "--interval", "0.05", "--no-policy", "--patience", "20", *more])
        return code, json.loads(capsys.readouterr().out)

    return call


def test_it_holds(run):
    code, facts = run()
    assert facts["wrong"] == facts["stuck"] == facts["steep"] == []
    assert code == 0 and facts["pass"] and {"answers", "left", "refused", "batches", "masks that raised", "asyncio answers"} <= set(facts["counts"])
    assert set(facts["slopes_an_hour"]) == {"rss_mb", "fds", "threads"}


@pytest.mark.parametrize("plant, said", [("wrong", "otherwise than alone"), ("raise", "KeyError")])
def test_a_wrong_answer_and_a_raw_exception_are_found(plant, said, run, monkeypatch):
    right = soak.Load.answer

    def answer(self, rng):
        if plant == "raise":
            raise KeyError("planted")
        self.alone[0] = [0]
        return right(self, rng)

    monkeypatch.setattr(soak.Load, "answer", answer)
    code, facts = run()
    assert code == 1 and any(said in w for w in facts["wrong"])


def test_a_caller_that_waits_is_found(run, monkeypatch):
    monkeypatch.setattr(soak.Load, "leave", lambda self, rng: time.sleep(4) or "left")
    code, facts = run("--patience", "2")
    assert code == 1 and any("waited for more than 2 s" in s for s in facts["stuck"])


def test_descriptors_that_stay_open_are_found(run, monkeypatch):
    held = []
    monkeypatch.setattr(soak.Load, "refused", lambda self, rng: held.append(open("/dev/null")) or "refused")
    code, facts = run()
    for f in held:
        f.close()
    assert code == 1 and facts["steep"] == ["fds"]
