"""The one loop that runs a speech model: windows, steps and alignments that transcriptions, streams and others want at the same time are computed together."""
from __future__ import annotations

import queue
import threading
from collections import deque
from typing import NamedTuple


class Window(NamedTuple):
    """Sound that is to be encoded: frames [first, first + frames) of samples."""

    samples: object
    first: int
    frames: int
    peak: float


class Align(NamedTuple):
    """Where text lies in the window that a lane has."""

    lead: list
    text: list
    frames: int
    heads: list


LANGUAGES = object()  # wanted: the probabilities of the window's languages, as bytes


class Lane:
    """What one transcription or update wants, one thing after the other: a generator that yields a Window, then requests (dicts, without their window),
    Align or LANGUAGES about it, each answered as the core does; what it returns is `result`."""

    def __init__(self, steps):
        self._steps, self.window, self.wants, self.result, self.failed = steps, None, None, None, None
        self.go_on(None)

    def go_on(self, answer) -> None:
        try:
            self.wants = self._steps.send(answer)
        except StopIteration as end:
            self.wants, self.result = None, end.value
        except BaseException as e:
            self.fail(e)  # its own run() raises it; others go on
            if not isinstance(e, Exception):  # Ctrl-C is the driver's own too
                raise
        if isinstance(self.wants, Window):
            self.window = self.wants

    def fail(self, error: BaseException) -> None:
        self.wants, self.failed = None, error


class _Job:
    """Lanes of one caller, and what its thread is to do: (function, arguments) to call, or None where it should look again."""

    def __init__(self, lanes, events):
        self.lanes, self.events, self.left = lanes, events, False

    @property
    def over(self) -> bool:
        return self.left or all(lane.wants is None for lane in self.lanes) or any(lane.failed is not None for lane in self.lanes)


class Engine:
    """Runs lanes of many threads. One of the threads that wait drives for all of them until its own lanes are over, then another does. As many windows go
    together as the model was loaded for, of lanes in the order in which they came; a lane that wants another one waits behind the others. Each has the bits
    that it has alone."""

    def __init__(self, live):
        self._live = live  # gives the core, or raises that it is closed
        self._guard = threading.Lock()
        self._jobs, self._waiting, self._driver = [], deque(), None

    def run(self, lanes, events=None) -> list:
        """Results of `lanes`. `events`: a queue of (function, arguments) that this thread calls meanwhile; what one raises ends its lanes.
        Errors: those of the first lane that failed."""
        job = _Job(lanes, queue.SimpleQueue() if events is None else events)
        with self._guard:
            self._jobs.append(job)
            self._waiting.extend((job, lane) for lane in lanes if lane.wants is not None)
            self._driver = self._driver or job
        try:
            while not job.over:
                if self._driver is job:
                    self._together(self._next())
                    self._call(job)
                else:
                    self._call(job, job.events.get())
            self._call(job)
        finally:
            self._leave(job)
        for lane in lanes:
            if lane.failed is not None:
                raise lane.failed
        return [lane.result for lane in lanes]

    @staticmethod
    def _call(job, event=None) -> None:
        while event is not None or not job.events.empty():
            function, arguments = event or job.events.get() or (lambda: None, ())
            event = None
            function(*arguments)

    def _leave(self, job) -> None:
        with self._guard:
            job.left = True
            self._jobs.remove(job)
            self._waiting = deque(item for item in self._waiting if item[0] is not job)
            if self._driver is job:
                self._driver = next((j for j in self._jobs if not j.over), None)
                if self._driver is not None:
                    self._driver.events.put(None)

    def _next(self) -> list:
        """(job, lane) of the windows that are next."""
        most, out = self._live().limits()["windows"], []
        with self._guard:
            while self._waiting and len(out) < most:
                job, lane = self._waiting.popleft()
                if not job.over:
                    out.append((job, lane))
        return out

    def _together(self, batch) -> None:
        """A window of each, to where the lane wants another or nothing."""
        try:
            self._window(batch)
        except Exception as e:
            if len(batch) == 1:
                batch[0][1].fail(e)
                self._over(batch)
            for one in batch if len(batch) > 1 else ():
                self._together([one])  # whose fault it was
        except BaseException:  # Ctrl-C: another drives on
            with self._guard:
                self._waiting.extendleft((job, lane) for job, lane in reversed(batch) if not job.over and lane.wants is not None)
            raise
        else:
            with self._guard:
                self._waiting.extend((job, lane) for job, lane in batch if not job.over and lane.wants is not None)

    @staticmethod
    def _over(batch) -> None:
        """Tells the threads whose lanes are."""
        for job in {id(job): job for job, _ in batch}.values():
            if job.over:
                job.events.put(None)

    def _window(self, batch) -> None:
        core, lanes = self._live(), [lane for _, lane in batch]
        core.encode([tuple(lane.window) for lane in lanes])
        index = {id(lane): i for i, lane in enumerate(lanes)}
        for lane in lanes:
            if lane.wants is lane.window:  # else it was left in the middle of it
                lane.go_on(None)
        while asking := [lane for lane in lanes if lane.wants is not None and not isinstance(lane.wants, Window)]:
            requests = []
            for lane in asking:
                if isinstance(lane.wants, dict):
                    requests.append((lane, lane.wants | {"window": index[id(lane)]}))
                elif lane.wants is LANGUAGES:
                    self._told(lane, core.languages, index[id(lane)])
                else:
                    self._told(lane, core.align, index[id(lane)], *lane.wants)
            if requests:
                self._decode(core, requests)
            self._over(batch)
        self._over(batch)

    def _decode(self, core, requests) -> None:
        """One call for those of `requests` that fit."""
        rows, fit, most = 0, [], core.limits()["rows"]
        for lane, request in requests:
            if not fit or rows + request.get("candidates", 1) <= most:
                rows += request.get("candidates", 1)
                fit.append((lane, request))
        if len(fit) > 1:
            try:
                answers = core.decode([request for _, request in fit])
            except Exception:
                pass  # whose fault it was the calls below tell
            else:
                for (lane, _), answer in zip(fit, answers):
                    lane.go_on(answer)
                return
        for lane, request in fit:
            self._told(lane, lambda request: core.decode([request])[0], request)

    @staticmethod
    def _told(lane, ask, *arguments) -> None:
        try:
            answer = ask(*arguments)
        except Exception as e:
            lane.fail(e)
        else:
            lane.go_on(answer)
