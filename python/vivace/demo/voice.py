"""`vivace demo voice`: a sentence is said, Whisper hears it while it is said, a language model answers, and the reach policy obeys where the sentence
names a colour. Three models in one process, and one timeline of who worked when."""
from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import vivace
from vivace import audio
from vivace.demo import arm, reach
from vivace.errors import InvalidArgumentError, IoError, NotFoundError, UnsupportedError
from vivace.speech.listen import PIECE

SENTENCE = "Hello robot, please reach the yellow block."
RATE = 140           # words a minute that espeak-ng says
_ROWS = ("sound", "Whisper", "stable text", "language model", "policy")
_COLOURS = ("#9aa5ad", "#0b6e99", "#4b7f2c", "#7a4b94", "#b5482a")
_WIDTH, _LEFT, _TOP, _HIGH = 900, 110, 30, 34  # of the picture; of a row
_MOST_TEXT = 500


def said(sentence: str) -> bytes:
    """A WAV file of the sentence. Errors: UnsupportedError without espeak-ng, InvalidArgumentError, IoError."""
    if not sentence.strip() or len(sentence) > _MOST_TEXT or "\0" in sentence:
        raise InvalidArgumentError(f"say: wanted a sentence of at most {_MOST_TEXT} characters")
    try:
        done = subprocess.run(["espeak-ng", "-v", "en-us", "-s", str(RATE), "--stdin", "--stdout"], input=sentence.encode(), capture_output=True, timeout=60)
    except FileNotFoundError as e:
        raise UnsupportedError("say: espeak-ng is not installed (apt-get install espeak-ng); or give --sound FILE") from e
    if done.returncode or not done.stdout:
        raise IoError(f"say: espeak-ng ended with status {done.returncode}: {done.stderr[:200].decode(errors='replace')}")
    return done.stdout


def named(text: str) -> str | None:
    """The colour that a sentence names; the last one, where somebody changes their mind."""
    found = [w for w in re.findall(r"[a-z]+", text.lower()) if w in arm.COLOURS]
    return found[-1] if found else None


def show(*, sentence=SENTENCE, sound=None, device="auto", threads=0, seed=0, pace=1.0, model="smollm2-135m-instruct", speech="whisper-tiny.en", out=None, say=None) -> dict:
    """What `vivace demo voice` does; its facts. sound: a file instead of the sentence. pace: seconds of sound a second, 0: as fast as it goes.
    out: a picture (.svg) of who worked when. Errors: those of vivace.load_model() and vivace.audio; NotFoundError names what to fetch."""
    if not 0 <= pace <= 100:
        raise InvalidArgumentError(f"pace: wanted 0 to 100, got {pace}")
    if out is not None and (Path(out).suffix != ".svg" or not Path(out).absolute().parent.is_dir()):
        raise NotFoundError(f"out: wanted NAME.svg in a folder that is there, got {out}")
    say = say or (lambda line: None)
    samples, rate = audio.read(said(sentence) if sound is None else sound)
    with vivace.load_model(speech, device=device, threads=threads) as hears, vivace.load_model(model, device=device, threads=threads, context=512) as answers, reach.load(device, threads=threads) as policy:
        events, start = [], time.perf_counter()  # (row, begin, end, what)
        now = lambda: time.perf_counter() - start  # noqa: E731

        def worked(row, begin, what=""):
            events.append((row, round(begin, 4), round(now(), 4), what))

        text, n = "", max(1, round(PIECE * rate))
        with hears.stream_audio(rate=rate, step=1.0, language="en") as stream:
            for first in range(0, len(samples) + n, n):
                piece = samples[first:first + n]
                if pace and (early := (first + len(piece)) / rate / pace - now()) > 0:
                    time.sleep(early)
                begin = now()
                heard = stream.push(piece) if len(piece) else stream.finish()
                if heard:
                    worked(1, begin)
                for h in heard:
                    text += h.stable
                    if h.stable:
                        worked(2, now(), h.stable.strip())
        events.append((0, 0.0, round(len(samples) / rate / pace, 4) if pace else 0.0, "" if sound else sentence))
        text = text.strip()
        say(f"heard: {text!r}")
        begin = now()
        answer = answers.generate([{"role": "system", "content": "You are a friendly robot. Say in one short sentence what you will do now."}, {"role": "user", "content": text or "(silence)"}], max_tokens=24).text.strip()
        worked(3, begin, answer)
        say(f"answer: {answer}")
        goal, episode = named(text), None
        if goal is not None:
            begin = now()
            (episode,), _ = reach.run(policy, [seed], goal=goal)
            worked(4, begin, episode.words)
            say(f"policy: {episode.words!r}: " + (f"reached after {episode.steps} steps" if episode.reached else f"not within {reach.STEPS} steps"))
        else:
            say("policy: the sentence names no colour, nothing moves")
    over = len(samples) / rate / pace if pace else 0.0
    facts = {"heard": text, "answer": answer, "goal": goal, "reached": episode.reached if episode else None, "sound_s": round(len(samples) / rate, 3),
             "final_after_s": round(max((e for r, _, e, _ in events if r == 1), default=over) - over, 3), "events": [{"row": _ROWS[r], "begin_s": a, "end_s": b, "what": w} for r, a, b, w in sorted(events)], "out": out}
    if out is not None:
        Path(out).write_text(picture(events))
        say(f"{out}: {max(e for _, _, e, _ in events):.1f} seconds")
    return facts


def picture(events) -> str:
    """Who worked when, as SVG."""
    from xml.sax.saxutils import escape

    end = max(b for _, _, b, _ in events) or 1.0
    at = lambda t: _LEFT + (_WIDTH - _LEFT - 16) * t / end  # noqa: E731
    body = ['<rect width="100%" height="100%" fill="#fff"/>']
    for t in range(int(end) + 1):
        body.append(f'<path d="M{at(t):.1f} {_TOP - 6}V{_TOP + _HIGH * len(_ROWS)}" stroke="#e2e2e2"/><text x="{at(t):.1f}" y="{_TOP - 10}" text-anchor="middle">{t} s</text>')
    for row, name in enumerate(_ROWS):
        body.append(f'<text x="{_LEFT - 8}" y="{_TOP + _HIGH * row + 14}" text-anchor="end">{name}</text>')
    for row, a, b, what in sorted(events):
        y = _TOP + _HIGH * row + 3
        body.append(f'<rect x="{at(a):.1f}" y="{y}" width="{max(1.5, at(b) - at(a)):.1f}" height="14" fill="{_COLOURS[row]}"><title>{a:.2f} to {b:.2f} s {escape(what)}</title></rect>')
        if what:
            near = at(a) > _WIDTH * 0.7
            body.append(f'<text x="{at(b) if near else at(a):.1f}" y="{y + 26}" font-size="9"{" text-anchor=" + chr(34) + "end" + chr(34) if near else ""}>{escape(what[:70])}</text>')
    size = f'width="{_WIDTH}" height="{_TOP + _HIGH * len(_ROWS) + 8}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">', *body, "</svg>", ""])
