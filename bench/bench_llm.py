"""Decode and prefill of one GGUF file, ours and llama.cpp in turn: bench/results/cpu/llm.json, or another --suite.

    python bench/bench_llm.py --gguf MODEL.gguf --peer-python PEER_ENV/bin/python

The peer's environment holds llama-cpp-python built on this machine (bench/peers/llama_cpp.py). Each
round runs both, so that a machine whose speed drifts hurts both; figures are the medians over rounds.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.receipt import Receipt  # noqa: E402


def run(command) -> dict:
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if out.returncode:
        sys.exit(f"{' '.join(command)}\n{out.stderr}")
    return json.loads(out.stdout.strip().splitlines()[-1])


def ours(args) -> dict:
    data = run([sys.executable, "-m", "vivace.cli", "bench", "--json", "--device", "cpu", "--model", args.gguf, "--threads", str(args.threads), "--context",
                str(args.context), "--prefill-chunk", str(args.prefill_chunk), "--steps", str(args.steps), "--prompt-tokens", str(args.prompt)])
    step, prefill = data["rows"]
    return {"step": step["p50_us"], "step_p99": step["p99_us"], "prefill": prefill["p50_us"], "load_s": data["load_s"],
            "rss_mb": data["peak_rss_mb"], "cases": (step["case"], prefill["case"]), "n": step["n"]}


def peer(args) -> dict:
    data = run([args.peer_python, "bench/peers/llama_cpp.py", "--gguf", args.gguf, "--threads", str(args.threads), "--context", str(args.context),
                "--prompt-tokens", str(args.prompt), "--decode", str(args.steps)])
    return {"step": data["step_us"]["p50"], "step_p99": data["step_us"]["p99"], "prefill": data["prefill_s"] * 1e6,
            "load_s": data["load_s"], "rss_mb": data["peak_rss_bytes"] / 1e6, "version": data["binding"]}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gguf", required=True)
    p.add_argument("--peer-python", required=True)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--context", type=int, default=1024)
    p.add_argument("--prefill-chunk", type=int, default=512)
    p.add_argument("--steps", type=int, default=128)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--suite", default="llm", help="name of the receipt: one a model")
    p.add_argument("--dtype", default="q4_1", help="what most of the file's weights are")
    args = p.parse_args()
    args.gguf = os.path.abspath(args.gguf)

    a, b = [], []
    for _ in range(args.rounds):
        a.append(ours(args))
        b.append(peer(args))
    median = lambda rows, key: statistics.median(r[key] for r in rows)

    import vivace

    r = Receipt(args.suite, chip="cpu", command="python bench/bench_llm.py", versions={"vivace": vivace.__version__, "peer": b[0]["version"]},
                sources=["vivace/base/*.h", "vivace/cpu/**/*.cc", "vivace/cpu/**/*.h", "vivace/ops/*.h", "vivace/exec/*.cc", "vivace/models/decoder/*.cc", "vivace/serve/*.cc"])
    for metric, case in zip(("step", "prefill"), a[0]["cases"]):
        r.row(op="e2e", case=case, dtype=args.dtype, tactic=f"act=q8 threads={args.threads}", p50_us=median(a, metric),
              p99_us=median(a, "step_p99") if metric == "step" else None, n=a[0]["n"] * args.rounds if metric == "step" else 5 * args.rounds,
              peer="llama.cpp", peer_p50_us=median(b, metric),
              note=f"peak_rss_mb={median(a, 'rss_mb'):.0f} peer_peak_rss_mb={median(b, 'rss_mb'):.0f} load_s={median(a, 'load_s'):.3f} "
                   f"peer_load_s={median(b, 'load_s'):.3f}; median of {args.rounds} rounds in turn", **{"pass": True})
    path = r.write("bench")
    for row in r.data["rows"]:
        print(f"{row['case']:<75} {row['p50_us']:>10.1f} us  peer {row['peer_p50_us']:>10.1f} us  ratio {row['ratio']:.2f}")
    print(f"memory {median(a, 'rss_mb'):.0f} MB (peer {median(b, 'rss_mb'):.0f}), load {median(a, 'load_s'):.3f} s (peer {median(b, 'load_s'):.3f}); {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
