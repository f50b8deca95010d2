"""Host cost of a token in `vivace serve`: from the end of the engine's step to the bytes in the socket, with 8 streams, alone and
while requests of 1 MB arrive. And a bystander: times between the events of one stream as its client sees them, alone and beside
requests that are made to cost much and get nothing (ATTACKS), in turn. And a peer (part peer): another server of the same file, in turn
with `vivace serve`, under the same load of `vivace bench serve`. On a machine that should do nothing else meanwhile; clients are
other processes of it.

    python bench/bench_serve.py [--model NAME_OR_FILE] [--threads N] [--parts socket,bystander] [--receipt]
    python bench/bench_serve.py --parts peer --peer "python -m cyllama.llama.server -m FILE.gguf --port {port} --gpu-layers 0 --n-parallel 8 --ctx-size 16384"
"""
import argparse
import contextlib
import http.client
import json
import os
import random
import shlex
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.receipt import Receipt  # noqa: E402

STREAMS, TOKENS, BODY = 8, 160, 1 << 20
TURNS, WATCHED = 3, 400  # of the bystander, and its tokens
PARTS = ("socket", "bystander")  # and peer, which needs another server
VIVACE = str(Path(sys.executable).with_name("vivace"))
LOAD = ["--rate", "1", "--requests", "40", "--prompt-words", "40", "--shared-words", "60", "--prefixes", "2", "--max-tokens", "48", "--seed", "1"]


