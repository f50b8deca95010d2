"""`vivace verify`: what a precision plan costs in accuracy, against another plan of the same checkpoint.

    vivace verify --model folder/ --precision fp8_static [--against bf16] [--text FILE]

Both plans take the same token ids. Step by step along the residual stream: the relative error after each product that
joins it. At the end: the error of the logits, all of them and the median row's (a few rows may err most: it varies least), the divergence of
the distributions, how often both prefer the same token, and the perplexities of the text with their difference.
"""
from __future__ import annotations

import math

import numpy as np

from vivace import calibrate
from vivace.errors import InvalidArgumentError
from vivace.model import load_model, resolve

# Outputs that are the residual stream, or join it in the next norm.
_STREAM = {("embedding", "out"), ("gemm", "out"), ("gemm_rms_rows", "out"), ("moe_combine", "out"), ("norm", "residual")}
ROWS = 32  # of a step: one class of rows in both plans


def verify(path_or_name, *, precision: str, against: str = "bf16", prompts=None, device: str = "auto", context: int = 0, random_weights: bool = False, **options) -> dict:
    """`prompts`: texts or lists of token ids; None: those of vivace.calibrate, or spread ids for random weights. A prompt longer
    than the context is cut. `options` go to load_model for `precision`. Returns {"layers": [{"op", "place", "error"}], "logits_error", "row_error", "max_error",
    "divergence", "same_choice", "perplexity", "perplexity_against", "perplexity_change", "tokens"}."""
    path = resolve(path_or_name)
    load = lambda plan, **more: load_model(path, device=device, precision=plan, context=context, max_batch=ROWS, chunk=ROWS, random_weights=random_weights, **more)  # noqa: E731
    with load(against) as model:
        ids = _ids(path, prompts, model.report(), random_weights)
        reference = [_run(model._live, one, model.report()["hidden"]) for one in ids]
    with load(precision, **options) as model:
        tested = [_run(model._live, one, model.report()["hidden"]) for one in ids]
    layers = [{"op": op, "place": place, "error": _relative(b, a)}
              for place, ((op, a), (_, b)) in enumerate(zip(_joined(r[0] for r in reference), _joined(t[0] for t in tested), strict=True))]
    a, b = (np.concatenate([r[1] for r in runs]) for runs in (reference, tested))
    log_a, log_b = _log_softmax(a), _log_softmax(b)
    targets = np.concatenate([np.array([*one[1:], -1]) for one in ids])
    said = targets >= 0  # the last token of a prompt has no successor
    perplexity = [float(np.exp(-np.mean(log[said, targets[said]]))) for log in (log_b, log_a)]
    return {"precision": precision, "against": against, "tokens": int(len(targets)), "layers": layers, "logits_error": _relative(b, a),
            "row_error": float(np.median([_relative(y, x) for x, y in zip(a, b)])), "max_error": float(np.abs(b - a).max()),
            "divergence": float(np.mean(np.sum(np.exp(log_a) * (log_a - log_b), axis=1))), "same_choice": float(np.mean(a.argmax(1) == b.argmax(1))),
            "perplexity": perplexity[0], "perplexity_against": perplexity[1], "perplexity_change": perplexity[0] / perplexity[1] - 1}


def _ids(path, prompts, report, random_weights) -> list[list[int]]:
    if prompts is not None and not list(prompts):
        raise InvalidArgumentError("verify: no prompt: nothing to compare")
    if prompts is None and random_weights:
        return [[(i * 7919 + 13) % report["vocab"] for i in range(min(96, report["context"]))]]
    limits = {"vocab": report["vocab"], "context": report["context"]}
    ids = [calibrate._ids(path, p, limits)[: limits["context"]] for p in prompts or calibrate.PROMPTS]
    if any(len(one) < 2 for one in ids):
        raise InvalidArgumentError("verify: a prompt of fewer than two tokens has nothing to predict")
    return ids


def _run(core, ids, hidden) -> tuple[list, np.ndarray]:
    """The residual stream's values [(op, rows)] and the logits of all rows."""
    core.start(0)
    stream, logits = [], []
    for at in range(0, len(ids), ROWS):
        piece = ids[at:at + ROWS]
        seen = core.observe([(t, at + i, 0, True) for i, t in enumerate(piece)])
        whole = [*seen[0][3], hidden]  # the embedding's; queries alone may be as wide, but lie beside keys, and experts gather more rows
        values = [(op, np.frombuffer(raw, np.float32).reshape(shape)[:len(piece)]) for op, port, raw, shape, stride in seen if (op, port) in _STREAM and [*shape, stride] == whole]
        stream.append(values)
        raw, rows, vocab = core.logits()
        logits.append(np.frombuffer(raw, np.float32).reshape(rows, vocab)[:len(piece)].astype(np.float64))
    return [(pieces[0][0], np.concatenate([v for _, v in pieces])) for pieces in zip(*stream)], np.concatenate(logits)


def _joined(runs) -> list:
    return [(values[0][0], np.concatenate([v for _, v in values])) for values in zip(*runs)]


def _relative(got, want) -> float:
    size = float(np.linalg.norm(want.astype(np.float64)))
    return float(np.linalg.norm(got.astype(np.float64) - want)) / size if size else math.inf if np.any(got) else 0.0


def _log_softmax(x) -> np.ndarray:
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))
