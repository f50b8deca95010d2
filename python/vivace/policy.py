"""Vision-language-action policies: camera frames, a prompt and the arm's state in, a chunk of actions out."""
from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from vivace import _core
from vivace.errors import FailedPreconditionError, InvalidArgumentError, InvalidShapeError, NotFoundError, UnsupportedError
from vivace.loaded import Loaded
from vivace.model import find_compiler
from vivace.options import INT32, OBSERVATION, POLICY, ROBOT, checked, flag, floats, number, one, prompt_ids, real, shown, text, utf8, whole, wrong
from vivace.options import path as path_text

_STAGES = ("context", "actions", "whole")  # as PolicyModel::Stage


def load_policy(path, *, config="auto", num_views=0, action_horizon=0, num_steps=0, batch=1, prompt_tokens=0, device="auto", precision="auto", expert="bf16", partition=None, keep_partition=False,
                threads=0, resize="auto", statistics="auto", robot="", delta=(), tokenizer=None, codec="", max_action_tokens=0, calibration=None, percentile=100.0, random_weights=False, embodiment=None, tenant=None, **unknown) -> "Policy":
    """Loads a policy: what vivace.load_model(path, config=...) does.

    config: "pi05", "pi0", "pi0fast", "smolvla", "groot_n17", "groot_n16", or "auto": by config.json's type and the tensors. num_views: camera slots, 0 = the robot's (3 where it is not known). action_horizon, num_steps: of a chunk and its flow, 0 = the
    checkpoint's. batch: observations of one call. prompt_tokens: most tokens of a prompt. resize: "openpi"
    (antialiased, u8) or "lerobot" (bilinear, f32), of GR00T "area", "bicubic", "bilinear" or "none"; "auto" as the checkpoint was saved. statistics: "auto" reads
    norm_stats.json or lerobot's processor files and answers in the robot's units, "none" gives normalised actions.
    robot: which of several folders under assets/. delta: a boolean a dimension: that action is a step from the state. tokenizer:
    tokenizer.json or tokenizer.model of PaliGemma, where it is not beside the checkpoint; token ids need none.
    codec: of pi0fast, a folder with the actions' tokenizer.json and processor_config.json; without it tokens() works,
    predict() does not. max_action_tokens: most tokens of its answer (256).
    embodiment: of GR00T, the one whose encoders and decoder are loaded, a number or a name of embodiment_id.json; None: all of them, and each
    observation names its own. Other options of GR00T: docs/models/groot.md.
    precision: "auto" (f32, on a GPU bf16), "f32", "bf16", "fp8" (a scale a token), or "fp8_static": scales found by running
    `calibration`, a list of dicts with predict()'s arguments, in bf16; `percentile` of the magnitudes that they
    bring counts. They are kept beside the other caches, under a digest of the whole checkpoint, the plan, the shapes and the observations.
    expert: what the products of the action expert read in "fp8_static": "bf16", or of pi05 "e4m3", calibrated as the rest is (with "bf16" and
    "f32" the policy stays as it is, and its calibrate() gives the scales of the expert too). docs/models/pi05.md says what it costs in accuracy.
    partition: a share of a GPU's multiprocessors, in (0, 1), which no other policy of this process with a share runs on; None is all
    of the GPU. report()["multiprocessors"] says how many it became. The same bits either way. Of a scheduler's tenant (tenant=) a call has the whole GPU where no
    tenant with a partition works and no guaranteed call runs or waits when it begins (docs/scheduling.md), unless keep_partition=True.
    tenant: its place at a vivace.Scheduler, whose own load_model() gives it.
    Errors: NotFoundError, CorruptDataError, InvalidArgumentError (options, statistics by which nothing can be
    divided, another family's checkpoint), InvalidShapeError, OutOfMemoryError.
    """
    given = dict(config=config, num_views=num_views, action_horizon=action_horizon, num_steps=num_steps, batch=batch, prompt_tokens=prompt_tokens, device=device, precision=precision, expert=expert, partition=partition, keep_partition=keep_partition,
                 threads=threads, resize=resize, statistics=statistics, robot=robot, delta=delta, tokenizer=tokenizer, codec=codec, max_action_tokens=max_action_tokens, calibration=calibration, percentile=percentile,
                 random_weights=random_weights, embodiment=embodiment, tenant=tenant)
    given = checked("load_policy", POLICY, given | unknown)
    path = one("load_policy", "path", path_text, path)
    tokenizer, calibration, percentile, batch, tenant = (given.pop(name) for name in ("tokenizer", "calibration", "percentile", "batch", "tenant"))
    if partition is not None and not 0 < given["partition"] < 1:
        raise InvalidArgumentError(f"partition: wanted a share of the device in (0, 1), or None for all of it, got {partition}")
    if calibration is not None and precision != "fp8_static":
        raise InvalidArgumentError(f"calibration: only precision='fp8_static' has scales to calibrate, got {precision!r}")
    find_compiler(device)
    if not os.path.exists(path):
        raise NotFoundError(f"{path}: no such file or directory")
    given["partition"] = given["partition"] or 0.0
    named, given["embodiment"] = given["embodiment"], _number_of("load_policy", path, given["embodiment"])
    if isinstance(named, str):
        given["robot"] = named  # whose statistics count: several names may have one number
    if keep_partition and partition is None:
        raise InvalidArgumentError("keep_partition: there is none; give partition, a share of the device in (0, 1)")
    where = {name: given.pop(name) for name in ("device", "threads", "partition", "keep_partition")}
    del given["precision"]
    options = given

    def load(scales):
        return _core.load_policy(path, precision=precision, batch=batch, act_scales=scales, tenant=tenant, **options, **where)
    live = _scaled(load, path, calibration, percentile, tokenizer, options, where) if precision == "fp8_static" else load([])
    return Policy(path, live, tokenizer, (options, where))


