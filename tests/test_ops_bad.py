"""Every way to call an op wrongly that its spec lets us think of: a typed error that names op and port,
and nothing written."""
import re

import numpy as np
import pytest

import vivace
from tests import dlpack_fake
from tests.op_data import DTYPES, NUMPY, TABLE, Slot, is_block, pitched, ports, reference, shape_of
from tests.op_run import run
from vivace import ops


def cases_by_port(required=False):
    """(op, port, first non-empty case that has the port)."""
    out = []
    for op in TABLE:
        for port in ports(op):
            if required and ports(op)[port]["optional"]:
                continue
            for case in reference(op).CASES if reference(op) else []:
                if port in case.dtypes and 0 not in case.dims.values():
                    out.append(pytest.param(op, port, case, id=f"{op}-{port}"))
                    break
    return out


EACH_PORT = pytest.mark.parametrize("op, port, case", cases_by_port())
EACH_OP = pytest.mark.parametrize("op, case", [pytest.param(op, reference(op).CASES[0], id=op) for op in TABLE if reference(op)])


def refused(r, error, names, changes=(), drop=()):
    """The call with some arguments replaced raises `error`, whose message names the op and one of `names`;
    no slot has changed."""
    arguments = {k: v for k, v in r.arguments().items() if k not in drop} | dict(changes)
    with pytest.raises(error) as caught:
        getattr(ops, r.op)(**arguments)
    assert isinstance(caught.value, vivace.Error)
    message = str(caught.value)
    assert message.startswith(f"{r.op}: "), message
    assert any(re.search(rf"\b{re.escape(n)}\b", message) for n in names), f"{message!r} names none of {names}"
    for port, slot in r.slots.items():
        assert np.array_equal(slot.bytes, r.before[port]), f"port {port} was written by a refused call"
        assert np.array_equal(slot.surroundings(), r.around[port])


def followers(op, case, port):
    """Ports of the case that take their dtype from `port`."""
    return [p for p, spec in ports(op).items() if spec["dtypes"] == f"={port}" and p in case.dtypes]


def sharing(op, case, port):
    """Ports of the case whose shape has a symbol in common with this one's: an error may name either."""
    symbols = lambda p: set(re.findall(r"[A-Za-z]\w*", ports(op)[p]["shape"]))  # noqa: E731
    return [p for p in case.dtypes if symbols(p) & symbols(port)]


@EACH_PORT
def test_wrong_dtype(op, port, case):
    r = run(op, case)
    allowed = ports(op)[port]["dtypes"].split("|")
    for dtype in NUMPY:
        if dtype in allowed or (allowed[0][0] == "=" and dtype == case.dtypes.get(allowed[0][1:])):
            continue
        refused(r, vivace.InvalidDTypeError, [port, *followers(op, case, port)], {port: Slot(dtype, shape_of(op, port, case)).array})


@EACH_PORT
def test_wrong_rank(op, port, case):
    r, dtype, shape = run(op, case), case.dtypes[port], shape_of(op, port, case)
    refused(r, vivace.InvalidShapeError, [port], {port: Slot(dtype, (1, *shape)).array})
    if len(shape) > 1:
        refused(r, vivace.InvalidShapeError, [port], {port: Slot(dtype, shape[1:]).array})


@EACH_PORT
def test_wrong_size(op, port, case):
    """Each axis one larger and one smaller, where something else says what it should be."""
    r, dtype, shape = run(op, case), case.dtypes[port], shape_of(op, port, case)
    for axis, expression in enumerate(ports(op)[port]["shape"].split(",")):
        known = expression.isdigit() or any(p != port and expression in ports(op)[p]["shape"].split(",") for p in case.dtypes)
        if not known:
            continue
        step = DTYPES[dtype]["block"] if axis == len(shape) - 1 else 1
        for size in (shape[axis] + step, shape[axis] - step):
            if size >= 0:
                other = (*shape[:axis], size, *shape[axis + 1:])
                refused(r, vivace.InvalidShapeError, [port, *sharing(op, case, port)], {port: Slot(dtype, other).array})


