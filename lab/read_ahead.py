#!/usr/bin/env python3
"""What it brings that rope_attention asks for the past before its dependency wait: decode steps with the kernel as it is, and with every
request behind the wait, processes in turn on one GPU.

    python lab/read_ahead.py [--cases qwen3-0.6b:bf16:1:1024,...] [--rounds 2]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.planting import places, replaced  # noqa: E402

CASES = "qwen3-0.6b:bf16:1:1024,qwen3-8b:bf16:1:1024,qwen3-0.6b:bf16:8:1024,qwen3-8b:bf16:8:1024,qwen3-8b:bf16:1:16384"
KERNEL, AHEAD = "vivace/kernels/attention/rope_attention.cuh", "stable() { return P.stable; }"


def behind_the_wait(folder) -> str:
    source, to = (ROOT / KERNEL).read_text(), Path(folder) / KERNEL
    assert len(places(source, AHEAD)) == 1
    to.parent.mkdir(parents=True)
    to.write_text(replaced(source, AHEAD, "stable() { return false; }"))
    return str(folder)


def measure(case) -> float:
    import vivace
    from bench import bench_llm_device
    from vivace.bench import bench_text_model

    name, precision, rows, position = case.split(":")
    with bench_llm_device.load(vivace, name, precision, int(rows), context=2 * int(position), prefill_chunk=128) as model:
        step, *_ = bench_text_model(model, steps=400, prompt_tokens=128, batch=int(rows), position=int(position))
        return step["p50_us"]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--cases", default=CASES, help="model:precision:sequences:position, ...")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--one", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.one:
        return print(json.dumps(measure(args.one)))
    with tempfile.TemporaryDirectory() as folder:
        sides = {"as it is": {}, "behind the wait": {"VIVACE_KERNEL_DIR": behind_the_wait(folder)}}
        for case in args.cases.split(","):
            seen: dict[str, list] = {side: [] for side in sides}
            for _ in range(args.rounds):
                for side, env in sides.items():
                    done = subprocess.run([sys.executable, __file__, "--one", case], env=os.environ | env, cwd=ROOT, capture_output=True, text=True)
                    if done.returncode:
                        sys.exit(f"{case} {side}: {done.stderr[-800:]}")
                    seen[side].append(json.loads(done.stdout.splitlines()[-1]))
            for side, us in seen.items():
                print(f"{case:<26} {side:<16} {'  '.join(f'{u:9.1f}' for u in us)}  us", flush=True)


if __name__ == "__main__":
    main()
