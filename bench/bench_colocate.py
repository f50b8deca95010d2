"""A policy at its pace beside language models on one device, with a scheduler and without: bench/results/<chip>/colocate.json.

    python bench/bench_colocate.py --facts FILE --out DIR [--seconds 240] [--parts b1,more,three,two,torch,share] [--rows gated] [--scale 1] [--device cpu --tiny]

A part is a process of its own, so that what breaks in one leaves the others; a row that fails is a row that says so. Each part
loads a policy alone and measures it alone first, at the pace of its rows. Windows:
b1      pi0.5 at 30 Hz beside Qwen3-8B, one sequence: gated; ungated (two streams); urgent (the policy on the most urgent stream, no gates);
        Poisson arrivals, bursts of three, 50 Hz, a phase that drifts; a step of the language model with gates and without, nobody urgent
more    beside eight sequences, 32, one of 30,000 tokens, prompts of 1,024 one behind the other, eight chats with prompts of 8,000 (chats)
three   policy, Qwen3-8B and Qwen3-0.6B: each one's share; policy, Qwen3-8B and Whisper turbo that hears a stream: how long
        its updates take, and the shares (asr)
two     the language model in a second process
torch   a step of the same shape in PyTorch, on a stream that no gate holds
share   the policy as a burstable tenant, 10 calls a second: with the whole device, in a partition (kept), and in one while others work (switching); alone,
        beside Qwen3-8B, and beside calls one after the other of a second policy that has its own partition where the first has one
Rows: clock=wall is predict() as its caller sees it, clock=device what the device says of the call: only like is compared with like.
--calls FOLDER keeps every call of a window: when it began, both clocks, the chip's clock behind it, and what the scheduler saw meanwhile (a step of a
prompt, say). --stretch-ms and --chunk are the language model's: others of its gates' distance and of the tokens that a step of a prompt takes.
wait_*_us: what a call waited for others: for its turn, and what the device took for it over the median of calls alone; wait_limit_us is its bound, the longest
stretch and 100 us. A chip at its limit of power lowers its clock, and then calls take longer that wait for nobody. Rows whose neighbour is that busy (prompts, chats) therefore
have calls of their own to be compared with, ROW-held: in the same load at the same pace, the neighbour stands still from a millisecond before each call until it is over. Held calls
differ among themselves by hundreds of microseconds, as the clock does. So of such rows wait_p*_us is a quantile over the held calls' same quantile, wait_max_us the largest such distance:
calls that wait W at most pass no quantile of held ones by more than W. p*_over_held stands beside p*_over_alone. `n` calls a row: p99.9 of fewer than 1,000 is their longest. tokens_per_s is of the language model meanwhile, ideal_tokens_per_s what the policy's
calls leave of its rate alone, which is measured once every sequence has begun to answer, with answers that end one after the other. --rows names windows of b1, more and three; --scale multiplies every window: ten thousand calls of the first row at 30 Hz are --parts b1 --rows gated --scale 8.4.
"""
import argparse
import bisect
import contextlib
import gc
import json
import os
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
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # before the driver starts, as a scheduler sets it

from tools.receipt import CUT, Receipt  # noqa: E402

PARTS = ("b1", "more", "three", "two", "torch", "share")
SECONDS = {"alone": 8, "gated": 40, "again": 4, "ungated": 8, "urgent": 8, "poisson": 6, "bursts": 6, "hz50": 6, "drift": 6,
           "b8": 6, "b32": 6, "ctx30k": 6, "prompts": 6, "chats": 6, "held": 3, "three": 8, "asr": 8, "two": 8, "torch": 8, "share": 3}
SPEECH, SPEECH_SHARE = "whisper-large-v3-turbo", 0.1  # of the device's time that it is promised at least
BESIDE_US = 100  # that a call may wait beside the longest stretch
SHARES = 0.54, 0.36  # of a device's multiprocessors: the policy's, and a second one's; 72 and 48 of 132, in groups of 8 of which 120 can be divided
HELD_S = 0.001  # before a call that nobody may run beside: several of the longest stretches
SOURCES = ["vivace/sched/*.cc", "vivace/sched/*.h", "vivace/exec/*.cc", "vivace/exec/*.h", "vivace/engine/*.cc", "vivace/models/decoder/*.cc", "vivace/models/vla/*.cc", "vivace/models/whisper/*.cc",
           "vivace/serve/*.cc", "vivace/kernels/**/*.cuh", "vivace/ops/*.h", "bench/bench_colocate.py", "bench/configs/pi05-base/config.json", "bench/configs/qwen3-8b/config.json"]


