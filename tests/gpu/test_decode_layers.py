"""decode_layers, whose blocks wait for each other: values at every count of keys, the same bits whenever and however often it runs, and nothing
written but one place of each cache. The smallest shape comes first."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)
if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("decode_layers is for Hopper", allow_module_level=True)

from tests.gpu import decode_case  # noqa: E402
from tests.gpu.decode_case import PAGE, SHAPES, Step, bits  # noqa: E402
from tests.gpu.decode_checks import held_up, nothing_without_a_place, one_place_differs, only_its_place_is_written, onto_its_own_row, refuses_a_row_off_16_bytes, replayed, rms, same_bits_each_time  # noqa: E402
from vivace import ops  # noqa: E402

CONTEXTS = (1, 63, 64, 65, 1000, 4097)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dense", [False, True], ids=["pages", "dense"])
def test_values(shape, dense):
    """What the host makes of the same caches. A row of bf16 that enters a product is off by 1.1e-3 rms, and those of a layer by 3e-3; words of 15 bits and the
    order of sums make two ways round apart now and then, so that rows differ by less than that of what the layers add."""
    step = Step(shape, dense=dense)
    for context in CONTEXTS:
        want = step.on_host(context)
        got = step(context)
        added = rms(want["out"].float() - want["x"].float())
        off = rms(got.cpu().float() - want["out"].float())
        assert off < 8e-3 * SHAPES[shape][0] ** 0.5 * added, f"context {context}: off by {off / added:.5f} of what the layers add"
        one_place_differs(step, want, context)


@pytest.mark.parametrize("shape", SHAPES)
def test_same_bits_each_time(shape):
    """More turns than there are tags, without a wait of the host's between steps; then a count of turns that begins anew."""
    same_bits_each_time(Step(shape), SHAPES[shape][0], 1000, behind=(4097, 1001, 4000))


@pytest.mark.parametrize("shape", SHAPES)
def test_graphs(shape):
    """Two steps that follow each other in a graph, eager ones between replays."""
    replayed(ops.decode_layers, Step(shape), (65, 1000))


def test_a_step_onto_its_own_row():
    onto_its_own_row(ops.decode_layers, Step("smollm2"))


@pytest.mark.parametrize("shape", ["small", "smollm2", "qwen3"])
def test_delays(shape, tmp_path):
    """The same bits where warps are held up here and there."""
    held_up(shape, bits, tmp_path, decode_case.__file__)


@pytest.mark.parametrize("shape", ["small", "qwen3"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_only_its_place_is_written(shape, context):
    """What lies behind the position holds no numbers, and pages behind it are not there; all but one place of a page stays as it was."""
    only_its_place_is_written(Step(shape), context, PAGE)


@pytest.mark.parametrize("pos, slot, rows", [(-1, 1, 1), (4160, 1, 1), (70, 2, 1), (70, -1, 1), (70, 1, 0)])
def test_nothing_without_a_place(pos, slot, rows):
    """No position, no slot, no row: nothing is written, and the next step has its bits."""
    nothing_without_a_place(ops.decode_layers, Step("small"), rows, ("k_cache", "v_cache", "out", "words"), slot=slot, pos=pos)


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
    refuses_a_row_off_16_bytes(ops.decode_layers, Step("small"))
