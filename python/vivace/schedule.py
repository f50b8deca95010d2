"""Several models on one device, with guarantees: docs/scheduling.md.

    gpu = vivace.Scheduler("cuda")
    arm = gpu.load_model("pi05", qos=vivace.guaranteed(hz=30, deadline_ms=15))
    llm = gpu.load_model("qwen3-8b", qos=vivace.burstable(min_share=0.66))
    print(gpu.evaluate("pi05", vivace.guaranteed(hz=10)))
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import threading
import time
import weakref
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from vivace import _core
from vivace.cache import Cache
from vivace.errors import ClosedError, Error, FailedPreconditionError, InvalidArgumentError, NotFoundError, OutOfMemoryError, UnsupportedError
from vivace.fetch import cache_dir
from vivace.options import Bad, among, flag, maybe, number, one, positive, utf8, whole, wrong
from vivace.options import path as path_text

__all__ = ["Qos", "Scheduler", "Verdict", "Work", "best_effort", "burstable", "guaranteed"]

INT64 = 1 << 63
GATE_US = 220.0  # others' longest stretch that a guaranteed call waits for, and what gates are placed by
CPU_BLOCKING_US = 1e9  # on the host a launch may take milliseconds: deadlines decide


@dataclass(frozen=True)
class Qos:
    """What a tenant asks for: guaranteed(), burstable() or best_effort() make one. Times are milliseconds; None: the device's default."""

    cls: str
    hz: float | None = None
    deadline_ms: float | None = None
    min_share: float = 0.0
    weight: float = 1.0
    blocking_ms: float | None = None
    overrun: str = "release"
    queue: int = 4
    bytes: int = 0

    def core(self, device: str) -> dict:
        """As the core takes it."""
        blocking = self.blocking_ms * 1e3 if self.blocking_ms is not None else CPU_BLOCKING_US if self.cls == "guaranteed" and device == "cpu" else GATE_US
        return dict(cls=self.cls, period_us=1e6 / self.hz if self.hz else 0.0, deadline_us=(self.deadline_ms or 0.0) * 1e3, min_share=self.min_share, weight=self.weight, blocking_us=blocking,
                    hold=self.overrun == "hold", queue=self.queue, bytes=self.bytes)


def _share(value) -> float:
    try:
        share = number(value)
    except Bad:
        share = -1.0
    if not 0 <= share < 1:
        raise Bad("a share of the device's time, 0 or more and below 1")
    return share


def _partition(value) -> float:
    if not 0 < (share := number(value)) < 1:
        raise Bad("a share of the device in (0, 1), or None for all of it")
    return share


def guaranteed(*, hz, deadline_ms=None, blocking_ms=None, overrun="release", queue=4, bytes=0) -> Qos:
    """Calls with a deadline, `hz` a second at most: everybody else stands back while one runs. Admitted only where every deadline holds.

    deadline_ms: from predict() to its answer; None: the period. blocking_ms: the longest stretch of others' work that a call may have to wait for
    (0.22; on the CPU as long as the deadline holds). overrun: what happens to a call that takes longer than 1.2 x its worst time: "release" lets the others run
    beside it, "hold" keeps them back until twice that. queue: calls that may wait. bytes: of the device's memory; 0: the model's."""
    call = "guaranteed"
    return Qos("guaranteed", hz=one(call, "hz", positive, hz), deadline_ms=one(call, "deadline_ms", maybe(positive), deadline_ms), blocking_ms=one(call, "blocking_ms", maybe(positive), blocking_ms),
               overrun=one(call, "overrun", among("release", "hold"), overrun), queue=one(call, "queue", whole(1, 4096), queue), bytes=one(call, "bytes", whole(0, INT64 - 1), bytes))


