"""Several prompts at once: model.generate_batch."""
from __future__ import annotations

import time

from vivace import _core
from vivace.answers import Answer, Stream
from vivace.errors import ClosedError, Error, LimitExceededError
from vivace.options import wrong


SCHEDULED = ("priority", "deadline", "matcher", "salt", "reuse", "deterministic", "top_logprobs")  # of a request, but nothing to check in the core


def generate_batch(model, prompts, **options) -> list[Answer]:
    """See TextModel.generate_batch. A few more than max_batch of the prompts are at the engine at once, so that its queue has
    room for other callers."""
    if isinstance(prompts, (str, bytes, bytearray, dict)) or not hasattr(prompts, "__iter__"):
        raise wrong("generate_batch", "prompts", "a list of prompts", prompts)
    most = 2 * model._live.limits()["max_batch"]
    _check_options(model, options)
    batch = _Batch(model, options)
    try:
        for prompt in prompts:
            while len(batch.open) >= most:
                batch.advance()
            batch.add(prompt)
        while batch.open:
            batch.advance()
    finally:
        for _, stream in batch.open:
            stream.close()
    return batch.answers


def _check_options(model, options) -> None:
    """Raises what no prompt could be answered with."""
    request, _ = model._prepare([0], model.text, **{k: v for k, v in options.items() if k not in ("mask", "draft", "num_speculative_tokens")})
    _core.check_request(model._live, **{k: v for k, v in request.items() if k not in SCHEDULED})


class _Batch:
    def __init__(self, model, options):
        self._model, self._options, self._start = model, options, time.perf_counter()
        self._notifier = _core.Notifier()  # rings for any of the batch
        self.answers: list[Answer] = []
        self.open: list[tuple[Answer, Stream]] = []

    def add(self, prompt) -> None:
        answer = Answer()
        self.answers.append(answer)
        try:
            ids = self._model.prompt_ids(prompt)
            answer.prompt_tokens = len(ids)
            request, facts = self._model._prepare(ids, self._model.text, **self._options)
            _core.check_request(self._model._live, **{k: v for k, v in request.items() if k not in ("draft", "num_speculative_tokens", *SCHEDULED)})
            self.open.append((answer, self._submit(request, facts)))
        except ClosedError:
            raise
        except Error as e:
            _fail(answer, e)

    def _submit(self, request, facts) -> Stream:
        while True:
            try:
                return Stream(self._model, self._model._submit(request, self._notifier), **facts)
            except LimitExceededError:  # the request is right, so the engine's queue is full: ours that are over make room
                if not self.open or "draft" in request:
                    raise
            self.advance()

    def advance(self) -> None:
        """Takes what the engine wrote, or waits for more of it."""
        seen, taken = self._notifier.now(), False
        for answer, stream in self.open:
            try:
                while (chunk := stream._next()) is not None:
                    taken = True
                    answer.add(chunk, time.perf_counter() - self._start)
                    if chunk.finish is not None:
                        answer.note(stream)
            except ClosedError:
                raise
            except Error as e:
                stream.close()
                _fail(answer, e)
        over = len(self.open)
        self.open = [(a, s) for a, s in self.open if a.finish is None]
        if not taken and len(self.open) == over:
            self.open[0][1]._request.wait_since(seen)


def _fail(answer, error) -> None:
    answer.finish, answer.error = "error", error
