"""vivace transcribe: sound in, text or subtitles out."""
from __future__ import annotations

import json
import os
import sys
import time

from vivace.speech.formats import FORMATS, written

DEFAULT_MODEL = "whisper-tiny.en"


PRECISIONS = "auto, f32, bf16, f16, w8a16, fp8, fp8_static or q8"


def add_calibration(p) -> None:
    p.add_argument("--calibration", action="append", metavar="FILE", help="of --precision fp8_static: sound that its scales are taken from; may be given several times")


def add_options(p, count) -> None:
    p.add_argument("file", nargs="+", help="a WAV file (others with pip install 'vivace[audio]'), or - for standard input")
    p.add_argument("--model", default=DEFAULT_MODEL, help="folder of a Whisper, or name of a fetched one: whisper-tiny.en, whisper-base")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument("--precision", default="auto", help=PRECISIONS)
    add_calibration(p)
    p.add_argument("--threads", type=count, default=0)
    p.add_argument("--format", default="text", choices=FORMATS)
    p.add_argument("-o", "--out", metavar="FILE", help="where to write, of several files a folder; default: standard output")
    p.add_argument("--windows", type=count, default=1, help="of 30 seconds that are heard together, of several files or with --batched")
    p.add_argument("--batched", action="store_true", help="with --vad: stretches of speech are heard independently")
    p.add_argument("--language", help="a code such as en; default: that of the first 30 seconds")
    p.add_argument("--task", default="transcribe", choices=("transcribe", "translate"))
    p.add_argument("--words", action="store_true", help="say when each word was said (in verbose_json)")
    p.add_argument("--beams", type=count, default=1)
    p.add_argument("--temperature", type=float, action="append", help="may be given several times: tried in turn; default: 0, 0.2, ... 1")
    p.add_argument("--prompt", help="text before all")
    p.add_argument("--hotwords", help="text before every window")
    p.add_argument("--no-condition", action="store_true", help="text so far is no prompt for what follows")
    p.add_argument("--vad", action="store_true", help="hear only where somebody speaks; python -m vivace.fetch silero-vad gets what says so")
    p.add_argument("--seed", type=count, default=0)


class Progress:
    """One line with seconds done and how many times faster than the sound; silent where nobody sees it."""

    def __init__(self):
        self.start, self.shown = time.perf_counter(), sys.stderr.isatty()

    def __call__(self, done: float, all_: float) -> None:
        if self.shown:
            took = max(time.perf_counter() - self.start, 1e-9)
            eta = f", ETA {(all_ - done) * took / done:.0f} s" if done else ""
            print(f"\r\x1b[K{done:.0f} of {all_:.0f} s, {done / took:.1f} x{eta}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def run(args) -> int:
    from vivace.errors import UnsupportedError
    from vivace.files import new_file
    from vivace.model import resolve
    from vivace.speech.model import TEMPERATURES, is_speech, load_speech

    path = resolve(args.model)
    if not is_speech(path):
        raise UnsupportedError(f"{args.model}: no speech model; python -m vivace.fetch {DEFAULT_MODEL} gets one")
    targets = _targets(args) if len(args.file) > 1 else []
    start = time.perf_counter()
    options = dict(language=args.language, task=args.task, words=args.words, beams=args.beams, temperature=args.temperature or TEMPERATURES, prompt=args.prompt, hotwords=args.hotwords,
                   condition=not args.no_condition, seed=args.seed, vad=args.vad, batched=args.batched)
    with load_speech(path, device=args.device, precision=args.precision, calibration=args.calibration, threads=args.threads, windows=args.windows, rows=min(max(args.beams, 5) * args.windows, 64)) as model:
        loaded = time.perf_counter()
        progress = Progress()
        try:
            if targets:
                return _many(model.transcribe_all(args.file, **options), targets, args, loaded)
            t = model.transcribe(args.file[0], on_progress=progress, **options)
        finally:
            progress.clear()
    took = time.perf_counter() - loaded
    facts = {"duration_s": t.duration, "load_s": round(loaded - start, 3), "transcribe_s": round(took, 3), "speed": round(t.duration / took, 2), "language": t.language, "device": args.device}
    if args.json:
        print(json.dumps({"text": t.text, "segments": len(t.segments), **facts}))
        return 0
    out = written(t, args.format)
    if args.out:
        with new_file(os.path.abspath(args.out)) as f:
            f.write(out.encode())
    else:
        sys.stdout.write(out)
    print(f"[{t.duration:.1f} s of {t.language} in {took:.1f} s, {facts['speed']} x]", file=sys.stderr)
    return 0


def _targets(args) -> list[str]:
    """A file in the folder of --out for each of several. Errors: InvalidArgumentError."""
    from vivace.errors import InvalidArgumentError

    if not args.out or not os.path.isdir(args.out):
        raise InvalidArgumentError("--out: wanted a folder for several files")
    ending = {"text": "txt", "verbose_json": "json"}.get(args.format, args.format)
    names = [os.path.join(args.out, f"{os.path.splitext(os.path.basename(f))[0]}.{ending}") for f in args.file]
    if twice := [n for n in names if names.count(n) > 1]:
        raise InvalidArgumentError(f"--out: {twice[0]} would be written twice; give files of different names")
    return names


def _many(transcriptions, targets, args, loaded) -> int:
    from vivace.files import new_file

    for t, target in zip(transcriptions, targets):
        with new_file(os.path.abspath(target)) as f:
            f.write(written(t, args.format).encode())
    took, seconds = time.perf_counter() - loaded, sum(t.duration for t in transcriptions)
    facts = {"files": targets, "duration_s": round(seconds, 3), "transcribe_s": round(took, 3), "speed": round(seconds / took, 2)}
    print(json.dumps(facts) if args.json else f"[{len(targets)} files, {seconds:.1f} s in {took:.1f} s, {facts['speed']} x]", file=sys.stdout if args.json else sys.stderr)
    return 0