def _scaled(take, path, observations, percentile, tokenizer, options, where):
    """take() with kept scales of these observations, or new ones."""
    from vivace.calibrate import used

    return used(lambda anew: _act_scales(path, observations, percentile, tokenizer, options, where, anew), take)


def _act_scales(path, observations, percentile, tokenizer, options, where, anew) -> list[float]:
    if observations is None or len(observations := _dicts("calibration", observations)) == 0:
        raise InvalidArgumentError('calibration: precision="fp8_static" takes its scales from observations; give some, or use "fp8"')
    with Policy(path, _core.load_policy(path, precision="bf16", **options, **where), tokenizer, (options, where)) as policy:
        return policy._kept_scales(observations, percentile, anew)


def _number_of(call, path, embodiment) -> int:
    """The number of an embodiment; -1 of None. Errors: InvalidArgumentError lists the names there are."""
    if not isinstance(embodiment, str):
        return -1 if embodiment is None else embodiment
    from vivace import files

    folder = Path(path)
    file = (folder if folder.is_dir() else folder.parent) / "embodiment_id.json"
    known = files.read_json(file) if file.exists() else {}
    number = known.get(embodiment) if isinstance(known, dict) else None
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InvalidArgumentError(f"{call}: embodiment: {shown(embodiment)} is none of {', '.join(map(str, known)) or 'the names in embodiment_id.json, of which the checkpoint has none: give a number'}")
    return number


def _dicts(call, observations) -> list[dict]:
    if isinstance(observations, (str, bytes, dict)) or not hasattr(observations, "__iter__"):
        raise wrong(call, "observations", "a list of dicts with predict()'s arguments", observations)
    return list(observations)


