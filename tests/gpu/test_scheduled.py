"""Models of one scheduler on a GPU: answers keep their bits at gates, nobody waits for the whole device, streams do not hold one another up. Needs --device cuda."""
import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests.op_data import device

if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

import vivace  # noqa: E402
from tests.test_groot import observation as groot_observation  # noqa: E402
from tests.test_model import FIXTURES  # noqa: E402
from vivace import _core  # noqa: E402
from vivace import device as chip  # noqa: E402

VLA, LLM = FIXTURES / "vla", FIXTURES / "tiny_gguf" / "llama_q4_1.gguf"
ARM = dict(config="pi05", num_views=1, statistics="none")
GIVEN = dict(images=[np.full((224, 224, 3), 90, np.uint8)], prompt=[2, 17, 301], state=np.zeros(32, np.float32))
IDS = list(range(3, 33))


@pytest.fixture
def gpu():
    with vivace.Scheduler(device.NAME) as scheduler:
        yield scheduler
    gc.collect()


def arm(gpu, name="arm", qos=None, worst_ms=20, **options):
    return gpu.load_model(VLA / "pi05_tiny", name=name, qos=qos or vivace.guaranteed(hz=20, blocking_ms=20), worst_ms=worst_ms, **ARM, **options)


def test_bits_are_those_without_a_scheduler(gpu, record_property):
    """At every point a gate and one a step, captured, while another tenant's calls shut them."""
    with vivace.load_model(LLM, device=device.NAME, max_batch=2) as alone:
        want = alone.generate_ids(IDS, max_tokens=60, temperature=0.8, seed=3)
    with vivace.load_model(VLA / "pi05_tiny", device=device.NAME, **ARM) as alone:
        actions = alone.predict(**GIVEN, seed=3)
    urgent, over, calls = arm(gpu), threading.Event(), []
    thread = threading.Thread(target=lambda: [calls.append((urgent.predict(**GIVEN, seed=3) == actions).all()) for _ in iter(over.is_set, True)])
    thread.start()
    try:
        for stretch in (1e-6, 1e6):
            with gpu.load_model(LLM, name=f"llm {stretch}", qos=vivace.burstable(stretch_ms=stretch), max_batch=2) as llm:
                gates = llm.report()["gates"]
                got = llm.generate_ids(IDS, max_tokens=60, temperature=0.8, seed=3)
                assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs) and (gates > 3 if stretch < 1 else gates == 1)
            with arm(gpu, f"other {stretch}", vivace.burstable(stretch_ms=stretch)) as other:
                assert (other.predict(**GIVEN, seed=3) == actions).all() and other.report()["gates"] >= 2
            gc.collect()
    finally:
        over.set()
        thread.join()
    assert calls and all(calls) and gpu.report()["healthy"]
    record_property("note", f"{len(calls)} urgent calls beside")


def test_nobody_waits_for_the_whole_device(gpu, record_property):
    """Neither once models are ready nor when one is closed: a wait for all streams would last as long as one of them stands at a gate."""
    llm, urgent = gpu.load_model(LLM, name="llm", qos=vivace.burstable(stretch_ms=1e-3), max_batch=2, logit_bias=True), arm(gpu)
    for _ in range(2):
        urgent.predict(**GIVEN, seed=1)
        llm.generate_ids(IDS, max_tokens=20, temperature=0.8, seed=3, logit_bias={5: 1.0})
    before = _core.device_wide_waits()
    for _ in range(20):
        stream = llm._stream(IDS, None, max_tokens=40, logit_bias={5: 1.0})
        urgent.predict(**GIVEN, seed=1)
        urgent.expect_in(0.001)
        assert len(list(stream)) == 40
    assert _core.device_wide_waits() == before
    llm.close()
    del llm, stream
    gc.collect()
    assert _core.device_wide_waits() == before


def test_a_closed_model_waits_for_its_own_stream(gpu):
    """Another tenant stands at a gate for good while a model is closed: its memory goes all the same."""
    llm, other = gpu.load_model(LLM, name="llm", qos=vivace.burstable(stretch_ms=1e-3), max_batch=2), gpu.load_model(LLM, name="other", qos=vivace.burstable(), max_batch=2)
    gpu.pause(llm)
    stream = llm._stream(IDS, None, max_tokens=40)
    closing = threading.Thread(target=other.close)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    del other
    gc.collect()
    gpu.resume(llm)
    assert len(list(stream)) == 40