@pytest.mark.parametrize("op, port, case", cases_by_port(required=True))
def test_missing(op, port, case):
    r = run(op, case)
    refused(r, vivace.InvalidArgumentError, [port], drop=[port])
    refused(r, vivace.InvalidArgumentError, [port], {port: None})


@EACH_PORT
def test_null(op, port, case):
    dtype, shape = case.dtypes[port], shape_of(op, port, case)
    if is_block(dtype):
        return  # a View cannot be null
    refused(run(op, case), vivace.InvalidArgumentError, [port], {port: dlpack_fake.Fake(None, dtype, shape)})


@EACH_PORT
def test_misaligned(op, port, case):
    dtype, shape = case.dtypes[port], shape_of(op, port, case)
    if not is_block(dtype) and DTYPES[dtype]["bytes"] == 1:
        return  # any address will do
    slot = Slot(dtype, shape)
    raw = np.zeros(slot.bytes.size + 16, np.uint8)
    at = -raw.ctypes.data % 16 + 1
    if is_block(dtype):
        odd = vivace.view(raw[at : at + slot.bytes.size], dtype=dtype, shape=shape)
    else:
        odd = np.ndarray(shape, NUMPY[dtype], raw, at)
    refused(run(op, case), vivace.InvalidLayoutError, [port], {port: odd})


@EACH_PORT
def test_not_dense(op, port, case):
    """Strided or reversed inner axes, a broadcast outer axis, a reversed one."""
    r, dtype, shape = run(op, case), case.dtypes[port], shape_of(op, port, case)
    if is_block(dtype):
        return  # view() makes dense rows only; test_arrays.py has its errors
    wide = np.zeros([2 * s for s in shape], NUMPY[dtype])
    for axis in range(len(shape)):
        if shape[axis] < 2 or (axis == 0 and len(shape) > 1) or (axis == 1 and pitched(op, port, case)):
            continue
        index = [slice(0, s) for s in shape]
        index[axis] = slice(0, 2 * shape[axis], 2)
        refused(r, vivace.InvalidLayoutError, [port], {port: np.ascontiguousarray(wide)[tuple(index)]})
    full = np.zeros(shape, NUMPY[dtype])
    if shape[0] > 1:
        refused(r, vivace.InvalidLayoutError, [port], {port: full[::-1]})
        flat = np.lib.stride_tricks.as_strided(full, shape, (0, *full.strides[1:]))
        refused(r, vivace.InvalidLayoutError, [port], {port: flat})
    if len(shape) > 1 and shape[-1] > 1:
        refused(r, vivace.InvalidLayoutError, [port], {port: full[..., ::-1]})


PITCHED_PORTS = [(op, port) for op in TABLE for port, spec in ports(op).items() if spec["pitched"]]


