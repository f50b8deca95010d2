"""FlashInfer's names of mixtures of experts over ops.grouped_gemm, ops.act_mul and ops.moe_combine."""
from enum import IntEnum

import numpy as np

from vivace import ops
from vivace.array.refused import RefusedName
from vivace.compat.arrays import arange, as_i32, cast, check, dense, dtype_like, dtype_name, empty, f32, is_torch, where
from vivace.compat.flashinfer.experts import (PLAIN, Layer, block_e4m3, grouped_int4, interleave_moe_scales_for_sm90_mixed_gemm, interleave_moe_weights_for_sm90_mixed_gemm, nvfp4,
                                              nvfp4_rows, tensor_e4m3)
from vivace.errors import InvalidArgumentError, InvalidDTypeError, InvalidShapeError, UnsupportedError



class ActivationType(IntEnum):
    """What is between an expert's two products; FlashInfer's numbers."""

    Gelu, Relu, Silu, Swiglu, Geglu, SwigluBias, Relu2, SwigluStep, GegluTanh, Identity, Situ, InvalidType = range(12)


# One op each: the activation, and whether it is gated.
_ACTS = {ActivationType.Gelu: ("gelu_erf", False), ActivationType.Relu: ("relu", False), ActivationType.Silu: ("silu", False), ActivationType.Relu2: ("relu2", False),
         ActivationType.Swiglu: ("silu", True), ActivationType.Geglu: ("gelu_erf", True), ActivationType.GegluTanh: ("gelu_tanh", True)}


def _sigmoid(x):
    return x.sigmoid() if is_torch(x) else 1 / (1 + np.exp(-x))


def _tanh(x):
    return x.tanh() if is_torch(x) else np.tanh(x)


def _below(x, limit):
    return where(x > limit, limit, x)


def _within(x, limit):
    return where(x < -limit, -limit, _below(x, limit))


def _swiglu_bias(gate, up, alpha, beta, limit):
    gate = _below(gate, limit)
    return gate * _sigmoid(alpha * gate) * (_within(up, limit) + beta)


def _swiglu_step(gate, up, limit):
    return _below(gate * _sigmoid(gate), limit) * _within(up, limit)


def _situ(gate, up, beta, linear_beta):
    return beta * _tanh(gate / beta) * _sigmoid(gate) * (linear_beta * _tanh(up / linear_beta))


# Gated ones by the array library, in float32: the formula, and what it takes of each expert with what stands for an absent one.
_LIMITED = {ActivationType.SwigluBias: (_swiglu_bias, {"swiglu_alpha": 1.0, "swiglu_beta": 0.0, "swiglu_limit": float("inf")}), ActivationType.SwigluStep: (_swiglu_step, {"swiglu_limit": 7.0}),
            ActivationType.Situ: (_situ, {"situ_beta": 4.0, "situ_linear_beta": 25.0})}


def _activation(kind, given, E):
    """(kind, its parameters): those given of each expert, [E] in float32, and which they make of Swiglu."""
    given = {name: value for name, value in given.items() if value is not None}
    if kind == ActivationType.Swiglu and given and all(name.startswith("swiglu") for name in given):
        kind = ActivationType.SwigluBias
    if kind not in _ACTS and kind not in _LIMITED:
        raise UnsupportedError(f"flashinfer: cutlass_fused_moe: activation_type {kind!r} is not served; {', '.join(a.name for a in (*_ACTS, *_LIMITED))} are")
    for name, value in given.items():
        if name not in (_LIMITED[kind][1] if kind in _LIMITED else ()):
            raise UnsupportedError(f"flashinfer: cutlass_fused_moe: {name} has no part in {ActivationType(kind).name}")
        if dtype_name(check(value, name)) != "float32" or tuple(value.shape) != (E,):
            raise InvalidArgumentError(f"flashinfer: cutlass_fused_moe: {name} is {dtype_name(value)} {list(value.shape)}, wanted float32 {[E]}")
    return kind, given


