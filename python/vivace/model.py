"""load_model and the typed models it returns."""
from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from vivace import _core
from vivace.errors import Error, InvalidArgumentError, NotFoundError, UnsupportedError
from vivace.loaded import Loaded


@dataclass(frozen=True)
class Chunk:
    """One step of a streamed answer. `text` may be empty while a character is incomplete."""

    text: str
    token: int | None
    logprob: float | None
    finish: str | None = None  # None, "stop", "length", "cancelled" or "nan_logits"


@dataclass
class Answer:
    """A finished answer. Times are host seconds."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None
    prompt_tokens: int = 0
    first_token_s: float | None = None  # from the call to the first token
    total_s: float = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Decode rate: tokens after the first over the time after the first."""
        if self.first_token_s is None or len(self.tokens) < 2 or self.total_s <= self.first_token_s:
            return None
        return (len(self.tokens) - 1) / (self.total_s - self.first_token_s)


def load_model(path_or_name, *, device="auto", precision="auto", partition=None, kv_dtype="auto",
               threads=0, context=0, max_batch=1, chunk=128, ahead=0, random_weights=False, logit_bias=False, kv_pages=0, resident_layers=-1,
               head="auto", invariance="class", calibration=None, percentile=100.0, config=None, **policy) -> "TextModel":
    """Loads a model from a .gguf or .safetensors file, a directory, or the name of a fetched model.

    config="pi05" or "pi0" loads a robot's policy instead: vivace.policy.load_policy has its options.

    device: "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:N". precision: "auto" (q8, on a GPU native), "q8" (int8 activations
    against quantised weights), "f32", "bf16", "native", "w8a16", "w4a16", "int4", "fp8" or "fp8_static"; docs/models/gpu.md says what
    each does. head: what its last product becomes: "auto" (as precision says), "plain", "e4m3", "e2m1", "q8_0" or "q4_0". invariance: "class" (bits of a token
    depend on whether it was part of a prompt or of an answer, never on what ran beside it) or "strict" (not on that either: prompts
    take steps of at most 64 tokens, 16 with max_batch=1). partition: a share of a GPU; None is all of it.
    kv_dtype: "auto" (f16, on a GPU that of the activations), "f32", "f16", "bf16", "e4m3". threads: CPU threads,
    0 = one a physical core. context: positions a sequence may hold, 0 = the model's own, at most 4096.
    max_batch: sequences live at once. chunk: prompt tokens a step may take. ahead: steps that may be queued
    before the first is waited for, 0 = as suits the device; answers do not depend on it. random_weights: the
    shapes of a config.json with weights drawn where the model runs, for timing. logit_bias: requests may
    come with logit_bias or mask; a step takes one launch more. kv_pages: pages of 64 positions that all sequences
    share, so that max_batch may exceed what fits with the whole context each; 0: none, each has its own places.
    resident_layers: how many layers keep their weights on the device; the others come from host memory in every step,
    for models larger than the device; -1: all stay. calibration: prompts (strings or token ids) that
    precision="fp8_static" takes its scales from, as vivace.calibrate says; percentile: of the magnitudes they bring.
    Errors: NotFoundError, CorruptDataError, UnsupportedError, OutOfMemoryError, each with what to do.
    """
    if config is not None:
        from vivace.policy import load_policy

        return load_policy(path_or_name, config=config, device=device, precision=precision, partition=partition, threads=threads, random_weights=random_weights,
                           calibration=calibration, percentile=percentile, **policy)
    if policy:
        raise TypeError(f"load_model() got an unexpected keyword argument {next(iter(policy))!r}")
    if partition is not None:
        raise UnsupportedError("partition: decoders run on the whole device so far; on the CPU set threads instead")
    find_compiler(device)
    path = resolve(path_or_name)
    scales = []
    if precision == "fp8_static":
        from vivace import calibrate

        scales = calibrate.act_scales(path, calibration, percentile=percentile, device=device, random_weights=random_weights)
    elif calibration is not None:
        raise InvalidArgumentError(f"calibration: only precision='fp8_static' has scales to calibrate, got {precision!r}")
    core = _core.load_text_model(path, device=device, precision=precision, kv_dtype=kv_dtype, threads=threads, context=context, max_batch=max_batch,
                                 chunk=chunk, ahead=ahead, random_weights=random_weights, logit_bias=logit_bias, kv_pages=kv_pages, resident_layers=resident_layers, act_scales=scales, head=head, invariance=invariance)
    return TextModel(path, core)


def find_compiler(device) -> None:
    """Before a load on a GPU: where NVRTC is, if a package of this environment holds it."""
    if device != "cpu":
        from vivace.jit import find_nvrtc

        find_nvrtc()


def resolve(path_or_name) -> str:
    """The path of a checkpoint: as given if it exists, else that of a model that was fetched before."""
    path = os.fspath(path_or_name)
    if os.path.exists(path):
        return path
    from vivace import fetch

    if path.lower() in fetch.MODELS:
        return fetch.path_of(path)
    raise NotFoundError(f"{path}: no such file or directory, and no known model of that name ({', '.join(sorted(fetch.MODELS))})")


