"""What holds of the bits of any policy's answers, whatever its family."""
import numpy as np

import vivace
from vivace import _core


def captured_is_eager(path, observations, device, **options):
    """A captured call has the bits of one op by op. observations: as predict() takes them."""
    raw = [dict(frames=o["images"], tokens=o["prompt"].tolist(), end_token=1, seed=0, action_prefix=None, **{k: o[k] for k in ("state", "noise", "embodiment") if k in o}) for o in observations]
    options = dict(statistics="none", precision="f32", device=device, threads=2 * (device == "cpu"), batch=2) | options
    assert _core.load_policy(str(path), **options).predict(raw) == _core.load_policy(str(path), eager=True, **options).predict(raw)


def tenant_is_alone(path, model, given, **options):
    """A scheduler's tenant on the CPU answers as the same policy without one does."""
    with vivace.Scheduler("cpu") as scheduler, scheduler.load_model(path, qos=vivace.guaranteed(hz=0.1, deadline_ms=9000), statistics="none", precision="f32", threads=2, **options) as tenant:
        assert np.array_equal(tenant.predict(**given), model.predict(**given))