def burstable(*, min_share=0.0, weight=1.0, stretch_ms=None, bytes=0) -> Qos:
    """At least `min_share` of the device's time, and a part of what nobody was promised, by `weight`.

    stretch_ms: its steps get gates so that none runs on for longer (0.22)."""
    call = "burstable"
    return Qos("burstable", min_share=one(call, "min_share", _share, min_share), weight=one(call, "weight", positive, weight), blocking_ms=one(call, "stretch_ms", maybe(positive), stretch_ms),
               bytes=one(call, "bytes", whole(0, INT64 - 1), bytes))


def best_effort(*, stretch_ms=None, bytes=0) -> Qos:
    """What is left: 2 % of the device's time for all of them together, more while others leave some. stretch_ms: as burstable()'s."""
    call = "best_effort"
    return Qos("best_effort", blocking_ms=one(call, "stretch_ms", maybe(positive), stretch_ms), bytes=one(call, "bytes", whole(0, INT64 - 1), bytes))


@dataclass(frozen=True)
class Verdict:
    """What evaluate() found; str() of it is the text. fixes: (text, tenant, Qos) of the smallest change of each kind with which it would fit."""

    admitted: bool
    text: str
    response_ms: float  # guaranteed: within what a call ends; else 0
    utilisation: float  # of the device's time that is promised, this one included
    fixes: tuple = ()

    def __str__(self):
        return self.text


class Work:
    """Launches of the caller's own as a tenant: what Scheduler.work() gives. Use as a context manager or close() it. Threads may share one: their runs take turns."""

    def __init__(self, core, tenant, name):
        self._core, self.tenant, self._name, self._turn = core, tenant, name, threading.Lock()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        return f"<Work {self._name}{': closed' if self._core is None else ''}>"

    def run(self, *launches) -> list:
        """Calls each of `launches` with the handle of a stream, a number, on which it is to put its work (0 on the CPU: it does its work), with a gate in front of each; what they
        gave, once all of it is done. Of a guaranteed one the whole is a call, which waits for its turn.
        Errors: what a launch raises, behind which none is begun; InvalidArgumentError; ClosedError; as predict() of a guaranteed policy."""
        for i, launch in enumerate(launches):
            if not callable(launch):
                raise wrong("run", f"launches[{i}]", "a function of a stream", launch)
        if not launches:
            raise InvalidArgumentError("run: launches: wanted one or more functions of a stream, got none")
        with self._turn:
            if (core := self._core) is None:
                raise ClosedError("this work was closed; ask its scheduler for another")
            core.begin()
            try:
                stream, done = core.stream(), []
                for launch in launches:
                    core.gate()
                    done.append(launch(stream))
            finally:
                core.end()
            return done

    def close(self) -> None:
        """Gives its place back. Waits for a run that has begun. Twice is fine."""
        if (tenant := self.tenant) is not None:
            with contextlib.suppress(Error):
                tenant.pause(False)
        with self._turn:
            if self._core is not None:
                self._core.close()
            self._core = self.tenant = None