class TextModel(Loaded):
    """A language model. Not thread-safe: one call at a time. Use as a context manager or close() it."""

    def __init__(self, path: str, core):
        super().__init__(path, core)
        self._text = None

    @property
    def text(self):
        """Tokenizer and chat template (vivace.text.Text), built on first use."""
        if self._text is None:
            from vivace.text import load_text

            text = load_text(self._path, _core.read_metadata(self._path))
            size, vocab = text.tokenizer.get_vocab_size(), self._live.limits()["vocab"]
            if size > vocab:
                raise InvalidArgumentError(f"tokenizer: it has {size} tokens, the model's vocabulary {vocab}; they do not belong together")
            if text.template:
                from vivace import template

                template.warm()  # its process starts while the prompt is on its way
            self._text = text
        return self._text

    def report(self) -> dict:
        """Every decision of the load: family, precision plan, dtypes, shapes, memory."""
        facts = {k: json.loads(v) for k, v in self._live.report()}
        return {"path": self._path, **facts, "memory": dict(self.memory())}

    def memory(self) -> list[tuple[str, int]]:
        """Exact bytes by region, in order."""
        return self._live.memory()

    def profile(self, *, rows: int = 1, position: int = 0, decode: bool = True, in_step: bool = False) -> dict:
        """Times one step and its launches, each kind by itself ("us") and, if asked for, by what the step is faster
        without it ("in_step_us"): step_us, groups of launches, order. `rows` sequences at `position`, or with decode=False
        a piece of one prompt. Forgets every sequence."""
        return self._live.profile(rows=rows, pos=position, decode=decode, in_step=in_step)

    def prompt_ids(self, prompt) -> list[int]:
        """Token ids of a string (one user turn if the model has a chat template, else plain text), of a list
        of {"role", "content"} messages, or of token ids as they are."""
        if isinstance(prompt, str):
            if self.text.template:
                return self.text.chat_ids([{"role": "user", "content": prompt}])
            return self.text.prompt_ids(prompt)
        prompt = list(prompt)
        if prompt and isinstance(prompt[0], dict):
            return self.text.chat_ids(prompt)
        return prompt

    def generate(self, prompt, **options) -> Answer:
        """Answers `prompt`; see stream() for the options."""
        return collect(self.stream(prompt, **options))

    def generate_ids(self, ids, **options) -> Answer:
        """Token ids in, token ids out; needs no tokenizer. Nothing stops it but `stop` ids and max_tokens."""
        return collect(self._stream(list(ids), None, **options))

    def generate_batch(self, prompts, **options) -> list[Answer]:
        """Answers several prompts, up to max_batch of them side by side, each as if it were alone."""
        text = self.text
        answers, order = [], {}
        batcher = _core.Batcher(self._live)
        for prompt in prompts:
            ids = self.prompt_ids(prompt)
            order[batcher.submit(**_request(ids, text.eos, self._live.limits()["context"], **options))] = len(answers)
            answers.append(Answer(prompt_tokens=len(ids)))
        start = time.perf_counter()
        while not batcher.idle():
            for request, token, logprob, finish in batcher.step():
                _add(answers[order[request]], token, logprob, finish, time.perf_counter() - start)
        for a in answers:
            a.text = text.decode(a.tokens)
        return answers

    def stream(self, prompt, **options) -> Iterator[Chunk]:
        """Yields an answer as it is made. Options: max_tokens (default: up to the context, at most 512),
        temperature (0 = greedy), top_k (0 = off), top_p, min_p, repetition_penalty, presence_penalty,
        frequency_penalty, seed, stop (extra token ids), stop_text (strings that end the answer and are no part
        of it), logit_bias ({token: value added to its logit}), mask (a function: tokens so far -> a sequence of
        booleans, one a token of the vocabulary, of what may come next, or None for everything). The last two
        need load_model(logit_bias=True). draft: "lookup" (what followed the same words before) or a smaller model with
        the same vocabulary guesses `drafts` tokens (4), which one step checks: the same greedy answer in fewer
        steps; needs max_batch above drafts. Closing the iterator cancels the answer."""
        ids = self.prompt_ids(prompt)
        return self._stream(ids, self.text, **options)

    def _stream(self, ids, text, *, stop_text=(), mask=None, logit_bias=None, draft=None, drafts=4, **options) -> Iterator[Chunk]:
        limits = self._live.limits()
        stops = [stop_text] if isinstance(stop_text, str) else list(stop_text)
        if stops and (text is None or "" in stops):
            raise InvalidArgumentError("stop_text: it needs the model's tokenizer, and strings that are not empty")
        bias = _Bias(limits["vocab"], logit_bias, mask)
        request = _request(ids, text.eos if text else [], limits["context"], bias=bias.first(), stepwise=mask is not None, **options)
        # Errors of the request surface here, not at the first next().
        if draft is not None:
            batcher, request = self._speculate(request, draft, drafts), 0
        else:
            batcher = _core.Batcher(self._live)
            request = batcher.submit(**request)
        chunks = self._run(batcher, text, request, bias)
        return _until(chunks, stops) if stops else chunks

    def _speculate(self, request, draft, drafts):
        plain = dict(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0, presence=0.0, frequency=0.0, bias=b"", stepwise=False)
        other = sorted(k for k, v in plain.items() if request[k] != v)
        if other:
            raise InvalidArgumentError(f"draft: guesses are for greedy answers; leave out {', '.join(other)}, or draft")
        if draft != "lookup" and not isinstance(draft, TextModel):
            raise InvalidArgumentError(f"draft: wanted 'lookup' or a smaller model, got {draft!r}")
        small = None if draft == "lookup" else draft._live
        return _core.speculate(self._live, small, drafts=drafts, prompt=request["prompt"], max_tokens=request["max_tokens"], stop=request["stop"])

    def _run(self, batcher, text, request, bias) -> Iterator[Chunk]:
        decode = text.stream() if text else lambda token: ""
        tokens = []
        try:
            while not batcher.idle():
                self._live  # closed meanwhile: a clear error
                for _, token, logprob, finish in batcher.step():
                    if finish == "nan_logits":
                        raise Error("the model's logits are NaN: the checkpoint or this machine's arithmetic is broken")
                    has = token is not None
                    if has and bias.mask is not None and finish is None:
                        tokens.append(token)
                        batcher.set_bias(request, bias.after(tokens))
                    yield Chunk(decode(token) if has else "", token, logprob if has else None, finish)
        finally:  # not left to the iterator's frame, which outlives close() in Python 3.12: its end takes back what it queued
            del batcher


