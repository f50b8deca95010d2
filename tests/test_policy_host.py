"""The policy host: openpi's wire to the byte, its own client unchanged, and robots that are wrong, slow, hostile or gone. Nobody else
notices them, and no answer is anything but what the policy says of that very request."""
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import vivace
from vivace import _core
from vivace.demo import reach

ROOT = Path(__file__).resolve().parent.parent
STEPS = 1
CAMERAS = ("front", "above")


def load(**options):
    from vivace.demo.weights import unpacked

    return vivace.load_model(unpacked(reach.FOLDER), config="pi05", num_views=2, num_steps=STEPS, prompt_tokens=reach.WORDS, device="cpu", precision="f32", threads=1, **options)


@pytest.fixture(scope="module")
def policy():
    with load(batch=2) as p:
        yield p


@pytest.fixture(scope="module")
def alone():
    """The same policy, to be asked what the host's should say."""
    with load() as p:
        yield p


@pytest.fixture(scope="module")
def host(policy):
    with vivace.PolicyHost(policy, cameras=CAMERAS, port=0, max_clients=4, metadata={"reset_pose": [0.0, 1.5]}) as h:
        yield h


def pack_default(o):
    """openpi's rule for arrays, as the field's own library writes it."""
    if isinstance(o, np.ndarray):
        return {b"__ndarray__": True, b"data": o.tobytes(), b"dtype": o.dtype.str, b"shape": o.shape}
    if isinstance(o, np.generic):
        return {b"__npgeneric__": True, b"data": o.item(), b"dtype": o.dtype.str}
    raise TypeError(type(o))


def unpack_hook(o):
    if b"__ndarray__" in o:
        return np.ndarray(buffer=o[b"data"], dtype=np.dtype(o[b"dtype"]), shape=o[b"shape"])
    return np.dtype(o[b"dtype"]).type(o[b"data"]) if b"__npgeneric__" in o else o


def pack(o):
    return msgpack.packb(o, default=pack_default)


def unpack(b):
    return msgpack.unpackb(b, object_hook=unpack_hook)


def seen(seed=0, **own):
    rng = np.random.default_rng(seed)
    return {"images": {c: rng.integers(0, 256, (112, 112, 3), np.uint8) for c in CAMERAS}, "state": rng.standard_normal(3).astype(np.float32) * 0.1,
            "prompt": "reach the red ball", "vivace": {"seed": seed, **own}}


def expected(alone, o, **more):
    images = [np.ascontiguousarray(o["images"][c]) for c in CAMERAS]
    return alone.predict(images, o["prompt"], np.asarray(o["state"], np.float32), seed=o["vivace"]["seed"], **more)


class Robot:
    """A well-behaved client, of the websockets library."""

    def __init__(self, host, **options):
        self.ws = connect(f"ws://127.0.0.1:{host.port}", compression=None, max_size=None, proxy=None, **options).__enter__()
        self.metadata = unpack(self.ws.recv(10))

    def ask(self, o):
        self.ws.send(pack(o))
        answer = self.ws.recv(60)
        assert isinstance(answer, bytes), answer
        return unpack(answer)

    def refused(self, message):
        """The error of a message, after which the connection ends as openpi's does."""
        self.ws.send(message if isinstance(message, (bytes, str)) else pack(message))
        line = self.ws.recv(60)
        assert isinstance(line, str) and "\n" not in line, line
        with pytest.raises(ConnectionClosed) as e:
            self.ws.recv(10)
        return line, e.value.rcvd.code

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.ws.close()


def raw(host, *parts, upgrade=True):
    """A socket that sends what it is told; the reply's head is read."""
    s = socket.create_connection(("127.0.0.1", host.port), timeout=20)
    if upgrade:
        s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += s.recv(1)
        assert b"101 Switching" in head and b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head  # of RFC 6455, 1.3
    for p in parts:
        s.sendall(p)
    return s


def frame(payload, opcode=2, fin=True, masked=True, length=None):
    n = len(payload) if length is None else length
    size = struct.pack(">B", n) if n < 126 else struct.pack(">BH", 126, n) if n < 1 << 16 else struct.pack(">BQ", 127, n)
    key = b"\1\2\3\4"
    body = bytes(b ^ key[i % 4] for i, b in enumerate(payload)) if masked else payload
    return bytes([opcode | 0x80 * fin, size[0] | 0x80 * masked]) + size[1:] + (key if masked else b"") + body


def read_exactly(s, n):
    data = b""
    while len(data) < n:
        got = s.recv(n - len(data))
        if not got:
            raise EOFError
        data += got
    return data


def read_frame(s):
    a, n = read_exactly(s, 2)
    n = struct.unpack(">H", read_exactly(s, 2))[0] if n == 126 else struct.unpack(">Q", read_exactly(s, 8))[0] if n == 127 else n
    return a & 15, read_exactly(s, n)


def ended(s):
    """Codes of the close frames that come before the end, and texts."""
    got = []
    s.settimeout(20)
    try:
        while True:
            op, data = read_frame(s)
            got.append(data.decode() if op == 1 else struct.unpack(">H", data[:2])[0] if op == 8 else op)
    except (EOFError, ConnectionError):
        return got


