"""What must hold of a GR00T and its observations: policy_checks.py, with a reference of its own."""
import numpy as np

from tests.random_models.groot import config, given, write
from tests.random_models.policy_checks import DRAWS, F32, FEW, NARROW, SIGMAS, equal
from tests.random_models.text_checks import Wrong, error
from tests.reference.groot_numpy import reference
from tests.reference.policy_numpy import Rounded
from vivace import _core


def load(case, folder, device, **changes):
    options = dict(device=device, precision=case["precision"], threads=1 if device == "cpu" else 0, statistics="none", num_views=case["views"], batch=case["batch"], prompt_tokens=case["words"], embodiment=0 if case["one"] else -1)
    return _core.load_policy(str(folder), **options | changes)


def ask(model, case, observations):
    raw = [given(case, o) for o in observations]
    return list(np.frombuffer(model.predict(raw), np.float32).reshape(len(raw), case["horizon"], case["action_dim"]))


def held_to_reference(case, answers, reference, moves):
    """Answers of observations against what `reference(arithmetic)` makes of them; moves(policy, observation): (where the flow begins, the actions)."""
    narrow, eight, values = case["precision"] != "f32", case["precision"] == "fp8", sum(np.size(a) for a in answers)
    arithmetic = [Rounded(eight, np.random.default_rng(i)) for i in range(DRAWS)] if values < FEW else [Rounded(eight)]
    wanted, starts = [], []
    for a in [None, *arithmetic] if narrow else [None]:
        policy = reference(a)
        pairs = [moves(policy, o) for o in case["observations"]]
        starts = [start for start, _ in pairs]
        wanted.append(np.concatenate([actions - start for start, actions in pairs]))
    moved, right = np.concatenate([got - start for got, start in zip(answers, starts)]), wanted[0]
    bound = F32
    if narrow:
        typical = np.sqrt(np.mean([error(w, right) ** 2 for w in wanted[1:]]))
        bound = (SIGMAS if len(arithmetic) > 1 else NARROW) * typical
    far = error(moved, right) if np.any(right) else float(np.abs(moved).max())
    if not far <= bound:
        raise Wrong("reference", f"actions err by {far:.2e}, bound {bound:.2e}")
    return {"actions": far / bound if bound else 0.0}


def moves(case, policy, o):
    g = given(case, o)
    start = g["noise"].astype(np.float64)
    if g["overlap"]:
        start[:g["overlap"]] = g["prev_actions"][-g["overlap"]:]
    images = [f.astype(np.float64) for f in g["frames"] if f is not None]
    return start, policy.actions(images, g["tokens"], g["state"], g["noise"], g["embodiment"], case["steps"], g["prev_actions"], g["overlap"], g["frozen"])


def same_bits(case, alone, ask, model, eager):
    """Of observations beside others, in two orders, and of a load that runs op by op."""
    observations = case["observations"]
    for order in (range(len(observations)), range(len(observations) - 1, -1, -1)):
        for at in range(0, len(observations), case["batch"]):
            some = list(order)[at:at + case["batch"]]
            for i, got in zip(some, ask(model, case, [observations[i] for i in some])):
                if not equal(got, alone[i]):
                    raise Wrong("batch", f"observation {i} beside {[k for k in some if k != i]}: {np.sum(got != alone[i])} of {got.size} values differ, by {np.abs(got - alone[i]).max():.2e}")
    for i, o in enumerate(observations):
        if not equal(ask(eager, case, [o])[0], alone[i]):
            raise Wrong("eager", f"observation {i}: captured {alone[i]}, op by op {ask(eager, case, [o])[0]}")


def check(case, folder, device="cpu"):
    """As text_checks.check."""
    weights = write(case, folder)
    model = load(case, folder, device)
    alone = [ask(model, case, [o])[0] for o in case["observations"]]
    worst = held_to_reference(case, alone, lambda a: reference(weights, config(case), a), lambda policy, o: moves(case, policy, o))
    same_bits(case, alone, ask, model, load(case, folder, device, eager=True))
    return worst
