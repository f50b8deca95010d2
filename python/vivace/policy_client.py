"""A policy host's client that waits: a question, its answer. vivace.RobotClient is for loops that must not wait.

    with vivace.PolicyClient("127.0.0.1", 8000) as policy:
        actions = policy.infer({"images": {"front": frame}, "state": joints, "prompt": "reach the red ball"})["actions"]

The wire is openpi's (docs/robots.md), so any host that speaks it will do."""
from __future__ import annotations

import threading

from vivace import _core, errors
from vivace.errors import ClosedError, CorruptDataError, InvalidArgumentError, IoError, LimitExceededError, UnsupportedError
from vivace.options import CONNECTION, checked


def _told(line: str) -> Exception:
    """The error that a host says in one line, "CODE: what"; another host's line is an Error."""
    code, colon, what = line.partition(": ")
    kind = getattr(errors, f"{code}Error", None) if colon else None
    return kind(f"policy host: {what}") if kind else errors.Error(f"policy host: {line.strip().splitlines()[-1] if line.strip() else 'an error without words'}")


class PolicyClient:
    """Connects at its first question, and anew after an error; one question at a time, from any thread. Use as a context manager or close() it.

    host, port, key: where `vivace serve-policy` (or openpi's server) listens. connect: s for a connection and the host's metadata. answer: s for an answer.
    Errors: IoError (nobody there, the link broke), LimitExceededError (too slow), InvalidArgumentError (options; the host refuses), UnsupportedError (no
    websockets package: pip install vivace[robots])."""

    def __init__(self, host="127.0.0.1", port=8000, *, key="", connect=60.0, answer=60.0):
        given = checked("PolicyClient", CONNECTION, dict(host=host, port=port, key=key, connect=connect, answer=answer))
        self._address = f"ws://{'[' + given['host'] + ']' if ':' in given['host'] else given['host']}:{given['port']}"
        self._key, self._connect, self._answer = given["key"], given["connect"], given["answer"]
        self._turn, self._link, self._closed, self._metadata = threading.Lock(), None, False, {}

    @property
    def metadata(self) -> dict:
        """What the host said first."""
        with self._turn:
            self._linked()
            return self._metadata

    def infer(self, observation: dict) -> dict:
        """Asks once: fields as docs/robots.md names them; the answer's map, `actions` [horizon, dimensions] f32 in it. Nothing is asked twice: where
        the link breaks, that question has no answer and the next one connects."""
        if not isinstance(observation, dict):
            raise InvalidArgumentError(f"infer: wanted a dict of fields, got {type(observation).__name__}")
        return self._ask(_core.pack_message(observation))

    def reset(self) -> None:
        """Tells the host that an episode begins; a host that keeps nothing between questions says yes."""
        self._ask(_core.pack_message({"endpoint": "reset"}))

    def _linked(self):
        if self._closed:
            raise ClosedError("PolicyClient: it was closed")
        if self._link is not None:
            return self._link
        try:
            from websockets.sync.client import connect
        except ImportError:
            raise UnsupportedError("PolicyClient: it needs websockets; pip install vivace[robots]") from None
        head = {"Authorization": f"Api-Key {self._key}"} if self._key else None
        link = self._guarded("connect", lambda: connect(self._address, compression=None, max_size=None, proxy=None, open_timeout=self._connect, close_timeout=1, additional_headers=head).__enter__())
        try:
            first = self._guarded("metadata", lambda: link.recv(self._connect))
            if isinstance(first, str):
                raise _told(first)
            self._metadata = _core.unpack_message(first)
            if not isinstance(self._metadata, dict):
                raise CorruptDataError("policy host: its metadata is no map")
        except BaseException:
            link.close()
            raise
        self._link = link
        return link

    def _ask(self, message: bytes) -> dict:
        with self._turn:
            link = self._linked()
            try:
                self._guarded("ask", lambda: link.send(message))
                answer = self._guarded("answer", lambda: link.recv(self._answer))
                if isinstance(answer, str):
                    raise _told(answer)
                read = _core.unpack_message(answer)
                if not isinstance(read, dict):
                    raise CorruptDataError("policy host: the answer is no map")
                return read
            except BaseException:  # whatever it was, what comes next on this link may belong to it
                self._link = None
                link.close()
                raise

    def _guarded(self, what: str, call):
        """Errors of the package, as ours."""
        from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

        try:
            return call()
        except TimeoutError:
            raise LimitExceededError(f"policy host: {what}: nothing came in time from {self._address}") from None
        except ConnectionClosed as e:
            raise IoError(f"policy host: {what}: the link ended, {e}") from None
        except InvalidStatus as e:
            raise IoError(f"policy host: {what}: it answered {e.response.status_code}, {self._address}") from None
        except (OSError, WebSocketException, ValueError) as e:
            raise IoError(f"policy host: {what}: {e}, {self._address}") from None

    def close(self) -> None:
        with self._turn:
            self._closed, link, self._link = True, self._link, None
            if link is not None:
                link.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
