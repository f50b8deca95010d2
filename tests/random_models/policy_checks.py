"""What must hold of a policy and its observations."""
import numpy as np

from tests.random_models.policy import given, write
from tests.random_models.text_checks import Wrong, error
from tests.reference.policy_numpy import Policy, Rounded
from vivace import _core

F32 = 1e-5    # relative error of what the flow adds to the noise, all observations together; seen 4e-6
NARROW = 1.5  # times what float64 makes of the plan's roundings; seen 0.95 to 1.1
STATIC = 1.5  # the same of scales that all rows of a product share, where the reference has one a row; seen 0.6 to 1.1
FEW = 200     # values of which one rounding reference may be right by luck: fewer are held to SIGMAS times what DRAWS of them err by
DRAWS = 16
SIGMAS = 5    # of values that err together, as if they were one: more comes once in two million
CODES = 6     # tokens of an answer
GAP = 1e-3    # logits nearer than this may choose another token


def load(case, folder, device, **changes):
    options = dict(config=case["family"], device=device, precision=case["precision"], threads=1 if device == "cpu" else 0, statistics="none", resize="openpi", num_views=case["views"], action_horizon=case["horizon"],
                   num_steps=case["steps"], batch=case["batch"], prompt_tokens=case["words"] + 1)
    options |= {"max_action_tokens": CODES} if case["family"] == "pi0fast" else {}
    return _core.load_policy(str(folder), **options | changes)


def static(case, folder, device):
    """What load() takes besides in "fp8_static": scales by the largest of all observations, as 16 bits see them."""
    if case["precision"] != "fp8_static":
        return {}
    model = load(case | {"precision": "bf16"}, folder, device, expert=case["expert_reads"])
    return {"expert": case["expert_reads"], "act_scales": model.calibrate([given(case, o) for o in case["observations"]], 100.0)}


def ask(model, case, observations):
    """An answer an observation: actions [horizon, D], or tokens."""
    raw = [given(case, o) for o in observations]
    if case["family"] == "pi0fast":
        return [list(t) for t in model.generate(raw)]
    return list(np.frombuffer(model.predict(raw), np.float32).reshape(len(raw), case["horizon"], case["action_dim"]))


def equal(a, b):
    return a == b if isinstance(a, list) else a.tobytes() == b.tobytes()


def held_to_reference(case, weights, observations, answers):
    narrow, eight, values = case["precision"] != "f32", case["precision"].startswith("fp8"), sum(np.size(a) for a in answers)
    rounded = Rounded(eight, expert=case.get("expert_reads") == "e4m3" and case["precision"] == "fp8_static")
    arithmetic = [rounded.by(np.random.default_rng(i)) for i in range(DRAWS)] if values < FEW else [rounded]
    policies = [Policy(weights, (case["vision"][3], case["text"][3]), case["text"][5], a) for a in ([None, *arithmetic] if narrow and case["family"] != "pi0fast" else [None])]
    if case["family"] == "pi0fast":
        return codes_held(case, policies[0], observations, answers) if not narrow else {}  # else greedy paths part
    moved, wanted = [], [[] for _ in policies]
    for o, got in zip(observations, answers):
        g = given(case, o)
        on, start = np.stack([f for f in g["frames"] if f is not None]), g["noise"].astype(np.float64)
        if g["action_prefix"] is not None:
            start[:len(g["action_prefix"])] = g["action_prefix"]
        moved.append(got - start)
        for p, all_ in zip(policies, wanted):
            all_.append(p.actions(on, g["tokens"], g["noise"], case["steps"], g["state"], g["action_prefix"])[1] - start)
    moved, right = np.concatenate(moved), np.concatenate(wanted[0])
    bound = F32
    if narrow:
        typical = np.sqrt(np.mean([error(np.concatenate(w), right) ** 2 for w in wanted[1:]]))
        bound = (SIGMAS if len(arithmetic) > 1 else STATIC if case["precision"] == "fp8_static" else NARROW) * typical
    far = error(moved, right)
    if not far <= bound:
        raise Wrong("reference", f"actions err by {far:.2e}, bound {bound:.2e}")
    return {"actions": far / bound}


def codes_held(case, policy, observations, answers):
    for o, got in zip(observations, answers):
        g = given(case, o)
        tokens, logits = policy.codes(np.stack([f for f in g["frames"] if f is not None]), g["tokens"], CODES)
        for at, (mine, theirs, row) in enumerate(zip(got, tokens, logits)):
            top = np.sort(row)[-2:]
            if mine != theirs and top[1] - top[0] > GAP:
                raise Wrong("reference", f"token {at} is {mine}, wanted {theirs} by {top[1] - top[0]:.3f}")
            if mine != theirs:
                break
    return {}


def check(case, folder, device="cpu"):
    """As text_checks.check."""
    weights, observations = write(case, folder), case["observations"]
    own = static(case, folder, device)
    model = load(case, folder, device, **own)
    alone = [ask(model, case, [o])[0] for o in observations]
    worst = held_to_reference(case, weights, observations, alone)
    # An observation with actions that are given brings all of its call another form, of other bits in 16: such are asked beside each other.
    for kind in (False, True):
        of = [i for i, o in enumerate(observations) if bool(o.get("frozen")) == kind]
        for order in (of, of[::-1]):
            for at in range(0, len(order), case["batch"]):
                some = order[at:at + case["batch"]]
                for i, got in zip(some, ask(model, case, [observations[i] for i in some])):
                    if not equal(got, alone[i]):
                        raise Wrong("batch", f"observation {i} beside {[k for k in some if k != i]}: " + (f"{got} for {alone[i]}" if isinstance(got, list) else f"{np.sum(got != alone[i])} of {got.size} values differ, by {np.abs(got - alone[i]).max():.2e}"))
    eager = load(case, folder, device, eager=True, **own)
    for i, o in enumerate(observations):
        if not equal(ask(eager, case, [o])[0], alone[i]):
            raise Wrong("eager", f"observation {i}: captured {alone[i]}, op by op {ask(eager, case, [o])[0]}")
    return worst
