"""vivace.attention.variant: what expressions mean, what is refused, and that kernels compile for every chip."""
import re
from pathlib import Path

import numpy as np
import pytest

import vivace
from vivace import attention, ops
from vivace.attention_expression import FUNCTIONS, Expression, HostTensor, on_host
from vivace.errors import CompileError, InvalidArgumentError, InvalidDTypeError, LimitExceededError, UnsupportedError

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/attention-variants.md"


def nvrtc():
    try:
        vivace.jit.find_nvrtc()
        return vivace.jit("extern \"C\" __global__ void k() {}", "k").compile("sm_90a") is not None
    except vivace.Error:
        return False


needs_nvrtc = pytest.mark.skipif(not nvrtc(), reason="no NVRTC")


def inputs(T=9, L=50, Hq=6, Hkv=2, D=16, Dv=24, S=2, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.standard_normal(shape, np.float32)  # noqa: E731
    return {"q": draw(T, Hq, D), "k": draw(S, L, Hkv, D), "v": draw(S, L, Hkv, Dv), "pos": rng.integers(0, L, T).astype(np.int32),
            "slot": rng.integers(-1, S + 1, T).astype(np.int32), "length": rng.integers(0, L + 1, S).astype(np.int32)}


def outputs(x):
    return {"out": np.full((*x["q"].shape[:2], x["v"].shape[-1]), 7, np.float32), "lse": np.full(x["q"].shape[:2], 7, np.float32)}


@pytest.mark.parametrize("settings", [{}, {"mask": "full"}, {"window": 5}, {"softcap": 2.0, "scale": 0.7}, {"mask": "prefix", "prefix": [7, 30]},
                                      {"mask": "state", "prefix": [20, 3]}, {"slopes": "Hq"}, {"head_scale": "Hq", "sinks": "Hq"}, {"bits": 2},
                                      {"bits": 1, "bits_from": [9, 40], "mask": "full"}, {"rows": [4]}], ids=str)
def test_on_the_host_a_variant_that_changes_nothing_is_the_op(settings):
    """Every port and attribute of attention means the same in the NumPy form."""
    x, rng = inputs(), np.random.default_rng(3)
    more = dict(settings)
    for name, value in settings.items():
        if value == "Hq":
            more[name] = rng.uniform(0.1, 1, 6).astype(np.float32)
        elif name == "bits":
            more[name] = rng.integers(-2**31, 2**31, (9, value)).astype(np.int32)
        elif isinstance(value, list):
            more[name] = np.array(value, np.int32)
    got, want = outputs(x), outputs(x)
    attention.variant(logits="s", mask="True")(**x, **more, **got)
    ops.attention(**x, **more, **want)
    for port in want:
        assert np.allclose(got[port], want[port], atol=1e-5, rtol=1e-5), port


def test_on_the_host_pages():
    x = inputs()
    x |= {"k": x["k"].reshape(10, 10, 2, 16), "v": x["v"].reshape(10, 10, 2, 24), "page_table": np.array([[3, 1, 9], [0, 77, -1], [2, 2, 5]], np.int32),
          "length": np.array([30, 25, 7], np.int32)}
    got, want = outputs(x), outputs(x)
    attention.variant(logits="s")(**x, **got)
    ops.attention(**x, **want)
    assert np.allclose(got["out"], want["out"], atol=1e-5) and np.allclose(got["lse"], want["lse"], atol=1e-5)


def test_hooks_against_their_definition():
    x = inputs(S=1)
    x["slot"] = None
    del x["length"]
    bias = np.random.default_rng(1).standard_normal((6, 50)).astype(np.float32)
    v = attention.variant(query="x * 2 if d < 8 else -x", key="x + gain", logits="s + bias[h, j]", mask="j % 3 != 1 and j <= pos", output="x * (1 + d)",
                          softmax=False, extra={"bias": "f32", "gain": float})
    got = outputs(x)["out"]
    v(**x, out=got, mask="full", bias=bias, gain=0.5)
    q = x["q"].astype(np.float64) * np.where(np.arange(16) < 8, 2, -1)
    k, values = (np.repeat(a[0].astype(np.float64), 3, 1) for a in (x["k"] + np.float32(0.5), x["v"]))
    s = np.einsum("thd,jhd->thj", q, k) / 4 + bias
    j = np.arange(50)
    s = np.where(((j % 3 != 1) & (j <= x["pos"][:, None]))[:, None], s, 0)
    want = np.einsum("thj,jhd->thd", s, values) * (1 + np.arange(24))
    assert np.allclose(got, want, atol=2e-3, rtol=1e-5)


@pytest.mark.parametrize("text, want", [
    ("7 // -2", -4), ("-7 % 3", 2), ("7.5 % -2.0", -0.5), ("1 / 4", 0.25), ("2 ** 3", 8), ("1 < 2 < 3", True), ("1 < 3 < 2", False), ("not 0", True),
    ("5 & 6 | 8", 12), ("~5", -6), ("1 << 4", 16), ("256 >> 4", 16), ("3 if t > 1 else 4.5", 3), ("min(2, 3) + max(1.5, 1)", 3.5), ("where(t == 2, t, -t)", 2),
    ("abs(-3)", 3), ("int(2.9)", 2), ("float(3) / 2", 1.5), ("True and t", True), ("table[1]", 5), ("table[9]", 0), ("table[-1]", 0), ("-inf < 0", True)])
def test_expressions_are_python(text, want):
    extra = {"table": attention.Field("table", True, "i32")}
    e = Expression("logits", text, {"t": "int", "s": "float"}, extra, "float")
    assert on_host(e, {"t": 2, "s": np.float32(1), "table": HostTensor(np.array([4, 5, 6]))}) == want


@pytest.mark.parametrize("text, why", [
    ("s +", "invalid syntax"), ("q * 2", "no name 'q'"), ("s.real", "Attribute"), ("__import__('os')", "no such function"), ("[1][0]", "only extra tensors"),
    ("bias", "give indices"), ("bias[s]", "an index must be an integer"), ("bias[0, 0, 0, 0]", "1 to 3 indices"), ("'a'", "a number was expected"), ("1 << s", "does not take"),
    ("s & 1", "two truths or two integers"), ("exp(1, 2)", "takes 1 argument"), ("s is s", "comparison"), ("lambda: s", "Lambda"), ("99999999999", "32 bits"),
    ("bias[0] + bias[0, 0]", "indices elsewhere")])
def test_a_bad_expression_is_shown(text, why):
    with pytest.raises(InvalidArgumentError, match=re.escape(why)) as caught:
        attention.variant(logits=text, extra={"bias": "f32"})
    message = str(caught.value).splitlines()
    assert message[0].startswith("attention variant: logits: ") and message[1].strip() == text.strip() and message[2].strip() == "^"


@pytest.mark.parametrize("error, match, arguments", [
    (InvalidArgumentError, "one of the two", {}),
    (InvalidArgumentError, "one of the two", {"source": "struct A : Variant {};", "name": "A", "logits": "s"}),
    (InvalidArgumentError, "true or false", {"mask": "j"}),
    (InvalidArgumentError, "have already", {"mask": "j < pos", "extra": {"t": float}}),
    (InvalidArgumentError, "no C\\+\\+ identifier", {"mask": "j < pos", "extra": {"a b": float}}),
    (InvalidArgumentError, "wanted float, int or", {"mask": "j < pos", "extra": {"a": complex}}),
    (InvalidDTypeError, "'q4_0'", {"mask": "j < pos", "extra": {"a": "q4_0"}}),
    (LimitExceededError, "192", {"mask": "j < pos", "extra": {f"a{i}": "f32" for i in range(9)}}),
    (InvalidArgumentError, "no C\\+\\+ identifier", {"source": "struct A : Variant {};", "name": "A::B"}),
])
def test_a_bad_variant_is_refused(error, match, arguments):
    with pytest.raises(error, match=match):
        attention.variant(**arguments)


def test_a_bad_call_writes_nothing():
    x = inputs()
    v = attention.variant(logits="s + b", softmax=False, extra={"b": float})
    for change, error, match in [({}, InvalidArgumentError, "extra b is missing"), ({"b": 1.0, "lse": outputs(x)["lse"]}, InvalidArgumentError, "lse"),
                                 ({"b": 1.0, "bogus": 1}, vivace.NotFoundError, "bogus"), ({"b": 1.0, "q": x["q"][:, :5]}, vivace.InvalidShapeError, "attention")]:
        out = outputs(x)["out"]
        with pytest.raises(error, match=match):
            v(**(x | {"out": out} | change))
        assert (out == 7).all()
    text = attention.variant("struct A : Variant {};", "A")
    with pytest.raises(UnsupportedError, match="GPU"):
        text(**x, out=outputs(x)["out"])


def documented():
    """The variants of docs/attention-variants.md, whose code runs here."""
    found = {}
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
        scope = {}
        exec(code, scope)  # noqa: S102: our own page
        found |= {n: v for n, v in scope.items() if isinstance(v, attention.Variant)}
    return found


def test_the_page_has_its_three():
    assert set(documented()) == {"sigmoid", "strided", "tree"}


SHAPES = {"decode": {"T": 1}, "chunk": {"T": 50, "D": 256, "Hkv": 1}, "prefill": {"T": 2048}, "small": {"T": 300, "D": 72}, "f32": {"T": 3, "dtype": "f32"}, "fp8": {"T": 4, "kv_dtype": "e4m3"}}


@needs_nvrtc
@pytest.mark.parametrize("name, shape, chip", [
    *(("tree", shape, "sm_90a") for shape in SHAPES), *((name, shape, "sm_90a") for name in ("sigmoid", "strided") for shape in ("decode", "prefill")),
    *(("tree", shape, chip) for shape in ("decode", "prefill") for chip in ("sm_80", "sm_120a"))])
def test_documented_variants_compile(name, shape, chip):
    made = documented()[name].compile(chip, **SHAPES[shape])
    assert made["registers"] > 0 and not made["warnings"] and made["spill_bytes"] <= 64, made


@needs_nvrtc
def test_every_function_and_hook_compiles():
    arguments = {1: "s", 2: "s, 1", 3: "j > pos, s, 1"}
    every = " + ".join(f"{name}({arguments[n]})" for name, (_, _, n) in FUNCTIONS.items())
    v = attention.variant(logits=f"({every}) * bias[h, j, 0] // 3 % 2.5 ** small + (j // 3 % 2 << 1 >> n & 3 | 1 ^ ~j)", mask="not (j == 3 or half[t] != 0) and ids[j] < 5", query="-x",
                          key="+x if d % 2 else x * 2", output="x", extra={"bias": "bf16", "half": "f16", "ids": "i32", "small": float, "n": int})
    assert v.compile("sm_90a", T=1000)["kernel"].startswith("vivace::kernels::attention_tile<")


@needs_nvrtc
@pytest.mark.parametrize("text, message", [
    ("struct A : Variant {\n  static float logit(const Extra&, float s, const At&) {\n    return s + typo;\n  }\n};", r"mine\.cu\(3\): error: identifier \"typo\" is undefined"),
    ("struct A : Variant {\n  static float logit(float s) { return s; }\n};", "hook logit: wanted float logit"),
    ("struct B : Variant {};", r"after the end of mine\.cu"),
    ("struct A {};", "query|kSoftmax|Variant")])
def test_an_error_shows_the_users_line(text, message):
    v = attention.variant(text, "A", label="mine.cu")
    with pytest.raises(CompileError, match=message):
        v.compile("sm_90a")