def _fields(call: str, np, observation, before="") -> list[tuple]:
    """(name, value) pairs of a dict of dicts: values are None, texts, floats and dense arrays."""
    if not isinstance(observation, dict):
        raise wrong(call, "observation", "a dict of fields", observation)
    pairs = []
    for key, value in observation.items():
        if not isinstance(key, str):
            raise wrong(call, "observation", "names as texts", key)
        name = before + key
        if isinstance(value, dict):
            pairs += _fields(call, np, value, name + "/")
        elif value is None or isinstance(value, str):
            pairs.append((name, value))
        else:
            try:
                array = np.asarray(value)
            except Exception as e:  # whatever a foreign array's conversion raises
                raise InvalidArgumentError(f"{call}: {name}: wanted an array in host memory ({type(e).__name__}: {e})") from None
            if array.dtype.kind not in "fiub":
                raise wrong(call, name, "numbers, a text or None", value)
            pairs.append((name, float(array) if array.ndim == 0 else np.ascontiguousarray(array)))
    return pairs


class Policy(Loaded):
    """A loaded policy. Calls of several threads take turns. Use as a context manager or close() it."""

    _kind = "policy"

    def __init__(self, path: str, core, tokenizer=None, loaded=None):
        import numpy

        super().__init__(path, core)
        self._np, self._loaded = numpy, loaded
        self._tokenizer, self._text, self._prompt = tokenizer, None, None
        self._limits = core.limits()
        facts = dict(core.report())
        self._family, self._words, self._robots = json.loads(facts["family"]), json.loads(facts["state_in_prompt"]), {}

    def report(self) -> dict:
        """Every decision of the load: family, precision, shapes, launches of the two graphs, memory."""
        return {"path": self._path, **{k: json.loads(v) for k, v in self._live.report()}, "memory": dict(self._live.memory())}

    def profile(self, graph: str = "context", in_step: bool = False) -> dict:
        """Times the "context" graph, the "actions" graph or both in a row ("whole"; of pi0fast with one token) and their launches, each
        kind by itself ("us") and, if asked for, by what the graph is faster without it ("in_step_us")."""
        if one("profile", "graph", text, graph) not in _STAGES:
            raise InvalidArgumentError(f"graph: wanted one of {', '.join(_STAGES)}, got {shown(graph)}")
        return self._live.profile(stage=_STAGES.index(graph), in_step=one("profile", "in_step", flag, in_step))

    def calibrate(self, observations, percentile: float = 100.0) -> list[float]:
        """Scales for precision="fp8_static" from what observations, dicts with predict()'s arguments, bring to each activation quantization point;
        of a policy loaded as "bf16" or "f32". load_model(calibration=...) does this by itself."""
        return self._live.calibrate(self._observations("calibrate", observations), one("calibrate", "percentile", real, percentile))

    def _kept_scales(self, observations, percentile, anew=False) -> list[float]:
        """calibrate()'s, kept under a digest of all that they depend on; of a policy loaded as "bf16"."""
        from vivace.calibrate import checkpoint_digest, kept

        given = self._observations("calibration", observations)
        options = {name: value for name, value in self._loaded[0].items() if (name, value) != ("expert", "bf16")}  # as before there was a choice
        seen = hashlib.sha256(json.dumps([checkpoint_digest(self._path), "fp8_static", "context", percentile, options]).encode())
        for o in given:
            for value in [*o["frames"], o["tokens"], o["state"], o["noise"], o["seed"], o["action_prefix"]]:
                seen.update(b"-" if value is None else self._np.ascontiguousarray(value).tobytes() + b"|")
        return kept(f"policy-{seen.hexdigest()}", {"checkpoint": self._path, "plan": "fp8_static", "percentile": percentile}, lambda: self._live.calibrate(given, percentile), anew)

    def recalibrate(self, observations, percentile: float = 100.0) -> None:
        """Takes an "fp8_static" policy's scales from other observations, from the next predict() on: what a new lamp or
        gripper asks for. Loads the checkpoint once more as bf16 while it measures; the scales are kept as at load."""
        if self.report()["precision"] != "fp8_static":
            raise FailedPreconditionError(f'recalibrate: precision {self.report()["precision"]!r} has no scales that are fixed; load with "fp8_static"')
        _scaled(self._live.set_act_scales, self._path, observations, percentile, self._tokenizer, *self._loaded)

    @property
    def tokenizer_path(self) -> str:
        """Where the tokenizer's files are looked for."""
        return os.fspath(self._tokenizer) if self._tokenizer is not None else self._path

    @property
    def state_in_prompt(self) -> bool:
        """Whether the words of a prompt hold the state."""
        return self._words

    def robot_of(self, robot="auto", cameras=()) -> tuple[str, list[str]]:
        """(name, cameras) that infer() and PolicyHost go by: "auto" is the checkpoint's own row, or "any" with the cameras of its config.json.
        Errors: InvalidArgumentError where the checkpoint tells neither."""
        given = checked("robot", ROBOT, dict(robot=robot, cameras=cameras))
        name, names = given["robot"], given["cameras"]
        if name == "auto":
            facts = self.report()
            name = "any" if names else facts["robot"]
            if name == "any" and not names and not (names := facts["cameras"]):
                raise InvalidArgumentError(f"robot: the checkpoint does not say whose it is; name one of {_core.robot_names()}, the last with cameras=[...]")
        elif name == "any" and not names:
            names = self.report()["cameras"]
        return name, names

    def infer(self, observation: dict, *, robot="auto", cameras=(), seed=None, noise=None, action_prefix=None, future_actions=None, future_steps=False, **groot) -> dict:
        """{"actions": [horizon, dimensions] f32} in the robot's units, of an observation by openpi's names: docs/robots.md has them.

        observation: fields by name, or dicts in dicts; pictures [height, width, 3] or [3, height, width], u8 or floats in [0, 1], of NumPy or
        PyTorch; a missing prompt is set_prompt()'s. robot, cameras: as PolicyHost's. Everything else: as predict()'s.
        Errors: InvalidArgumentError, InvalidShapeError, InvalidDTypeError name the field."""
        mine, given = self._read("infer", observation, robot, cameras)
        if future_actions is not None:
            actions = self._future("infer", given["state"], one("infer", "future_actions", floats, future_actions), mine.dims)
            given["state"] = self._np.frombuffer(mine.roll(given["state"].tobytes(), actions.tobytes(), one("infer", "future_steps", flag, future_steps)), self._np.float32)
        actions = self._predict("infer", [dict(**given, noise=noise, seed=seed, action_prefix=action_prefix, **groot)])[0]
        return {"actions": self._np.frombuffer(mine.to_robot(actions.tobytes()), self._np.float32).reshape(len(actions), -1).copy()}

    def _future(self, call, state, actions, dims):
        """`actions` [n, dims] that lead on from `state`. Errors: UnsupportedError of a policy that takes no state, InvalidArgumentError, InvalidShapeError."""
        if not self._limits["sees_state"]:
            raise UnsupportedError(f"{call}: future_actions: this {self._family} takes no state; join chunks by prefix, blend or swap")
        if actions.ndim != 2 or actions.shape[1] != dims or len(actions) > self._limits["horizon"]:
            raise InvalidShapeError(f"{call}: future_actions: wanted at most {self._limits['horizon']} rows of {dims}, got {list(actions.shape)}")
        if not self._np.isfinite(actions).all():
            raise InvalidArgumentError(f"{call}: future_actions: a value is not finite")
        if state is None:
            raise InvalidArgumentError(f"{call}: future_actions: the state that they lead on from is missing")
        return actions.astype(self._np.float32)

    def _read(self, call, observation, robot="auto", cameras=()) -> tuple:
        """(the robot, predict()'s images, prompt and state) of an observation by names."""
        np = self._np
        key = (robot, *cameras) if isinstance(cameras, (list, tuple)) else None
        if key is None or key not in self._robots:
            self._robots[key] = _core.Robot.named(self._live, *self.robot_of(robot, cameras))
        mine = self._robots[key]
        frames, state, prompt = mine.read(_fields(call, np, observation))
        images = [None if f is None else np.frombuffer(f[0], np.uint8).reshape(f[1], f[2], 3) for f in frames]
        return mine, dict(images=images, prompt=prompt, state=None if state is None else np.frombuffer(state, np.float32))

    def set_prompt(self, prompt) -> None:
        """What predict() uses when it is given no prompt: text, or token ids."""
        self._prompt = self._checked_prompt("set_prompt", prompt)

    def tokens(self, images, prompt=None, state=None, *, end_token=None) -> list[int]:
        """pi0fast: the tokens that the actions are made of, the end token too. end_token: None is "|" where there is a
        tokenizer, else 1 (end of text); -1 writes max_action_tokens of them."""
        return self._live.generate(self._observations("tokens", [dict(images=images, prompt=prompt, state=state, end_token=end_token)]))[0]

    def predict(self, images, prompt=None, state=None, noise=None, seed=None, *, action_prefix=None, future_actions=None, future_steps=False, **groot):
        """Actions [horizon, robot's dimensions] f32, in the robot's units.

        images: a u8 [height, width, 3] array a camera slot, or None where that camera is off; at least one. prompt: text,
        token ids, or None for set_prompt()'s. state: the robot's own values; part of pi0.5's prompt, an input of pi0.
        noise: [horizon, action_dim] f32, else drawn from `seed` (0 if none), the same on every device. action_prefix: the
        first actions of the chunk, normalised [n, action_dim], which the rest continues (pi05). future_actions: [n, robot's dimensions], what will have been
        executed before the chunk begins: the state becomes where the last of them leads or, with future_steps, the state and their sum (of infer() by the
        robot's rules, here of as many leading values as both have). groot: of GR00T alone, embodiment, and prev_actions
        [n, action_dim], overlap and frozen, by which a chunk continues the one that runs (docs/models/groot.md).
        Lists of images, prompts, ... of `batch` observations: predict_batch()."""
        return self._predict("predict", [dict(images=images, prompt=prompt, state=state, noise=noise, seed=seed, action_prefix=action_prefix, future_actions=future_actions,
                                              future_steps=future_steps, **groot)])[0]

    def predict_batch(self, observations):
        """Actions [observations, horizon, dimensions] of dicts with predict()'s arguments."""
        return self._predict("predict_batch", observations)

    def _predict(self, call, observations):
        given = self._observations(call, observations)
        raw = self._live.predict(given)
        return self._np.frombuffer(raw, self._np.float32).reshape(len(given), self._limits["horizon"], -1).copy()

    def normalized(self, observation: int = 0):
        """The network's own actions of the last predict(), whichever thread called it: [horizon, action_dim], of which action_prefix= takes the first."""
        raw = self._live.normalized(one("normalized", "observation", whole(0, INT32 - 1), observation))
        return self._np.frombuffer(raw, self._np.float32).reshape(self._limits["horizon"], -1).copy()

    def expect_in(self, seconds: float) -> None:
        """Of a policy that a vivace.Scheduler loaded as guaranteed: its next call comes in so long, and others stand back just before. Nothing for any other; a guess
        that was wrong costs the others a millisecond. control.Loop says it by itself."""
        seconds = one("expect_in", "seconds", number, seconds)
        if seconds < 0:
            raise wrong("expect_in", "seconds", "0 or more", seconds)
        if (tenant := self.tenant) is not None and tenant.guaranteed():
            tenant.expect_in(seconds)

    def device_us(self) -> float:
        """What the last predict() took on the GPU, by the GPU's own clock: both graphs and the copies around them. 0 on the CPU and for pi0fast."""
        return self._live.device_us()

    def observe(self, **observation) -> list:
        """[(name, step, value)] of what the pipeline computes on the way; see docs/models/pi05.md."""
        np = self._np
        seen = []
        for name, step, dtype, raw, shape in self._live.observe(self._observations("observe", [observation])):
            if dtype == "bf16":
                value = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                value = np.frombuffer(raw, {"f32": np.float32, "f16": np.float16, "i32": np.int32, "u8": np.uint8}[dtype])
            seen.append((name, step, value.reshape(shape)))
        return seen

    def _observations(self, call, observations) -> list[dict]:
        """What the core takes of dicts with predict()'s arguments. Errors: InvalidArgumentError, InvalidShapeError name the call and the argument."""
        seen = []
        for o in _dicts(call, observations):
            if not isinstance(o, dict):
                raise wrong(call, "observations", "dicts with predict()'s arguments", o)
            o = checked(call, OBSERVATION, {name: value for name, value in o.items() if name != "prompt"}) | {"prompt": o.get("prompt")}
            if "images" not in o:
                raise InvalidArgumentError(f"{call}: images: wanted a frame, or None, for each camera")
            seen.append(self._observation(call, **o))
        return seen

    def _observation(self, call, images, prompt=None, state=None, noise=None, seed=None, action_prefix=None, future_actions=None, future_steps=False, end_token=None, embodiment=None, prev_actions=None, overlap=0, frozen=0) -> dict:
        for what, values, rank in (("state", state, 1), ("noise", noise, 2), ("action_prefix", action_prefix, 2), ("prev_actions", prev_actions, 2)):
            if values is None:
                continue
            if values.ndim != rank:
                raise InvalidShapeError(f"{call}: {what}: wanted {rank} axes, got {values.ndim}")
            if rank == 2 and values.shape[1] != self._limits["action_dim"]:
                raise InvalidShapeError(f"{call}: {what}: wanted rows of {self._limits['action_dim']}, got {values.shape[1]}")
        if future_actions is not None and len(actions := self._future(call, state, future_actions, self._limits["robot_dim"])):
            state, count = state.astype(self._np.float32), min(len(state), actions.shape[1])
            for row in actions if future_steps else actions[-1:]:
                state[:count] = state[:count] + row[:count] if future_steps else row[:count]
        tokens = self._tokens(self._prompt if prompt is None else self._checked_prompt(call, prompt), state, call, sum(i is not None for i in images))
        if end_token is None:
            end_token = self._encode("|")[0] if self._family == "pi0fast" and self._text is not None else 1
        return dict(frames=images, tokens=tokens, state=state, end_token=end_token, noise=noise, seed=seed or 0, action_prefix=action_prefix,
                    embodiment=_number_of(call, self._path, embodiment), prev_actions=prev_actions, overlap=overlap, frozen=frozen)

    @staticmethod
    def _checked_prompt(call, prompt):
        if prompt is None:
            return None
        return one(call, "prompt", utf8, prompt) if isinstance(prompt, str) else one(call, "prompt", prompt_ids, prompt)

    def _tokens(self, prompt, state, call="predict", images=0) -> list[int]:
        if prompt is None:
            raise InvalidArgumentError(f"{call}: prompt: give text or token ids, or set_prompt() before")
        if not isinstance(prompt, str):
            return prompt
        if self._family.startswith("groot_"):
            if self._text is None:
                self._text = _core.GrootPrompter.open(self.tokenizer_path, self._family)
            return self._text.tokens(prompt, images)
        in_prompt = self._words
        if in_prompt and state is None:
            raise InvalidArgumentError(f"{call}: state: {self._family} writes it into the prompt; give it, or token ids as prompt")
        parts = _core.prompt_parts(self._family, prompt, self._live.normalize_state(state.tolist()) if in_prompt else [], in_prompt)
        return [token for part in parts for token in ([part] if isinstance(part, int) else self._encode(part))]

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