def _activated(both, kind, given, expert, E, rows, hidden):
    """hidden [A, M] = the activation of both [A, M] or, gated, [A, 2 M]: up, then the gate."""
    M = hidden.shape[1]
    if kind in _ACTS:
        act, gated = _ACTS[kind]
        ops.act_mul(gate=both[:, M:] if gated else both, **({"up": both[:, :M]} if gated else {}), out=hidden, act=act, rows=rows)
        return
    formula, defaults = _LIMITED[kind]
    wide = cast(both, f32(both))
    each = {name: given[name].reshape(E, 1)[expert.clip(0, E - 1)] if name in given else wide[:, :1] * 0 + value for name, value in defaults.items()}
    hidden[...] = cast(formula(wide[:, M:], wide[:, :M], *each.values()), hidden.dtype)


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


def _form(input, w, quant_scales, input_sf, swizzled_input_sf, block_scale, packed, w4):
    """(rows, layers): input [T, H] as the first product's rows are gathered, and both of the experts' products."""
    types = {dtype_name(x) for x in w}
    if len(types) != 1 and not types <= set(PLAIN):
        raise InvalidDTypeError(f"flashinfer: cutlass_fused_moe: fc1_expert_weights are {dtype_name(w[0])}, fc2_expert_weights {dtype_name(w[1])}: quantized ones are of one type")
    name, plain = types.pop(), dtype_name(input) in PLAIN
    quantized = name not in PLAIN
    if quantized and any(len(x.shape) != 3 for x in w) or w[0].shape[0] != w[1].shape[0]:
        raise InvalidShapeError(f"flashinfer: cutlass_fused_moe: fc1 {list(w[0].shape)}, fc2 {list(w[1].shape)}: wanted weights of as many experts, three axes")
    if quantized and 0 in (*w[0].shape, *w[1].shape):
        raise InvalidShapeError(f"flashinfer: cutlass_fused_moe: fc1 {list(w[0].shape)}, fc2 {list(w[1].shape)}: quantized weights are not empty")
    if input_sf is not None and (name not in ("int64", "uint8") or plain):
        raise UnsupportedError("flashinfer: cutlass_fused_moe: input_sf belongs to an input of NVFP4 codes")
    if name == "float8_e4m3fn":
        if block_scale != plain or not plain and dtype_name(input) != name:
            raise InvalidDTypeError(f"flashinfer: cutlass_fused_moe: input is {dtype_name(input)}: with e4m3 experts it is e4m3, or 16-bit or float32 with use_deepseek_fp8_block_scale")
        return (input, block_e4m3(w, quant_scales)) if plain else (cast(input, dtype_like("float16", input)), tensor_e4m3(w, quant_scales))
    if name == "uint8" and packed:
        if not plain:
            raise InvalidDTypeError(f"flashinfer: cutlass_fused_moe: input is {dtype_name(input)}: with int4 experts it is 16-bit or float32")
        return input, grouped_int4(w, quant_scales)
    if name in ("int64", "uint8") and not w4 and (plain or input_sf is not None):
        like = empty((0,), input, input.dtype if plain and dtype_name(input) != "float32" else dtype_like("bfloat16", input))
        layers = nvfp4(w, quant_scales, like, not plain)
        return input if plain else nvfp4_rows(input, input_sf, swizzled_input_sf, like), layers
    if quantized:
        raise InvalidDTypeError(f"flashinfer: cutlass_fused_moe: fc1_expert_weights are {name} with an input of {dtype_name(input)}{' and use_w4_group_scaling' if w4 else ''}: served are float32, bfloat16 and "
                                "float16, e4m3, int4 (uint8, use_packed_weights) and NVFP4 (int64 or uint8; codes of input want input_sf)")
    if not plain:
        raise InvalidDTypeError(f"flashinfer: cutlass_fused_moe: input is {dtype_name(input)}: float32, bfloat16 and float16 are served")
    for what, given in (("quant_scales", quant_scales is not None and len(quant_scales)), ("use_packed_weights", packed), ("use_w4_group_scaling", w4), ("use_deepseek_fp8_block_scale", block_scale)):
        if given:
            raise UnsupportedError(f"flashinfer: cutlass_fused_moe: {what}: experts of {name} are not quantized")
    return dense(input), [Layer(x, tuple(x.shape)) for x in w]


