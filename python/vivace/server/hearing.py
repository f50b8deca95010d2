"""A server of speech alone: what the routes ask of an engine where there is no language model."""
from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from vivace.server.engine import PREPARING
from vivace.server.errors import ApiError
from vivace.server.limits import Limits


class Hearing:
    """As Engine, of which it has what is no language model's."""

    model = text = None

    def __init__(self, speech, limits: Limits, *, metrics):
        self.speech, self.limits, self.metrics, self.name = speech, limits, metrics, speech.name
        self.created, self.streams, self.draining, self.scheduler = int(time.time()), 0, False, None
        self._pool = ThreadPoolExecutor(PREPARING, "vivace-prepare")

    async def prepare(self, work: Callable, *args):
        """work(*args) on a thread of the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    def cancel_all(self, cause: str) -> None:
        self.speech.leave = True

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


async def nothing_says(call, engine) -> None:
    """Of the routes of language models."""
    raise ApiError(404, f"no language model is served here: {engine.name!r} hears, at /v1/audio/transcriptions, /v1/audio/translations and /v1/realtime; vivace serve MODEL --speech {engine.name} serves both",
                   code="model_not_found")
