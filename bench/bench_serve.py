"""Host cost of a token in `vivace serve`: from the end of the engine's step to the bytes in the socket, with 8 streams, alone and
while requests of 1 MB arrive. On a machine that should do nothing else meanwhile; the client is another process of it.

    python bench/bench_serve.py [--model NAME_OR_FILE] [--threads N] [--receipt]
"""
import argparse
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.receipt import Receipt  # noqa: E402

STREAMS, TOKENS, BODY = 8, 160, 1 << 20


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


def measure(model: str, threads: int, heavy: bool) -> list[float]:
    """Seconds of each write of a stream, sorted."""
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
        port = server.servers[0].sockets[0].getsockname()[1]
        done = subprocess.run([sys.executable, __file__, "--client", str(port), *(["--heavy"] if heavy else [])], capture_output=True, text=True)
        server.should_exit = True
        thread.join()
        direct = engine.outbox.times_to_socket()
        samples = sorted([*engine.metrics.sent, *(t * 1e-9 for t in direct)])
        print(f"{len(direct)} events written by the outbox, {len(engine.metrics.sent)} by Python", file=sys.stderr)
        engine.close()
    if done.returncode:
        sys.exit(done.stderr)
    return samples


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="smollm2-135m-instruct")
    p.add_argument("--threads", type=int, default=1, help="of the engine; the server and its client have the other cores")
    p.add_argument("--receipt", action="store_true")
    p.add_argument("--client", type=int, help=argparse.SUPPRESS)
    p.add_argument("--heavy", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.client:
        return client(args.client, args.heavy)
    r = Receipt("serve_host", chip="cpu", command=f"python bench/bench_serve.py --threads {args.threads} --receipt",
                sources=["bench/bench_serve.py", "vivace/serve/outbox.cc", "vivace/serve/reply_wire.cc", "vivace/serve/engine_loop.cc", "python/vivace/server/*.py", "python/src/outbox.cc"])
    for heavy in (False, True):
        load = os.getloadavg()[0]
        s = measure(args.model, args.threads, heavy)
        at = lambda q: s[min(len(s) - 1, int(q * len(s)))] * 1e6  # noqa: E731
        row = dict(op="serve", case=f"streams={STREAMS},threads={args.threads},beside={'1mb_requests' if heavy else 'nothing'},metric=token_to_socket", p50_us=at(0.5), p99_us=at(0.99), n=len(s),
                   note=f"engine's step end to the bytes in the socket; load of the machine before it: {load:.1f}")
        r.row(**row)
        print(row)
    if args.receipt:
        print(r.write("bench"))


if __name__ == "__main__":
    main()
