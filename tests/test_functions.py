"""vivace.functions: each name against its op's float64 reference, in a call that the name's contract allows. With
`--device cuda` these calls have their arrays in GPU memory."""
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vivace
from tests.op_data import NUMPY, OPS, contents, ports, reference
from tests.op_run import Run, verify
from vivace import array, functions, ops

ALIASES = {a["name"]: a for a in ops.ops_table()["aliases"]}


def fixed(alias):
    return dict(s.split("=") for s in alias["attrs"].split(",") if s)


ONE_OF = ({"out_scale", "row_scale", "amax", "block_scale"}, {"x", "gate"}, {"k_cache", "k_out"}, {"inv_freq", "angles"})  # ports that exclude each other
FREE = ("kind", "act", "epilogue", "value", "mask")  # attributes that a case may be given another value of


def allowed(name):
    """Cases of the op's reference as the name wants them, the nearest first: with the attributes and types that it says, with the ports that it needs."""
    alias = ALIASES[name]
    op, contract, attrs = alias["op"], getattr(functions, name).contract, fixed(alias)
    spec, kinds, found = ports(op), {a["name"]: a for a in OPS[op]["attrs"]}, []
    for case in reference(op).CASES:
        changed = [k for k, v in attrs.items() if str(case.attrs.get(k, kinds[k]["default"])) != v]
        added = sorted(contract.needs - case.dtypes.keys())
        if set(changed) - {*FREE} or contract.without & case.dtypes.keys() or any(spec[p]["shape"] == "?" for p in added):
            continue
        types = {p: contract.types.get(p, d) for p, d in case.dtypes.items() if p != "rows"}
        types |= {p: contract.types.get(p, spec[p]["dtypes"].split("|")[0]) for p in added}
        if any(len(group & types.keys()) > 1 for group in ONE_OF if op in ("norm", "act_mul", "quantize", "qkv_rope") and not (op == "norm" and "gate" in group)):
            continue
        if op in ("norm", "act_mul", "gemm") and types["out"] != "e4m3" and {"out_scale", "row_scale"} & types.keys() or "w_block_zero" in types and types["w"] != "i4":
            continue
        if op in ("norm", "act_mul") and types["out"] == "e4m3" and not {"out_scale", "row_scale"} & types.keys():
            types["out_scale"], added = "f32", [*added, "out_scale"]
        for p in types:
            if spec[p]["dtypes"].startswith("="):
                types[p] = types[spec[p]["dtypes"][1:]]
        if any(types.get(p, t) != t for p, t in contract.types.items()) or any("=" not in spec[p]["dtypes"] and t not in spec[p]["dtypes"].split("|") for p, t in types.items()):
            continue
        if op == "attention" and ("prefix" in types) != (attrs.get("mask", case.attrs.get("mask")) in ("prefix", "state")):
            continue
        kept = {k: v for k, v in case.attrs.items() if k not in attrs} | {k: float(v) if kinds[k]["kind"] == "real" else v for k, v in attrs.items()}
        positive = (*case.positive, *(p for p in added if p.endswith("scale") and spec[p]["shape"] == "1"))
        made = replace(case, attrs=kept, dtypes=types, rows=None, dims={"R": 1, "P": 2} | case.dims, positive=positive, ranges={"length": (1, case.dims.get("L", 1) + 1)} | case.ranges)
        found.append((len(changed) + len(added) + sum(types[p] != d for p, d in case.dtypes.items() if p in types) + 1e-4 * sum(case.dims.values()), made))
    return [case for _, case in sorted(found, key=lambda f: f[0])]


