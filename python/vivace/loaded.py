"""What every loaded model is: open until it is closed."""
from __future__ import annotations

import contextlib

from vivace.errors import ClosedError, Error


class Loaded:
    """A model of the core and the path it came from; vivace.Model."""

    _kind = "model"
    tenant = None  # its place at a scheduler, where it has one

    def __init__(self, path: str, core):
        self._path, self._core = path, core

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self) -> None:
        """Frees its memory. Later calls raise ClosedError; closing twice is fine."""
        self._go_on()
        self._core = self.tenant = None

    def _go_on(self) -> None:
        """Of a tenant that is paused: what it has begun must end before it goes."""
        if self.tenant is not None:
            with contextlib.suppress(Error):
                self.tenant.pause(False)

    @property
    def _live(self):
        if self._core is None:
            raise ClosedError(f"this {self._kind} was closed; load it again")
        return self._core
