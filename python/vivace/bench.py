"""Rows that `vivace bench` times: a decode step and a prefill, through the same calls that generate uses."""
from __future__ import annotations

import time


def percentiles(seconds) -> dict:
    us = sorted(s * 1e6 for s in seconds)
    at = lambda q: us[min(len(us) - 1, int(q * len(us)))]
    return {"p50_us": at(0.5), "p99_us": at(0.99), "p999_us": at(0.999) if len(us) >= 1000 else None, "n": len(us)}


def bench_text_model(model, *, steps: int, prompt_tokens: int) -> list[dict]:
    """metric=step: one greedy token at batch 1 after a short prompt. metric=prefill: `prompt_tokens` at once."""
    from vivace import _core
    from vivace.cli import peak_rss_mb

    report = model.report()
    vocab, context = report["vocab"], report["context"]
    prompt_tokens = min(prompt_tokens, context)
    ids = lambda n: [(i * 7919 + 13) % vocab for i in range(n)]  # spread over the table; text does not matter here
    name = "model=" + report["path"].rsplit("/", 1)[-1].rsplit(".", 1)[0].lower()

    def run(prompt, tokens):
        """Seconds of each batcher step."""
        batcher = _core.Batcher(model._live)
        batcher.submit(prompt=prompt, max_tokens=tokens, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0,
                       presence=0.0, frequency=0.0, seed=0, stop=[])
        times = []
        while not batcher.idle():
            start = time.perf_counter()
            batcher.step()
            times.append(time.perf_counter() - start)
        return times

    steps = min(steps, context - 16)
    run(ids(8), 8)  # warm
    decode = run(ids(8), steps + 1)[1:]
    prefills = [sum(run(ids(prompt_tokens), 1)) for _ in range(5)]
    peak = f"peak_rss_mb={peak_rss_mb():.1f}"
    rows = [(f"{name},batch=1,ctx={8 + steps},metric=step", decode), (f"{name},batch=1,prompt={prompt_tokens},metric=prefill", prefills)]
    return [{"op": "e2e", "case": case, "dtype": report["precision"], "tactic": f"threads={report['threads']}", **percentiles(times),
             "bytes": None, "flops": None, "limit_us": None, "share": None, "peer": None, "peer_p50_us": None, "ratio": None,
             "max_err": None, "bound": None, "pass": True, "note": peak} for case, times in rows]
