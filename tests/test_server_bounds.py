"""What a client cannot do to `vivace serve`: more than its limits, another's words, a place that it has left, requests that are none.

About 45 s on two cores."""
import asyncio
import contextlib
import http.client
import importlib
import json
import random
import re
import signal
import socket
import threading
import time

import openai
import pytest

from tests.serving import NAME, SAY, data_of, request_bytes, serve
from vivace.cli import main
from vivace.server.limits import Limits
from vivace.server.protocol import Wire
from vivace.server.web import Call, Left

LIMITS = Limits()
LONG = [{"role": "user", "content": "Write a very long story about the sea."}]


@pytest.fixture(scope="module")
def server():
    with serve() as s:
        yield s


def padded(size: int) -> bytes:
    """A chat request of exactly so many bytes."""
    body = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "?"}], "max_tokens": 1, "user": ""}).encode()
    return body[:-2] + b"x" * (size - len(body)) + body[-2:]


@pytest.mark.parametrize("size,status", [(LIMITS.body_bytes, 200), (LIMITS.body_bytes + 1, 413), (2**63, 413)])
@pytest.mark.parametrize("chunked", [False, True])
def test_bytes_of_a_body(server, size, status, chunked):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    if size == 2**63:
        data = head + (b"transfer-encoding: chunked\r\n\r\n8000000000000000\r\n" + b"x" * (LIMITS.body_bytes + 1) if chunked else b"content-length: %d\r\n\r\n" % size)
    else:
        body = padded(size)
        data = head + (b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else b"content-length: %d\r\n\r\n%b" % (len(body), body))
    got = server.raw(data)
    assert got.startswith(b"HTTP/1.1 %d" % status), got[:300]


@pytest.mark.parametrize("more,status", [(0, 200), (1, 431), (1 << 20, 431)])
@pytest.mark.parametrize("many", [False, True])
def test_bytes_of_headers(server, more, status, many):
    line, fixed = b"GET /livez HTTP/1.1\r\n", b"connection: close\r\nhost: localhost\r\n"
    room = LIMITS.header_bytes + more - len("/livez") - len(fixed)
    headers = b""
    while many and room - len(headers) > 400:
        headers += b"x-%03d: %b\r\n" % (len(headers) % 1000, b"y" * 92)
    headers += b"z: " + b"y" * (room - len(headers) - 5) + b"\r\n"
    assert server.raw(line + fixed + headers + b"\r\n").startswith(b"HTTP/1.1 %d" % status)


def test_a_header_without_an_end(server):
    assert server.raw(b"GET /livez HTTP/1.1\r\nx: " + b"y" * (1 << 20)).startswith(b"HTTP/1.1 431")


NUMBERS = {  # field, most, what makes it refused above
    "max_tokens": 900, "n": LIMITS.choices, "temperature": 2, "top_p": 1, "presence_penalty": 2, "frequency_penalty": 2, "seed": 2**63 - 1, "top_k": 49152, "min_p": 1, "repetition_penalty": 100,
}


@pytest.mark.parametrize("field", NUMBERS)
def test_numbers(server, field):
    most = NUMBERS[field]
    if field == "max_tokens":  # N and N + 1 are the context's: see test_context
        assert server.chat(max_tokens=2**63)[0] == 400
        return
    assert server.chat(**{"max_tokens": 1, field: most})[0] == 200
    for wrong in (most + 1, 2**63, -(2**63) - 1, 10**400, 1e308):
        got, _, body = server.chat(**{"max_tokens": 1, field: wrong})
        assert got == 400 and body["error"]["param"] in (field, None), (wrong, body)


