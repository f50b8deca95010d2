"""vivace.functional: what every op's functional form makes of its own cases, without a framework."""
import pytest

import vivace
from tests.op_data import OPS, reference, shape_of
from vivace.functional import Form


@pytest.mark.parametrize("op", sorted(OPS))
def test_shapes_and_dtypes_of_every_case(op):
    form = Form(OPS[op])
    for case in reference(op).CASES:
        given = {p["name"]: (shape_of(op, p["name"], case), case.dtypes[p["name"]]) for p in form.ports if p["name"] in case.dtypes and p["io"] != "out"}
        if not given:  # fill
            continue
        asked = [p["name"] for p in form.optional_outs if p["name"] in case.dtypes]
        want = {p["name"]: (shape_of(op, p["name"], case), case.dtypes[p["name"]]) for p in (*form.outs, *form.optional_outs) if p["name"] in case.dtypes}
        there = [p for p in form.ports if p["name"] in given]
        shapes = {n: shape for n, (shape, _) in want.items() if form._unknown(next(p for p in form.ports if p["name"] == n), there)}
        dtype = case.dtypes[form.typed[0]["name"]] if form.typed else None
        assert form.results(given, dtype, shapes, asked) == want, case.id


def test_arguments_are_told_apart():
    form = Form(OPS["norm"])
    assert form.split((1,), {"weight": 2, "residual": 3, "gate": None, "eps": 0.5, "dtype": "bf16"}) == ({"x": 1, "weight": 2, "residual": 3}, {"eps": 0.5}, "bf16", {})
    assert Form(OPS["top_logprobs"]).split((1,), {"token_shape": (2, 3)})[3] == {"token": (2, 3)}


def test_what_cannot_be_known():
    with pytest.raises(vivace.InvalidShapeError, match=r"token \[T,K\]: nothing that was given says 'K'; give token_shape"):
        Form(OPS["top_logprobs"]).results({"logits": ((2, 9), "f32")})
    with pytest.raises(vivace.InvalidArgumentError, match="dtype: out is one of f32"):
        Form(OPS["norm"]).results({"x": ((2, 9), "f32")}, "i8")
