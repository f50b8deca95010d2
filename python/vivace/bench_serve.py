"""`vivace bench serve`: what clients of a server see under load that does not wait for it: requests arrive when they arrive (Poisson), whatever became
of those before."""
from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from vivace import files
from vivace.errors import InvalidArgumentError, IoError

WORDS = ("time", "river", "stone", "light", "garden", "engine", "winter", "letter", "mountain", "paper", "signal", "window", "music", "harbour", "forest", "number", "silver", "bridge", "summer", "mirror")
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


@dataclass
class Asked:
    """A request and what came of it; seconds from the beginning of the run."""

    due: float
    body: bytes
    sent: float = 0.0
    status: int = 0
    first: float | None = None
    chunks: list[float] = field(default_factory=list)  # when pieces of text came
    over: float | None = None
    tokens: int = 0
    cached: int = 0
    prompt: int = 0
    error: str = ""


def add_options(p, count) -> None:
    """`count`: reads a whole number above 0."""
    p.add_argument("--url", default="http://127.0.0.1:8000", help="of any server with OpenAI's API; a key comes from VIVACE_API_KEY or OPENAI_API_KEY")
    p.add_argument("--name", help="the model's name there; default: the first that it lists")
    p.add_argument("--rate", type=float, default=1.0, help="requests a second, on average")
    p.add_argument("--requests", type=count, default=64)
    p.add_argument("--prompt-words", type=count, default=64, help="of each request's own")
    p.add_argument("--shared-words", type=int, default=64, help="before them, that several requests have in common")
    p.add_argument("--prefixes", type=count, default=4, help="of such beginnings there are")
    p.add_argument("--max-tokens", type=count, default=64)
    p.add_argument("--slo-ttft-ms", type=float, default=1000.0, help="an answer is good whose first text comes within this")
    p.add_argument("--slo-e2e-ms", type=float, default=30_000.0, help="and whose end comes within this")
    p.add_argument("--timeout", type=float, default=300.0, metavar="S", help="of a request")
    p.add_argument("--seed", type=int, default=0, help="of arrivals and prompts: the same one asks the same")
    p.add_argument("-o", "--out", metavar="FILE", help="the figures and each request, as JSON")
    p.add_argument("--picture", metavar="FILE", help="how they are distributed, as SVG")


def plan(args, name: str) -> list[Asked]:
    """Requests with the times they are due."""
    r, at, out = random.Random(args.seed), 0.0, []
    words = lambda n: " ".join(r.choice(WORDS) for _ in range(n))  # noqa: E731
    shared = [words(args.shared_words) for _ in range(args.prefixes)]
    for _ in range(args.requests):
        at += r.expovariate(args.rate)
        text = f"{r.choice(shared)}\n{words(args.prompt_words)}\nTell a story of this."
        body = {"model": name, "messages": [{"role": "user", "content": text}], "max_tokens": args.max_tokens, "stream": True, "stream_options": {"include_usage": True}, "seed": r.randrange(1 << 31)}
        out.append(Asked(at, json.dumps(body).encode()))
    return out


class Target:
    def __init__(self, url: str):
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise InvalidArgumentError(f"--url: wanted http://HOST:PORT, got {url[:80]!r}")
        self.host, self.port, self.path = parts.hostname, parts.port or 80, parts.path.rstrip("/").removesuffix("/v1")
        key = os.environ.get("VIVACE_API_KEY") or os.environ.get("OPENAI_API_KEY")
        self._key = b"authorization: Bearer %b\r\n" % key.encode() if key else b""

    def head(self, method: str, path: str, length: int) -> bytes:
        return f"{method} {self.path}{path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n".encode() + self._key + b"\r\n"

    async def ask(self, method: str, path: str, body: bytes = b""):
        """Status, and lines of the body as they come."""
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 22)
        writer.write(self.head(method, path, len(body)) + body)
        line = await reader.readline()
        chunked, status = False, int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else 0
        while (line := await reader.readline()) not in (b"\r\n", b""):
            chunked |= line.lower().startswith(b"transfer-encoding:") and b"chunked" in line.lower()
        return status, _lines(reader, writer, chunked)


