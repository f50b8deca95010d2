"""FlashInfer's names of mixtures of experts over ops.grouped_gemm, ops.act_mul and ops.moe_combine."""
from enum import IntEnum

import numpy as np

from vivace import ops
from vivace.array.refused import RefusedName
from vivace.compat.arrays import arange, as_i32, cast, check, dense, dtype_name, empty, f32, is_torch, where
from vivace.errors import InvalidArgumentError, InvalidDTypeError, InvalidShapeError, UnsupportedError

_PLAIN = ("float32", "float16", "bfloat16")


class ActivationType(IntEnum):
    """What is between an expert's two products; Swiglu and Geglu are gated."""

    Gelu, Relu, Silu, Swiglu, Geglu, SwigluBias, Relu2, Identity, InvalidType = range(9)


_ACTS = {ActivationType.Gelu: ("gelu_tanh", False), ActivationType.Relu: ("relu", False), ActivationType.Silu: ("silu", False), ActivationType.Relu2: ("relu2", False),
         ActivationType.Swiglu: ("silu", True), ActivationType.Geglu: ("gelu_tanh", True)}


def _grouped(experts, first, count):
    """(token, place, offsets, absent, expert) of choices [T, K], by expert in the order of tokens: what ops.moe_route gives of logits, which choices are
    of no expert here, and each row's expert. A choice that is not of [first, first + count) comes last, behind every group. Nothing waits."""
    T, K = experts.shape
    local = experts - first
    flat = where((local >= 0) & (local < count), local, count).reshape(-1)
    if is_torch(flat):
        import torch

        order = torch.argsort(flat, stable=True)
        offsets = torch.searchsorted(flat[order], arange(0, count + 1, flat).to(flat.dtype))
        place = torch.empty_like(order).scatter_(0, order, arange(0, T * K, flat, "int64"))
    else:
        order = np.argsort(flat, kind="stable")
        offsets = np.searchsorted(flat[order], np.arange(count + 1))
        place = np.empty_like(order)
        place[order] = np.arange(T * K)
    return as_i32(order // K), as_i32(place.reshape(T, K)), as_i32(offsets), (local < 0) | (local >= count), flat[order]


def cutlass_fused_moe(input, token_selected_experts, token_final_scales, fc1_expert_weights, fc2_expert_weights, output_dtype, quant_scales=None, fc1_expert_biases=None,
                      fc2_expert_biases=None, input_sf=None, swiglu_alpha=None, swiglu_beta=None, swiglu_limit=None, tp_size=1, tp_rank=0, ep_size=1, ep_rank=0, cluster_size=1,
                      cluster_rank=0, output=None, enable_alltoall=False, use_deepseek_fp8_block_scale=False, use_w4_group_scaling=False, use_mxfp8_act_scaling=False,
                      min_latency_mode=False, tune_max_num_tokens=8192, enable_pdl=None, activation_type=ActivationType.Swiglu, **others):
    """[out], out [T, N]: of input [T, H] the experts token_selected_experts [T, K], weighted by token_final_scales [T, K] and summed in float32.
    fc1_expert_weights [E, 2 M, H] have each expert's M rows of up, then its M rows of the gate ([E, M, H] where activation_type is
    not gated); fc2_expert_weights [E, N, M]. Of ep_size ranks, E experts each, those of ep_rank add to the result; a choice of no rank adds
    nothing. float32, bfloat16 or float16, weights in input's type or another of these. Biases [E, 2 M] ([E, M]) and [E, N] of any of these types are
    added in float32 before the product is rounded; fc2's on tp_rank 0 alone."""
    where_ = "cutlass_fused_moe"
    asked = {"input_sf": input_sf, "swiglu_alpha": swiglu_alpha, "swiglu_beta": swiglu_beta,
             "swiglu_limit": swiglu_limit, "enable_alltoall": enable_alltoall or None, "use_deepseek_fp8_block_scale": use_deepseek_fp8_block_scale or None,
             "use_w4_group_scaling": use_w4_group_scaling or None, "use_mxfp8_act_scaling": use_mxfp8_act_scaling or None, "min_latency_mode": min_latency_mode or None}
    for name, value in (asked | others).items():
        if value is not None and value is not False:
            raise UnsupportedError(f"flashinfer: {where_}: {name} is not served: experts are float32, bfloat16 or float16, without limits")
    if quant_scales is not None and len(quant_scales):
        raise UnsupportedError(f"flashinfer: {where_}: quant_scales: quantized experts are not served: ops.grouped_gemm multiplies by 16-bit, float32 and GGUF's block "
                               "formats; dequantize the experts once, as they are loaded, or give ops.moe_mlp blocks (`vivace convert --dtype q8_0`)")
    if activation_type not in _ACTS:
        raise UnsupportedError(f"flashinfer: {where_}: activation_type {activation_type!r} is not served; {', '.join(a.name for a in _ACTS)} are")
    act, gated = _ACTS[activation_type]
    x, w1, w2 = check(input, "input"), check(fc1_expert_weights, "fc1_expert_weights"), check(fc2_expert_weights, "fc2_expert_weights")
    experts, scales = check(token_selected_experts, "token_selected_experts"), check(token_final_scales, "token_final_scales")
    for name, a in (("input", x), ("fc1_expert_weights", w1), ("fc2_expert_weights", w2)):
        if dtype_name(a) not in _PLAIN:
            raise InvalidDTypeError(f"flashinfer: {where_}: {name} is {dtype_name(a)}: float32, bfloat16 and float16 are served")
    if dtype_name(output_dtype) not in _PLAIN:
        raise InvalidDTypeError(f"flashinfer: {where_}: output_dtype {dtype_name(output_dtype)}: float32, bfloat16 and float16 are served")
    T, K = experts.shape if experts.ndim == 2 else (-1, -1)
    if x.ndim != 2 or w1.ndim != 3 or w2.ndim != 3 or T != x.shape[0] or K < 1 or tuple(scales.shape) != (T, K) or w1.shape[2] != x.shape[1] or w1.shape[0] != w2.shape[0] \
            or w1.shape[1] != w2.shape[2] * (2 if gated else 1):
        raise InvalidShapeError(f"flashinfer: {where_}: input {list(x.shape)}, experts {list(experts.shape)}, scales {list(scales.shape)}, fc1 {list(w1.shape)}, fc2 {list(w2.shape)}: "
                                f"wanted [T, H], [T, K] twice, [E, {'2 M' if gated else 'M'}, H], [E, N, M]")
    if not (0 <= ep_rank < ep_size):
        raise InvalidArgumentError(f"flashinfer: {where_}: ep_rank {ep_rank} of {ep_size}")
    E, N, M = w2.shape
    out = empty((T, N), x, output_dtype) if output is None else output
    if tuple(out.shape) != (T, N):
        raise InvalidShapeError(f"flashinfer: {where_}: output is {list(out.shape)}, wanted {[T, N]}")
    if 0 in out.shape:
        return [out]
    biases = [_bias(where_, name, b, (E, n), x) for name, b, n in (("fc1_expert_biases", fc1_expert_biases, w1.shape[1]), ("fc2_expert_biases", fc2_expert_biases, N))]
    token, place, offsets, absent, expert = _grouped(experts, ep_rank * E, E)
    rows = offsets[E:]  # those of an expert that is here
    gathered, both, hidden, parts = (empty((T * K, n), x) for n in (x.shape[1], w1.shape[1], M, N))
    ops.embedding(dense(x), token, out=gathered, rows=rows)
    both = _product(gathered, w1, offsets, both, biases[0], expert)
    if gated:
        ops.act_mul(gate=both[:, M:], up=both[:, :M], out=hidden, act=act, rows=rows)
    else:
        ops.act_mul(gate=both, out=hidden, act=act, rows=rows)
    parts[...] = 0  # rows that no group writes meet a weight of 0, which must not be NaN times 0
    parts = _product(hidden, w2, offsets, parts, biases[1] if tp_rank == 0 else None, expert)
    weights = cast(scales, f32(x))
    ops.moe_combine(parts, place, dense(where(absent, 0.0, weights)), out=out)
    return [out]


def _bias(call, name, bias, shape, like):
    """A bias of every expert in float32, with a row of zeros behind them for rows of no expert; None stays None."""
    if bias is None:
        return None
    if dtype_name(check(bias, name)) not in _PLAIN:
        raise InvalidDTypeError(f"flashinfer: {call}: {name} is {dtype_name(bias)}: float32, bfloat16 and float16 are served")
    if tuple(bias.shape) != shape:
        raise InvalidShapeError(f"flashinfer: {call}: {name} is {list(bias.shape)}, wanted {list(shape)}")
    padded = empty((shape[0] + 1, shape[1]), like, f32(like))
    padded[:-1], padded[-1] = cast(bias, f32(like)), 0
    return padded


def _product(x, w, offsets, out, bias, expert):
    """Rows of x by their expert's w, into `out`; with a bias both are added in float32, and rounded once."""
    if bias is None:
        ops.grouped_gemm(x, dense(w), offsets, out=out)
        return out
    wide = empty(tuple(out.shape), out, f32(out))
    wide[...] = 0  # rows of no expert
    ops.grouped_gemm(x, dense(w), offsets, out=wide)
    return cast(wide + bias[expert], out.dtype)


_SHUFFLED = ("its weights are shuffled, and some of them quantized, for the kernels of other chips; cutlass_fused_moe takes plain weights [E, 2 M, H] and [E, N, M], "
             "fused_topk_deepseek or torch.topk the routing")
_REFUSED = {**dict.fromkeys(("trtllm_bf16_moe", "trtllm_bf16_routed_moe", "trtllm_fp8_per_tensor_scale_moe", "trtllm_fp8_block_scale_moe", "trtllm_fp8_block_scale_routed_moe", "trtllm_fp4_block_scale_moe",
                             "trtllm_fp4_block_scale_routed_moe", "trtllm_mxint4_block_scale_moe"), _SHUFFLED),
            "mono_moe": _SHUFFLED}


def __getattr__(name):
    """AttributeError, so that hasattr() is false; of names that are refused on purpose it says what to use instead."""
    if name in _REFUSED:
        raise RefusedName(f"flashinfer: fused_moe.{name}: refused: {_REFUSED[name]}", name=name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


def fused_topk_deepseek(scores, bias, n_group, topk_group, topk, routed_scaling_factor, topk_values, topk_indices, launch_with_pdl=True, routing_replay_out=None):
    """DeepSeek-V3's routing of logits `scores` [T, E]: of n_group groups of experts the topk_group whose two largest sigmoid(scores) + bias [E] have
    the largest sum, in these the topk largest; topk_values [T, topk] gets their sigmoids, divided by their sum and times
    routed_scaling_factor, topk_indices [T, topk] which they are. By the array library, in float32; of equals the lower expert."""
    if routing_replay_out is not None:
        raise UnsupportedError("flashinfer: fused_topk_deepseek: routing_replay_out is not served")
    T, E = check(scores, "scores").shape
    if tuple(check(bias, "bias").shape) != (E,) or tuple(topk_values.shape) != (T, topk) or tuple(topk_indices.shape) != (T, topk):
        raise InvalidShapeError(f"flashinfer: fused_topk_deepseek: scores {[T, E]}, bias {list(bias.shape)}, topk_values {list(topk_values.shape)}, topk_indices {list(topk_indices.shape)}: "
                                f"wanted [T, E], [E], [T, {topk}] twice")
    if n_group < 1 or E % n_group or not 1 <= topk_group <= n_group or not 1 <= topk <= E // n_group * topk_group or E // n_group < min(2, E):
        raise InvalidArgumentError(f"flashinfer: fused_topk_deepseek: {topk} of {topk_group} of {n_group} groups of {E} experts: wanted n_group to divide the experts into groups of two or more "
                                   "and topk within the chosen groups")
    wide = cast(scores, f32(scores))
    if is_torch(wide):
        chance = wide.sigmoid()
    else:
        chance = 1 / (1 + np.exp(-wide))
    biased = chance + cast(bias, f32(scores))
    if n_group > 1:
        groups = biased.reshape(T, n_group, E // n_group)
        best = _largest(groups.reshape(T * n_group, -1), 2)[0].sum(-1).reshape(T, n_group)
        chosen = _largest(best, topk_group)[1]
        kept = arange(0, n_group, scores, "int64")[None, None] == chosen[:, :, None]
        kept = kept.any(1)[:, :, None]
        biased = where(kept, groups, groups * 0 - float("inf")).reshape(T, E)
    which = _largest(biased, topk)[1]
    weights = chance.gather(1, which) if is_torch(chance) else np.take_along_axis(chance, which, 1)
    topk_values[...] = cast(weights / (weights.sum(-1)[:, None] + 1e-20) * routed_scaling_factor, topk_values.dtype)
    topk_indices[...] = cast(which, topk_indices.dtype)


def _largest(x, k):
    """(values, places) of the k largest of each row, of equals the first; NaN last."""
    if is_torch(x):
        order = (-x.nan_to_num(float("-inf"), float("inf"), float("-inf"))).argsort(dim=-1, stable=True)[:, :k]
        return x.gather(1, order), order
    order = np.argsort(-np.nan_to_num(x, nan=-np.inf, posinf=np.inf, neginf=-np.inf), -1, kind="stable")[:, :k]
    return np.take_along_axis(x, order, 1), order
