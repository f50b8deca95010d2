"""What must hold of a GR00T and its observations: policy_checks.py, with a reference of its own."""
import numpy as np

from tests.random_models.groot import config, given, write
from tests.random_models.policy_checks import DRAWS, F32, FEW, NARROW, SIGMAS, equal
from tests.random_models.text_checks import Wrong, error
from tests.reference.groot_numpy import Groot
from tests.reference.policy_numpy import Rounded
from vivace import _core


def load(case, folder, device, **changes):
    options = dict(device=device, precision=case["precision"], threads=1 if device == "cpu" else 0, statistics="none", num_views=case["views"], batch=case["batch"], prompt_tokens=case["words"], embodiment=0 if case["one"] else -1)
    return _core.load_policy(str(folder), **options | changes)


def ask(model, case, observations):
    raw = [given(case, o) for o in observations]
    return list(np.frombuffer(model.predict(raw), np.float32).reshape(len(raw), case["horizon"], case["action_dim"]))


def held_to_reference(case, weights, answers):
    narrow, eight, values = case["precision"] != "f32", case["precision"] == "fp8", sum(np.size(a) for a in answers)
    arithmetic = [Rounded(eight, np.random.default_rng(i)) for i in range(DRAWS)] if values < FEW else [Rounded(eight)]
    policies = [Groot(weights, config(case), a) for a in ([None, *arithmetic] if narrow else [None])]
    moved, wanted = [], [[] for _ in policies]
    for o, got in zip(case["observations"], answers):
        g = given(case, o)
        start = g["noise"].astype(np.float64)
        if g["overlap"]:
            start[:g["overlap"]] = g["prev_actions"][-g["overlap"]:]
        moved.append(got - start)
        images = [f.astype(np.float64) for f in g["frames"] if f is not None]
        for p, all_ in zip(policies, wanted):
            all_.append(p.actions(images, g["tokens"], g["state"], g["noise"], g["embodiment"], case["steps"], g["prev_actions"], g["overlap"], g["frozen"]) - start)
    moved, right = np.concatenate(moved), np.concatenate(wanted[0])
    bound = F32
    if narrow:
        typical = np.sqrt(np.mean([error(np.concatenate(w), right) ** 2 for w in wanted[1:]]))
        bound = (SIGMAS if len(arithmetic) > 1 else NARROW) * typical
    far = error(moved, right) if np.any(right) else float(np.abs(moved).max())
    if not far <= bound:
        raise Wrong("reference", f"actions err by {far:.2e}, bound {bound:.2e}")
    return {"actions": far / bound if bound else 0.0}


def check(case, folder, device="cpu"):
    """As text_checks.check."""
    weights, observations = write(case, folder), case["observations"]
    model = load(case, folder, device)
    alone = [ask(model, case, [o])[0] for o in observations]
    worst = held_to_reference(case, weights, alone)
    for order in (range(len(observations)), range(len(observations) - 1, -1, -1)):
        for at in range(0, len(observations), case["batch"]):
            some = list(order)[at:at + case["batch"]]
            for i, got in zip(some, ask(model, case, [observations[i] for i in some])):
                if not equal(got, alone[i]):
                    raise Wrong("batch", f"observation {i} beside {[k for k in some if k != i]}: {np.sum(got != alone[i])} of {got.size} values differ, by {np.abs(got - alone[i]).max():.2e}")
    eager = load(case, folder, device, eager=True)
    for i, o in enumerate(observations):
        if not equal(ask(eager, case, [o])[0], alone[i]):
            raise Wrong("eager", f"observation {i}: captured {alone[i]}, op by op {ask(eager, case, [o])[0]}")
    return worst
