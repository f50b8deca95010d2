"""`vivace demo reach`: a policy of pi0.5's architecture moves an arm to the thing that a sentence names, from two cameras."""
from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import vivace
from vivace.demo import arm, picture
from vivace.demo.weights import unpacked
from vivace.errors import InvalidArgumentError, NotFoundError

FOLDER = Path(__file__).parent / "tiny-pi05"
CAMERAS = ("front", "above")
SIDE = 112           # of a camera's frame, which is what the policy takes
HORIZON = 10         # actions of a chunk
USED = 5             # of them, before the arm looks again
STEPS = 40           # an episode ends where the tip is still outside after so many
WORDS = 24           # most tokens of a prompt
FILMED = 4           # episodes in a picture
MOST, MOST_SEED = 10_000, 1 << 40


@dataclass
class Episode:
    seed: int
    words: str                                    # what the policy was told
    scene: arm.Scene
    reached: bool = False
    path: list = field(default_factory=list)      # joints [3] at the start and after each step

    @property
    def steps(self) -> int:
        return len(self.path) - 1


def task(colour: str, shape: str) -> str:
    return f"reach the {colour} {shape}"


def colour_number(word: str | None) -> int | None:
    if word is not None and word not in arm.COLOURS:
        raise InvalidArgumentError(f"goal: wanted one of {', '.join(arm.COLOURS)}, got {word!r}")
    return None if word is None else list(arm.COLOURS).index(word)


def words_of(scene: arm.Scene, thing: int = 0) -> str:
    """What names a thing of a scene."""
    return task(list(arm.COLOURS)[scene.colour[0][thing]], arm.SHAPES[int(scene.block[0][thing])])


def load(device="auto", precision="auto", batch=1, threads=0, folder=FOLDER, horizon=0, steps=0, **more):
    """The policy. horizon, steps: 0 is the checkpoint's. more: other options of vivace.load_model(). Errors: as vivace.load_model() and weights.unpacked()."""
    return vivace.load_model(unpacked(folder), config="pi05", num_views=arm.Cameras.VIEWS, prompt_tokens=WORDS, batch=batch, action_horizon=horizon, num_steps=steps, device=device, precision=precision, threads=threads, **more)


def run(policy, seeds, *, batch=1, goal: str | None = None, told: int = 0, each=None, cameras=None) -> tuple[list[Episode], list[float]]:
    """Closed-loop episodes, `batch` side by side, and the seconds of each predict_batch().

    goal: a colour that every scene then asks for. told: which thing the words name; 0 is the one that counts as reached.
    each: called with every episode that ended. cameras: what draws, else arm.Cameras. An episode depends on its seed alone, so two policies can be compared."""
    colour, cameras, done, seconds = colour_number(goal), cameras or arm.Cameras(SIDE), [], []
    for first in range(0, len(seeds), batch):
        live = []
        for seed in seeds[first:first + batch]:
            scene = arm.scene(seed, colour)
            live.append(Episode(seed, words_of(scene, told), scene, path=[scene.start[0]]))
        group = list(live)
        while live:
            q = np.stack([e.path[-1] for e in live])
            frames = cameras.frames(arm.join([e.scene for e in live]), q)
            seen = [dict(images=list(f), prompt=e.words, state=s, seed=e.seed * STEPS + e.steps) for f, e, s in zip(frames, live, q)]
            begin = time.perf_counter()
            turns = policy.predict_batch(seen)
            seconds.append(time.perf_counter() - begin)
            for e, chunk in zip(live, turns):
                _follow(e, chunk[:USED])
            live = [e for e in live if not e.reached and e.steps < STEPS]
        done += group
        for e in group if each else ():
            each(e)
    return done, seconds


def _follow(e: Episode, turns) -> None:
    """Turns the joints until the tip is in the thing or the turns are spent."""
    for turn in turns:
        e.path.append(arm.turned(e.path[-1], turn))
        e.reached = bool(np.linalg.norm(arm.tip(np, e.path[-1]) - e.scene.things[0, 0]) < arm.RADIUS)
        if e.reached or e.steps == STEPS:
            return


