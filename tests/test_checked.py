"""Checked mode: contents that break an op's rules are refused before anything is launched; and what a call works in."""
import numpy as np
import pytest

import vivace
from tests.op_data import NUMPY, Slot
from vivace import ops


def slot(dtype, values):
    s = Slot(dtype, np.shape(values))
    s.bytes[...] = np.ascontiguousarray(np.asarray(values, NUMPY[dtype])).reshape(-1).view(np.uint8).reshape(s.bytes.shape)
    s.push()
    return s


class Paged:
    """Two slots of three pages of 16 places; the first holds 20, the second 40. Five pages exist."""

    def __init__(self, **changed):
        rng = np.random.default_rng(0)
        values = {"length": [20, 40], "slot": [0, 1, -1], "page_table": [[4, 1, 77], [0, 2, 3]], "pos": [19, 39, 0]} | changed
        self.ports = {n: slot("bf16", rng.standard_normal(s)) for n, s in {"q": (3, 4, 64), "k": (5, 16, 2, 64), "v": (5, 16, 2, 64)}.items()}
        self.ports |= {n: slot("i32", v) for n, v in values.items()} | {"out": Slot("bf16", (3, 4, 64)).fill(0x7F)}
        self.before = self.ports["out"].bytes.copy()

    def __call__(self):
        ops.attention(**{n: s.array for n, s in self.ports.items()})

    def written(self):
        self.ports["out"].pull()
        return not np.array_equal(self.ports["out"].bytes, self.before)


def test_right_contents_pass():
    call = Paged()
    with ops.checked():
        call()
    assert call.written()


@pytest.mark.parametrize("changed, says", [
    ({"length": [20, 49]}, r"length\[1\] is 49, wanted 0 to the 48 places"),
    ({"length": [-1, 40]}, r"length\[0\] is -1"),
    ({"page_table": [[4, 5, 0], [0, 2, 3]]}, r"page_table\[0, 1\] is 5, wanted 0 to 4: slot 0 holds 20 places in pages of 16"),
    ({"page_table": [[4, 1, 0], [0, -1, 3]]}, r"page_table\[1, 1\] is -1"),
    ({"slot": [0, 2, -1]}, r"slot\[1\] is 2, wanted -1 to 1"),
    ({"slot": [0, -2, -1]}, r"slot\[1\] is -2"),
])
def test_wrong_contents(changed, says):
    call = Paged(**changed)
    with ops.checked(), pytest.raises(vivace.InvalidArgumentError, match="attention: " + says):
        call()
    assert not call.written()
    call()  # without the mode it is defined what such contents do
    assert call.written()


@pytest.mark.parametrize("offsets, says", [([0, 5, 4, 9], r"k_offsets\[2\] is 4, wanted 5 to 12"), ([-1, 5, 8, 9], r"k_offsets\[0\] is -1"), ([0, 5, 8, 13], r"k_offsets\[3\] is 13")])
def test_offsets(offsets, says):
    q, k, v, out = (Slot("f32", s).fill(0) for s in ((2, 2, 32), (1, 12, 1, 32), (1, 12, 1, 32), (2, 2, 32)))
    with ops.checked(), pytest.raises(vivace.InvalidArgumentError, match=says):
        ops.attention(q=q.array, k=k.array, v=v.array, out=out.array, slot=slot("i32", [0, 2]).array, k_offsets=slot("i32", offsets).array, mask="full")


