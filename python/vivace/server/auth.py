"""API keys: kept as hashes, compared in constant time. With keys, every route but /livez and the page wants one; without, the server listens on loopback alone."""
from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass
from pathlib import Path

from vivace.errors import InvalidArgumentError

PRIORITIES = ("robot", "interactive", "batch")
MIN_CHARS, MAX_CHARS, MAX_KEYS = 8, 512, 1024


@dataclass(frozen=True)
class Identity:
    """Whom a request is from. `name` may be logged; it says nothing about the key. `salt` is of the key and of this process: requests of
    one never find what was computed for another. `priority`: the first of PRIORITIES that it may ask for."""

    name: str
    salt: str = ""
    priority: str = "robot"


class Keys:
    def __init__(self, keys=()):
        self._secret = os.urandom(32)  # hashes of this process say nothing to others
        keys = [(key, "interactive") if isinstance(key, str) else key for key in keys]
        for key, _ in keys:
            if not MIN_CHARS <= len(key) <= MAX_CHARS or not key.isascii() or not key.isprintable() or " " in key:
                raise InvalidArgumentError(f"api key: wanted {MIN_CHARS} to {MAX_CHARS} printable ASCII characters without spaces, got {len(key)} characters")
        if len(set(keys)) > MAX_KEYS:
            raise InvalidArgumentError(f"api keys: {len(set(keys))}, at most {MAX_KEYS}")
        self._known = [(digest := self._hash(k.encode()), Identity(f"key{n}", self._hash(b"salt" + digest).hex(), priority)) for n, (k, priority) in enumerate(dict(keys).items())]

    def __bool__(self):
        return bool(self._known)

    def _hash(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=32).digest()

    def identify(self, headers: list[tuple[bytes, bytes]]) -> Identity | None:
        """Who asks, by `Authorization: Bearer KEY` or `x-api-key: KEY`; None for nobody that is known."""
        if not self._known:
            return Identity("local")
        given = []
        for name, value in headers:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                given.append(value[7:].strip())
            elif name == b"x-api-key":
                given.append(value.strip())
        found = None
        for key in given[:2]:
            digest = self._hash(key[:MAX_CHARS + 1])
            for known, identity in self._known:  # all of them, whichever matches
                if hmac.compare_digest(known, digest):
                    found = identity
        return found


def read_keys(option: list[str], file: str | None) -> list[tuple[str, str]]:
    """Keys of --api-key, of --api-key-file (one a line, behind it the first class that it may ask for; # begins a comment) and of
    VIVACE_API_KEY, each with that class."""
    keys = [(key, "interactive") for key in option]
    if file is not None:
        mode = os.stat(file).st_mode
        if mode & 0o077:
            raise InvalidArgumentError(f"{file}: mode {mode & 0o777:o}, others can read the keys; chmod 600 {file}")
        lines = (line.strip() for line in Path(file).read_text().splitlines())
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise InvalidArgumentError(f"{file}: no key in it; one a line is wanted")
        for number, line in enumerate(found, 1):
            key, _, priority = line.partition(" ")
            if (priority := priority.strip() or "interactive") not in PRIORITIES:
                raise InvalidArgumentError(f"{file}: key {number}: wanted one of {', '.join(PRIORITIES)} behind the key, or nothing")
            keys.append((key, priority))
    if os.environ.get("VIVACE_API_KEY"):
        keys.append((os.environ["VIVACE_API_KEY"], "interactive"))
    return keys
