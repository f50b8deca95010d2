"""A tokenizer.json whose rules nobody has vouched for: it is built and used in a process of its own."""
from __future__ import annotations

import tempfile
import threading

from vivace.bounded import BoundedProcess
from vivace.errors import CorruptDataError, LimitExceededError
from vivace.tokenizer_pair import MAX_IDS_A_CHAR, MAX_IDS_MORE

MAX_BYTES, BYTES_A_BYTE = 512 << 20, 32  # of address space: Python and the library; a byte of the file
SECONDS, SECONDS_A_CHAR = 2.0, 20e-6  # of the processor, a call
PENDING = 64  # tokens of a stream whose text is not final


class BoundedTokenizer:
    """What Pair and the library's Tokenizer have, for a file's bytes. Threads may share one. Errors: CorruptDataError,
    LimitExceededError."""

    def __init__(self, source: bytes, what: str, why: str):
        """`why`: what is unusual."""
        self._file, self.why, self._control, self._lock = tempfile.TemporaryFile(), why, None, threading.Lock()
        self._file.write(source)
        self._file.flush()
        self._process = BoundedProcess("tokenizer_worker.py", what, MAX_BYTES + BYTES_A_BYTE * len(source), self._file)
        self.get_vocab_size()  # it is read now, and refused now

    def _ask(self, call: str, *args, most: int = 1 << 20, chars: int = 0):
        request, seconds = {"call": call, "args": args, "most": most}, SECONDS + SECONDS_A_CHAR * chars
        with self._lock:
            answer = self._process.ask(request, seconds)
            if "closed" in answer:
                self._process.ask({"call": "open", "args": [self._control], "most": 0}, SECONDS)
                answer = self._process.ask(request, seconds)
        for key, error in (("limit", LimitExceededError), ("error", CorruptDataError)):
            if key in answer:
                raise error(f"{self._process.what}: {answer[key]}")
        return answer["value"]

    def notes(self) -> list[str]:
        return [f"{self.why}: it runs in a process of its own", *self._ask("notes")]

    def added(self) -> list:
        return self._ask("added")

    def unknown(self) -> list[int]:
        return self._ask("unknown")

    def open(self, control) -> None:
        self._control = list(control)
        self._ask("open", self._control)

    def encode(self, how: str, text: str):
        ids, offsets = self._ask("encode", how, text, most=MAX_IDS_A_CHAR * len(text) + MAX_IDS_MORE, chars=len(text))
        return ids, [(a, b) for a, b in offsets]

    def decode(self, ids) -> str:
        return self._ask("decode", list(ids), most=4 << 20, chars=8 * len(ids))

    def stream(self):
        """As Pair's: the text of the tokens from `first` on, of which that up to `final` was given."""
        ids, first, final = [], 0, 0

        def step(token) -> str:
            nonlocal first, final
            ids.append(token)
            before, now = self.decode(ids[first:final]) if final > first else "", self.decode(ids[first:])
            if len(now) <= len(before) or (now.endswith("\ufffd") and len(ids) - final < PENDING):
                return ""
            first, final = final, len(ids)
            return now[len(before):]

        return step

    def get_vocab_size(self) -> int:
        return self._ask("get_vocab_size")

    def id_to_token(self, token: int) -> str | None:
        return self._ask("id_to_token", token)

    def token_to_id(self, name: str) -> int | None:
        return self._ask("token_to_id", name)

    def save(self, path: str) -> None:
        self._file.seek(0)
        with open(path, "wb") as f:
            f.write(self._file.read())
