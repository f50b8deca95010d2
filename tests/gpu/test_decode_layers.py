"""decode_layers, whose blocks wait for each other: values at every count of keys, the same bits whenever and however often it runs, and nothing
written but one place of each cache. The smallest shape comes first."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)
if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("decode_layers is for Hopper", allow_module_level=True)

from tests.gpu.decode_case import PAGE, SHAPES, Step, bits, bits_apart  # noqa: E402
from vivace import ops  # noqa: E402
from vivace.errors import UnsupportedError  # noqa: E402

CONTEXTS = (1, 63, 64, 65, 1000, 4097)


def same(a, b, what):
    assert torch.equal(a.view(torch.int16), b.view(torch.int16)), f"{what}: other bits, {(a.view(torch.int16) != b.view(torch.int16)).sum()} of {a.numel()}"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dense", [False, True], ids=["pages", "dense"])
def test_values(shape, dense):
    """What the host makes of the same caches. A row of bf16 that enters a product is off by 1.1e-3 rms, and those of a layer by 3e-3; words of 15 bits and the
    order of sums make two ways round apart now and then, so that rows differ by less than that of what the layers add."""
    step = Step(shape, dense=dense)
    for context in CONTEXTS:
        want = step.on_host(context)
        got = step(context)
        added = (want["out"].float() - want["x"].float()).pow(2).mean().sqrt()
        off = (got.cpu().float() - want["out"].float()).pow(2).mean().sqrt()
        assert off < 8e-3 * SHAPES[shape][0] ** 0.5 * added, f"context {context}: off by {off / added:.5f} of what the layers add"
        for cache in ("k_cache", "v_cache"):
            a, b = step.given[cache].cpu(), want[cache]
            there = (a.view(torch.int16) != b.view(torch.int16)).reshape(a.shape[0], a.shape[1], a.shape[2], -1).any(-1).any(0)
            assert there.sum() <= 1, f"context {context}: {cache} differs at {there.nonzero().tolist()}"
            assert (a.float() - b.float()).abs().max() < 0.06 * b.float().abs().max()


@pytest.mark.parametrize("shape", SHAPES)
def test_same_bits_each_time(shape):
    """More turns than there are tags, without a wait of the host's between steps; then a count of turns that begins anew."""
    step = Step(shape)
    first = step(1000).clone()
    outs = [step(1000, torch.full_like(first, 7)) for _ in range(300)]
    for i, out in enumerate(outs):
        same(out, first, f"step {i}")
    for context in (4097, 1001, 4000):  # what they write lies behind the thousand
        step(context)
    same(step(1000), first, "behind others")
    step.given["words"].zero_()
    step.given["words"][0] = -5
    for i in range(5):
        same(step(1000), first, f"turn {-5 + i * SHAPES[shape][0]}")


@pytest.mark.parametrize("shape", SHAPES)
def test_graphs(shape):
    """Two steps that follow each other in a graph, eager ones between replays."""
    step = Step(shape)
    first = {context: step(context).clone() for context in (65, 1000)}
    out = {context: torch.zeros_like(first[context]) for context in first}
    pos = {context: torch.tensor([context - 1], dtype=torch.int32, device="cuda") for context in first}
    with device.Capture() as graph:
        for context in first:
            ops.decode_layers(**step.given | {"pos": pos[context], "out": out[context]})
    for turn in range(40):
        for o in out.values():
            o.fill_(3)
        graph.replay()
        for context in first:
            same(out[context], first[context], f"replay {turn}")
        same(step(65), first[65], f"behind replay {turn}")


def test_a_step_onto_its_own_row():
    step = Step("smollm2")
    want = step(200).clone()
    row = step.given["x"].clone()
    ops.decode_layers(**step.given | {"x": row, "out": row})
    same(row, want, "in place")


@pytest.mark.parametrize("shape", ["small", "smollm2", "qwen3"])
def test_delays(shape, tmp_path):
    """The same bits where warps are held up here and there."""
    want = bits(shape)
    for seed in (17, 18, 19):
        assert bits_apart(shape, seed, tmp_path / str(seed)) == want, f"other bits with delays of seed {seed}"


@pytest.mark.parametrize("shape", ["small", "qwen3"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_only_its_place_is_written(shape, context):
    """What lies behind the position holds no numbers, and pages behind it are not there; all but one place of a page stays as it was."""
    step = Step(shape)
    want = step(context).clone()
    table, caches = step.given["page_table"], (step.given["k_cache"], step.given["v_cache"])
    pages = -(-context // PAGE)
    others = torch.ones(caches[0].shape[1], dtype=torch.bool, device="cuda")
    others[table[1, :pages].long()] = False
    last = int(table[1, pages - 1])
    for cache in caches:
        cache[:, others] = float("nan")
        cache[:, last, (context - 1) % PAGE :] = float("nan")
    table[0] = -1
    table[1, pages:] = -1
    before = [cache.clone() for cache in caches]
    same(step(context), want, "with no numbers behind the position")
    for cache, old in zip(caches, before):
        changed = (cache.view(torch.int16) != old.view(torch.int16)).reshape(*cache.shape[:3], -1).any(-1)
        assert changed.any(0).nonzero().tolist() == [[last, (context - 1) % PAGE]] and changed[:, last, (context - 1) % PAGE].all()


@pytest.mark.parametrize("pos, slot, rows", [(-1, 1, 1), (4160, 1, 1), (70, 2, 1), (70, -1, 1), (70, 1, 0)])
def test_nothing_without_a_place(pos, slot, rows):
    """No position, no slot, no row: nothing is written, and the next step has its bits."""
    step = Step("small")
    want = step(100).clone()
    held = {p: step.given[p].clone() for p in ("k_cache", "v_cache", "out", "words")}
    step.given["slot"].fill_(slot)
    step.given["pos"].fill_(pos)
    ops.decode_layers(**step.given, rows=torch.tensor([rows], dtype=torch.int32, device="cuda"))
    for p, before in held.items():
        assert torch.equal(step.given[p].view(torch.int16), before.view(torch.int16)), f"{p} has changed"
    step.given["slot"].fill_(1)
    same(step(100), want, "behind it")


@pytest.mark.parametrize("shape", ["small", "qwen3"])
@pytest.mark.parametrize("port", ["x", "qkv", "gate_up", "down"])
def test_no_number_is_none_behind_it(shape, port):
    """One of a step's inputs is no number: the row that comes out has none, as behind launches."""
    step = Step(shape)
    if port == "x":
        step.given["x"][0, 3] = float("nan")
    else:
        step.given[port][0, 0, 0] = float("nan")
    assert step(130).isnan().all()


def test_what_it_does_not_take():
    step = Step("small")
    odd = step.given | {"x": torch.empty(1, 129, dtype=torch.bfloat16, device="cuda")[:, 1:]}
    with pytest.raises(UnsupportedError, match="16 bytes"):
        ops.decode_layers(**odd)