async def _lines(reader, writer, chunked: bool):
    rest = b""
    try:
        while True:
            if chunked:
                size = int((await reader.readline()).strip() or b"0", 16)
                data = await reader.readexactly(size) if size else b""
                await reader.readline()
            else:
                data = await reader.read(1 << 16)
            if not data:
                break
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                yield line
        if rest:
            yield rest
    finally:
        writer.close()


async def _one(target: Target, asked: Asked, began: float, timeout: float) -> None:
    await asyncio.sleep(max(0.0, began + asked.due - time.perf_counter()))
    asked.sent = time.perf_counter() - began
    try:
        await asyncio.wait_for(_answer(target, asked, began), timeout)
    except (OSError, ValueError, LookupError, EOFError, asyncio.TimeoutError) as e:  # what a server does to one request ends that one
        asked.error = asked.error or f"{type(e).__name__}: {e}"[:200]
    asked.over = time.perf_counter() - began


async def _answer(target: Target, asked: Asked, began: float) -> None:
    asked.status, lines = await target.ask("POST", "/v1/chat/completions", asked.body)
    async for line in lines:
        if asked.status != 200:
            asked.error += line.decode("utf-8", "replace")[:200]
        elif line.startswith(b"data: {"):
            _take(asked, json.loads(line[6:]), time.perf_counter() - began)


def _take(asked: Asked, event: dict, now: float) -> None:
    if "error" in event:
        asked.error = str(event["error"].get("message"))[:200]
    for choice in event.get("choices", ()):
        delta = choice.get("delta") or {}
        if delta.get("content") or delta.get("reasoning_content"):
            asked.first = now if asked.first is None else asked.first
            asked.chunks.append(now)
    if usage := event.get("usage"):
        asked.tokens, asked.prompt = usage["completion_tokens"], usage["prompt_tokens"]
        asked.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


async def measure(args) -> tuple[str, list[Asked]]:
    target = Target(args.url)
    try:
        if (name := args.name) is None:
            status, lines = await target.ask("GET", "/v1/models")
            text = b"\n".join([line async for line in lines])
            name = json.loads(text)["data"][0]["id"] if status == 200 else None
            if name is None:
                raise InvalidArgumentError(f"{args.url}: /v1/models says {status}: {text[:200].decode('utf-8', 'replace')}")
    except (OSError, ValueError, LookupError) as e:
        raise IoError(f"{args.url}: no server with OpenAI's API answers there ({e}); start one (vivace serve), or give --url") from None
    asked, began = plan(args, name), time.perf_counter()
    await asyncio.gather(*(_one(target, a, began, args.timeout) for a in asked))
    return name, asked


def quantile(values: list[float], q: float) -> float | None:
    """The least value that a share q of them does not exceed."""
    at = sorted(values)
    return at[max(0, math.ceil(q * len(at)) - 1)] if at else None


def summed(args, name: str, asked: list[Asked]) -> dict:
    good = [a for a in asked if a.status == 200 and not a.error and a.first is not None]
    ttft, e2e = [a.first - a.due for a in good], [a.over - a.due for a in good]
    itl = [b - a for one in good for a, b in zip(one.chunks, one.chunks[1:])]
    wall = max((a.over for a in asked), default=0.0)
    within = [a for a in good if (a.first - a.due) * 1e3 <= args.slo_ttft_ms and (a.over - a.due) * 1e3 <= args.slo_e2e_ms]
    shown = lambda values: {n: round(v * 1e3, 3) if (v := quantile(values, q)) is not None else None for n, q in QUANTILES.items()} | {"n": len(values)}  # noqa: E731
    return {
        "url": args.url, "model": name, "rate": args.rate, "requests": len(asked), "seed": args.seed, "wall_s": round(wall, 3), "answered": len(good), "rejected": sum(a.status == 429 for a in asked),
        "failed": sum(a.status != 429 for a in asked if a not in good), "ttft_ms": shown(ttft), "itl_ms": shown(itl), "e2e_ms": shown(e2e),
        "sent_late_ms": shown([a.sent - a.due for a in asked]), "tokens": sum(a.tokens for a in good), "tokens_per_s": round(sum(a.tokens for a in good) / wall, 2) if wall else 0.0,
        "prompt_tokens": sum(a.prompt for a in good), "cached_tokens": sum(a.cached for a in good),
        "goodput": {"ttft_ms": args.slo_ttft_ms, "e2e_ms": args.slo_e2e_ms, "share": round(len(within) / len(asked), 4), "requests_per_s": round(len(within) / wall, 4) if wall else 0.0},
    }


