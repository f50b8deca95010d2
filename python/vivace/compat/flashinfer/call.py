"""What every attention call shares: layouts, positions, scales, masks, and the call of ops.attention."""
import math

import numpy as np

from vivace import ops
from vivace.compat.arrays import arange, beside, cast, check, dense, dtype_like, dtype_name, empty, f32, on_host, repeat, where
from vivace.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError

LOG2E = math.log2(math.e)
# Of other libraries' settings, those that choose how and not what is computed.
IGNORED = {"q_data_type", "kv_data_type", "data_type", "non_blocking", "use_fp16_qk_reduction", "seq_lens", "seq_lens_q", "block_tables",
           "max_token_per_sequence", "max_sequence_kv", "v_indptr", "o_indptr", "enable_pdl", "use_profiler", "profiler_buffer"}


def only_ignored(where, settings):
    """An unknown setting that has a value is an error: what it asks for would be left out in silence."""
    for name, value in settings.items():
        if name not in IGNORED and value is not None and value is not False and not (isinstance(value, int) and value == 0):
            raise UnsupportedError(f"flashinfer: {where}: {name} is not served")


def is_hnd(kv_layout):
    if kv_layout not in ("NHD", "HND"):
        raise InvalidArgumentError(f"flashinfer: kv_layout is NHD or HND, got {kv_layout!r}")
    return kv_layout == "HND"


