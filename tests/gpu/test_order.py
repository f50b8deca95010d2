"""Weights that the call before has written: calls by themselves order every operand, also in captures. Needs --device cuda."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

from vivace import ops  # noqa: E402

TURNS = 200


@pytest.fixture(scope="module")
def setting():
    g = torch.Generator(device=device.NAME).manual_seed(3)
    draw = lambda *shape: torch.randn(*shape, generator=g, device=device.NAME)  # noqa: E731
    given = {"x": draw(1024, 2048).to(torch.bfloat16), "written": [draw(2048, 2048) for _ in range(2)]}
    given["want"] = [torch.empty(1024, 2048, dtype=torch.bfloat16, device=device.NAME) for _ in range(2)]
    for w, out in zip(given["written"], given["want"]):
        ops.gemm(x=given["x"], w=w.to(torch.bfloat16), out=out)
    torch.cuda.synchronize()
    return given


def chain(setting, w, outs, between):
    """Each product takes what a cast has just written; `between` them a norm, which lets the product start before the cast has ended."""
    normed = torch.empty_like(setting["x"])
    for i, out in enumerate(outs):
        ops.cast(x=setting["written"][i % 2], out=w)
        if between:
            ops.norm(x=setting["x"], out=normed)
        ops.gemm(x=setting["x"], w=w, out=out)


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("captured", [False, True])
def test_a_weight_is_written_just_before(setting, between, captured, record_property):
    w = torch.empty(2048, 2048, dtype=torch.bfloat16, device=device.NAME)
    outs = [torch.empty_like(setting["want"][0]) for _ in range(8)]
    wrong = torch.zeros((), dtype=torch.int64, device=device.NAME)
    chain(setting, w, outs, between)
    if captured:
        with device.Capture() as graph:
            chain(setting, w, outs, between)
    for _ in range(TURNS):
        for out in outs:
            out.fill_(float("nan"))
        graph.replay() if captured else chain(setting, w, outs, between)
        wrong += sum((out != setting["want"][i % 2]).any() for i, out in enumerate(outs))
    record_property("note", f"{TURNS * len(outs)} products")
    assert int(wrong) == 0, f"{int(wrong)} of {TURNS * len(outs)} products took what was there before"