def picture(facts: dict, asked: list[Asked]) -> str:
    """Shares of requests (of gaps) up to each time, log scale."""
    good = [a for a in asked if a.status == 200 and not a.error and a.first is not None]
    series = [("time to first text", [a.first - a.due for a in good]), ("between texts", [y - x for a in good for x, y in zip(a.chunks, a.chunks[1:])]), ("whole answer", [a.over - a.due for a in good])]
    width, height, left, top, low, high = 720, 300, 60, 40, -4, 3  # decades of seconds
    x = lambda s: left + (math.log10(max(10.0**low, min(10.0**high, s))) - low) / (high - low) * (width - left - 20)  # noqa: E731
    y = lambda q: top + (1 - q) * (height - top - 50)  # noqa: E731
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">', f'<rect width="{width}" height="{height}" fill="#fff"/>',
           f'<text x="{left}" y="20">{facts["rate"]:g} requests/s, {facts["answered"]} of {facts["requests"]} answered, {facts["tokens_per_s"]:g} tokens/s, goodput {100 * facts["goodput"]["share"]:.1f} %</text>']
    for d in range(low, high + 1):
        label = f"{10 ** (d + 3):g} ms" if d < 0 else f"{10 ** d:g} s"
        out.append(f'<line x1="{x(10.0**d):.1f}" y1="{top}" x2="{x(10.0**d):.1f}" y2="{y(0)}" stroke="#ddd"/><text x="{x(10.0**d):.1f}" y="{height - 32}" text-anchor="middle">{label}</text>')
    for q in (0.0, 0.5, 0.99):
        out.append(f'<line x1="{left}" y1="{y(q):.1f}" x2="{width - 20}" y2="{y(q):.1f}" stroke="#eee"/><text x="{left - 6}" y="{y(q) + 4:.1f}" text-anchor="end">{100 * q:g} %</text>')
    for i, ((label, values), colour) in enumerate(zip(series, ("#0a5", "#06c", "#c40"))):
        values = sorted(values)
        step = max(1, len(values) // 400)
        points = " ".join(f"{x(v):.1f},{y((n + 1) / len(values)):.1f}" for n, v in enumerate(values) if n % step == 0 or n == len(values) - 1)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/><text x="{left + 200 * i}" y="{height - 10}" fill="{colour}">{label} ({len(values)})</text>')
    return "\n".join([*out, "</svg>\n"])


def run(args) -> int:
    if not args.rate > 0 or args.shared_words < 0:
        raise InvalidArgumentError(f"bench serve: wanted --rate above 0 and --shared-words from 0 on, got {args.rate} and {args.shared_words}")
    name, asked = asyncio.run(measure(args))
    facts = summed(args, name, asked)
    if args.out:
        each = [{k: v for k, v in vars(a).items() if k not in ("body", "chunks")} for a in asked]
        files.write_text(args.out, json.dumps({**facts, "each": each}, indent=1) + "\n")
    if args.picture:
        files.write_text(args.picture, picture(facts, asked))
    if args.json:
        print(json.dumps(facts))
    else:
        for what in ("ttft_ms", "itl_ms", "e2e_ms"):
            print(f"{what:8}", "  ".join(f"{n} {v}" for n, v in facts[what].items()))
        print(f"{facts['answered']} answered, {facts['rejected']} rejected, {facts['failed']} failed in {facts['wall_s']} s; {facts['tokens_per_s']} tokens/s; "
              f"{facts['cached_tokens']} of {facts['prompt_tokens']} prompt tokens found computed; goodput {facts['goodput']['share']:.1%}")
    return 0 if facts["answered"] else 1
