#!/usr/bin/env python3
"""`vivace serve` of a model of published shape on a GPU, random weights: bench/results/<chip>/serve.json.

    python bench/bench_serve_device.py --facts FILE --out DIR [--parts stream,first,batch,capsule,cycles] [--seconds S]

The server runs in this process, its client is another one that reads sockets and nothing else; every figure stands beside the same work asked of the model without
HTTP, in turn in the same process. The tokenizer is made here: a token a byte, and words for the rest of the vocabulary; no token ends an answer.
metric=answer: a whole streamed answer, over generate() with the same prompt. metric=step: from its first token to its last, a token. metric=first: from the request to
the first event of a prompt whose beginning was computed before, over the prefill of what is new alone. metric=batch: a token of each of many streams, over the batched step.
metric=socket: from the end of the engine's step to the bytes in the socket. metric=snapshot, fork, to_host, restore: of a capsule; the link is what torch copies from
page-locked memory. metric=cycle: clients that connect and leave.
"""
import argparse
import contextlib
import gc
import json
import os
import random
import selectors
import socket
import statistics
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

SOURCES = ["vivace/serve/*.cc", "vivace/serve/*.h", "vivace/engine/*.cc", "vivace/models/decoder/*.cc", "vivace/models/decoder/*.h", "vivace/kernels/**/*.cuh", "vivace/ops/*.h",
           "python/vivace/server/*.py", "python/vivace/capsule.py", "python/src/outbox.cc", "python/src/request.cc", "bench/bench_serve_device.py", "bench/configs/qwen3-8b/config.json"]
PARTS = ("stream", "first", "batch", "capsule", "cycles")
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
SIZES = {  # of a device, and of a try on the CPU
    "device": dict(context=8192, chunk=1024, batch=32, prompt=128, tokens=256, turns=5, prefix=4096, suffixes=(64, 512), streams=32, streamed=192, capsules=(1024, 8000), cycles=10_000, cycle_s=60),
    "small": dict(context=512, chunk=64, batch=4, prompt=40, tokens=24, turns=2, prefix=192, suffixes=(16,), streams=4, streamed=96, capsules=(128, 400), cycles=60, cycle_s=10),
}


# ---- the client: a process of its own ------------------------------------------------------------------------------------------------

def request(path: str, body: dict) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(data)) + data


def read_streams(port: int, asked: list) -> list[dict]:
    """Sends all requests at once and reads every stream to its end. Of each: when it was sent, when bytes with text came (monotonic ns), of how many tokens, and the sum."""
    wait, out = selectors.DefaultSelector(), []
    for path, body in asked:
        s = socket.create_connection(("127.0.0.1", port))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        out.append({"socket": s, "data": request(path, body), "at": [], "events": [], "got": []})
    for one in out:
        one["sent"] = time.monotonic_ns()
        one["socket"].sendall(one.pop("data"))
        one["socket"].setblocking(False)
        wait.register(one["socket"], selectors.EVENT_READ, one)
    left = len(out)
    while left:
        for key, _ in wait.select(60):
            block, now = key.fileobj.recv(1 << 18), time.monotonic_ns()
            if block:
                key.data["got"].append(block)
                if events := block.count(b'{"content":"') + block.count(b'"text":"'):
                    key.data["at"].append(now)
                    key.data["events"].append(events)
            else:
                wait.unregister(key.fileobj)
                key.fileobj.close()
                key.data["end"], left = now, left - 1
    for one in out:
        del one["socket"]
        raw = b"".join(one.pop("got"))
        if b"data: [DONE]" not in raw:
            raise RuntimeError(f"a stream did not end: {raw[:400]!r}")
        used = raw.rsplit(b'"usage":', 1)[1].split(b"\n", 1)[0].rstrip(b"}\r ").decode()
        used = json.loads(used + "}" * (used.count("{") - used.count("}")))
        one["tokens"], one["cached"] = used["completion_tokens"], used["prompt_tokens_details"]["cached_tokens"]
    return out