class Scheduler:
    """Several models of this process on one device. One a device; close() it, or use it as a context manager, before another.

    device: "auto", "cpu", "cuda" or "cuda:N". utilisation: part of the device's time that may be promised. handover_us: between two tenants' work (50 where device is "cuda", else 1000).
    bytes: of its memory that models may take together; 0: not looked at.
    Errors: FailedPreconditionError where this process has one for the device; UnsupportedError where the driver has no gates."""

    def __init__(self, device="auto", *, utilisation=0.97, handover_us=None, bytes=0):
        call = "Scheduler"
        device, utilisation = one(call, "device", utf8, device), one(call, "utilisation", positive, utilisation)
        if utilisation > 1:
            raise wrong(call, "utilisation", "a part of the device's time, 1 at most", utilisation)
        if handover_us is None:
            handover_us = 50.0 if device.startswith("cuda") else 1000.0
        if device != "cpu":
            os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # a stream at a gate holds up others of its queue; before the driver starts
        self._core = _core.Scheduler.open(device=device, utilisation=utilisation, handover_us=one(call, "handover_us", positive, handover_us), bytes=one(call, "bytes", whole(0, INT64 - 1), bytes))
        self._device = self._core.device()
        self._models, self._times, self._lock = weakref.WeakValueDictionary(), {}, threading.Lock()
        self._timed = {}  # tenant -> path, of those whose times are kept: they grow with what is seen
        self._publisher = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        return f"<Scheduler {self._device}: {'closed' if self._core is None else ', '.join(self._live.rows()) or 'no tenants'}>"

    @property
    def _live(self):
        if self._core is None:
            raise ClosedError("this scheduler was closed; make another")
        return self._core

    @property
    def device(self) -> str:
        return self._device

    def load_model(self, path_or_name, *, qos, name=None, worst_ms=None, **options):
        """vivace.load_model() as a tenant of this device: a policy of any class, a language model that is burstable or best_effort.

        name: in stats() and messages; None: the file's. worst_ms: what a call (of a language model a step) takes at worst; None: it is timed at load.
        Errors: FailedPreconditionError where it would not fit, with the numbers and the smallest change that fits; InvalidArgumentError; load_model()'s."""
        live, call = self._live, "load_model"
        name = Path(os.fspath(path_or_name)).stem if name is None else one(call, "name", utf8, name)
        worst = one(call, "worst_ms", maybe(positive), worst_ms)
        if (given := options.pop("device", self._device)) not in (self._device, "auto", self._device.split(":")[0]):
            raise InvalidArgumentError(f"load_model: device: this scheduler's is {self._device}, got {given!r}")
        core = _qos(call, qos).core(self._device)
        while (model := self._load(path_or_name, name, core, worst * 1e3 if worst else 0.0, options)) is None:
            pass  # somebody else's memory went to the host for it
        row = live.rows()[name]
        with self._lock:
            self._models[name] = model
            if worst is None:
                self._timed[name] = str(path_or_name)
        if worst is None:
            _keep_times(str(path_or_name), self._device, row["wcet_us"], row["bound_us"])
        with self._lock:
            self._times[str(path_or_name)] = row["wcet_us"], row["bound_us"]
        return model

    def _load(self, path_or_name, name, core, worst_us, options):
        """The model, admitted; None where it found too little memory, and there is more now."""
        from vivace import model as models

        tenant = self._live.join(name, core, worst_us)
        try:
            model = models.load_model(path_or_name, device=self._device, tenant=tenant, **options)
        except (OutOfMemoryError, FailedPreconditionError) as e:
            if not (isinstance(e, OutOfMemoryError) or tenant.bytes_short()) or not self._make_room(core["cls"]):
                raise
            return None
        model.tenant = tenant
        return model

    def _make_room(self, cls: str) -> bool:
        """Puts the coldest tenant to sleep whose memory one of class `cls` may have: best effort's, for others than those burstable's too."""
        name = self._live.coldest(cls != "best_effort")
        if not name:
            return False
        try:
            self.sleep(name)
        except (UnsupportedError, FailedPreconditionError, NotFoundError, OutOfMemoryError):  # on the host; it answers again; it was closed; no room there either
            return False
        return True

    def sleep(self, model) -> dict:
        """Moves a tenant's device memory, weights and caches, to page-locked host memory and gives the device's back: {"bytes", "seconds"}. Until wake() its calls and
        requests raise FailedPreconditionError. What it was promised of the device's time stays promised; its bytes are others'. It must be idle. Tenants that have
        no work sleep by themselves where load_model() or wake() of another one finds too little memory: best effort first, then burstable (not for a best-effort one),
        who was idle for longest first, guaranteed never.
        Errors: UnsupportedError on the CPU; FailedPreconditionError (it answers, or sleeps); OutOfMemoryError of the host; NotFoundError."""
        return self._move("sleep", model)

    def wake(self, model) -> dict:
        """The reverse of sleep(), to the same addresses: caches, graphs and bits are as they were. {"bytes", "seconds"}.
        Errors: FailedPreconditionError (it does not sleep; its bytes are promised to others); OutOfMemoryError; NotFoundError."""
        while True:
            try:
                return self._move("wake", model)
            except (OutOfMemoryError, FailedPreconditionError) as e:
                tenant = self._tenant("wake", model)
                if not (isinstance(e, OutOfMemoryError) or tenant.bytes_short()) or not self._make_room(tenant.cls()):
                    raise

    def _move(self, call, model) -> dict:
        tenant = self._tenant(call, model)
        if isinstance(model, str):
            with self._lock:
                model = self._models[model]
        if isinstance(model, Work):
            raise UnsupportedError(f"{call}: launches of your own have no memory here")
        moved, seconds = getattr(model._live, call)(tenant)
        return {"bytes": moved, "seconds": seconds}

    def evaluate(self, path_or_name, qos, *, name=None, worst_ms=None, stretch_ms=None) -> Verdict:
        """Whether such a tenant would be admitted beside those that are there, with the numbers: nothing is loaded, nothing changes.

        worst_ms, stretch_ms: what a call takes at worst, and its longest work between two gates (None: the same); None: as a scheduler timed it when it last
        loaded these files on this device, in this process or another one. FailedPreconditionError where none has."""
        live, call, path = self._live, "evaluate", str(path_or_name)
        self._note_times()
        worst, stretch = one(call, "worst_ms", maybe(positive), worst_ms), one(call, "stretch_ms", maybe(positive), stretch_ms)
        if worst is None:
            with self._lock:
                times = self._times.get(path)
            if times is None and (times := _kept_times(path, self._device)) is None:
                raise FailedPreconditionError(f"evaluate: nothing is known of the times of {path} on {self._device}; load it once with a scheduler, or give worst_ms")
        else:
            times = (worst * 1e3, (stretch or worst) * 1e3)
        core, taken = _qos(call, qos).core(self._device), live.rows()
        name = _free(Path(path).stem, taken) if name is None else one(call, "name", utf8, name)
        admitted, text, response_us, utilisation, fixes = live.evaluate(name, core, *times)
        return Verdict(admitted, text, response_us / 1e3, utilisation, tuple((said, who, _from_core(changed)) for said, who, changed in fixes))

    def work(self, name, *, qos, worst_ms, stretch_ms=None, partition=None) -> Work:
        """A place for launches that are no model's, kernels of the caller's own or another library's on a stream that Vivace gives: run() of it has them.

        worst_ms: what a run takes at worst. stretch_ms: the longest of its launches, for which others may have to wait; None: worst_ms.
        partition: a share of a GPU's multiprocessors, in (0, 1), that its stream has to itself among those with one, so that it runs beside others; None: all of them.
        Errors: FailedPreconditionError where it would not fit, with the numbers; InvalidArgumentError; UnsupportedError where the device cannot be partitioned."""
        live, call = self._live, "work"
        share = one(call, "partition", maybe(_partition), partition) or 0.0
        name, worst, stretch = one(call, "name", utf8, name), one(call, "worst_ms", positive, worst_ms), one(call, "stretch_ms", maybe(positive), stretch_ms)
        if stretch is not None and stretch > worst:
            raise wrong(call, "stretch_ms", f"worst_ms of {worst:g} at most, of which it is a part", stretch)
        tenant = live.join(name, _qos(call, qos).core(self._device), worst * 1e3)
        work = Work(_core.Work.open(tenant, worst * 1e3, (stretch or worst) * 1e3, share), tenant, name)
        with self._lock:
            self._models[name] = work
        return work

    def submit(self, *launches, qos, worst_ms, stretch_ms=None, name=None) -> Future:
        """Work.run() of a place that is there as long as it takes, on a thread of its own: a Future of what the launches gave. name: None is "work", with a number behind it
        where a tenant has that. Errors, at once: work()'s."""
        name = _free("work", self._live.rows()) if name is None else name
        work, told = self.work(name, qos=qos, worst_ms=worst_ms, stretch_ms=stretch_ms), Future()

        def run():
            try:
                with work:
                    done = work.run(*launches)
            except BaseException as e:  # noqa: BLE001 - whoever asks for the result gets it
                told.set_exception(e)
            else:
                told.set_result(done)

        threading.Thread(target=run, name=f"vivace-{name}", daemon=True).start()
        return told

    def set(self, model, qos) -> None:
        """Other demands of a tenant from here on, by the test that load_model() makes: period, deadline, shares, weight. Guaranteed or not it stays, and so does stretch_ms: its
        gates are placed at load. model: what load_model() gave, or its name.
        Errors: FailedPreconditionError where it would not fit, and nothing changed; InvalidArgumentError; NotFoundError."""
        self._tenant("set", model).set(_qos("set", qos).core(self._device))

    def pause(self, model) -> None:
        """Until resume() it stands back at its next gate, its answers with it; of a guaranteed tenant predict() raises FailedPreconditionError. What it was promised stays
        promised. Errors: NotFoundError."""
        self._tenant("pause", model).pause(True)

    def resume(self, model) -> None:
        """Of a tenant that pause() stopped. Twice is fine. Errors: NotFoundError."""
        self._tenant("resume", model).pause(False)

    def _tenant(self, call, model):
        self._live.now()
        if isinstance(model, str):
            with self._lock:
                model = self._models.get(name := model)
            if model is None or model.tenant is None:
                raise NotFoundError(f"{call}: there is no tenant {name}; there are {', '.join(self._live.rows()) or 'none'}")
        if (tenant := getattr(model, "tenant", None)) is None:
            raise wrong(call, "model", "a model that this scheduler's load_model() gave, or its name", model)
        return tenant

    def _note_times(self) -> None:
        """Keeps times that have grown since they were."""
        rows = self._live.rows()
        with self._lock:
            grown = [(path, row["wcet_us"], row["bound_us"]) for name, path in self._timed.items() if (row := rows.get(name)) and row["wcet_us"] > self._times.get(path, (0, 0))[0]]
            self._times |= {path: times for path, *times in grown}
        for path, worst, bound in grown:
            _keep_times(path, self._device, worst, bound)

    def stats(self) -> dict:
        """{tenant: counts, times and histograms}; docs/scheduling.md has the names. Microseconds of the device's clock, on the CPU of the wall's."""
        live = self._live
        up = max(1.0, live.now()["up_us"])
        out = {}
        for name, row in live.rows().items():
            qos = row.pop("qos")
            row |= {"class": qos["cls"], "share": row["device_us"] / up, "bytes": qos["bytes"]}
            if qos["cls"] == "guaranteed":
                deadline = qos["deadline_us"] or qos["period_us"]
                row |= {"period_us": qos["period_us"], "deadline_us": deadline, "slack_us": deadline - max(row["response_us"]["max"], row["wcet_us"])}
            for histogram in ("wait_us", "response_us"):
                row[histogram] = {k: v for k, v in row[histogram].items() if k != "below"}
            out[name] = row
        return out

    def report(self) -> dict:
        """Of the whole: device, healthy (False while a call is lost), utilisation that is promised, calls that wait, time for which others stood back."""
        return self._live.now()

    def metrics(self) -> str:
        """stats() in Prometheus's text form."""
        from vivace.schedule_metrics import text

        return text(self._live.now(), self._live.rows())

    def trace(self, seconds=None) -> list[tuple]:
        """(tenant, kind, at, length) of what happened of late, or within the last `seconds`, us of time.monotonic(): "wait" and "call" of guaranteed tenants, "step" of others and what
        of it they "stand_back". Errors: InvalidArgumentError."""
        return self._live.timeline(0.0 if seconds is None else 1e6 * (time.monotonic() - one("trace", "seconds", positive, seconds)))

    def save_trace(self, path) -> None:
        """trace() as a file: NAME.json, which Perfetto opens, NAME.svg or NAME.html."""
        from vivace import schedule_trace

        schedule_trace.write(self.trace(), one("save_trace", "path", path_text, path))

    def publish(self, every=1.0) -> None:
        """From now on `vivace top` of the same user sees it: a file that is written every so many seconds."""
        from vivace.schedule_top import Publisher

        every = one("publish", "every", positive, every)
        self._live.now()
        if self._publisher is None:
            self._publisher = Publisher(lambda: {"now": self.report(), "tenants": self.stats(), "pool": _core.pool_stats(self._device), "streams": _core.stream_stats()}, every)

    def close(self) -> None:
        """Closes its models, whose answers end with ClosedError, and lets nobody wait. Twice is fine."""
        if (publisher := self._publisher) is not None:
            self._publisher = None
            publisher.close()
        if self._core is not None:
            self._note_times()
        core, self._core = self._core, None
        if core is None:
            return
        core.close()
        for model in list(self._models.values()):
            model.close()


