"""The merge of attention's clusters without a GPU: its own source, all its warps on the host (tests/emulated/blocks.h), writes that land late and in any
order. What the host cannot show is what a compiler makes of the fences, and time."""
import ctypes
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import vivace
from tests.ref.attention import words_of
from vivace import ops
from vivace.errors import InvalidDTypeError, InvalidShapeError

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "tests/emulated"
SOURCE = "vivace/kernels/attention/merge_clusters.cuh"
CXX = shutil.which("g++") or shutil.which("c++")
STOOD_IN = ("ptx/exp2", "tile/elem")
SPLIT = 8
SHAPES = {(256, 8, 4): 2, (128, 8, 8): 1, (128, 32, 2): 4}  # head size, rows and clusters of a tile: fours of a lane


def build(folder, shape, edit=lambda text: text):
    for name in STOOD_IN:
        path = folder / f"vivace/kernels/{name}.cuh"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#pragma once\n")
    (folder / SOURCE).parent.mkdir(parents=True, exist_ok=True)
    (folder / SOURCE).write_text(edit((ROOT / SOURCE).read_text()))
    D, rows, clusters = shape
    library = folder / "merge.so"
    subprocess.run([CXX, "-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-fPIC", "-shared", f"-DSHAPE=AttentionSwapAB{{{D},{D},{rows},2,{SPLIT}}}", f"-DCLUSTERS={clusters}", "-I", HERE, "-I", folder, "-I", ROOT, "-o", library, HERE / "merge_clusters.cc"], check=True)
    return ctypes.CDLL(library)


def states(rng, *lead):
    """highest, total and sums of lanes; some rows of some clusters have seen nothing."""
    x = rng.standard_normal((*lead, 32, 8)).astype(np.float32)
    x[..., :2] *= 20
    x[..., 2:4] = np.abs(x[..., 2:4]) + 1
    none = rng.random(x[..., :2].shape) < 0.2
    x[..., :2][none] = -np.inf
    x[..., 2:4][none] = 0
    x[..., 4:6][none] = 0  # row 0's sums, row 1's: columns of a row lie two apart
    x[..., 6:8][none] = 0
    return x


def merged(x):
    """In float64, over axis 1."""
    x = x.astype(np.float64)
    highest = x[..., :2].max(1)
    w = np.exp2(x[..., :2] - np.where(np.isinf(highest), 0, highest)[:, None])
    return np.concatenate([highest, (x[..., 2:4] * w).sum(1), (x[..., 4:] * np.concatenate([w, w], -1)).sum(1)], -1)


class Merge:
    def __init__(self, library, shape, tiles, at=0, words=None):
        """at: words before the first, so that fours do not begin where words do."""
        self.library, self.tiles, self.quads = library, tiles, SHAPES[shape]
        room = words_of(tiles, tiles * shape[1], tiles, shape[0])  # tiles as if of one kv head: more words than of several
        self.words = np.zeros(room + 4, np.uint32)[at : at + room] if words is None else words

    def __call__(self, x, seed=1, delay=30):
        out, times = np.full((self.tiles, SPLIT, self.quads, 32, 8), 7, np.float32), np.zeros((self.tiles, SPLIT, self.quads, 32), np.int32)
        x = np.ascontiguousarray(x)
        at = lambda a: ctypes.c_void_p(a.ctypes.data)  # noqa: E731
        assert self.library.merge(at(self.words), self.tiles, x.shape[1], at(x), at(out), at(times), ctypes.c_int64(seed), delay) == 0, "it did not end"
        assert (times == 1).all(), "not each row has one warp that writes it"
        assert not self.words[:4096].any(), "counts are not back at zero"
        return out


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    made = {}
    return lambda shape: made.get(shape) or made.setdefault(shape, build(tmp_path_factory.mktemp("merge"), shape))


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums(library, shape, at):
    """Call after call with the same words, of as many clusters as have keys: float64's sums, and bits that follow from no order."""
    rng, run = np.random.default_rng(at), Merge(library(shape), shape, 2, at)
    for used in range(2, shape[2] + 1):
        x = states(rng, 2, used, SPLIT, run.quads)
        got, want = run(x, used), merged(x)
        assert np.array_equal(got[..., :2], want[..., :2])
        size = merged(np.abs(np.concatenate([x[..., :2] + 0, np.abs(x[..., 2:])], -1)) * np.where(np.arange(8) < 2, np.sign(x), 1))
        assert (np.abs(got[..., 2:] - want[..., 2:]) <= 2.0**-20 * size[..., 2:] + 1e-30).all()
        assert np.array_equal(got.view(np.uint32), run(x, used + 100, 60).view(np.uint32)), "bits follow from who came last"