@pytest.mark.parametrize("op", ["norm", "norm_block_scaled", "gate_residual"])
@pytest.mark.parametrize("row, says", [(2, r"ada_row\[1\] is 2, wanted 0 to 1"), (-1, r"ada_row\[1\] is -1"), (10**6, r"ada_row\[1\] is 1000000")])
def test_rows_of_a_table(op, row, says):
    out = Slot("u8", (3, 16)).fill(7) if op == "norm_block_scaled" else Slot("f32", (3, 32)).fill(7)
    ports = {"x": slot("f32", np.ones((3, 32))), "gate": slot("f32", np.ones((2, 32))), "ada_row": slot("i32", [0, row, 99]), "rows": slot("i32", [2]), "out": out}
    ports |= {"residual": slot("f32", np.ones((3, 32)))} if op != "gate_residual" else {}
    ports |= {"scales": Slot("e4m3", (6,)), "tensor_scale": slot("f32", [1.0])} if op == "norm_block_scaled" else {}
    call = lambda: getattr(ops, op)(**{n: s.array for n, s in ports.items()})  # noqa: E731
    before = out.bytes.copy()
    with ops.checked(), pytest.raises(vivace.InvalidArgumentError, match=f"{op}: " + says):
        call()
    out.pull()
    assert np.array_equal(out.bytes, before)
    ports["ada_row"].bytes[1] = np.array([1], np.int32).view(np.uint8)
    ports["ada_row"].push()
    with ops.checked():
        call()  # the third row is not valid
    out.pull()
    assert not np.array_equal(out.bytes, before)


def test_spread_offsets():
    with ops.checked(), pytest.raises(vivace.InvalidArgumentError, match=r"spread_offsets: offsets\[2\] is 9, wanted 3 to 8"):
        ops.spread_offsets(offsets=slot("i32", [0, 3, 9]).array, slot=Slot("i32", (8,)).array, pos=Slot("i32", (8,)).array)


def test_groups():
    """Offsets that fall would have groups share rows; those beyond x are clamped in this mode too."""
    ports = {"x": slot("f32", np.ones((5, 4))), "w": slot("f32", np.ones((2, 3, 4))), "offsets": slot("i32", [0, 4, 2]), "out": Slot("f32", (5, 3)).fill(0x7F)}
    before = ports["out"].bytes.copy()
    with ops.checked(), pytest.raises(vivace.InvalidArgumentError, match=r"grouped_gemm: offsets\[2\] is 2, wanted 4 or more: offsets rise"):
        ops.grouped_gemm(**{n: s.array for n, s in ports.items()})
    ports["out"].pull()
    assert np.array_equal(ports["out"].bytes, before)
    ports["offsets"] = slot("i32", [-3, 4, 99])
    with ops.checked():
        ops.grouped_gemm(**{n: s.array for n, s in ports.items()})
    ports["out"].pull()
    assert np.array_equal(ports["out"].bytes.view(np.float32), np.full((5, 3), 4, np.float32))


def test_latent():
    q, cache, out = slot("bf16", np.zeros((1, 2, 160))), slot("bf16", np.zeros((2, 8, 160))), Slot("bf16", (1, 1, 2, 128))
    with ops.checked(), pytest.raises(vivace.InvalidArgumentError, match=r"latent_attention: page_table\[0, 1\] is 2"):
        ops.latent_attention(q=q.array, cache=cache.array, page_table=slot("i32", [[1, 2]]).array, length=slot("i32", [9]).array, out=out.array, mask="full", scale=0.1)


class Append:
    """Four tokens for two slots of two pages of 4 places, of five pages, heads first; the last token has no slot."""

    def __init__(self, op, **changed):
        values = {"pos": [0, 7, 3, 9], "slot": [0, 0, 1, -1], "page_table": [[4, 1], [0, 77]]} | changed
        rows = {"k": (4, 2, 16), "v": (4, 2, 16)} if op == "kv_append" else {"qkv": (4, 6 * 16)}
        self.op, self.ports = op, {n: slot("bf16", np.ones(s)) for n, s in rows.items()} | {n: slot("i32", v) for n, v in values.items()}
        self.caches = [Slot("bf16", (5, 2, 4, 16)).fill(0) for _ in "kv"]
        self.ports |= {"k_cache": self.caches[0], "v_cache": self.caches[1]} | ({} if op == "kv_append" else {"q": Slot("bf16", (4, 2, 16)).fill(0)})

    def __call__(self):
        getattr(ops, self.op)(**{n: s.array for n, s in self.ports.items()}, layout="hnd")

    def written(self):
        for c in self.caches:
            c.pull()
        return any(c.bytes.any() for c in self.caches)