def attacks() -> list[tuple[str, bytes]]:
    """Requests that are refused, each a way to make a server work for nothing: what they are, and their bytes."""
    def chat(**fields):
        return json.dumps({"model": "m", "messages": [{"role": "user", "content": "?"}], "max_tokens": 1, **fields}).encode()

    def post(body, path=b"/v1/chat/completions", head=b""):
        return b"POST %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n" % (path, head, len(body)) + body

    def schema(value):
        return post(chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": value}}))

    deep: dict = {"type": "integer"}
    for _ in range(40):
        deep = {"type": "array", "items": deep}
    return [("a long prompt", post(chat(messages=[{"role": "user", "content": "many words " * (BODY // 11)}]))), ("brackets", post(b'{"model":' + b"[" * BODY)), ("a cut body", post(chat())[:-9]),
            ("many messages", post(chat(messages=[{"role": "user", "content": "x"}] * 5000))), ("a deep schema", schema(deep)), ("a pattern", schema({"type": "string", "pattern": "^((a{99}){99}){99}$"})),
            ("alternatives", schema({"anyOf": [{"type": "string", "pattern": f"^(a|b|{i})*c{{30}}$"} for i in range(300)]})), ("long headers", b"GET /livez HTTP/1.1\r\nx: " + b"y" * 100_000), ("no HTTP", os.urandom(5000)),
            ("a large number", post(chat(n=2**63))), ("chunks", b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n" + b"x" * 5000),
            ("a template", post(chat(chat_template="{% for i in range(10**9) %}x{% endfor %}")))]


def attack(port: int) -> None:
    """Until it is ended: ATTACKS in turn, four at once, some of whose senders leave at once."""
    os.nice(19)  # in earnest they are elsewhere, and take no processor of the server's

    def work(seed):
        rng, corpus = random.Random(seed), attacks()
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as s:
                s.sendall(rng.choice(corpus)[1])
                if rng.random() < 0.7:
                    s.recv(4096)

    for i in range(4):
        threading.Thread(target=work, args=(i,)).start()


def watch(port: int) -> None:
    """One stream: times between its events, s, as JSON."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Write a story."}], "max_tokens": WATCHED, "stream": True, "temperature": 0, "logit_bias": {"2": -100}}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=300) as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        at, got = [], b""
        while block := s.recv(1 << 16):
            at.append(time.perf_counter())
            got += block
    assert b"[DONE]" in got, got[-300:]
    print(json.dumps([b - a for a, b in zip(at[1:], at[2:])]))


def client(port: int, heavy: bool) -> None:
    """Reads STREAMS streams to their end; with `heavy`, sends 1 MB requests one after the other meanwhile."""
    over = threading.Event()

    def post(body):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        got = connection.getresponse()
        text = got.read()
        connection.close()
        return got.status, text

    def read(i):
        status, text = post(json.dumps({"model": "m", "messages": [{"role": "user", "content": f"Write story number {i}."}], "max_tokens": TOKENS, "stream": True, "temperature": 0, "logit_bias": {"2": -100}}))
        assert status == 200 and b"[DONE]" in text, text[-300:]

    def send():
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "many words " * (BODY // 11)}]})
        while not over.is_set():
            assert post(body)[0] == 400  # more than the context, which is known once it is tokens

    threads = [threading.Thread(target=read, args=(i,)) for i in range(STREAMS)]
    other = threading.Thread(target=send)
    for t in threads + [other] * heavy:
        t.start()
    for t in threads:
        t.join()
    over.set()


@contextlib.contextmanager
def served(model: str, threads: int):
    """An engine behind a server on a thread of this process, and its port."""
    import gc

    import uvicorn

    import vivace
    from vivace.server.app import make_app
    from vivace.server.engine import Engine
    from vivace.server.limits import Limits
    from vivace.server.metrics import Metrics
    from vivace.server.protocol import protocol
    from vivace.server.sampling import Defaults

    class Samples(list):  # of events that Python wrote
        add = list.append

    with vivace.load_model(model, device="cpu", threads=threads, context=1024, max_batch=STREAMS, logit_bias=True) as loaded:
        engine = Engine(loaded, "m", Limits(), max_batch=STREAMS, max_waiting=16, metrics=Metrics(), defaults=Defaults(), keep_times=STREAMS * TOKENS)
        engine.metrics.sent = Samples()
        server = uvicorn.Server(uvicorn.Config(make_app(engine), port=0, http=protocol(engine.limits, engine.metrics.refused), ws="none", lifespan="off", log_config=None))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        gc.freeze()
        sys.setswitchinterval(1e-4)
        try:
            yield engine, server.servers[0].sockets[0].getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
            engine.close()


def bystander(model: str, threads: int) -> tuple[list[float], list[float], int]:
    """Seconds between events of a stream, alone and beside attacks, in turn, sorted; and how many attacks were answered."""
    found: tuple[list[float], list[float]] = [], []
    with served(model, threads) as (engine, port):
        for _ in range(TURNS):
            for beside, times in enumerate(found):
                other = subprocess.Popen([sys.executable, __file__, "--client", str(port), "--as", "attacker"]) if beside else None
                try:
                    done = subprocess.run([sys.executable, __file__, "--client", str(port), "--as", "bystander"], capture_output=True, text=True, check=True)
                finally:
                    if other is not None:
                        other.kill()
                        other.wait()
                times += json.loads(done.stdout)
        asked = sum(count for (name, _), count in engine.metrics._counts.items() if name == "vivace_requests_total")
    return sorted(found[0]), sorted(found[1]), asked - 2 * TURNS


def loaded(command: list[str], port: int) -> dict:
    """What `vivace bench serve` says of a server that `command` starts; the server is ended afterwards."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
                connection.request("GET", "/v1/models")
                if connection.getresponse().status == 200:
                    break
            if server.poll() is not None:
                sys.exit(f"{command[0]} ended with {server.returncode} before it answered")
            time.sleep(0.5)
        else:
            sys.exit(f"{command[0]} did not answer at port {port} in two minutes")
        done = subprocess.run([VIVACE, "bench", "serve", "--url", f"http://127.0.0.1:{port}", "--json", *LOAD], capture_output=True, text=True)
    finally:
        server.terminate()
        server.wait()
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def beside_peer(model: str, threads: int, peer: str) -> list[dict]:
    """A row for each time of the load: ours and the peer's, one after the other."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ours = loaded([VIVACE, "serve", model, "--port", str(port), "--threads", str(threads)], port)
    words = shlex.split(peer.replace("{port}", str(port)))
    theirs = loaded(words, port)
    return [dict(op="serve", case=f"load=poisson,threads={threads},metric={metric}", p50_us=ours[f"{metric}_ms"]["p50"] * 1e3, p99_us=ours[f"{metric}_ms"]["p99"] * 1e3, n=ours[f"{metric}_ms"]["n"],
                 peer=words[2].split(".")[0] if words[1] == "-m" else Path(words[0]).name, peer_p50_us=theirs[f"{metric}_ms"]["p50"] * 1e3, peer_p99_us=theirs[f"{metric}_ms"]["p99"] * 1e3,
                 note=f"{ours['answered']} and {theirs['answered']} answered of the same requests, in {ours['wall_s']:.1f} and {theirs['wall_s']:.1f} s") for metric in ("ttft", "itl", "e2e")]


def measure(model: str, threads: int, heavy: bool) -> list[float]:
    """Seconds of each write of a stream, sorted."""
    with served(model, threads) as (engine, port):
        done = subprocess.run([sys.executable, __file__, "--client", str(port), *(["--heavy"] if heavy else [])], capture_output=True, text=True)
        direct = engine.outbox.times_to_socket()
        samples = sorted([*engine.metrics.sent, *(t * 1e-9 for t in direct)])
        print(f"{len(direct)} events written by the outbox, {len(engine.metrics.sent)} by Python", file=sys.stderr)
    if done.returncode:
        sys.exit(done.stderr)
    return samples


def at(times: list[float], q: float) -> float:
    """Of sorted seconds, in us."""
    return times[min(len(times) - 1, int(q * len(times)))] * 1e6


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="smollm2-135m-instruct")
    p.add_argument("--threads", type=int, default=1, help="of the engine; the server and its client have the other cores")
    p.add_argument("--receipt", action="store_true")
    p.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    p.add_argument("--peer", help="of part peer: the other server's command, with {port}")
    p.add_argument("--client", type=int, help=argparse.SUPPRESS)
    p.add_argument("--as", dest="role", choices=["reader", "bystander", "attacker"], default="reader", help=argparse.SUPPRESS)
    p.add_argument("--heavy", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.client:
        return {"reader": lambda port: client(port, args.heavy), "bystander": watch, "attacker": attack}[args.role](args.client)
    if unknown := set(args.parts.split(",")) - {*PARTS, "peer"}:
        p.error(f"--parts: {sorted(unknown)[0]!r} is none of {', '.join(PARTS)}, peer")
    if ("peer" in args.parts) != bool(args.peer):
        p.error("part peer and --peer go together")
    r = Receipt("serve_host", chip="cpu", command=f"python bench/bench_serve.py --threads {args.threads} --receipt",
                sources=["bench/bench_serve.py", "vivace/serve/outbox.cc", "vivace/serve/reply_wire.cc", "vivace/serve/engine_loop.cc", "python/vivace/server/*.py", "python/src/outbox.cc"])
    for heavy in (False, True) if "socket" in args.parts else ():
        load = os.getloadavg()[0]
        s = measure(args.model, args.threads, heavy)
        row = dict(op="serve", case=f"streams={STREAMS},threads={args.threads},beside={'1mb_requests' if heavy else 'nothing'},metric=token_to_socket", p50_us=at(s, 0.5), p99_us=at(s, 0.99), n=len(s),
                   note=f"engine's step end to the bytes in the socket; load of the machine before it: {load:.1f}")
        r.row(**row)
        print(row)
    if "bystander" in args.parts:
        load = os.getloadavg()[0]
        alone, beside, refused = bystander(args.model, args.threads)
        row = dict(op="serve", case=f"streams=1,threads={args.threads},beside=attacks,metric=between_events", p50_us=at(beside, 0.5), p99_us=at(beside, 0.99), n=len(beside), peer="the same alone, in turn", peer_p50_us=at(alone, 0.5),
                   note=f"p99 alone {at(alone, 0.99):.0f} us, beside {at(beside, 0.99) / at(alone, 0.99) - 1:+.1%}, goal within 5 %; {refused} attacks; load of the machine before it: {load:.1f}")
        r.row(**row)
        print(row)
    if args.peer:
        for row in beside_peer(args.model, args.threads, args.peer):
            r.row(**row)
            print(row)
    if args.receipt:
        print(r.write("bench"))


if __name__ == "__main__":
    main()
