"""Scales of activations for precision="fp8_static", from what prompts bring; kept beside the other caches.

    vivace calibrate --model folder/ [--prompts FILE] [--percentile 99.999] [--device cuda]

load_model(precision="fp8_static") does the same when no scales of this checkpoint are kept. A file of scales is
named after a digest of the whole checkpoint, the plan, the percentile and the prompts: anything else is calibrated anew.
e4m3 is a float format: a scale that covers the largest value costs hardly any precision, so the default is 100.
"""
from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vivace import _core
from vivace.errors import InvalidArgumentError
from vivace.fetch import cache_dir

PLAN = "fp8_static"
PERCENTILE = 100.0
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


def act_scales(path, prompts=None, *, percentile: float = PERCENTILE, device: str = "auto", chunk: int = 128, random_weights: bool = False) -> list[float]:
    """A scale for each place where activations enter products, in the order of the step. `prompts`: strings or lists of
    token ids; None: PROMPTS, or spread ids for random weights. Reads the kept file, or loads the model in bf16, runs
    the prompts and keeps the result."""
    path = os.fspath(path)
    prompts = list(prompts) if prompts is not None else None
    if prompts is not None and not prompts:
        raise InvalidArgumentError("calibrate: no prompt: nothing would be seen")
    name = hashlib.sha256(json.dumps([checkpoint_digest(path), PLAN, percentile, prompts if prompts is not None else list(PROMPTS), random_weights]).encode()).hexdigest()
    file = cache_dir() / "calibration" / f"{name}.json"
    if (kept := _read(file)) is not None:
        return kept
    core = _core.load_text_model(path, device=device, precision="bf16", kv_dtype="auto", threads=0, context=0, max_batch=1, chunk=chunk, random_weights=random_weights)
    limits = core.limits()
    ids = [_ids(path, p, limits)[: limits["context"]] for p in prompts or ([] if random_weights else PROMPTS)]
    if not ids:
        ids = [[(i * 7919 + 13) % limits["vocab"] for i in range(min(256, limits["context"]))]]
    scales = core.calibrate(ids, percentile)
    del core
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps({"checkpoint": path, "plan": PLAN, "percentile": percentile, "act_scales": scales}))
    part.replace(file)  # whole or not there
    return scales


def _read(file: Path) -> list[float] | None:
    """The scales of a kept file; None where it is not there or not whole: it will be written anew."""
    try:
        scales = json.loads(file.read_text())["act_scales"]
        return [float(s) for s in scales]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ids(path: str, prompt, limits) -> list[int]:
    if not isinstance(prompt, str):
        return list(prompt)
    from vivace.text import load_text

    return load_text(path, _core.read_metadata(path)).prompt_ids(prompt)


def checkpoint_digest(path: str) -> str:
    """Of every byte of the checkpoint's weights and configuration. Files that have not changed since (size, times,
    inode) are not read again."""
    files = [Path(path)] if os.path.isfile(path) else sorted(p for p in Path(path).iterdir() if p.suffix in (".safetensors", ".gguf", ".json"))
    files += [p for p in [Path(path).parent / "config.json"] if os.path.isfile(path) and p.is_file() and path.endswith(".safetensors")]
    memo_file = cache_dir() / "calibration" / "digests.json"
    try:
        memo = json.loads(memo_file.read_text())
    except (OSError, ValueError):
        memo = {}

    def digest(file: Path) -> tuple[str, str]:
        s = file.stat()
        key = f"{file.resolve()}:{s.st_size}:{s.st_mtime_ns}:{s.st_ctime_ns}:{s.st_ino}"
        if key in memo:
            return key, memo[key]
        h = hashlib.blake2b(digest_size=32)
        with open(file, "rb") as f:
            while block := f.read(1 << 24):
                h.update(block)
        return key, h.hexdigest()

    with ThreadPoolExecutor(max(1, min(8, len(files)))) as pool:  # hashing leaves the interpreter's lock
        found = list(pool.map(digest, files))
    if any(key not in memo for key, _ in found):
        memo_file.parent.mkdir(parents=True, exist_ok=True)
        part = memo_file.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps({**memo, **dict(found)}))
        part.replace(memo_file)
    return hashlib.sha256("".join(f.name + d for f, (_, d) in zip(files, found)).encode()).hexdigest()
