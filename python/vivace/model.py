"""load_model and the typed models it returns."""
from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import json
import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivace import _core, files, generation, images as pictures
from vivace.answers import Answer, AsyncStream, Begun, Bias, StreamEvent, Hub, Stream, acollect, collect, parent_of
from vivace.errors import CorruptDataError, Error, InvalidArgumentError, NotFoundError, UnsupportedError
from vivace.loaded import Loaded
from vivace.options import GENERATE, LOAD, PROMPT, Draws, Options, checked, completed, one, prompt_ids, shown, shows, token_ids, whole, wrong
from vivace.options import path as path_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]

__all__ = ["Answer", "AsyncStream", "StreamEvent", "Stream", "TextModel", "load_model"]


def load_model(path_or_name, *, device="auto", precision="auto", partition=None, kv_dtype="auto",
               threads=0, context=0, max_batch=1, prefill_chunk=0, max_in_flight_steps=0, random_weights=False, logit_bias=False, num_kv_blocks="auto", gpu_layers=-1, max_waiting=256, max_waiting_tokens=1 << 22, priority_ageing=10.0,
               lm_head_dtype="auto", invariance="class", calibration=None, percentile=100.0, generation_config=True, config=None, tenant=None, max_image_tokens=0, state_cache_bytes=None, mtp=0, decode_layers="auto", **policy) -> "TextModel":
    """Loads a model from a .gguf or .safetensors file, a directory, or the name of a fetched model.

    A robot's policy is found by its config.json or its tensors, or named by config="pi05", "pi0", "pi0fast", "smolvla", "groot_n17", "groot_n16": vivace.policy.load_policy has its options. A Whisper is a
    vivace.speech.SpeechModel, whose options are load_speech()'s: windows and rows beside device, precision, threads and calibration.

    device: "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:N". precision: "auto" (q8, on a GPU native), "q8" (int8 activations
    against quantized weights), "f32", "bf16", "native", "w8a16", "w4a16", "int4", "fp8" or "fp8_static"; docs/models/gpu.md says what
    each does. lm_head_dtype: what its last product becomes: "auto" (as precision says), "plain", "e4m3", "e2m1", "q8_0" or "q4_0". invariance: "class" (bits of a token
    depend on whether it was part of a prompt or of an answer, never on what ran beside it) or "strict" (not on that either: prompts
    take steps of at most 64 tokens, 16 with max_batch=1). partition: a share of a GPU; None is all of it.
    kv_dtype: "auto" (f16, on a GPU that of the activations), "f32", "f16", "bf16", "e4m3" (with the checkpoint's scales, else 1). threads: CPU threads,
    0 = one a physical core. context: positions a sequence may hold, 0 = the model's own, at most 4096.
    max_batch: sequences live at once. prefill_chunk: prompt tokens a step may take, 0 = as suits: on a GPU 1,024 with max_batch=1 and
    256 else, 128 on the CPU and of a scheduler's tenant. max_in_flight_steps: steps that may be queued
    before the first is waited for, 0 = as suits the device; answers do not depend on it. random_weights: the
    shapes of a config.json with weights drawn where the model runs, for timing. logit_bias: requests may
    come with logit_bias or mask; a step takes one launch more. num_kv_blocks: pages (KV blocks) of 64 positions that all sequences
    share, so that max_batch may exceed what fits with the whole context each, and that remember what was computed, so that prompts which begin alike
    are computed once (sessions, docs/sessions.md); 0: none, each has its own places; "full": as many as max_batch whole contexts need; "auto": "full" on the
    CPU, 0 on a GPU. state_cache_bytes: of models with a recurrent state (docs/models/qwen35.md), memory for states that are kept beside KV blocks, so that what was
    computed is found again; 0: none; None: 16 and 4 a sequence, in at most 1 GiB. mtp: tokens that the checkpoint's own draft layer guesses a step, 1 to 4, which the
    next step checks: the same answers in fewer steps; needs max_batch above it; 0: the layer is not loaded.
    decode_layers: whether a step of one token is one launch for all layers: "auto" (where that was seen to win: on Hopper, dense models of bf16 or w8a16 with
    hidden up to 2048, one sequence), "on" or "off"; its bits are others than those of launches. report()["decode_layers"] says what serves.
    gpu_layers: how many layers keep their weights on the device; the others come from host memory in every step,
    for models larger than the device; -1: all stay. max_waiting: requests that may wait besides the max_batch that answer;
    one more is refused (LimitExceededError), and so is one whose prompt makes more than max_waiting_tokens of them. priority_ageing: seconds
    after which a waiting request of priority "batch" counts as "interactive", so that it does not wait for ever; 0: never. calibration: prompts (strings or token ids) that
    precision="fp8_static" takes its scales from, as vivace.calibrate says, also where the checkpoint brings some (`input_scale`), which count otherwise; percentile: of the magnitudes they bring.
    tenant: its place at a vivace.Scheduler, whose own load_model() gives it.
    max_image_tokens: of models that see (docs/models/qwen3-vl.md), most tokens of an image, to which larger pictures are resized; 0: 1280, or the context.
    generation_config: whether the checkpoint's generation_config.json says what generate() draws with and which tokens end an answer, unless the call does.
    Errors: NotFoundError, CorruptDataError, UnsupportedError, OutOfMemoryError, each with what to do.
    """
    own = dict(kv_dtype=kv_dtype, context=context, max_batch=max_batch, prefill_chunk=prefill_chunk, max_in_flight_steps=max_in_flight_steps, logit_bias=logit_bias, num_kv_blocks=num_kv_blocks, gpu_layers=gpu_layers,
               max_waiting=max_waiting, max_waiting_tokens=max_waiting_tokens, priority_ageing=priority_ageing, lm_head_dtype=lm_head_dtype, invariance=invariance, generation_config=generation_config, max_image_tokens=max_image_tokens, state_cache_bytes=state_cache_bytes, mtp=mtp, decode_layers=decode_layers)
    if config is not None or _is_policy(path_or_name):
        from vivace.policy import load_policy

        if foreign := [name for name, value in own.items() if value is not _defaults()[name] and value != _defaults()[name]]:
            raise InvalidArgumentError(f"load_model: {', '.join(foreign)}: of language models, and this is a robot's policy; vivace.policy.load_policy has its options")
        return load_policy(path_or_name, config="auto" if config is None else config, device=device, precision=precision, partition=partition, threads=threads, random_weights=random_weights,
                           calibration=calibration, percentile=percentile, tenant=tenant, **policy)
    path = resolve(path_or_name)
    from vivace import speech

    if speech.is_speech(path):
        return speech.load_speech(path, device=device, precision=precision, threads=threads, random_weights=random_weights, calibration=calibration, percentile=percentile, tenant=tenant, decode_layers=decode_layers, **policy)
    given = dict(device=device, precision=precision, threads=threads, random_weights=random_weights, percentile=percentile, tenant=tenant, **own)
    given = checked("load_model", LOAD, given | policy)
    del given["percentile"]
    generation_config = given.pop("generation_config")
    if partition is not None:
        raise UnsupportedError("partition: decoders run on the whole device so far; on the CPU set threads instead")
    find_compiler(device)
    if precision != "fp8_static" and calibration is not None:
        raise InvalidArgumentError(f"calibration: only precision='fp8_static' has scales to calibrate, got {precision!r}")
    if precision != "fp8_static" or (calibration is None and not random_weights and _core.has_input_scales(path)):
        return TextModel(path, _core.load_text_model(path, **given), generation_config=generation_config)
    from vivace import calibrate

    def scales(anew):
        return calibrate.act_scales(path, calibration, percentile=percentile, device=device, random_weights=random_weights, anew=anew)
    return TextModel(path, calibrate.used(scales, lambda s: _core.load_text_model(path, act_scales=s, **given)), generation_config=generation_config)