def _request(ids, eos, context, *, max_tokens=None, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0,
             presence_penalty=0.0, frequency_penalty=0.0, seed=0, stop=(), bias=b"", stepwise=False) -> dict:
    if max_tokens is None:
        max_tokens = max(1, min(512, context - len(ids) + 1))
    return dict(prompt=ids, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                repetition=repetition_penalty, presence=presence_penalty, frequency=frequency_penalty, seed=seed, stop=[*eos, *stop], bias=bias, stepwise=stepwise)


class _Bias:
    """What is added to the logits of a request, as f32 bytes."""

    def __init__(self, vocab, logit_bias, mask):
        self.mask, self._base = mask, array("f", bytes(4 * vocab))
        self._given = bool(logit_bias)
        for token, value in (logit_bias or {}).items():
            if not 0 <= token < vocab:
                raise InvalidArgumentError(f"logit_bias: token {token} is outside the vocabulary [0, {vocab})")
            if value != value or value == float("inf"):
                raise InvalidArgumentError(f"logit_bias: token {token}: wanted a finite value or -inf, got {value}")
            self._base[token] = value

    def first(self) -> bytes:
        return self.after([]) if self.mask is not None else self._base.tobytes() if self._given else b""

    def after(self, tokens) -> bytes:
        allowed = self.mask(list(tokens))
        if allowed is None:
            return self._base.tobytes()
        if len(allowed) != len(self._base):
            raise InvalidArgumentError(f"mask: wanted {len(self._base)} booleans, one a token, got {len(allowed)}")
        return array("f", [b if ok else float("-inf") for b, ok in zip(self._base, allowed)]).tobytes()


def _until(chunks: Iterator[Chunk], stops) -> Iterator[Chunk]:
    """The chunks up to the first of the stop strings; text that may begin one is held back until it is known."""
    held: list[Chunk] = []
    for c in chunks:
        held.append(c)
        text = "".join(h.text for h in held)
        at = min((i for i in (text.find(s) for s in stops) if i >= 0), default=-1)
        if at >= 0:
            chunks.close()
            yield from _cut(held, at, "stop")
            return
        if c.finish is not None:
            yield from held
            return
        begun = max((n for s in stops for n in range(1, min(len(s), len(text) + 1)) if text.endswith(s[:n])), default=0)
        while held and sum(len(h.text) for h in held[1:]) >= begun:
            yield held.pop(0)


def _cut(chunks, at, finish) -> Iterator[Chunk]:
    """`chunks` up to `at` characters: the tokens that the text before it came from."""
    for c in chunks:
        if at <= 0:
            break
        yield Chunk(c.text[:at], c.token, c.logprob)
        at -= len(c.text)
    yield Chunk("", None, None, finish)


def _add(answer: Answer, token, logprob, finish, elapsed) -> None:
    if token is not None:
        if answer.first_token_s is None:
            answer.first_token_s = elapsed
        answer.tokens.append(token)
        answer.logprobs.append(logprob)
    answer.finish = finish or answer.finish
    answer.total_s = elapsed


def collect(chunks: Iterator[Chunk], start: float | None = None) -> Answer:
    """Runs a stream to its end."""
    start = time.perf_counter() if start is None else start
    answer = Answer()
    for c in chunks:
        answer.text += c.text
        _add(answer, c.token, c.logprob, c.finish, time.perf_counter() - start)
    return answer