def test_a_cluster_without_keys_changes_no_bit(library):
    """What is seen by none of a row's last clusters leaves the bits of fewer."""
    shape = (128, 8, 8)
    run, x = Merge(library(shape), shape, 1), states(np.random.default_rng(3), 1, 8, SPLIT, 1)
    x[:, 3:] = 0
    x[:, 3:, ..., :2] = -np.inf
    assert np.array_equal(run(x[:, :3]).view(np.uint32), run(x).view(np.uint32))


def test_other_calls_between(library):
    """Steps of one token and of more with the same words: where counts lie follows from no call."""
    shape, rng = (128, 32, 2), np.random.default_rng(5)
    more = Merge(library(shape), shape, 5)
    for tiles in (1, 5, 2, 1, 5):
        run, x = Merge(library(shape), shape, tiles, words=more.words), states(rng, tiles, 2, SPLIT, more.quads)
        assert np.array_equal(run(x)[..., :2], merged(x)[..., :2])


def test_scores_without_bound(library):
    """+inf makes its own row NaN and no other."""
    shape = (256, 8, 4)
    run, x = Merge(library(shape), shape, 1), states(np.random.default_rng(4), 1, 4, SPLIT, 2)
    clean = run(x)
    x[0, 2, 5, 1, 9, [0, 2, 4, 5]] = np.inf, np.nan, np.nan, np.nan
    got = run(x)
    assert np.isnan(got[0, 5, 1, 9, 2])
    got[0, 5, 1, 9], clean[0, 5, 1, 9] = 0, 0
    assert np.array_equal(got, clean)


FAULTS = {
    "sums are on their way": ("  __threadfence();  // what a lane wrote is there before its warp counts\n", ""),
    "a warp counts alone": ("  __syncwarp();\n", ""),
    "nobody counts": ("!= static_cast<uint32_t>(used - 1)) return false;", "> static_cast<uint32_t>(used - 1)) return false;"),
    "clusters share a place": ("(tile * kClusters + static_cast<uint32_t>(of))", "(tile * kClusters)"),
    "tiles share a count": ("(tile * P.split + static_cast<uint32_t>(split)) * 8 + x", "static_cast<uint32_t>(split) * 8 + x"),
    "the mass is not rescaled": ("total[0] += state[c].y * w0", "total[0] += state[c].y"),
    "the last cluster is forgotten": ("c < kClusters; ++c) {\n    const float w0", "c < kClusters - 1; ++c) {\n    const float w0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_show(fault, tmp_path):
    shape, (old, new) = (256, 8, 4), FAULTS[fault]

    def edit(text):
        assert text.count(old) == 1, f"{fault}: {old!r} is not there once"
        return text.replace(old, new)

    run, rng = Merge(build(tmp_path, shape, edit), shape, 2), np.random.default_rng(1)
    with pytest.raises(AssertionError):
        for seed in range(6):
            x = states(rng, 2, 4, SPLIT, run.quads)
            got, want = run(x, seed, 100), merged(x)
            assert (np.abs(got[..., 2:] - want[..., 2:]) <= 1e-4 * np.abs(want)[..., 2:] + 1e-3).all()


def test_refused():
    """Words that hold less than the call may exchange, or are none."""
    q, cache = np.zeros((2, 16, 256), np.float32), np.zeros((1, 8193, 2, 256), np.float32)
    room = words_of(2, 16, 2, 256)
    call = lambda words: ops.attention(q=q, k=cache, v=cache, out=np.empty_like(q), words=words)  # noqa: E731
    call(np.zeros(room, np.int32))
    ops.attention(q=q, k=cache[:, :8192], v=cache[:, :8192], out=np.empty_like(q), words=np.zeros(1, np.int32))  # one cluster
    with pytest.raises(InvalidShapeError, match=f"words has N = {room - 1}, wanted {room}"):
        call(np.zeros(room - 1, np.int32))
    with pytest.raises(InvalidDTypeError, match="words"):
        call(np.zeros(room, np.float32))


def test_decoders_bring_words_where_they_help(tmp_path):
    """One sequence of more than 8192 places, few kv heads of more than 64 in 16 bits; answers on the host are the same."""
    shape = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 300}
    (tmp_path / "config.json").write_text(json.dumps(json.loads((ROOT / "bench/configs/qwen3-0.6b/config.json").read_text()) | shape))
    said = set()
    for wanted, options in ((1, {}), (1, {"num_kv_blocks": 150}), (0, {"context": 8192}), (0, {"max_batch": 2}), (0, {"kv_dtype": "e4m3"})):
        with vivace.load_model(tmp_path, device="cpu", precision="bf16", random_weights=True, **{"max_batch": 1, "context": 9000} | options) as model:
            assert [b for name, b in model.memory() if name == "attention_words"] == [4 * words_of(16, 4, 2, 128)] * wanted, options
            if "kv_dtype" not in options:
                said.add(tuple(model.generate_ids(list(range(50)), max_tokens=8).tokens))
    assert len(said) == 1