def test_context(server):
    prompt = server.chat(max_tokens=1)[2]["usage"]["prompt_tokens"]
    room = 1024 - prompt + 1
    assert server.chat(max_tokens=room, stop=["e"])[0] == 200
    assert server.chat(max_tokens=room + 1)[2]["error"]["code"] == "context_length_exceeded"
    ids = [1] * 1024
    assert server.ask("POST", "/v1/completions", {"model": NAME, "prompt": ids})[2]["usage"]["completion_tokens"] == 1
    assert server.ask("POST", "/v1/completions", {"model": NAME, "prompt": ids + [1]})[2]["error"]["code"] == "context_length_exceeded"


def said(got):
    return got[0], got[2]["error"]["param"] if got[0] != 200 else None


def test_lengths(server):
    many = [{"role": "user", "content": "x"}]
    assert server.chat(many * LIMITS.messages)[2]["error"]["code"] == "context_length_exceeded"
    assert said(server.chat(many * (LIMITS.messages + 1))) == (400, "messages")
    stops = ["\x01" * LIMITS.stop_bytes] * LIMITS.stops
    assert server.chat(max_tokens=1, stop=stops)[0] == 200
    assert said(server.chat(max_tokens=1, stop=stops + ["x"])) == (400, "stop") and said(server.chat(max_tokens=1, stop="x" * (LIMITS.stop_bytes + 1))) == (400, "stop")
    biases = {str(i): 1 for i in range(LIMITS.logit_biases)}
    assert server.chat(max_tokens=1, logit_bias=biases)[0] == 200 and said(server.chat(max_tokens=1, logit_bias=biases | {"9999": 1})) == (400, "logit_bias")
    for key in ("49152", str(2**63), "-1", "1.0", "٣"):
        assert said(server.chat(max_tokens=1, logit_bias={key: 1})) == (400, "logit_bias")
    ask = lambda n: server.ask("POST", "/v1/completions", {"model": NAME, "prompt": [[1]] * n, "max_tokens": 1})  # noqa: E731
    assert ask(LIMITS.prompts)[0] == 200 and said(ask(LIMITS.prompts + 1)) == (400, "prompt")
    for number in (2**63, -(2**63), 10**400, 1.5, "1"):
        for field in ({"n": number}, {"top_logprobs": number, "logprobs": True}, {"stop": [number] * 5}, {"logit_bias": {str(number): number}}, {"stream_options": {"include_usage": number}}, {"stream": number}):
            assert server.chat(max_tokens=1, **field)[0] == 400, field
    assert server.ask("POST", "/detokenize", {"tokens": [2**63]})[0] == server.ask("POST", "/detokenize", {"tokens": [49152]})[0] == 400
    deep = b'{"model":' + b"[" * 200_000
    assert server.ask("POST", "/v1/chat/completions", raw=deep)[0] == 400


def test_the_queue(server):
    """4 are answered and 64 wait; then 429 with the time to wait, and nothing of it is left."""
    with contextlib.ExitStack() as open_ones:
        streams = [open_ones.enter_context(socket.create_connection((server.host, server.port))) for _ in range(LIMITS.streams)]
        for s in streams:
            s.sendall(request_bytes({"model": NAME, "messages": LONG, "stream": True}))
        until(lambda: server.metric("vivace_streams_open") == LIMITS.streams)
        status, headers, body = server.events(messages=SAY)
        assert status == 429 and body["error"]["code"] == "rate_limit_exceeded" and 100 <= int(headers["retry-after-ms"]) <= 60_000 and int(headers["retry-after"]) >= 1
        assert server.chat(n=5)[0] == 429 and server.metric("vivace_rejections_total", cause="queue") == 1 == server.metric("vivace_rejections_total", cause="streams")
        others = [open_ones.enter_context(socket.create_connection((server.host, server.port))) for _ in range(4)]
        for s in others:
            s.sendall(request_bytes({"model": NAME, "messages": LONG}))
        until(lambda: server.progress()["waiting"] == 64)
        assert server.chat()[0] == 429
        age = server.metric("vivace_queue_age_seconds")
        until(lambda: server.metric("vivace_queue_age_seconds") > age > 0)
    assert server.until_idle() < 10 and server.metric("vivace_queue_age_seconds") == 0


