"""Counters of a server, and their text for Prometheus. Written on the loop's thread alone; what is counted a token, the outbox counts."""
from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from vivace import _core

BUCKETS = tuple(_core.latency_bounds)


class Histogram:
    def __init__(self, counts=None, sum=0.0):
        self.counts, self.sum = counts or [0] * (len(BUCKETS) + 1), sum

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    def and_also(self, counts, sum: float) -> "Histogram":
        """With what was counted elsewhere."""
        return Histogram([a + b for a, b in zip(self.counts, counts)], self.sum + sum)

    def lines(self, name: str):
        total = 0
        for bound, count in zip((*map(repr, BUCKETS), "+Inf"), self.counts):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum!r}"
        yield f"{name}_count {total}"


class Metrics:
    def __init__(self):
        self._counts: Counter[tuple[str, tuple]] = Counter()
        self.whole, self.sent = Histogram(), Histogram()

    def _count(self, name: str, by: int = 1, **labels) -> None:
        self._counts[name, tuple(labels.items())] += by

    def request(self, route: str, status: int, seconds: float) -> None:
        self._count("vivace_requests_total", route=route, status=str(status))
        self.whole.add(seconds)

    def refused(self, status: int) -> None:
        """Of a connection that brought no request."""
        self._count("vivace_requests_total", route="none", status=str(status))

    def rejected(self, cause: str) -> None:
        self._count("vivace_rejections_total", cause=cause)

    def cancelled(self, cause: str) -> None:
        self._count("vivace_cancels_total", cause=cause)

    def prompt(self, tokens: int) -> None:
        self._count("vivace_prompt_tokens_total", tokens)

    def cache(self, caches: list[tuple[int, int, str]]) -> None:
        """Of each choice of a request, as Group.choices()."""
        for cached, written, miss in caches:
            self._count("vivace_cached_tokens_total", cached)
            self._count("vivace_cache_write_tokens_total", written)
            self._count("vivace_prompts_total", cache=miss.partition("@")[0] or "all")

    def text(self, gauges: dict[str, tuple[str, float]], replies: dict | None) -> bytes:
        """`gauges`: name -> (help, value). `replies`: of the outbox; None where no language model answers."""
        lines = []
        for name, (what, value) in gauges.items():
            lines += [f"# HELP {name} {what}", f"# TYPE {name} gauge", f"{name} {value}"]
        histograms = [("vivace_request_seconds", "From a request's head to the end of its answer", self.whole)]
        if replies is not None:
            self._counts["vivace_generated_tokens_total", ()] = replies["tokens"]
            for finish in ("stop", "length", "tool_calls", "cancelled", "failed"):
                self._counts["vivace_answers_total", (("finish", finish),)] = replies[finish]
            histograms += [("vivace_time_to_first_token_seconds", "From a request's submission to its first token", Histogram(*replies["first"])),
                           ("vivace_inter_token_seconds", "Between two tokens of an answer", Histogram(*replies["between"])),
                           ("vivace_token_to_socket_seconds", "From the engine's end of a step to the bytes in the socket, of streams", self.sent.and_also(*replies["sent"]))]
        for name, what in COUNTERS.items():
            lines += [f"# HELP {name} {what}", f"# TYPE {name} counter"]
            for (of, labels), value in sorted(self._counts.items()):
                if of == name:
                    shown = ",".join(f'{k}="{v}"' for k, v in labels)
                    lines.append(f"{name}{{{shown}}} {value}" if shown else f"{name} {value}")
        for name, what, histogram in histograms:
            lines += [f"# HELP {name} {what}", f"# TYPE {name} histogram", *histogram.lines(name)]
        return "\n".join(lines).encode() + b"\n"


COUNTERS = {
    "vivace_requests_total": "Requests by route and status",
    "vivace_answers_total": "Answers (choices) by finish",
    "vivace_prompt_tokens_total": "Tokens of prompts, once a choice",
    "vivace_cached_tokens_total": "Of these, tokens that were found computed",
    "vivace_cache_write_tokens_total": "Tokens of prompts and answers that are kept for prompts that begin so",
    "vivace_prompts_total": "Prompts, once a choice, by why not more of them was found computed; all: nothing more could be",
    "vivace_generated_tokens_total": "Tokens of answers",
    "vivace_rejections_total": "Requests that were not let in, by cause",
    "vivace_cancels_total": "Requests that were cancelled, by cause",
}
