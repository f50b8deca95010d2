"""vivace listen: a microphone, or a file at the pace at which it plays, to text while it is said."""
from __future__ import annotations

import json
import queue
import shutil
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict

from vivace.errors import InvalidArgumentError, LimitExceededError, NotFoundError, UnsupportedError
from vivace.speech.command import DEFAULT_MODEL, PRECISIONS, add_calibration

PIECE = 0.02         # seconds that a file is pushed in
_MOST_BEHIND = 60.0  # seconds of sound that wait for the model
_SAY_BEHIND = 3.0


def add_options(p, count) -> None:
    p.add_argument("file", nargs="?", help="a sound file, heard at the pace at which it plays; - for raw i16 samples from standard input; default: the microphone (pip install 'vivace[microphone]')")
    p.add_argument("--model", default=DEFAULT_MODEL, help="folder of a Whisper, or name of a fetched one")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument("--precision", default="auto", help=PRECISIONS)
    add_calibration(p)
    p.add_argument("--threads", type=count, default=0)
    p.add_argument("--policy", default="alignatt", choices=("alignatt", "local_agreement"), help="when text is stable")
    p.add_argument("--step", type=float, default=1.0, help="seconds between updates (default 1)")
    p.add_argument("--language", help="a code such as en; default: that of each utterance")
    p.add_argument("--task", default="transcribe", choices=("transcribe", "translate"))
    p.add_argument("--prompt", help="text before all")
    p.add_argument("--rate", type=count, default=16000, help="samples a second of standard input or the microphone")
    p.add_argument("--microphone", help="number or name of an input device")
    p.add_argument("--pace", type=float, default=1.0, help="seconds of a file a second; 0: as fast as it goes")


def run(args) -> int:
    from vivace import audio
    from vivace.model import resolve
    from vivace.speech.model import is_speech, load_speech

    path = resolve(args.model)
    if not is_speech(path):
        raise UnsupportedError(f"{args.model}: no speech model; python -m vivace.fetch {DEFAULT_MODEL} gets one")
    if not 0 <= args.pace <= 1000:
        raise InvalidArgumentError(f"--pace: wanted 0 to 1000, got {args.pace}")
    rate, pieces = args.rate, None
    if args.file == "-":
        pieces = _raw(sys.stdin.buffer)
    elif args.file is not None:
        samples, rate = audio.read(args.file)
        pieces = _paced(samples, rate, args.pace)
    with load_speech(path, device=args.device, precision=args.precision, calibration=args.calibration, threads=args.threads, rows=1) as model:
        show = Lines(args.json)
        with model.stream_audio(rate=rate, policy=args.policy, step=args.step, language=args.language, task=args.task, prompt=args.prompt) as stream:
            try:
                with _microphone(rate, args.microphone) if pieces is None else _given(pieces) as source:
                    for piece in source:
                        show(stream.push(piece))
            except KeyboardInterrupt:
                if pieces is not None:
                    raise
            show(stream.finish())
    return 0


@contextmanager
def _given(pieces):
    yield pieces


def _raw(f):
    while piece := f.read1(1 << 16):
        yield piece


def _paced(samples, rate: int, pace: float):
    start, n = time.monotonic(), max(1, round(PIECE * rate))
    for first in range(0, len(samples), n):
        piece = samples[first:first + n]
        if pace and (early := (first + len(piece)) / rate / pace - (time.monotonic() - start)) > 0:
            time.sleep(early)
        yield piece


@contextmanager
def _microphone(rate: int, device):
    try:
        import sounddevice
    except (ImportError, OSError) as e:  # OSError: the package is there and PortAudio is not
        raise UnsupportedError("no microphone: pip install 'vivace[microphone]' (and PortAudio, Debian's libportaudio2), or give a file") from e
    waiting = queue.Queue(int(_MOST_BEHIND / PIECE))

    def came(data, frames, when, status):
        try:
            waiting.put_nowait(bytes(data))
        except queue.Full:
            pass  # told below

    def pieces():
        told = False
        while True:
            piece = [waiting.get()]
            while not waiting.empty():
                piece.append(waiting.get())
            if len(piece) * PIECE > _SAY_BEHIND and not told:
                told = True
                print(f"vivace: {len(piece) * PIECE:.0f} s behind: a longer --step, or a smaller model", file=sys.stderr)
            if len(piece) >= waiting.maxsize:
                raise LimitExceededError(f"listen: {_MOST_BEHIND:.0f} seconds behind the microphone: a longer --step, or a smaller model")
            yield b"".join(piece)

    name = int(device) if device is not None and device.isdecimal() else device
    try:
        with sounddevice.RawInputStream(samplerate=rate, channels=1, dtype="int16", blocksize=round(PIECE * rate), device=name, callback=came):
            yield pieces()
    except (sounddevice.PortAudioError, ValueError) as e:
        raise NotFoundError(f"microphone: {e}") from e


class Lines:
    """Utterances, a line each; on a terminal while they are said, what may change still in grey. As JSON every update."""

    def __init__(self, as_json: bool):
        self.json, self.live, self.text = as_json, sys.stdout.isatty() and not as_json, ""

    def __call__(self, all_heard) -> None:
        for heard in all_heard:
            if self.json:
                print(json.dumps(asdict(heard), ensure_ascii=False), flush=True)
                continue
            self.text += heard.stable
            if self.live:
                room = shutil.get_terminal_size().columns - 1
                partial = heard.partial[:room]
                print(f"\r\x1b[K{self.text.strip()[-(room - len(partial)):] if room > len(partial) else ''}\x1b[2m{partial}\x1b[0m", end="", flush=True)
            if heard.final:
                if self.live:
                    print("\r\x1b[K", end="")
                if self.text.strip():
                    print(self.text.strip(), flush=True)
                self.text = ""
