#!/usr/bin/env python3
"""Mixed load for a given time: callers of one language model and of one policy, with random faults, while memory, descriptors
and threads are watched.

    .venv/bin/python tools/soak.py --seconds 1200                  # CPU, SmolLM2 and the demo's policy
    .venv/bin/python tools/soak.py --seconds 300 --device cuda --rows FILE    # tools/device_run.py soak

Threads and asyncio tasks answer, leave in mid-answer, raise from a mask, send what is refused, ask in batches. A finished answer must be the
one that its request has alone; none may take longer than --patience. Closes with slopes over the time after the first
quarter, by least squares, and exits with 1 where an answer was wrong, a caller stuck, an error not one of Vivace's, or a slope above its limit.
"""
from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

# What may grow in an hour, beside what one sample differs from the next.
LIMITS = {"rss_mb": 64.0, "device_mb": 16.0, "fds": 1.0, "threads": 1.0}
PROMPTS = 12
SOURCES = ["tools/soak.py", "vivace/serve/*.cc", "vivace/serve/*.h", "vivace/models/decoder/*.cc", "vivace/models/vla/*.cc", "python/src/*.cc"]


def tiny(parent: Path) -> Path:
    """A model of the tests with a tokenizer of two letters, for a machine that has no weights."""
    folder = parent / "llama"
    shutil.copytree(ROOT / "tests/fixtures/tiny/llama", folder)
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}))
    return folder


class Load:
    """What the callers share: models, requests with their answers alone, counts."""

    def __init__(self, args):
        import vivace
        from vivace.demo import arm, reach

        self.args, self.vivace = args, vivace
        self.model = vivace.load_model(args.model, device=args.device, context=128, max_batch=4, num_kv_blocks=16, logit_bias=True)
        rng, vocab = random.Random(1), self.model.report()["vocab"]
        self.requests = [dict(ids=[rng.randrange(3, vocab) for _ in range(rng.randrange(1, 60))], max_tokens=rng.randrange(1, 40), temperature=rng.choice([0.0, 0.9]), seed=i) for i in range(PROMPTS)]
        self.alone = [self.model.generate_ids(**r).tokens for r in self.requests]
        self.policy = reach.load(args.device) if args.policy else None
        if self.policy:
            scene = arm.scene(1)
            frames = arm.Cameras(reach.SIDE).frames(scene, scene.start[:1])[0]
            self.seen = dict(images=list(frames), prompt=reach.words_of(scene), state=scene.start[0])
            self.actions = [self.policy.predict(**self.seen, seed=s) for s in range(PROMPTS)]
        self.lock, self.counts, self.wrong, self.busy = threading.Lock(), {}, [], {}
        self.end = time.monotonic() + args.seconds

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fail(self, what: str) -> None:
        with self.lock:
            self.wrong.append(what[:400])

    # ---- what a caller does once; each returns the name that is counted -------------------------

    def answer(self, rng) -> str:
        i = rng.randrange(PROMPTS)
        if self.model.generate_ids(**self.requests[i]).tokens != self.alone[i]:
            self.fail(f"request {i} was answered otherwise than alone")
        return "answers"

    def leave(self, rng) -> str:
        stream = self.model._stream(rng.choice(self.requests)["ids"], None, max_tokens=40)
        for _ in range(rng.randrange(3)):
            next(stream, None)
        if rng.random() < 0.5:
            stream.close()
        return "left"

    def raise_from_mask(self, rng) -> str:
        left = rng.randrange(4)

        def mask(tokens):
            if len(tokens) >= left:
                raise ZeroDivisionError("a mask of the soak")

        try:
            self.model.generate_ids([5, 6, 7], max_tokens=20, mask=mask)
        except ZeroDivisionError:
            return "masks that raised"
        return "masks that ended before"

    def refused(self, rng) -> str:
        bad = rng.choice([dict(ids=[]), dict(ids=[10**7]), dict(ids=[1] * 130), dict(ids=[1], top_p=2.0), dict(ids=[1], max_tokens=0), dict(ids=[1], seed=None)])
        try:
            self.model.generate_ids(**bad)
        except self.vivace.Error:
            return "refused"
        self.fail(f"{str(bad)[:80]} was answered")
        return "answers"

    def batch(self, rng) -> str:
        many = [rng.randrange(PROMPTS) for _ in range(5)]
        answers = self.model.generate_batch([self.requests[i]["ids"] for i in many], max_tokens=6)
        if len(answers) != 5:
            self.fail(f"a batch of 5 had {len(answers)} answers")
        return "batches"

    def predict(self, rng) -> str:
        s = rng.randrange(PROMPTS)
        if rng.random() < 0.1:
            try:
                self.policy.predict(**{**self.seen, "state": [float("nan")] * len(self.seen["state"])})
            except self.vivace.Error:
                return "refused"
        if (self.policy.predict(**self.seen, seed=s) != self.actions[s]).any():
            self.fail(f"observation {s} was answered otherwise than alone")
        return "chunks of actions"

    # ---- callers --------------------------------------------------------------------------------

    def run(self, name: str, seed: int, ways) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self.end:
            self.busy[name] = time.monotonic()
            try:
                self.count(rng.choice(ways)(rng))
            except self.vivace.LimitExceededError:
                self.count("refused for a full queue")
            except Exception as e:
                self.fail(f"{name}: {type(e).__name__}: {e}")
        self.busy.pop(name, None)

    async def run_tasks(self, seed: int) -> None:
        async def caller(n):
            rng = random.Random(seed + n)
            while time.monotonic() < self.end:
                self.busy[f"task {n}"] = time.monotonic()
                i = rng.randrange(PROMPTS)
                task = asyncio.create_task(self.model.agenerate(**{("prompt" if k == "ids" else k): v for k, v in self.requests[i].items()}))
                try:
                    if rng.random() < 0.3:
                        await asyncio.sleep(rng.random() * 0.05)
                        task.cancel()
                    if (got := (await task).tokens) != self.alone[i][:len(got)]:  # ids of the tokenizer may end it before
                        self.fail(f"request {i} was answered otherwise than alone, as a task")
                    self.count("asyncio answers")
                except asyncio.CancelledError:
                    self.count("asyncio tasks that were cancelled")
                except self.vivace.LimitExceededError:
                    self.count("refused for a full queue")
                except Exception as e:
                    self.fail(f"task {n}: {type(e).__name__}: {e}")
            self.busy.pop(f"task {n}", None)

        await asyncio.gather(*(caller(n) for n in range(self.args.callers)))


