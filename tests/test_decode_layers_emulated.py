"""The kernel of decode_layers_cross without a GPU: its own source, all its blocks, warps and barriers on the host (tests/emulated/blocks.h), copies and words that
come late and in any order, against the float64 reference. What the host cannot show is memory's order and time."""
import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.ref import decode_layers_cross as reference
from tests.ref.common import Inputs

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "tests/emulated"
CXX = shutil.which("g++") or shutil.which("c++")
# heads, M, blocks: rows that blocks have unequal shares of, splits of 1 to 4, a last piece of a row that is shorter
SHAPES = {"one": (1, 64, 5), "two": (2, 192, 9), "three": (3, 320, 8), "wide": (2, 1472, 6)}
STOOD_IN = ("ptx/mbarrier", "ptx/barrier", "ptx/cp_async", "ptx/mma", "ptx/pack", "ptx/exp2", "ptx/tma", "tile/elem", "tile/sincos", "gemm/upcast", "decode/memory")


def build(folder, kernel, policy, edit=lambda path, text: text):
    """A kernel of a shape as a library."""
    for name in STOOD_IN:
        path = folder / f"vivace/kernels/{name}.cuh"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#pragma once\n")
    gate = folder / "vivace/kernels/gate/activation.h"
    gate.parent.mkdir(parents=True, exist_ok=True)
    gate.write_text("#pragma once\n")
    for name in (kernel, "exchange", "ring", "product", "split_attention"):
        path = f"vivace/kernels/decode/{name}.cuh"
        text = edit(path, (ROOT / path).read_text())
        text = text.replace("extern __shared__ __align__(128) unsigned char shared[];", "unsigned char* const shared = reinterpret_cast<unsigned char*>(emulated::at(emulated::kBase));")
        text = re.sub(r"__device__ __forceinline__ void between\(.*?\{\}", "", text)
        (folder / path).write_text(text)
    library = folder / "kernel.so"
    subprocess.run([CXX, "-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-fPIC", "-shared", f"-DSHAPE={policy}", "-I", HERE, "-I", folder, "-I", ROOT, "-o", library, HERE / f"{kernel}.cc"], check=True)
    return ctypes.CDLL(library)


def planted(file, right, wrong):
    """An edit of build(): a fault in one of the kernel's sources."""
    def edit(path, text):
        if path.endswith(f"/{file}.cuh"):
            assert text.count(right) == 1
            return text.replace(right, wrong)
        return text
    return edit


def policy(shape):
    heads, M, blocks = SHAPES[shape]
    return f"DecodeCrossPolicy{{{heads * 64}, {heads}, {M}, {blocks}}}"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    made = {}

    def get(shape):
        if shape not in made:
            made[shape] = build(tmp_path_factory.mktemp(shape), "decode_layers_cross", policy(shape))
        return made[shape]
    return get