def called(name, case):
    """(run, result): the call of the function with a run's arrays, its results put where the run's outputs are."""
    op, f = ALIASES[name]["op"], getattr(functions, name)
    over = {"out": f.contract.over} if f.contract.over else None
    r = Run(op, case, contents(op, case, "normal" if "normal" in case.distributions else case.distributions[0]), inplace=over)
    given = {p: v for p, v in r.arguments().items() if p not in fixed(ALIASES[name])}
    outs = [p["name"] for p in OPS[op]["ports"] if p["io"] == "out" and not p["optional"]]
    typed, shapes = {}, {}
    for p in outs:
        spec = ports(op)[p]
        if not over and op != "fill":
            shapes[f"{p}_shape"] = r.slots[p].shape
            given.pop(p)
            if "|" in spec["dtypes"] and p not in f.contract.types:
                typed["dtype"] = case.dtypes[p]
    r.skip_unserved()
    result = f(**given, **typed, **shapes)
    for p, value in zip(outs, result if isinstance(result, tuple) else (result,)):
        if not over and op != "fill":
            r.slots[p].put(value.numpy() if isinstance(value, array.Array) else value)
    for slot in r.slots.values():
        slot.pull()
    return r, result


@pytest.mark.parametrize("name", ALIASES)
def test_against_its_math(name):
    cases = allowed(name)
    assert cases, "no case of the op's reference is one that the name allows"
    for case in cases[:2]:
        r, result = called(name, case)
        verify(ALIASES[name]["op"], case, r)
        for p, dtype in getattr(functions, name).contract.types.items():
            assert p not in case.dtypes or case.dtypes[p] == dtype


@pytest.mark.parametrize("name", [n for n in ALIASES if getattr(functions, n).contract.types.keys() - {"out", "q"}])
def test_types_are_held_to_the_name(name):
    case, contract = allowed(name)[0], getattr(functions, name).contract
    port = next(p for p in ("x", "q", "qkv", "gate", "w") if p in contract.types and p in case.dtypes)
    wrong = {port: np.zeros((2, 2), NUMPY["i64"])}
    rest = {p: np.zeros((2, 2), NUMPY[d]) for p, d in case.dtypes.items() if ports(ALIASES[name]["op"])[p]["io"] != "out" and d in NUMPY}
    with pytest.raises(vivace.InvalidDTypeError, match=f"functions.{name}: {port} is int64|i64, and the name says"):
        getattr(functions, name)(**rest | wrong)


@pytest.mark.parametrize("name", [n for n in ALIASES if getattr(functions, n).contract.needs | getattr(functions, n).contract.without])
def test_ports_are_held_to_the_name(name):
    contract = getattr(functions, name).contract
    given = {p: np.zeros((1, 1), np.float32) for p in contract.needs}
    for port in contract.needs:
        with pytest.raises(vivace.InvalidArgumentError, match=f"functions.{name}: {port} is missing, which the name says is there"):
            getattr(functions, name)(**{p: x for p, x in given.items() if p != port})
    for port in contract.without:
        with pytest.raises(vivace.InvalidArgumentError, match=f"functions.{name}: {port} is given, which the name excludes"):
            getattr(functions, name)(**given | {port: np.zeros((1, 1), np.float32)})


def test_arrays_of_vivace_and_results_that_are_given():
    x, w = array.full((3, 64), 2.0, dtype="f32", device="cpu"), array.full((64,), 3.0, dtype="f32", device="cpu")
    y = functions.rms_norm(x, weight=w)
    assert isinstance(y, array.Array) and y.device == x.device and np.allclose(y.numpy(), 3, atol=1e-5)
    half = functions.rms_norm(x, weight=w, dtype="bf16")
    assert str(half.dtype) == "bf16"
    out = np.zeros((3, 64), np.float32)
    assert functions.rms_norm(np.full((3, 64), 2.0, np.float32), out=out) is out and np.allclose(out, 1, atol=1e-5)
    x = np.ones((2, 8), np.float32)
    assert functions.silu_inplace_fp16(x := x.astype(np.float16)) is x and np.allclose(x, 1 / (1 + np.exp(-1)), atol=1e-3)
    assert functions.gate_up_silu(np.ones((2, 64), np.float32), vivace.view(np.zeros((6, 2 * 34), np.uint8), dtype="q8_0", shape=(6, 64))).shape == (2, 3)
    codes, scales = functions.quantize_fp4(np.ones((4, 64), np.float32), tensor_scale=np.ones(1, np.float32), scales_shape=(16,))
    assert codes.shape == (4, 32) and scales.shape == (16,)


