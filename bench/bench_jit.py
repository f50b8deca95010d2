#!/usr/bin/env python3
"""Times the compile of all kernels for the GPU of this machine: cold, with 16 cores, and again from the cache; of each op's
kernels one by one, as first calls do; and of variants of attention.

    python bench/bench_jit.py --facts FILE --out DIR [--cache FOLDER] [--all-cores]

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
GOAL_CORES = 16  # that the goal for the whole set speaks of
# Variants' first calls in seconds, and [kernel, milliseconds of its compile alone] of everything these calls compiled.
CALLS = """
import json
from vivace import jit, ops
from tests.gpu.test_attention_variant import pages_variants
took = pages_variants()
import torch
from bench.bench_gpu import Tensors
from bench.op_shapes import GPU_SAMPLE, GPU_VARIANTS, gpu_case
for op, variants in GPU_VARIANTS.items():
    for v in variants:
        Tensors(op, gpu_case(op, v, 50, 1024), 0).call()
Tensors("sample", GPU_SAMPLE["topk_topp"], 0).call()
for T in (1, 50, 576):
    x, w, out = (torch.zeros(a, b, dtype=torch.bfloat16, device="cuda") for a, b in ((T, 1024), (4096, 1024), (T, 4096)))
    ops.gemm(x=x, w=w, out=out)
torch.cuda.synchronize()
print(json.dumps([took, [[kernel, ms] for kernel, origin, ms in jit.kernel_timings() if origin == "compiled"]]))
"""


def python(code, *words, cores=None, **env):
    """The last line that a process of its own prints, read as JSON; on so many cores."""
    free = sorted(os.sched_getaffinity(0))
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], cwd=ROOT, env=os.environ | env, capture_output=True, text=True,
                          preexec_fn=lambda: os.sched_setaffinity(0, free[:cores]))
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def turn(folder, cache, arch, jobs, cores=None):
    """Facts of one `vivace pack` to `folder` with the cache in `cache`."""
    return python(TURN, f"{folder}/all.vvp", arch, jobs, cores=cores, VIVACE_CACHE=str(cache))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--facts", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True, help="folder under which bench/results/<chip> is written")
    p.add_argument("--cache", type=Path, help="default: a folder that is gone afterwards")
    p.add_argument("--all-cores", action="store_true", help="compile the whole set with all cores, too, after everything else")
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

        def cold(cache, n):
            load = os.getloadavg()[0]  # of whatever else runs there
            facts = turn(folder, cache, arch, n, n)
            row("jit", f"set=all,cores={n},cache=cold", facts["seconds"], facts["kernels"], f"mean_ms_a_kernel={1e3 * facts['seconds'] * n / max(1, facts['kernels']):.0f} load_before={load:.1f}")

        few = min(cores, GOAL_CORES)
        cold(cache, few)
        warm = turn(folder, cache, arch, few, few)
        row("jit", f"set=all,cores={few},cache=warm", warm["seconds"], warm["kernels"])
        first, compiled = python(CALLS, VIVACE_CACHE=f"{folder}/empty", VIVACE_TEST_DEVICE="cuda")
        for name, seconds in first.items():
            row("attention", f"variant={name},cache=cold", seconds, 1, "first call, with its compile, one after the other")
        slowest = {}
        for expression, ms in compiled:
            slowest.setdefault(expression.split("<")[0].split("::")[-1], []).append((ms, expression))
        for name, all_of_it in sorted(slowest.items()):
            ms, expression = max(all_of_it)
            row(name, "cache=cold,compile=alone", ms / 1e3, len(all_of_it), "the slowest: " + expression.replace("vivace::kernels::", "")[:160])
        if args.all_cores and cores > few:
            cold(Path(folder) / "all-cores", cores)
    print(r.write("bench"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
