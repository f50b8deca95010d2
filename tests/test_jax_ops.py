"""vivace.jax_ops: each op's own cases against vivace.ops, jit, vmap, donation, bad calls. Where JAX is installed; test_jax_ffi.py needs none."""
import functools
import re

import ml_dtypes
import numpy as np
import pytest

import vivace
from tests.op_data import NUMPY, OPS, PAIRS, by_row, contents, is_block, ports, reference, shape_of, valid_rows

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from vivace import jax_ops, ops  # noqa: E402

FORMS = sorted(set(OPS) - {"fill"})


def operand(op, case, port, data, dtype):
    """A port's bytes as (what vivace.ops takes, what jax_ops takes)."""
    shape, data = shape_of(op, port, case), np.ascontiguousarray(data)
    if is_block(dtype) or dtype in PAIRS:
        return vivace.view(data, dtype=dtype, shape=shape), jax_ops.packed(data.reshape(*shape[:-1], -1), dtype)
    array = data.reshape(-1).view(NUMPY[dtype]).reshape(shape)
    return array, array


class Both:
    """One case as a call of each: `mine` for vivace.ops, `theirs` and `more` for jax_ops, `names` of what that returns."""

    def __init__(self, op, case):
        self.op, self.case, spec, form = op, case, ports(op), jax_ops.Form(OPS[op])
        data, self.mine, self.theirs = contents(op, case, "normal"), {}, {}
        for port, dtype in case.dtypes.items():
            if port in data:
                self.mine[port], self.theirs[port] = operand(op, case, port, data[port], dtype)
            else:
                self.mine[port] = np.zeros(shape_of(op, port, case), NUMPY[dtype])
        if case.rows is not None:
            self.mine["rows"] = self.theirs["rows"] = np.array([case.rows], np.int32)
        asked = [p for p in form.optional_outs if p["name"] in case.dtypes]
        given = [p for p in form.ports if p["name"] in self.theirs]
        said = [p["name"] for p in (*form.outs, *asked) if form._unknown(p, given)]
        self.more = case.attrs | {f"{n}_shape": shape_of(op, n, case) for n in said}
        self.more |= {"dtype": case.dtypes[form.typed[0]["name"]]} if form.typed else {}
        self.more |= {"outputs": [p["name"] for p in asked]} if asked else {}
        updates = [p for p in (*form.updates, *form.optional_updates) if p["name"] in case.dtypes]
        self.names = [p["name"] for p in (*form.outs, *asked, *updates)]
        self.written = [p for p in self.names if spec[p]["io"] == "out"]

    def __call__(self, **theirs):
        got = getattr(jax_ops, self.op)(**(theirs or self.theirs), **self.more)
        return dict(zip(self.names, got if isinstance(got, tuple) else (got,), strict=True))

    def expected(self):
        getattr(ops, self.op)(**self.mine, **self.case.attrs)
        return {n: self.mine[n] for n in self.names}

    def judge(self, name, got, want):
        """The same bits, but for rows that the op does not write."""
        got = np.asarray(got)
        assert got.dtype == want.dtype and got.shape == want.shape, name
        rows = np.ones(len(want), bool)
        if name in self.written:
            rows[valid_rows(self.case) if by_row(self.op, name) else len(want):] = False
            if (left := getattr(reference(self.op), "left_alone", lambda port, case: None)(name, self.case)) is not None:
                rows[: len(left)] &= ~np.asarray(left)[: len(rows)]
        assert np.array_equal(got[rows].view(np.uint8), want[rows].view(np.uint8)), f"{self.op} {self.case.id}: {name}"


def different(cases, most):
    """Cases, those first that have ports or dtypes which none before them has."""
    seen, first, rest = set(), [], []
    for case in cases:
        signature = {*case.dtypes.items(), ("rows", case.rows is None)}
        (rest if signature <= seen else first).append(case)
        seen |= signature
    return (first + rest)[:most]


@pytest.mark.parametrize("op", FORMS)
def test_the_same_bits_as_vivace_ops(op):
    """Of all 58 ops with an input; required and optional ports, block formats, caches, rows."""
    for case in different(reference(op).CASES, 3):
        both = Both(op, case)
        got, want = both(), both.expected()
        for name in want:
            both.judge(name, got[name], want[name])