class Set:
    """Which models, and how long prompts and answers are."""

    def __init__(self, device: str, tiny: bool, stretch_ms=None, chunk=None):
        import numpy as np

        rng = np.random.default_rng(0)
        self.device, self.tiny, self.stretch_ms = device, tiny, stretch_ms
        if tiny:
            folder = ROOT / "tests/fixtures"
            self.policy, self.hz, self.deadline_ms, self.blocking_ms = folder / "vla/pi05_tiny", 2, None, None
            self.given = dict(images=[rng.integers(0, 256, (224, 224, 3), np.uint8)], prompt=[2, 17, 301], state=np.zeros(32, np.float32))
            self.policy_options, self.precision = dict(config="pi05", num_views=1, statistics="none", threads=2), "f32"
            self.large = self.small = folder / "tiny_gguf/llama_q4_1.gguf"
            self.speech_shape, self.prefill = dict(d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=1, decoder_attention_heads=1, encoder_ffn_dim=128, decoder_ffn_dim=128), 96
            self.position, self.tokens, self.long, self.options, self.steps = 24, 24, 64, dict(threads=2, context=128, num_kv_blocks="full"), 20
        else:
            folder = ROOT / "bench/configs"
            self.policy, self.hz, self.deadline_ms, self.blocking_ms = folder / "pi05-base", 30, 15, 0.5
            self.given = dict(images=[rng.integers(0, 256, (224, 224, 3), np.uint8) for _ in range(2)], prompt=list(range(2, 66)), state=rng.standard_normal(8).astype(np.float32))
            self.precision = "fp8_static"
            self.policy_options = dict(config="pi05", precision="fp8_static", num_views=2, action_horizon=50, num_steps=10, prompt_tokens=64, random_weights=True, calibration=[self.given])
            self.large, self.small = folder / "qwen3-8b", folder / "qwen3-0.6b"
            self.speech_shape, self.prefill = {}, 8000
            self.position, self.tokens, self.long, self.steps = 1016, 400, 30_000, 300
            self.options = dict(precision="bf16", random_weights=True, context=2048, prefill_chunk=512, num_kv_blocks="full")

        if chunk:
            self.options["prefill_chunk"] = chunk

    def arm(self):
        import vivace

        return vivace.load_model(self.policy, device=self.device, **self.policy_options)

    def scheduled_arm(self, gpu, alone):
        """worst_ms: of calls that were measured alone, without the one in a hundred in which the host was away."""
        import vivace

        return gpu.load_model(self.policy, name="arm", qos=vivace.guaranteed(hz=self.hz, deadline_ms=self.deadline_ms, blocking_ms=self.blocking_ms),
                              worst_ms=1.03 * quantile(alone.wall, 0.99) / 1e3, **self.policy_options)

    def llm(self, gpu=None, path=None, name="llm", min_share=None, **options):
        import vivace

        min_share = min_share or (0.1 if self.tiny else 0.6)
        path, options = path or self.large, self.options | options
        if gpu is None:
            return vivace.load_model(path, device=self.device, **options)
        return gpu.load_model(path, name=name, qos=vivace.burstable(min_share=min_share, stretch_ms=self.stretch_ms), **options)


class Calls:
    """Of a window: microseconds by the host's clock and by the device's, and calls that began late because the one before was not over."""

    def __init__(self):
        self.wall, self.device, self.began, self.mhz, self.late = [], [], [], [], 0


def paced(hz, seconds):
    return [i / hz for i in range(max(2, int(hz * seconds)))]


def poisson(hz, seconds):
    rng, at, out = random.Random(7), 0.0, []
    while at < seconds:
        at += rng.expovariate(hz)
        out.append(at)
    return out


def bursts(hz, seconds):
    return [at for i in range(max(1, int(hz * seconds / 3))) for at in [3 * i / hz] * 3]


def sleep_until(at):
    left = at - time.perf_counter()
    if left > 0:
        time.sleep(left)


def observe(policy, given, starts, clock=None, neighbour=None) -> Calls:
    """`clock`: asked behind every call. `neighbour`: (pause, resume) of who stands still from HELD_S before each call until it is over."""
    out = Calls()
    for _ in range(3):
        policy.predict(**given, seed=0)
    gc.collect()
    gc.disable()  # a robot's loop in C++ has none
    begun = time.perf_counter()
    for seed, start in enumerate(starts):
        due = begun + start
        if neighbour:
            sleep_until(due - HELD_S)
            neighbour[0]()
            due = max(due, time.perf_counter() + HELD_S)
        sleep_until(due)
        at = time.perf_counter()
        out.late += at - begun - start > 0.001
        policy.predict(**given, seed=seed)
        out.wall.append(1e6 * (time.perf_counter() - at))
        if neighbour:
            neighbour[1]()
        out.device.append(policy.device_us())
        out.began.append(1e6 * at)
        if clock:
            out.mhz.append(clock())
    gc.enable()
    return out


