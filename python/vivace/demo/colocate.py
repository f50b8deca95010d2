"""`vivace demo colocate`: a policy at its pace beside a language model that writes without a pause, with a scheduler and without."""
from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import numpy as np

import vivace
from vivace.demo import arm, reach
from vivace.demo.weights import unpacked
from vivace.errors import InvalidArgumentError

PROMPT = "Tell a long story about a robot that learns to cook."
BARS, BINS = 28, 16


def observe(calls: int, hz: float, policy) -> list[float]:
    """Milliseconds of calls at a pace; one that is late begins at once."""
    scene = arm.scene(0)
    frames, state = list(arm.Cameras(reach.SIDE).frames(scene, scene.start)[0]), scene.start[0]
    words, took, due = reach.words_of(scene), [], time.perf_counter()
    for seed in range(calls):
        time.sleep(max(0.0, due - time.perf_counter()))
        due = max(due + 1 / hz, time.perf_counter())
        begun = time.perf_counter()
        policy.predict(frames, prompt=words, state=state, seed=seed)
        took.append(1e3 * (time.perf_counter() - begun))
    return took


class Writer:
    """A language model that writes, on a thread of its own, and its tokens."""

    def __init__(self, model):
        self._model, self._over, self.tokens, self.failure = model, threading.Event(), [], None
        self._thread = threading.Thread(target=self._write, daemon=True)

    def _write(self) -> None:
        try:
            while not self._over.is_set():
                with self._model.stream(PROMPT, max_tokens=200, temperature=0.8, seed=len(self.tokens)) as stream:
                    for _ in stream:
                        self.tokens.append(time.perf_counter())
                        if self._over.is_set():
                            break
        except Exception as e:
            self.failure = e

    def __enter__(self):
        self._thread.start()
        while not self.tokens and self.failure is None and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def __exit__(self, *exc):
        self._over.set()
        self._thread.join()
        if self.failure is not None and exc[0] is None:
            raise self.failure

    def facts(self) -> dict:
        gaps = np.diff(self.tokens) * 1e3 if len(self.tokens) > 1 else np.zeros(1)
        span = self.tokens[-1] - self.tokens[0] if len(self.tokens) > 1 else 0.0
        return {"tokens_s": (len(self.tokens) - 1) / span if span else 0.0, "between_tokens_ms": quantiles(gaps)}


def quantiles(values) -> dict:
    values = np.sort(np.asarray(values, float))
    at = {f"p{q:g}": float(values[max(0, math.ceil(q / 100 * len(values)) - 1)]) for q in (50, 99, 99.9)}
    return at | {"max": float(values[-1])}


def histograms(named: dict[str, list[float]]) -> list[str]:
    """Side by side, over the same bins."""
    low, high = min(map(min, named.values())), max(map(max, named.values()))
    edges = np.geomspace(max(low, 1e-6), max(high, low * 1.01) * 1.0001, BINS + 1)
    counts = {name: np.histogram(values, edges)[0] for name, values in named.items()}
    most = max(int(c.max()) for c in counts.values()) or 1
    lines = [f"{'ms':>9}  " + "  ".join(f"{name:<{BARS + 5}}" for name in named)]
    for i in range(BINS):
        cells = [f"{'#' * math.ceil(BARS * int(c[i]) / most):<{BARS}} {int(c[i]) or '':>4}" for c in counts.values()]
        lines.append(f"{edges[i]:>9.2f}  " + "  ".join(cells))
    return [line.rstrip() for line in lines]


def show(*, device="auto", model="smollm2-135m-instruct", calls=50, hz=0.0, threads=0, trace=None, say=print) -> dict:
    """Three times `calls` calls: alone, beside the language model, beside it with a scheduler. hz: 0 is 5 on the CPU, else 30, and less
    where the longest call alone would take more than half of the device's time.
    Errors: as vivace.load_model(); FailedPreconditionError where the two do not fit, with numbers."""
    if not 1 <= calls <= 1_000_000:
        raise InvalidArgumentError(f"calls: wanted 1 to 1000000, got {calls}")
    if not 0 <= hz <= 1000:
        raise InvalidArgumentError(f"hz: wanted 0 (the device's default) to 1000, got {hz:g}")
    say = say or (lambda line: None)
    arm_options = dict(config="pi05", num_views=arm.Cameras.VIEWS, prompt_tokens=reach.WORDS, threads=threads)
    llm_options = dict(context=512, prefill_chunk=16, threads=threads)
    path = unpacked(reach.FOLDER)
    with vivace.load_model(path, device=device, **arm_options) as policy:
        facts = {"device": policy.report()["device"], "model": str(model), "calls": calls}
        usual = 5.0 if facts["device"] == "cpu" else 30.0
        observe(3, 1000.0, policy)
        took = {"alone": observe(calls, hz or usual, policy)}
        facts["hz"] = hz = hz or min(usual, 0.5e3 / max(took["alone"]))
        with vivace.load_model(model, device=device, **llm_options) as llm, Writer(llm) as writer:
            took["ungated"] = observe(calls, hz, policy)
        facts["ungated_llm"] = writer.facts()
    with vivace.Scheduler(facts["device"]) as gpu:
        policy = gpu.load_model(path, name="arm", qos=vivace.guaranteed(hz=hz), worst_ms=1.03 * max(took["alone"]), **arm_options)
        llm = gpu.load_model(model, name="llm", qos=vivace.burstable(min_share=0.1), **llm_options)
        observe(3, 1000.0, policy)
        with Writer(llm) as writer:
            took["gated"] = observe(calls, hz, policy)
        facts["gated_llm"], facts["stats"] = writer.facts(), gpu.stats()
        if trace is not None:
            gpu.save_trace(Path(trace))
    facts |= {name: quantiles(values) for name, values in took.items()}
    for line in histograms({name: took[name] for name in ("ungated", "gated")}):
        say(line)
    for name in ("alone", "ungated", "gated"):
        beside = f"; the language model writes {facts[name + '_llm']['tokens_s']:.1f} tokens/s" if name != "alone" else ""
        say(f"{name:>8}: p50 {facts[name]['p50']:.2f}, p99 {facts[name]['p99']:.2f}, max {facts[name]['max']:.2f} ms{beside}")
    return facts