def rows_of(op):
    """A case of an op whose calls vmap makes one of."""
    fits = [c for c in reference(op).CASES if c.rows is None and not set(c.dtypes) & jax_ops._BY_ROW[op] and 1 < c.dims["T"] < 300 and not any(is_block(d) or d in PAIRS for d in c.dtypes.values())]
    return next(b for b in (Both(op, c) for c in different(fits, 100)) if not any(n.endswith("_shape") for n in b.more) and all(ports(op)[n]["shape"].split(",")[0] == "T" for n in b.names))


def launches(function, *args):
    """How many calls of the target a traced function has, a loop's body counted once, and whether it loops."""
    text = str(jax.make_jaxpr(function)(*args))
    return len(re.findall(r"ffi_call\[", text)), "scan[" in text or "while[" in text


@pytest.mark.parametrize("op", sorted(jax_ops._BY_ROW))
def test_vmap_of_rows_is_one_call(op):
    """And has the bits of calls by themselves, in jit and in a vmap of a vmap."""
    both = rows_of(op)
    led = {n: x for n, x in both.theirs.items() if ports(op)[n]["shape"].split(",")[0] == "T"}
    rest = {n: x for n, x in both.theirs.items() if n not in led}
    several = {n: np.stack([np.roll(x, i, 0) for i in range(3)]) for n, x in led.items()}

    def call(given):
        return both(**given, **rest)

    assert launches(jax.vmap(call), several) == (1, False)
    got = jax.jit(jax.vmap(call))(several)
    nested = jax.vmap(jax.vmap(call))({n: x[None] for n, x in several.items()})
    for i in range(3):
        alone = call({n: x[i] for n, x in several.items()})
        for n, want in alone.items():
            for y in (got[n][i], nested[n][0, i]):
                assert np.array_equal(np.asarray(y).view(np.uint8), np.asarray(want).view(np.uint8)), n


def test_vmap_where_rows_are_not_alone():
    """Weights of their own, an adaptive scale by row number, a cache: one call after the other."""
    rng = np.random.default_rng(3)
    x, w, scale = (rng.standard_normal(s).astype(np.float32) for s in ((4, 5, 32), (4, 32), (2, 32)))
    for function, args in ((lambda x, w: jax_ops.norm(x, weight=w), (x, w)), (lambda x: jax_ops.norm(x, scale=scale), (x,))):
        assert launches(jax.vmap(function), *args) == (1, True)
        assert np.array_equal(jax.vmap(function)(*args), np.stack([function(*(a[i] for a in args)) for i in range(4)]))
    shared = jax.vmap(lambda x, r: jax_ops.norm(x, residual=r), (0, None))(x, x[0])
    assert np.array_equal(shared[1], x + x[:1]) and shared[0].shape == x.shape


def test_jit_of_several_ops():
    rng = np.random.default_rng(5)
    x, w, m = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((5, 64), (64,), (32, 64)))

    @jax.jit
    def f(x, w, m):
        return jax_ops.gemm(jax_ops.rms_norm(x + x, weight=w, eps=1e-5), m, epilogue="silu", dtype=jnp.float32) * 2

    normed, out = np.empty_like(x), np.empty((5, 32), np.float32)
    ops.norm(x + x, weight=w, out=normed, eps=1e-5)
    ops.gemm(normed, m, out=out, epilogue="silu")
    assert np.array_equal(f(x, w, m), out * 2)
    assert f.lower(x, w, m).compile()(x, w, m).dtype == np.float32