def histogram(seconds, rows=8) -> list[str]:
    """Lines of a histogram of milliseconds; what is far above the median shares the last line."""
    ms = np.sort(np.asarray(seconds)) * 1e3
    low, high = ms[0], max(min(ms[-1], 2 * float(np.median(ms))), ms[0] + 1e-3)
    width = (high - low) / rows
    counts = np.bincount(np.minimum(((ms - low) / width).astype(int), rows - 1), minlength=rows)
    return [f"  {low + i * width:8.2f} ms {'and more ' if i + 1 == rows and ms[-1] > high else '         '}{'#' * math.ceil(40 * n / counts.max()):<40} {n}" for i, n in enumerate(counts)]


def show(*, device="auto", precision="auto", threads=0, episodes=10, seed=0, goal=None, out=None, say=None) -> dict:
    """What `vivace demo reach` does: episodes, how many reached, how long calls took, and a picture. `say` gets its lines.
    Errors: InvalidArgumentError, NotFoundError (out's folder), and those of vivace.load_model()."""
    if not 1 <= episodes <= MOST:
        raise InvalidArgumentError(f"episodes: wanted 1 to {MOST}, got {episodes}")
    if not 0 <= seed < MOST_SEED:
        raise InvalidArgumentError(f"seed: wanted 0 to {MOST_SEED - 1}, got {seed}")
    colour_number(goal)
    if out is not None:
        check_out(out)
    say = say or (lambda line: None)

    def each(e):
        say(f'episode {e.seed}: "{e.words}": ' + (f"reached after {e.steps} steps" if e.reached else f"not within {STEPS} steps"))

    with load(device, precision, threads=threads) as policy:
        facts = policy.report()
        ended, seconds = run(policy, range(seed, seed + episodes), goal=goal, each=each)
    reached = [e for e in ended if e.reached]
    calls = seconds[1:] or seconds  # the first one warms caches up
    p50, p99 = (float(np.quantile(calls, q)) * 1e3 for q in (0.5, 0.99))
    say(f"reached {len(reached)} of {len(ended)} ({len(reached) / len(ended):.0%})" + (f", after {np.mean([e.steps for e in reached]):.1f} steps on average" if reached else ""))
    say(f"predict() on {facts['device']} in {facts['precision']}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, {len(calls)} calls, one for {USED} steps")
    for line in histogram(calls):
        say(line)
    if out is not None:
        say(f"{out}: {film(ended[:FILMED], out):,} bytes")
    return {"device": facts["device"], "precision": facts["precision"], "episodes": [{"seed": e.seed, "words": e.words, "reached": e.reached, "steps": e.steps} for e in ended],
            "success": len(reached) / len(ended), "p50_ms": p50, "p99_ms": p99, "calls": len(calls), "out": out}


def film(episodes, path, size=200) -> int:
    """Writes the episodes as an animated PNG; returns its bytes."""
    cameras, frames, waits = arm.Cameras(size), [], []
    for e in episodes:
        for i, q in enumerate(e.path):
            last = i == e.steps
            frames.append(picture.frame(cameras.frames(e.scene, q[None])[0], e.words, last and e.reached))
            waits.append(1500 if last else 600 if i == 0 else 80)
    return picture.write(path, frames, waits)


def check_out(path, kinds=(".apng", ".png")) -> None:
    """Refuses a name that can't be written before anything is run."""
    out = Path(path)
    if out.suffix.lower() not in kinds:
        raise InvalidArgumentError(f"out: wanted a name that ends with {' or '.join(kinds)}, got {path!r}")
    if not out.parent.is_dir():
        raise NotFoundError(f"out: there is no folder {out.parent}")
    if out.is_dir():
        raise InvalidArgumentError(f"out: {path} is a folder")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise InvalidArgumentError(f"out: {path} can't be written")
