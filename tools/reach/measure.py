#!/usr/bin/env python3
"""How often tiny-pi05 reaches what it is told to, on a GPU, in every precision over the same seeds: tests/results/<chip>/reach.json.

    python tools/reach/measure.py [--episodes 500] [--precisions f32,bf16,fp8] [--folder FOLDER] [--no-receipt]

Rows: success of each precision (goal 90 %, and within 2 points of f32's); of f32 when the words name another thing, which
says that it is the words that count; cosines of each precision's actions with f32's from the same noise, of one observation at a
time and of a batch, in which "fp8" has 8 bits in the expert too; calls of one observation.
"""
import argparse
import functools
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.receipt import Receipt  # noqa: E402

import vivace  # noqa: E402
from vivace import device  # noqa: E402
from vivace.demo import arm, reach  # noqa: E402

GOAL, APART = 0.9, 0.02
SAMPLES = 500
BATCH = 50
SOURCES = ["python/vivace/demo/*.py", "python/vivace/demo/tiny-pi05/*", "vivace/models/vla/*.cc", "vivace/models/vla/*.h", "vivace/kernels/**/*.cuh", "tools/reach/measure.py"]


class Cameras(arm.Cameras):
    """... whose scenes are drawn side by side by threads: the same pictures."""

    def frames(self, scene, q):
        cuts = np.array_split(np.arange(len(q)), min(len(q), 12))
        one = super().frames
        with ThreadPoolExecutor(len(cuts)) as pool:
            return np.concatenate(list(pool.map(lambda c: one(arm.Scene(*(part[c] for part in scene)), q[c]), cuts)))


def success(episodes) -> float:
    return sum(e.reached for e in episodes) / len(episodes)


@functools.cache
def observations() -> list[dict]:
    """SAMPLES of them along the controller's way, each with its own noise."""
    cameras, out = Cameras(reach.SIDE), []
    for first in range(0, SAMPLES, BATCH):
        seeds = range(first, first + BATCH)
        scene = arm.join([arm.scene(s) for s in seeds])
        q = scene.start + (scene.goal - scene.start) * np.linspace(0, 0.9, BATCH)[:, None]
        frames = cameras.frames(scene, q)
        one = (arm.scene(s) for s in seeds)
        out += [dict(images=list(f), prompt=reach.words_of(s), state=j, seed=seed) for f, s, j, seed in zip(frames, one, q, seeds)]
    return out


def samples(policy, batch):
    """Normalised actions of them, [SAMPLES, horizon * joints]."""
    seen, out = observations(), []
    for first in range(0, SAMPLES, batch):
        policy.predict_batch(seen[first:first + batch])
        out += [policy.normalized(i)[:, :arm.JOINTS].ravel() for i in range(batch)]
    return np.stack(out).astype(np.float64)


def cosines(a, b):
    """Of rows: the rows' cosines, and what is to be said of them."""
    cosine = (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))
    low = ", ".join(f"{q:g} % {np.quantile(cosine, q / 100):.5f}" for q in (0, 1, 5, 50))
    return f"{low}; {np.mean(cosine >= 0.998):.1%} at 0.998 or more"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--episodes", type=int, default=500)
    p.add_argument("--precisions", default="f32,bf16,fp8", help="the first is what the others are compared with")
    p.add_argument("--folder", type=Path, default=reach.FOLDER)
    p.add_argument("--no-receipt", action="store_true")
    args = p.parse_args()
    info, state = device.info(), device.state()
    r = Receipt("reach", chip=info["name"], sm=info["arch"], driver=str(state["driver"]), clocks_mhz={"sm": state["sm_mhz"], "mem": state["memory_mhz"]}, sources=SOURCES, commit=os.environ.get("VIVACE_COMMIT", "dirty"),
                command=f"python tools/reach/measure.py --episodes {args.episodes} --precisions {args.precisions}", versions={"vivace": vivace.__version__})
    base, exact = None, {}

    def compare(policy, batch):
        actions = samples(policy, batch)
        a = exact.setdefault(batch, actions)
        if a is not actions:
            note, far = cosines(actions, a), float(np.abs(actions - a).max())
            r.row(**common, case=f"samples={SAMPLES},batch={batch},metric=cosine", n=SAMPLES, max_err=far, note=f"with {first}, quantiles: {note}")
            print(f"       cosine, batch {batch}: {note}; furthest action {far:.4f}", flush=True)

    first = args.precisions.split(",")[0]
    for precision in args.precisions.split(","):
        common = dict(op="reach", dtype=precision, tool="closed loop")
        with reach.load("cuda", precision, batch=BATCH, folder=args.folder) as policy:
            episodes, _ = reach.run(policy, range(args.episodes), batch=BATCH, cameras=Cameras(reach.SIDE))
            share, steps = success(episodes), np.mean([e.steps for e in episodes if e.reached] or [0])
            hits = [e.reached for e in episodes]
            note = f"{sum(hits)} of {len(hits)} reached, after {steps:.1f} steps on average"
            passes = share >= GOAL
            if base is not None:
                note += f"; of the same seeds {sum(a and not b for a, b in zip(base, hits))} only in the first precision, {sum(b and not a for a, b in zip(base, hits))} only in this"
                passes = passes and abs(share - np.mean(base)) <= APART
            r.row(**common, case=f"episodes={len(hits)},batch={BATCH},metric=success", share=share, note=note, **{"pass": bool(passes)})
            print(f"{precision:>5}: success {share:.1%}; {note}", flush=True)
            compare(policy, BATCH)
            if base is None:
                base = hits
                wrong, _ = reach.run(policy, range(max(1, args.episodes // 5)), batch=BATCH, told=1, cameras=Cameras(reach.SIDE))
                note = f"told to reach another thing: {sum(e.reached for e in wrong)} of {len(wrong)} come to the first one"
                r.row(**common, case=f"episodes={len(wrong)},batch={BATCH},metric=success,told=other", share=success(wrong), note=note, **{"pass": success(wrong) < 0.2})
                print(f"       {note}", flush=True)
        with reach.load("cuda", precision, folder=args.folder) as policy:
            _, seconds = reach.run(policy, range(20))
            compare(policy, 1)
        us = np.sort(seconds[5:]) * 1e6
        r.row(**common | dict(tool="host clock"), case="batch=1,metric=predict", p50_us=float(np.median(us)), p99_us=float(np.quantile(us, 0.99)), n=len(us))
        print(f"       predict of one: p50 {np.median(us):.0f} us, p99 {np.quantile(us, 0.99):.0f} us, {len(us)} calls", flush=True)
    if not args.no_receipt:
        print(r.write("tests"))


if __name__ == "__main__":
    main()