def test_what_is_updated_is_new_unless_donated():
    rng = np.random.default_rng(7)
    k = jnp.asarray(rng.standard_normal((2, 2, 8)), jnp.float32)
    cache, pos = jnp.zeros((1, 16, 2, 8)), np.array([3, 4], np.int32)
    append = functools.partial(jax_ops.kv_append, k, k, pos)
    first, second = append(k_cache=cache, v_cache=cache + 1)
    assert not cache.any() and np.array_equal(first[0, 3:5], k) and np.array_equal(second[0, 5], np.ones((2, 8)))

    step = jax.jit(lambda kc, vc: append(k_cache=kc, v_cache=vc), donate_argnums=(0, 1))
    kc, vc = cache + 2, cache + 3
    at = kc.unsafe_buffer_pointer(), vc.unsafe_buffer_pointer()
    kc, vc = step(kc, vc)
    assert (kc.unsafe_buffer_pointer(), vc.unsafe_buffer_pointer()) == at
    assert np.array_equal(kc[0, 3:5], k) and np.array_equal(kc[0, 5], np.full((2, 8), 2.0))


def test_seeds_of_64_bits_without_x64():
    """int32 is widened with its sign; NumPy's int64 comes whole, where JAX would cut it."""
    logits = np.random.default_rng(9).standard_normal((4, 50)).astype(np.float32)
    for seeds in (np.array([-1, 5, 2**31 - 1, 0], np.int32), np.array([2**40 + 1, -(2**50), 7, 1 << 32], np.int64)):
        want = np.zeros(4, np.int32)
        ops.sample(logits, token=want, temperature=np.ones(4, np.float32), seed=seeds.astype(np.int64))
        assert np.array_equal(jax_ops.sample(logits, temperature=np.ones(4, np.float32), seed=seeds), want)


def test_subnormals_are_kept():
    """XLA's threads flush them; the op does not."""
    small = np.full((2, 8), 1e-40, np.float32)
    assert np.asarray(jax.jit(lambda x: jax_ops.euler_step(x, x, dt=1.0))(small)).min() > 1.9e-40


def test_custom_vjp_and_no_other_derivative():
    x = jnp.ones((2, 16))
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(lambda x: jax_ops.norm(x).sum())(x)

    @jax.custom_vjp
    def doubled(x):
        return jax_ops.euler_step(x, x, dt=1.0)

    doubled.defvjp(lambda x: (doubled(x), None), lambda _, g: (2 * g,))
    assert np.array_equal(jax.grad(lambda x: doubled(x).sum())(x), np.full((2, 16), 2.0))
    assert np.array_equal(jax.vmap(jax.grad(lambda x: doubled(x).sum()))(x[None])[0], np.full((2, 16), 2.0))


X, W = np.ones((3, 64), np.float32), np.ones(63, np.float32)


