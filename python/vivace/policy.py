"""Vision-language-action policies: camera frames, a prompt and the arm's state in, a chunk of actions out."""
from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path

from vivace import _core
from vivace.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from vivace.loaded import Loaded
from vivace.model import find_compiler

BOS = 2  # of PaliGemma's tokenizer
_STAGES = ("context", "actions", "whole")  # as PolicyModel::Stage


def load_policy(path, *, config, num_views=0, action_horizon=0, num_steps=0, batch=1, prompt_tokens=0, device="auto", precision="auto", partition=None,
                threads=0, resize="auto", statistics="auto", robot="", delta=(), tokenizer=None, codec="", max_codes=0, calibration=None, percentile=100.0, random_weights=False) -> "Policy":
    """Loads a policy: what vivace.load_model(path, config=...) does.

    config: "pi05", "pi0", "pi0fast". num_views: camera slots (3). action_horizon, num_steps: of a chunk and its flow, 0 = the
    checkpoint's. batch: observations of one call. prompt_tokens: most tokens of a prompt. resize: "openpi"
    (antialiased, u8) or "lerobot" (bilinear, f32), "auto" as the checkpoint was saved. statistics: "auto" reads
    norm_stats.json or lerobot's processor files and answers in the robot's units, "none" gives normalised actions.
    robot: which of several folders under assets/. delta: a boolean a dimension: that action is a step from the state. tokenizer:
    tokenizer.json or tokenizer.model of PaliGemma, where it is not beside the checkpoint; token ids need none.
    codec: of pi0fast, a folder with the actions' tokenizer.json and processor_config.json; without it tokens() works,
    predict() does not. max_codes: most tokens of its answer (256).
    precision: "auto" (f32, on a GPU bf16), "f32", "bf16", "fp8" (a scale a token), or "fp8_static": scales found by running
    `calibration`, a list of dicts with predict()'s arguments, in bf16; `percentile` of the magnitudes that they
    bring counts. They are kept beside the other caches, under a digest of the whole checkpoint, the plan, the shapes and the observations.
    partition: a share of a GPU's multiprocessors, in (0, 1), which no other policy of this process with a share runs on; None is all
    of the GPU. report()["multiprocessors"] says how many it became. The same bits either way.
    Errors: NotFoundError, CorruptDataError, InvalidArgumentError (options, statistics by which nothing can be
    divided, another family's checkpoint), InvalidShapeError, OutOfMemoryError.
    """
    if partition is not None and not 0 < partition < 1:
        raise InvalidArgumentError(f"partition: wanted a share of the device in (0, 1), or None for all of it, got {partition}")
    if calibration is not None and precision != "fp8_static":
        raise InvalidArgumentError(f"calibration: only precision='fp8_static' has scales to calibrate, got {precision!r}")
    find_compiler(device)
    path = os.fspath(path)
    if not os.path.exists(path):
        raise NotFoundError(f"{path}: no such file or directory")
    options = dict(config=config, resize=resize, statistics=statistics, delta=list(delta), robot=robot, num_views=num_views, action_horizon=action_horizon,
                   num_steps=num_steps, prompt_tokens=prompt_tokens, max_codes=max_codes, codec=os.fspath(codec), random_weights=random_weights)
    where = dict(device=device, threads=threads, partition=partition or 0.0)
    scales = _act_scales(path, calibration, percentile, tokenizer, options, where) if precision == "fp8_static" else []
    return Policy(path, _core.load_policy(path, precision=precision, batch=batch, act_scales=scales, **options, **where), tokenizer, (options, where))


def _act_scales(path, observations, percentile, tokenizer, options, where) -> list[float]:
    """Kept scales of these observations, or new ones."""
    from vivace.calibrate import _read, checkpoint_digest
    from vivace.fetch import cache_dir

    if not observations:
        raise InvalidArgumentError('calibration: precision="fp8_static" takes its scales from observations; give some, or use "fp8"')
    with Policy(path, _core.load_policy(path, precision="bf16", **options, **where), tokenizer) as policy:
        given = [policy._observation(**o) for o in observations]
        seen = hashlib.sha256(json.dumps([checkpoint_digest(path), "fp8_static", percentile, options]).encode())
        for o in given:
            for value in [*o["frames"], o["tokens"], o["state"], o["noise"], o["seed"], o["frozen"]]:
                seen.update(b"-" if value is None else policy._np.ascontiguousarray(value).tobytes() + b"|")
        file = cache_dir() / "calibration" / f"policy-{seen.hexdigest()}.json"
        if (kept := _read(file)) is not None:
            if json.loads(file.read_text()).get("of") != file.stem:
                raise FailedPreconditionError(f"calibration: {file} is of another checkpoint, plan or observations than its name says; delete it")
            return kept
        scales = policy._live.calibrate(given, percentile)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps({"of": file.stem, "checkpoint": path, "plan": "fp8_static", "percentile": percentile, "act_scales": scales}))
    part.replace(file)  # whole or not there
    return scales