def used():
    return vivace.array.pool_stats()["mapped"]


def test_a_tenant_sleeps_and_wakes(gpu, record_property):
    """Its bytes are the device's again while it sleeps, another one's urgent calls go on, and its graphs and caches give the bits that they gave."""
    llm, urgent = gpu.load_model(LLM, name="llm", qos=vivace.burstable(stretch_ms=1e-3), max_batch=2), arm(gpu)
    asked = dict(max_tokens=40, temperature=0.8, seed=3)
    want, before = llm.generate_ids(IDS, **asked), used()
    over, calls = threading.Event(), []
    actions = urgent.predict(**GIVEN, seed=3)
    thread = threading.Thread(target=lambda: [calls.append((urgent.predict(**GIVEN, seed=3) == actions).all()) for _ in iter(over.is_set, True)])
    thread.start()
    try:
        for _ in range(5):
            slept = gpu.sleep(llm)
            assert slept["bytes"] > 0 and before - used() >= slept["bytes"] and gpu.stats()["llm"]["asleep"]
            with pytest.raises(vivace.FailedPreconditionError, match="the model sleeps"):
                llm.generate_ids(IDS, max_tokens=1)
            woke = gpu.wake("llm")
            assert woke["bytes"] == slept["bytes"] and used() == before
            got = llm.generate_ids(IDS, **asked)
            assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs)
    finally:
        over.set()
        thread.join()
    assert calls and all(calls) and gpu.report()["healthy"]
    rate = [m["bytes"] / m["seconds"] / 1e9 for m in (slept, woke)]
    record_property("note", f"{slept['bytes']} bytes, {rate[0]:.2f} GB/s out, {rate[1]:.2f} back, {len(calls)} urgent calls beside")


def test_a_policy_sleeps(gpu):
    urgent = arm(gpu)
    want = urgent.predict(**GIVEN, seed=3)
    before = used()
    assert gpu.sleep(urgent)["bytes"] > 0 and used() < before
    with pytest.raises(vivace.FailedPreconditionError, match="it sleeps; wake it first"):
        urgent.predict(**GIVEN, seed=3)
    gpu.wake(urgent)
    assert (urgent.predict(**GIVEN, seed=3) == want).all()


def test_closed_while_it_sleeps(gpu):
    llm = gpu.load_model(LLM, name="llm", qos=vivace.burstable(), max_batch=2)
    gpu.sleep(llm)
    llm.close()
    del llm
    gc.collect()
    with gpu.load_model(LLM, name="llm", qos=vivace.burstable(), max_batch=2) as again:
        assert len(again.generate_ids(IDS, max_tokens=5).tokens) == 5