@pytest.mark.parametrize("op", ("kv_append", "qkv_rope"))
@pytest.mark.parametrize("changed, says", [
    ({"pos": [0, 8, 3, -1]}, r"pos\[1\] is 8, wanted -1 to 7"),
    ({"pos": [0, 7, 3, -2]}, r"pos\[3\] is -2"),
    ({"slot": [0, 2, 1, -1], "pos": [0, 7, 3, -1]}, r"slot\[1\] is 2, wanted -1 to 1"),
    ({"pos": [0, 7, 4, -1]}, r"page_table\[1, 1\] is 77, wanted 0 to 4: token 2 goes to place 4 of slot 1"),
])
def test_appending(op, changed, says):
    call = Append(op, **changed)
    with ops.checked(), pytest.raises(vivace.InvalidArgumentError, match=f"{op}: " + says):
        call()
    assert not call.written()
    with ops.checked():
        Append(op, pos=[0, 7, 3, -1])()
    call()  # without the mode it is defined what such contents do
    assert call.written()


def test_mode_ends():
    """Also when its body raises."""
    assert not ops._core.checked()
    with pytest.raises(KeyError), ops.checked():
        assert ops._core.checked()
        raise KeyError
    assert not ops._core.checked()


def test_workspace_size():
    """Parts of a split meet in a cluster's shared memory: there is no workspace to bring, and none is held."""
    call = {n: s.array for n, s in Paged().ports.items()}
    for capability in (80, 90, 120):
        assert ops.workspace_size("attention", capability=capability, **call) == 0
    with pytest.raises(vivace.UnsupportedError, match="composite"):
        x = Slot("f32", (2, 8)).array
        ops.workspace_size("gated_mlp", x=x, w_gate=x, w_up=x, w_down=Slot("f32", (8, 2)).array, out=Slot("f32", (2, 8)).array,
                           gate_up=Slot("f32", (2, 4)).array, hidden=Slot("f32", (2, 2)).array)
    with pytest.raises(vivace.InvalidShapeError):
        ops.workspace_size("attention", **call | {"out": call["q"][:2]})


SCALES = {"x_scale": [0.5], "w_scale": [2.0], "x_row_scale": [1.0, 2.0, 3.0], "w_row_scale": [1.0] * 8, "out_scale": [0.25]}


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_scale_of_attention(value):
    p = Paged()
    scale, out = slot("f32", [0.5]), Slot("e4m3", p.ports["q"].array.shape).fill(0x7F)
    call = {n: s.array for n, s in p.ports.items()} | {"out": out.array, "out_scale": scale.array}
    with ops.checked():
        ops.attention(**call)
    call["out_scale"] = slot("f32", [value]).array
    with ops.checked(), pytest.raises(vivace.InvalidArgumentError, match="attention: port out_scale: a scale is finite and above zero, entry 0 is"):
        ops.attention(**call)


@pytest.mark.parametrize("port, at, value", [("x_scale", 0, 0.0), ("w_scale", 0, float("nan")), ("x_row_scale", 1, -1.0), ("w_row_scale", 7, float("inf")), ("out_scale", 0, -0.0)])
@pytest.mark.parametrize("op", ["gemm", "gated_gemm"])
def test_scales(op, port, at, value):
    """A scale that is not above zero is refused, unless it belongs to a row that is not valid."""
    values = {p: list(v) for p, v in SCALES.items()}

    def call(rows=None):
        rng = np.random.default_rng(0)
        given = {p: slot("f32", v).array for p, v in values.items()}
        given |= {"x": slot("bf16", rng.standard_normal((3, 16))).array, "w": slot("bf16", rng.standard_normal((8, 16))).array}
        out = Slot("e4m3", (3, 8 if op == "gemm" else 4)).fill(0x7F)
        getattr(ops, op)(out=out.array, **given, **({} if rows is None else {"rows": slot("i32", [rows]).array}))

    with ops.checked():
        call()
    values[port][at] = value
    with ops.checked(), pytest.raises(vivace.InvalidArgumentError, match=rf"{op}: port {port}: a scale is finite and above zero, entry {at} is"):
        call()
    if port == "x_row_scale":
        with ops.checked():
            call(rows=1)
    call()