def come_and_go(port: int, count: int, seconds: float, path: str, body: dict, threads: int = 4) -> dict:
    """Clients that leave: before they ask, with half of a request, before or in the midst of the answer."""
    data, end, lock, begun = request(path, body), time.monotonic() + seconds, threading.Lock(), [0]
    times: list[float] = []

    def work(seed):
        rng = random.Random(seed)
        while time.monotonic() < end:
            with lock:
                if begun[0] >= count:
                    return
                begun[0] += 1
            start, how = time.perf_counter(), rng.randrange(4)
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=20) as s:
                if rng.random() < 0.5:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
                if how:
                    s.sendall(data if how > 1 else data[:rng.randrange(len(data))])
                if how == 3:
                    s.settimeout(rng.choice([0.001, 0.01, 0.03]))
                    s.recv(rng.choice([1, 300]))
            times.append(time.perf_counter() - start)

    running = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    return {"cycles": len(times), "p50_us": 1e6 * statistics.median(times), "p99_us": 1e6 * sorted(times)[int(0.99 * len(times))]}


def client(port: int) -> None:
    """Does what its standard input says, a line of JSON each."""
    for line in sys.stdin:
        ask = json.loads(line)
        what = ask.pop("do")
        try:
            done = {"streams": lambda: read_streams(port, ask["asked"]), "cycles": lambda: come_and_go(port, **ask)}[what]()
        except Exception as e:  # noqa: BLE001 - the other end says so
            done = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(done), flush=True)