def clean(task: str) -> str:
    """A task as openpi writes it into a prompt."""
    return task.strip().replace("_", " ").replace("\n", " ")


def state_bins(state) -> list[int]:
    """Normalised values as the words of a prompt: 256 bins of [-1, 1], what lies below is -1."""
    if not all(math.isfinite(v) for v in state):
        raise InvalidArgumentError("state is not finite")
    return [min(max(math.floor(128.0 * float(v)) + 128, -1), 255) for v in state]


def prompt_text(config: str, task: str, state=None) -> str:
    """The text that a family's prompt begins with; `state` is normalised. pi0's newline is a part of its own."""
    words = " ".join(map(str, state_bins(state))) if state is not None else ""
    if config == "pi05" and state is not None:
        return f"Task: {clean(task)}, State: {words};\nAction: "
    if config == "pi0fast" and state is not None:
        return f"Task: {task.lower().strip().replace('_', ' ')}, State: {words};\n"
    return clean(task)


class Policy(Loaded):
    """A loaded policy. Not thread-safe: one call at a time. Use as a context manager or close() it."""

    _kind = "policy"

    def __init__(self, path: str, core, tokenizer=None, loaded=None):
        import numpy

        super().__init__(path, core)
        self._np, self._loaded = numpy, loaded
        self._tokenizer, self._text, self._prompt = tokenizer, None, None
        self._limits = core.limits()
        self._family = json.loads(dict(core.report())["family"])

    def report(self) -> dict:
        """Every decision of the load: family, precision, shapes, launches of the two graphs, memory."""
        return {"path": self._path, **{k: json.loads(v) for k, v in self._live.report()}, "memory": dict(self._live.memory())}

    def profile(self, graph: str = "context", in_step: bool = False) -> dict:
        """Times the "context" graph, the "actions" graph or both in a row ("whole"; of pi0fast with one token) and their launches, each
        kind by itself ("us") and, if asked for, by what the graph is faster without it ("in_step_us")."""
        if graph not in _STAGES:
            raise InvalidArgumentError(f"graph: wanted one of {', '.join(_STAGES)}, got {graph!r}")
        return self._live.profile(stage=_STAGES.index(graph), in_step=in_step)

    def calibrate(self, observations, percentile: float = 100.0) -> list[float]:
        """Scales for precision="fp8_static" from what observations, dicts with predict()'s arguments, bring to each place
        where activations enter products; of a policy loaded as "bf16" or "f32". load_model(calibration=...) does this by itself."""
        return self._live.calibrate([self._observation(**o) for o in observations], percentile)

    def recalibrate(self, observations, percentile: float = 100.0) -> None:
        """Takes an "fp8_static" policy's scales from other observations, from the next predict() on: what a new lamp or
        gripper asks for. Loads the checkpoint once more as bf16 while it measures; the scales are kept as at load."""
        if self.report()["precision"] != "fp8_static":
            raise FailedPreconditionError(f'recalibrate: precision {self.report()["precision"]!r} has no scales that are fixed; load with "fp8_static"')
        self._live.set_act_scales(_act_scales(self._path, observations, percentile, self._tokenizer, *self._loaded))

    def set_prompt(self, prompt) -> None:
        """What predict() uses when it is given no prompt: text, or token ids."""
        self._prompt = prompt

    def tokens(self, images, prompt=None, state=None, *, end_token=None) -> list[int]:
        """pi0fast: the tokens that the actions are made of, the end token too. end_token: None is "|" where there is a
        tokenizer, else 1 (end of text); -1 writes max_codes of them."""
        return self._live.generate([self._observation(images, prompt, state, end_token=end_token)])[0]

    def predict(self, images, prompt=None, state=None, noise=None, seed=None, *, frozen=None):
        """Actions [horizon, robot's dimensions] f32, in the robot's units.

        images: a u8 [height, width, 3] array a camera slot, or None where that camera is off; at least one. prompt: text,
        token ids, or None for set_prompt()'s. state: the robot's own values; part of pi0.5's prompt, an input of pi0.
        noise: [horizon, action_dim] f32, else drawn from `seed` (0 if none), the same on every device. frozen: the
        first actions of the chunk, normalised [n, action_dim], which the rest continues (pi05).
        Lists of images, prompts, ... of `batch` observations: predict_batch()."""
        return self.predict_batch([dict(images=images, prompt=prompt, state=state, noise=noise, seed=seed, frozen=frozen)])[0]

    def predict_batch(self, observations):
        """Actions [observations, horizon, dimensions] of dicts with predict()'s arguments."""
        given = [self._observation(**o) for o in observations]
        raw = self._live.predict(given)
        return self._np.frombuffer(raw, self._np.float32).reshape(len(given), self._limits["horizon"], -1).copy()

    def normalized(self, observation: int = 0):
        """The network's own actions of the last predict(): [horizon, action_dim], of which frozen= takes the first."""
        raw = self._live.normalized(observation)
        return self._np.frombuffer(raw, self._np.float32).reshape(self._limits["horizon"], -1).copy()

    def device_us(self) -> float:
        """What the last predict() took on the GPU, by the GPU's own clock: both graphs and the copies around them. 0 on the CPU and for pi0fast."""
        return self._live.device_us()

    def observe(self, **observation) -> list:
        """[(name, step, value)] of what the pipeline computes on the way; see docs/models/pi05.md."""
        np = self._np
        seen = []
        for name, step, dtype, raw, shape in self._live.observe([self._observation(**observation)]):
            if dtype == "bf16":
                value = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                value = np.frombuffer(raw, {"f32": np.float32, "f16": np.float16, "i32": np.int32}[dtype])
            seen.append((name, step, value.reshape(shape)))
        return seen

    def _observation(self, images, prompt=None, state=None, noise=None, seed=None, frozen=None, end_token=None) -> dict:
        np = self._np

        def values(what, v, rank):
            if v is None:
                return None
            try:
                a = np.ascontiguousarray(v, np.float32)
            except (TypeError, ValueError):
                raise InvalidArgumentError(f"{what}: wanted numbers, got {type(v).__name__}") from None
            if a.ndim != rank:
                raise InvalidArgumentError(f"{what}: wanted {rank} axes, got {a.ndim}")
            if rank == 2 and a.shape[1] != self._limits["action_dim"]:
                raise InvalidArgumentError(f"{what}: wanted rows of {self._limits['action_dim']}, got {a.shape[1]}")
            return a

        state = values("state", state, 1)
        if seed is not None and not 0 <= seed < 1 << 64:
            raise InvalidArgumentError(f"seed: wanted 0 to 2^64 - 1, got {seed}")
        tokens = self._tokens(self._prompt if prompt is None else prompt, state)
        if end_token is None:
            end_token = self._encode("|")[0] if self._family == "pi0fast" and self._text is not None else 1
        return dict(frames=list(images), tokens=tokens, state=state, end_token=end_token,
                    noise=values("noise", noise, 2), seed=seed or 0, frozen=values("frozen", frozen, 2))

    def _tokens(self, prompt, state) -> list[int]:
        if prompt is None:
            raise InvalidArgumentError("prompt: give text or token ids, or set_prompt() before")
        if not isinstance(prompt, str):
            return [int(t) for t in prompt]
        in_prompt = self._family in ("pi05", "pi0fast")
        if in_prompt and state is None:
            raise InvalidArgumentError(f"state: {self._family} writes it into the prompt; give it, or token ids as prompt")
        words = self._live.normalize_state([float(v) for v in state]) if in_prompt else None
        ids = [BOS, *self._encode(prompt_text(self._family, prompt, words))]
        # lerobot's pi0-FAST begins the answer with a second BOS, which is part of the prompt.
        return ids + [BOS] if self._family == "pi0fast" else ids if in_prompt else ids + self._encode("\n")

    def _encode(self, text: str) -> list[int]:
        if self._text is None:
            from vivace.text import load_text

            where = Path(self._tokenizer) if self._tokenizer is not None else Path(self._path)
            folder = where if where.is_dir() else where.parent
            model = where if where.suffix == ".model" else folder / "tokenizer.model"
            if where.suffix != ".model" and (folder / "tokenizer.json").exists():
                self._text = load_text(str(folder), {}, checkpoint=self._path).encode
            elif model.exists():
                pieces = _core.load_tokenizer(str(model))
                self._text = lambda words: pieces.encode(words.encode())
            else:
                raise NotFoundError(f"tokenizer: neither tokenizer.json nor tokenizer.model is in {folder}; name one with tokenizer=, or give token ids")
        return self._text(text)
