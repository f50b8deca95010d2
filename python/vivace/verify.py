"""`vivace verify`: what a precision plan costs in accuracy, against another plan of the same checkpoint.

    vivace verify --model folder/ --precision fp8_static [--against bf16] [--text FILE] [--context N]

Both plans take the same token ids. Step by step along the residual stream: the relative error after each product that
joins it. At the end: the error of the logits, all of them and the median row's (a few rows may err most: it varies least), the divergence of
the distributions, how often both prefer the same token, and the perplexities of the text with their difference.

One model is loaded at a time. What the first one computed lies in an unnamed temporary file until the second one has
computed the same rows, so memory holds a model and one step's values, however long the text is.
"""
from __future__ import annotations

import math
import tempfile

import numpy as np

from vivace import _core, calibrate
from vivace.errors import InvalidArgumentError, IoError, LimitExceededError, UnsupportedError
from vivace.model import load_model, resolve

# Outputs that are the residual stream, or join it in the next norm.
_STREAM = [("embedding", "out"), ("gemm", "out"), ("gemm_rms_rows", "out"), ("moe_combine", "out"), ("norm", "residual")]
ROWS = 32  # of a step: one class of rows in both plans
MOST_POSITIONS = 512  # of the context, unless more are asked for
SPREAD = 96  # tokens for random weights


def verify(path_or_name, *, precision: str, against: str = "bf16", prompts=None, device: str = "auto", context: int = 0, random_weights: bool = False, **options) -> dict:
    """`prompts`: texts or lists of token ids; None: those of vivace.calibrate, or spread ids for random weights. A prompt longer
    than the context is cut, and "cut" says by how many tokens in all. context: positions, 0 = as many as the longest prompt has,
    at most 512 (memory holds 32 sequences of them). `options` go to load_model for `precision`. Returns {"layers": [{"op", "place", "error"}],
    "logits_error", "row_error", "max_error", "divergence", "same_choice", "perplexity", "perplexity_against", "perplexity_change", "tokens", "cut", "context"}."""
    if prompts is not None and not (prompts := list(prompts)):
        raise InvalidArgumentError("verify: no prompt: nothing to compare")
    for plan, head in ((precision, options.get("lm_head_dtype", "auto")), (against, "auto")):
        _core.check_plan(plan, head, device == "cpu")
    path = resolve(path_or_name)
    given = None if prompts is None and random_weights else [calibrate._ids(path, p, {}) for p in prompts or calibrate.PROMPTS]
    if any(len(one) < 2 for one in given or ()):
        raise InvalidArgumentError("verify: a prompt of fewer than two tokens has nothing to predict")
    longest = max(map(len, given)) if given else SPREAD
    load = lambda plan, at_most, **more: load_model(path, device=device, precision=plan, context=at_most, max_batch=ROWS, prefill_chunk=ROWS, random_weights=random_weights, **more)  # noqa: E731
    with tempfile.TemporaryFile() as kept:
        # The plan in question first: what it does not take is said before any work.
        with _of_length(load, context or min(longest, MOST_POSITIONS), bool(context), precision, options) as model:
            report = model.report()
            ids = [one[:report["context"]] for one in given] if given else [[(i * 7919 + 13) % report["vocab"] for i in range(min(SPREAD, report["context"]))]]
            tested = _Kept(kept)
            for values in _steps(model._live, ids, report["hidden"]):
                tested.put(values)
        with load(against, report["context"]) as model:
            errors = _Errors([op for op, _ in tested.first], ids)
            for (stream, logits), (stream_b, logits_b) in zip(_steps(model._live, ids, report["hidden"]), tested.all(), strict=True):
                errors.add(stream, stream_b, logits, logits_b, f"{against} against {precision}")
    return {"precision": precision, "against": against, **errors.result(), "cut": sum(map(len, given)) - sum(map(len, ids)) if given else 0, "context": report["context"]}


def _of_length(load, positions, exactly, precision, options):
    """The model with a context of so many positions or, unless `exactly` so many are wanted, as many as it was trained for."""
    try:
        return load(precision, positions, **options)
    except LimitExceededError:
        if exactly:
            raise
        return load(precision, 0, **options)