def cutlass_fused_moe(input, token_selected_experts, token_final_scales, fc1_expert_weights, fc2_expert_weights, output_dtype, quant_scales=None, fc1_expert_biases=None,
                      fc2_expert_biases=None, input_sf=None, swiglu_alpha=None, swiglu_beta=None, swiglu_limit=None, tp_size=1, tp_rank=0, ep_size=1, ep_rank=0, cluster_size=1,
                      cluster_rank=0, output=None, enable_alltoall=False, use_deepseek_fp8_block_scale=False, use_w4_group_scaling=False, use_mxfp8_act_scaling=False,
                      min_latency_mode=False, use_packed_weights=False, use_wfp4afp8_humming=False, tune_max_num_tokens=8192, enable_pdl=None, activation_type=ActivationType.Swiglu,
                      swizzled_input_sf=True, use_fused_finalize=True, profile_ids=None, workspace_buffer=None, *, situ_beta=None, situ_linear_beta=None, **others):
    """[out], out [T, N]: of input [T, H] the experts token_selected_experts [T, K], weighted by token_final_scales [T, K] and summed in float32.
    fc1_expert_weights [E, 2 M, H] have each expert's M rows of up, then its M rows of the gate ([E, M, H] where activation_type is
    not gated); fc2_expert_weights [E, N, M]. Of ep_size ranks, E experts each, those of ep_rank add to the result; a choice of no rank adds
    nothing. Biases [E, 2 M] ([E, M]) and [E, N] are float32, bfloat16 or float16, added in float32 before the product is rounded; fc2's on tp_rank 0
    alone. Experts are float32, bfloat16 or float16, as input is, with products rounded to input's type; or quantized, with quant_scales and all
    in float32 but what enters a product:

    - e4m3, and input too: [fc1's scale [E] or [E, 2 M], reciprocal scale of the second product's rows (one or [E]), fc2's scale [E] or [E, N],
      the input's scale, which fc1's holds already]. The second product's rows are rounded to e4m3.
    - e4m3 with use_deepseek_fp8_block_scale: [[E, 2 M / 128, H / 128], [E, N / 128, M / 128]], rounded up. Rows are not quantized.
    - int4, two a byte, with use_packed_weights: of fc1 and fc2 each the scales of groups of columns, factors of the rows' columns with which they
      are rounded to e4m3 (empty: rows stay as they are), zeros (empty), alphas [E] (empty: 1), in pairs. Weights and scales of
      interleave_moe_*_for_sm90_mixed_gemm(), or weights as they are with scales [E, N, K / group].
    - NVFP4: of fc1 and fc2 each the factor of the rows, with which they are rounded to NVFP4, the block scales, padded and swizzled, and the factor [E] of
      the sums. With input_sf input holds codes, made with fc1's factor."""
    where_ = "cutlass_fused_moe"
    asked = {"enable_alltoall": enable_alltoall or None, "use_mxfp8_act_scaling": use_mxfp8_act_scaling or None, "min_latency_mode": min_latency_mode or None,
             "use_wfp4afp8_humming": use_wfp4afp8_humming or None}
    for name, value in (asked | others).items():
        if value is not None and value is not False:
            raise UnsupportedError(f"flashinfer: {where_}: {name} is not served: docs/flashinfer.md has the forms of experts that are")
    x, w1, w2 = check(input, "input"), check(fc1_expert_weights, "fc1_expert_weights"), check(fc2_expert_weights, "fc2_expert_weights")
    experts, scales = check(token_selected_experts, "token_selected_experts"), check(token_final_scales, "token_final_scales")
    if dtype_name(output_dtype) not in PLAIN:
        raise InvalidDTypeError(f"flashinfer: {where_}: output_dtype {dtype_name(output_dtype)}: float32, bfloat16 and float16 are served")
    if x.ndim != 2:
        raise InvalidShapeError(f"flashinfer: {where_}: input {list(x.shape)}: wanted [T, H]")
    kind, given = _activation(activation_type, {"swiglu_alpha": swiglu_alpha, "swiglu_beta": swiglu_beta, "swiglu_limit": swiglu_limit, "situ_beta": situ_beta,
                                                "situ_linear_beta": situ_linear_beta}, w2.shape[0])
    gated = kind in _LIMITED or _ACTS[kind][1]
    x, (one, two) = _form(x, (w1, w2), quant_scales, input_sf, swizzled_input_sf, use_deepseek_fp8_block_scale, use_packed_weights, use_w4_group_scaling)
    T, K = experts.shape if experts.ndim == 2 else (-1, -1)
    if len(one.shape) != 3 or len(two.shape) != 3 or T != x.shape[0] or K < 1 or tuple(scales.shape) != (T, K) or one.shape[2] != x.shape[1] or one.shape[0] != two.shape[0] \
            or one.shape[1] != two.shape[2] * (2 if gated else 1):
        raise InvalidShapeError(f"flashinfer: {where_}: input {list(x.shape)}, experts {list(experts.shape)}, scales {list(scales.shape)}, fc1 {list(one.shape)}, fc2 {list(two.shape)}: "
                                f"wanted [T, H], [T, K] twice, [E, {'2 M' if gated else 'M'}, H], [E, N, M]")
    if not (0 <= ep_rank < ep_size):
        raise InvalidArgumentError(f"flashinfer: {where_}: ep_rank {ep_rank} of {ep_size}")
    E, N, M = two.shape
    out = empty((T, N), x, output_dtype) if output is None else output
    if tuple(out.shape) != (T, N):
        raise InvalidShapeError(f"flashinfer: {where_}: output is {list(out.shape)}, wanted {[T, N]}")
    if 0 in out.shape:
        return [out]
    biases = [_bias(where_, name, b, (E, n), x) for name, b, n in (("fc1_expert_biases", fc1_expert_biases, one.shape[1]), ("fc2_expert_biases", fc2_expert_biases, N))]
    token, place, offsets, absent, expert = _grouped(experts, ep_rank * E, E)
    rows = offsets[E:]  # those of an expert that is here
    kept = x.dtype if one.read is None else f32(x)
    gathered, (both, hidden, parts) = empty((T * K, x.shape[1]), x), (empty((T * K, n), x, kept) for n in (one.shape[1], M, N))
    for blank in (parts,) if one.read is None and kind in _ACTS else (gathered, both, hidden, parts):
        blank[...] = 0  # rows that no group writes meet a weight of 0, which must not be NaN times 0
    ops.embedding(dense(x), token, out=gathered, rows=rows)
    both = one.product(gathered, offsets, expert, both, biases[0])
    _activated(both, kind, given, expert, E, rows, hidden)
    parts = two.product(hidden, offsets, expert, parts, biases[1] if tp_rank == 0 else None)
    weights = cast(scales, f32(x))
    ops.moe_combine(parts, place, dense(where(absent, 0.0, weights)), out=out)
    return [out]


def _bias(call, name, bias, shape, like):
    """A bias of every expert in float32; None stays None."""
    if bias is None:
        return None
    if dtype_name(check(bias, name)) not in PLAIN:
        raise InvalidDTypeError(f"flashinfer: {call}: {name} is {dtype_name(bias)}: float32, bfloat16 and float16 are served")
    if tuple(bias.shape) != shape:
        raise InvalidShapeError(f"flashinfer: {call}: {name} is {list(bias.shape)}, wanted {list(shape)}")
    return cast(bias, f32(like))


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
