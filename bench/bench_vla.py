"""pi0.5 and pi0 of published shapes on a GPU, random weights: bench/results/<chip>/vla.json.

    python bench/bench_vla.py [--warm] [--cases pi05-base:fp8:2] [--calls 200] [--profile]

`predict` is the wall: u8 frames in pageable host memory to actions on the host. `context` and `actions` are replays of
the two graphs alone; of pi0fast `actions` is one token, `predict` all of them. Floors are those of docs/design/080-policy-step.md; peers were measured on the same chip on an
earlier day, so their ratio says less than one measured in turn.
"""
import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.receipt import Receipt  # noqa: E402

WORDS, CODES = 64, 60
# policy, precision, views -> floor of the whole, us
FLOOR = {("pi05-base", "bf16", 2): 4950, ("pi05-base", "fp8", 2): 2660, ("pi05-base", "bf16", 3): 6540, ("pi05-base", "fp8", 3): 3550,
         ("pi0-base", "bf16", 2): 4760, ("pi0-base", "fp8", 2): 2560}
PEER = {("pi05-base", "bf16", 2): 16660, ("pi05-base", "fp8", 2): 14190}  # FlashRT, graph replay, chunk 10
CASES = ["pi05-base:bf16:2", "pi05-base:fp8_static:2", "pi05-base:fp8_static:1", "pi05-base:fp8_static:3", "pi0-base:fp8_static:2", "pi0fast-base:fp8:3", "pi05-base:fp8:2"]
SOURCES = ["vivace/models/vla/*.cc", "vivace/models/vla/*.h", "vivace/engine/*.cc", "vivace/kernels/**/*.cuh", "vivace/ops/*.h", "bench/bench_vla.py",
           "bench/configs/pi05-base/config.json", "bench/configs/pi0-base/config.json", "bench/configs/pi0fast-base/config.json"]


def quantile(values, q) -> float:
    return sorted(values)[min(int(q * len(values)), len(values) - 1)]


def walls(run, calls) -> list[float]:
    for _ in range(min(10, calls)):
        run()
    out = []
    for _ in range(calls):
        start = time.perf_counter()
        run()
        out.append((time.perf_counter() - start) * 1e6)
    return out


def warm(cases) -> None:
    """The loads below compile one kernel after the other; here each case does so beside the others."""
    running = [subprocess.Popen([sys.executable, __file__, "--cases", case, "--calls", "1", "--no-receipt"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for case in cases]
    for p in running:
        p.wait()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cases", default=",".join(CASES), help="policy:precision:views, with commas between")
    p.add_argument("--calls", type=int, default=200)
    p.add_argument("--profile", action="store_true", help="print what each kind of launch takes")
    p.add_argument("--no-receipt", action="store_true")
    p.add_argument("--warm", action="store_true", help="first compile every kernel, a process a case side by side: loads then take less of a borrowed machine's time")
    args = p.parse_args()
    if args.warm:
        warm(args.cases.split(","))

    import numpy as np

    import vivace
    from vivace import device

    info, state = device.info(), device.state()
    r = Receipt("vla", chip=info["name"], sm=info["arch"], driver=str(state["driver"]), clocks_mhz={"sm": state["sm_mhz"], "mem": state["memory_mhz"]},
                commit=os.environ.get("VIVACE_COMMIT", "dirty"), command="python bench/bench_vla.py", versions={"vivace": vivace.__version__}, sources=SOURCES)
    for case in args.cases.split(","):
        name, precision, views = case.split(":")
        views = int(views)
        rng = np.random.default_rng(0)
        words = 24 if name.startswith("pi0-") else WORDS
        observation = dict(images=[rng.integers(0, 256, (224, 224, 3), np.uint8) for _ in range(views)], prompt=list(range(2, 2 + words)), state=rng.standard_normal(8).astype(np.float32))
        kind = "fp8" if precision.startswith("fp8") else precision
        start = time.perf_counter()
        with vivace.load_model(ROOT / "bench/configs" / name, config=name.split("-")[0], device="cuda", precision=precision, num_views=views, action_horizon=50, num_steps=10,
                               prompt_tokens=48 if name.startswith("pi0-") else WORDS, max_codes=CODES, random_weights=True, calibration=[observation]) as policy:
            loaded = time.perf_counter() - start
            codes = name.startswith("pi0fast")
            run = (lambda: policy.tokens(**observation, end_token=-1)) if codes else (lambda: policy.predict(**observation, seed=0))
            run()
            first = time.perf_counter() - start
            wall = walls(run, max(args.calls // 20, 5) if codes else args.calls)
            stages = {stage: policy.profile(stage) for stage in ("context", "actions")}
            report = policy.report()
            replay = stages["context"]["step_us"] + stages["actions"]["step_us"] * (CODES - 1 if codes else 1)
            limit, peer = FLOOR.get((name, kind, views)), PEER.get((name, kind, views))
            tag = f"policy={name},views={views}," + (f"codes={CODES}" if codes else "horizon=50,steps=10")
            common = dict(op="e2e", dtype=precision, tactic=f"launches={report['context_launches']}+{report['action_launches']}")
            for stage, s in stages.items():
                r.row(**common, case=f"{tag},metric={stage}", p50_us=s["step_us"], n=1, tool="graph replay")
            r.row(**common, case=f"{tag},metric=replay", p50_us=replay, n=1, limit_us=limit, tool="sum of the two", peer="FlashRT, replay, chunk 10, archived" if peer else None, peer_p50_us=peer)
            r.row(**common, case=f"{tag},metric=predict", p50_us=quantile(wall, 0.5), p99_us=quantile(wall, 0.99), p999_us=quantile(wall, 0.999), n=len(wall), tool="host clock")
            print(f"{case:<18} context {stages['context']['step_us']:8.1f}  actions {stages['actions']['step_us']:8.1f}  replay {replay:8.1f}  predict p50 {quantile(wall, 0.5):8.1f}"
                  f"  p99.9 {quantile(wall, 0.999):8.1f} us  load {loaded:.1f} s  first {first:.1f} s", flush=True)
            for stage, s in stages.items() if args.profile else ():
                total = sum(g["us"] * g["launches"] for g in s["groups"])
                print(f"  {stage}: {s['step_us']:.1f} us, sum of its launches {total:.1f}")
                for g in sorted(s["groups"], key=lambda g: -g["us"] * g["launches"]):
                    rate = max(g["bytes"] / 4.25e12, g["flops"] / (7.9e14 if kind == "bf16" else 1.5e15)) * 1e6
                    print(f"    {g['op']:<16} x {g['launches']:>4}  {g['us']:8.2f} us  {g['us'] * g['launches']:8.1f}  floor {rate:7.2f}")
        if not args.no_receipt:  # after every case: a machine's time may end
            r.write("bench")


if __name__ == "__main__":
    main()