@pytest.mark.parametrize("op, port", PITCHED_PORTS)
def test_places_that_overlap(op, port):
    """A second axis that may be strided: backwards, over itself, beyond 32 bits, entries of the outermost inside one another."""
    case = next(c for c in reference(op).CASES if pitched(op, port, c) and min(shape_of(op, port, c)) > 1)
    r, dtype, shape = run(op, case), case.dtypes[port], shape_of(op, port, case)
    unit, entry = DTYPES[dtype]["bytes"], int(np.prod(shape[2:]))
    memory = np.zeros(4 * int(np.prod(shape)), NUMPY[dtype])
    at = lambda outer, second: np.lib.stride_tricks.as_strided(memory[memory.size // 2 :], shape, (outer * unit, second * unit, *(unit * int(np.prod(shape[i + 1 :])) for i in range(2, len(shape)))))  # noqa: E731
    whole = shape[1] * entry
    for outer, second in ((whole, 0), (whole, entry - 1), (whole, -entry), (shape[1] * 2**31, 2**31), (whole, entry + 1), (0, entry)):
        refused(r, vivace.InvalidLayoutError, [port], {port: at(outer, second)})


def test_heads_that_lie_apart():
    """With layout=hnd the second axis is the heads', which may not be strided."""
    q, out = np.zeros((3, 4, 16), "f4"), np.zeros((3, 4, 16), "f4")
    wide, dense = np.zeros((1, 2, 16, 16), "f4"), np.zeros((1, 2, 8, 16), "f4")
    for port in ("k", "v"):
        given = {"k": dense, "v": dense, port: wide[:, :, :8]}
        with pytest.raises(vivace.InvalidLayoutError, match=f"^attention: port {port}: axis 1 has stride 256, wanted 128: with layout=hnd"):
            ops.attention(q=q, **given, out=out, layout="hnd")


@EACH_PORT
def test_not_an_array(op, port, case):
    r, dtype, shape = run(op, case), case.dtypes[port], shape_of(op, port, case)
    for value in ([[1.0]], 3.5, "x", object(), r.op):
        refused(r, vivace.InvalidDTypeError, [port], {port: value})
    if not is_block(dtype) and DTYPES[dtype]["bytes"] > 1 and NUMPY[dtype].__module__ == "numpy":
        refused(r, vivace.InvalidDTypeError, [port], {port: np.zeros(shape, np.dtype(NUMPY[dtype]).newbyteorder(">"))})
    refused(r, vivace.InvalidDTypeError, [port], {port: np.zeros(shape, np.complex64)})
    refused(r, vivace.InvalidDTypeError, [port], {port: dlpack_fake.Fake(8, "u32", shape)})
    refused(r, vivace.InvalidDeviceError, [port], {port: dlpack_fake.Fake(8, "f32", shape, device=dlpack_fake.OPENCL)})


@EACH_PORT
def test_read_only(op, port, case):
    r = run(op, case)
    if ports(op)[port]["io"] == "in":
        if not is_block(case.dtypes[port]):
            r.slots[port].array.flags.writeable = False
        r.call()  # reading read-only memory is fine
        return
    frozen = Slot(case.dtypes[port], shape_of(op, port, case)).array
    frozen.flags.writeable = False
    refused(r, vivace.InvalidArgumentError, [port], {port: frozen})


@EACH_PORT
def test_other_memory(op, port, case):
    """One port in device memory, the others on the host."""
    if is_block(case.dtypes[port]) or len(case.dtypes) == 1:
        return
    fake = dlpack_fake.Fake(4096, case.dtypes[port], shape_of(op, port, case), device=dlpack_fake.CUDA)
    refused(run(op, case), vivace.InvalidDeviceError, list(case.dtypes), {port: fake})


@EACH_PORT
def test_overlap(op, port, case):
    """A written port that shares bytes with any other port, unless it is exactly its in-place input."""
    if ports(op)[port]["io"] == "in":
        return
    r, mine = run(op, case), Slot(case.dtypes[port], shape_of(op, port, case))
    for other, dtype in case.dtypes.items():
        if other == port:
            continue
        theirs = Slot(dtype, shape_of(op, other, case))
        size = max(mine.bytes.size, theirs.bytes.size)
        unit = max(DTYPES[case.dtypes[port]]["bytes"], DTYPES[dtype]["bytes"])
        if min(mine.bytes.size, theirs.bytes.size) <= unit:
            unit = 0  # a single element: exactly the same memory
            if other in (ports(op)[port]["inplace"],) or port == ports(op)[other]["inplace"]:
                continue
        memory = np.zeros(size + 4 * unit + 64, np.uint8)
        start = -memory.ctypes.data % 64

        def place(name, at):
            d, shape = case.dtypes[name], shape_of(op, name, case)
            if is_block(d):
                slot = Slot(d, shape)
                return vivace.view(memory[at : at + slot.bytes.size].reshape(slot.bytes.shape), dtype=d, shape=shape)
            return np.ndarray(shape, NUMPY[d], memory, at)

        refused(r, vivace.AliasError, [port, other], {port: place(port, start), other: place(other, start + unit)})
        assert not memory.any()


@EACH_OP
def test_unknown_names(op, case):
    r = run(op, case)
    refused(r, vivace.NotFoundError, ["no_such_thing"], {"no_such_thing": 1})
    with pytest.raises(vivace.InvalidArgumentError, match=f"^{op}: .* positional arguments"):
        getattr(ops, op)(*[None] * (len(ports(op)) + 1))
    first = next(iter(ports(op)))
    with pytest.raises(vivace.InvalidArgumentError, match=f"^{op}: port {first} is given twice"):
        some = Slot("f32", (1,)).array
        getattr(ops, op)(some, **{first: some})


@EACH_OP
def test_bad_attributes(op, case):
    r = run(op, case)
    for attr in TABLE[op]["attrs"]:
        bad = {"choice": ["no such choice", 1, None, ""], "boolean": [2, -1, 0.5, "yes", float("nan"), None],
               "integer": [0.5, "3", float("nan"), float("inf"), None, 10**30], "real": ["1", float("nan"), None, [1.0]]}[attr["kind"]]
        for value in bad:
            refused(r, vivace.InvalidArgumentError, [attr["name"]], {attr["name"]: value})


@pytest.mark.parametrize("layout, cache", [("nhd", (1, 8, 3, 16)), ("hnd", (1, 3, 8, 16)), ("hnd", (1, 8, 2, 16)), ("nhd", (1, 2, 8, 16))])
@pytest.mark.parametrize("op", ("kv_append", "qkv_rope"))
def test_heads_of_a_cache(op, layout, cache):
    """Two heads for a cache of another number, or of the other layout."""
    z = lambda *shape: np.zeros(shape, np.float32)  # noqa: E731
    rows = {"k": z(2, 2, 16), "v": z(2, 2, 16)} if op == "kv_append" else {"qkv": z(2, 96), "q": z(2, 2, 16)}
    with pytest.raises(vivace.InvalidShapeError, match=rf"^{op}: .*Hkv = .*k_cache.*layout={layout}"):
        getattr(ops, op)(**rows, pos=np.zeros(2, np.int32), k_cache=z(*cache), v_cache=z(*cache), layout=layout)


@pytest.mark.parametrize("more, said", [({"inv_freq": np.ones(8, np.float32)}, "inv_freq given"), ({"attn_factor": 1.5}, "attn_factor 1.5"), ({"shift": np.zeros((1, 2), np.int32)}, "shift is given, but inv_freq is absent")])
def test_angles_that_are_made(more, said):
    """They leave nothing to say to what would make them."""
    z = lambda *shape: np.zeros(shape, np.float32)  # noqa: E731
    with pytest.raises(vivace.InvalidArgumentError, match=f"^qkv_rope: .*{said}"):
        ops.qkv_rope(qkv=z(2, 48), q=z(2, 1, 16), k_out=z(2, 1, 16), v_out=z(2, 1, 16), pos=np.zeros(2, np.int32), angles=z(2, 2, 8), **more)


@pytest.mark.parametrize("shape, port, said", [((2, 64), "qkv", "qkv has 64 elements a token"), ((2, 1, 32), "k_cache", "k_cache"), ((2, 2, 16), "angles", "R = 16 pairs"), ((2, 3, 8), "angles", "angles")])
def test_heads_of_one_product(shape, port, said):
    """rms_gemm_rope: a product of other heads, a cache of another axis count, angles of more pairs than a head has, of three."""
    z = lambda *shape: np.zeros(shape, np.float32)  # noqa: E731
    call = {"x": z(2, 32), "squares": z(2, 4), "w": z(48, 32), "row_scale": z(2), "qkv": z(2, 48), "q": z(2, 1, 16), "k_cache": z(1, 4, 1, 16), "v_cache": z(1, 4, 1, 16), "pos": np.zeros(2, np.int32), "angles": z(2, 2, 8)}
    call[port] = z(*shape)
    if port == "qkv":
        call["w"] = z(64, 32)
    with pytest.raises(vivace.InvalidShapeError, match=f"^rms_gemm_rope: .*{said}"):
        ops.rms_gemm_rope(**call)


def test_positional_ports():
    """Ports may go by position in the order of the spec; None leaves one out."""
    for op in TABLE:
        r = run(op, reference(op).CASES[0])
        arguments = r.arguments()
        getattr(ops, op)(*[arguments.pop(p, None) for p in ports(op)], **arguments)
        by_position = r.check_memory().written
        again = run(op, r.case).call().written
        assert all(np.array_equal(by_position[p], again[p]) for p in again)


def test_rows_of_grouped_products():
    x, w, offsets, out = np.zeros((3, 16), "f4"), np.zeros((2, 4, 16), "f4"), np.array([0, 2, 5], "i4"), np.zeros((5, 4), "f4")
    with pytest.raises(vivace.InvalidShapeError, match="x has 3 rows, out 5: wanted as many, or one"):
        ops.grouped_gemm(x=x, w=w, offsets=offsets, out=out)
    with pytest.raises(vivace.InvalidShapeError, match="^grouped_gated_gemm: grouped_gemm: x has 3 rows, out 5"):
        ops.grouped_gated_gemm(x=x, w=w, offsets=offsets, gate_up=out, out=np.zeros((5, 2), "f4"))


def test_scales_of_grouped_rows_are_for_codes():
    x, w, offsets, out, scale = np.zeros((5, 16), "f4"), np.zeros((2, 4, 16), "f4"), np.array([0, 2, 5], "i4"), np.full((5, 4), 7.0, "f4"), np.ones((2, 4), "f4")
    with pytest.raises(vivace.InvalidArgumentError, match="^grouped_gemm: w_row_scale goes with w of e4m3, got f32"):
        ops.grouped_gemm(x=x, w=w, w_row_scale=scale, offsets=offsets, out=out)
    codes = vivace.view(np.zeros((2, 4, 16), np.uint8), dtype="e4m3", shape=(2, 4, 16))
    with pytest.raises(vivace.InvalidShapeError, match="w_row_scale"):
        ops.grouped_gemm(x=x, w=codes, w_row_scale=scale[:, :3].copy(), offsets=offsets, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("K, E", [(1, 4), (1, 1)])
def test_a_shared_expert_alone(K, E):
    i4 = lambda *shape: np.zeros(shape, "i4")  # noqa: E731
    with pytest.raises(vivace.InvalidShapeError, match=f"^moe_route: wanted 2 <= K beside a shared expert, which is one of the K; got K {K} and E {E}"):
        ops.moe_route(logits=np.zeros((3, E), "f4"), weights=np.zeros((3, K), "f4"), place=i4(3, K), token=i4(3 * K), offsets=i4(E + 1), shared=True)


@pytest.mark.parametrize("w, more, says", [
    ("q4_0", {"quant": "q9"}, "quant"),
    ("f4", {"quant": "q8"}, "quant=q8 needs a block-quantized w, got f32; use quant=f32"),
    ("e2m1", {}, "w is e2m1, which has no scale of its own: it needs w_block_scale"),
    ("e2m1", {"w_block_scale": (8, 3)}, r"w_block_scale: \[8, 3\] does not divide w \[8, 64\]"),
    ("e2m1", {"w_block_scale": (4, 4)}, r"w_block_scale: \[4, 4\] does not divide w \[8, 64\]"),  # a row for each output, where gate and up have their own
    ("q4_0", {"w_block_scale": (8, 4)}, "w_block_scale goes with w of e2m1, i4, e4m3 or i8, got q4_0"),
    ("i8", {}, "w is i8: it needs one of w_row_scale, w_scale and w_block_scale")])
def test_quantized_weights_of_gated_products(w, more, says):
    """Refused with the port, and out as it was."""
    size = {"q4_0": 36, "e2m1": 32, "i8": 64}.get(w)
    weight = np.zeros((8, 64), "f4") if size is None else vivace.view(np.zeros((8, size), np.uint8), dtype=w, shape=(8, 64))
    more = {k: np.ones(v, "f4") if k == "w_block_scale" else v for k, v in more.items()}
    out = np.full((3, 4), 7.0, "f4")
    with pytest.raises((vivace.InvalidArgumentError, vivace.InvalidShapeError), match=says):
        ops.gated_gemm(x=np.zeros((3, 64), "f4"), w=weight, out=out, **more)
    assert (out == 7).all()