def until(true, seconds=20):
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)


def test_the_client_retries_what_it_should(server):
    """The openai package asks again after 429 and not after work that was done."""
    asked = lambda status: server.metric("vivace_requests_total", route="/v1/chat/completions", status=str(status))  # noqa: E731
    before = asked(408)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=2) as client, pytest.raises(openai.APIStatusError) as e:
        client.chat.completions.create(model=NAME, messages=LONG, extra_headers={"x-request-deadline-ms": "150"})
    assert e.value.status_code == 408 and e.value.response.headers["x-should-retry"] == "false" and asked(408) == before + 1
    with contextlib.ExitStack() as open_ones:
        for _ in range(LIMITS.streams):
            s = open_ones.enter_context(socket.create_connection((server.host, server.port)))
            s.sendall(request_bytes({"model": NAME, "messages": LONG, "stream": True}))
        until(lambda: server.metric("vivace_streams_open") == LIMITS.streams)
        before = asked(429)
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=1) as client, pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model=NAME, messages=SAY, stream=True)
        assert asked(429) == before + 2
    server.until_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_is_not_answered(server, stream):
    """The slot is free within a step, though nobody says so but the connection's end."""
    before = server.metric("vivace_cancels_total", cause="left")
    for how in ("close", "reset", "half"):
        with socket.create_connection((server.host, server.port)) as s:
            s.sendall(request_bytes({"model": NAME, "messages": LONG, "stream": stream}))
            until(lambda: server.progress()["answering"] == 1)
            if stream:
                s.recv(100)
            if how == "reset":
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            if how == "half":
                s.shutdown(socket.SHUT_WR)
                server.until_idle()
        server.until_idle()
    assert server.metric("vivace_cancels_total", cause="left") == before + 3


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("how", ["reset", "close", "abort"])
def test_nothing_is_written_to_a_connection_that_is_closed(loop, how):
    """The rest of a chunk, for a client that left while it was written: nobody is there to be told, and no error is of the server's own."""
    async def run():
        met = asyncio.get_running_loop().create_future()

        class Met(asyncio.Protocol):
            def connection_made(self, transport):
                met.set_result((transport, lost := asyncio.Event()))
                self.connection_lost = lambda exc: lost.set()

        async def send(message):
            sent.append(message["body"])

        def call(wire):
            return Call({"headers": [], "vivace.wire": wire}, None, send, request_id="r", identity=None, limits=LIMITS, bodies=None)

        server, sent = await asyncio.get_running_loop().create_server(Met, "127.0.0.1", 0), []
        client = socket.create_connection(server.sockets[0].getsockname())
        transport, lost = await met
        await call(Wire(transport)).rest(b"all of it")
        assert client.recv(100) == b"all of it" and sent == [b""]
        if how == "abort":
            transport.abort()  # its end is told later
        else:
            if how == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            client.close()
            await asyncio.wait_for(lost.wait(), 20)
        assert Wire(transport).free() is None
        for _ in range(10):
            with pytest.raises(Left):
                await call(Wire(transport)).rest(b"more")
        assert sent == [b""]

        class Broken:
            is_closing = staticmethod(lambda: False)

            def write(self, raw):
                raise RuntimeError("of the server's own")

        with pytest.raises(RuntimeError, match="own"):
            await call(Wire(Broken())).rest(b"more")
        client.close()
        server.close()

    with asyncio.Runner(loop_factory=importlib.import_module(loop).new_event_loop) as runner:
        runner.run(run())


