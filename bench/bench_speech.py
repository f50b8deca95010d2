"""Whisper of published shapes on a GPU, random weights: bench/results/<chip>/speech.json.

    python bench/bench_speech.py --facts FILE --out DIR [--cases large-v3:fp8_static,turbo:bf16] [--seconds 110] [--tiny] [--profile]

All times are the host's, from samples in its memory to tokens in its memory. metric=encoder: a window of 30 s, features included. metric=step: one token of
one window, from texts of two lengths. metric=window: a window and 100 tokens, greedy; metric=beam5 the same tokens by five beams. metric=batch: 64
windows with 100 tokens each, encoded and decoded together. metric=update: what a stream's update costs (a window encoded, 80 tokens of text read, 8
made, each followed by cross-attention), and metric=final its last (25 made). metric=streams: 16 streams, an update each 0.5 s, due at times of their own,
from due to done; with windows=8 those that wait at the same time go through the loop that real ones share (vivace.speech.engine). Weights say nothing, so that the end token is kept away, and no word is heard: delays behind a word are bench_stream.py's. Peers
are transformers on the same chip on an earlier day. --decode-layers: a step of one row by one launch and by launches. --tiny: two layers, on any device; for a look at this script. --profile: what each kind of launch of
an encoder's window, and of steps of one row and five, takes and would take at the chip's rates; nothing else is measured, and no receipt is written.
"""
import argparse
import functools
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.receipt import Receipt  # noqa: E402

NAMES = {"large-v3": "whisper-large-v3", "turbo": "whisper-large-v3-turbo"}
ALONE, GREEDY, SHARED, TOGETHER = (1, 8), (1, 1), (8, 8), (64, 64)  # windows and rows of a load
TOKENS, SAID, MADE, LAST = 100, 80, 8, 25
STREAMS, STEP, SECONDS = 16, 0.5, 6.0
# (name, metric) -> goal in us, and a peer's
GOAL = {("large-v3", "encoder"): 4000, ("turbo", "encoder"): 4000, ("large-v3", "step"): 800, ("turbo", "step"): 150, ("large-v3", "window"): 90e3, ("turbo", "window"): 20e3,
        ("large-v3", "batch"): 64 * 30e6 / 1000, ("turbo", "batch"): 64 * 30e6 / 3000, ("large-v3", "streams"): 60e3, ("large-v3", "final"): 150e3}
PEER = {("large-v3", "encoder"): ("transformers compiled, archived", 6300), ("large-v3", "step"): ("transformers eager, archived", 17400), ("turbo", "step"): ("transformers eager, archived", 3300),
        ("large-v3", "window"): ("transformers eager, archived", 1_747_000), ("turbo", "window"): ("transformers eager, archived", 339_000)}
SOURCES = ["vivace/models/whisper/*.cc", "vivace/models/whisper/*.h", "vivace/engine/*.cc", "vivace/kernels/**/*.cuh", "vivace/ops/*.h", "python/vivace/speech/engine.py", "bench/bench_speech.py", "bench/configs/whisper-large-v3*/config.json"]


def quantile(values, q) -> float:
    return sorted(values)[min(int(q * len(values)), len(values) - 1)]


def walls(run, most, seconds) -> list[float]:
    """us of each call: `most` of them, or as many as `seconds` allow, three at least."""
    for _ in range(2):
        run()
    out, end = [], time.perf_counter() + seconds
    while len(out) < most and (len(out) < 3 or time.perf_counter() < end):
        start = time.perf_counter()
        run()
        out.append((time.perf_counter() - start) * 1e6)
    return out


def folder_of(name, tiny, into) -> str:
    """A config alone; with two layers where `tiny`."""
    config = json.loads((ROOT / "bench/configs" / NAMES[name] / "config.json").read_text())
    if tiny:
        config |= {"encoder_layers": 2, "decoder_layers": 2}
    path = Path(into) / f"{name}-{tiny}"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def noise(i: int = 0):
    import numpy as np

    return np.random.default_rng(i).normal(0, 0.1, 480000).astype(np.float32)