def _steps(core, ids, hidden):
    """Step by step through all prompts: the residual stream's values [(op, rows)] and the logits of the step's rows."""
    for one in ids:
        core.start(0)
        for at in range(0, len(one), ROWS):
            piece = one[at:at + ROWS]
            seen = core.observe([(t, at + i, 0, True) for i, t in enumerate(piece)], _STREAM)
            whole = [*seen[0][3], hidden]  # the embedding's; queries alone may be as wide, but lie beside keys, and experts gather more rows
            stream = [(op, np.frombuffer(raw, np.float32).reshape(shape)[:len(piece)]) for op, _, raw, shape, stride in seen if [*shape, stride] == whole]
            raw, rows, vocab = core.logits()
            yield stream, np.frombuffer(raw, np.float32).reshape(rows, vocab)[:len(piece)]


class _Kept:
    """Steps of one model in a file, read back in order."""

    def __init__(self, file):
        self.file, self.steps, self.first = file, [], None

    def put(self, values) -> None:
        stream, logits = values
        self.first = self.first or stream
        try:
            for _, rows in [*stream, (None, logits)]:
                self.file.write(rows.data)
        except OSError as e:
            raise IoError(f"{tempfile.gettempdir()}: {e.strerror}: the first plan's values are kept there until the second has its own; give a shorter text or a smaller --context, or set TMPDIR") from e
        self.steps.append(([(op, rows.shape) for op, rows in stream], logits.shape))

    def all(self):
        self.file.seek(0)
        take = lambda shape: np.frombuffer(self.file.read(4 * math.prod(shape)), np.float32).reshape(shape)  # noqa: E731
        for stream, logits in self.steps:
            yield [(op, take(shape)) for op, shape in stream], take(logits)


class _Errors:
    """Sums over rows, from which the figures are made at the end. a: the plan that is compared with, b: the one in question."""

    def __init__(self, ops, ids):
        self.ops, self.targets = ops, [t for one in ids for t in [*one[1:], None]]  # the last token of a prompt has no successor
        self.layers = [[0.0, 0.0] for _ in ops]  # squares of differences, of a
        self.logits, self.rows, self.largest = [0.0, 0.0], [], 0.0
        self.divergence, self.same, self.said = 0.0, 0, [[], []]

    def add(self, stream, stream_b, logits, logits_b, plans) -> None:
        if len(stream) != len(self.layers) or len(stream_b) != len(self.layers):
            raise UnsupportedError(f"verify: {plans}: their steps join the residual stream at {len(stream)} and {len(stream_b)} places; plans with different places cannot be compared")
        for sums, (_, a), (_, b) in zip(self.layers, stream, stream_b):
            _add_squares(sums, a, b)
        for a, b in zip(logits, logits_b):
            row = [0.0, 0.0]
            _add_squares(row, a, b)
            self.rows.append(_relative(row))
            self.logits = [x + y for x, y in zip(self.logits, row)]
            self.same += int(a.argmax() == b.argmax())
            a, b = a.astype(np.float64), b.astype(np.float64)
            self.largest = max(self.largest, float(np.abs(b - a).max()))
            log_a, log_b = _log_softmax(a), _log_softmax(b)
            self.divergence += float(np.sum(np.exp(log_a) * (log_a - log_b)))
            if (target := self.targets[len(self.rows) - 1]) is not None:
                self.said[0].append(log_a[target])
                self.said[1].append(log_b[target])

    def result(self) -> dict:
        count = len(self.rows)
        against, tested = (float(np.exp(-np.mean(said))) for said in self.said)
        return {"tokens": count, "layers": [{"op": op, "place": place, "error": _relative(sums)} for place, (op, sums) in enumerate(zip(self.ops, self.layers))],
                "logits_error": _relative(self.logits), "row_error": float(np.median(self.rows)), "max_error": self.largest,
                "divergence": self.divergence / count, "same_choice": self.same / count,
                "perplexity": tested, "perplexity_against": against, "perplexity_change": tested / against - 1}


def _add_squares(sums, a, b) -> None:
    a, b = a.astype(np.float64), b.astype(np.float64)
    sums[0] += float(np.sum((b - a) ** 2))
    sums[1] += float(np.sum(a ** 2))


def _relative(sums) -> float:
    difference, size = sums
    return math.sqrt(difference / size) if size else math.inf if difference else 0.0


def _log_softmax(x) -> np.ndarray:
    x = x - x.max()
    return x - np.log(np.exp(x).sum())
