"""decode_layers_cross, whose blocks wait for each other: values at every count of keys, the same bits whenever and however often it runs, and nothing
written but one place of each cache. The smallest shape comes first."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)
if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("decode_layers_cross is for Hopper", allow_module_level=True)

from tests.gpu import cross_case  # noqa: E402
from tests.gpu.cross_case import CONTEXTS, SHAPES, Step, bits  # noqa: E402
from tests.gpu.decode_case import bits_apart  # noqa: E402
from vivace import ops  # noqa: E402
from vivace.errors import UnsupportedError  # noqa: E402


def same(a, b, what):
    assert torch.equal(a.view(torch.int16), b.view(torch.int16)), f"{what}: other bits, {(a.view(torch.int16) != b.view(torch.int16)).sum()} of {a.numel()}"


def rms(x):
    return x.float().pow(2).mean().sqrt()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dense", [False, True], ids=["pages", "dense"])
def test_values(shape, dense):
    """What the host makes of the same caches. A row of bf16 that enters a product is off by 1.1e-3 rms, and those of a layer by 3e-3; words of 15 bits and the
    order of sums make two ways round apart now and then, so that rows differ by less than that of what the layers add."""
    step = Step(shape, dense=dense)
    for context in CONTEXTS:
        want = step.on_host(context)
        got = step(context)
        added = rms(want["out"].float() - want["x"].float() - want["add"].float())
        off = rms(got.cpu().float() - want["out"].float())
        limit = 8e-3 * SHAPES[shape][0] ** 0.5
        assert off < limit * added, f"context {context}: off by {off / added:.5f} of what the layers add"
        assert rms(step.given["queries"].cpu().float() - want["queries"].float()) < limit * rms(want["queries"])
        for cache in ("k_cache", "v_cache"):
            a, b = step.given[cache].cpu(), want[cache]
            there = (a.view(torch.int16) != b.view(torch.int16)).reshape(a.shape[0], a.shape[1], a.shape[2], -1).any(-1).any(0)
            assert there.sum() <= 1, f"context {context}: {cache} differs at {there.nonzero().tolist()}"
            assert (a.float() - b.float()).abs().max() < 0.06 * b.float().abs().max()


@pytest.mark.parametrize("shape", SHAPES)
def test_same_bits_each_time(shape):
    """More turns than there are tags, without a wait of the host's between steps; then a count of turns that begins anew."""
    step = Step(shape)
    first = step(200).clone()
    outs = [step(200, torch.full_like(first, 7)) for _ in range(300)]
    for i, out in enumerate(outs):
        same(out, first, f"step {i}")
    for context in (448, 201, 400):  # what they write lies behind the two hundred
        step(context)
    same(step(200), first, "behind others")
    step.given["words"].zero_()
    step.given["words"][0] = -5
    for i in range(5):
        same(step(200), first, f"turn {-5 + i * SHAPES[shape][0]}")


@pytest.mark.parametrize("shape", SHAPES)
def test_graphs(shape):
    """Two steps that follow each other in a graph, eager ones between replays."""
    step = Step(shape)
    first = {context: step(context).clone() for context in (65, 400)}
    out = {context: torch.zeros_like(first[context]) for context in first}
    pos = {context: torch.tensor([context - 1], dtype=torch.int32, device="cuda") for context in first}
    with device.Capture() as graph:
        for context in first:
            ops.decode_layers_cross(**step.given | {"pos": pos[context], "out": out[context]})
    for turn in range(40):
        for o in out.values():
            o.fill_(3)
        graph.replay()
        for context in first:
            same(out[context], first[context], f"replay {turn}")
        same(step(65), first[65], f"behind replay {turn}")


def test_a_step_onto_its_own_row():
    step = Step("tiny")
    want = step(200).clone()
    row = step.given["x"].clone()
    ops.decode_layers_cross(**step.given | {"x": row, "out": row})
    same(row, want, "in place")


@pytest.mark.parametrize("shape", ["small", "tiny", "large"])
def test_delays(shape, tmp_path):
    """The same bits where warps are held up here and there."""
    want = bits(shape)
    for seed in (17, 18, 19):
        assert bits_apart(shape, seed, tmp_path / str(seed), cross_case.__file__) == want, f"other bits with delays of seed {seed}"


@pytest.mark.parametrize("shape", ["small", "large"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_only_its_place_is_written(shape, context):
    """What lies behind the position holds no numbers, nor does another window, and pages behind it are not there; all but one place stays as it was."""
    step = Step(shape)
    want = step(context).clone()
    table, caches = step.given["page_table"], (step.given["k_cache"], step.given["v_cache"])
    others = torch.ones(caches[0].shape[1], dtype=torch.bool, device="cuda")
    others[table[1, : context - 1].long()] = False
    last = int(table[1, context - 1])
    for cache in caches:
        cache[:, others] = float("nan")
    for heard in ("cross_k", "cross_v"):
        step.given[heard][:, 0] = float("nan")
    table[0] = -1
    table[1, context:] = -1
    before = [cache.clone() for cache in caches]
    same(step(context), want, "with no numbers behind the position")
    for cache, old in zip(caches, before):
        changed = (cache.view(torch.int16) != old.view(torch.int16)).reshape(*cache.shape[:3], -1).any(-1)
        assert changed.any(0).nonzero().tolist() == [[last, 0]] and changed[:, last, 0].all()


@pytest.mark.parametrize("pos, slot, window, rows", [(-1, 1, 1, 1), (448, 1, 1, 1), (70, 2, 1, 1), (70, -1, 1, 1), (70, 1, 2, 1), (70, 1, -1, 1), (70, 1, 1, 0)])
def test_nothing_without_a_place(pos, slot, window, rows):
    """No position, no slot, no window, no row: nothing is written, and the next step has its bits."""
    step = Step("small")
    want = step(100).clone()
    held = {p: step.given[p].clone() for p in ("k_cache", "v_cache", "out", "queries", "words")}
    for p, v in (("pos", pos), ("slot", slot), ("window", window)):
        step.given[p].fill_(v)
    ops.decode_layers_cross(**step.given, rows=torch.tensor([rows], dtype=torch.int32, device="cuda"))
    for p, before in held.items():
        assert torch.equal(step.given[p].view(torch.int16), before.view(torch.int16)), f"{p} has changed"
    step.given["slot"].fill_(1)
    step.given["window"].fill_(1)
    same(step(100), want, "behind it")


@pytest.mark.parametrize("shape", ["small", "large"])
@pytest.mark.parametrize("port", ["x", "qkv", "cross_v", "up", "down"])
def test_no_number_is_none_behind_it(shape, port):
    """One of a step's inputs is no number: the row that comes out has none, as behind launches."""
    step = Step(shape)
    step.given[port].view(-1)[3] = float("nan") if port != "cross_v" else 0
    if port == "cross_v":
        step.given[port][0, 1, 3, 0, 3] = float("nan")
    assert step(130).isnan().all()


def test_what_it_does_not_take():
    step = Step("small")
    odd = step.given | {"x": torch.empty(1, 129, dtype=torch.bfloat16, device="cuda")[:, 1:]}
    with pytest.raises(UnsupportedError, match="16 bytes"):
        ops.decode_layers_cross(**odd)
