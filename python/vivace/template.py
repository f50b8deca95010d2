"""Chat templates. A template is a program that comes with a file, so it runs in a process of its own, with jinja2's
sandbox inside: what it may take of time, memory, depth and output is bounded whatever it does."""
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
from pathlib import Path

from vivace.errors import CorruptDataError, InvalidArgumentError, LimitExceededError, UnsupportedError

MAX_TEMPLATE_CHARS = 64 << 10
MAX_RENDERED_CHARS = 4 << 20
MAX_SECONDS = 2.0  # of the processor: a busy machine is no reason to refuse
WAIT_SECONDS = 60.0  # by the clock, for anything
MAX_BYTES = 512 << 20  # of address space, Python itself included


class _Worker:
    """The process. It is started with the first template and stays; one that overstepped is replaced."""

    def __init__(self):
        self.lock, self.process, self.ready = threading.Lock(), None, False
        atexit.register(self.stop)

    def start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        if not sys.executable:
            raise UnsupportedError("chat template: this interpreter has no executable to start a process with; pass token ids")
        here = Path(__file__).with_name("template_worker.py")
        self.process = subprocess.Popen([sys.executable, "-I", str(here)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        os.set_blocking(self.process.stdout.fileno(), False)
        os.set_blocking(self.process.stdin.fileno(), False)
        self.ready = False  # until it answers this line
        os.write(self.process.stdin.fileno(), json.dumps([sys.path, MAX_BYTES]).encode() + b"\n")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None

    def ask(self, request: dict) -> dict:
        with self.lock:
            self.start()
            try:
                if not self.ready:
                    self._exchange(b"")
                    self.ready = True
                return json.loads(self._exchange(json.dumps(request).encode() + b"\n"))
            except BaseException:
                self.stop()  # whatever interrupted this, the next answer must not be the late one
                raise

    def _end(self) -> LimitExceededError:
        """Why the process is no more."""
        if self.process.wait(WAIT_SECONDS) == -signal.SIGPROF:
            return LimitExceededError(f"chat template: it took more than {MAX_SECONDS:g} seconds")
        return LimitExceededError("chat template: it ended the process that renders it, by its depth or its memory")

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
                    raise LimitExceededError(f"chat template: no answer within {WAIT_SECONDS:g} seconds")
                for key, _ in ready.select(left):
                    if key.fileobj is pipes.stdout:
                        block = os.read(pipes.stdout.fileno(), 1 << 16)
                        if not block:
                            raise self._end()
                        got += block
                    else:
                        try:
                            out = out[os.write(pipes.stdin.fileno(), out):]
                        except BrokenPipeError:
                            raise self._end() from None
                        if not out:
                            ready.unregister(pipes.stdin)
        return bytes(got)


_worker = _Worker()


def warm() -> None:
    """Starts the process ahead of the first template; it gets ready while the caller goes on."""
    with _worker.lock:
        _worker.start()


def render(template: str, **values) -> str:
    """The template's text over `values` (plain data). Errors: CorruptDataError for what jinja2 refuses,
    LimitExceededError beyond a limit of this module."""
    if len(template) > MAX_TEMPLATE_CHARS:
        raise LimitExceededError(f"chat template: {len(template)} characters, at most {MAX_TEMPLATE_CHARS} are accepted")
    try:
        answer = _worker.ask({"template": template, "values": values, "most_chars": MAX_RENDERED_CHARS, "seconds": MAX_SECONDS})
    except (TypeError, ValueError) as e:  # of json.dumps
        raise InvalidArgumentError(f"messages: wanted plain data (dicts, lists, strings, numbers): {e}") from None
    if "limit" in answer:
        raise LimitExceededError(f"chat template: {answer['limit']}")
    if "error" in answer:
        raise CorruptDataError(f"chat template: {answer['error']}")
    return answer["text"]
