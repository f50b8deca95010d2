"""torch.ops.vivace: both forms of every op on its own cases, torch's own checks, torch.compile. Where torch is installed."""
import numpy as np
import pytest

import vivace
from tests.op_data import contents, ports, reference, shape_of

torch = pytest.importorskip("torch")
from vivace import torch_ops  # noqa: E402



def tensor(data, dtype, shape):
    if 0 in shape:
        return torch.empty(shape, dtype=torch_ops._TORCH[dtype])
    raw = torch.from_numpy(np.ascontiguousarray(data).reshape(-1).view(np.uint8).copy())
    return raw.view(torch_ops._TORCH[dtype]).reshape(shape)


def plain(op, case):
    """Whether a case has plain dtypes and nothing that the functional form leaves out."""
    spec = ports(op)
    return all(d in torch_ops._TORCH for d in case.dtypes.values()) and case.rows is None and all(spec[p]["io"] == "in" or not spec[p]["optional"] for p in case.dtypes)


def drawn(op, case):
    data = contents(op, case, "normal")
    return {p: tensor(data[p], d, shape_of(op, p, case)) for p, d in case.dtypes.items() if p in data}


def cases(op, most=6):
    return [c for c in reference(op).CASES if plain(op, c)][:most]


def both(op, case):
    """(what the functional form returned, what the other wrote), by port."""
    form, given = torch_ops._FUNCTIONAL[op], drawn(op, case)
    inputs = {p["name"]: given[p["name"]] for p in form.inputs if p["name"] in given}
    dtype = {"dtype": torch_ops._TORCH[case.dtypes[form.typed[0]["name"]]]} if form.typed else {}
    dtype |= {f"{n}_shape": list(shape_of(op, n, case)) for n in form.shaped}
    kept = {n: x.clone() for n, x in inputs.items()}
    got = getattr(torch.ops.vivace, op).new(**inputs, **dtype, **case.attrs)
    assert all(torch.equal(x.view(torch.uint8), kept[n].view(torch.uint8)) for n, x in inputs.items() if x.dim()), "an input was written"
    got = dict(zip([p["name"] for p in (*form.outs, *form.updates)], got if isinstance(got, (tuple, list)) else (got,)))
    into = {n: torch.zeros_like(x) for n, x in got.items()} | {p["name"]: kept[p["name"]].clone() for p in form.updates}
    getattr(vivace.ops, op)(**kept | into, **case.attrs)
    return got, into


@pytest.mark.parametrize("op", torch_ops.functional)
def test_both_forms_have_the_same_bits(op):
    seen = 0
    for case in cases(op):
        got, want = both(op, case)
        for name in got:
            assert got[name].dtype == want[name].dtype and got[name].shape == want[name].shape
            a, b = got[name].contiguous().view(torch.uint8), want[name].contiguous().view(torch.uint8)
            rows = getattr(reference(op), "left_alone", None)
            assert rows is not None or torch.equal(a, b), f"{case}: {name}"
        seen += 1
    assert seen or not cases(op, 1)


@pytest.mark.parametrize("op", torch_ops.functional)
def test_torchs_own_checks(op):
    """Schema, fake tensors, static and dynamic shapes through AOT dispatch."""
    for case in [c for c in cases(op, 1000) if not {"e4m3", "e5m2"} & set(c.dtypes.values())][:1]:  # torch's checks have no arithmetic of float8
        form, given = torch_ops._FUNCTIONAL[op], drawn(op, case)
        inputs = {p["name"]: given[p["name"]] for p in form.inputs if p["name"] in given}
        required = [p["name"] for p in form.inputs if not p["optional"]]
        args, named = tuple(inputs.pop(n) for n in required), inputs | case.attrs | {f"{n}_shape": list(shape_of(op, n, case)) for n in form.shaped}
        torch.library.opcheck(getattr(torch.ops.vivace, op).new, args, named, test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic"))


def test_what_has_a_functional_form():
    """All ops but the one that has no input; where shapes do not follow from the inputs', the caller says them."""
    assert set(torch_ops.names) - set(torch_ops.functional) == {"fill"}
    assert "resize_pad.new(Tensor x, *, SymInt[] out_shape," in torch_ops.functional_schema("resize_pad")


def test_compiled():
    x, w, m = torch.randn(5, 64), torch.randn(64), torch.randn(32, 64)

    def f(x, w, m):
        y = torch.ops.vivace.norm(x, weight=w, eps=1e-5)
        return torch.ops.vivace.gemm(y, m, epilogue="silu") * 2

    want = f(x, w, m)
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=True)
    assert torch.equal(compiled(x, w, m), want) and torch.equal(compiled(x[:3], w, m), f(x[:3], w, m))


def test_bad_calls():
    x, w = torch.randn(5, 64), torch.randn(63)
    with pytest.raises(vivace.InvalidShapeError):
        torch.ops.vivace.norm.new(x, weight=w)
    with pytest.raises(vivace.InvalidArgumentError, match="dtype: out is one of f32"):
        torch.ops.vivace.norm.new(x, dtype=torch.int32)
    with pytest.raises(vivace.InvalidShapeError, match="nothing that was given says"):
        torch.ops.vivace.norm_gemm.new(x, torch.zeros(5, 64), torch.zeros(5, 64))
    with pytest.raises(RuntimeError, match="out_shape"):
        torch.ops.vivace.resize_pad.new(torch.zeros(1, 4, 4, 3))
