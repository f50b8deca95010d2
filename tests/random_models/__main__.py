"""Draws whole models and requests and holds them to what must be true of any.

    python -m tests.random_models [--kind text|crowd|hybrid|qwen3_vl|policy|groot|smolvla|whisper] [--seed S] [--count N | --seconds N] [--device cuda] [--rows FILE]
    python -m tests.random_models --case '{"kind": "text", ...}'     # one case again, as a failure prints it

Cases are numbered from --seed. One that fails is made small and printed as a line that runs.
"""
import argparse
import json
import shlex
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import vivace
from tests.random_models import groot, groot_checks, policy, policy_checks, qwen3_vl, qwen3_vl_checks, smolvla, smolvla_checks, text, text_checks, whisper, whisper_checks
from tests.random_models.shrink import outcome, shrink

DRAWS = {"text": lambda s, d: text.draw(s, d), "crowd": lambda s, d: text.draw(s, d, crowd=True), "hybrid": lambda s, d: text.draw(s, d, hybrid=True), "qwen3_vl": qwen3_vl.draw, "policy": policy.draw, "groot": groot.draw, "smolvla": smolvla.draw, "whisper": whisper.draw}
CHECKS = {"text": text_checks, "qwen3_vl": qwen3_vl_checks, "policy": policy_checks, "groot": groot_checks, "smolvla": smolvla_checks, "whisper": whisper_checks}  # by a case's kind


def line(case, device):
    return f"python -m tests.random_models{' --device ' + device if device != 'cpu' else ''} --case {shlex.quote(json.dumps(case))}"


class Run:
    """What the cases of a kind came to."""

    def __init__(self, device):
        self.device, self.ran, self.refused, self.wrong, self.worst = device, 0, Counter(), [], {}

    def one(self, case):
        check = CHECKS[case["kind"]].check
        with tempfile.TemporaryDirectory() as folder:
            try:
                for name, share in check(case, Path(folder), self.device).items():
                    self.worst[name] = max(self.worst.get(name, 0), share)
            except text_checks.Wrong as e:
                self.wrong.append((case, e.args))
            except vivace.UnsupportedError as e:
                self.refused[str(e).removeprefix(folder)[:160]] += 1
                return
        self.ran += 1

    def report(self, small=True):
        """The failures, each with the line that runs it."""
        said = []
        for case, why in self.wrong[:3]:
            least = shrink(case, self.device) if small else case
            said.append(f"{': '.join(why)} (seed {case['seed']})\n    {line(least, self.device)}")
        return said


def main():
    p = argparse.ArgumentParser(prog="python -m tests.random_models", description=__doc__.splitlines()[0], formatter_class=argparse.RawDescriptionHelpFormatter, epilog=__doc__)
    p.add_argument("--kind", choices=[*DRAWS], nargs="+", default=[*DRAWS])
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--count", type=int, default=0, help="cases of each kind")
    p.add_argument("--seconds", type=float, default=0, help="of each kind; 0: 30, if there is no --count")
    p.add_argument("--device", default="cpu")
    p.add_argument("--rows", metavar="FILE", help="append the receipt's rows to FILE")
    p.add_argument("--case")
    args = p.parse_args()
    if args.device != "cpu":
        from vivace.jit import find_nvrtc

        find_nvrtc()
    if args.case:
        failed = outcome(json.loads(args.case), args.device)
        print(": ".join(failed) if failed else "holds")
        return 1 if failed else 0
    status = 0
    for kind in args.kind:
        run, begin, seed = Run(args.device), time.monotonic(), args.seed
        while seed - args.seed < args.count if args.count else time.monotonic() - begin < (args.seconds or 30):
            run.one(DRAWS[kind](seed, args.device))
            seed += 1
        shares = ", ".join(f"{k} {v:.2f}" for k, v in sorted(run.worst.items()))
        print(f"{kind}: seeds {args.seed} to {seed - 1}, {run.ran} models in {time.monotonic() - begin:.0f} s, {sum(run.refused.values())} refused, {len(run.wrong)} wrong; shares of bounds: {shares}", flush=True)
        for why, n in run.refused.most_common(5):
            print(f"    refused {n}: {why}")
        for said in run.report():
            print("WRONG", said, flush=True)
        status |= bool(run.wrong) or run.ran == 0
        if args.rows:
            note = f"seeds {args.seed} to {seed - 1}; {sum(run.refused.values())} refused; shares of bounds: {shares}"
            row = {"op": "all", "case": f"scope=models,kind={kind},seed={args.seed},metric=calls", "tool": "fuzz", "n": run.ran, "value": len(run.wrong), "pass": not run.wrong and run.ran > 0, "note": note}
            with open(args.rows, "a") as f:
                f.write(json.dumps(row) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
