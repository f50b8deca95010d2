"""The command line's robot policies: `vivace serve-policy`, and what `run`, `plan`, `bench`, `verify` and `calibrate` do with a checkpoint that is one."""
from __future__ import annotations

import argparse
import json
import os
import sys
import time


def is_policy(args) -> bool:
    from vivace.model import _is_policy

    return _is_policy(args.model)


def refuse(args) -> None:
    """For commands of language models alone. Errors: UnsupportedError says which take a policy."""
    from vivace.errors import UnsupportedError

    if is_policy(args):
        raise UnsupportedError(f"{args.command}: {args.model} is a robot's policy; `vivace run`, `plan`, `bench`, `verify`, `calibrate` and `serve-policy` take one (docs/robots.md)")


def add_observations(p) -> None:
    """What a policy is shown, of commands that take language models too."""
    group = p.add_argument_group("of a robot's policy")
    group.add_argument("--observation", action="append", default=[], metavar="FILE", help="NAME.npz with fields by the robot's names, or the record of an episode; may be given several times")
    group.add_argument("--image", action="append", default=[], metavar="NAME=FILE", help="a camera's picture, PNG, JPEG or WebP, that joins every observation; may be given several times")
    group.add_argument("--robot", default="auto", help="whose names the fields have: aloha, aloha_sim, droid, libero, or any with --camera; auto: the checkpoint's")
    group.add_argument("--camera", action="append", default=[], metavar="NAME", help="of robot any: a camera's name under images, in order of the policy's slots")
    group.add_argument("--embodiment", metavar="NAME", help="of GR00T: a name of embodiment_id.json, or a number")
    group.add_argument("--statistics", default="auto", choices=("auto", "none"), help="none: actions stay normalised")
    group.add_argument("--tokenizer", metavar="FILE", help="tokenizer.model or tokenizer.json, where it is not beside the checkpoint")


def no_observations(args) -> None:
    """Errors: InvalidArgumentError where a language model is shown what a policy takes."""
    from vivace.errors import InvalidArgumentError

    for name in ("observation", "image", "camera", "embodiment", "tokenizer"):
        if getattr(args, name):
            raise InvalidArgumentError(f"--{name}: of robots' policies; {args.model} is a language model")


def _only_models(args, **defaults) -> None:
    from vivace.errors import InvalidArgumentError

    for name, default in defaults.items():
        if getattr(args, name) != default:
            raise InvalidArgumentError(f"--{name.replace('_', '-')}: of language models; {args.model} is a robot's policy")


def _shown(args, prompt=None) -> list[dict]:
    from vivace import observations
    from vivace.errors import InvalidArgumentError

    if not args.observation and not args.image:
        raise InvalidArgumentError(f"{args.command}: {args.model} is a robot's policy; show it something by --observation FILE or --image NAME=FILE (docs/cli.md)")
    return observations.read(args.observation, args.image, prompt)


def _open(args, precision, seen, **more):
    """The policy that reads `seen`, with scales of theirs where the plan wants some."""
    import vivace

    number = args.embodiment is not None and args.embodiment.isascii() and args.embodiment.isdigit()
    options = dict(device=args.device, threads=getattr(args, "threads", 0), statistics=args.statistics, tokenizer=args.tokenizer, num_views=len(args.camera), embodiment=int(args.embodiment) if number else args.embodiment, **more)
    if precision == "fp8_static":
        with vivace.load_model(args.model, precision="bf16", **options) as policy:
            options["calibration"] = [policy._read("calibration", fields, args.robot, args.camera)[1] for fields in seen]
    return vivace.load_model(args.model, precision=precision, **options)


def run(args) -> int:
    """Prints the actions of each observation."""
    _only_models(args, system=None, max_tokens=None, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)
    seen, rows = _shown(args, args.prompt), []
    with _open(args, args.precision, seen) as policy:
        for i, fields in enumerate(seen):
            start = time.perf_counter()
            actions = policy.infer(fields, robot=args.robot, cameras=args.camera, seed=args.seed + i)["actions"]
            rows.append({"actions": actions.tolist(), "seed": args.seed + i, "ms": (time.perf_counter() - start) * 1e3, "device_ms": policy.device_us() / 1e3})
            if not args.json:
                print("\n".join(" ".join(f"{v:>11.6g}" for v in row) for row in rows[-1]["actions"]), flush=True)
                print(f"{len(actions)} actions of {len(actions[0])} dimensions, {rows[-1]['ms']:.1f} ms", file=sys.stderr)
        if args.json:
            report = policy.report()
            print(json.dumps({"family": report["family"], "precision": report["precision"], "device": report["device"], "chunks": rows}))
    return 0