class Positions:
    """pos_encoding_mode: nothing, ALiBi's slopes, or rotation of queries and keys (ROPE_LLAMA, halves)."""

    def __init__(self, mode, heads, head_dim, like, rope_scale=None, rope_theta=None):
        if mode not in ("NONE", "ALIBI", "ROPE_LLAMA"):
            raise InvalidArgumentError(f"flashinfer: pos_encoding_mode is NONE, ROPE_LLAMA or ALIBI, got {mode!r}")
        self.slopes = self.inv_freq = None
        if mode == "ALIBI":
            i, whole = arange(0, heads, like, "float64"), 1 << (heads.bit_length() - 1)
            self.slopes = cast(2.0 ** where(i < whole, -8 * (i + 1) / whole, -4 * (2 * (i - whole) + 1) / whole), f32(like))
        elif mode == "ROPE_LLAMA":
            if head_dim % 2:
                raise InvalidShapeError(f"flashinfer: ROPE_LLAMA rotates pairs of a head's {head_dim} dims: an even number is wanted")
            self.inv_freq = cast((rope_theta or 1e4) ** (arange(0, head_dim // 2, like, "float64") * (-2 / head_dim)) / (rope_scale or 1.0), f32(like))

    def rotated(self, x, pos):
        """x [T, heads, D] turned by its positions, in a new array; x itself where nothing rotates."""
        if self.inv_freq is None or x.shape[0] == 0:
            return x
        out = empty(tuple(x.shape), x)
        ops.rope(dense(x), self.inv_freq, pos, out=out)
        return out


def scale_of(sm_scale, D, *factors):
    scale = sm_scale if sm_scale else 1 / math.sqrt(D)
    for f in factors:
        scale *= 1.0 if f is None else float(f)
    return scale


def readable(x, like):
    """Keys or values in a form that ops.attention reads beside queries of `like`'s type: that type or e4m3."""
    return x if x.dtype == like.dtype or dtype_name(x) == "float8_e4m3fn" else cast(x, like.dtype)


def widened(q, out_dtype=None):
    """Float8 queries in 16 bits, which hold each of their values."""
    if not dtype_name(q).startswith("float8"):
        return q
    name = dtype_name(out_dtype) if out_dtype is not None else "float16"
    return cast(q, dtype_like(name if name in ("float16", "bfloat16") else "float16", q))


def by_head(scale, heads):
    """A scale of each kv head (or of the tensor) for each query head: [heads] in f32."""
    scale = cast(scale.reshape(-1), f32(scale))
    if heads % scale.shape[0]:
        raise InvalidShapeError(f"flashinfer: a scale has {scale.shape[0]} entries for {heads} query heads")
    return repeat(scale, heads // scale.shape[0], 0)


def split_scales(*scales):
    """(product of the numbers, those of them that are arrays)."""
    number, arrays = 1.0, []
    for s in scales:
        if s is None:
            continue
        if hasattr(s, "shape"):
            arrays.append(s)
        else:
            number *= float(s)
    return number, arrays


def attend(q, k, v, hnd, *, out=None, lse=None, return_lse=False, causal=False, sm_scale=None, window_left=-1, logits_soft_cap=None, slopes=None, sinks=None, q_scale=None, k_scale=None,
           v_scale=None, out_dtype=None, **ports):
    """q [T, Hq, D]; k, v [B, L, Hkv, D] or, hnd, [B, Hkv, L, D]; ports as those of ops.attention. A scale is a number or an
    array of one a head, which is read on the device."""
    T, Hq, D = check(q, "q").shape
    q = dense(widened(q, out_dtype))
    if out_dtype is not None and dtype_name(out_dtype) != dtype_name(q):
        raise UnsupportedError(f"flashinfer: an output of {dtype_name(out_dtype)}: it has the queries' type, {dtype_name(q)}")
    k, v = (dense(readable(x, q)) for x in (k, v))
    number, of_heads = split_scales(q_scale, k_scale)
    head_scale = None
    for s in of_heads:
        head_scale = by_head(s, Hq) if head_scale is None else head_scale * by_head(s, Hq)
    result = empty((T, Hq, v.shape[-1]), q) if out is None else out
    lse = empty((T, Hq), q, f32(q)) if return_lse and lse is None else lse
    settings = {"mask": "causal" if causal else "full", "window": window_left + 1 if window_left >= 0 else 0, "scale": scale_of(sm_scale, D, number), "softcap": logits_soft_cap or 0.0}
    ports = {n: p for n, p in (ports | {"head_scale": head_scale, "slopes": slopes, "sinks": sinks}).items() if p is not None}
    ops.attention(q, k, v, out=result, lse=lse, layout="hnd" if hnd else "nhd", **ports, **settings)
    if v_scale is not None and hasattr(v_scale, "shape"):
        result *= by_head(v_scale, Hq)[:, None]
    elif v_scale is not None and v_scale != 1:
        result *= v_scale
    if lse is not None:
        lse *= LOG2E
    return (result, lse) if return_lse else result


# Masks

def bits_of(masks, widest):
    """Boolean masks [queries, keys] of each request -> words [T, ceil(widest / 32)]."""
    rows = []
    for m in masks:
        wide = np.zeros((m.shape[0], -(-max(widest, 1) // 32) * 32), bool)
        wide[:, : m.shape[1]] = m
        rows.append(np.packbits(wide, axis=1, bitorder="little").view("<i4"))
    return np.concatenate(rows) if rows else np.zeros((0, 1), np.int32)


def masks_of(flat, packed, queries, keys):
    """Masks by request from one flat boolean array, or from bytes whose bits are packed low first, each request from a new byte."""
    if flat is None and packed is None:
        return None
    out, at = [], 0
    source = on_host(flat).reshape(-1).astype(bool) if flat is not None else np.unpackbits(on_host(packed).view(np.uint8), bitorder="little").astype(bool)
    for n, L in zip(queries, keys):
        size = int(n) * int(L)
        if at + size > len(source):
            raise InvalidShapeError(f"flashinfer: custom_mask: {len(source)} entries are too few for queries {list(map(int, queries))} and keys {list(map(int, keys))}")
        out.append(source[at : at + size].reshape(int(n), int(L)))
        at += size if flat is not None else -(-size // 8) * 8
    return out


def item_masks(prefix_len, token_pos, stride, queries, keys):
    """Masks of several items after one prefix: each request's queries are the last of its keys; the prefix is causal, a token at position t > 0 of
    its item sees the prefix and the last t keys, itself among them, and a delimiter, position 0, the prefix alone."""
    prefix, positions, out = on_host(prefix_len).reshape(-1).astype(np.int64), on_host(token_pos).reshape(-1).astype(np.int64), []
    if len(prefix) != len(queries):
        raise InvalidShapeError(f"flashinfer: plan: prefix_len_ptr has {len(prefix)} entries for {len(queries)} requests")
    for i, (n, L, before) in enumerate(zip(map(int, queries), map(int, keys), prefix)):
        at, key = np.arange(L - n, L)[:, None], np.arange(L)
        own = positions[i * int(stride) :][: max(L - before, 0)]
        if len(own) < L - before:
            raise InvalidShapeError(f"flashinfer: plan: token_pos_in_items_ptr has {len(own)} entries of request {i}, which has {L - before} keys after its prefix")
        position = np.concatenate([np.full(min(before, L), L + 1), own, [0]])[np.maximum(at, 0)]
        out.append((key <= at) & ((key < before) | (at < key + position)))
    return out


def masks_of_plan(custom_mask, packed_custom_mask, others, queries, keys):
    """masks_of() of a plan(), or those of the items that its other settings name, which are taken from these."""
    given = {name: others.pop(name, None) for name in ("prefix_len_ptr", "token_pos_in_items_ptr", "token_pos_in_items_len", "max_item_len_ptr")}
    prefix, positions, stride, longest = given.values()
    if prefix is None and positions is None and longest is None:
        return masks_of(custom_mask, packed_custom_mask, queries, keys)
    if prefix is None or positions is None:
        raise InvalidArgumentError("flashinfer: plan: prefix_len_ptr and token_pos_in_items_ptr go together")
    if custom_mask is not None or packed_custom_mask is not None:
        raise InvalidArgumentError("flashinfer: plan: items by prefix_len_ptr have a mask of their own: no custom_mask")
    return item_masks(prefix, positions, stride or 0, queries, keys)


def packbits(x, bitorder="big"):
    """Booleans -> bytes."""
    if bitorder not in ("big", "little"):
        raise InvalidArgumentError(f"flashinfer: bitorder is big or little, got {bitorder!r}")
    return beside(np.packbits(on_host(x).reshape(-1).astype(bool), bitorder=bitorder), x)


def segment_packbits(x, indptr, bitorder="big"):
    """The same by segments, each from a new byte: (bytes, their indptr)."""
    bounds = on_host(indptr)
    parts = [np.packbits(on_host(x)[a:b].astype(bool), bitorder=bitorder) for a, b in zip(bounds[:-1], bounds[1:])]
    sizes = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    return beside(np.concatenate(parts) if parts else np.zeros(0, np.uint8), x), beside(sizes, x)