class Writer:
    """Keeps `streams` answers of a model under way, and counts their tokens; prompts=True: prompts of one token of answer, none like another.
    All other prompts are the same one, whose KV blocks are found: what runs is decode; prompts are a row of their own."""

    def __init__(self, model, streams, prompt, tokens, prompts=False, ahead=None):
        self.model, self.tokens, self.prompts, self.prompt = model, tokens, prompts, prompt
        self.vocab, self.made, self.total = model.report()["vocab"], 0, 0
        self.lock, self.over, self.failure = threading.Lock(), threading.Event(), None
        self.streams, self.spoken = streams, set()
        # More than places, so that none is ever empty. First answers end one after the other: else all prompts would come at once, again and again, and no second be like the next.
        self.open = [self.submit(max(1, tokens * (i + 1) // streams) if i < streams else tokens) for i in range(streams + (streams if ahead is None else ahead))]
        self.thread = threading.Thread(target=self.poll, daemon=True)
        self.thread.start()

    def submit(self, tokens):
        self.made += 1
        ids = [(i * 7919 + 13) % (self.vocab - 8) + 4 for i in range(self.prompt)]
        if self.prompts:
            ids[0] = 4 + self.made % (self.vocab - 8)
        return self.model._stream(ids, None, max_tokens=tokens)

    def poll(self):
        while not self.over.wait(0.02):
            try:
                self.count()
            except Exception as e:  # noqa: BLE001 - whoever counts next sees it
                self.failure = e
                return

    def count(self) -> int:
        """Tokens so far; of prompts, their tokens."""
        if self.failure is not None:
            raise self.failure
        with self.lock:
            for i, stream in enumerate(self.open):
                done = False
                for token, _, finish, _ in stream._request.read():
                    if token is not None:
                        self.total += self.prompt if self.prompts else 1
                        self.spoken.add(i)
                    done |= finish is not None
                    if finish == "error":
                        stream._request.check()
                if done:
                    self.open[i] = self.submit(self.tokens)
            return self.total

    def running(self, tokens, seconds=40):
        """Until there are so many tokens, and every sequence has begun to answer."""
        until = time.monotonic() + seconds
        while self.count() < tokens or len(self.spoken) < self.streams:
            if time.monotonic() > until:
                raise RuntimeError(f"no {tokens} tokens within {seconds} s")
            time.sleep(0.01)

    def rate(self, seconds) -> float:
        first, begun = self.count(), time.perf_counter()
        time.sleep(seconds)
        return (self.count() - first) / (time.perf_counter() - begun)

    def close(self):
        self.over.set()
        self.thread.join()
        with self.lock:
            for stream in self.open:
                stream.close()


def quantile(values, q) -> float:
    values = sorted(values)
    return values[min(int(q * len(values)), len(values) - 1)]


class Part:
    """Rows of one process: each a line of JSON behind a word, for whoever started it."""

    def __init__(self, name, models, scale, end, wanted, folder=None):
        self.name, self.s, self.scale, self.end, self.wanted, self.folder = name, models, scale, end, wanted, folder
        self.alone = None

    def clock(self):
        """What asks for the chip's clock, where calls are kept and the device has one."""
        from vivace import device

        if not self.folder or self.s.device == "cpu":
            return None
        return lambda: device.state()["sm_mhz"]

    def keep(self, row, calls, gpu=None):
        """Every call of a window, and every span that the scheduler still has of it, all of one clock in us."""
        if not self.folder:
            return
        since = calls.began[0] if calls.began else 0
        spans = [s for s in gpu.trace() if s[2] >= since] if gpu else []
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{self.name}-{row}.json").write_text(json.dumps({"began": calls.began, "wall": calls.wall, "device": calls.device, "mhz": calls.mhz, "spans": spans}))

    def seconds(self, row):
        return max(0.3, SECONDS[row] * self.scale)

    def emit(self, **row):
        print("ROW " + json.dumps(row), flush=True)

    @contextlib.contextmanager
    def row(self, name):
        """What goes wrong inside is a row that says so."""
        try:
            yield
        except Exception as e:  # noqa: BLE001 - the other rows are wanted all the same
            traceback.print_exc()
            self.emit(op="e2e", case=f"part={self.name},row={name}", **{"pass": False}, note=f"{type(e).__name__}: {str(e)[:300]}")

    def wants(self, name):
        if self.wanted and name not in self.wanted:
            return False
        if time.monotonic() + self.seconds(name) > self.end:
            self.emit(op="e2e", case=f"part={self.name},row={name}", **{"pass": False}, note=f"{CUT}: no time left")
            return False
        return True

    def calls(self, case, calls, note="", held=None, **more):
        """Rows of a window, one a clock; the first window is what the others are compared with, and `held` where it has such calls."""
        if self.alone is None:
            self.alone = calls
        if calls.mhz:
            more["sm_mhz_p50"] = quantile(calls.mhz, 0.5)
            note += f"{'; ' if note else ''}{more['sm_mhz_p50']} MHz"
        for clock in ("wall", "device"):
            times = getattr(calls, clock)
            if not times or not max(times):
                continue
            asked = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
            p = {f"{k}_us": quantile(times, q) for k, q in asked.items()}
            ratio = {f"{k}_over_{name}": p[f"{k}_us"] / quantile(getattr(base, clock), q) for name, base in (("alone", self.alone), ("held", held)) if base for k, q in asked.items()}
            beside = f", {ratio['p999_over_held']:.3f} of held" if held else ""
            said = f"p99.9 {ratio['p999_over_alone']:.3f} of alone{beside}; {calls.late} of {len(times)} calls late" + (f"; {note}" if note else "")
            self.emit(op="e2e", case=f"policy={self.s.policy.name},{case},clock={clock}", dtype=self.s.precision, tool="host clock" if clock == "wall" else "device events",
                      **p, max_us=max(times), n=len(times), **ratio, **more, note=said)

    def held(self, row, case, policy, gpu, llm):
        """Calls that nobody runs beside, at the clock that the load of a row leaves the chip."""
        calls = observe(policy, self.s.given, paced(self.s.hz, self.seconds("held")), self.clock(), (lambda: gpu.pause(llm), lambda: gpu.resume(llm)))
        self.keep(f"{row}-held", calls)
        self.calls(f"held=1,{case}", calls, row=f"{row}-held")
        return calls

    def window(self, row, case, policy, starts, writer=None, rate_alone=None, gpu=None, llm="llm", held=None):
        """Calls beside a writer that is running; what it writes meanwhile. `held`: who stands still in calls to compare with, which go first."""
        held = self.held(row, case, policy, gpu, held) if held else None
        before, first, begun = gpu.stats() if gpu else None, writer.count() if writer else 0, time.perf_counter()
        calls = observe(policy, self.s.given, starts, self.clock())
        took = time.perf_counter() - begun
        self.keep(row, calls, gpu)
        more, note = {}, ""
        if writer:
            more = {"tokens_per_s": (writer.count() - first) / took}
            note = f"{more['tokens_per_s']:.1f} tokens/s"
            if rate_alone:
                busy = min(1.0, (len(starts) + 3) * quantile(self.alone.device if max(self.alone.device) else self.alone.wall, 0.5) / 1e6 / took)
                more |= {"alone_tokens_per_s": rate_alone, "ideal_tokens_per_s": rate_alone * (1 - busy)}
                note += f" of {rate_alone:.1f} alone, ideal {rate_alone * (1 - busy):.1f}"
        if gpu:
            stats = gpu.stats()
            steps = [length for tenant, kind, when, length in gpu.trace() if tenant == llm and kind == "step"][-int(stats[llm]["calls"] - before[llm]["calls"]) or None:] if llm in stats else []
            more |= self.waits(calls, gpu, held)
            arm = {k: stats["arm"][k] - before["arm"][k] for k in ("missed", "rejected", "overruns", "lost", "demoted")}
            more |= arm | {"bound_us": max((r["bound_us"] for r in stats.values() if r["class"] != "guaranteed"), default=None)}
            more["wait_limit_us"] = more["bound_us"] + BESIDE_US
            note += f"; waits up to {more['wait_max_us']:.0f} of {more['wait_limit_us']:.0f} us; " + " ".join(f"{k}={v}" for k, v in arm.items())
            if steps:
                more |= {"step_p50_us": quantile(steps, 0.5), "step_p99_us": quantile(steps, 0.99), "step_max_us": max(steps)}
                note += f"; a step p50 {more['step_p50_us']:.0f} p99 {more['step_p99_us']:.0f} max {more['step_max_us']:.0f} us"
        self.calls(case, calls, note, held, row=row, **more)
        return calls

    def waits(self, calls, gpu, held=None) -> dict:
        """What calls waited for others, us: their turn as the scheduler saw it, and their time on the device over the median of those alone; over the same quantile of `held`."""
        base = held or self.alone
        clock, alone = (calls.device, base.device) if max(base.device) else (calls.wall, base.wall)
        turns = [0.0] * len(clock)
        for tenant, kind, when, length in gpu.trace():
            if tenant == "arm" and kind == "wait" and (call := bisect.bisect_right(calls.began, when) - 1) >= 0:
                turns[call] += length
        if held:
            took = [turn + time for turn, time in zip(turns, clock)]
            over = lambda q: max(quantile(turns, q), quantile(took, q) - quantile(alone, q))  # noqa: E731
            return {"wait_p50_us": over(0.5), "wait_p99_us": over(0.99), "wait_max_us": max(over(q / 100) for q in range(101))}
        usual = quantile(alone, 0.5)
        each = [turn + max(0.0, took - usual) for turn, took in zip(turns, clock)]
        return {"wait_p50_us": quantile(each, 0.5), "wait_p99_us": quantile(each, 0.99), "wait_max_us": max(each)}

    def prepare(self):
        """A policy that nobody schedules, alone, at its pace."""
        arm = self.s.arm()
        calls = observe(arm, self.s.given, paced(self.s.hz, self.seconds("alone") * (1 if self.name == "b1" else 0.4)), self.clock())
        self.keep("alone", calls)
        self.calls(f"mode=alone,part={self.name},hz={self.s.hz}", calls, row="alone")
        return arm


def part_b1(p):
    import vivace
    from vivace.bench import bench_text_model

    s = p.s
    free = p.prepare()
    with vivace.Scheduler(s.device) as gpu:
        arm, llm = s.scheduled_arm(gpu, p.alone), s.llm(gpu)
        print(f"gates: {llm.report()['gates']}, head in {llm.report()['head_parts']}; {gpu.stats()['llm']['bound_us']:.0f} us of {gpu.stats()['llm']['wcet_us']:.0f}; {gpu.report()['streams_held']} streams held", flush=True)
        beside = f"beside={s.large.name},batch=1,ctx={s.position + 8}"
        writer = Writer(llm, 1, s.position, s.tokens)
        writer.running(20)
        rate = writer.rate(max(0.3, 3 * min(1.0, p.scale)))
        for row, starts, hz in (("gated", paced, s.hz), ("poisson", poisson, s.hz), ("bursts", bursts, s.hz), ("hz50", paced, 50 * s.hz / 30), ("drift", paced, s.hz / 1.001)):
            with p.row(row):
                if p.wants(row):
                    p.window(row, f"mode=gated,{beside},arrivals={starts.__name__},hz={hz:g}", arm, starts(hz, p.seconds(row)), writer, rate, gpu)
        writer.close()
        if p.wants("again") or not p.wanted:
            with p.row("again"):
                p.window("again", f"mode=scheduled_alone,hz={s.hz}", arm, paced(s.hz, p.seconds("again")))
        if p.wanted and not {"ungated", "urgent", "steps"} & p.wanted:
            return
        plain = s.llm()
        with p.row("steps"):
            if not p.wanted or "steps" in p.wanted:
                found = {"gated": [], "plain": []}
                for _ in range(3):  # in turn
                    for name, model in (("plain", plain), ("gated", llm)):
                        found[name].append(bench_text_model(model, steps=s.steps // 3, prompt_tokens=8, position=s.position)[0])
                p50 = {name: sorted(row["p50_us"] for row in rows)[1] for name, rows in found.items()}
                for name, rows in found.items():
                    p.emit(op="e2e", case=f"model={s.large.name},batch=1,ctx={s.position},gates={name},metric=step", dtype=llm.report()["precision"], tool="host clock", p50_us=p50[name],
                           p99_us=max(r["p99_us"] for r in rows), n=sum(r["n"] for r in rows), row="steps", note=f"{p50[name] / p50['plain'] - 1:+.2%} of plain; {llm.report()['gates'] if name == 'gated' else 0} gates; nobody urgent")
        writer = Writer(plain, 1, s.position, s.tokens)
        writer.running(20)
        rate = writer.rate(max(0.3, 2 * min(1.0, p.scale)))
        for row, policy in (("ungated", free), ("urgent", arm)):
            with p.row(row):
                if p.wants(row):  # no gate in these steps: of a tenant the stream's urgency remains
                    p.window(row, f"mode={row},{beside},arrivals=paced,hz={s.hz}", policy, paced(s.hz, p.seconds(row)), writer, rate)
        writer.close()


def part_more(p):
    import vivace

    s = p.s
    p.prepare().close()
    long = dict(prefill_chunk=16) if s.tiny else dict(context=32_768, prefill_chunk=128)
    cases = {"b8": (dict(max_batch=8), 8, s.position, s.tokens, False, None), "b32": (dict(max_batch=32), 32, s.position, s.tokens, False, None),
             "ctx30k": (long, 1, s.long, 2500 if not s.tiny else 40, False, 0), "prompts": ({}, 2, 64 if s.tiny else 1024, 1, True, None)}
    with vivace.Scheduler(s.device) as gpu:
        arm = s.scheduled_arm(gpu, p.alone)
        for row, (options, streams, prompt, tokens, prompts, ahead) in cases.items():
            with p.row(row):
                if not p.wants(row):
                    continue
                with s.llm(gpu, name=row, min_share=0.1, **options) as llm:
                    writer = Writer(llm, streams, prompt, tokens, prompts, ahead)
                    try:
                        writer.running(prompt if prompts else 2 * streams)
                        rate = writer.rate(max(0.3, 2 * min(1.0, p.scale)))
                        p.window(row, f"mode=gated,beside={s.large.name},{'metric=prompts,' if prompts else ''}batch={streams},ctx={prompt},arrivals=paced,hz={s.hz}", arm, paced(s.hz, p.seconds(row)), writer, rate, gpu, row, row if prompts else None)
                    finally:
                        writer.close()
                gc.collect()
        with p.row("chats"):
            if p.wants("chats"):
                chats, context, ctx = (4, 128, s.position) if s.tiny else (8, 8704, 256)
                with s.llm(gpu, name="chats", min_share=0.1, max_batch=chats + 1, context=context) as llm:
                    talk, long = Writer(llm, chats, ctx, s.tokens, ahead=0), Writer(llm, 1, s.prefill, 1, prompts=True, ahead=0)  # a prompt when the one before is through
                    try:
                        talk.running(2 * chats)
                        long.running(s.prefill)
                        rate, first, begun = talk.rate(max(0.3, 2 * min(1.0, p.scale))), long.count(), time.perf_counter()
                        p.window("chats", f"mode=gated,beside={s.large.name},batch={chats},ctx={ctx},prompts={s.prefill},arrivals=paced,hz={s.hz}", arm, paced(s.hz, p.seconds("chats")), talk, rate, gpu, "chats", "chats")
                        p.emit(op="e2e", case=f"mode=gated,beside={s.large.name},batch={chats},prompts={s.prefill},metric=prompts", dtype=llm.report()["precision"], row="chats", **{"pass": None},
                               note=f"{(long.count() - first) / (time.perf_counter() - begun):.0f} tokens/s of prompts meanwhile")
                    finally:
                        long.close()
                        talk.close()


class Hearer:
    """A stream of speech: each half second its window is encoded and its text made anew. `times`: us from due to done."""

    def __init__(self, model, made=8):
        import numpy as np

        self.core, self.times, self.over, self.failure = model._live, [], threading.Event(), None
        t = self.core.tokens()
        self.asked = {"window": 0, "prompt": [t["sot"], t["first_language"], t["transcribe"], t["no_timestamps"]], "suppress": [t["eot"]], "timestamps": False, "most": made}
        self.sound = np.random.default_rng(0).normal(0, 0.1, 480_000).astype(np.float32)
        self.update()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def update(self):
        self.core.encode([(self.sound, 0, 3000, 1.5)])
        self.core.decode([self.asked])

    def run(self):
        due = time.perf_counter()
        try:
            while not self.over.wait(max(0.0, due - time.perf_counter())):
                self.update()
                self.times.append(1e6 * (time.perf_counter() - due))
                due = max(due + 0.5, time.perf_counter())
        except Exception as e:  # noqa: BLE001 - close() raises it
            self.failure = e

    def close(self):
        self.over.set()
        self.thread.join()
        if self.failure is not None:
            raise self.failure


def say_shares(p, gpu, before, took, least, row, calls, **notes):
    """A row a tenant: its part of the device's time in `took` us since `before`, and what it was promised."""
    after = gpu.stats()
    for name, promise in least.items():
        share = (after[name]["device_us"] - before[name]["device_us"]) / took
        p.emit(op="e2e", case=f"mode=gated,tenant={name},of={row},metric=share", dtype="bf16", n=calls, row=row, device_share=share, least=promise, promised=after[name]["promised"],
               **{"pass": None}, note=f"{share:.3f} of the device's time, at least {promise:.2f}" + (f"; {notes[name]}" if name in notes else ""))


def hearing(p, gpu, arm, writer, least):
    import vivace

    s, config = p.s, json.loads((ROOT / "bench/configs" / SPEECH / "config.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config | s.speech_shape))
        speech = gpu.load_model(folder, name="asr", qos=vivace.burstable(min_share=SPEECH_SHARE, stretch_ms=s.stretch_ms), random_weights=True)
    with speech:
        hearer = Hearer(speech)
        before, at = gpu.stats(), time.perf_counter()
        try:
            calls = p.window("asr", f"mode=gated,beside={s.large.name}+{SPEECH},batch=1,arrivals=paced,hz={s.hz}", arm, paced(s.hz, p.seconds("asr")), writer, None, gpu, "large")
            say_shares(p, gpu, before, 1e6 * (time.perf_counter() - at), {"large": least, "asr": SPEECH_SHARE}, "asr", len(calls.wall))
        finally:
            hearer.close()
        times, stats = hearer.times, gpu.stats()["asr"]
        p.emit(op="e2e", case=f"mode=gated,model={SPEECH},metric=update", dtype=speech.report()["precision"], tool="host clock", p50_us=quantile(times, 0.5), p99_us=quantile(times, 0.99), max_us=max(times),
               n=len(times), row="asr", **{"pass": None}, note=f"each 0.5 s, beside {len(calls.wall)} calls and {s.large.name}; {speech.report()['gates']} gates, stretches up to {stats['bound_us']:.0f} us")


def part_three(p):
    import vivace

    s = p.s
    p.prepare().close()
    with vivace.Scheduler(s.device) as gpu:
        arm = s.scheduled_arm(gpu, p.alone)
        shares = {"large": 0.1, "small": 0.05} if s.tiny else {"large": 0.45, "small": 0.15}
        writers = {"large": Writer(s.llm(gpu, s.large, "large", shares["large"]), 1, s.position, s.tokens)}
        with p.row("three"):
            if p.wants("three"):
                with s.llm(gpu, s.small, "small", shares["small"]) as small:
                    writers["small"] = Writer(small, 1, s.position, s.tokens)
                    for writer in writers.values():
                        writer.running(10)
                    before, at, tokens = gpu.stats(), time.perf_counter(), writers["small"].count()
                    calls = p.window("three", f"mode=gated,beside={s.large.name}+{s.small.name},batch=1,arrivals=paced,hz={s.hz}", arm, paced(s.hz, p.seconds("three")), writers["large"], None, gpu, "large")
                    took = 1e6 * (time.perf_counter() - at)
                    say_shares(p, gpu, before, took, shares, "three", len(calls.wall), small=f"{(writers['small'].count() - tokens) / took * 1e6:.1f} tokens/s")
                    writers.pop("small").close()
        with p.row("asr"):
            if p.wants("asr"):
                writers["large"].running(10)
                hearing(p, gpu, arm, writers["large"], shares["large"])
        writers["large"].close()


def part_two(p):
    s = p.s
    arm = p.prepare()
    other = subprocess.Popen([sys.executable, __file__, "--device", s.device, *(["--tiny"] if s.tiny else []), "--writer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    class Counted:
        def count(self):
            other.stdin.write("count\n")
            other.stdin.flush()
            for line in other.stdout:
                if line.startswith("COUNT "):
                    return int(line.split()[1])
            raise RuntimeError("the second process ended")

    try:
        with p.row("two"):
            if p.wants("two"):
                writer = Counted()
                first, begun = writer.count(), time.perf_counter()
                time.sleep(max(0.3, 2 * min(1.0, p.scale)))
                rate = (writer.count() - first) / (time.perf_counter() - begun)
                p.window("two", f"mode=two_processes,beside={s.large.name},batch=1,ctx={s.position + 8},arrivals=paced,hz={s.hz}", arm, paced(s.hz, p.seconds("two")), writer, rate)
    finally:
        other.stdin.close()
        try:
            other.wait(20)
        except subprocess.TimeoutExpired:
            other.kill()


def writer_process(s):
    """The second process of part two: answers on its own, and says how many tokens when it is asked."""
    llm = s.llm()
    writer = Writer(llm, 1, s.position, s.tokens)
    writer.running(20)
    for _ in sys.stdin:
        print(f"COUNT {writer.count()}", flush=True)
    writer.close()
    llm.close()


def part_torch(p):
    import torch

    from bench.peers.torch_step import Step

    s = p.s
    arm = p.prepare()
    step = Step(s.large, s.position + 8)
    step.start()
    try:
        with p.row("torch"):
            if p.wants("torch"):
                class Counted:
                    @staticmethod
                    def count():
                        return step.done

                time.sleep(0.3)
                first, begun = step.done, time.perf_counter()
                time.sleep(2)
                p.window("torch", f"mode=foreign_stream,beside=pytorch_{torch.__version__.split('+')[0]}_step,batch=1,ctx={s.position + 8},arrivals=paced,hz={s.hz}", arm, paced(s.hz, p.seconds("torch")), Counted,
                         (step.done - first) / (time.perf_counter() - begun))
    finally:
        step.stop()


class Caller:
    """Calls of a policy one behind the other; count() of them."""

    def __init__(self, policy, given):
        self.policy, self.given, self.done, self.over, self.failure = policy, given, 0, threading.Event(), None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while not self.over.is_set():
                self.policy.predict(**self.given, seed=self.done)
                self.done += 1
        except Exception as e:  # noqa: BLE001 - close() raises it
            self.failure = e

    def count(self) -> int:
        return self.done

    def close(self):
        self.over.set()
        self.thread.join()
        if self.failure is not None:
            raise self.failure


def part_share(p):
    import vivace

    s = p.s
    p.prepare().close()
    hz = 2 if s.tiny else 10
    modes = {"whole": {}} | ({} if s.device == "cpu" else {"kept": dict(keep_partition=True), "switching": {}})

    def load(gpu, name, mode, share):
        partition = {} if mode == "whole" else dict(partition=share)
        return gpu.load_model(s.policy, name=name, qos=vivace.burstable(min_share=0.2), **partition, **modes[mode], **s.policy_options)

    for mode in modes:
        if not p.wants("share"):
            return
        with p.row("share"), vivace.Scheduler(s.device) as gpu, load(gpu, "arm", mode, SHARES[0]) as arm:
            report, timed = arm.report(), gpu.stats()["arm"]

            def window(beside, made=None, unit="", arm=arm, gpu=gpu, mode=mode, report=report, timed=timed):
                before, first, begun = gpu.stats()["arm"], made() if made else 0, time.perf_counter()
                calls = observe(arm, s.given, paced(hz, p.seconds("share")), p.clock())
                took = time.perf_counter() - begun
                after, rate = gpu.stats()["arm"], (made() - first) / took if made else None
                p.keep(f"share-{mode}-{beside}", calls, gpu)
                on_whole, of = after["whole_calls"] - before["whole_calls"], after["calls"] - before["calls"]
                case = f"mode={mode}," + ("" if mode == "whole" else f"partition={SHARES[0]:g},") + f"beside={beside},arrivals=paced,hz={hz}"
                more = {"tokens_per_s": rate} if unit == "tokens/s" else {"beside_calls_per_s": rate} if made else {}
                p.calls(case, calls, f"{on_whole} of {of} calls switched to the whole device; {report['multiprocessors']} multiprocessors; at worst {timed['wcet_us']:.0f} us, on the whole device "
                        f"{timed['whole_us']:.0f}" + (f"; {rate:.1f} {unit} beside" if made else ""), row="share", multiprocessors=report["multiprocessors"], whole_calls=on_whole, **more)

            window("none")
            with s.llm(gpu, min_share=0.1 if s.tiny else 0.4) as llm:
                writer = Writer(llm, 1, s.position, s.tokens)
                try:
                    writer.running(10)
                    window(s.large.name, writer.count, "tokens/s")
                finally:
                    writer.close()
            with load(gpu, "second", mode, SHARES[1]) as second:
                caller = Caller(second, s.given)
                try:
                    window(s.policy.name, caller.count, "calls/s")
                finally:
                    caller.close()


def run_part(args):
    models = Set(args.device, args.tiny, args.stretch_ms, args.chunk)
    if args.writer:
        return writer_process(models)
    name = args.parts
    p = Part(name, models, args.scale, args.end, set(filter(None, (args.rows or "").split(","))), args.calls)
    with p.row("all"):
        globals()[f"part_{name}"](p)
    sys.stdout.flush()
    os._exit(0)  # whatever is still loaded goes with the process


def start_part(name, args, end, log):
    """Rows of a part; what it could not say itself is a row."""
    command = [sys.executable, __file__, "--part", "--parts", name, "--device", args.device, "--scale", args.scale, "--end", end - 2, *(["--tiny"] if args.tiny else []),
               *(x for k, v in (("rows", args.rows), ("calls", args.calls), ("stretch-ms", args.stretch_ms), ("chunk", args.chunk)) if v for x in (f"--{k}", v))]
    rows, begun = [], time.monotonic()
    with open(log, "w") as errors:
        process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=errors, text=True)
        timer = threading.Timer(max(1.0, end - time.monotonic()), process.kill)
        timer.start()
        for line in process.stdout:
            if line.startswith("ROW "):
                rows.append(json.loads(line[4:]))
                print(f"{time.monotonic() - begun:6.1f} s  {rows[-1]['case']}: {rows[-1].get('note', '')}", flush=True)
            else:
                print(f"{name}: {line.rstrip()}", flush=True)
        status = process.wait()
        timer.cancel()
    said = Path(log).read_text(errors="replace").strip()
    if status:
        why = CUT if time.monotonic() >= end - 0.5 else f"ended with {status}"
        rows.append({"op": "e2e", "case": f"part={name}", "pass": False, "note": f"{why}: {said[-300:]}"})
    if said:
        print(said[-1500:], flush=True)
    return rows


def table(rows) -> list[str]:
    out = [f"{'row':<10} {'clock':<7} {'n':>6} {'p50 ms':>8} {'p99':>8} {'p99.9':>8} {'max':>8} {'/alone':>7} {'tok/s':>8} {'ideal':>8} {'wait us':>8} {'limit us':>8}"]
    show = lambda v, scale=1.0, digits=2: f"{v / scale:8.{digits}f}" if v is not None else " " * 8  # noqa: E731
    for r in rows:
        if r.get("pass") is False:
            out.append(f"FAILED     {r['case']}: {r['note'].splitlines()[0][:150] if r['note'] else ''}")
        elif "clock=" in r["case"]:
            part = dict(x.split("=", 1) for x in r["case"].split(",")).get("part", "")
            out.append(f"{r.get('row', '') + ('/' + part if part else ''):<10} {r['case'].rsplit('=', 1)[1]:<7} {r['n']:>6} {show(r['p50_us'], 1e3)} {show(r['p99_us'], 1e3)} {show(r['p999_us'], 1e3)} {show(r['max_us'], 1e3)} "
                       f"{r['p999_over_alone']:7.3f} {show(r.get('tokens_per_s'), 1, 1)} {show(r.get('ideal_tokens_per_s'), 1, 1)} {show(r.get('wait_max_us'), 1, 0)} {show(r.get('wait_limit_us'), 1, 0)}")
        else:
            out.append(f"{r.get('row', ''):<10} {r['case']}: {show(r.get('p50_us'), 1, 1)} us; {r['note']}")
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--parts", default=",".join(PARTS), help="with commas between")
    p.add_argument("--rows", help="of b1, more and three: these windows alone, with commas between")
    p.add_argument("--seconds", type=float, default=240, help="for everything; a window that does not fit is a row that says so")
    p.add_argument("--scale", type=float, default=1.0, help="of every window")
    p.add_argument("--facts", type=Path, help="of tools/device_facts.py: chip and limits; without it no receipt")
    p.add_argument("--out", type=Path, default=ROOT, help="folder under which bench/results/<chip> is written")
    p.add_argument("--calls", type=Path, help="folder for every call of every window")
    p.add_argument("--stretch-ms", type=float, help="between two gates of the language model; without it the scheduler's own")
    p.add_argument("--chunk", type=int, help="tokens that a step of a prompt takes at most")
    p.add_argument("--device", default="cuda")
    p.add_argument("--tiny", action="store_true", help="models of the tests, for the host: whether this program works")
    p.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--writer", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--end", type=float, default=float("inf"), help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.part or args.writer:
        return run_part(args)
    if unknown := set(args.parts.split(",")) - set(PARTS):
        p.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    end, rows = time.monotonic() + args.seconds, []
    facts = json.loads(args.facts.read_text()) if args.facts else None
    receipt = None
    with tempfile.TemporaryDirectory() as folder:
        for name in args.parts.split(","):
            if time.monotonic() + 10 > end:
                rows.append({"op": "e2e", "case": f"part={name}", "pass": False, "note": f"{CUT}: no time left"})
                continue
            rows += start_part(name, args, end, Path(folder) / f"{name}.log")
            if facts:  # after every part: a machine's time may end
                receipt = Receipt("colocate", sources=SOURCES, command=" ".join(["python bench/bench_colocate.py", *(f"--{k} {v}" for k, v in (("parts", args.parts), ("rows", args.rows), ("scale", args.scale), ("stretch-ms", args.stretch_ms), ("chunk", args.chunk)) if v and v != p.get_default(k))]), **facts)
                for row in rows:
                    receipt.row(**row)
                receipt.root = args.out
                receipt.write("bench")
    print("\n".join(table(rows)))
    wrong = [r for r in rows if r.get("pass") is False]
    print(f"{len(rows)} rows, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