@pytest.mark.parametrize("call, error, said", [
    (lambda x: functions.rms_norm(x, x), vivace.InvalidArgumentError, "2 arrays by position, wanted x; the rest by name"),
    (lambda x: functions.rms_norm([1.0]), vivace.InvalidDTypeError, "got list"),
    (lambda x: functions.gpu_fill_neginf_fp16(), vivace.InvalidArgumentError, "nothing is given to make out beside"),
    (lambda x: functions.rms_norm_fp8(x), vivace.InvalidArgumentError, "exactly one of out_scale and row_scale"),
    (lambda x: functions.rms_norm(x, kind="layer"), vivace.NotFoundError, "rms_norm: attribute kind is fixed"),
    (lambda x: functions.rms_norm(x, wait=x), vivace.NotFoundError, "wait"),
    (lambda x: functions.quantize_fp4(x, tensor_scale=x[0, :1]), vivace.InvalidShapeError, "give scales_shape"),
    (lambda x: functions.residual_add(x.astype(np.float64), residual=x), vivace.InvalidDTypeError, "a result of float64"),
])
def test_bad_calls(call, error, said):
    with pytest.raises(error, match=said):
        call(np.ones((2, 16), np.float32))


@pytest.mark.parametrize("name, types, needs, without", [
    ("rms_norm", {}, "", ""),
    ("rms_norm_fp16", {"x": "f16", "out": "f16"}, "", ""),
    ("rms_norm_fp8_noweight_bf16", {"x": "bf16", "out": "e4m3"}, "", "weight"),
    ("gate_res_adarms_fp8_static_fp16", {"x": "f16", "out": "e4m3"}, "gate out_scale residual scale", ""),
    ("layer_norm_no_affine_fp16", {"x": "f16", "out": "f16"}, "", "bias weight"),
    ("gate_geglu_merged_fp8_fp16", {"x": "f16", "gate": "f16", "out": "e4m3"}, "x", ""),
    ("silu_mul_split_fp8_fp16", {"x": "f16", "gate": "f16", "out": "e4m3"}, "gate up", ""),
    ("cutlass_fp8_sq", {"x": "e4m3", "w": "e4m3"}, "", ""),
    ("cutlass_fp8_wide_f32out", {"x": "e4m3", "w": "e4m3", "out": "f32"}, "", ""),
    ("fp8_gemm_descale_fp16", {"x": "e4m3", "w": "e4m3", "out": "f16"}, "", ""),
    ("gmm_fp16", {"x": "f16", "w": "f16", "out": "f16"}, "", ""),
    ("cast_fp16_fp8", {"x": "f16", "out": "e4m3"}, "", ""),
    ("gpu_cast_fp32_to_fp16", {"x": "f32", "out": "f16"}, "", ""),
    ("attention_mha_bf16", {"q": "bf16", "k": "bf16", "out": "bf16"}, "", ""),
    ("attention_qkv_fp16_seqused", {"q": "f16", "k": "f16", "out": "f16"}, "length", ""),
    ("qkv_split", {}, "k_out v_out", "inv_freq"),
    ("qkv_split_rope_kvcache_fp16", {"qkv": "f16", "q": "f16"}, "inv_freq k_cache v_cache", ""),
    ("patch_embed_bias_pos", {}, "bias table", ""),
    ("silu_inplace_fp16", {"x": "f16", "gate": "f16", "out": "f16"}, "", "up x"),
])
def test_what_words_say(name, types, needs, without):
    contract = getattr(functions, name).contract
    assert (contract.types, contract.needs, contract.without) == (types, {*needs.split()}, {*without.split()})


def test_names_are_those_of_the_table():
    assert set(functions.__all__) == set(ALIASES)
    for name in ALIASES:
        assert getattr(functions, name).__name__ == name and name in getattr(functions, name).__doc__


def test_the_page_has_every_name_under_its_op():
    text = (Path(__file__).parent.parent / "docs/functions.md").read_text()
    for alias in ALIASES.values():
        before = text.split(f"`{alias['name']}`")
        assert len(before) > 1, f"docs/functions.md: {alias['name']} is not there"
        assert f"`{alias['op']}`" in before[-1] or f"`{alias['op']}`" in text, alias