class Client:
    def __init__(self, port: int):
        self._process = subprocess.Popen([sys.executable, __file__, "--client", str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(self, do: str, **ask) -> None:
        self._process.stdin.write(json.dumps({"do": do, **ask}) + "\n")
        self._process.stdin.flush()

    def end(self):
        line = self._process.stdout.readline()
        done = json.loads(line) if line else {"error": "the client is gone"}
        if isinstance(done, dict) and "error" in done:
            raise RuntimeError(done["error"])
        return done

    def ask(self, do: str, **ask):
        self.begin(do, **ask)
        return self.end()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


# ---- the server ----------------------------------------------------------------------------------------------------------------------

def checkpoint(folder: str, config: Path) -> None:
    """A config.json beside a tokenizer of as many tokens: bytes first, then words. No merges: a token of a prompt is a byte."""
    facts = json.loads(config.read_text())
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    names = [chr(b) for b in plain] + [chr(0x100 + i) for i in range(len(rest))]
    names += [f"\u0120w{i}" for i in range(max(0, facts["vocab_size"] - 256))]
    level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", **level}, "post_processor": None,
                 "decoder": {"type": "ByteLevel", **level}, "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                                                                      "fuse_unk": False, "byte_fallback": False, "vocab": {n: i for i, n in enumerate(names)}, "merges": []}}
    for name, content in (("config.json", facts), ("tokenizer.json", tokenizer), ("tokenizer_config.json", {"chat_template": TEMPLATE})):
        (Path(folder) / name).write_text(json.dumps(content))


class Samples(list):
    add = list.append


@contextlib.contextmanager
def served(model, streams: int):
    """The engine behind a server on a thread of this process, and its port."""
    import uvicorn

    from vivace.server.app import make_app
    from vivace.server.engine import Engine
    from vivace.server.limits import Limits
    from vivace.server.metrics import Metrics
    from vivace.server.protocol import protocol
    from vivace.server.sampling import Defaults

    engine = Engine(model, "m", Limits(), max_batch=streams, max_waiting=64, metrics=Metrics(), defaults=Defaults(temperature=0.0), keep_times=1 << 20)
    engine.metrics.sent = Samples()
    server = uvicorn.Server(uvicorn.Config(make_app(engine), port=0, http=protocol(engine.limits, engine.metrics.refused), ws="none", lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    gc.collect()
    gc.freeze()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # as vivace serve does
    try:
        yield engine, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        engine.close()
        sys.setswitchinterval(before)
        gc.unfreeze()


def at(values, q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def resident_mb() -> float:
    with open("/proc/self/status") as f:
        return int(next(line.split()[1] for line in f if line.startswith("VmRSS"))) / 1024


class Bench:
    def __init__(self, model, engine, client, size, add):
        self.model, self.engine, self.client, self.size, self.add = model, engine, client, size, add
        self.rng = random.Random(25)
        self.counted = 0  # of the outbox's times, that were told already

    def words(self, count: int) -> str:
        """Text of `count` tokens, another one each time."""
        return "".join(self.rng.choice("abcdefgh klmnop rstuvw") for _ in range(count))

    def chat(self, content, salt, tokens, system=None, **more) -> tuple[str, dict]:
        messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": content}]
        return "/v1/chat/completions", {"model": "m", "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}, "cache_salt": salt, **more}

    def streams(self, asked) -> list[dict]:
        return self.client.ask("streams", asked=asked)

    def idle(self) -> None:
        while self.model._live.pending():
            time.sleep(0.002)

    def sent(self) -> list[float]:
        """Seconds from a step's end to the socket, of what was sent since the last call: by the outbox, and by Python."""
        direct, (python, self.engine.metrics.sent) = self.engine.outbox.times_to_socket(), (self.engine.metrics.sent, Samples())
        fresh, self.counted = direct[self.counted:], len(direct)
        return [*python, *(t * 1e-9 for t in fresh)]

    def to_socket(self, case) -> None:
        samples = [s * 1e6 for s in self.sent()]
        if samples:
            self.add(f"{case},metric=socket", p50_us=at(samples, 0.5), p99_us=at(samples, 0.99), n=len(samples), note="from the end of the engine's step to the bytes in the socket; goal p50 < 100, p99 < 500 us",
                     good=at(samples, 0.5) < 100 and at(samples, 0.99) < 500)

    # ---- rows ----------------------------------------------------------------------------------------------------------------------

    def stream(self) -> None:
        """One stream beside nothing, and generate(), in turn."""
        s, ours, theirs, steps, their_steps = self.size, [], [], [], []
        self.streams([self.chat("warm", "warm", 8)])
        self.sent()
        for i in range(s["turns"]):
            text = self.words(s["prompt"])
            got, = self.streams([self.chat(text, f"s{i}", s["tokens"])])
            if got["tokens"] != s["tokens"] or got["cached"]:
                raise RuntimeError(f"wanted {s['tokens']} tokens of a cold prompt, got {got['tokens']}, {got['cached']} of the prompt cached")
            ours.append((got["end"] - got["sent"]) / s["tokens"] / 1e3)
            steps.append((got["at"][-1] - got["at"][0]) / (s["tokens"] - 1) / 1e3)
            start, arrived = time.perf_counter(), []
            for _ in self.model.stream([{"role": "user", "content": text}], max_tokens=s["tokens"], temperature=0.0, salt=f"p{i}"):
                arrived.append(time.perf_counter())
            their_steps.append((arrived[s["tokens"] - 1] - arrived[0]) / (s["tokens"] - 1) * 1e6)
            start = time.perf_counter()
            self.model.generate([{"role": "user", "content": text}], max_tokens=s["tokens"], temperature=0.0, salt=f"g{i}")
            theirs.append((time.perf_counter() - start) / s["tokens"] * 1e6)
        case = f"streams=1,prompt={s['prompt']},tokens={s['tokens']}"
        for metric, mine, peer, name in (("answer", ours, theirs, "generate(), in turn"), ("step", steps, their_steps, "stream(), in turn")):
            a, b = statistics.median(mine), statistics.median(peer)
            self.add(f"{case},metric={metric}", p50_us=a, n=len(mine), peer=name, peer_p50_us=b, note=f"us a token; {a / b - 1:+.2%}, goal within 1 %; turns {', '.join(f'{x / y - 1:+.2%}' for x, y in zip(mine, peer))}", good=a <= 1.01 * b)
        self.to_socket(case)

    def first(self) -> None:
        """The first token of a prompt whose beginning is known."""
        s, system = self.size, self.words(self.size["prefix"])
        for suffix in s["suffixes"]:
            hits, ids_hits, alone, behind, cold = [], [], [], [], []
            for turn in range(s["turns"] + 1):  # the first one computes the beginning
                text = self.words(suffix)
                self.idle()
                got, = self.streams([self.chat(text, f"f{suffix}", 2, system)])
                (hits if turn else cold).append((got["at"][0] - got["sent"]) / 1e3)
                ids = self.model.text.chat_ids([{"role": "system", "content": system}, {"role": "user", "content": self.words(suffix)}])
                self.idle()
                said, = self.streams([("/v1/completions", {"model": "m", "prompt": ids, "max_tokens": 2, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}, "cache_salt": f"f{suffix}"})])
                self.idle()
                fresh = len(ids) - said["cached"]  # what a hit computes: the suffix, and what the last block's end and the template add
                if turn:
                    ids_hits.append((said["at"][0] - said["sent"]) / 1e3)
                start = time.perf_counter()
                self.model.generate_ids(ids[-fresh:], max_tokens=1, temperature=0.0, reuse=False)
                alone.append((time.perf_counter() - start) * 1e6)
                self.idle()
                ids = self.model.text.chat_ids([{"role": "system", "content": system}, {"role": "user", "content": self.words(suffix)}])
                if not turn:
                    self.model.generate_ids(ids, max_tokens=1, temperature=0.0, salt="in process")
                    continue
                start = time.perf_counter()
                self.model.generate_ids(ids, max_tokens=1, temperature=0.0, salt="in process")
                behind.append((time.perf_counter() - start) * 1e6)
            goal, found = 1.1 * statistics.median(alone) + 1000, dict(peer=f"prefill of {fresh} tokens alone, in process", peer_p50_us=statistics.median(alone))
            for kind, times in (("chat", hits), ("ids", ids_hits)):
                self.add(f"prefix={s['prefix']},suffix={suffix},prompt={kind},metric=first", p50_us=statistics.median(times), p99_us=max(times), n=len(times), **found, good=statistics.median(times) < goal,
                         note=f"goal {goal:.0f} us (1.1 x + 1 ms); in process behind the same beginning {statistics.median(behind):.0f} us; cold {cold[0]:.0f} us; cached {said['cached']} of {len(ids)}")

    def batch(self) -> None:
        """Many streams side by side, over the step of as many sequences at the same positions."""
        from vivace import _core

        s, live = self.size, self.model._live
        count, tokens, prompt = s["streams"], s["streamed"], s["prompt"]

        def bare():
            self.idle()
            batcher, times = _core.Batcher(live), []
            for i in range(count):
                batcher.submit(prompt=[(7919 * j + 13 * i) % 256 for j in range(prompt)], max_tokens=tokens, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0, presence=0.0, frequency=0.0, seed=0, stop=[])
            while not batcher.idle():
                if len(batcher.step()) == count:
                    times.append(time.perf_counter())
            return (times[-1] - times[0]) / (len(times) - 1) * 1e6

        ours, theirs = [], []
        for turn in range(min(3, s["turns"])):
            theirs.append(bare())
            self.sent()
            for _ in range(50):
                got = self.streams([self.chat(self.words(prompt), f"b{turn}", tokens) for _ in range(count)])
                if short := [g["tokens"] for g in got if g["tokens"] != tokens]:
                    raise RuntimeError(f"wanted {tokens} tokens each, got {short}")
                begin, end = max(g["at"][0] for g in got), min(g["at"][-1] for g in got)  # while all of them answer
                events = [sum(n for t, n in zip(g["at"], g["events"]) if begin < t <= end) for g in got]
                if any(events):
                    break
            else:
                raise RuntimeError(f"{count} streams never answered all at once, in 50 tries")
            ours.append((end - begin) / statistics.mean(events) / 1e3)
        case, a, b = f"streams={count},prompt={prompt},tokens={tokens}", statistics.median(ours), statistics.median(theirs)
        self.add(f"{case},metric=batch", p50_us=a, n=len(ours), peer="the batched step without HTTP, in turn", peer_p50_us=b, good=b / a >= 0.95, note=f"{b / a:.1%} of its rate, goal 95 %; {count / a * 1e6:.0f} tokens/s")
        self.to_socket(case)

    def capsule(self) -> None:
        """A conversation's state: taken, forked, moved to the host and back."""
        from vivace import _core, capsule

        s, live = self.size, self.model._live

        def timed(count, work, *, rest=lambda made: None):
            times = []
            for _ in range(count):
                start = time.perf_counter()
                made = work()
                times.append((time.perf_counter() - start) * 1e6)
                rest(made)
                del made
            return times

        def row(case, times, **more):
            self.add(case, p50_us=statistics.median(times), p99_us=at(times, 0.99), n=len(times), **more)

        for tokens in s["capsules"]:
            ids = [(7919 * i + 13) % 256 for i in range(tokens)]
            self.model.generate_ids(ids, max_tokens=2, temperature=0.0, salt="c")
            self.idle()
            case = f"tokens={tokens}"
            times = timed(200, lambda: _core.take_snapshot(live, b"c", ids, keep=True))
            row(f"{case},metric=snapshot", times, note="from Python, its list of tokens read among it; goal 50 us", good=statistics.median(times) < 50)
            kept = capsule.make(self.model, {"kind": "session", "options": {}}, ids, "c")
            times = timed(200, kept.fork)
            row(f"{case},metric=fork", times, note="goal 50 us", good=statistics.median(times) < 50)
            size = kept.bytes
            times = timed(3, lambda: _core.take_snapshot(live, b"c", ids).read())
            row(f"{case},metric=to_host", times, bytes=size, note=f"{size / statistics.median(times) / 1e3:.1f} GB/s")
            kept.close()
            host = _core.take_snapshot(live, b"c", ids)
            positions, pure, blocks = host.positions, host.pure, host.read()
            del host
            place = [0]

            def write():
                place[0] += 1  # under another salt each time: nothing of it is there
                return _core.write_snapshot(live, b"r%d" % place[0], ids, positions, pure, blocks)
            times = timed(5, write)
            link = self.link(size)
            a = statistics.median(times)
            row(f"{case},metric=restore", times, bytes=size, **(dict(peer="torch, the same bytes from page-locked memory", peer_p50_us=link) if link else {}), good=link is None or link / a >= 0.8,
                note=f"{size / a / 1e3:.1f} GB/s" + (f", link {size / link / 1e3:.1f} GB/s, {link / a:.0%}, goal 80 %" if link else ""))
            start = time.perf_counter()
            self.model.generate_ids(ids, max_tokens=1, temperature=0.0, reuse=False)
            row(f"{case},metric=prefill", [(time.perf_counter() - start) * 1e6], note="of as many tokens: what a restore is cheaper than, or not")

        stream = self.model._stream([(7919 * i + 31) % 256 for i in range(s["prompt"])], None, max_tokens=s["context"] - s["prompt"], temperature=0.0)
        next(stream)
        times = timed(50 if s["cycles"] > 1000 else 5, stream.capsule, rest=lambda made: (made.close(), [next(stream) for _ in range(2)]))
        stream.close()
        row(f"tokens={s['prompt']},beside=its_answer,metric=snapshot", times, note="of an answer on its way: it waits for the end of a step")

    def link(self, size: int) -> float | None:
        """Microseconds of `size` bytes from page-locked memory to the device."""
        if self.model.report()["device"] == "cpu":
            return None
        import torch

        a, b = torch.empty(size, dtype=torch.uint8).pin_memory(), torch.empty(size, dtype=torch.uint8, device="cuda")
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            b.copy_(a, non_blocking=True)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e6)
        del a, b
        torch.cuda.empty_cache()
        return min(times)

    def cycles(self) -> None:
        """Clients that come and go, beside one that reads on."""
        s, live = self.size, self.model._live
        path, body = self.chat(self.words(s["prompt"]), "y", 200)
        story = self.chat(self.words(s["prompt"]), "z", s["tokens"])

        def gaps(got):
            return [(b - a) / 1e3 for g in got for a, b in zip([g["sent"], *g["at"]], g["at"])]

        alone = gaps(self.streams([story]))
        settle = max(20, s["cycles"] // 20)
        self.client.ask("cycles", count=settle, seconds=s["cycle_s"], path=path, body=body)
        self.idle()
        before, beside, over = resident_mb(), [], threading.Event()
        other = Client(self.port)
        self.client.begin("cycles", count=s["cycles"], seconds=s["cycle_s"], path=path, body=body)

        def bystander():
            while not over.is_set():
                beside.extend(gaps(other.ask("streams", asked=[story])))
        reader = threading.Thread(target=bystander)
        reader.start()
        try:
            done = self.client.end()
        finally:
            over.set()
            reader.join()
            other.close()
        self.idle()
        deadline = time.monotonic() + 20
        while self.engine.choices or self.engine.streams:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.engine.choices} answers are still counted")
            time.sleep(0.01)
        count, available, _ = live.blocks()
        grown = resident_mb() - before
        self.add(f"cycles={s['cycles']},metric=cycle", p50_us=done["p50_us"], p99_us=done["p99_us"], n=done["cycles"], good=available == count and grown < 64 and done["cycles"] == s["cycles"],
                 note=f"{done['cycles']} clients left after {settle} to settle; {available} of {count} blocks free, {grown:+.1f} MB resident; a bystander's waits, for its first token too, p50 {at(beside, 0.5):.0f} p99 {at(beside, 0.99):.0f} us, alone p50 {at(alone, 0.5):.0f} p99 {at(alone, 0.99):.0f} us")


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--config", type=Path, default=ROOT / "bench/configs/qwen3-8b/config.json")
    p.add_argument("--device", default="cuda")
    p.add_argument("--small", action="store_true", help="sizes for a try on a CPU")
    p.add_argument("--parts", default=",".join(PARTS))
    p.add_argument("--facts", type=Path, help="of tools/device_facts.py")
    p.add_argument("--out", type=Path, help="folder under which bench/results/<chip> is written")
    p.add_argument("--seconds", type=float, default=float("inf"), help="begin no part after so many")
    p.add_argument("--client", type=int, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.client:
        client(args.client)
        return 0
    import vivace
    from vivace.text import load_text

    begun, parts, size = time.monotonic(), args.parts.split(","), SIZES["small" if args.small else "device"]
    if unknown := set(parts) - set(PARTS):
        p.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    facts = json.loads(args.facts.read_text()) if args.facts else {"chip": "cpu"}
    r = Receipt("serve", sources=SOURCES, command="python bench/bench_serve_device.py" + ("" if parts == list(PARTS) else f" --parts {args.parts}"), **facts)
    if args.out:
        r.root = args.out
    table, failed = [], []

    def add(case, *, good=None, note=None, **row):
        case = f"model={args.config.parent.name},{case}"
        r.row(op="serve", case=case, dtype="bf16", tool="host clock", note=note, **row)
        if args.out:
            r.write("bench")  # a run that is cut short keeps what it has
        table.append((case, row["p50_us"], row.get("peer_p50_us"), good, note or ""))
        print(f"{time.monotonic() - begun:5.0f} s  {case}  {row['p50_us']:.1f} us  {note or ''}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        checkpoint(folder, args.config)
        options = dict(num_kv_blocks="full", context=size["context"], max_batch=size["batch"], prefill_chunk=size["chunk"])
        with vivace.load_model(folder, device=args.device, precision="bf16", random_weights=True, **options) as model:
            model._text = load_text(folder, {})  # the loader of checkpoints looks for weights beside it
            model.generate_ids([1, 2, 3], max_tokens=4)
            print(f"{time.monotonic() - begun:5.0f} s  loaded: {model!r}", flush=True)
            with served(model, size["batch"]) as (engine, port):
                asker = Client(port)
                bench = Bench(model, engine, asker, size, add)
                bench.port = port
                for part in parts:
                    if time.monotonic() - begun > args.seconds:
                        failed.append((part, "no time left"))
                        continue
                    try:
                        getattr(bench, part)()
                    except Exception as e:  # noqa: BLE001 - what comes behind it runs
                        traceback.print_exc()
                        failed.append((part, f"{type(e).__name__}: {e}"))
                asker.close()
    print(f"\n{'case':<78} {'us':>12} {'peer us':>12} goal")
    for case, us, peer, good, _ in table:
        print(f"{case:<78} {us:12.1f} {f'{peer:12.1f}' if peer else '':>12} {'' if good is None else 'met' if good else 'MISSED'}")
    for part, why in failed:
        print(f"{part}: NOT MEASURED: {why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
