"""A process of its own for what a hostile file makes this one do: its time, memory and output are bounded whatever it does."""
from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

from vivace.errors import CorruptDataError, LimitExceededError, UnsupportedError

WAIT_SECONDS = 60.0  # by the clock, for anything
START_SECONDS = 20.0  # of the processor, to get ready
MAX_ANSWER_BYTES = 256 << 20

_all: weakref.WeakSet = weakref.WeakSet()
atexit.register(lambda: [p.stop() for p in list(_all)])


class BoundedProcess:
    """Runs `script` of this package and asks it: a line of JSON for a line of JSON. It is started with the first question and
    stays; one that overstepped is replaced. Waiting for it holds no lock of the interpreter, and Ctrl-C ends the wait."""

    def __init__(self, script: str, what: str, memory: int, file=None):
        """`what` begins its errors, `memory`: bytes of address space, `file`: an open file that it reads first."""
        self.script, self.what, self.memory, self.file = Path(__file__).with_name(script), what, memory, file
        self.lock, self.process, self.ready, self.seconds = threading.Lock(), None, False, 0.0
        _all.add(self)

    def start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.stop()
        if not sys.executable:
            raise UnsupportedError(f"{self.what}: this interpreter has no executable to start a process with; pass token ids")
        number = [self.file.fileno()] if self.file is not None else []
        self.process = subprocess.Popen([sys.executable, "-I", str(self.script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=number)
        os.set_blocking(self.process.stdout.fileno(), False)
        os.set_blocking(self.process.stdin.fileno(), False)
        self.ready = False  # until it answers this line
        os.write(self.process.stdin.fileno(), json.dumps([sys.path, self.memory, START_SECONDS, *number]).encode() + b"\n")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None

    def __del__(self):
        if getattr(self, "process", None) is not None:
            self.stop()

    def warm(self) -> None:
        """Starts the process ahead of the first question; it gets ready while the caller goes on."""
        with self.lock:
            self.start()

    def ask(self, request: dict, seconds: float) -> dict:
        """Its answer, for which it may take `seconds` of the processor: a busy machine is no reason to refuse."""
        with self.lock:
            try:
                self.start()
                self.seconds = seconds
                if not self.ready:
                    self.seconds = START_SECONDS
                    first = json.loads(self._exchange(b""))
                    if "error" in first:
                        raise CorruptDataError(f"{self.what}: {first['error']}")
                    self.ready, self.seconds = True, seconds
                return json.loads(self._exchange(json.dumps({**request, "seconds": seconds}).encode() + b"\n"))
            except BaseException:
                self.stop()  # whatever interrupted this, the next answer must not be the late one
                raise

    def _end(self) -> LimitExceededError:
        """Why the process is no more."""
        if self.process.wait(WAIT_SECONDS) == -signal.SIGPROF:
            return LimitExceededError(f"{self.what}: it took more than {self.seconds:g} seconds")
        return LimitExceededError(f"{self.what}: it ended the process that it has to itself, by its depth or its memory")

    def _exchange(self, out: bytes) -> bytes:
        """Writes `out` and reads one line."""
        pipes, got, deadline = self.process, bytearray(), time.monotonic() + WAIT_SECONDS
        with selectors.DefaultSelector() as ready:
            if out:
                ready.register(pipes.stdin, selectors.EVENT_WRITE)
            ready.register(pipes.stdout, selectors.EVENT_READ)
            while out or not got.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise LimitExceededError(f"{self.what}: no answer within {WAIT_SECONDS:g} seconds")
                for key, _ in ready.select(left):
                    if key.fileobj is pipes.stdout:
                        block = os.read(pipes.stdout.fileno(), 1 << 16)
                        if not block:
                            raise self._end()
                        got += block
                        if len(got) > MAX_ANSWER_BYTES:
                            raise LimitExceededError(f"{self.what}: an answer of more than {MAX_ANSWER_BYTES} bytes")
                    else:
                        try:
                            out = out[os.write(pipes.stdin.fileno(), out):]
                        except BrokenPipeError:
                            raise self._end() from None
                        if not out:
                            ready.unregister(pipes.stdin)
        return bytes(got)