def calibrate(args) -> int:
    """Finds and keeps the scales that --precision fp8_static takes for the same observations."""
    from vivace import calibrate

    _only_models(args, prompts=None)
    seen = _shown(args)
    with _open(args, "bf16", seen) as policy:
        given = [policy._read("calibrate", fields, args.robot, args.camera)[1] for fields in seen]
        scales = policy._kept_scales(given, args.percentile)
    if args.json:
        print(json.dumps({"plan": calibrate.PLAN, "percentile": args.percentile, "observations": len(seen), "act_scales": scales}))
    else:
        print(f"{len(scales)} scales of {len(seen)} observations, {min(scales):.3g} to {max(scales):.3g}, kept for precision {calibrate.PLAN} of these observations")
    return 0


def verify(args) -> int:
    """Says what a precision plan costs against another, stage by stage and in the actions."""
    from vivace.policy_verify import verify

    _only_models(args, text=None, context=0)
    seen = _shown(args)
    r = verify(lambda precision: _open(args, precision, seen), seen, precision=args.precision, against=args.against, robot=args.robot, cameras=args.camera)
    if args.json:
        print(json.dumps(r))
        return 0
    for row in r["stages"]:
        print(f"{row['name']:<28} {row['step'] if row['step'] >= 0 else '':>3} error {row['error']:.2e}")
    print(f"{args.precision} against {args.against}, {r['observations']} observations: actions {r['actions_error']:.2e} relative, {r['max_error']:.3g} at most in the robot's units, cosine {r['cosine']:.6f}")
    return 0


def _load(args, **more):
    import vivace

    return vivace.load_model(args.model, device=args.device, precision=args.precision, threads=args.threads, random_weights=getattr(args, "random_weights", False), **more)


def plan(args) -> int:
    with _load(args) as policy:
        report = policy.report()
    lines = report.pop("memory")
    total = sum(lines.values())
    if args.json:
        print(json.dumps({"regions": [{"name": n, "bytes": b} for n, b in lines.items()], "total_bytes": total, "report": report}))
        return 0
    caches = {n: b for n, b in lines.items() if n.startswith(("k_cache.", "v_cache.", "cross_k.", "cross_v."))}
    for name, size in [*((n, b) for n, b in lines.items() if n not in caches), (f"kv cache ({len(caches)} regions)", sum(caches.values()))]:
        print(f"{size:>15,}  {name}")
    print(f"{total:>15,}  total bytes ({report['family']}, {report['precision']}, robot {report['robot']}, {report['num_views']} cameras, chunks of {report['action_horizon']}, {report['num_steps']} steps)")
    return 0


def bench(args) -> int:
    """Times whole calls: all cameras on, 480 x 640, or as GR00T takes them, a prompt of 32 tokens beside images."""
    import numpy as np

    def observation(report):
        groot = report["family"].startswith("groot_")
        frame = np.zeros((*(report["image"] if groot else (480, 640)), 3), np.uint8)
        pictures = [report["image_token"]] * report["num_views"] if groot else []
        one = dict(images=[frame] * report["num_views"], prompt=pictures + [2] * min(32, report["prompt_tokens"]), state=np.zeros(report["state_dim"] or 8, np.float32), seed=0)
        return one | ({"embodiment": 0} if groot and report["embodiment"] is None else {})

    more = {}
    if args.precision == "fp8_static":  # scales of the observation that is timed
        with _load(argparse.Namespace(**vars(args) | {"precision": "bf16"})) as policy:
            more = {"calibration": [observation(policy.report())]}
    begin = time.perf_counter()
    with _load(args, batch=args.batch, **more) as policy:
        load_s, report = time.perf_counter() - begin, policy.report()
        one = observation(report)
        policy.predict_batch([one] * args.batch)
        took, device = [], []
        for _ in range(args.steps):
            start = time.perf_counter()
            policy.predict_batch([one] * args.batch)
            took.append((time.perf_counter() - start) * 1e6)
            device.append(policy.device_us())
        profile = policy.profile("whole") if args.profile else None
    p50, p99 = (float(np.quantile(took, q)) for q in (0.5, 0.99))
    row = {"case": f"{report['family']} {report['precision']} {report['device']}, {report['num_views']} views, {report['action_horizon']} actions, {report['num_steps']} steps, batch {args.batch}",
           "p50_us": p50, "p99_us": p99, "device_p50_us": float(np.median(device))}
    if args.json:
        print(json.dumps({"rows": [row], "load_s": load_s, **({"profile": profile} if profile else {})}))
        return 0
    print(f"{row['case']:<70} p50 {p50:>10.1f} us  p99 {p99:>10.1f} us  device {row['device_p50_us']:>10.1f} us")
    for g in profile["groups"] if profile else ():
        print(f"{g['op']:<24} x {g['launches']:>4}  {g['us']:>9.2f} us")
    return 0


def _flags(text: str) -> tuple:
    parts = text.split(",")
    if any(part not in ("0", "1") for part in parts):
        raise argparse.ArgumentTypeError("wanted 0 or 1 for each dimension, with commas between")
    return tuple(part == "1" for part in parts)


