"""Every tactic of every op, by a call that picks it, against the float64 reference. Needs --device cuda."""
import pytest

from tests.op_data import TABLE, contents, device, reference
from tests.op_run import Run, verify

if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

import torch  # noqa: E402

from tests.tactics import search  # noqa: E402
from vivace import _core, jit  # noqa: E402

# Share of the table that calls must reach. Less than all, for the search does not hit every set of types, forms and
# sizes together: attention's streams cut in two (48 of 53: the cases fix the slots, and with them the cut).
REQUIRED = 0.89
SHARE = {
    "attention": 0.88,  # 64 of 72 on sm_90a: tiles of 256 rows are for windows beyond this search; test_attention_full.py and the op's cases hold them
    "gemm": 0.45,  # 96 of 211 on sm_90a: shipped tiles of large weights are beyond the float64 reference; lab/gemm/bench holds those to it on samples, and to each other's bits
}
SHARES = {"gemm": 3, "norm": 2, "attention": 2}  # tests of an op's tactics, which can run side by side; otherwise one
CAPABILITY = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]


@pytest.mark.parametrize("op, share", [pytest.param(op, (i, n), id=op if n == 1 else f"{op}-{i}") for op in TABLE for n in [SHARES.get(op, 1)] for i in range(n)])
def test_each_tactic_by_a_call(op, share, record_property):
    """What tests/tactics.py finds must run, and be what runs; a tactic that no call reaches is named."""
    jit.prewarm([op])
    wanted = {e for _, e in _core.gpu_instances(op, CAPABILITY)}
    unserved = getattr(reference(op), "unserved_on_gpu", lambda case: None)
    found = {kernel: call for kernel, call in search(op, CAPABILITY).items() if not unserved(call[0])}
    assert len(found) >= SHARE.get(op, REQUIRED) * len(wanted), f"only {len(found)} of {len(wanted)} tactics are reached"
    worst = (0.0, 0.0)
    for kernel in sorted(found)[share[0] :: share[1]]:
        case, layout = found[kernel]
        r = Run(op, case, contents(op, case, "normal"), layout=layout).call()
        assert _core.picked_kernel(op, CAPABILITY, **r.arguments()) == kernel, f"{case.id}, {layout}: picks another kernel on the device than on the host"
        error, allowed = verify(op, case, r)
        if allowed and error / allowed > (worst[0] / worst[1] if worst[1] else 0):
            worst = (error, allowed)
    record_property("max_err", worst[0])
    record_property("bound", worst[1])
    print(f"{op}: {len(found)} of {len(wanted)} tactics run; no call found for", *sorted(wanted - set(found)), sep="\n    ")
