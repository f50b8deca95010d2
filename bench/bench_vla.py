"""pi0.5, pi0, pi0-FAST and GR00T of published shapes on a GPU, random weights: bench/results/<chip>/vla.json.

    python bench/bench_vla.py [--warm] [--parts cases,frames,start,jitter] [--cases pi05-base:fp8_static:2] [--calls 200] [--profile] [--partition 0.54]

`predict` is the wall: u8 frames in pageable host memory to actions on the host. `context` and `actions` are replays of
the launches of the two graphs, `replay` of both in a row; of pi0fast `actions` is one token, `predict` and `replay` all of them. A floor is what each
launch's bytes take at the copy rate, or its arithmetic where that takes longer, one launch after the other; peers were measured on the same chip on an earlier day, so their ratio says less than one
measured in turn. metric=jitter: calls back to back, and paced. metric=frames: predict() with frames that are not
of the network's size, which host, link and resize_pad have to do with. metric=start: from the start of a process to the first actions of a
checkpoint of that shape, its file in the page cache and its kernels in the kernel cache.
--device cpu with --configs FOLDER, where NAME/config.json of small policies lie, tries the script itself; then no receipt is written.
"""
import argparse
import gc
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.receipt import Receipt  # noqa: E402

WORDS, CODES = 64, 60
WHERE = {"device": "cuda", "configs": ROOT / "bench/configs", "partition": 0.0}
COPY_RATE, PRODUCT_RATE = 4.25e12, {"f32": 7.9e14, "bf16": 7.9e14, "fp8": 1.5e15}  # bytes and FLOP a second, measured on the H200
PEER = {("pi05-base", "bf16", 2): 16660, ("pi05-base", "fp8", 2): 14190}  # FlashRT, graph replay, chunk 10
CASES = ["pi05-base:bf16:2", "pi05-base:fp8_static:2", "pi05-base:fp8_static:1", "pi05-base:fp8_static:3", "pi0-base:fp8_static:2", "pi0fast-base:fp8_static:3", "pi0fast-base:fp8:3", "pi05-base:fp8:2", "pi05-base:bf16:2:8", "pi05-base:fp8_static:2:8", *(f"pi05-base:{precision}:2:1:{horizon}" for precision in ("fp8_static", "bf16") for horizon in (10, 15, 30)), "pi05-base:bf16:1", "pi05-base:bf16:3", "pi0fast-base:bf16:3", "pi0-base:bf16:2",
         "groot-n17:bf16:2", "groot-n17:fp8_static:2", "groot-n17:bf16:2:8", "groot-n16:bf16:2", "groot-n16:fp8_static:2", "groot-n16:bf16:2:8"]
# GR00T's pictures as its network takes them, 64 tokens each, the token that stands for one, and its horizon.
GROOT = {"groot-n17": (256, 151655, 40), "groot-n16": (224, 151669, 50)}
FRAMES = [(480, 640), (720, 1280), (1080, 1920)]
START = ("pi05-base", "bf16", 3e6)  # goal in us
SOURCES = ["vivace/models/vla/*.cc", "vivace/models/vla/*.h", "vivace/engine/*.cc", "vivace/kernels/**/*.cuh", "vivace/ops/*.h", "bench/bench_vla.py",
           "vivace/models/groot/*.cc", "vivace/models/groot/*.h", "vivace/models/vision/*.cc", "vivace/models/vision/*.h",
           *(f"bench/configs/{name}/config.json" for name in ("pi05-base", "pi0-base", "pi0fast-base", "groot-n17", "groot-n16"))]


def quantile(values, q) -> float:
    return sorted(values)[min(int(q * len(values)), len(values) - 1)]


def walls(run, calls, on_device=lambda: 0.0) -> list[tuple[float, float]]:
    """Wall of each call, and the device's own time of it."""
    for _ in range(min(10, calls)):
        run()
    out = []
    for _ in range(calls):
        start = time.perf_counter()
        run()
        out.append(((time.perf_counter() - start) * 1e6, on_device()))
    return out


