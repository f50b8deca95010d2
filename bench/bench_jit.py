#!/usr/bin/env python3
"""Times the compile of all kernels for the GPU of this machine: cold, and again from the cache; and of a variant of attention.

    python bench/bench_jit.py --facts FILE --out DIR [--cache FOLDER]

Each turn is a process of its own with a cache folder that is empty (cold) or filled by the turn before (warm). FOLDER
is emptied first and left full, for whatever runs next.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.receipt import Receipt  # noqa: E402

TURN = "import json, sys; from vivace import pack; print(json.dumps(pack.build(sys.argv[1], [sys.argv[2]], sys.argv[4:], jobs=int(sys.argv[3]))))"
VARIANTS = "import json; from tests.gpu.test_attention_variant import pages_variants; print(json.dumps(pages_variants()))"


def turn(folder, cache, arch, jobs, *ops):
    """Facts of one `vivace pack` to `folder` with the cache in `cache`."""
    done = subprocess.run([sys.executable, "-c", TURN, f"{folder}/all.vvp", arch, str(jobs), *ops], env=os.environ | {"VIVACE_CACHE": str(cache)},
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--facts", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True, help="folder under which bench/results/<chip> is written")
    p.add_argument("--cache", type=Path, help="default: a folder that is gone afterwards")
    args = p.parse_args()
    facts = json.loads(args.facts.read_text())
    major, minor = facts["sm"].split(".")
    arch, cores = f"sm_{major}{minor}" + ("a" if int(major) >= 9 else ""), len(os.sched_getaffinity(0))
    r = Receipt("jit", sources=["vivace/jit/*.cc", "vivace/jit/*.h", "vivace/kernels/**/*.h", "vivace/kernels/**/*.cuh", "vivace/ops/*.h", "bench/bench_jit.py"],
                command="python bench/bench_jit.py", **facts)
    r.root = args.out

    def row(op, case, seconds, kernels, note=""):
        r.row(op=op, case=case, p50_us=seconds * 1e6, n=1, note=f"kernels={kernels} {note}".strip(), **{"pass": True})
        r.write("bench")  # as it comes: a turn may take longer than there is time
        print(f"{op:<12} {case:<36} {seconds:8.3f} s  {kernels} kernels {note}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        cache = args.cache or Path(folder) / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        cold = turn(folder, cache, arch, cores)
        row("jit", f"set=all,cores={cores},cache=cold", cold["seconds"], cold["kernels"], f"mean_ms_a_kernel={1e3 * cold['seconds'] * cores / max(1, cold['kernels']):.0f}")
        warm = turn(folder, cache, arch, cores)
        row("jit", f"set=all,cores={cores},cache=warm", warm["seconds"], warm["kernels"])
        done = subprocess.run([sys.executable, "-c", VARIANTS], cwd=ROOT, env=os.environ | {"VIVACE_CACHE": f"{folder}/empty", "VIVACE_TEST_DEVICE": "cuda"}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        for name, seconds in json.loads(done.stdout.splitlines()[-1]).items():
            row("attention", f"variant={name},cache=cold", seconds, 1, "first call, with its compile, one after the other")
    print(r.write("bench"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