@functools.cache
def _defaults() -> dict:
    return {name: p.default for name, p in inspect.signature(load_model).parameters.items()}


def _is_policy(path_or_name) -> bool:
    """Whether a checkpoint is a robot's policy, by config.json's type or by its tensors."""
    try:
        path = Path(path_or_name)
        if path.suffix == ".gguf" or not path.exists():
            return False
        return bool(_core.policy_family(str(path)))
    except (Error, OSError, TypeError, ValueError):  # whoever loads it says what is wrong
        return False


def find_compiler(device) -> None:
    """Before a load on a GPU: where NVRTC is, if a package of this environment holds it."""
    if device != "cpu":
        from vivace.jit import find_nvrtc

        find_nvrtc()


def resolve(path_or_name) -> str:
    """The path of a checkpoint: as given if it exists, else that of a model that was fetched before."""
    path = one("load_model", "path_or_name", path_text, path_or_name)
    if os.path.lexists(path):
        return path
    from vivace import fetch

    if path.lower() in fetch.MODELS:
        return fetch.path_of(path)
    from vivace import store

    if (found := store.find(path)) is not None:
        return found
    raise NotFoundError(f"{files.printable(path, 4096) or repr(path)}: no such file or directory, nor a model of `vivace list`, nor one that can be fetched by name: {', '.join(sorted(fetch.MODELS))} (python -m vivace.fetch NAME)")


