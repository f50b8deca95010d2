"""lerobot's policy type "vivace" (python/lerobot_policy_vivace), by lerobot's own factory. Needs lerobot, which is large: skipped without."""
import sys

import numpy as np
import pytest

import vivace
from tests.test_policy_host import CAMERAS, ROOT, expected, load, seen

torch = pytest.importorskip("torch")
pytest.importorskip("lerobot")
sys.path.insert(0, str(ROOT / "python" / "lerobot_policy_vivace"))
from lerobot.configs.policies import PreTrainedConfig  # noqa: E402
from lerobot.policies.factory import get_policy_class, make_pre_post_processors  # noqa: E402

import lerobot_policy_vivace  # noqa: E402, F401  (registers itself)


def batch_of(*observations):
    """As a dataset's loader gives it: images [B, 3, H, W] in [0, 1]."""
    images = {f"observation.images.{c}": torch.stack([torch.from_numpy(np.ascontiguousarray(o["images"][c].transpose(2, 0, 1))).float() / 255 for o in observations]) for c in CAMERAS}
    return images | {"observation.state": torch.stack([torch.from_numpy(o["state"]) for o in observations]), "task": [o["prompt"] for o in observations]}


@pytest.fixture(scope="module")
def host():
    with load(batch=2) as p, vivace.PolicyHost(p, cameras=CAMERAS, port=0, seed=0) as h:
        yield h


@pytest.fixture
def policy(host):
    config = PreTrainedConfig.get_choice_class("vivace")(port=host.port, device="cpu", n_action_steps=4)
    return get_policy_class(config.type)(config)


def test_chunks_and_actions_are_the_hosts(policy, host):
    rng = np.random.default_rng(0)
    first, second = seen(1), seen(2)
    noise = torch.from_numpy(rng.standard_normal((2, 10, 8)).astype(np.float32))
    chunk = policy.predict_action_chunk(batch_of(first, second), noise=noise)
    assert chunk.shape == (2, 10, 3) and chunk.dtype == torch.float32
    with load() as alone:
        for b, o in enumerate((first, second)):
            assert (chunk[b].numpy() == expected(alone, o, noise=noise[b].numpy())).all()
    policy.reset()
    steps = [policy.select_action(batch_of(first), noise=noise[:1]) for _ in range(5)]
    assert [s.shape for s in steps] == [(1, 3)] * 5
    assert all((steps[i] == chunk[0, i % 4]).all() for i in range(5))


def test_saved_loaded_processed(policy, tmp_path):
    policy.save_pretrained(tmp_path)
    again = get_policy_class("vivace").from_pretrained(tmp_path)
    assert again.config.port == policy.config.port and not list(tmp_path.glob("*.safetensors"))
    before, after = make_pre_post_processors(again.config)
    o = batch_of(seen(1))
    one = before({k: v[0] for k, v in o.items()})
    action = after(again.select_action(one))
    assert action.shape == (1, 3) and torch.isfinite(action).all()


@pytest.mark.parametrize("change, error, said", [
    (lambda b: b.pop("observation.images.front"), vivace.InvalidArgumentError, "camera of robot any is missing"), (lambda b: b.clear(), ValueError, "has no 'observation"),
    (lambda b: b.update({"observation.state": torch.zeros(3, 3)}), ValueError, "different batch sizes"), (lambda b: b.update({"observation.state": torch.full((1, 3), float("nan"))}), vivace.Error, "not finite")])
def test_bad_batches(policy, change, error, said):
    batch = batch_of(seen(1))
    change(batch)
    with pytest.raises(error, match=said):
        policy.select_action(batch)
    assert policy.select_action(batch_of(seen(1))).shape == (1, 3)


def test_it_does_not_train(policy):
    with pytest.raises(NotImplementedError, match="does not train"):
        policy.forward({})
    with pytest.raises(ValueError, match="n_action_steps"):
        PreTrainedConfig.get_choice_class("vivace")(n_action_steps=-1, device="cpu")