def add_serve(p, count, whole) -> None:
    p.add_argument("checkpoint", help="a policy's folder or .safetensors file, or tiny-pi05 or tiny-pi05-arm, which come with Vivace")
    p.add_argument("--config", default="auto", help="pi05, pi0, pi0fast, smolvla, groot_n17 or groot_n16; auto: by the checkpoint")
    p.add_argument("--robot", default="auto", help="whose names and units robots use: aloha, aloha_sim, droid, libero, or any with --camera; auto: the checkpoint's")
    p.add_argument("--camera", action="append", default=[], metavar="NAME", help="of robot any: a camera's name under images, in order of the policy's slots; may be given several times")
    p.add_argument("--statistics-of", default="", metavar="NAME", help="which of several folders under assets")
    p.add_argument("--address", default="127.0.0.1", help="who can reach it: 127.0.0.1 is this machine alone, 0.0.0.0 all of its networks")
    p.add_argument("--port", type=whole(0, 65535), default=8000, help="0: one that is free")
    p.add_argument("--key-file", metavar="FILE", help="robots must bring what stands in it (openpi's api_key)")
    p.add_argument("--prompt", default="", help="of requests without one")
    p.add_argument("--metadata", metavar="JSON", help="an object that joins what robots are told first, {\"reset_pose\": [...]} say")
    p.add_argument("--max-clients", type=count, default=16)
    p.add_argument("--batch", type=count, default=1, help="requests that share a call where they wait together")
    p.add_argument("--views", type=count, default=0, help="camera slots; 0: the robot's")
    p.add_argument("--horizon", type=count, default=0, help="actions of a chunk; 0: the checkpoint's")
    p.add_argument("--steps", type=count, default=0, help="of the flow; 0: the checkpoint's")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument("--precision", default="auto", help="auto, f32, bf16, fp8, or fp8_static with --observation")
    p.add_argument("--observation", action="append", default=[], metavar="FILE", help="of fp8_static: what its scales are taken from, as `vivace calibrate` takes it; may be given several times")
    p.add_argument("--threads", type=count, default=0)
    p.add_argument("--delta", type=_flags, default=(), metavar="1,1,0", help="a number a dimension: 1 where that action is a step from the state")
    p.add_argument("--tokenizer", metavar="FILE", help="tokenizer.model or tokenizer.json, where it is not beside the checkpoint")
    p.add_argument("--seed", type=whole(0, (1 << 64) - 1), default=0, help="of noise")


def cmd_serve(args) -> int:
    import signal
    import threading

    from vivace import files, policy_host
    from vivace.errors import InvalidArgumentError

    metadata = None
    if args.metadata is not None:
        try:
            metadata = json.loads(args.metadata)
        except ValueError as e:
            raise InvalidArgumentError(f"--metadata: {e}") from None
    key = files.read_text(args.key_file).strip() if args.key_file else ""
    if args.key_file and not key:
        raise InvalidArgumentError(f"--key-file: {args.key_file} is empty")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    load, robot, cameras = _served(args)

    def say(line):
        print(line, file=sys.stderr, flush=True)
    policy_host.serve(load, ended=ended, say=say, robot=robot, cameras=cameras, tokenizer=args.tokenizer, metadata=metadata, address=args.address, port=args.port, key=key,
                      prompt=args.prompt, max_clients=args.max_clients, seed=args.seed)
    return 0


def _served(args):
    """(load(), robot, cameras) of what is to be served."""
    import vivace
    from vivace import observations
    from vivace.demo import closed_loop, reach

    options = dict(device=args.device, precision=args.precision, threads=args.threads, batch=args.batch)
    if args.checkpoint == reach.FOLDER.name and not os.path.exists(args.checkpoint):
        return lambda: reach.load(horizon=args.horizon, steps=args.steps, **options), "any", reach.CAMERAS
    if args.checkpoint == closed_loop.FOLDER.name and not os.path.exists(args.checkpoint):
        return lambda: closed_loop.load(horizon=args.horizon, steps=args.steps, **options), "any", reach.CAMERAS
    options |= dict(config=args.config, num_views=args.views or len(args.camera), action_horizon=args.horizon, num_steps=args.steps, robot=args.statistics_of, delta=getattr(args, "delta", ()), tokenizer=args.tokenizer)
    seen = observations.read(args.observation) if getattr(args, "observation", None) else []

    def load():
        more = {}
        if args.precision == "fp8_static" and seen:
            with vivace.load_model(args.checkpoint, **options | {"precision": "bf16", "batch": 1}) as policy:
                more = {"calibration": [policy._read("calibration", fields, args.robot, args.camera)[1] for fields in seen]}
        return vivace.load_model(args.checkpoint, **options, **more)
    return load, args.robot, args.camera
