"""FlashInfer's names of mixtures of experts, against float64 loops over tokens and choices written here, of drawn shapes."""
import math

import numpy as np
import pytest

import vivace
from tests.test_compat_flashinfer import HOMES, back, put, torch
from tests.test_compat_flashinfer_names import to_f64
from vivace.compat import flashinfer
from vivace.compat.arrays import dtype_like
from vivace.compat.flashinfer.fused_moe import ActivationType

pytestmark = pytest.mark.parametrize("home", HOMES)
_SILU, _ERF, _TANH = (lambda g: g / (1 + np.exp(-g)), lambda g: g / 2 * (1 + np.vectorize(math.erf)(g / math.sqrt(2))), lambda g: g / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))))
ACTS = {
    ActivationType.Swiglu: _SILU,
    ActivationType.Geglu: _ERF,
    ActivationType.GegluTanh: _TANH,
    ActivationType.Silu: _SILU,
    ActivationType.Gelu: _ERF,
    ActivationType.Relu: lambda g: np.maximum(g, 0),
    ActivationType.Relu2: lambda g: np.maximum(g, 0) ** 2,
}
GATED = (ActivationType.Swiglu, ActivationType.Geglu, ActivationType.GegluTanh)


def mixture(x, experts, scales, w1, w2, kind, first=0, b1=None, b2=None):
    x, w1, w2 = (to_f64(a) for a in (x, w1, w2))
    b1, b2 = (np.zeros(w.shape[:2]) if b is None else to_f64(b) for b, w in ((b1, w1), (b2, w2)))
    out, act = np.zeros((len(x), w2.shape[1])), ACTS[kind]
    for t, (chosen, weights) in enumerate(zip(experts, scales)):
        for e, s in zip(chosen - first, weights):
            if not 0 <= e < len(w1):
                continue
            row = w1[e] @ x[t] + b1[e]
            hidden = act(row[len(row) // 2 :]) * row[: len(row) // 2] if kind in GATED else act(row)
            out[t] += float(s) * (w2[e] @ hidden + b2[e])
    return out


def drawn(home, seed, gated=True, dtype="float32"):
    r = np.random.default_rng(seed)
    T, K, E, H, M, N = (int(r.choice(n)) for n in ([1, 2, 5, 17], [1, 2, 3], [3, 4, 8], [16, 64, 40], [16, 24, 64], [8, 64]))
    give = lambda *shape: put(home, r.standard_normal(shape, np.float32) / 8)  # noqa: E731
    as_type = lambda x: x.astype(dtype_like(dtype, x)) if home == "numpy" else x.to(dtype_like(dtype, x))  # noqa: E731
    x, w1, w2 = (as_type(give(*s) * n) for n, s in ((8, (T, H)), (1, (E, 2 * M if gated else M, H)), (1, (E, N, M))))
    experts = np.stack([r.permutation(E)[:K] for _ in range(T)]).astype(r.choice(["int32", "int64"]))
    return x, experts, r.random((T, K), np.float32), w1, w2


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ACTS)
def test_experts(home, kind, seed):
    x, experts, scales, w1, w2 = drawn(home, seed, kind in GATED)
    want = mixture(x, experts, scales, w1, w2, kind)
    out, = flashinfer.cutlass_fused_moe(x, put(home, experts), put(home, scales), w1, w2, x.dtype, None, activation_type=kind)
    assert out.shape == want.shape and np.abs(to_f64(out) - want).max() <= 1e-5 * max(1, np.abs(want).max())
    # Rounded to 16 bits at the four points that the ops' formulas name; a loop that rounds nothing is within some of them.
    half, _, _, v1, v2 = drawn(home, seed, kind in GATED, "bfloat16")
    want, given = mixture(half, experts, scales, v1, v2, kind), put(home, np.zeros(want.shape, np.float32))
    assert flashinfer.fused_moe.cutlass_fused_moe(half, put(home, experts), put(home, scales), v1, v2, given.dtype, [], output=given, activation_type=kind)[0] is given
    assert np.abs(to_f64(given) - want).max() <= 2.0**-6 * max(0.05, np.abs(want).max())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", [ActivationType.Swiglu, ActivationType.Relu])
def test_biases(home, kind, seed):
    for dtype, bound in (("float32", 1e-5), ("bfloat16", 2.0**-6)):
        x, experts, scales, w1, w2 = drawn(home, seed, kind == ActivationType.Swiglu, dtype)
        r = np.random.default_rng(seed + 100)
        b1, b2 = (put(home, r.standard_normal(tuple(w.shape[:2]), np.float32)) for w in (w1, w2))
        experts[0, 0] = -1  # a choice of no expert has no bias either
        call = lambda **more: flashinfer.cutlass_fused_moe(x, put(home, experts), put(home, scales), w1, w2, put(home, scales).dtype, None, activation_type=kind, **more)[0]  # noqa: E731
        for one, two in ((b1, b2), (b1, None), (None, b2)):
            want = mixture(x, experts, scales, w1, w2, kind, b1=one, b2=two)
            assert np.abs(to_f64(call(fc1_expert_biases=one, fc2_expert_biases=two)) - want).max() <= bound * max(1, np.abs(want).max())
        want = mixture(x, experts, scales, w1, w2, kind)
        assert np.abs(to_f64(call(fc2_expert_biases=b2, tp_size=2, tp_rank=1)) - want).max() <= bound * max(1, np.abs(want).max())


def test_names_of_shuffled_weights_say_the_way_out(home):
    for name in ("trtllm_bf16_moe", "trtllm_fp8_per_tensor_scale_moe", "trtllm_fp8_block_scale_moe", "trtllm_fp4_block_scale_moe", "mono_moe"):
        assert not hasattr(flashinfer.fused_moe, name)
        with pytest.raises(vivace.UnsupportedError, match=f"fused_moe.{name}: refused: .*cutlass_fused_moe takes plain weights"):
            getattr(flashinfer.fused_moe, name)
    with pytest.raises(AttributeError, match="no attribute 'trtllm_moe'"):
        flashinfer.fused_moe.trtllm_moe


@pytest.mark.parametrize("seed", range(6))
def test_ranks_add_up(home, seed):
    """What is of another rank or of none adds nothing, and an expert that is named twice counts twice."""
    x, experts, scales, w1, w2 = drawn(home, seed)
    E, r = len(w1), np.random.default_rng(seed)
    experts[0, :] = experts[0, 0]
    experts = np.where(r.random(experts.shape) < 0.2, r.choice([-1, E, 1 << 20]), experts).astype(np.int32)
    both = put(home, np.concatenate([to_f64(a).astype(np.float32) for a in (w1, w1[::-1] if home == "numpy" else w1.flip(0))]))
    downs = put(home, np.concatenate([to_f64(a).astype(np.float32) for a in (w2, w2)]))
    shifted = np.where(r.random(experts.shape) < 0.5, experts, experts + E).astype(np.int32)
    parts = [flashinfer.cutlass_fused_moe(x, put(home, shifted), put(home, scales), both[i * E : i * E + E], downs[:E], x.dtype, None, ep_size=2, ep_rank=i)[0] for i in range(2)]
    for i, part in enumerate(parts):
        assert np.abs(to_f64(part) - mixture(x, shifted, scales, both[i * E : i * E + E], downs[:E], ActivationType.Swiglu, i * E)).max() < 1e-4
    whole, = flashinfer.cutlass_fused_moe(x, put(home, shifted), put(home, scales), both, downs, x.dtype, None)
    assert np.abs(to_f64(whole) - sum(to_f64(p) for p in parts)).max() < 1e-4


@pytest.mark.parametrize("seed", range(12))
def test_routing_by_groups(home, seed):
    r = np.random.default_rng(seed)
    T, groups, each = (int(r.choice(n)) for n in ([1, 3, 40], [1, 2, 8], [2, 4, 32]))
    kept = int(r.integers(1, groups + 1))
    K, factor = int(r.integers(1, min(8, kept * each) + 1)), float(r.choice([1.0, 2.5]))
    logits, bias = r.standard_normal((T, groups * each), np.float32), r.standard_normal(groups * each).astype(np.float32) / 4
    values, which = put(home, np.zeros((T, K), np.float32)), put(home, np.zeros((T, K), np.int32))
    assert flashinfer.fused_moe.fused_topk_deepseek(put(home, logits), put(home, bias), groups, kept, K, factor, values, which) is None
    chance = 1 / (1 + np.exp(-logits.astype(np.float64)))
    for t in range(T):
        biased = (chance[t] + bias).reshape(groups, each)
        best = np.argsort(-np.sort(biased, 1)[:, -2:].sum(1), kind="stable")[:kept]
        masked = np.full_like(biased, -np.inf)
        masked[best] = biased[best]
        want = np.argsort(-masked.reshape(-1), kind="stable")[:K]
        assert back(which)[t].tolist() == want.tolist()
        assert np.allclose(back(values)[t], chance[t, want] / chance[t, want].sum() * factor, rtol=1e-5)


def test_no_tokens(home):
    x, experts, scales, w1, w2 = drawn(home, 0)
    out, = flashinfer.cutlass_fused_moe(x[:0], put(home, experts[:0]), put(home, scales[:0]), w1, w2, x.dtype, None)
    assert tuple(out.shape) == (0, w2.shape[1])


def test_weights_of_absent_experts_are_not_read(home):
    x, experts, scales, w1, w2 = drawn(home, 1)
    out, = flashinfer.cutlass_fused_moe(x, put(home, 0 * experts - 1), put(home, scales * np.nan), w1, w2, x.dtype, None)
    assert (to_f64(out) == 0).all()


def bad_calls(home):
    x, w1, w2 = (put(home, np.ones(s, np.float32)) for s in ((2, 8), (3, 32, 8), (3, 8, 16)))
    experts, scales = put(home, np.zeros((2, 1), np.int32)), put(home, np.ones((2, 1), np.float32))
    call = lambda **more: flashinfer.cutlass_fused_moe(**{"input": x, "token_selected_experts": experts, "token_final_scales": scales, "fc1_expert_weights": w1, "fc2_expert_weights": w2,  # noqa: E731
                                                          "output_dtype": x.dtype} | more)
    route = lambda *args: flashinfer.fused_topk_deepseek(w2[0], w2[0, 0], *args, put(home, np.ones((8, 2), np.float32)), put(home, np.ones((8, 2), np.int32)))  # noqa: E731
    codes = put(home, np.ones((2, 8), np.uint8))
    return {
        "a bias": (lambda: call(fc1_expert_biases=w1), vivace.InvalidShapeError, "wanted \\[3, 32\\]"),
        "another bias": (lambda: call(fc2_expert_biases=w1[:, :16, 0]), vivace.InvalidShapeError, "wanted \\[3, 8\\]"),
        "a bias of codes": (lambda: call(fc2_expert_biases=codes), vivace.InvalidDTypeError, "fc2_expert_biases is uint8"),
        "scales": (lambda: call(quant_scales=[scales]), vivace.UnsupportedError, "quant_scales: experts of float32 are not quantized"),
        "a flag": (lambda: call(min_latency_mode=True), vivace.UnsupportedError, "min_latency_mode"),
        "a new flag": (lambda: call(use_packed_weights=True), vivace.UnsupportedError, "use_packed_weights"),
        "codes": (lambda: call(input=codes), vivace.InvalidDTypeError, "input is uint8"),
        "output": (lambda: call(output_dtype=codes.dtype), vivace.InvalidDTypeError, "output_dtype uint8"),
        "activation": (lambda: call(activation_type=ActivationType.Identity), vivace.UnsupportedError, "Identity"),
        "no activation": (lambda: call(activation_type=99), vivace.UnsupportedError, "99 is not served; Gelu, Relu"),
        "shapes": (lambda: call(fc1_expert_weights=w1[:, :16]), vivace.InvalidShapeError, "wanted \\[T, H\\]"),
        "not gated": (lambda: call(activation_type=ActivationType.Relu2), vivace.InvalidShapeError, "\\[E, M, H\\]"),
        "out": (lambda: call(output=x[:1]), vivace.InvalidShapeError, "output is \\[1, 8\\]"),
        "rank": (lambda: call(ep_size=2, ep_rank=2), vivace.InvalidArgumentError, "ep_rank 2 of 2"),
        "a list": (lambda: call(input=[1.0]), vivace.InvalidDTypeError, "torch tensor or a NumPy array"),
        "groups": (lambda: route(3, 1, 2, 1.0), vivace.InvalidArgumentError, "n_group to divide"),
        "too many": (lambda: route(16, 1, 2, 1.0), vivace.InvalidArgumentError, "2 of 1 of 16"),
        "top-k": (lambda: route(4, 1, 1, 1.0), vivace.InvalidShapeError, "\\[T, 1\\] twice"),
    }


@pytest.mark.parametrize("what", bad_calls("numpy"))
def test_bad_calls(home, what):
    call, error, said = bad_calls(home)[what]
    with pytest.raises(error, match=said):
        call()


@pytest.mark.skipif(not (torch and torch.cuda.is_available()), reason="captures on a GPU")
def test_captured(home):
    if home != "cuda":
        pytest.skip("captures on a GPU")
    x, experts, scales, w1, w2 = drawn(home, 3)
    ids, weights, out = put(home, experts), put(home, scales), put(home, np.zeros((len(x), w2.shape[1]), np.float32))
    step = lambda: flashinfer.cutlass_fused_moe(x, ids, weights, w1, w2, x.dtype, None, output=out)  # noqa: E731
    step(), torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    ids.copy_(ids.flip(0)), out.zero_()
    graph.replay(), torch.cuda.synchronize()
    assert np.abs(to_f64(out) - mixture(x, experts[::-1], scales, w1, w2, ActivationType.Swiglu)).max() < 1e-4