@functools.cache
def scales_of(folder, device) -> list[float]:
    """Of fp8_static, calibrated from noise: quantized values as large as real ones, since power depends on them."""
    from vivace import _core

    return _core.load_speech(folder, device=device, precision="bf16", rows=1, random_weights=True).calibrate([noise()])


def load(folder, device, precision, windows, rows, **more):
    from vivace import _core

    return _core.load_speech(folder, device=device, precision=precision, windows=windows, rows=rows, random_weights=True, act_scales=scales_of(folder, device) if precision == "fp8_static" else [], **more)


def warm(jobs, device, into, seconds) -> None:
    """Kernels of every load below, compiled side by side: two layers of a model have those of all its layers."""
    code = (f"import sys; sys.path.insert(0, {str(ROOT)!r}); from bench.bench_speech import load; from vivace.model import find_compiler; f, d, p, w, r = sys.argv[1:]; find_compiler(d);"
            "load(f, d, p, int(w), int(r))")
    running = [subprocess.Popen([sys.executable, "-c", code, folder_of(name, True, into), device, precision, str(windows), str(rows)]) for name, precision, windows, rows in jobs]
    until = time.monotonic() + seconds
    for p in running:
        try:
            p.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:  # a load below will say why
            p.kill()
            p.wait()


class Asked:
    """What a model is asked for; its text never ends by itself."""

    def __init__(self, core):
        t, self.core = core.tokens(), core
        self.lead = [t["sot"], t["first_language"], t["transcribe"], t["no_timestamps"]]
        self.never, self.before = [t["eot"]], [t["sot_prev"], *range(1000, 1000 + SAID)]
        self.sounds = [noise(i) for i in range(core.limits()["windows"])]
        layers, heads = core.limits()["layers"], core.limits()["heads"]
        self.heads = [(layers - 1 - i % max(1, layers // 2), i % heads) for i in range(10 if layers > 4 else 6)]

    def encode(self, windows=1):
        self.core.encode([(x, 0, 3000, 1.5) for x in self.sounds[:windows]])

    def decode(self, most, windows=1, **more):
        return self.core.decode([{"window": i, "prompt": self.lead, "suppress": self.never, "timestamps": False, "most": most, **more} for i in range(windows)])

    def followed(self, most):
        return {"prompt": self.before + self.lead, "suppress": self.never, "timestamps": False, "most": most, "heads": self.heads, "content": 1500, "margin": 0, "rewind": 1500}

    def update(self, most):
        self.encode()
        self.core.follow(self.followed(most))


def streams(asked) -> tuple[list[float], float]:
    """us from due to done of each update, and the share of time that the model was busy."""
    rng = random.Random(1)
    due = sorted(phase + k * STEP for phase in (rng.random() * STEP for _ in range(STREAMS)) for k in range(int(SECONDS / STEP)))
    out, busy, first = [], 0.0, time.perf_counter()
    for t in due:
        time.sleep(max(0.0, first + t - time.perf_counter()))
        start = time.perf_counter()
        asked.update(MADE)
        done = time.perf_counter()
        out.append((done - first - t) * 1e6)
        busy += done - start
    return out, busy / (time.perf_counter() - first)


def shared_streams(asked) -> list[float]:
    """us from due to done of each update, a thread a stream, through the engine's loop."""
    from vivace.speech.engine import Engine, Lane, Window

    rng, core = random.Random(1), asked.core
    phases = [rng.random() * STEP for _ in range(STREAMS)]
    engine, out, first = Engine(lambda: core), [], time.perf_counter() + 0.1

    def update(sound):
        yield Window(sound, 0, 3000, core.peak(sound))
        yield asked.followed(MADE)

    def work(i):
        sound = asked.sounds[i % len(asked.sounds)]
        for k in range(int(SECONDS / STEP)):
            due = first + phases[i] + k * STEP
            time.sleep(max(0.0, due - time.perf_counter()))
            engine.run([Lane(update(sound))])
            out.append((time.perf_counter() - due) * 1e6)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(STREAMS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


def shared(name, precision, core, add) -> None:
    a = Asked(core)
    for n in range(1, SHARED[0] + 1):  # warm
        a.encode(n)
        core.decode([a.followed(2) | {"window": i} for i in range(n)])
    times = shared_streams(a)
    add(name, precision, SHARED[0], "streams", times, judged=0.99, note=f"{STREAMS} streams, step {STEP} s, those that wait go together; the longest {max(times):.0f} us; goal is of p99")


def alone(name, precision, core, add) -> None:
    a = Asked(core)
    row = functools.partial(add, name, precision, ALONE[0])
    row("encoder", walls(a.encode, 100, 2))
    greedy = one_window(a, row)
    beams = walls(lambda: a.decode(TOKENS, candidates=5), 10, 3)
    row("beam5", beams, note=f"{quantile(beams, 0.5) / greedy:.2f} x greedy's text of {greedy:.0f} us, goal 1.25")


def one_row(name, precision, core, add) -> None:
    """A model that holds a single row: its steps are one launch where decode_layers says so."""
    way = json.loads(dict(core.report())["decode_layers"])
    one_window(Asked(core), lambda metric, values, note="", **more: add(name, precision, f"{ALONE[0]},rows=1", metric, values, note=f"decode_layers {way}; {note}", **more))


def one_window(a, row) -> float:
    """us of a text."""
    a.encode()
    assert [len(r[0]) for r in a.decode(TOKENS)] == [TOKENS]
    short, long = walls(lambda: a.decode(TOKENS // 5), 20, 2), walls(lambda: a.decode(TOKENS), 20, 4)
    each = (quantile(long, 0.5) - quantile(short, 0.5)) / (TOKENS - TOKENS // 5)
    row("step", [each], note=f"medians of {len(long)} texts of {TOKENS} tokens less {len(short)} of {TOKENS // 5}; prompt of {len(a.lead)} tokens and what surrounds it {quantile(short, 0.5) - each * TOKENS // 5:.0f} us")

    def window():
        a.encode()
        a.decode(TOKENS)

    row("window", walls(window, 20, 4))
    row("update", walls(lambda: a.update(MADE), 50, 2))
    row("final", walls(lambda: a.update(LAST), 20, 2))
    times, busy = streams(a)
    row("streams", times, judged=0.99, note=f"{STREAMS} streams, step {STEP} s, busy {busy:.0%} of the time; the longest {max(times):.0f} us; goal is of p99")
    return quantile(long, 0.5)


def profiled(name, precision, core, add) -> None:
    from bench.bench_vla import print_profile

    print(f"{name} {precision}:")
    for stage, windows, rows in (("encoder", 1, 0), ("step of 1 row", 0, 1), ("step of 5 rows", 0, 5)):
        print_profile(precision, stage, core.profile(windows, rows, True))


def in_turn(name, precision, core, other, turns=4) -> None:
    """A step by one launch of all layers (`core`) and by launches (`other`), in turn: no row, both are printed."""
    ways = {"on": Asked(core), "off": Asked(other)}
    print(f"{name} {precision}: {dict(core.report())['decode_layers']}, {dict(other.report())['decode_layers']}")
    for a in ways.values():
        a.encode()
    for turn in range(turns):
        for way, a in ways.items():
            short, long = walls(lambda: a.decode(TOKENS // 5), 20, 1), walls(lambda: a.decode(TOKENS), 20, 2)
            each = [(quantile(long, q) - quantile(short, q)) / (TOKENS - TOKENS // 5) for q in (0.5, 0.9)]
            print(f"{name:<9} {precision:<6} turn {turn}  decode_layers {way:<3}  step p50 {each[0]:8.1f} us  p90 {each[1]:8.1f} us", flush=True)


def together(name, precision, core, add) -> None:
    a, n = Asked(core), TOGETHER[0]

    def all_():
        a.encode(n)
        a.decode(TOKENS, n)

    encoded, both = walls(lambda: a.encode(n), 5, 2), walls(all_, 5, 6)
    p50 = quantile(both, 0.5)
    add(name, precision, n, "batch", both, note=f"{n * 30e6 / p50:.0f} x real time; of it the encoder {quantile(encoded, 0.5):.0f} us")


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--facts", type=Path)
    p.add_argument("--out", type=Path, help="folder under which bench/results/<chip> is written")
    p.add_argument("--cases", default="large-v3:bf16,turbo:bf16,large-v3:w8a16", help="name:precision, with commas between")
    p.add_argument("--device", default="cuda")
    p.add_argument("--seconds", type=float, default=110, help="after which no other load begins")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--profile", action="store_true")
    p.add_argument("--decode-layers", action="store_true", help="steps of one row by one launch and by launches, in turn; nothing else is measured, and no receipt is written")
    args = p.parse_args()
    began = time.monotonic()
    import vivace
    from vivace.model import find_compiler

    facts = json.loads(args.facts.read_text()) if args.facts else {"chip": "cpu"}
    r = Receipt("speech", command="python bench/bench_speech.py", sources=SOURCES, **{"versions": {"vivace": vivace.__version__}} | facts)

    def add(name, precision, windows, metric, values, judged=0.5, note=None):
        goal, (peer, peer_us) = GOAL.get((name, metric)), PEER.get((name, metric), (None, None))
        p50, many = quantile(values, 0.5), len(values) > 1
        more = {"p99_us": quantile(values, 0.99)} if many else {}
        if goal and judged != 0.5:
            note, goal = f"p99 {'within' if quantile(values, judged) <= goal else 'above'} {goal:.0f} us: {note}", None
        r.row(op="e2e", case=f"model={NAMES[name]},windows={windows},metric={metric}", dtype=precision, tool="host clock", p50_us=p50, n=len(values), limit_us=goal, peer=peer, peer_p50_us=peer_us, note=note, **more)
        if args.out:
            r.root = args.out
            r.write("bench")  # after every row: a machine's time may end
        print(f"{name:<9} {precision:<6} windows {windows:>2}  {metric:<8} p50 {p50:11.1f} us" + (f"  p99 {quantile(values, 0.99):11.1f}" if many else "") + (f"  goal {goal:.0f}" if goal else "") + (f"  {note}" if note else ""), flush=True)

    find_compiler(args.device)
    cases, failed = [tuple(c.split(":")) for c in args.cases.split(",")], 0
    jobs = [(name, precision, *shape, measure) for shape, measure in ((ALONE, alone), (GREEDY, one_row), (SHARED, shared), (TOGETHER, together)) for name, precision in cases
            if measure is alone or precision == "bf16" or (precision == "fp8_static" and measure is together)]
    if args.profile:
        jobs = [(name, precision, *ALONE, profiled) for name, precision in cases]
    if args.decode_layers:
        with tempfile.TemporaryDirectory() as into:
            for name, precision in cases:
                if precision == "bf16":
                    folder = folder_of(name, args.tiny, into)
                    one, other = (load(folder, args.device, precision, 1, 1, decode_layers=way) for way in ("on", "off"))
                    in_turn(name, precision, one, other)
        return 0
    with tempfile.TemporaryDirectory() as into:
        if args.device != "cpu":
            warm([j[:4] for j in jobs], args.device, into, 75)
            print(f"kernels: {time.monotonic() - began:.1f} s", flush=True)
        for name, precision, windows, rows, measure in jobs:
            if time.monotonic() - began > args.seconds:
                print(f"{name} {precision} windows {windows}: no time left", flush=True)
                failed = 1
                continue
            try:
                start = time.monotonic()
                core = load(folder_of(name, args.tiny, into), args.device, precision, windows, rows)
                print(f"{name} {precision} windows {windows}: load {time.monotonic() - start:.1f} s, {dict(core.report())}", flush=True)
                measure(name, precision, core, add)
                core = None
            except Exception:  # no row: the receipt shows what ran
                traceback.print_exc()
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