def paced(run, on_device, seconds, hz) -> list[tuple[float, float]]:
    """Wall and the device's own time of calls that begin every 1/hz s, or of calls back to back."""
    for _ in range(20):
        run()
    out, first = [], time.perf_counter()
    while (begin := time.perf_counter()) - first < seconds:
        run()
        out.append(((time.perf_counter() - begin) * 1e6, on_device()))
        if hz:
            time.sleep(max(0.0, first + len(out) / hz - time.perf_counter()))
    return out


def warm(cases) -> None:
    """The loads below compile one kernel after the other; here each case does so beside the others."""
    running = [subprocess.Popen([sys.executable, __file__, "--parts", "cases", "--cases", case, "--calls", "1", "--no-receipt"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for case in cases]
    until = time.monotonic() + 90  # a case that hangs will be seen below
    for p in running:
        try:
            p.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()


def observation(name, views) -> dict:
    import numpy as np

    rng = np.random.default_rng(0)
    if name in GROOT:
        side, image, _ = GROOT[name]
        return dict(images=[rng.integers(0, 256, (side, side, 3), np.uint8) for _ in range(views)], prompt=[image] * views + list(range(2, 26)), state=rng.standard_normal(29).astype(np.float32))
    words = 24 if name.startswith("pi0-") else WORDS
    return dict(images=[rng.integers(0, 256, (224, 224, 3), np.uint8) for _ in range(views)], prompt=list(range(2, 2 + words)), state=rng.standard_normal(8).astype(np.float32))


def load(name, precision, views, batch=1, horizon=50):
    import vivace

    own = dict(embodiment=0) if name in GROOT else dict(config=name.split("-")[0], num_steps=10, max_action_tokens=CODES)
    return vivace.load_model(WHERE["configs"] / name, device=WHERE["device"], precision=precision, num_views=views, action_horizon=horizon, batch=batch, prompt_tokens=48 if name.startswith("pi0-") else WORDS,
                             random_weights=True, calibration=[observation(name, views)] if precision == "fp8_static" else None, partition=WHERE["partition"] or None, **own)


def tag_of(name, views, batch=1, horizon=50) -> str:
    return f"policy={name},views={views}," + (f"partition={WHERE['partition']:g}," if WHERE["partition"] else "") + (f"batch={batch}," if batch > 1 else "") + (f"codes={CODES}" if name.startswith("pi0fast") else f"horizon={horizon},steps={4 if name in GROOT else 10}")


def parsed(case) -> tuple:
    """policy, precision, views, batch, horizon"""
    name, precision, views, *more = case.split(":")
    return name, precision, int(views), *map(int, more), *(1, GROOT[name][2] if name in GROOT else 50)[len(more):]


def floor_us(kind, group) -> float:
    """Of one launch."""
    return max(group["bytes"] / COPY_RATE, group["flops"] / PRODUCT_RATE[kind]) * 1e6


def print_profile(kind, stage, s) -> None:
    total = sum(g["us"] * g["launches"] for g in s["groups"])
    print(f"  {stage}: {s['step_us']:.1f} us, sum of its launches {total:.1f}")
    for g in sorted(s["groups"], key=lambda g: -g["in_step_us"] * g["launches"]):
        print(f"    {g['op']:<16} x {g['launches']:>4}  {g['us']:8.2f} us  in the step {g['in_step_us']:8.2f}  {g['in_step_us'] * g['launches']:8.1f}  floor {floor_us(kind, g):7.2f}")


def one(case, calls, profiles, add) -> None:
    name, precision, views, batch, horizon = parsed(case)
    kind = "fp8" if precision.startswith("fp8") else precision
    given = observation(name, views)
    start = time.perf_counter()
    with load(name, precision, views, batch, horizon) as policy:
        loaded = time.perf_counter() - start
        codes = name.startswith("pi0fast")
        run = (lambda: policy.tokens(**given, end_token=-1)) if codes else (lambda: policy.predict_batch([dict(given, seed=i) for i in range(batch)]))
        run()
        both = walls(run, max(calls // 20, 5) if codes or batch > 1 else calls, (lambda: 0.0) if codes or WHERE["device"] == "cpu" else policy.device_us)
        wall, host = [w for w, _ in both], quantile([w - d for w, d in both], 0.5)
        stages = {stage: policy.profile(stage, in_step=profiles) for stage in ("context", "actions")}
        # One after the other as in a call: the context repeated alone runs at the clock that so many products leave.
        replay = stages["context"]["step_us"] + stages["actions"]["step_us"] * (CODES - 1) if codes else policy.profile("whole")["step_us"]
        report = policy.report()
    peer = PEER.get((name, kind, views)) if (batch, horizon) == parsed(f"{name}:{precision}:{views}")[3:] else None
    floors = {stage: sum(floor_us(kind, g) * g["launches"] for g in s["groups"]) for stage, s in stages.items()}
    tag = tag_of(name, views, batch, horizon)
    common = dict(dtype=precision, tactic=f"launches={report['context_launches']}+{report['action_launches']}")
    for stage, s in stages.items():
        add(**common, case=f"{tag},metric={stage}", p50_us=s["step_us"], n=1, limit_us=floors[stage], tool="graph replay")
    add(**common, case=f"{tag},metric=replay", p50_us=replay, n=1, limit_us=floors["context"] + floors["actions"] * (CODES - 1 if codes else 1), tool="sum of the two" if codes else "graph replay", peer="FlashRT, replay, chunk 10, archived" if peer else None, peer_p50_us=peer)
    add(**common, case=f"{tag},metric=predict", p50_us=quantile(wall, 0.5), p99_us=quantile(wall, 0.99), p999_us=quantile(wall, 0.999), n=len(wall), tool="host clock",
        note=f"wall less replay {quantile(wall, 0.5) - replay:.0f} us" + ("" if codes else f"; less the device's time of the same call {host:.0f} us, goal 150"))
    print(f"{case:<24} context {stages['context']['step_us']:8.1f}  actions {stages['actions']['step_us']:8.1f}  replay {replay:8.1f} (floors {floors['context']:.0f} + {floors['actions']:.0f})  predict p50 {quantile(wall, 0.5):8.1f}"
          f"  p99.9 {quantile(wall, 0.999):8.1f} us  host {host:.0f}  load {loaded:.1f} s: {report.get('load_s', '')}", flush=True)
    for stage, s in stages.items() if profiles else ():
        print_profile(kind, stage, s)


def frames(case, add) -> None:
    import numpy as np

    name, precision, views, *_ = parsed(case)
    given = observation(name, views)
    with load(name, precision, views) as policy:
        base = None
        for height, width in [(224, 224), *FRAMES]:
            shown = dict(given, images=[np.random.default_rng(v).integers(0, 256, (height, width, 3), np.uint8) for v in range(views)], seed=0)
            wall = [w for w, _ in walls(lambda shown=shown: policy.predict(**shown), 60)]
            base = base or quantile(wall, 0.5)
            note = "the network's own size" if (height, width) == (224, 224) else f"{quantile(wall, 0.5) - base:.0f} us more than at 224 x 224"
            add(dtype=precision, tool="host clock", case=f"{tag_of(name, views)},metric=frames,size={height}x{width}", p50_us=quantile(wall, 0.5), p99_us=quantile(wall, 0.99), n=len(wall), note=note)
            print(f"frames {height} x {width}: p50 {quantile(wall, 0.5):.1f} us; {note}", flush=True)


def jitter(case, rates, seconds, add) -> None:
    from vivace import device

    name, precision, views, *_ = parsed(case)
    given = observation(name, views)
    with load(name, precision, views) as policy:
        gc.collect()
        gc.disable()  # a robot's loop in C++ has none
        for hz in rates:
            before = device.state()["sm_mhz"]
            both = paced(lambda: policy.predict(**given, seed=0), policy.device_us, seconds, hz)
            after, common = device.state()["sm_mhz"], dict(dtype=precision, n=len(both))
            tag = f"{tag_of(name, views)},metric=jitter" + (f",hz={hz}" if hz else "")
            # The longest of each thousand are due to whichever side they are long on.
            for what, tool, times in (("", "host clock", [w for w, _ in both]), (",clock=device", "device events", [d for _, d in both]), (",clock=rest", "host clock less device events", [w - d for w, d in both])):
                p50, p999 = quantile(times, 0.5), quantile(times, 0.999)
                slow = [i for i, t in enumerate(times) if t > 1.03 * p50]
                note = f"p99.9 is {p999 / p50:.3f} of p50" + ("" if what else f", goal 1.03; SM clock {before} MHz before, {after} after; no garbage collection") + f"; {len(slow)} of {len(times)} calls above 1.03, the longest {max(times):.0f} us"
                add(**common, case=tag + what, p50_us=p50, p99_us=quantile(times, 0.99), p999_us=p999, tool=tool, note=note)
                print(f"jitter {hz or 'back to back':>12} {tool:<30} p50 {p50:9.1f}  p99.9 {p999:9.1f}  {note}; at {slow[:12]}", flush=True)


_FIRST_ACTION = """
import json, os, sys, time
born = float(sys.argv[2])
at = {"interpreter": time.time() - born}
import numpy, vivace
at["import"] = time.time() - born
policy = vivace.load_model(sys.argv[1], config="pi05", device="cuda", precision=sys.argv[3], num_views=2, action_horizon=50, num_steps=10, prompt_tokens=64, statistics="none")
at["loaded"] = time.time() - born
policy.predict([numpy.zeros((224, 224, 3), numpy.uint8)] * 2, prompt=list(range(2, 66)), seed=0)
at["first_action"] = time.time() - born
print(json.dumps({"at": at, "load": policy.report()["load_s"]}))
"""


def shapes_of_pi05() -> dict:
    """Tensors of a checkpoint of the base model as openpi's conversion writes it."""
    joint = "paligemma_with_expert."
    out = {joint + "paligemma.lm_head.weight": [257152, 2048]}

    def dense(at, n, k, bias=True):
        out[at + ".weight"] = [n, k]
        if bias:
            out[at + ".bias"] = [n]

    gemma, expert, vision = joint + "paligemma.model.language_model.", joint + "gemma_expert.model.", joint + "paligemma.model.vision_tower.vision_model."
    for at, width, mlp, adaptive in ((gemma, 2048, 16384, False), (expert, 1024, 4096, True)):
        norm = (lambda key, w=width: dense(key + ".dense", 3 * w, w)) if adaptive else (lambda key, w=width: out.update({key + ".weight": [w]}))
        for i in range(18):
            layer = f"{at}layers.{i}."
            for key in ("input_layernorm", "post_attention_layernorm"):
                norm(layer + key)
            for key, n, k in (("self_attn.q_proj", 2048, width), ("self_attn.k_proj", 256, width), ("self_attn.v_proj", 256, width), ("self_attn.o_proj", width, 2048),
                              ("mlp.gate_proj", mlp, width), ("mlp.up_proj", mlp, width), ("mlp.down_proj", width, mlp)):
                dense(layer + key, n, k, bias=False)
        norm(at + "norm")
    out |= {vision + "embeddings.patch_embedding.weight": [1152, 3, 14, 14], vision + "embeddings.patch_embedding.bias": [1152], vision + "embeddings.position_embedding.weight": [256, 1152]}
    for i in range(27):
        layer = f"{vision}encoder.layers.{i}."
        for key in ("layer_norm1", "layer_norm2"):
            out |= {f"{layer}{key}.weight": [1152], f"{layer}{key}.bias": [1152]}
        for key in ("q_proj", "k_proj", "v_proj", "out_proj"):
            dense(f"{layer}self_attn.{key}", 1152, 1152)
        dense(layer + "mlp.fc1", 4304, 1152)
        dense(layer + "mlp.fc2", 1152, 4304)
    out |= {vision + "post_layernorm.weight": [1152], vision + "post_layernorm.bias": [1152]}
    dense(joint + "paligemma.model.multi_modal_projector.linear", 2048, 1152)
    for key, n, k in (("action_in_proj", 1024, 32), ("action_out_proj", 32, 1024), ("time_mlp_in", 1024, 1024), ("time_mlp_out", 1024, 1024)):
        dense(key, n, k)
    return out


def start(add) -> None:
    """A file of zeros: what it costs to bring weights over does not depend on their values."""
    name, precision, goal = START
    table, offset = {}, 0
    for key, shape in shapes_of_pi05().items():
        size = 2
        for n in shape:
            size *= n
        table[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    with tempfile.TemporaryDirectory() as folder:
        with open(Path(folder) / "model.safetensors", "wb") as f:
            f.write(struct.pack("<Q", len(header)) + header)
            f.truncate(8 + len(header) + offset)
        (Path(folder) / "config.json").write_text((ROOT / "bench/configs" / name / "config.json").read_text())
        runs = []
        for _ in range(3):  # the first brings the file into the page cache and the kernels into theirs
            out = subprocess.run([sys.executable, "-c", _FIRST_ACTION, folder, str(time.time()), precision], capture_output=True, text=True)
            if out.returncode != 0:
                print(f"start: {out.stderr}", flush=True)
                return
            runs.append(json.loads(out.stdout.strip().splitlines()[-1]))
    best = min(runs[1:], key=lambda r: r["at"]["first_action"])
    phases = ", ".join(f"{k} {s:.3f}" for k, s in [*best["at"].items(), *(("load/" + k, s) for k, s in best["load"].items())])
    note = f"seconds: {phases}; first run {runs[0]['at']['first_action']:.2f}"
    add(dtype=precision, tactic="process", tool="host clock", case=f"policy={name},bytes={offset},metric=start", p50_us=best["at"]["first_action"] * 1e6, n=2, limit_us=goal, note=note)
    print(f"start: first action {best['at']['first_action']:.2f} s; {note}", flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cases", default=",".join(CASES), help="policy:precision:views[:batch[:horizon]], with commas between")
    p.add_argument("--parts", default="cases,frames,start,jitter", help="what to run, with commas between; frames and jitter of the first case")
    p.add_argument("--hz", default="0,30", help="of jitter; 0 is back to back")
    p.add_argument("--calls", type=int, default=200)
    p.add_argument("--seconds", type=float, default=30, help="of calls back to back, and of paced ones, for jitter")
    p.add_argument("--profile", action="store_true", help="print what each kind of launch takes")
    p.add_argument("--partition", type=float, default=0.0, help="share of the device's multiprocessors that every policy is loaded into; 0: all")
    p.add_argument("--no-receipt", action="store_true")
    p.add_argument("--device", default="cuda")
    p.add_argument("--configs", type=Path, default=WHERE["configs"])
    p.add_argument("--warm", action="store_true", help="first compile every kernel, a process a case side by side: loads then take less of a borrowed machine's time")
    args = p.parse_args()
    parts = args.parts.split(",")
    WHERE.update(device=args.device, configs=args.configs, partition=args.partition)
    if args.warm:
        warm(args.cases.split(","))

    import vivace
    from vivace import device

    if args.device == "cpu":
        for case in args.cases.split(","):
            one(case, args.calls, args.profile, lambda **row: None)
        return
    info, state = device.info(), device.state()
    r = Receipt("vla", chip=info["name"], sm=info["arch"], driver=str(state["driver"]), clocks_mhz={"sm": state["sm_mhz"], "mem": state["memory_mhz"]},
                commit=os.environ.get("VIVACE_COMMIT", "dirty"), command=" ".join(["python bench/bench_vla.py", *sys.argv[1:]]), versions={"vivace": vivace.__version__}, sources=SOURCES)

    def add(**row):
        r.row(op="e2e", **row)
        if not args.no_receipt:  # after every row: a machine's time may end
            r.write("bench")

    for case in args.cases.split(",") if "cases" in parts else []:
        try:
            one(case, args.calls, args.profile, add)
        except Exception:  # no row: the receipt shows what ran
            traceback.print_exc()
            print(f"{case}: failed", flush=True)
    if "start" in parts:
        start(add)
    if "frames" in parts:
        frames(args.cases.split(",")[0], add)
    if "jitter" in parts:
        jitter(args.cases.split(",")[0], [int(hz) for hz in args.hz.split(",")], args.seconds, add)


if __name__ == "__main__":
    main()