def bits_of(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def values_of(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


class Step:
    """One token of a model of drawn weights, at any position."""

    def __init__(self, kernel, shape, *, N=2, L=1, P=97, C=2, F=150, page_table=True, seed=0):
        heads, M, _ = SHAPES[shape]
        H, rng = heads * 64, np.random.default_rng(seed)
        self.run, self.dims = kernel(shape), (N, P if page_table else 2, L, 2 if page_table else 0, P if page_table else 0, C, F)
        B = 2 * P if page_table else 2
        self.dims = (N, B, L, 2 if page_table else 0, P if page_table else 0, C, F)
        f32 = {p: np.asarray(d(rng, (N, H)), np.float32) for n in reference.NORMS for p, d in ((n, reference.near_one), (n + "_bias", reference.small))}
        rows, columns = {"qkv": 3 * H, "up": M}, {"down": M}
        self.b = {p: bits_of(a) for m in reference.MATRICES for p, a in ((m, reference.weights(rng, (N, rows.get(m, H), columns.get(m, H)))), (m + "_bias", reference.small(rng, (N, rows.get(m, H)))))}
        self.b |= {"x": bits_of(rng.standard_normal((1, H)) + 3 * np.repeat(rng.standard_normal(heads), 64)), "add": bits_of(rng.standard_normal((1, H)))}
        self.b |= {p: bits_of(rng.standard_normal((N, B, L, heads, 64))) for p in ("k_cache", "v_cache")} | {p: bits_of(rng.standard_normal((N, C, F, heads, 64))) for p in ("cross_k", "cross_v")}
        self.f, self.i = f32, {"pos": np.zeros(1, np.int32), "slot": np.ones(1, np.int32), "window": np.array([C - 1], np.int32)}
        if page_table:
            self.i["page_table"] = rng.permutation(2 * P).reshape(2, P).astype(np.int32)
        self.run.words_of_call.restype = ctypes.c_int64
        self.words = np.zeros(self.run.words_of_call(), np.uint32)
        self.out, self.queries = np.full((1, H), 7, np.uint16), np.full((N, 1, H), 7, np.uint16)

    def __call__(self, pos, *, delay=4, seed=1, rows=1, add=True, ticks=100_000):
        self.i["pos"][0] = pos
        self.out[:], self.queries[:] = 7, 7
        held = np.array([rows], np.int32)
        address = lambda a: 0 if a is None else a.ctypes.data  # noqa: E731
        stack = lambda a: [address(a), a[0].size]  # noqa: E731
        call = [w for n in reference.NORMS for p in (n, n + "_bias") for w in stack(self.f[p])] + [w for m in reference.MATRICES for p in (m, m + "_bias") for w in stack(self.b[p])]
        call += [address(a) for a in (self.b["x"], self.b["add"] if add else None, self.b["k_cache"], self.b["v_cache"], self.b["cross_k"], self.b["cross_v"], self.queries, self.out)]
        call += [address(a) for a in (self.i["pos"], self.i["slot"], self.i["window"], held, self.i.get("page_table"), self.words)]
        call = np.array([*call, *self.dims, seed, delay, ticks, np.array(1e-5).view(np.int64)], np.int64)
        return self.run.run_call(ctypes.c_void_p(call.ctypes.data))

    def wanted(self, pos):
        """(the reference, what each port may be off by) from the caches as they are."""
        inputs = {p: values_of(v) for p, v in self.b.items()} | {p: v.astype(np.float64) for p, v in self.f.items()} | {p: v.astype(np.int64) for p, v in self.i.items()} | {"pos": np.array([pos])}
        inputs |= {"norms": np.concatenate([inputs[n] for n in reference.NORMS], 1), "norm_biases": np.concatenate([inputs[n + "_bias"] for n in reference.NORMS], 1), "biases": np.concatenate([inputs[m + "_bias"] for m in reference.MATRICES], 1)}
        inputs = Inputs(inputs, type("Case", (), {"attrs": {}}))
        dtypes = {p: "bf16" for p in ("out", "k_cache", "v_cache", "queries")}
        want = reference.ref(dtypes=dtypes, **inputs)
        return want, {p: reference.bound(p, want[p], "bf16", inputs) for p in want}

    def check(self, pos, **how):
        want, bound = self.wanted(pos)
        assert self(pos, **how) == 0, "the blocks wait for each other without an end"
        for p, w in want.items():
            got = values_of({"out": self.out, "queries": self.queries}.get(p, self.b.get(p)))
            assert (np.abs(got - w) <= bound[p]).all(), (p, pos, np.abs(got - w).max(), bound[p].max())


@pytest.mark.parametrize("shape", SHAPES)
def test_values(kernel, shape):
    """Contexts from one position to all that there are, step behind step: the cache holds what the step before has written."""
    step = Step(kernel, shape)
    for pos in (0, 1, 7, 8, 9, 63, 64, 96):
        step.check(pos, seed=pos)


def test_other_places(kernel):
    """Pages of several places, of which some do not exist; a dense cache; what is heard in whole stages, and in less than one."""
    step = Step(kernel, "two", L=16, P=6, F=64, N=3)
    step.i["page_table"][1, 1] = -1
    for pos in (15, 33, 95):
        step.check(pos)
    Step(kernel, "two", L=40, page_table=False, F=9, C=1, N=1).check(39)
    Step(kernel, "two", F=513, C=1, N=1).check(3)


def test_same_bits_whatever_is_late(kernel):
    step = Step(kernel, "two", N=3)
    step.check(70)
    first = step.out.copy(), step.queries.copy(), step.b["k_cache"].copy(), step.b["v_cache"].copy()
    for seed, delay in ((2, 1), (3, 20), (4, 60), (5, 60)):
        assert step(70, seed=seed, delay=delay) == 0
        for a, b in zip(first, (step.out, step.queries, step.b["k_cache"], step.b["v_cache"])):
            assert np.array_equal(a, b), (seed, delay)


def test_a_count_of_turns_that_begins_anew(kernel):
    step = Step(kernel, "one", N=3)
    step.words[0] = 2**32 - 5
    for turn in range(4):
        step.check(20 + turn)
    assert step.words[0] == 7


def test_what_lies_behind_holds_no_numbers(kernel):
    """Places behind the position, other windows and what follows the last stage of what is heard."""
    step = Step(kernel, "three", C=3)
    step.i["window"][0] = 1
    seen = step.i["page_table"][1, :71]
    for p in ("k_cache", "v_cache"):
        step.b[p][:, np.setdiff1d(np.arange(step.dims[1]), seen)] = 0x7FFF
        step.b[p][:, step.i["page_table"][1, 70]] = 0x7FFF
    for p in ("cross_k", "cross_v"):
        step.b[p][:, [0, 2]] = 0x7FFF
    before = step.b["k_cache"].copy()
    assert step(70) == 0
    assert np.isfinite(values_of(step.out)).all() and np.isfinite(values_of(step.queries)).all()
    changed = (before != step.b["k_cache"]).any((0, 2, 3, 4)).nonzero()[0]
    assert changed.tolist() == [step.i["page_table"][1, 70]]


@pytest.mark.parametrize("what, at", [("pos", -1), ("pos", 97), ("slot", 2), ("window", 2), ("window", -1), ("rows", 0)])
def test_nothing_without_a_place(kernel, what, at):
    step = Step(kernel, "one")
    before = {p: step.b[p].copy() for p in ("k_cache", "v_cache")} | {"words": step.words.copy()}
    if what in ("slot", "window"):
        step.i[what][0] = at
    assert step(at if what == "pos" else 9, rows=0 if what == "rows" else 1) == 0
    assert (step.out == 7).all() and (step.queries == 7).all()
    assert all(np.array_equal(v, step.words if p == "words" else step.b[p]) for p, v in before.items())


@pytest.mark.parametrize("file, right, wrong", [
    ("exchange", "if ((wanted >> j & 1) && has_tag(v[j], tag))", "if (wanted >> j & 1)"),
    ("exchange", "return ((turn >> 1) + 1) & 0xff;", "return 1 + (turn & 0);"),
    ("product", "if (s < count) ring.wait(s);", "if (s < 0) ring.wait(s);"),
    ("ring", "ptx::mbarrier_wait<false>(empty(0), static_cast<int>(turn ^ 1));", ""),
    ("split_attention", "float share = ptx::exp2_fast(mass - top), sum", "float share = 1.0f, sum"),
    ("decode_layers_cross", "at < now.pos ? a.row_of(now.slot, at) : -1", "at < now.pos ? at : -1"),
    ("decode_layers_cross", "all += n * away * away;", ""),
    ("decode_layers_cross", "const int row = now.window * f.a.F + first;", "const int row = first;"),
    ("decode_layers_cross", "bias = next_bias;\n  }", "}"),
])
def test_planted_faults_are_seen(tmp_path, file, right, wrong):
    broken = build(tmp_path, "decode_layers_cross", policy("two"), planted(file, right, wrong))
    with pytest.raises(AssertionError):
        step = Step(lambda shape: broken, "two", N=3, P=128)
        for pos in (70, 71, 72, 73):
            step.check(pos, delay=40, ticks=30_000)
