"""Sums up fuzzing runs: tests/results/cpu/fuzz.json.

    python tests/fuzz/fuzz_receipt.py RUNS.txt ...

A line a run: target, exit status, user seconds, system seconds, inputs. A run that found something, or did not end by
itself, has another status than 0 and fails the receipt. Targets named tsan_ were built with ThreadSanitizer, the others
with AddressSanitizer and UBSan; tsan_tests are the C++ tests, counted as inputs. The hour is of the others alone.
"""
import collections
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.receipt import Receipt  # noqa: E402

HOUR = 3600


def main(files: list[str]) -> None:
    seconds, inputs, bad, runs = (collections.Counter() for _ in range(4))
    for file in files:
        for line in Path(file).read_text().splitlines():
            target, status, user, system, count = line.split()
            runs[target] += 1
            seconds[target] += float(user) + float(system)
            inputs[target] += int(count)
            bad[target] += status != "0"
    r = Receipt("fuzz", chip="cpu", command="python tests/fuzz/fuzz_receipt.py RUNS.txt",
                sources=["tests/fuzz/*.cc", "tests/fuzz/*.h", "tests/fuzz/*.py", "vivace/engine/checkpoint/*.cc", "vivace/engine/text/*.cc", "vivace/models/vla/codec.cc", "vivace/models/vla/statistics.cc", "vivace/engine/audio/wav.cc", "vivace/serve/reply_*.cc", "vivace/serve/call_*.cc", "vivace/serve/json_scan.cc", "vivace/serve/wire/*.cc", "vivace/models/vla/robots.cc", "vivace/jit/pack.cc", "python/src/checkpoint.cc", "python/vivace/text.py", "python/vivace/template*.py"])
    for target in sorted(runs):
        r.row(op="fuzz", case=f"target={target},runs={runs[target]},metric=findings", n=inputs[target], max_err=bad[target], bound=0,
              note=f"{seconds[target]:.0f} CPU seconds, {inputs[target]} {'tests' if target.endswith('_tests') else 'inputs'}", **{"pass": bad[target] == 0})
    total = sum(s for target, s in seconds.items() if not target.startswith("tsan_"))
    r.row(op="fuzz", case="target=all,metric=cpu_seconds", n=sum(n for t, n in inputs.items() if not t.startswith("tsan_")), note=f"{total:.0f} of {HOUR} CPU seconds", **{"pass": total >= HOUR and not any(bad.values())})
    print(r.write("tests").relative_to(ROOT), f"{total:.0f} CPU seconds, {sum(inputs.values())} inputs, {sum(bad.values())} findings")


if __name__ == "__main__":
    main(sys.argv[1:])
