"""Clients that come and go: connections and answers cut off at any moment, beside one that reads on. What they took comes back: slots, blocks,
memory. `VV_CYCLES=10000` for the long form.

About 12 s."""
import contextlib
import json
import os
import random
import re
import socket
import threading
import time

from tests.serving import NAME, data_of, request_bytes, serve

CYCLES, SETTLED_AFTER, GROWTH_KB = int(os.environ.get("VV_CYCLES", "160")), 60, 24 << 10
STORY = [{"role": "user", "content": "Tell me a long story of the sea."}]


def resident_kb(process) -> int:
    with open(f"/proc/{process.pid}/status") as f:
        return int(next(line.split()[1] for line in f if line.startswith("VmRSS")))


def cut_off(server, rng) -> None:
    """One client that leaves: before it asks, with half of a head or a body, before or in the midst of its answer."""
    path, body = rng.choice([("/v1/chat/completions", {"messages": STORY, "max_tokens": 200, "stream": rng.random() < 0.6, "n": rng.choice([1, 1, 2])}), ("/v1/completions", {"prompt": "The sea " * rng.randrange(1, 60), "max_tokens": 100}),
                             ("/v1/responses", {"input": "The sea", "stream": True}), ("/v1/messages", {"messages": STORY, "max_tokens": 100, "stream": True})])
    data = request_bytes({"model": NAME, **body}, path)
    how = rng.randrange(4)
    with contextlib.suppress(ConnectionError, TimeoutError), socket.create_connection((server.host, server.port), timeout=20) as s:
        if rng.random() < 0.5:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
        if how == 1:
            s.sendall(data[:rng.randrange(len(data))])
        elif how >= 2:
            s.sendall(data)
            if how == 3:
                s.settimeout(rng.choice([0.001, 0.02, 0.1]))
                s.recv(rng.choice([1, 300]))


def test_clients_that_come_and_go():
    with serve("--max-batch", "4", "--max-waiting", "16", "--seed", "1") as server:
        ask = dict(messages=[{"role": "user", "content": "Write of the mountains, in order."}], max_tokens=300, min_tokens=300)
        text = lambda events: "".join(c["delta"].get("content") or "" for d in data_of(events)[:-1] for c in d["choices"])  # noqa: E731
        alone = text(server.events(**ask)[2])
        rng, stop, said, gaps = random.Random(25), threading.Event(), [], []

        def bystander():
            while not stop.is_set():
                with socket.create_connection((server.host, server.port), timeout=60) as s:
                    s.sendall(request_bytes({"model": NAME, "stream": True, **ask}, headers=[b"connection: close\r\n"]))
                    got, last = b"", None
                    while block := s.recv(1 << 16):
                        got += block
                        gaps.extend([time.monotonic() - last] if last is not None else [])
                        last = time.monotonic()
                said.append(got)

        reader = threading.Thread(target=bystander)
        reader.start()
        try:
            for i in range(CYCLES):
                cut_off(server, rng)
                if i == SETTLED_AFTER:
                    begun = resident_kb(server.process)
        finally:
            stop.set()
            reader.join(120)
        server.until_idle()
        grown = resident_kb(server.process) - begun
        gaps.sort()
        print(json.dumps({"cycles": CYCLES, "grown_kb": grown, "bystander": {"answers": len(said), "gaps": len(gaps), "p50_ms": round(1e3 * gaps[len(gaps) // 2], 1), "p99_ms": round(1e3 * gaps[int(0.99 * len(gaps))], 1)}}))
        assert said and all(b'"finish_reason":"length"' in s and s.rstrip().endswith(b"0") and b"[DONE]" in s for s in said)
        assert {"".join(json.loads(f'"{p}"') for p in _contents(s)) for s in said} == {alone}
        assert grown < GROWTH_KB, f"{grown} kB more than after {SETTLED_AFTER} cycles"
        assert server.metric("vivace_kv_blocks_available") == server.metric("vivace_kv_blocks") > 0 and server.metric("vivace_streams_open") == 0
        assert server.metric("vivace_cancels_total", cause="left") > 0
        assert gaps[-1] < 20  # nobody else's leaving stops it


def _contents(raw: bytes) -> list[str]:
    body = b"".join(re.split(rb"\r\n[0-9a-f]+\r\n|^[0-9a-f]+\r\n", raw.partition(b"\r\n\r\n")[2])).decode()
    return re.findall(r'"delta":\{"content":"((?:[^"\\]|\\.)*)"', body)