class TextModel(Loaded):
    """A language model. Any number of threads and asyncio tasks may ask it at once: up to max_batch answers are made side by
    side, the others wait in order, and each is the one that it would be alone. Use as a context manager or close() it."""

    def __init__(self, path: str, core, *, generation_config: bool = True):
        super().__init__(path, core)
        self._generation_config, self._drawn = generation_config, generation.read(path) if generation_config else {}
        self._text, self._grammars, self._resizer, self._making_text = None, None, None, threading.Lock()
        _open.add(self)

    def close(self) -> None:
        """Ends all answers (their readers get ClosedError) and frees the memory. Later calls raise ClosedError; closing
        twice is fine."""
        self._go_on()
        core, self._core, self.tenant = self._core, None, None
        if core is not None:
            core.close()

    def __repr__(self):
        if self._core is None:
            return f"<TextModel {self._path}: closed>"
        facts = self.report()
        return f"<TextModel {self._path}: {facts['family']}, {facts['device']}, precision {facts['precision']}, context {facts['context']}, max_batch {facts['max_batch']}>"

    @property
    def drawn(self) -> dict:
        """Options of generate() that the checkpoint's generation_config.json sets for those that are not given."""
        return dict(self._drawn)

    @property
    def text(self):
        """Tokenizer and chat template (vivace.text.Text), built on first use."""
        with self._making_text:
            if self._text is None:
                self._text = self._make_text()
            return self._text

    def _make_text(self):
        from vivace.text import load_text

        text = load_text(self._path, _core.read_metadata(self._path), generation_config=self._generation_config)
        size, vocab = text.tokenizer.get_vocab_size(), self._live.limits()["vocab"]
        if size > vocab:
            raise InvalidArgumentError(f"tokenizer: it has {size} tokens, the model's vocabulary {vocab}; they do not belong together")
        if text.template:
            from vivace import template

            template.warm()  # its process starts while the prompt is on its way
        return text

    def report(self) -> dict:
        """Every decision of the load: family, precision plan, dtypes, shapes, memory, what generation_config.json sets for generate(); once the tokenizer is loaded,
        "tokenizer": what its file asks for and is not done, and "replies": in which forms it writes calls of tools and reasoning."""
        facts = {k: json.loads(v) for k, v in self._live.report()}
        return {"path": self._path, **facts, "memory": dict(self.memory()), "tokenizer": self._text.notes if self._text else [], "generation_config": dict(self._drawn) if self._generation_config else "off"} | ({"replies": self._text.replies} if self._text else {})

    def memory(self) -> list[tuple[str, int]]:
        """Exact bytes by region, in order."""
        return self._live.memory()

    def profile(self, *, rows: int = 1, position: int = 0, decode: bool = True, in_step: bool = False) -> dict:
        """Times one step and its launches, each kind by itself ("us") and, if asked for, by what the step is faster
        without it ("in_step_us"): step_us, groups of launches, order. `rows` sequences at `position`, or with decode=False
        a piece of one prompt. Forgets every sequence."""
        return self._live.profile(rows=rows, pos=position, decode=decode, in_step=in_step)

    def prompt_ids(self, prompt: Prompt, *, tools: list | None = None, enable_thinking: bool | None = None, images: list | None = None) -> list[int]:
        """Token ids of a string (one user turn if the model has a chat template, else plain text), of a list
        of {"role", "content"} messages, or of token ids as they are. `tools` and `enable_thinking` are for chat templates that know them. Of a model that sees, messages have images as
        parts of their content, and `images` are shown before a string: as arrays [H, W, 3] of u8, PIL images, bytes of files or their paths (docs/models/qwen3-vl.md)."""
        values = {n: v for n, v in checked("prompt_ids", PROMPT, dict(tools=tools, enable_thinking=enable_thinking, images=images)).items() if v is not None}
        if shows_images := values.pop("images", None):
            if not isinstance(prompt, str):
                raise InvalidArgumentError("images: they are for a prompt that is a text; in messages they are parts of the content")
            if self._images() is None:
                raise UnsupportedError("images: this model takes none; its prompts are text")
            prompt = [{"role": "user", "content": [*({"type": "image", "image": i} for i in shows_images), {"type": "text", "text": prompt}]}]
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}] if self.text.template or values else self.text.prompt_ids(prompt)
        if isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], dict):
            if unknown := [n for n in values if n not in (self.text.template or "")]:
                raise InvalidArgumentError(f"{unknown[0]}: this checkpoint's chat template does not ask for it; leave it out")
            return self._chat_prompt(list(prompt), **values)[0]
        if values:
            raise InvalidArgumentError(f"{next(iter(values))}: it is for messages; token ids are taken as they are")
        return one("generate", "prompt", prompt_ids, prompt)

    def _images(self):
        """What makes pictures fit for a model that sees (vivace.images.Resizer); None of another."""
        if (limits := self._live.limits().get("images")) is None:
            return None
        with self._making_text:
            if self._resizer is None:
                self._resizer = pictures.Resizer(self._path, limits)
        return self._resizer

    def _chat_prompt(self, messages: list, **values) -> tuple[list[int], str]:
        """Ids of messages, with the pictures that they show, and the text that they are of. `values`: Text.chat_prompt()'s, and the template's."""
        if (resizer := self._images()) is None:
            return self.text.chat_prompt(pictures.unshown(messages), **values)
        messages, held = pictures.taken(messages)
        ids, text = self.text.chat_prompt(messages, images=bool(held), **values)
        return (resizer.expanded(ids, held), text) if held else (ids, text)

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Answer:
        """Answers `prompt`; see stream() for the options."""
        start = time.perf_counter()
        return collect(self.stream(prompt, **options), start)

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[Options]) -> Answer:
        """Answers the last of `messages`; generate() for a list of {"role", "content"} and nothing else."""
        if not isinstance(messages, (list, tuple)) or not all(isinstance(m, Mapping) for m in messages):
            raise wrong("chat", "messages", "a list of messages, dicts with role and content", messages)
        return self.generate(messages, **options)

    async def agenerate(self, prompt: Prompt, **options: Unpack[Options]) -> Answer:
        """generate() for asyncio: no thread waits meanwhile, and cancelling the task cancels the answer."""
        start = time.perf_counter()
        return await acollect(await self.astream(prompt, **options), start)

    def generate_ids(self, ids: Sequence[int], **options: Unpack[Draws]) -> Answer:
        """Token ids in, token ids out; needs no tokenizer. Nothing stops it but `stop` ids and max_tokens."""
        start = time.perf_counter()
        return collect(self._stream(one("generate", "ids", token_ids, ids), None, **options), start)

    def generate_n(self, prompt: Prompt, n: int, **options: Unpack[Draws]) -> list[Answer]:
        """`n` answers to one prompt, with seeds from `seed` on, side by side as far as max_batch goes; the prompt is computed once where
        sequences share blocks (num_kv_blocks)."""
        start = time.perf_counter()
        n = one("generate_n", "n", whole(1, 1 << 16), n)
        streams = self._streams(self.prompt_ids(prompt), self.text, n, **options)
        try:
            return [collect(s, start) for s in streams]
        finally:
            for s in streams:
                s.close()

    def session(self, system: str | None = None, **options: Unpack[Draws]) -> "Session":
        """A conversation (vivace.session.Session): each turn computes what is new. `options` are those of stream(), for every turn."""
        from vivace.session import Session

        return Session(self, system, **options)

    def generate_batch(self, prompts: Iterable[Prompt], **options: Unpack[Draws]) -> list[Answer]:
        """Answers several prompts, up to max_batch of them side by side, each as if it were alone. A prompt that cannot be
        answered fails alone: its Answer has finish "error" and the exception as `error`. Options are for all and raise."""
        from vivace.batch import generate_batch

        return generate_batch(self, prompts, **options)

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Gives an answer as it is made, a StreamEvent at a time. Options: max_tokens (default: up to the context, at most 512),
        temperature (0 = greedy), top_k (0 = off), top_p, min_p, repetition_penalty, presence_penalty,
        frequency_penalty, seed (from 0; the same one draws the same tokens, none is random), stop (a string, strings or token ids that end the answer; strings are no part
        of it), stop_text (the strings, beside token ids in stop), logit_bias ({token: value added to its logit}), mask (a function: tokens so far -> a sequence of
        booleans, one a token of the vocabulary, of what may come next, or None for everything; it is called on the thread
        that reads, and may ask the same model), min_tokens (before them nothing ends the answer), json_schema (a dict, JSON text or a pydantic
        class), regex or grammar (Lark): what the whole answer keeps to (docs/structured.md). logit_bias needs load_model(logit_bias=True). draft: "lookup" (what followed
        the same words before) or a smaller model with the same vocabulary guesses `num_speculative_tokens` tokens (4), which one step checks:
        the same answer in fewer steps; needs max_batch above num_speculative_tokens; "off": no guesses of load_model(mtp=) either. priority: "robot", "interactive" or "batch": who goes first where
        several wait, and where sequences share blocks (num_kv_blocks) the next class gives way. deadline: seconds from now by which the answer must be over;
        it ends then (LimitExceededError), and is refused at once where it would not begin before. salt: whose request it is: those of
        different salts never find each other's computed beginnings. reuse: whether it takes and leaves such. deterministic: it takes only what has the bits
        that it would compute itself. top_logprobs: up to 20 likeliest tokens in each one's place, with log-probabilities (StreamEvent.top); steps are then not queued ahead. tools, enable_thinking, images: as in prompt_ids().
        What is left out or None is the checkpoint's generation_config.json's, where it has one: report() says which. Closing the iterator cancels the answer."""
        ids, options = self._rendered(prompt, options)
        return self._stream(ids, self.text, **options)

    async def astream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        """stream() for asyncio: `async for chunk in await model.astream(...)`. Leaving the loop cancels the answer."""
        (ids, options), text = await asyncio.to_thread(lambda: (self._rendered(prompt, options), self.text))
        hub = Hub.here()
        request, facts = self._prepare(ids, text, **options)
        return AsyncStream(self, self._submit(request, hub.notifier), hub, **facts)

    def _rendered(self, prompt, given: dict) -> tuple[list[int], dict]:
        """Ids of the prompt, and the options that are not the template's."""
        values = {n: given[n] for n in PROMPT if n in given}
        return self.prompt_ids(prompt, **values), {n: v for n, v in given.items() if n not in values}

    def _stream(self, ids, text, **options) -> Stream:
        request, facts = self._prepare(ids, text, **options)
        return Stream(self, self._submit(request), **facts)

    def _streams(self, ids, text, n, **options) -> list[Stream]:
        request, facts = self._prepare(ids, text, **options)
        if request["stepwise"]:
            raise InvalidArgumentError("generate_n: a mask or a grammar steers one answer; ask for one at a time")
        core = self._live
        made = _core.submit(core, **request, n=n, parent=parent_of(core))
        begun = facts["begun"]
        return [Stream(self, r, **facts | dict(decode=text.stream() if text else None, begun=begun.with_seed(i))) for i, r in enumerate(made)]

    def _prepare(self, ids, text, **given) -> tuple[dict, dict]:
        options = completed(checked("generate", GENERATE, given), self._drawn)
        request, facts = self._prepared(ids, text, **options)
        return request, facts | dict(begun=Begun(ids, options, request["max_tokens"], text is not None))

    def _resumed(self, capsule, options: dict) -> Stream:
        """An answer goes on from a capsule."""
        state, ids = capsule.state, capsule.tokens
        drawn, most = state["drawn"], state["max_tokens"]
        text = self.text if state["text"] else None
        if not 0 <= drawn < min(most, len(ids)):
            raise CorruptDataError(f"capsule: {drawn} tokens of at most {most} were drawn, of {len(ids)} in all")
        said = ids[len(ids) - drawn:]
        request, facts = self._prepared(ids, text, replayed=said, **options | dict(max_tokens=most - drawn, min_tokens=max(0, options.get("min_tokens", 0) - drawn)))
        request["resumed"] = drawn > 0
        for token in said if text else ():
            facts["decode"](token)  # a character that is not whole yet
        facts |= dict(prompt_tokens=len(ids) - drawn, begun=Begun(ids, options, most, text is not None, drawn))
        not_brought = capsule.bring()
        stream = Stream(self, self._submit(request), **facts)
        stream.not_brought = not_brought
        return stream

    def restore(self, source, *, key: bytes | None = None):
        """What goes on from a capsule (of a session's or a stream's capsule()) or from the file that one was saved as: a Session, or the rest of the answer as a Stream. `key`: of the
        file's seal, by default this user's own. Errors: CorruptDataError, InvalidArgumentError for a capsule of another model, plan or build."""
        from vivace import capsule

        return capsule.restore(self, source, key)

    def _prepared(self, ids, text, *, replayed=(), stop_text=(), mask=None, logit_bias=None, draft=None, num_speculative_tokens=4, **options) -> tuple[dict, dict]:
        """A request as the core takes it, and what its reader needs besides."""
        limits = self._live.limits()
        stops = list(stop_text)
        if stops and (text is None or "" in stops):
            raise InvalidArgumentError("stop_text: it needs the model's tokenizer, and strings that are not empty")
        bias, matcher = Bias(limits["vocab"], logit_bias, mask), self._matcher(text, mask, options)
        if matcher is not None and replayed:
            matcher.replay(list(replayed))
        first = matcher.first if matcher else bias.masked([])
        request = _request(ids, text.eos if text else [], limits["context"], bias=bias.first, stepwise=matcher is not None or mask is not None, mask=first, **options)
        if shown_images := pictures.of(ids):
            request["images"] = shown_images
        if draft is not None:
            request |= dict(draft=_drafter(draft, request), num_speculative_tokens=num_speculative_tokens)
        if matcher is not None:
            request["matcher"] = matcher
        return request, dict(prompt_tokens=len(ids), decode=text.stream() if text else None, bias=bias, stops=stops)

    def _matcher(self, text, mask, options):
        """What an answer keeps to, if anything; takes these options out."""
        from vivace import structured

        if (spec := structured.spec_of(options)) is None:
            return None
        if mask is not None:
            raise InvalidArgumentError(f"generate: {spec[0]} and mask both say what may come next; give one")
        if text is None:
            raise InvalidArgumentError(f"{spec[0]}: it needs the model's tokenizer; use generate")
        with self._making_text:
            if self._grammars is None:
                self._grammars = structured.Grammars(text, self._live.limits()["vocab"])
        return self._grammars.matcher(spec)

    def _submit(self, request, notifier=None, leader=0):
        """`leader`: number of a request with the same prompt, which computes it for both."""
        core, matcher = self._live, request.get("matcher")
        if matcher is None:
            return _core.submit(core, **request, notifier=notifier, parent=parent_of(core), leader=leader)
        worker = self._grammars.worker
        handle = _core.submit(core, **{k: v for k, v in request.items() if k != "matcher"}, notifier=notifier, masks=worker.notifier, parent=parent_of(core), leader=leader)
        worker.add(handle.masks(), matcher)
        return handle


