"""`vivace demo voice`: what is said is heard, answered and obeyed; nothing moves for a sentence that names no colour."""
import json
import shutil
import xml.etree.ElementTree as ET

import pytest

import vivace
from tests import speech_data
from tests.test_smollm2 import model_path
from tests.test_transcribe import errors
from vivace import cli
from vivace.demo import voice

TO = ["--device", "cpu", "--pace", "0"]


def options():
    return ["--model", model_path(), "--speech", speech_data.weights("whisper-tiny.en"), *TO]


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="apt-get install espeak-ng")
def test_it_obeys(tmp_path, capsys):
    speech_data.weights("silero-vad")
    out = tmp_path / "a.svg"
    assert cli.main(["demo", "voice", "--json", "--out", str(out), *options()]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert errors(voice.SENTENCE, facts["heard"]) <= 1 and facts["goal"] == "yellow" and facts["reached"] and facts["answer"]
    rows = {e["row"] for e in facts["events"]}
    assert rows == {"sound", "Whisper", "stable text", "language model", "policy"} and all(0 <= e["begin_s"] <= e["end_s"] for e in facts["events"])
    assert len(ET.parse(out).getroot().findall(".//{*}rect")) == len(facts["events"]) + 1


def test_nothing_moves(tmp_path, capsys):
    raw, want = speech_data.librivox()["0930"]
    (tmp_path / "a.wav").write_bytes(raw)
    assert cli.main(["demo", "voice", "--json", "--sound", str(tmp_path / "a.wav"), *options()]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert errors(want, facts["heard"]) <= 2 and facts["goal"] is None and facts["reached"] is None and "policy" not in {e["row"] for e in facts["events"]}


@pytest.mark.parametrize("text, want", [("Reach the RED block.", "red"), ("red, no, the green one", "green"), ("redder than ever", None), ("", None)])
def test_named(text, want):
    assert voice.named(text) == want


@pytest.mark.parametrize("change, kind, message", [
    (dict(sentence=" "), "InvalidArgumentError", "say: wanted a sentence"), (dict(sentence="x" * 501), "InvalidArgumentError", "at most 500"), (dict(pace=-1), "InvalidArgumentError", "pace"),
    (dict(pace=float("nan")), "InvalidArgumentError", "pace"), (dict(out="a.png"), "NotFoundError", "NAME.svg"), (dict(sound="/nowhere/a.wav"), "NotFoundError", "nowhere"),
])
def test_refused(change, kind, message):
    with pytest.raises(getattr(vivace, kind), match=message):
        voice.show(**change)


def test_without_espeak(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(vivace.UnsupportedError, match="apt-get install espeak-ng"):
        voice.said("hello")


def test_a_picture_holds_any_text():
    svg = voice.picture([(0, 0.0, 1.0, "<b> & \"c\""), (4, 0.9, 2.0, "]]>")])
    assert len(ET.fromstring(svg).findall(".//{*}rect")) == 3