def test_who_is_idle_makes_room():
    """Bytes for one and a half of them: the second one's load puts the first to sleep, whose wake() puts the second."""
    with vivace.Scheduler(device.NAME) as gpu, gpu.load_model(LLM, name="a", qos=vivace.best_effort(), max_batch=2):
        each = gpu.stats()["a"]["bytes"]
    gc.collect()
    with vivace.Scheduler(device.NAME, bytes=each * 3 // 2) as gpu:
        a = gpu.load_model(LLM, name="a", qos=vivace.best_effort(), max_batch=2)
        want = a.generate_ids(IDS, max_tokens=20)
        b = gpu.load_model(LLM, name="b", qos=vivace.best_effort(), max_batch=2)
        assert gpu.stats()["a"]["asleep"] and b.generate_ids(IDS, max_tokens=20).tokens == want.tokens
        gpu.wake(a)
        assert gpu.stats()["b"]["asleep"] and a.generate_ids(IDS, max_tokens=20).tokens == want.tokens
        with pytest.raises(vivace.FailedPreconditionError, match="bytes are asked for in all"):
            gpu.load_model(LLM, name="c", qos=vivace.best_effort(bytes=each * 2), max_batch=2)
    gc.collect()


def test_work_in_a_partition_runs_beside(gpu):
    """A share of the multiprocessors, chosen when it is opened; two are apart, and a third finds what is left."""
    torch = pytest.importorskip("torch")
    x = torch.zeros(1 << 20, device=device.NAME)

    def add(stream):
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            x.add_(1)

    torch.cuda.synchronize()
    with gpu.work("a", qos=vivace.best_effort(), worst_ms=50, partition=0.25) as a, gpu.work("b", qos=vivace.best_effort(), worst_ms=50, partition=0.25) as b:
        a.run(add, add)
        b.run(add)
        assert float(x.min()) == float(x.max()) == 3
        with pytest.raises(vivace.InvalidArgumentError, match="are left"):
            gpu.work("c", qos=vivace.best_effort(), worst_ms=50, partition=0.75)


def whole_again(gpu, name, call):
    """A call on the whole device: an engine whose last answer is out stops wanting the device a moment later."""
    before = gpu.stats()[name]["whole_calls"]
    for _ in range(200):
        call()
        if gpu.stats()[name]["whole_calls"] > before:
            return True
        time.sleep(0.005)
    return False


@pytest.mark.parametrize("policy", ["pi05_tiny", "groot_n17_tiny"])
def test_a_policy_has_its_partition_beside_others_and_the_device_alone(gpu, policy, record_property):
    """One of two graphs a call, by who works when it begins: the same bits, both counted, both times known. Two policies with a partition are apart."""
    own, given = (ARM, GIVEN | dict(seed=3)) if policy == "pi05_tiny" else (dict(num_views=3, statistics="none"), groot_observation("a"))
    with vivace.load_model(VLA / policy, device=device.NAME, **own) as alone:
        want, launches = alone.predict(**given), alone.report()["action_launches"]

    def load(name, **options):
        return gpu.load_model(VLA / policy, name=name, qos=vivace.burstable(min_share=0.1, stretch_ms=0.05), **own, **options)

    with vivace.load_model(LLM, device=device.NAME) as one:
        words = one.generate_ids(IDS, max_tokens=40).tokens
    whole = chip.info()["sm_count"]
    with load("small", partition=0.4) as small, load("kept", partition=0.4, keep_partition=True) as kept, gpu.load_model(LLM, name="llm", qos=vivace.burstable(), max_batch=2) as llm:
        report = small.report()
        assert report["switches"] and not kept.report()["switches"] and report["multiprocessors"] < 0.6 * whole and report["action_launches"] >= launches
        row = gpu.stats()["small"]
        assert 0 < row["whole_us"] <= row["wcet_us"] and gpu.stats()["kept"]["whole_us"] == 0
        for _ in range(20):
            assert (small.predict(**given) == want).all() and (kept.predict(**given) == want).all()
        row = gpu.stats()["small"]
        assert row["whole_calls"] == row["calls"] == 20 and gpu.stats()["kept"]["whole_calls"] == 0

        over, failures = threading.Event(), []

        def write():
            while not over.is_set():
                if llm.generate_ids(IDS, max_tokens=40).tokens != words:
                    failures.append("the language model's answer")

        def act():
            while not over.is_set():
                if not (kept.predict(**given) == want).all():
                    failures.append("the other policy's answer")
                over.wait(0.003)

        thread = threading.Thread(target=write)
        thread.start()
        try:  # it has no partition, and would run in the policy's too
            assert all((small.predict(**given) == want).all() for _ in range(30))
        finally:
            over.set()
            thread.join()
        row = gpu.stats()["small"]
        assert row["whole_calls"] == row["calls"] == 50
        over.clear()

        thread = threading.Thread(target=act)
        thread.start()
        try:
            for call in range(400):
                if not (small.predict(**given) == want).all():
                    failures.append(call)
        finally:
            over.set()
            thread.join()
        after = gpu.stats()["small"]
        calls, on_whole = after["calls"] - 50, after["whole_calls"] - 50
        assert not failures and 0 < on_whole < calls == 400
        assert whole_again(gpu, "small", lambda: small.predict(**given)) and (small.predict(**given) == want).all()
        record_property("note", f"{on_whole} of {calls} calls on all {whole} multiprocessors; at worst {row['whole_us']:.0f} us there, {row['wcet_us']:.0f} on {report['multiprocessors']}")
    gc.collect()


def test_a_guaranteed_policy_with_a_partition_has_the_device(gpu):
    """Others stand back during its call, so nobody is beside it."""
    with vivace.load_model(VLA / "pi05_tiny", device=device.NAME, **ARM) as alone:
        want = alone.predict(**GIVEN, seed=3)
    urgent, over = arm(gpu, partition=0.4), threading.Event()
    with gpu.load_model(LLM, name="llm", qos=vivace.burstable(), max_batch=2) as llm:
        thread = threading.Thread(target=lambda: [llm.generate_ids(IDS, max_tokens=40) for _ in iter(over.is_set, True)])
        thread.start()
        try:
            assert all((urgent.predict(**GIVEN, seed=3) == want).all() for _ in range(100))
        finally:
            over.set()
            thread.join()
    row = gpu.stats()["arm"]
    assert row["demoted"] or row["whole_calls"] == row["calls"] == 100
    gc.collect()


def test_a_policy_that_switches_sleeps_and_wakes(gpu):
    """Both streams are waited for, and both graphs replay at the same addresses."""
    with gpu.load_model(VLA / "pi05_tiny", name="arm", qos=vivace.burstable(), partition=0.4, **ARM) as small, gpu.load_model(VLA / "pi05_tiny", name="other", qos=vivace.burstable(), partition=0.4, **ARM) as other:
        want = small.predict(**GIVEN, seed=3)
        for _ in range(3):
            thread = threading.Thread(target=lambda: [other.predict(**GIVEN, seed=3) for _ in range(60)])
            thread.start()
            assert all((small.predict(**GIVEN, seed=3) == want).all() for _ in range(30))
            thread.join()
            assert whole_again(gpu, "arm", lambda: small.predict(**GIVEN, seed=3)) and (small.predict(**GIVEN, seed=3) == want).all()
            gpu.sleep(small)
            gpu.wake(small)
        row = gpu.stats()["arm"]
        assert 0 < row["whole_calls"] < row["calls"]
    gc.collect()


@pytest.mark.parametrize("connections", [32, 1])
def test_streams_that_share_a_queue_are_found(connections, record_property):
    """With as many queues as a scheduler asks for none holds another up; with one all do."""
    program = f"""
import vivace
with vivace.Scheduler({device.NAME!r}) as gpu:
    print(gpu.report()['streams_held'])
    if gpu.report()['urgent_held']:
        try:
            gpu.work('arm', qos=vivace.guaranteed(hz=1), worst_ms=1)
        except vivace.FailedPreconditionError as e:
            assert 'nobody can be guaranteed' in str(e)
        else:
            raise SystemExit('it was admitted')
    else:
        gpu.work('arm', qos=vivace.guaranteed(hz=1), worst_ms=1).close()
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=os.environ | {"CUDA_DEVICE_MAX_CONNECTIONS": str(connections)})
    assert ran.returncode == 0, ran.stderr
    held = int(ran.stdout)
    record_property("note", f"{held} of 17 streams held with {connections} connections")
    assert held == 0 if connections == 32 else held > 0


def test_a_lost_opener_is_seen(gpu):
    """A process that is killed in a call leaves no gate shut: the next one's calls run."""
    program = f"""
import os, threading, time, vivace
from tests.gpu.test_scheduled import GIVEN, arm
gpu = vivace.Scheduler({device.NAME!r})
urgent = arm(gpu)
threading.Thread(target=lambda: [urgent.predict(**GIVEN, seed=1) for _ in range(10_000)], daemon=True).start()
time.sleep(0.3)
os.kill(os.getpid(), 9)
"""
    env = os.environ | {"VIVACE_TEST_DEVICE": device.NAME}
    assert subprocess.run([sys.executable, "-c", program], timeout=120, env=env).returncode == -9
    with arm(gpu) as urgent:
        urgent.predict(**GIVEN, seed=1)
        assert gpu.stats()["arm"]["calls"] == 1


def test_work_of_another_library(gpu):
    """PyTorch's kernels on a stream that a tenant gives, behind gates that urgent calls shut: all are done when run() ends."""
    torch = pytest.importorskip("torch")
    x, urgent = torch.zeros(1 << 20, device=device.NAME), arm(gpu)

    def add(stream):
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            x.add_(1)

    torch.cuda.synchronize()
    with gpu.work("torch", qos=vivace.best_effort(), worst_ms=50, stretch_ms=1) as work:
        thread = threading.Thread(target=lambda: [urgent.predict(**GIVEN, seed=1) for _ in range(50)])
        thread.start()
        for _ in range(50):
            work.run(*[add] * 20)
        assert float(x.min()) == float(x.max()) == 1000
        thread.join()
        assert gpu.stats()["torch"]["calls"] == 50 and gpu.report()["healthy"]
