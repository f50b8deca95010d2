"""What must hold of a SmolVLA and its observations: groot_checks.py, with a reference of its own."""
import numpy as np

from tests.random_models.groot_checks import held_to_reference, same_bits
from tests.random_models.smolvla import config, given, write
from tests.reference.smolvla_numpy import SmolVla
from vivace import _core


def load(case, folder, device, **changes):
    options = dict(device=device, precision=case["precision"], threads=1 if device == "cpu" else 0, statistics="none", num_views=case["views"], batch=case["batch"], prompt_tokens=case["words"])
    return _core.load_policy(str(folder), **options | changes)


def ask(model, case, observations):
    raw = [given(case, o) for o in observations]
    return list(np.frombuffer(model.predict(raw), np.float32).reshape(len(raw), case["horizon"], case["action_dim"]))


def moves(case, policy, o):
    g = given(case, o)
    return g["noise"].astype(np.float64), policy.actions(np.stack([f for f in g["frames"] if f is not None]), g["tokens"], g["noise"], case["steps"], g["state"])


def check(case, folder, device="cpu"):
    """As text_checks.check."""
    weights = write(case, folder)
    model = load(case, folder, device)
    alone = [ask(model, case, [o])[0] for o in case["observations"]]
    worst = held_to_reference(case, alone, lambda a: SmolVla(weights, config(case), a), lambda policy, o: moves(case, policy, o))
    same_bits(case, alone, ask, model, load(case, folder, device, eager=True))
    return worst