def get(host, path, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{host.port}{path}", headers=headers), timeout=10) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def metric(host, name):
    return float(next(line.rpartition(" ")[2] for line in host.metrics().splitlines() if line.startswith(name + " ")))


# ---- bytes ---------------------------------------------------------------------------------------

def test_the_bytes_of_an_array():
    """What openpi-client 0.1.2 sends and reads, written out."""
    wire = bytes.fromhex("81a7616374696f6e7384c40b5f5f6e6461727261795f5fc3c40464617461c4080000803f00000040c4056474797065a33c6634c405736861706592" + "0102")
    value = {"actions": np.array([[1, 2]], np.float32)}
    assert len(wire) == 61 and _core.pack_message(value) == wire == pack(value)
    assert (_core.unpack_message(wire)["actions"] == value["actions"]).all()
    assert _core.unpack_message(bytes.fromhex("83c40d5f5f6e7067656e657269635f5fc3c40464617461cb3ff8000000000000c4056474797065a33c6638")) == 1.5


numbers = st.one_of(st.integers(-(1 << 63), (1 << 64) - 1), st.floats(allow_nan=False), st.booleans(), st.none())
texts = st.text(st.characters(codec="utf-8"), max_size=40)
arrays = st.builds(lambda seed, shape, dtype: np.frombuffer(np.random.default_rng(seed).bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape),
                   st.integers(0, 99), st.lists(st.integers(0, 5), max_size=4).map(tuple), st.sampled_from(["u1", "<f4", "<f8", "<f2", "<i8", "<i4", "<i2", "i1"]))
values = st.recursive(st.one_of(numbers, texts, st.binary(max_size=300), arrays), lambda v: st.one_of(st.lists(v, max_size=20), st.dictionaries(texts, v, max_size=20)), max_leaves=40)


def same(a, b):
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@settings(max_examples=150, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(values)
def test_messages_are_those_of_the_library(value):
    wire = pack(value)
    assert _core.pack_message(value) == wire
    assert same(_core.unpack_message(wire), value)


@settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(values, st.integers(0, 1 << 30), st.binary(min_size=1, max_size=3))
def test_broken_messages_are_errors_or_what_the_library_reads(value, at, patch):
    wire = bytearray(pack(value))
    at %= len(wire)
    wire[at:at + len(patch)] = patch
    for spoiled in (bytes(wire), bytes(wire[:at])):
        try:
            ours = _core.unpack_message(spoiled)
        except vivace.Error:
            continue
        assert same(ours, unpack(spoiled)) or ours != ours or "nan" in repr(ours)


@pytest.mark.parametrize("wire,code,words", [
    (b"\x91" * 10 + b"\xc0", "LimitExceeded", "deeper than 8"), (b"\xdd\xff\xff\xff\xff", "LimitExceeded", "at most 256"), (b"\xdf\x00\x10\x00\x00", "LimitExceeded", "at most 256"),
    (b"\xdc\x01\x01" + b"\xc0" * 257, "LimitExceeded", "at most 256"), (b"\xc6\xff\xff\xff\xff", "CorruptData", "are left"), (b"\xdb\x7f\xff\xff\xff", "CorruptData", "are left"),
    (b"\x9f" + b"\xdc\x01\x00" * 1, "CorruptData", "wanted"), (b"\xc7\x01\x05\x00", "Unsupported", "extensions"), (b"\xc1", "Unsupported", "extensions"), (b"", "CorruptData", "wanted"),
    (b"\xc0\xc0", "CorruptData", "behind"), (b"\x81\x01\x02", "CorruptData", "no text"), (b"\x82\xa1a\x01\xa1a\x02", "CorruptData", "twice"), (b"\xa1\xff", "CorruptData", "UTF-8"),
    (pack({b"__ndarray__": True, b"data": b"ab", b"dtype": "O", b"shape": [1]}), "Unsupported", "dtype"),
    (pack({b"__ndarray__": True, b"data": b"ab", b"dtype": ">f2", b"shape": [1]}), "Unsupported", "dtype"),
    (pack({b"__ndarray__": True, b"data": b"ab", b"dtype": "<f2", b"shape": [2]}), "CorruptData", "by its shape"),
    (pack({b"__ndarray__": True, b"data": b"", b"dtype": "<f8", b"shape": [1 << 24] * 4}), "CorruptData", "does not fit"),
    (pack({b"__ndarray__": True, b"data": b"", b"dtype": "<f8", b"shape": [0, 1 << 40]}), "CorruptData", "shape"),
    (pack({b"__ndarray__": True, b"data": b"", b"dtype": "<f8", b"shape": [-1]}), "CorruptData", "shape"),
    (pack({b"__ndarray__": True, b"data": b"", b"dtype": "<f8", b"shape": [0] * 5}), "Unsupported", "axes"),
    (pack({b"__ndarray__": True, b"data": b"", b"dtype": "<f8", b"shape": [0], b"more": 1}), "Unsupported", "no key"),
    (pack({b"__ndarray__": 1, b"data": b"", b"dtype": "<f8", b"shape": [0]}), "CorruptData", "__ndarray__"),
    (pack({b"__npgeneric__": True, b"data": "x", b"dtype": "<f8"}), "Unsupported", "number"),
    (b"\xdc\x01\x00" + (b"\xdc\x01\x00" + b"\xc0" * 256) * 256, "LimitExceeded", "4096 values"), (bytes((16 << 20) + 1), "LimitExceeded", "at most 16777216"),
])
def test_bombs(wire, code, words):
    with pytest.raises(vivace.Error, match=words) as e:
        _core.unpack_message(wire)
    assert e.value.code == code


# ---- answers -------------------------------------------------------------------------------------

def test_answers_are_the_policys_own(host, alone):
    with Robot(host) as a, Robot(host) as b:
        facts = a.metadata["vivace"]
        assert a.metadata["reset_pose"] == [0.0, 1.5] and facts["cameras"] == ["images/front", "images/above"] and facts["action_horizon"] == 10 and facts["action_dim"] == 3
        for i, robot in enumerate((a, b, a, a, b)):
            o = seen(i)
            got = robot.ask(o)
            assert (got["actions"] == expected(alone, o)).all() and got["actions"].dtype == np.float32
            assert got["vivace"]["seed"] == i and got["vivace"]["device_ms"] == 0 and got["vivace"]["missed"] is False
            assert 0 <= got["vivace"]["queue_ms"] <= got["vivace"]["age_ms"] and got["vivace"]["infer_ms"] <= got["vivace"]["age_ms"]
            assert ("prev_total_ms" in got["server_timing"]) == (i > 1)
        assert got["vivace"]["request"] == got["vivace"]["chunk"] == 2  # b's second
        o = seen(7, normalized=True, request=71, episode="e", session_id="s", deadline_ms=60000.0)
        got = a.ask(o)
        assert got["vivace"]["request"] == 71 and got["vivace"]["chunk"] == 4 and got["vivace"]["episode"] == "e"
        want = expected(alone, o)
        assert (got["actions"] == want).all() and (got["normalized"] == alone.normalized()).all()
        action_prefix = got["normalized"][:3]
        got = b.ask(seen(8, action_prefix=action_prefix))
        assert (got["actions"] == expected(alone, seen(8), action_prefix=action_prefix)).all()
        ahead = np.random.default_rng(4).standard_normal((4, 3)).astype(np.float32) * 0.1
        for steps in (False, True):
            want = expected(alone, seen(8), future_actions=ahead, future_steps=steps)
            assert (b.ask(seen(8, future_actions=ahead, future_steps=steps))["actions"] == want).all()
            o = seen(8)
            o["state"] = ((o["state"] + ahead[0] + ahead[1] + ahead[2]) + ahead[3] if steps else ahead[-1])
            assert (want == expected(alone, o)).all() and (want != expected(alone, seen(8))).any()
        assert (b.ask(seen(8, future_actions=ahead[:0]))["actions"] == expected(alone, seen(8))).all()
        noise = np.random.default_rng(3).standard_normal((10, 8)).astype(np.float32)
        assert (a.ask(seen(9, noise=noise))["actions"] == expected(alone, seen(9), noise=noise)).all()


def test_every_form_of_a_picture_and_a_state(host, alone):
    o = seen(1)
    want = expected(alone, o)
    planes = {c: np.ascontiguousarray(f.transpose(2, 0, 1)) for c, f in o["images"].items()}
    with Robot(host) as robot:
        for images in (planes, {c: (f / np.float32(255)).astype(np.float32) for c, f in o["images"].items()}, {c: f / 255.0 for c, f in planes.items()}):
            assert (robot.ask(o | {"images": images})["actions"] == want).all()
        assert (robot.ask(o | {"state": o["state"].astype(np.float64)})["actions"] == want).all()
        flat = {f"images/{c}": f for c, f in o["images"].items()}
        assert (robot.ask({k: v for k, v in o.items() if k != "images"} | flat)["actions"] == want).all()
        small = {c: np.ascontiguousarray(f[:50, :70]) for c, f in o["images"].items()}
        assert (robot.ask(o | {"images": small})["actions"] == expected(alone, o | {"images": small})).all()


def test_noise_without_a_seed_differs_and_comes_again(policy, alone, host):
    o = seen(1)
    del o["vivace"]
    with Robot(host) as robot:
        first, second = robot.ask(o), robot.ask(o)
    assert (first["actions"] != second["actions"]).any()
    for got in (first, second):
        assert (got["actions"] == expected(alone, o | {"vivace": {"seed": got["vivace"]["seed"]}})).all()


def test_requests_that_wait_together_share_a_call(host, alone):
    """Bits are those of a call of one's own, whoever was beside."""
    robots = [Robot(host) for _ in range(4)]
    want = [expected(alone, seen(20 + i)) for i in range(4)]
    calls, together = metric(host, "vivace_policy_calls_total"), set()
    try:
        for _ in range(5):
            for i, r in enumerate(robots):
                r.ws.send(pack(seen(20 + i)))
            for r, w in zip(robots, want):
                got = unpack(r.ws.recv(60))
                assert (got["actions"] == w).all()
                together.add(got["vivace"]["together"])
    finally:
        for r in robots:
            r.ws.close()
    assert 2 in together and together <= {1, 2} and metric(host, "vivace_policy_calls_total") - calls < 20


def test_past_its_deadline_a_request_is_not_begun(host):
    with Robot(host) as robot:
        got = robot.ask(seen(1, deadline_ms=0.001))
        assert "actions" not in got and got["vivace"]["missed"] is True and got["vivace"]["infer_ms"] == 0
        assert "actions" in robot.ask(seen(1, deadline_ms=60000))
        assert metric(host, 'vivace_policy_requests_total{outcome="missed"}') >= 1


# ---- what is wrong -------------------------------------------------------------------------------

def changed(**fields):
    o = seen(1)
    for k, v in fields.items():
        if v is None:
            del o[k]
        else:
            o[k] = v
    return o


FRAME = np.zeros((8, 8, 3), np.uint8)
BAD = [
    (changed(images={"front": FRAME}), "InvalidArgument: images/above: this camera of robot any is missing"),
    (changed(images={"front": FRAME, "above": FRAME, "wrist": FRAME}), "InvalidArgument: 'images/wrist': robot any has no such field; its fields: images/front, images/above, state, prompt"),
    (changed(images={"front": FRAME, "above": FRAME[:, :, 0]}), "InvalidShape: images/above: wanted [height, width, 3]"),
    (changed(images={"front": FRAME, "above": np.zeros((3, 9, 3), np.uint8)}), "InvalidShape: images/above"),
    (changed(images={"front": FRAME, "above": FRAME[:0]}), "InvalidShape: observation 0: a frame has 1 to"),
    (changed(images={"front": FRAME, "above": FRAME.astype(np.int32)}), "InvalidDType: images/above: wanted u8"),
    (changed(images={"front": FRAME, "above": np.full((8, 8, 3), np.nan, np.float32)}), "InvalidArgument: images/above: an image of floats is in [0, 1], got nan"),
    (changed(images={"front": FRAME, "above": np.full((8, 8, 3), 255.0)}), "InvalidArgument: images/above: an image of floats is in [0, 1], got 255"),
    (changed(images={"front": FRAME, "above": "x"}), "InvalidDType: images/above: wanted an image"),
    (changed(images={"front": FRAME, "above": [1, 2]}), "InvalidDType: images/above: wanted an array"),
    (changed(state=np.zeros(4)), "InvalidShape: the state has 4 values, wanted 3"),
    (changed(state=np.zeros((1, 3))), "InvalidShape: state: wanted a vector, got [1, 3]"),
    (changed(state=np.array([0, np.nan, 0])), "InvalidArgument: state: a value is not finite"),
    (changed(state=np.array([0, 1e300, 0])), "InvalidArgument: state: a value is not finite"),
    (changed(state="x"), "InvalidDType: state: wanted numbers"),
    (changed(state=None), "InvalidArgument: state: "),
    (changed(prompt=None), "InvalidArgument: prompt: it is missing, and this host has no default"),
    (changed(prompt=7), "InvalidDType: prompt: wanted a text"),
    (changed(prompt="x" * 5000), "LimitExceeded: prompt: 5000 bytes"),
    (changed(prompt="reach " * 100), "LimitExceeded: observation 0: the prompt has"),
    (changed(frame=1), "InvalidArgument: 'frame': robot any has no such field"),
    (changed(vivace=7), "InvalidDType: vivace: wanted a map"),
    (changed(vivace={"sede": 1}), "InvalidArgument: vivace/sede: no such key; keys: request, seed"),
    (changed(vivace={"seed": -1}), "InvalidDType: vivace/seed: wanted a whole number from 0 on"),
    (changed(vivace={"deadline_ms": 0}), "InvalidDType: vivace/deadline_ms"),
    (changed(vivace={"noise": np.zeros((9, 8), np.float32)}), "InvalidShape: vivace/noise: wanted 10 rows, got 9"),
    (changed(vivace={"noise": np.zeros((10, 7), np.float32)}), "InvalidShape: vivace/noise: wanted rows of 8 values"),
    (changed(vivace={"noise": np.full((10, 8), np.inf)}), "InvalidArgument: vivace/noise: a value is not finite"),
    (changed(vivace={"action_prefix": np.zeros((10, 8))}), "action_prefix"),
    (changed(vivace={"future_actions": np.zeros((11, 3))}), "InvalidShape: vivace/future_actions: wanted at most 10 rows, got 11"),
    (changed(vivace={"future_actions": np.zeros((2, 8))}), "InvalidShape: vivace/future_actions: wanted rows of 3 values"),
    (changed(vivace={"future_actions": np.full((2, 3), np.nan)}), "InvalidArgument: vivace/future_actions: a value is not finite"),
    (changed(vivace={"future_actions": np.zeros((2, 3), np.int32)}), "InvalidDType: vivace/future_actions: wanted an array of floats"),
    (changed(vivace={"future_steps": 1}), "InvalidDType: vivace/future_steps: wanted true or false"),
    (changed(vivace={"episode": "x" * 65}), "InvalidDType: vivace/episode"),
    (changed(endpoint="learn"), "InvalidArgument: endpoint: wanted 'infer' or 'reset'"),
    ([1, 2], "InvalidArgument: wanted a map of fields"),
    (b"\x81", "CorruptData: msgpack: byte 1"),
    (b"\x91" * 40, "LimitExceeded: msgpack: byte 9: nested deeper than 8"),
    ("words", "InvalidArgument: wanted a binary message"),
]


@pytest.mark.parametrize("message,words", BAD, ids=[w[:60] for _, w in BAD])
def test_what_is_wrong_is_said_and_nobody_else_notices(host, alone, message, words):
    with Robot(host) as other, Robot(host) as robot:
        other.ws.send(pack(seen(3)))
        line, code = robot.refused(message)
        assert words in line and code == 1011, line
        got = unpack(other.ws.recv(60))
        assert (got["actions"] == expected(alone, seen(3))).all() and other.ask(seen(4))["vivace"]["request"] == 2


def test_one_of_a_shared_call_is_wrong(host, alone):
    """The call fails for both, and is made again for each: only whose fault it is hears of it."""
    with Robot(host) as busy, Robot(host) as wrong, Robot(host) as right:
        for _ in range(3):
            busy.ws.send(pack(seen(5)))
            time.sleep(0.002)
            right.ws.send(pack(seen(6)))
            if _ == 2:
                wrong.ws.send(pack(changed(images={"front": FRAME, "above": FRAME[:0]})))
                assert "observation 0: a frame has" in wrong.ws.recv(60)
            assert (unpack(right.ws.recv(60))["actions"] == expected(alone, seen(6))).all()
            assert (unpack(busy.ws.recv(60))["actions"] == expected(alone, seen(5))).all()


@pytest.mark.parametrize("options,words", [
    (dict(robot="droid"), "robot droid has a state of 8 values, the checkpoint's statistics have 3; it is of another robot"), (dict(robot="aloha"), "cameras in 3 slots, the policy has 2; load with num_views=3"),
    (dict(robot="r2d2"), "robot: wanted one of aloha, aloha_sim, droid, libero, any, got 'r2d2'"), (dict(cameras=()), "does not say whose it is"), (dict(cameras=("a", "a")), "names that differ"),
    (dict(cameras=("a", "b", "c")), "cameras in 3 slots"), (dict(robot="libero"), "it is of another robot"), (dict(robot="libero", cameras=("a",)), "has its own"), (dict(cameras="ab"), "a sequence of names"),
    (dict(metadata={"vivace": 1}), "the host's own"), (dict(metadata=[1]), "a dict"), (dict(port=-1), "port"), (dict(port=1 << 20), "port"), (dict(max_clients=0), "max_clients"),
    (dict(address="localhst"), "address: wanted one of IPv4"), (dict(key="a b"), "printable ASCII"), (dict(deadline=0), "deadline"), (dict(idle=float("nan")), "idle"), (dict(tokenizer="/none"), "tokenizer"), (dict(kee=1), "kee"),
])
def test_options_that_are_wrong(alone, options, words):
    given = dict(cameras=CAMERAS, port=0) | options
    if options.get("robot", "any") != "any" and "cameras" not in options:
        del given["cameras"]
    with pytest.raises((vivace.Error, TypeError), match=words):
        vivace.PolicyHost(alone, **given)
    alone.predict([FRAME, FRAME], "reach the red ball", np.zeros(3))  # nobody has it


def test_a_policy_that_is_served_is_the_hosts_alone(host, policy):
    for call in (lambda: policy.predict([FRAME, FRAME], "x", np.zeros(3)), lambda: policy.device_us(), lambda: policy.normalized()):
        with pytest.raises(vivace.FailedPreconditionError, match="serves this policy"):
            call()
    with pytest.raises(vivace.FailedPreconditionError, match="another host"):
        vivace.PolicyHost(policy, cameras=CAMERAS, port=0)
    with pytest.raises(vivace.IoError, match="Address already in use"):
        vivace.PolicyHost(port=host.port)


# ---- the door ------------------------------------------------------------------------------------

def test_http(host):
    assert get(host, "/healthz") == (200, "OK\n")
    status, text = get(host, "/metrics")
    assert status == 200 and "vivace_policy_ready 1\n" in text
    for line in text.splitlines():
        assert line.startswith(("# HELP vivace_policy_", "# TYPE vivace_policy_", "vivace_policy_")), line
    assert get(host, "/")[0] == 404 and get(host, "/healthz/..")[0] == 404
    for request, status in ((b"POST /healthz HTTP/1.1\r\n\r\n", 405), (b"GET /healthz HTTP/1.0\r\n\r\n", 400), (b"nonsense\r\n\r\n", 400), (b"GET  HTTP/1.1\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
                            (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 70 + b"\r\n", 400), (b"GET / HTTP/1.1\r\na: " + b"b" * 20000, 431), (b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", 426),
                            (b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nConnection: Upgrade\r\nSec-WebSocket-Key: short\r\n\r\n", 400),
                            (b"GET / HTTP/1.1\r\nOrigin: https://a.example\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", 403)):
        with raw(host, request, upgrade=False) as s:
            assert int(read_exactly(s, 12)[9:]) == status, request[:60]


def test_the_key(alone):
    with vivace.PolicyHost(alone, cameras=CAMERAS, port=0, key="s3cret") as h:
        assert get(h, "/healthz") == (200, "OK\n") and get(h, "/metrics")[0] == 401 and get(h, "/metrics", Authorization="Api-Key s3cre")[0] == 401
        assert get(h, "/metrics", Authorization="Bearer s3cret")[0] == 200 and get(h, "/metrics", Authorization="Basic s3cret")[0] == 401
        for headers in ({}, {"Authorization": "Api-Key s3cret2"}, {"Authorization": "s3cret"}, {"Authorization": "Api-Key"}):
            with pytest.raises(Exception, match="401"):
                Robot(h, additional_headers=headers)
        with Robot(h, additional_headers={"Authorization": "Api-Key s3cret"}) as robot:
            assert "actions" in robot.ask(seen(1))


def test_robots_that_come_before_the_policy(alone):
    with vivace.PolicyHost(port=0, idle=0.3) as h:
        assert get(h, "/healthz") == (503, "loading\n")
        with raw(h, frame(b"early", 9), frame(pack(seen(2)))) as s, raw(h) as quiet:
            assert read_frame(s) == (10, b"early")
            assert read_frame(quiet) == (9, b"")  # asked whether it is there
            quiet.sendall(frame(b"", 10))
            h.serve(alone, cameras=CAMERAS)
            op, metadata = read_frame(s)
            while op == 9:
                op, metadata = read_frame(s)
            assert op == 2 and "vivace" in unpack(metadata)
            op, answer = read_frame(s)
            assert op == 2 and unpack(answer)["vivace"]["seed"] == 2
        assert get(h, "/healthz") == (200, "OK\n")
        with pytest.raises(vivace.FailedPreconditionError, match="serves this policy|has its policy"):
            h.serve(alone, cameras=CAMERAS)


def test_a_policy_that_never_comes():
    with vivace.PolicyHost(port=0) as h:
        with raw(h) as early:
            h.fail("no such file")
            assert ended(early) == ["FailedPrecondition: the policy could not be loaded: no such file", 1011]
        assert get(h, "/healthz") == (503, "failed\n")
        with raw(h) as late:
            assert "no such file" in ended(late)[0]


def test_too_many_robots(alone):
    with vivace.PolicyHost(alone, cameras=CAMERAS, port=0, max_clients=1) as h:
        with Robot(h) as one:
            with pytest.raises(Exception, match="503"):
                Robot(h)
            assert get(h, "/healthz")[0] == 200 and "actions" in one.ask(seen(1))
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:  # its place is free again
            try:
                with Robot(h) as two:
                    assert "actions" in two.ask(seen(1))
                break
            except Exception as e:
                assert "503" in str(e)


# ---- frames --------------------------------------------------------------------------------------

def test_a_message_in_pieces(host, alone):
    """Split anywhere, in frames and in packets, with pings inside; two requests at once are answered in order."""
    o, rng = pack(seen(2)), np.random.default_rng(0)
    want = expected(alone, seen(2))
    for parts in (2, 3, 7):
        cuts = sorted(rng.integers(0, len(o), parts - 1).tolist())
        pieces = [o[a:b] for a, b in zip([0, *cuts], [*cuts, len(o)])]
        with raw(host) as s:
            assert read_frame(s)[0] == 2
            sent = b"".join(frame(p, 2 if i == 0 else 0, i == parts - 1) + frame(b"%d" % i, 9) for i, p in enumerate(pieces))
            for at in range(0, len(sent), 5000):
                s.sendall(sent[at:at + 5000])
            got = [read_frame(s) for _ in range(parts + 1)]
            assert sorted(d for op, d in got if op == 10) == [b"%d" % i for i in range(parts)]
            assert (unpack(next(d for op, d in got if op == 2))["actions"] == want).all()
    with raw(host, frame(o), frame(pack(seen(3))), frame(b"x", 9)) as s:
        read_frame(s)
        answers = [d for op, d in (read_frame(s) for _ in range(3)) if op == 2]
        assert [unpack(a)["vivace"]["seed"] for a in answers] == [2, 3]


@pytest.mark.parametrize("sent,code", [
    (frame(b"", 3), 1002), (frame(b"", 11), 1002), (frame(b"a", 9, fin=False), 1002), (frame(b"a" * 126, 9), 1002), (frame(b"a", masked=False), 1002), (frame(b"a", 0), 1002),
    (frame(b"a", 2, fin=False) + frame(b"b", 2), 1002), (b"\xc2\x80\1\2\3\4", 1002), (b"\x82\xfe\x00\x05\1\2\3\4aaaaa", 1002), (b"\x82\xff" + b"\xff" * 12, 1002),
    (b"\x82\xff" + struct.pack(">Q", 5) + b"\1\2\3\4aaaaa", 1002), (b"\x82\xff" + struct.pack(">Q", (16 << 20) + 1) + b"\1\2\3\4", 1009), (frame(b"\0", 8), 1002),
])
def test_frames_that_break_the_protocol(host, sent, code):
    with raw(host, sent) as s:
        assert ended(s)[-1] == code


def test_the_way_to_part(host):
    with raw(host, frame(struct.pack(">H", 1000) + b"bye", 8)) as s:
        assert ended(s)[-1] == 1000
    with raw(host, frame(b"", 8)) as s:
        assert read_frame(s)[0] == 2 and read_frame(s) == (8, b"")


def test_robots_that_leave_in_the_middle(host, alone):
    """Half a head, half a message, a request whose answer nobody waits for: places come back, the others are answered."""
    o = pack(seen(2))
    with Robot(host) as other:
        for i in range(24):
            s = raw(host, upgrade=i % 4 > 0)
            s.sendall([b"GET / HT", frame(o)[:len(o) // 2], frame(o), frame(o) + frame(o)[:999]][i % 4])
            if i % 3 == 0:  # with a reset, not a goodbye
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.close()
            if i % 6 == 5:
                assert (other.ask(seen(3))["actions"] == expected(alone, seen(3))).all()
        deadline = time.monotonic() + 10
        while metric(host, "vivace_policy_clients") > 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert metric(host, "vivace_policy_clients") == 1 and metric(host, "vivace_policy_waiting") == 0


def test_robots_that_say_nothing(alone):
    with vivace.PolicyHost(alone, cameras=CAMERAS, port=0, idle=0.3) as h:
        with raw(h) as silent, raw(h, frame(pack(seen(1)))[:1000]) as half, Robot(h) as good:
            assert "nothing came for" in next(t for t in ended(half) if isinstance(t, str))
            got = ended(silent)
            assert got[:2] == [2, 9] and got[-1] == 1011  # metadata, a ping, then the end
            assert (good.ask(seen(1))["actions"] == expected_of(h, good)).all()
        assert metric(h, 'vivace_policy_closed_total{cause="silent"}') == 2


def expected_of(h, robot):
    """The same request once more."""
    return robot.ask(seen(1))["actions"]


def test_a_robot_that_never_reads(host, alone):
    """Its pings and answers fill its own socket; the others' answers come all the same."""
    with raw(host) as s, Robot(host) as other:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        s.settimeout(0.2)
        ping = frame(b"p" * 125, 9) * 500
        sent = 0
        try:
            while sent < 64 << 20:
                sent += s.send(ping)
        except TimeoutError:
            pass
        for i in range(3):
            assert (other.ask(seen(i))["actions"] == expected(alone, seen(i))).all()


# ---- the clients of others -----------------------------------------------------------------------

WEBSOCKETS = ["11.0.3", "17.4"]  # what openpi-client asks for at least, and what pip takes today; the newer one sends pings of its own


@pytest.fixture(scope="session")
def openpi_client(request):
    """A virtual environment with openpi-client as PyPI has it, whose NumPy is older than ours, and one of its versions of websockets."""
    import fcntl

    websockets = getattr(request, "param", WEBSOCKETS[-1])
    folder = ROOT / "build" / f"openpi-client-{websockets}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:  # of tests side by side, one makes it
        fcntl.flock(lock, fcntl.LOCK_EX)
        _make_openpi_client(folder, python, websockets)
    return python


def _make_openpi_client(folder, python, websockets):
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, capture_output=True)
        # typing_extensions, which its wheel forgets to ask for.
        got = subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "openpi-client==0.1.2", f"websockets=={websockets}", "typing_extensions"], capture_output=True, text=True)
        if got.returncode != 0:
            pytest.skip(f"openpi-client cannot be installed here: {got.stderr.strip().splitlines()[-1:]}")
        (folder / "ready").touch()


CLIENT = """
import sys, json, importlib.metadata, numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from openpi_client.action_chunk_broker import ActionChunkBroker
c = WebsocketClientPolicy("127.0.0.1", int(sys.argv[1]), api_key="s3cret")
rng = np.random.default_rng(5)
o = {"images": {c: rng.integers(0, 256, (112, 112, 3), np.uint8) for c in ("front", "above")}, "state": rng.standard_normal(3), "prompt": "reach the red ball", "vivace": {"seed": 5}}
first = c.infer(o)
broker = ActionChunkBroker(c, 10)
steps = [broker.infer(o)["actions"].tolist() for _ in range(12)]
broker.reset()
after = broker.infer(o)["actions"].tolist()
try:
    c.infer({"state": np.zeros(3)})
    error = None
except RuntimeError as e:
    error = str(e)
print(json.dumps({"websockets": importlib.metadata.version("websockets"), "metadata": c.get_server_metadata(), "actions": first["actions"].tolist(), "steps": steps, "after": after, "error": error, "timing": first["server_timing"]}))
"""


@pytest.mark.parametrize("openpi_client", WEBSOCKETS, indirect=True)
def test_openpis_own_client_unchanged(openpi_client, alone):
    import json

    rng = np.random.default_rng(5)
    o = {"images": {c: rng.integers(0, 256, (112, 112, 3), np.uint8) for c in CAMERAS}, "state": rng.standard_normal(3), "prompt": "reach the red ball", "vivace": {"seed": 5}}
    want = expected(alone, o)
    with vivace.PolicyHost(alone, cameras=CAMERAS, port=0, key="s3cret", metadata={"reset_pose": [0.5]}) as h:
        ran = subprocess.run([openpi_client, "-W", "ignore", "-c", CLIENT, str(h.port)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    got = json.loads(ran.stdout)
    assert got["metadata"]["reset_pose"] == [0.5] and got["websockets"] in WEBSOCKETS
    assert (np.float32(got["actions"]) == want).all() and (np.float32(got["after"]) == want[0]).all()
    assert (np.float32(got["steps"]) == np.concatenate([want, want[:2]])).all()
    assert "InvalidArgument: images/front: this camera of robot any is missing" in got["error"] and got["timing"]["infer_ms"] > 0


def test_the_command(alone):
    ran = subprocess.Popen([sys.executable, "-m", "vivace.cli", "serve-policy", "tiny-pi05", "--port", "0", "--device", "cpu", "--threads", "1", "--steps", "1", "--prompt", "reach the red ball"],
                           stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    try:
        line = ran.stderr.readline()
        port = int(line.split("port ")[1].split(";")[0])
        with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None, proxy=None) as ws:
            assert unpack(ws.recv(60))["vivace"]["robot"] == "any"
            o = seen(4)
            del o["prompt"]
            ws.send(pack(o))
            assert unpack(ws.recv(60))["actions"].shape == (10, 3)
            ran.terminate()
            with pytest.raises(ConnectionClosed) as e:
                ws.recv(20)
            assert e.value.rcvd.code == 1001
        assert ran.wait(20) == 0 and "closing" in ran.stderr.read()
    finally:
        ran.kill()
        ran.stderr.close()


# ---- anything at all -----------------------------------------------------------------------------

pieces = st.one_of(
    st.tuples(st.just("bytes"), st.binary(max_size=200)), st.tuples(st.just("ping"), st.binary(max_size=125)), st.tuples(st.just("ask"), st.integers(0, 3)), st.tuples(st.just("value"), values),
    st.tuples(st.just("spoiled"), st.integers(0, 3), st.integers(0, 1 << 30), st.binary(min_size=1, max_size=4)), st.tuples(st.just("frame"), st.integers(0, 15), st.booleans(), st.booleans(), st.binary(max_size=300)),
    st.tuples(st.just("half"), st.integers(0, 3)), st.tuples(st.just("reset"),), st.tuples(st.just("wait"),),
)


def sent_by(step):
    kind, *a = step
    if kind == "bytes":
        return a[0]
    if kind == "ping":
        return frame(a[0], 9)
    if kind == "ask":
        return frame(pack(seen(a[0])))
    if kind == "value":
        return frame(pack(a[0]))
    if kind == "spoiled":
        wire = bytearray(pack(seen(a[0])))
        wire[a[1] % len(wire):][:len(a[2])] = a[2]
        return frame(bytes(wire))
    if kind == "frame":
        return frame(a[3], a[0], a[1], a[2])
    return frame(pack(seen(a[0])))[:40000] if kind == "half" else frame(pack({"endpoint": "reset"})) if kind == "reset" else b""


@settings(max_examples=int(os.environ.get("VV_HOST_EXAMPLES", "60")), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(pieces, max_size=6))
def test_whatever_comes(host, alone, steps):
    """Whatever one connection sends: each answer on it is that of a whole request of its own, in order, and another robot's stays right."""
    with raw(host) as s:
        s.settimeout(30)
        asked = []
        try:
            for step in steps:
                s.sendall(sent_by(step))
                if step[0] == "ask":
                    asked.append(step[1])
            s.sendall(frame(struct.pack(">H", 1000), 8))
            s.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass
        answers = []
        try:
            while True:
                op, data = read_frame(s)
                if op == 2:
                    answers.append(unpack(data))
        except (EOFError, ConnectionError):
            pass
    got = [a["vivace"]["seed"] for a in answers if "actions" in a]
    for a in answers:
        if "actions" in a:
            assert a["actions"].shape == (10, 3) and np.isfinite(a["actions"]).all()
            if steps and all(step[0] in ("ask", "ping", "wait") for step in steps):
                assert (a["actions"] == cached(alone, a["vivace"]["seed"])).all()
    assert got == [s for s in got if s in asked or any(step[0] in ("spoiled", "value", "bytes", "frame") for step in steps)]
    with Robot(host) as robot:
        assert (robot.ask(seen(1))["actions"] == cached(alone, 1)).all()
    assert threading.active_count() < 50


_known = {}


def cached(alone, seed):
    if seed not in _known:
        _known[seed] = expected(alone, seen(seed))
    return _known[seed]
