"""A `vivace serve` of SmolLM2 in a process of its own, and what its tests ask it with."""
import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.test_smollm2 import model_path

NAME = "smollm2"
MAIN = "import sys; from vivace.cli import main; sys.exit(main())"
SAY = [{"role": "user", "content": "Say hello."}]


class Served:
    """host, port, url of a running server."""

    def __init__(self, process, url):
        self.process, self.url = process, url
        self.host, port = re.match(r"http://(.*):(\d+)$", url).groups()
        self.port = int(port)

    def ask(self, method, path, body=None, headers=None, raw=None):
        """(status, headers, body as JSON or text)."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        data = raw if raw is not None else None if body is None else json.dumps(body)
        connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
        with contextlib.closing(connection):
            got = connection.getresponse()
            text = got.read()
            return got.status, {k.lower(): v for k, v in got.getheaders()}, json.loads(text) if (got.getheader("content-type") or "").startswith("application/json") else text.decode()

    def chat(self, messages=SAY, headers=None, **fields):
        return self.ask("POST", "/v1/chat/completions", {"model": NAME, "messages": messages, **fields}, headers)

    def events(self, path="/v1/chat/completions", headers=None, **fields):
        """Status, headers and raw text of a stream."""
        return self.ask("POST", path, {"model": NAME, "stream": True, **fields}, headers)

    def before_a_deadline(self, ask, milliseconds=50, **fields):
        """`ask` with a deadline of `milliseconds`, doubled while this machine is too busy to read the request in that time."""
        while milliseconds < 5000:
            got = ask(headers={"x-request-deadline-ms": str(milliseconds)}, **fields)
            if got[0] != 408:
                break
            milliseconds *= 2
        return got

    def progress(self, **headers):
        return self.ask("GET", "/progress", headers=headers)[2]

    def metric(self, name, **labels):
        shown = ",".join(f'{k}="{v}"' for k, v in labels.items())
        found = re.search(rf"^{re.escape(name + (f'{{{shown}}}' if shown else ''))} (\S+)$", self.ask("GET", "/metrics")[2], re.M)
        return float(found[1]) if found else 0.0

    def priorities(self) -> list[tuple[str, int]]:
        """Names of its threads and their nice values."""
        found = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            name, rest = (task / "stat").read_text().split(" (", 1)[1].rsplit(") ", 1)
            found.append((name, int(rest.split()[16])))
        return found

    def until_idle(self, seconds=20.0, **headers):
        """Waits until nothing answers or waits; how long that took."""
        began = time.monotonic()
        while (now := self.progress(**headers))["answering"] + now["waiting"]:
            assert time.monotonic() - began < seconds, now
            time.sleep(0.01)
        return time.monotonic() - began

    def raw(self, data: bytes, *, wait=True, timeout=20.0) -> bytes:
        """What comes back for these bytes, up to the connection's end or, with wait=False, its first bytes."""
        with socket.create_connection((self.host, self.port), timeout=timeout) as s:
            with contextlib.suppress(ConnectionError, BrokenPipeError):
                s.sendall(data)
            got = b""
            with contextlib.suppress(ConnectionError):
                while block := s.recv(1 << 16):
                    got += block
                    if not wait:
                        break
            return got


@contextlib.contextmanager
def serve(*options, env=None, alone=()):
    """A server of SmolLM2 with these options, or of what `alone` names; stopped at the end, and it must then be gone."""
    text = [model_path(), "--name", NAME, "--context", "1024", "--temperature", "0"]
    command = [sys.executable, "-c", MAIN, "serve", *(alone or text), "--device", "cpu", "--json", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Served(process, json.loads(line)["url"])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        process.stdout.close()
        log = process.stderr.read()
        process.stderr.close()
    assert "Traceback" not in log and "leaked" not in log, log


def comply(url: str, form: str, cases: list[str], *more: str) -> None:
    """Cases of llm-comply, a public conformance suite: every one passes."""
    done = subprocess.run([Path(sys.executable).with_name("llm-comply"), "-u", f"{url}/v1", "-m", NAME, "-k", "none", "--format", form, "--json", "-f", ",".join(cases), *more], capture_output=True, text=True, timeout=120)
    results = json.loads(done.stdout)["results"]
    assert done.returncode == 0 and len(results) == len(cases) and all(r["status"] == "passed" for r in results), done.stdout


def data_of(text: str) -> list:
    """The JSON objects of a stream's events; "[DONE]" as it is."""
    return [json.loads(d) if d != "[DONE]" else d for d in re.findall(r"^data: (.*)$", text, re.M)]


def request_bytes(body, path="/v1/chat/completions", headers=()) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n" % (path.encode(), len(data), b"".join(headers)) + data


@contextlib.contextmanager
def inside(model, engine_class, **options):
    """A server in this process, on a thread, around an Engine of this class."""
    import threading

    import uvicorn

    from vivace.server.app import make_app
    from vivace.server.limits import Limits
    from vivace.server.metrics import Metrics
    from vivace.server.protocol import protocol
    from vivace.server.sampling import Defaults

    engine = engine_class(model, NAME, Limits(), max_batch=model._live.limits()["max_batch"], max_waiting=16, metrics=Metrics(), defaults=Defaults(temperature=0.0), **options)
    server = uvicorn.Server(uvicorn.Config(make_app(engine), port=0, http=protocol(engine.limits, engine.metrics.refused), ws="none", lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield engine, "http://127.0.0.1:%d" % server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        engine.close()
