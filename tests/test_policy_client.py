"""vivace.PolicyClient: the same actions as without a wire, and a typed error for whatever a host may do."""
import threading

import numpy as np
import pytest
from websockets.sync.server import serve

import vivace
from tests.test_policy_host import CAMERAS, expected, load, pack, seen


@pytest.fixture(scope="module")
def policy():
    with load(batch=2) as p:
        yield p


@pytest.fixture(scope="module")
def host(policy):
    with vivace.PolicyHost(policy, cameras=CAMERAS, port=0, max_clients=8) as h:
        yield h


@pytest.fixture(scope="module")
def alone():
    with load() as p:
        yield p


def test_the_actions_of_the_policy(host, alone):
    with vivace.PolicyClient(port=host.port) as c:
        assert c.metadata["vivace"]["action_horizon"] == 10
        for seed in range(2):
            o = seen(seed)
            assert (c.infer(o)["actions"] == expected(alone, o)).all()
        o = seen(3)  # as lerobot's datasets have it
        frames = {f"observation.images.{k}": np.ascontiguousarray((v / 255).astype(np.float32).transpose(2, 0, 1)) for k, v in o["images"].items()}
        c.reset()
        assert (c.infer(frames | {"observation.state": o["state"], "task": o["prompt"], "vivace": o["vivace"]})["actions"] == expected(alone, o)).all()


def test_threads_take_turns(host, alone):
    want, wrong = [expected(alone, seen(s)) for s in range(4)], []

    def ask(s):
        if not (c.infer(seen(s))["actions"] == want[s]).all():
            wrong.append(s)

    with vivace.PolicyClient(port=host.port) as c:
        callers = [threading.Thread(target=ask, args=(s,)) for s in range(4)]
        for t in callers:
            t.start()
        for t in callers:
            t.join()
    assert not wrong


def test_an_error_leaves_nothing_behind(host, alone):
    o = seen(1)
    with vivace.PolicyClient(port=host.port) as c:
        with pytest.raises(vivace.InvalidArgumentError, match="images/front: this camera of robot any is missing"):
            c.infer({"state": o["state"]})
        assert (c.infer(o)["actions"] == expected(alone, o)).all()
        for bad, error in (({"a": object()}, vivace.InvalidArgumentError), (3, vivace.InvalidArgumentError), (None, vivace.InvalidArgumentError)):
            with pytest.raises(error):
                c.infer(bad)
        assert (c.infer(o)["actions"] == expected(alone, o)).all()
    with pytest.raises(vivace.ClosedError):
        c.infer(o)


@pytest.mark.parametrize("given, said", [(dict(port=0), "port: wanted"), (dict(port=2**40), "port: wanted"), (dict(port="x"), "port"), (dict(host=3), "host: wanted a text"), (dict(key=b"x"), "key: wanted a text"),
                                         (dict(answer=-1), "answer: wanted a positive number"), (dict(connect=float("nan")), "connect: wanted a positive number")])
def test_bad_options(given, said):
    with pytest.raises(vivace.InvalidArgumentError, match=f"PolicyClient: .*{said}|{said}"):
        vivace.PolicyClient(**given)


def test_keys(alone):
    with vivace.PolicyHost(alone, cameras=CAMERAS, port=0, key="s3cret") as h:
        for key in ("", "wrong"):
            with vivace.PolicyClient(port=h.port, key=key) as c, pytest.raises(vivace.IoError, match="401"):
                c.infer(seen())
        with vivace.PolicyClient(port=h.port, key="s3cret") as c:
            assert c.infer(seen())["actions"].shape == (10, 3)


HELLO = pack({"any": "metadata"})
ANSWER = pack({"actions": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize("first, then, error, said", [
    (HELLO, [b"\x92\x01"], vivace.CorruptDataError, "msgpack"), (HELLO, [b"\xc1"], vivace.UnsupportedError, "msgpack"), (HELLO, [ANSWER[:-1]], vivace.CorruptDataError, "msgpack|bytes wanted"), (HELLO, [pack([1, 2])], vivace.CorruptDataError, "no map"),
    (HELLO, ["Traceback (most recent call last):\n  File\nKeyError: 'x'"], vivace.Error, "policy host: KeyError: 'x'"), (HELLO, ["CorruptData: it is broken"], vivace.CorruptDataError, "it is broken"),
    (HELLO, [""], vivace.Error, "without words"), (HELLO, [None], vivace.IoError, "the link ended"), (HELLO, [], vivace.LimitExceededError, "answer: nothing came in time"),
    ("FailedPrecondition: no policy", [], vivace.FailedPreconditionError, "no policy"), (b"\x92\x01", [], vivace.CorruptDataError, "msgpack"), (b"", [], vivace.CorruptDataError, "bytes wanted"), (pack([1]), [], vivace.CorruptDataError, "metadata is no map")])
def test_hosts_that_are_none(first, then, error, said):
    """Whatever comes, it is an error of ours, and the next question has its own answer."""
    connections = []

    def handler(ws):
        connections.append(ws)
        again = len(connections) > 1
        ws.send(HELLO if again else first)
        for message in ws:
            if again:
                ws.send(ANSWER)
                continue
            for m in then:
                if m is None:
                    return
                ws.send(m)

    with serve(handler, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with vivace.PolicyClient(port=server.socket.getsockname()[1], answer=2 if error is vivace.LimitExceededError else 30) as c:
            with pytest.raises(error, match=said):
                c.infer({"state": 1})
            assert c.infer({"state": 1})["actions"].shape == (2, 3) and len(connections) == 2
        server.shutdown()
        thread.join(20)


def test_nobody_there():
    with vivace.PolicyClient(port=1, connect=2) as c, pytest.raises(vivace.IoError, match="connect: "):
        c.infer({"state": 1})
