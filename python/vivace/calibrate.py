"""Scales of activations for precision="fp8_static", from what prompts bring; kept beside the other caches.

    vivace calibrate --model folder/ [--prompts FILE] [--percentile 99.999] [--device cuda]

load_model(precision="fp8_static") does the same when no scales of this checkpoint are kept. A file of scales is
named after a digest of the whole checkpoint, the plan, the percentile and the prompts: anything else is calibrated anew.
e4m3 is a float format: a scale that covers the largest value costs hardly any precision, so the default is 100.
"""
from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from vivace import _core, files
from vivace.cache import Cache
from vivace.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError
from vivace.fetch import cache_dir

T = TypeVar("T")
PLAN = "fp8_static"
PERCENTILE = 100.0
MOST_DIGESTS = 2000  # of files that are remembered
PROMPTS = (
    "The harbour was quiet in the early morning. Two boats had come back in the night, and their crews were still asleep.",
    "def mean(values):\n    \"\"\"Arithmetic mean of a non-empty list.\"\"\"\n    return sum(values) / len(values)\n",
    "Question: a train leaves at 9:40 and arrives at 13:05. How long does it travel? Answer: 3 hours and 25 minutes.",
    "Der Regen hatte aufgehört, und über den Dächern stand ein heller Streifen. Sie öffnete das Fenster.",
    '{"id": 1742, "tags": ["sensor", "left"], "value": -0.0371, "unit": "rad", "valid": true}',
    "La lumière traverse l\'eau jusqu\'à une centaine de mètres; plus bas, il fait nuit en plein jour.",
    "Pick up the red cup, put it on the tray next to the plate, then move back to the starting position.",
    "In 1887 the laboratory measured the speed of light along two arms and found no difference between them.",
)


def act_scales(path, prompts=None, *, percentile: float = PERCENTILE, device: str = "auto", prefill_chunk: int = 128, random_weights: bool = False, anew: bool = False) -> list[float]:
    """A scale for each activation quantization point, in the order of the step. `prompts`: strings or lists of
    token ids; None: PROMPTS, or spread ids for random weights. Reads the kept file, unless `anew`, or loads the model in
    bf16, runs the prompts and keeps the result."""
    path = os.fspath(path)
    prompts = list(prompts) if prompts is not None else None
    if prompts is not None and not prompts:
        raise InvalidArgumentError("calibrate: no prompt: nothing would be seen")
    _check_serves(path, random_weights)
    name = hashlib.sha256(json.dumps([checkpoint_digest(path), PLAN, percentile, prompts if prompts is not None else list(PROMPTS), random_weights]).encode()).hexdigest()
    return kept(name, {"checkpoint": path, "plan": PLAN, "percentile": percentile}, lambda: _calibrate(path, prompts, percentile, device, prefill_chunk, random_weights), anew)


def _calibrate(path, prompts, percentile, device, prefill_chunk, random_weights) -> list[float]:
    core = _core.load_text_model(path, device=device, precision="bf16", kv_dtype="auto", threads=0, context=0, max_batch=1, prefill_chunk=prefill_chunk, random_weights=random_weights)
    limits = core.limits()
    ids = [_ids(path, p, limits)[: limits["context"]] for p in prompts or ([] if random_weights else PROMPTS)]
    if not ids:
        ids = [[(i * 7919 + 13) % limits["vocab"] for i in range(min(256, limits["context"]))]]
    return core.calibrate(ids, percentile)


def _check_serves(path, random_weights) -> None:
    """Scales that no load would take are not looked for."""
    if random_weights:
        return
    quantized = next((e for e in _core.read_tensors(path) if e[1].startswith("q") and e[0].endswith("attn_output.weight")), None)
    if quantized:
        raise UnsupportedError(f"{path}: precision {PLAN}: the checkpoint's matrices are {quantized[1]} already; use native")


def kept(name: str, about: dict, make: Callable[[], list[float]], anew: bool = False) -> list[float]:
    """The scales kept under `name`; made and kept where there are none, none that are whole, or `anew`. `name` is a digest of all
    that they depend on; `about` says it to a reader of the file."""
    cache = Cache(cache_dir() / "calibration")
    if not anew and (body := cache.read(f"{name}.json")) is not None and (scales := _scales(body)) is not None:
        return scales
    scales = make()
    cache.write(f"{name}.json", json.dumps({**about, "act_scales": scales}).encode())
    return scales


def used(scales: Callable[[bool], list[float]], take: Callable[[list[float]], T]) -> T:
    """take() with scales(False), which may be kept ones; where they are not as many as the plan wants (another version of
    Vivace kept them), with scales(True), made anew."""
    first = scales(False)
    try:
        return take(first)
    except (FailedPreconditionError, InvalidArgumentError):  # a decoder's refusal, a policy's
        return take(scales(True))


def _scales(body: bytes) -> list[float] | None:
    try:
        scales = json.loads(body)["act_scales"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    good = isinstance(scales, list) and scales and all(type(s) in (float, int) and math.isfinite(s) and s > 0 for s in scales)
    return [float(s) for s in scales] if good else None


def _ids(path: str, prompt, limits) -> list[int]:
    if not isinstance(prompt, str):
        return list(prompt)
    from vivace.text import load_text

    return load_text(path, _core.read_metadata(path)).prompt_ids(prompt)


def checkpoint_digest(path: str) -> str:
    """Of every byte of the checkpoint's weights and configuration. Files that have not changed since (size, times,
    inode) are not read again."""
    parts = [Path(path)] if os.path.isfile(path) else sorted(p for p in Path(path).iterdir() if p.suffix in (".safetensors", ".gguf", ".json"))
    parts += [p for p in [Path(path).parent / "config.json"] if os.path.isfile(path) and p.is_file() and path.endswith(".safetensors")]
    cache = Cache(cache_dir() / "calibration")
    memo = _memo(cache.read("digests.json") or b"{}")

    def digest(file: Path) -> tuple[str, str]:
        try:
            s = file.stat()
        except OSError as e:
            raise files.system_error(file, e) from e
        key = f"{os.path.realpath(file)}:{s.st_size}:{s.st_mtime_ns}:{s.st_ctime_ns}:{s.st_ino}"
        if key in memo:
            return key, memo[key]
        h = hashlib.blake2b(digest_size=32)
        with open(files.open_regular(file), "rb") as f:
            while block := f.read(1 << 24):
                h.update(block)
        return key, h.hexdigest()

    with ThreadPoolExecutor(max(1, min(8, len(parts)))) as pool:  # hashing leaves the interpreter's lock
        found = list(pool.map(digest, parts))
    if any(key not in memo for key, _ in found):
        newest = list({**memo, **dict(found)}.items())[-MOST_DIGESTS:]
        cache.write("digests.json", json.dumps(dict(newest)).encode())
    return hashlib.sha256("".join(f.name + d for f, (_, d) in zip(parts, found)).encode()).hexdigest()


def _memo(body: bytes) -> dict[str, str]:
    try:
        memo = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return memo if isinstance(memo, dict) and all(isinstance(v, str) for v in memo.values()) else {}