def test_a_reader_that_stalls_is_cut_off():
    """Its slot is free again, and what waited for it is bounded; beside it others are answered."""
    with serve("--limit", "stalled_s=1", "--limit", "send_bytes=4096") as server, socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        s.connect((server.host, server.port))
        s.sendall(request_bytes({"model": NAME, "messages": LONG, "stream": True, "logprobs": True, "logit_bias": {"2": -100}}))
        until(lambda: server.chat(max_tokens=1)[0] == 200 and server.metric("vivace_cancels_total", cause="stalled") == 1, 60)
        assert server.until_idle() < 8.0 and server.metric("vivace_generated_tokens_total") < 1000


def test_deadlines(server):
    got, headers, body = server.chat(headers={"x-request-deadline-ms": "0"})
    assert got == 408 and body["error"]["code"] == "deadline_exceeded" and headers["x-should-retry"] == "false"
    assert server.chat(headers={"x-request-deadline-ms": "soon"})[0] == server.chat(headers={"x-request-deadline-ms": str(2**63)})[0] == 400
    status, _, text = server.before_a_deadline(server.events, 400, messages=LONG)
    events = data_of(text)
    assert status == 200 and events[-1]["error"]["code"] == "deadline_exceeded" and "[DONE]" not in events
    assert server.until_idle() < 8.0


