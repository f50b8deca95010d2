"""What outlives its request: responses that later ones go on from, and capsules of them. All of it bounded, in memory, and its owner's alone."""
from __future__ import annotations

import os
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from vivace.server.errors import ApiError, busy
from vivace.server.limits import Limits
from vivace.server.schema import Message


@dataclass
class Talk:
    """A conversation up to an answer. `owner`: the identity's name; `salt`: under which its keys and values are found."""

    ident: str
    owner: str
    salt: str
    messages: list[Message]
    body: dict = field(default_factory=dict)  # as its route gave it
    capsule: object = None
    created: float = field(default_factory=time.time)


def missing(ident: str, what: str, param: str | None = None) -> ApiError:
    return ApiError(404, f"{what} {ident[:60]!r}: there is none, or it is gone: what is kept is bounded, in memory, and its owner's alone", code=f"{what.replace(' ', '_')}_not_found", param=param)


class Kept:
    """Of one loop."""

    def __init__(self, limits: Limits):
        self._limits, self._responses, self._capsules = limits, OrderedDict(), OrderedDict()

    def _fresh(self) -> None:
        old = time.time() - self._limits.response_s
        while self._responses and (len(self._responses) > self._limits.responses or next(iter(self._responses.values())).created < old):
            self._responses.popitem(last=False)

    def add(self, talk: Talk) -> None:
        """A response; the oldest ones go."""
        self._responses[talk.ident] = talk
        self._fresh()

    def response(self, ident: str, owner: str, param: str | None = None) -> Talk:
        """Errors: ApiError 404, also for another's."""
        self._fresh()
        found = self._responses.get(ident)
        if found is None or found.owner != owner:
            raise missing(ident, "response", param)
        return found

    def forget(self, ident: str, owner: str) -> None:
        del self._responses[self.response(ident, owner).ident]

    def previous(self, ident: str, owner: str) -> Talk:
        """A response or a capsule to go on from."""
        return self.capsule(ident, owner, "previous_response_id") if ident.startswith("cap_") else self.response(ident, owner, "previous_response_id")

    # ---- capsules -----------------------------------------------------------------------------------

    def check_room(self) -> None:
        """Errors: ApiError 429."""
        if len(self._capsules) >= self._limits.capsules or self.host_bytes >= self._limits.capsule_bytes:
            raise busy(f"{len(self._capsules)} capsules are kept, {self.host_bytes} bytes of them on the host, and no more; delete some", 1000, "capsules_full")

    @property
    def host_bytes(self) -> int:
        return sum(t.capsule.bytes for t in self._capsules.values() if t.capsule.tier == "host")

    def seal(self, talk: Talk, capsule, owner: str) -> Talk:
        """Another capsule. Errors: ApiError 429."""
        self.check_room()
        if capsule.tier == "host" and self.host_bytes + capsule.bytes > self._limits.capsule_bytes:
            raise busy(f"this capsule has {capsule.bytes} bytes, and {self.host_bytes} of at most {self._limits.capsule_bytes} are taken; delete some", 1000, "capsules_full")
        made = Talk(f"cap_{os.urandom(16).hex()}", owner, talk.salt, talk.messages, talk.body, capsule)
        self._capsules[made.ident] = made
        return made

    def capsule(self, ident: str, owner: str, param: str | None = None) -> Talk:
        found = self._capsules.get(ident)
        if found is None or found.owner != owner:
            raise missing(ident, "capsule", param)
        return found

    def capsules(self, owner: str) -> list[Talk]:
        return [t for t in self._capsules.values() if t.owner == owner]

    def drop(self, ident: str, owner: str) -> None:
        self._capsules.pop(self.capsule(ident, owner).ident).capsule.close()

    def clear(self) -> None:
        self._responses.clear()
        self._capsules.clear()
