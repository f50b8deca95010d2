"""Scales of activations for a speech model's precision="fp8_static", from sound; kept beside those of vivace.calibrate.

    vivace calibrate --model whisper-base --sound talk.wav [--sound MORE.wav] [--device cuda]

load_model(precision="fp8_static", calibration=[...]) does the same when no scales of this checkpoint and these sounds are kept."""
from __future__ import annotations

import hashlib
import json

from vivace import _core, audio
from vivace.calibrate import PERCENTILE, PLAN, checkpoint_digest, kept
from vivace.errors import InvalidArgumentError
from vivace.options import wrong

RATE = 16000


def act_scales(folder: str, sounds, *, percentile: float = PERCENTILE, device: str = "auto", threads: int = 0, random_weights: bool = False, anew: bool = False) -> list[float]:
    """A scale for each activation quantization point, windows before text. `sounds`: what transcribe() takes, arrays of 16,000 a second; of random weights
    None is noise. Reads the kept file, unless `anew`, or loads the model in bf16, hears the sounds and keeps the result."""
    samples = _samples(sounds, random_weights)
    name = hashlib.sha256(json.dumps([checkpoint_digest(folder), PLAN, percentile, random_weights]).encode())
    for x in samples:
        name.update(len(x).to_bytes(8, "little") + x.tobytes())

    def make() -> list[float]:
        core = _core.load_speech(folder, device=device, precision="bf16", threads=threads, rows=1, random_weights=random_weights)
        return core.calibrate(samples, percentile)
    return kept(f"speech-{name.hexdigest()}", {"checkpoint": folder, "plan": PLAN, "percentile": percentile}, make, anew)


def of_checkpoint(path: str, sounds, **options) -> list[float]:
    """act_scales() of a folder as load_model() takes it, CTranslate2's among them."""
    from pathlib import Path

    from vivace.speech.model import _hub_folder

    return act_scales(str(_hub_folder(Path(path))), sounds, anew=True, **options)


def _samples(sounds, random_weights: bool) -> list:
    import numpy as np

    if sounds is None and random_weights:
        return [np.random.default_rng(0).normal(0, 0.1, 30 * RATE).astype(np.float32)]
    if sounds is None:
        raise InvalidArgumentError(f'calibration: precision="{PLAN}" takes its scales from sound; give some, or use "fp8"')
    if isinstance(sounds, (str, bytes)) or not isinstance(sounds, (list, tuple)):
        raise wrong("load_model", "calibration", "a list of sounds, as transcribe() takes them", sounds)
    samples = [np.ascontiguousarray(audio.samples_of(sound, None, RATE), np.float32) for sound in sounds]
    if not any(len(x) >= RATE for x in samples):
        raise InvalidArgumentError("calibration: no sound of a second or more: nothing would be heard")
    return samples