def sample(load: Load) -> dict:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    now = {"rss_mb": pages * os.sysconf("SC_PAGESIZE") / 1e6, "fds": len(os.listdir("/proc/self/fd")), "threads": threading.active_count()}
    if load.args.device != "cpu":
        from vivace import array

        now["device_mb"] = array.pool_stats()["mapped"] / 1e6  # of this process: others may use the GPU too
    return now


def slope(times, values) -> float:
    """Units an hour of the line through the later three quarters."""
    import numpy as np

    first = len(times) // 4
    return float(np.polyfit(np.asarray(times[first:]) / 3600, values[first:], 1)[0])


def soak(args) -> dict:
    load, times, seen, stuck = Load(args), [], [], []
    ways = [load.answer, load.answer, load.answer, load.leave, load.raise_from_mask, load.refused, load.batch]
    threads = [threading.Thread(target=load.run, args=(f"caller {i}", i, ways)) for i in range(args.callers)]
    if load.policy:
        threads += [threading.Thread(target=load.run, args=(f"robot {i}", 100 + i, [load.predict])) for i in range(2)]
    threads.append(threading.Thread(target=lambda: asyncio.run(load.run_tasks(1000))))
    for t in threads:
        t.start()
    start = time.monotonic()
    while (now := time.monotonic()) < load.end:
        times.append(now - start)
        seen.append(sample(load))
        stuck += [f"{n} waited for more than {args.patience:g} s" for n, since in dict(load.busy).items() if now - since > args.patience and n not in " ".join(stuck)]
        time.sleep(min(args.interval, max(0.01, load.end - now)))
    for t in threads:
        t.join(args.patience)
    stuck += [f"{t.name} did not end" for t in threads if t.is_alive()]
    slopes = {k: slope(times, [s[k] for s in seen]) for k in seen[0]} if len(seen) > 8 else {}
    grown = {k: max(s[k] for s in seen[len(seen) // 4:]) - max(s[k] for s in seen[:len(seen) // 4 + 1]) for k in seen[0]}
    steep = [k for k, v in slopes.items() if v > LIMITS[k] and grown[k] > (8 if k.endswith("_mb") else 1)]
    for one in (load.model, load.policy):
        if one is not None and not stuck:
            one.close()
    return {"seconds": args.seconds, "device": args.device, "counts": load.counts, "wrong": load.wrong[:20], "wrong_count": len(load.wrong), "stuck": stuck, "slopes_an_hour": slopes, "grown": grown,
            "steep": steep, "last": seen[-1], "pass": not (load.wrong or stuck or steep)}


def rows(facts):
    """What a receipt says of a run: a row a slope, and one of the answers."""
    for what, value in facts["slopes_an_hour"].items():
        yield {"op": "soak", "case": f"slope={what}", "tool": "soak", "max_err": value, "bound": LIMITS[what], "note": f"an hour, over {facts['seconds']:g} s; grown by {facts['grown'][what]:.3g}", "pass": what not in facts["steep"]}
    said = ", ".join(f"{n} {what}" for what, n in sorted(facts["counts"].items()))
    yield {"op": "soak", "case": "metric=answers", "tool": "soak", "max_err": float(facts["wrong_count"] + len(facts["stuck"])), "bound": 0.0, "note": said, "pass": facts["pass"]}


def receipt(facts, args) -> Path:
    from tools.receipt import Receipt

    r = Receipt("soak", chip="cpu", command=f"tools/soak.py --seconds {args.seconds:g} --receipt", sources=SOURCES)
    for row in rows(facts):
        r.row(**row)
    return r.write("tests")


def main(argv=None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--device", default="cpu")
    p.add_argument("--model", default="smollm2-135m-instruct")
    p.add_argument("--tiny", action="store_true", help="a model of the tests in its place")
    p.add_argument("--callers", type=int, default=8, help="threads, and as many asyncio tasks")
    p.add_argument("--interval", type=float, default=1.0, help="seconds between samples")
    p.add_argument("--patience", type=float, default=120.0, help="seconds that one request may take")
    p.add_argument("--no-policy", dest="policy", action="store_false")
    p.add_argument("--receipt", action="store_true", help="of the CPU: write tests/results/cpu/soak.json")
    p.add_argument("--rows", type=Path, help="a file to add one JSON line a row to")
    args = p.parse_args(argv)
    if args.receipt and args.device != "cpu":
        p.error("--receipt is of the CPU; a GPU's receipt is made by tools/device_run.py soak")
    with tempfile.TemporaryDirectory() as folder:
        if args.tiny:
            args.model = tiny(Path(folder))
        facts = soak(args)
    print(json.dumps(facts, indent=1))
    if args.rows:
        with args.rows.open("a") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows(facts))
    if args.receipt:
        print(receipt(facts, args), file=sys.stderr)
    return 0 if facts["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