@pytest.mark.parametrize("call, error, says", [
    (lambda: jax_ops.norm(X, weight=W), vivace.InvalidShapeError, r"norm: port weight: wanted \[H\] with H = 64"),
    (lambda: jax.jit(lambda x: jax_ops.norm(x, weight=W))(X), vivace.InvalidShapeError, "port weight"),
    (lambda: jax_ops.norm(X[None]), vivace.InvalidShapeError, "port x"),
    (lambda: jax_ops.norm(X.astype(np.int32)), vivace.InvalidDTypeError, "port x: wanted f32"),
    (lambda: jax_ops.norm(X.astype(np.uint32)), vivace.InvalidDTypeError, "JAX's uint32; cast it"),
    (lambda: jax_ops.norm(X, dtype="e9"), vivace.InvalidArgumentError, "norm: dtype"),
    (lambda: jax_ops.norm(X, dtype=jnp.int8), vivace.InvalidArgumentError, "dtype: out is one of f32"),
    (lambda: jax_ops.norm(X, kind="rmsx"), vivace.InvalidArgumentError, r"kind takes one of rms\|layer"),
    (lambda: jax_ops.norm(X, kind=1), vivace.InvalidArgumentError, "kind takes a string"),
    (lambda: jax_ops.norm(X, eps=-1.0), vivace.InvalidArgumentError, "eps must be >= 0"),
    (lambda: jax.jit(lambda e: jax_ops.norm(X, eps=e))(1e-5), vivace.InvalidArgumentError, "known when the call is traced"),
    (lambda: jax_ops.attention(X[:, None], X[None, :, None], X[None, :, None], window=1.5), vivace.InvalidArgumentError, "window"),
    (lambda: jax_ops.rms_norm(X, kind="layer"), vivace.NotFoundError, "fixed by this name"),
    (lambda: jax_ops.norm(X, out=X), vivace.NotFoundError, "out is returned"),
    (lambda: jax_ops.norm(X, wieght=W), vivace.NotFoundError, "no input or attribute 'wieght'"),
    (lambda: jax_ops.norm(X, outputs="squares"), vivace.NotFoundError, "it has row_scale"),
    (lambda: jax_ops.norm(), vivace.InvalidArgumentError, "port x is missing"),
    (lambda: jax_ops.act_mul(), vivace.InvalidArgumentError, "no input is given"),
    (lambda: jax_ops.norm(X, W), vivace.InvalidArgumentError, "2 positional arguments"),
    (lambda: jax_ops.norm(X, x=X), vivace.InvalidArgumentError, "given twice"),
    (lambda: jax_ops.top_logprobs(X), vivace.InvalidShapeError, "give token_shape"),
    (lambda: jax.export.export(jax.jit(jax_ops.norm))(jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 64"), jnp.float32)), vivace.InvalidShapeError, r"known when the call is traced, got \[b, 64\]"),
    (lambda: jax_ops.packed(X, "q8_0"), vivace.InvalidDTypeError, "uint8 or int8"),
    (lambda: jax_ops.packed(np.zeros(35, np.uint8), "q8_0"), vivace.InvalidShapeError, "no whole blocks"),
    (lambda: jax_ops.packed(np.zeros(34, np.uint8), "q9"), vivace.InvalidDTypeError, "dtype is one of"),
])
def test_bad_calls_say_so_while_traced(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_flashrts_names():
    """Against the same arithmetic in float64; bytes typed or as uint8, leading axes, vmap."""
    from vivace.compat import flashrt

    rng = np.random.default_rng(11)
    x, w = rng.standard_normal((2, 3, 64)).astype(np.float32), rng.standard_normal((64, 48)).astype(np.float32)
    sx, sw = (np.float32(np.abs(t).max() / 448) for t in (x, w))
    qx, qw = flashrt.quantize_fp8_static(x.astype(ml_dtypes.bfloat16), sx), flashrt.quantize_fp8_static(w, sw)
    assert qx.shape == x.shape and qw.dtype == ml_dtypes.float8_e4m3fn
    assert np.array_equal(np.asarray(qw).view(np.uint8), (w / sw).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
    want = (np.asarray(qx).astype(np.float64) * sx) @ (np.asarray(qw).astype(np.float64) * sw)
    got = flashrt.fp8_gemm_bf16_out(qx, qw, sx, sw)
    assert got.dtype == ml_dtypes.bfloat16 and got.shape == (2, 3, 48)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=2.0**-8, atol=1e-4)  # half a unit of bf16, and f32's sums
    for same in (flashrt.fp8_gemm_bf16_out(np.asarray(qx).view(np.uint8), np.asarray(qw).view(np.uint8), sx, sw), jax.vmap(lambda x: flashrt.fp8_gemm_bf16_out(x, qw, sx, sw))(qx)):
        assert np.array_equal(np.asarray(same).view(np.uint16), np.asarray(got).view(np.uint16))
    for call, error in ((lambda: flashrt.fp8_gemm_bf16_out(x, qw, sx, sw), vivace.InvalidDTypeError), (lambda: flashrt.fp8_gemm_bf16_out(qx, qw.T, sx, sw), vivace.InvalidShapeError),
                        (lambda: flashrt.quantize_fp8_static(x, np.float64([1, 2])), vivace.InvalidDTypeError), (lambda: flashrt.quantize_fp8_static(x[0, 0, 0], sx), vivace.InvalidShapeError)):
        with pytest.raises(error, match="flashrt|fp8"):
            call()


def test_the_example_trains_a_lora():
    """Over fp8 products as over bf16's: the same first loss, and most of it gone."""
    from examples.python import jax_lora

    plain, fp8 = jax_lora.main(120)
    assert abs(fp8[0] - plain[0]) < 0.1 * plain[0]
    assert plain[-1] < 0.1 * plain[0] and fp8[-1] < 0.15 * fp8[0]