def test_slow_heads_and_bodies():
    """What does not come in time is refused, and does not keep the server from others; so are more connections than there may be."""
    with serve("--limit", "header_s=4", "--limit", "body_s=4.5", "--limit", "connections=24", "--limit", "idle_s=1") as server:
        heads = [b"", b"GET /li", b"POST /v1/chat/completions HTTP/1.1\r\nx: ", request_bytes({"model": NAME, "messages": SAY})[:-9]]
        slow = [socket.create_connection((server.host, server.port), timeout=20) for _ in range(20)]
        began = time.monotonic()
        for i, s in enumerate(slow):
            s.sendall(heads[i % 4])
        assert server.chat(max_tokens=2)[0] == 200
        more = [socket.create_connection((server.host, server.port), timeout=20) for _ in range(5)]
        assert more[-1].recv(1 << 16).startswith(b"HTTP/1.1 503") and b"too_many_connections" in server.raw(b"GET /livez HTTP/1.1\r\n\r\n")
        for s in more:
            s.close()
        for i, s in enumerate(slow):
            assert s.recv(1 << 16).startswith(b"HTTP/1.1 408") and s.recv(1) == b"", i
            s.close()
        assert 3.9 < time.monotonic() - began < 20
        assert server.raw(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").startswith(b"HTTP/1.1 200")  # answered, then idle, then closed


def test_keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# two tenants\nfirst-key-12345\nsecond-key-6789\n")
    file.chmod(0o600)
    with serve("--api-key-file", str(file)) as server:
        for path in ("/v1/models", "/metrics", "/progress", "/readyz", "/health", "/nothing"):
            got, headers, body = server.ask("GET", path)
            assert got == 401 and body["error"]["code"] == "invalid_api_key" and headers["www-authenticate"] == "Bearer"
        assert server.ask("GET", "/livez")[0] == 200 and server.chat()[0] == 401
        for wrong in ("", "first-key-1234", "first-key-123456", "FIRST-KEY-12345", "x" * 10_000):
            assert server.ask("GET", "/v1/models", headers={"authorization": f"Bearer {wrong}"})[0] == 401
        assert server.ask("GET", "/v1/models", headers={"authorization": "Basic first-key-12345"})[0] == 401
        for headers in ({"authorization": "Bearer first-key-12345"}, {"authorization": "bearer second-key-6789"}, {"x-api-key": "second-key-6789"}):
            assert server.ask("GET", "/v1/models", headers=headers)[0] == 200


def test_canaries_of_two_tenants(tmp_path):
    """Two tenants with prompts that begin alike, in blocks for little more than one of four answers: some leave, some go first or last, some move to host
    memory and come back. Nobody reads a word of the other's, finds what the other computed, or gets anything but what it gets alone."""
    file = tmp_path / "keys"
    file.write_text("first-key-12345 robot\nsecond-key-6789 robot\n")
    file.chmod(0o600)
    keys, canary = {"A": "first-key-12345", "B": "second-key-6789"}, {"A": "ZEBRA-7731", "B": "OSPREY-4420"}
    prompts = {t: [{"role": "user", "content": f"You keep codes, and repeat them word for word when you are asked. The code of today is {canary[t]}. Repeat the code of today, then explain it."}] for t in keys}
    ask = dict(max_tokens=120, min_tokens=120)
    with serve("--api-key-file", str(file), "--context", "256", "--num-kv-blocks", "5", "--max-batch", "4") as server:
        bearer = lambda t: {"authorization": f"Bearer {keys[t]}"}  # noqa: E731
        cold = {t: server.chat(prompts[t], bearer(t), **ask)[2] for t in keys}
        assert [cold[t]["usage"]["prompt_tokens_details"]["cache_miss"] for t in keys] == ["cold", "cold"]
        alone = {t: cold[t]["choices"][0]["message"]["content"] for t in keys}
        assert all(canary[t] in alone[t] and alone[t] != alone[u] for t, u in ("AB", "BA"))
        wrong, rng = [], random.Random(7)
        number = lambda name: float(re.search(rf"^{re.escape(name)} (\S+)$", server.ask("GET", "/metrics", headers=bearer("A"))[2], re.M)[1])  # noqa: E731

        def one(i):
            t, leaves, priority, stream = jobs[i]
            if leaves:
                with socket.create_connection((server.host, server.port)) as s:
                    s.sendall(request_bytes({"model": NAME, "messages": prompts[t], "stream": stream, "priority": priority, **ask}, headers=[b"x-api-key: %b\r\n" % keys[t].encode()]))
                    s.settimeout(0.05 + 0.1 * (i % 5))
                    with contextlib.suppress(TimeoutError):
                        s.recv(200)
                return
            if stream:
                status, _, text = server.events(messages=prompts[t], headers=bearer(t), priority=priority, **ask)
                got = "".join(d["choices"][0]["delta"].get("content", "") for d in data_of(text)[:-1])
            else:
                status, _, body = server.chat(prompts[t], bearer(t), priority=priority, **ask)
                text, got = json.dumps(body), body["choices"][0]["message"]["content"] if status == 200 else None
            if status != 200 or got != alone[t] or canary["B" if t == "A" else "A"] in text:
                wrong.append((jobs[i], status, text))

        for _ in range(8):  # until some had to move, which a busy machine may keep from meeting
            jobs = [("AB"[i % 2], i > 3 and rng.random() < 0.7, rng.choice(["robot", "interactive", "batch"]) if i > 3 else "interactive", rng.random() < 0.5) for i in range(10)]
            threads = [threading.Thread(target=one, args=(i,)) for i in range(len(jobs))]
            [t.start() for t in threads[:4]]
            until(lambda: server.progress(**bearer("A"))["answering"] == 4)
            [t.start() for t in threads[4:]]
            [t.join(120) for t in threads]
            assert not wrong, wrong[0]
            server.until_idle(**bearer("A"))
            if number("vivace_moved_to_host") and number('vivace_cancels_total{cause="left"}'):
                break
        assert number("vivace_moved_to_host") > 0 and number('vivace_cancels_total{cause="left"}') > 0
        assert number("vivace_kv_blocks_available") == number("vivace_kv_blocks") == 5


def test_keys_that_are_none(tmp_path, capsys):
    def file(text, mode):
        path = tmp_path / f"keys{mode}{len(text)}"
        path.write_text(text)
        path.chmod(mode)
        return str(path)
    for args, why in [(("--api-key-file", file("a-key-that-all-can-read\n", 0o644)), "chmod 600"), (("--api-key-file", file("# none\n", 0o600)), "no key in it"), (("--api-key", "short"), "8 to 512"),
                      (("--host", "0.0.0.0"), "--no-auth"), (("--api-key-file", "/nowhere"), "NotFound"), (("--limit", "streams"), "NAME=VALUE"), (("--limit", "stream=3"), "did you mean streams"),
                      (("--limit", "streams=0"), "above 0"), (("--limit", f"streams={2**63}"), "above 0"), (("--limit", f"body_bytes={2**63}"), "above 0"), (("--limit", "stalled_s=nan"), "above 0"),
                       (("--temperature", "3"), "temperature"), (("--drain", "-1"), "drain")]:
        assert main(["serve", *args]) == 1 and why in capsys.readouterr().err, args


def test_pages_of_elsewhere(server):
    """No CORS unless named, no body that a form could send, no host's name that is not ours."""
    got, headers, _ = server.ask("OPTIONS", "/v1/chat/completions", headers={"origin": "https://evil.example", "access-control-request-method": "POST"})
    assert got == 405 and not any(h.startswith("access-control") for h in headers)
    assert not any(h.startswith("access-control") for h in server.ask("GET", "/v1/models", headers={"origin": "https://evil.example"})[1])
    body = json.dumps({"model": NAME, "messages": SAY})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert server.ask("POST", "/v1/chat/completions", raw=body, headers={"content-type": kind})[0] == 415
    assert server.ask("GET", "/v1/models", headers={"host": "evil.example:80"})[2]["error"]["code"] == "wrong_host"
    with serve("--cors-origin", "https://app.example") as other:
        assert other.ask("GET", "/v1/models", headers={"origin": "https://app.example"})[1]["access-control-allow-origin"] == "https://app.example"
        assert "access-control-allow-origin" not in other.ask("GET", "/v1/models", headers={"origin": "https://evil.example"})[1]


def draining(server, stream_fields):
    """A stream that has begun, and SIGTERM."""
    s = socket.create_connection((server.host, server.port))
    s.sendall(request_bytes({"model": NAME, "messages": LONG, "stream": True, **stream_fields}))
    got = s.recv(1 << 16)
    server.process.send_signal(signal.SIGTERM)
    return s, got


def rest(s, got):
    s.settimeout(60)
    while block := s.recv(1 << 16):
        got += block
    s.close()
    return got


def test_sigterm_lets_answers_end():
    with serve("--linger", "1.5") as server:
        s, got = draining(server, {"max_tokens": 150})
        until(lambda: server.ask("GET", "/readyz")[0] == 503)
        assert server.ask("GET", "/livez")[0] == 200
        status, headers, body = server.chat()
        assert status == 503 and body["error"]["code"] == "shutting_down" and headers["x-should-retry"] == "true"
        got = rest(s, got)
        assert b"[DONE]" in got and b'"finish_reason":"length"' in got
        assert server.process.wait(20) == 0
        with pytest.raises(ConnectionError):
            socket.create_connection((server.host, server.port))


def test_sigterm_cancels_what_takes_too_long():
    with serve("--drain", "0.3") as server:
        began = time.monotonic()
        s, got = draining(server, {})
        got = rest(s, got)
        assert b"shutting_down" in got and b"[DONE]" not in got
        assert server.process.wait(20) == 0 and time.monotonic() - began < 5


def mutated(rng: random.Random) -> bytes:
    """A request with something wrong with it."""
    good = request_bytes({"model": NAME, "messages": SAY, "max_tokens": 2, "stream": rng.random() < 0.5})
    head, body = good.split(b"\r\n\r\n", 1)
    kind = rng.randrange(12)
    if kind == 0:
        return good[:rng.randrange(len(good))]
    if kind == 1:
        data = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    if kind == 2:
        return re.sub(rb"content-length: \d+", b"content-length: " + rng.choice([b"-1", b"0x10", b"1e3", b"99999999999999999999", b"5, 6", b""]), good)
    if kind == 3:
        size = rng.choice([b"zz", b"-1", b"ffffffffffffffffffff", b"5;" + b"x" * 300, b""])
        return re.sub(rb"content-length: \d+", b"transfer-encoding: chunked", head) + b"\r\n\r\n" + size + b"\r\n" + body + b"\r\n0\r\n\r\n"
    if kind == 4:
        return good.replace(b"content-length", b"transfer-encoding: chunked\r\ncontent-length")
    if kind == 5:
        top = rng.choice([127, 256])
        return head + b"\r\n" + b"x: " + bytes(rng.randrange(32, top) for _ in range(rng.choice([10, 5000, 40_000]))) + b"\r\n\r\n" + body
    if kind == 6:
        return good * rng.randint(2, 5)  # pipelined
    if kind == 7:
        return bytes(rng.randrange(256) for _ in range(rng.choice([1, 40, 5000])))
    if kind == 8:
        return head + b"\r\n\r\n" + body[:rng.randrange(len(body))] + b" " * rng.randrange(40) + body
    if kind == 9:
        return good.replace(b"POST", rng.choice([b"PRI", b"GET", b"CONNECT", b"TRACE", b"post", b"\x16\x03\x01"]))
    if kind == 10:
        return good.replace(b"HTTP/1.1", rng.choice([b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"HTTP", b"RTSP/1.0"]))
    broken = re.sub(rb'"(\w+)"', lambda m: m[0] if rng.random() < 0.7 else rng.choice([b'"\\ud800"', b"1e999", b"NaN", b"null", b"[" * 50, b'"\xff"']), body)
    return head.replace(b"content-length: %d" % len(body), b"content-length: %d" % len(broken)) + b"\r\n\r\n" + broken


def test_requests_that_are_none(server):
    """240 broken requests beside a stream, which says what it says alone."""
    fields = dict(messages=LONG, max_tokens=120)
    alone = [d["choices"][0]["delta"].get("content") for d in data_of(server.events(**fields)[2])[:-1]]
    beside, rng, seen = [], random.Random(2025), set()
    bystander = threading.Thread(target=lambda: beside.append(server.events(**fields)[2]))
    bystander.start()
    for i in range(240):
        data = mutated(rng)  # all is drawn before the first byte goes: an answer that comes early must not change what is drawn next
        cuts = sorted({0, *(rng.randrange(len(data) + 1) for _ in range(rng.randrange(3)))})
        parts = [data[at:at + 1] if rng.random() < 0.1 else data[at:] for at in cuts]
        ends = rng.random() < 0.8
        with socket.create_connection((server.host, server.port), timeout=20) as s:
            with contextlib.suppress(OSError):  # it may have said no already
                for part in parts:
                    s.sendall(part)
                if ends:
                    s.shutdown(socket.SHUT_WR)
            s.settimeout(0.5)
            got = b""
            with contextlib.suppress(OSError):
                got = s.recv(1 << 16)
            if got:
                assert re.match(rb"HTTP/1\.1 \d{3} ", got), (i, data[:200], got[:200])
                seen.add(int(got[9:12]))
    bystander.join(120)
    assert [d["choices"][0]["delta"].get("content") for d in data_of(beside[0])[:-1]] == alone
    assert seen >= {400, 431} and 500 not in seen, seen
    server.until_idle()
    assert server.chat(max_tokens=1)[0] == 200


def test_one_connection_one_request_at_a_time(server):
    """What is pipelined is dropped with the connection; requests one after the other share it."""
    one = request_bytes({"model": NAME, "messages": SAY, "max_tokens": 3})
    got = server.raw(one * 3)
    assert got.count(b"HTTP/1.1 200") == 1 and got.count(b"chat.completion") == 1
    with contextlib.closing(http.client.HTTPConnection(server.host, server.port, timeout=20)) as connection:
        connection.connect()
        kept = connection.sock
        for _ in range(3):
            connection.request("GET", "/v1/models")
            assert connection.getresponse().read() and connection.sock is kept
