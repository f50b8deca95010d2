"""`vivace serve --policy`: a language model and a robot's policy in one process, tenants of one scheduler (docs/scheduling.md)."""
from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial

NEEDS_POLICY = ("policy_hz", "policy_deadline_ms", "policy_worst_ms", "min_share")


def add_policy(p, whole) -> None:
    g = p.add_argument_group("a policy beside it", "one process serves both; the policy's calls keep their deadlines, the language model takes what they leave")
    g.add_argument("--policy", metavar="CHECKPOINT", help="a policy's folder or .safetensors file, or tiny-pi05: robots ask it over a websocket as of `vivace serve-policy`")
    g.add_argument("--policy-hz", type=float, metavar="HZ", help="calls a second at most; needed with --policy")
    g.add_argument("--policy-deadline-ms", type=float, metavar="MS", help="from a call to its answer; default: the time between two")
    g.add_argument("--policy-worst-ms", type=float, metavar="MS", help="what a call takes at worst; default: it is timed at load")
    g.add_argument("--min-share", type=float, metavar="SHARE", help="the language model's least part of the device's time (0.5)")
    g.add_argument("--policy-port", type=whole(0, 65535), default=8001, help="0: any that is free")
    g.add_argument("--policy-address", default="127.0.0.1", help="who can reach the policy")
    g.add_argument("--policy-key-file", metavar="FILE", help="robots must bring what stands in it")
    g.add_argument("--policy-config", default="auto", help="pi05, pi0, pi0fast, smolvla, groot_n17 or groot_n16; auto: by the checkpoint")
    g.add_argument("--policy-robot", default="auto", help="as --robot of `vivace serve-policy`")
    g.add_argument("--policy-camera", action="append", default=[], metavar="NAME", help="as --camera of `vivace serve-policy`")
    g.add_argument("--policy-precision", default="auto", help="auto, f32, bf16 or fp8")


def check(args) -> None:
    """Errors: InvalidArgumentError for options of a policy without one, and a policy without its pace."""
    from vivace.errors import InvalidArgumentError

    if args.policy is None:
        if given := [name for name in NEEDS_POLICY if getattr(args, name) is not None]:
            raise InvalidArgumentError(f"--{given[0].replace('_', '-')}: there is no --policy that it could be of")
    elif args.policy_hz is None:
        raise InvalidArgumentError("--policy: say with --policy-hz how many calls a second robots make at most: that time is kept for them")


@contextmanager
def loaded(args, name, load):
    """(model, scheduler or None): `load(load_model)` loads the language model. With --policy the policy is served meanwhile."""
    import os

    import vivace
    from vivace import files
    from vivace.demo import reach
    from vivace.demo.weights import unpacked

    if args.policy is None:
        with load(vivace.load_model) as model:
            yield model, None
        return
    key = files.read_text(args.policy_key_file).strip() if args.policy_key_file else ""
    path, robot, cameras, options = args.policy, args.policy_robot, args.policy_camera, dict(config=args.policy_config, num_views=len(args.policy_camera))
    if path == reach.FOLDER.name and not os.path.exists(path):
        path, robot, cameras, options = unpacked(reach.FOLDER), "any", reach.CAMERAS, dict(config="pi05", num_views=len(reach.CAMERAS), prompt_tokens=reach.WORDS)
    share = 0.5 if args.min_share is None else args.min_share
    with vivace.Scheduler(args.device) as gpu:
        policy = gpu.load_model(path, name="policy", qos=vivace.guaranteed(hz=args.policy_hz, deadline_ms=args.policy_deadline_ms), worst_ms=args.policy_worst_ms, precision=args.policy_precision,
                                threads=args.threads, **options)
        with vivace.PolicyHost(policy, robot=robot, cameras=cameras, address=args.policy_address, port=args.policy_port, key=key) as host:
            with load(partial(gpu.load_model, name="llm" if name == "policy" else name, qos=vivace.burstable(min_share=share))) as model:
                gpu.publish()
                print(f"vivace serves {policy.report()['family']} to robots at ws://{args.policy_address}:{host.port}", file=sys.stderr, flush=True)
                yield model, gpu