# Models that are open: their engines end before the interpreter does, so that no thread of theirs meets its end.
_open: weakref.WeakSet = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    if any(t.daemon for t in threading.enumerate()):  # the interpreter leaves them where they are, with what they hold
        _core.set_leak_warnings(False)
    for model in list(_open):
        model.close()


def _drafter(draft, request):
    """What the core takes as draft=."""
    if isinstance(draft, str) and draft == "off":
        return draft
    plain = dict(repetition=1.0, presence=0.0, frequency=0.0, bias=b"", mask=b"", min_tokens=0, stepwise=False)
    other = sorted(k for k, v in plain.items() if request[k] != v)
    if other:
        raise InvalidArgumentError(f"draft: guesses are for answers without penalties, bias and mask; leave out {', '.join(other)}, or draft")
    if draft != "lookup" and not isinstance(draft, TextModel):
        raise InvalidArgumentError(f"draft: wanted 'lookup', 'off' or a smaller model, got {shown(draft)}")
    return draft if draft == "lookup" else draft._live


def _request(ids, eos, context, *, max_tokens=None, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0,
             presence_penalty=0.0, frequency_penalty=0.0, seed=0, stop=(), bias=b"", stepwise=False, mask=b"", min_tokens=0, priority="interactive", deadline=None,
             salt="", reuse=True, deterministic=False, top_logprobs=0) -> dict:
    if max_tokens is None:
        max_tokens = max(1, min(512, context - len(ids) + 1))
    return dict(prompt=ids, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                repetition=repetition_penalty, presence=presence_penalty, frequency=frequency_penalty, seed=seed, stop=[*eos, *stop], bias=bias, stepwise=stepwise, mask=mask, min_tokens=min_tokens, priority=priority, deadline=deadline or 0.0,
                salt=salt.encode(), reuse=reuse, deterministic=deterministic, top_logprobs=top_logprobs)


for _method, _kind in {TextModel.generate: Options, TextModel.chat: Options, TextModel.agenerate: Options, TextModel.stream: Options, TextModel.astream: Options,
                       TextModel.generate_ids: Draws, TextModel.generate_batch: Draws,
                       TextModel.generate_n: Draws, TextModel.session: Draws}.items():
    shows(_method, _kind, _request, TextModel._prepared)