def _qos(call: str, qos) -> Qos:
    if not isinstance(qos, Qos):
        raise wrong(call, "qos", "vivace.guaranteed(hz=...), vivace.burstable(...) or vivace.best_effort()", qos)
    if qos.cls not in ("guaranteed", "burstable", "best_effort"):
        raise wrong(call, "qos", "a class of guaranteed, burstable or best_effort", qos.cls)
    return qos


def _from_core(core: dict) -> Qos:
    ms = lambda us: us / 1e3 if us else None  # noqa: E731
    return Qos(core["cls"], hz=1e6 / core["period_us"] if core["period_us"] else None, deadline_ms=ms(core["deadline_us"]), min_share=core["min_share"], weight=core["weight"], blocking_ms=ms(core["blocking_us"]),
               overrun="hold" if core["hold"] else "release", queue=core["queue"], bytes=core["bytes"])


def _times_entry(path: str, device: str) -> tuple[Cache, str] | None:
    """Where times of these files on this chip are kept; None where there are no such files."""
    from vivace.model import resolve

    try:
        where = Path(resolve(path)).resolve()
        parts = sorted(where.iterdir()) if where.is_dir() else [where]
        seen = [(str(p), s.st_size, s.st_mtime_ns) for p in parts if (s := p.stat())]
    except (Error, OSError):
        return None
    if device == "cpu":
        chip = [os.cpu_count(), platform.processor()]
    else:
        from vivace.device import info, state

        number = int(device.split(":")[1])
        chip = [str(info(number)), str(state(number)["driver"])]
    key = hashlib.sha256(json.dumps([_core.__version__, device, chip, seen]).encode()).hexdigest()
    return Cache(cache_dir() / "schedule"), f"times-{key}.json"


def _keep_times(path: str, device: str, worst_us: float, stretch_us: float) -> None:
    if (entry := _times_entry(path, device)) is not None:
        entry[0].write(entry[1], json.dumps({"path": path, "device": device, "worst_us": worst_us, "stretch_us": stretch_us}).encode())


def _kept_times(path: str, device: str) -> tuple[float, float] | None:
    if (entry := _times_entry(path, device)) is None or (body := entry[0].read(entry[1])) is None:
        return None
    try:
        kept = json.loads(body)
        return positive(kept["worst_us"]), positive(kept["stretch_us"])
    except (ValueError, KeyError, TypeError, RecursionError, Bad):
        return None


def _free(name: str, taken) -> str:
    """`name`, or with a number behind it where a tenant has it: a second one of the same file."""
    n, free = 2, name
    while free in taken:
        n, free = n + 1, f"{name}-{n}"
    return free
