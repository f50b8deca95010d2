"""Rows that `vivace bench` times: a decode step and a prefill, through the same calls that generate uses."""
from __future__ import annotations

import time


def percentiles(seconds) -> dict:
    us = sorted(s * 1e6 for s in seconds)
    at = lambda q: us[min(len(us) - 1, int(q * len(us)))]
    return {"p50_us": at(0.5), "p99_us": at(0.99), "p999_us": at(0.999) if len(us) >= 1000 else None, "n": len(us)}


REST = 0.06  # seconds before each prompt that comes alone: a chip that has just worked may have lowered its clock


def bench_text_model(model, *, steps: int, prompt_tokens: int, batch: int = 1, position: int = 8, in_turn: int = 0) -> list[dict]:
    """metric=step: a greedy token for each of `batch` sequences, from a context of `position` tokens on, as the
    host sees them arrive. metric=prefill: `prompt_tokens` at once, up to the first token, of prompts that come alone.
    `in_turn` > 0 adds metric=prefill_in_turn: so many of them one behind the other."""
    from vivace import _core
    from vivace.cli import peak_rss_mb
    from vivace.errors import InvalidArgumentError, LimitExceededError

    for what, value in (("steps", steps), ("prompt_tokens", prompt_tokens), ("batch", batch), ("position", position)):
        if type(value) is not int or value < 1:
            raise InvalidArgumentError(f"bench: {what}: wanted 1 or more, got {value}")
    report = model.report()
    vocab, context = report["vocab"], report["context"]
    # Nothing is timed but what was asked for.
    if prompt_tokens > context:
        raise LimitExceededError(f"bench: prompt_tokens: {prompt_tokens} do not fit the context of {context}; give at most {context}, or a larger context")
    if position + steps > context:
        raise LimitExceededError(f"bench: position {position} + {steps} steps do not fit the context of {context}; give at most {context - position if position < context else 0} steps from there, or a larger context")
    ids = lambda n: [(i * 7919 + 13) % vocab for i in range(n)]  # spread over the table; text does not matter here
    name = "model=" + model_name(report["path"])

    def run(prompt, tokens, batch=1):
        """Seconds of each batcher step in which all sequences answered."""
        batcher = _core.Batcher(model._live)
        for _ in range(batch):
            batcher.submit(prompt=prompt, max_tokens=tokens, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0,
                           presence=0.0, frequency=0.0, seed=0, stop=[])
        start, times = time.perf_counter(), []
        while not batcher.idle():
            events, last = batcher.step(), start
            start = time.perf_counter()
            times.append((len(events), start - last))
        return times

    run(ids(min(8, position)), min(8, steps))  # warm
    decode = [t for events, t in run(ids(position), steps + 1, batch) if events == batch][1:]
    if not decode:
        raise InvalidArgumentError(f"bench: no step in which all {batch} sequences answered; their prompts of {position} tokens take turns; take a larger prefill_chunk")
    prefills, queued = [], []
    for _ in range(5):
        time.sleep(REST)
        prefills.append(sum(t for _, t in run(ids(prompt_tokens), 1)))
    for _ in range(in_turn):
        queued.append(sum(t for _, t in run(ids(prompt_tokens), 1)))
    peak = f"peak_rss_mb={peak_rss_mb():.1f}"
    tactic = f"threads={report['threads']}" if report["device"] == "cpu" else f"max_in_flight_steps={report['max_in_flight_steps']}"
    rows = [(f"{name},batch={batch},ctx={position + steps},metric=step", decode, batch), (f"{name},batch=1,prompt={prompt_tokens},metric=prefill", prefills, prompt_tokens),
            *([(f"{name},batch=1,prompt={prompt_tokens},metric=prefill_in_turn", queued, prompt_tokens)] if queued else [])]
    timed = [(case, percentiles(times), tokens) for case, times, tokens in rows]
    return [{"op": "e2e", "case": case, "dtype": report["precision"], "tactic": tactic, **p, "tokens_per_s": tokens / p["p50_us"] * 1e6,
             "bytes": None, "flops": None, "limit_us": None, "share": None, "peer": None, "peer_p50_us": None, "ratio": None,
             "max_err": None, "bound": None, "pass": True, "note": peak} for case, p, tokens in timed]


def model_name(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf").removesuffix(".safetensors").lower()


def profile_rows(profile: dict, bytes_per_s: float | None) -> list[dict]:
    """A row a group of launches: its time, rate, and the share of what the memory's rate allows."""
    rows = []
    for g in profile["groups"]:
        limit = g["bytes"] / bytes_per_s * 1e6 if bytes_per_s else None
        rows.append({**g, "total_us": g["us"] * g["launches"], "gb_per_s": g["bytes"] / g["us"] / 1e3, "tflop_per_s": g["flops"] / g["us"] / 1e6,
                     "limit_us": limit, "share": limit / g["us"] if limit else None})
    return rows


def trace(profile: dict) -> dict:
    """The step's launches in order, each at its group's time, in the form that Perfetto and chrome://tracing open."""
    events, now = [], 0.0
    for at, group in enumerate(profile["order"]):
        g = profile["groups"][group]
        events.append({"name": g["op"], "ph": "X", "pid": 1, "tid": 1, "ts": now, "dur": g["us"],
                       "args": {"launch": at, "bytes": g["bytes"], "flops": g["flops"], "gb_per_s": g["bytes"] / g["us"] / 1e3}})
        now += g["us"]
    return {"traceEvents": events, "displayTimeUnit": "ns",
            "otherData": {"what": "launches of one step, each timed alone with cold weights and laid end to end", "sum_us": now, "step_us": profile["step_us"]}}
