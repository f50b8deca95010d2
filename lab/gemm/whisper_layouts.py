"""Layouts of the products that Whisper's windows go through (1,500 tokens), each in a model of large-v3's width: rows for gemm_rows.inc.

    python lab/gemm/whisper_layouts.py [--seconds 240] > rows.txt

A layout serves all products of a load, so that a load times it for each; kernels are compiled by loads side by side before.
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
T, H, MLP = 1500, 1280, 5120
SHAPES = {"conv2": (H, 3 * H), "qkv": (3 * H, H), "o": (H, H), "up": (MLP, H), "down": (H, MLP)}  # in the order of their first launches


def layouts() -> list[tuple[int, ...]]:
    text = (ROOT / "vivace/ops/gemm_tiles.h").read_text()
    return [tuple(map(int, m)) for m in re.findall(r"{(\d+), (\d+), (\d+), (\d+)}", re.search(r"kMany\[\] = {(.*?)};", text, re.S)[1])]


def load(folder, layout):
    from vivace import _core
    from vivace.model import find_compiler

    find_compiler("cuda")
    if layout:
        _core.load_gemm_tactics("".join(f"bf16 {N} {K} {T} {' '.join(map(str, layout))} 1.0\n" for N, K in SHAPES.values()))
    return _core.load_speech(folder, device="cuda", precision="bf16", windows=1, rows=8, random_weights=True)


def times(profile) -> dict[str, float]:
    """us of each product; those of as many operations are told apart by their order."""
    found, wanted = {}, list(SHAPES)
    for g in profile["groups"]:
        for name in wanted:
            N, K = SHAPES[name]
            if g["op"] == "gemm" and abs(g["flops"] / (2 * T * N * K) - 1) < 0.01 and name not in found:
                found[name] = g["us"]
                break
    return found


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=float, default=240)
    p.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.one:
        layout = json.loads(args.one[1])
        core = load(args.one[0], layout)
        print(json.dumps(times(core.profile(1, 0))))
        return 0
    until, best, usual = time.monotonic() + args.seconds, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        config = json.loads((ROOT / "bench/configs/whisper-large-v3/config.json").read_text()) | {"encoder_layers": 4, "decoder_layers": 1}
        (Path(folder) / "config.json").write_text(json.dumps(config))
        run = lambda layout, **how: subprocess.Popen([sys.executable, __file__, "--one", folder, json.dumps(layout)], stdout=subprocess.PIPE, text=True, **how)  # noqa: E731
        every = [None, *layouts()]
        for first in range(0, len(every), 12):  # kernels into the cache; times of loads beside one another mean nothing
            for one in [run(layout, stderr=subprocess.DEVNULL) for layout in every[first:first + 12]]:
                one.communicate(timeout=120)
        for layout in every:
            if time.monotonic() > until:
                print(f"# no time left for {layout} and what follows", file=sys.stderr)
                break
            out, _ = run(layout, stderr=subprocess.DEVNULL).communicate(timeout=120)
            for name, us in (json.loads(out) if out.strip() else {}).items():
                if layout is None:
                    usual[name] = us
                elif us < best.get(name, (float("inf"),))[0]:
                    best[name] = (us, layout)
    for name, (us, layout) in best.items():
        N, K = SHAPES[name]
        print(f"ROW(bf16, {N}, {K}, {T}, {', '.join(map(str, layout))}, {us:.2f}f)  // {name}: {usual.get(name, 0):.2f} us as it is")
    return 0


if __name__ == "__main__":
    sys.exit(main())
