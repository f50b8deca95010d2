"""Who uses a model's buffers next: threads in the order in which they asked. A long transcription gives its turn away between windows."""
from __future__ import annotations

import threading
from collections import deque


class Turn:
    """A lock whose waiters get it in the order in which they came."""

    def __init__(self):
        self._guard, self._waiting, self._held = threading.Lock(), deque(), False

    def __enter__(self):
        with self._guard:
            if not self._held:
                self._held = True
                return self
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        try:
            gate.acquire()
        except BaseException:  # Ctrl-C while it waited
            with self._guard:
                mine = gate not in self._waiting
                if not mine:
                    self._waiting.remove(gate)
            if mine:
                self.__exit__()
            raise
        return self

    def __exit__(self, *exc):
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()  # it stays held, by another
            else:
                self._held = False
