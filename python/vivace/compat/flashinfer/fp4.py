"""NVFP4 keys and values: codes of e2m1, two a byte, the even dim in the low nibble, and an e4m3 scale for each 16 dims."""
import math

import numpy as np

from vivace import ops
from vivace.compat.arrays import arange, as_i32, beside, check, dtype_like, dtype_name, empty, is_torch, on_host, seen_as, strides, where
from vivace.compat.flashinfer.call import is_hnd
from vivace.compat.flashinfer.page import gathered, pages_of, scatter, target
from vivace.errors import InvalidArgumentError, InvalidDTypeError, InvalidShapeError

BLOCK = 16


def inner_dense(name, x):
    if x.shape[-1] != 1 and strides(x)[-1] != 1:
        raise InvalidArgumentError(f"flashinfer: {name}: its innermost stride must be 1, got {strides(x)[-1]}")


def unpacked(codes, scales, like, scale=None):
    """codes [..., D / 2] with scales [..., D / 16] -> values [..., D] in the type of `like`, times the tensor scale [1] where it is given."""
    check(codes, "codes"), check(scales, "kv_cache_sf")
    if dtype_name(codes) != "uint8" or dtype_name(scales) not in ("uint8", "float8_e4m3fn"):
        raise InvalidDTypeError(f"flashinfer: with kv_cache_sf keys and values are uint8 codes and scales uint8 or float8_e4m3fn, got {dtype_name(codes)} and {dtype_name(scales)}")
    inner_dense("codes", codes), inner_dense("kv_cache_sf", scales)
    D = 2 * codes.shape[-1]
    if D % BLOCK or tuple(scales.shape) != (*codes.shape[:-1], D // BLOCK):
        raise InvalidShapeError(f"flashinfer: kv_cache_sf: codes {tuple(codes.shape)} want scales {(*codes.shape[:-1], D // BLOCK)}, got {tuple(scales.shape)}")
    flat = codes.reshape(-1, D // 2)
    out = empty((flat.shape[0], D), like)
    if flat.shape[0]:
        ops.dequantize_block_scaled(flat, scales=seen_as(scales.reshape(-1), "float8_e4m3fn"), tensor_scale=arange(1, 2, like, "float32") if scale is None else scale, out=out)
    return out.reshape(*codes.shape[:-1], D)


def _packed(x, scale):
    """x [T, H, D] -> codes [T, H, D / 2], scales [T, H, D / 16] as bytes."""
    T, H, D = x.shape
    byte = dtype_like("uint8", x)
    codes, scales = empty((T * H, D // 2), x, byte), empty((T * H * D // BLOCK,), x, byte)
    if T * H:
        ops.quantize_block_scaled(x.reshape(T * H, D), tensor_scale=scale, out=codes, scales=seen_as(scales, "float8_e4m3fn"))
    return codes.reshape(T, H, D // 2), scales.reshape(T, H, D // BLOCK)


def _capturing(like):
    if not is_torch(like):
        return False
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _scale(name, value, like, capturing):
    """[1] f32 beside `like`. A value on a GPU is read, which waits for it, but while a graph is captured."""
    if not hasattr(value, "shape"):
        if capturing:
            raise InvalidArgumentError(f"flashinfer: {name}: CUDA graph capture wants a float32 tensor of one element on the GPU, got {type(value).__name__}")
        value = np.array([value], np.float32)
    if math.prod(value.shape) != 1 or dtype_name(value) != "float32":
        raise InvalidArgumentError(f"flashinfer: {name}: wanted one float32, got {dtype_name(value)} {tuple(value.shape)}")
    if capturing:
        if not is_torch(value) or value.device != like.device:
            raise InvalidArgumentError(f"flashinfer: {name}: CUDA graph capture wants a float32 tensor of one element on {like.device}")
        return value.reshape(1)
    host = on_host(value).reshape(1).copy()
    if not (np.isfinite(host[0]) and host[0] > 0):
        raise InvalidArgumentError(f"flashinfer: {name}: wanted a positive finite global decode scale, got {host[0]}")
    return value.reshape(1) if is_torch(value) and is_torch(like) and value.device == like.device else beside(host, like)


def _append(key, value, page, place, kv_cache, kv_cache_sf, k_scale, v_scale, hnd):
    caches, scales = pages_of(kv_cache, hnd), pages_of(kv_cache_sf, hnd, "kv_cache_sf")
    for x in caches:
        if dtype_name(x) != "uint8":
            raise InvalidDTypeError(f"flashinfer: an NVFP4 cache holds uint8 codes, got {dtype_name(x)}")
    for x in scales:
        if dtype_name(x) != "float8_e4m3fn":
            raise InvalidDTypeError(f"flashinfer: the scales of an NVFP4 cache are float8_e4m3fn, got {dtype_name(x)}")
    if dtype_name(key) not in ("float16", "bfloat16") or key.dtype != value.dtype:
        raise InvalidDTypeError(f"flashinfer: keys and values to quantize are both float16 or both bfloat16, got {dtype_name(key)} and {dtype_name(value)}")
    capturing = _capturing(key)
    for rows, cache, sf, scale in zip((key, value), caches, scales, (_scale("k_scale", k_scale, key, capturing), _scale("v_scale", v_scale, key, capturing))):
        D = rows.shape[-1]
        if D % BLOCK or cache.shape[-1] != D // 2 or sf.shape[-1] != D // BLOCK:
            raise InvalidShapeError(f"flashinfer: heads of {D} need {D // 2} bytes of FP4 values and {D // BLOCK} scales, in whole blocks of {BLOCK}; the caches have {cache.shape[-1]} and {sf.shape[-1]}")
        codes, factors = _packed(rows, scale)
        scatter(cache, hnd, page, place, codes)
        scatter(seen_as(sf, "uint8"), hnd, page, place, factors)


def nvfp4_quantize_append_paged_kv_cache(append_key, append_value, batch_indices, positions, paged_kv_cache, kv_cache_sf, kv_indices, kv_indptr, kv_last_page_len, k_scale, v_scale, kv_layout="NHD"):
    """append_paged_kv_cache to a cache of NVFP4: value ~ code * block scale * k_scale (or v_scale), a number."""
    hnd = is_hnd(kv_layout)
    size = pages_of(paged_kv_cache, hnd)[0].shape[2 if hnd else 1]
    page, place = target(batch_indices, positions, kv_indices, kv_indptr, size)
    _append(check(append_key, "append_key"), append_value, page, place, paged_kv_cache, kv_cache_sf, k_scale, v_scale, hnd)


def nvfp4_quantize_append_paged_kv_cache_with_slot_mapping(append_key, append_value, slot_mapping, paged_kv_cache, kv_cache_sf, k_scale, v_scale, kv_layout="NHD"):
    """Row i goes to place slot_mapping[i], a page times the page's size and the place in it; what is not in the cache is not written."""
    hnd, n = is_hnd(kv_layout), slot_mapping.shape[0]
    if dtype_name(slot_mapping) not in ("int32", "int64"):
        raise InvalidDTypeError(f"flashinfer: slot_mapping is int32 or int64, got {dtype_name(slot_mapping)}")
    if append_key.shape[0] < n or append_value.shape[0] < n:
        raise InvalidShapeError(f"flashinfer: {n} slots for {append_key.shape[0]} keys and {append_value.shape[0]} values")
    cache = pages_of(paged_kv_cache, hnd)[0]
    size = cache.shape[2 if hnd else 1]
    valid = (slot_mapping >= 0) & (slot_mapping < cache.shape[0] * size)
    slot = slot_mapping * valid
    page, place = as_i32(slot // size * valid - 1 * ~valid), as_i32(slot % size)
    _append(check(append_key, "append_key")[:n], append_value[:n], page, place, paged_kv_cache, kv_cache_sf, k_scale, v_scale, hnd)


def _tensor_scale(name, scale):
    if dtype_name(check(scale, name)) != "float32" or math.prod(scale.shape) != 1:
        raise InvalidArgumentError(f"flashinfer: {name}: k_scale and v_scale must be scalar tensors, as any tensor scale, of float32; got {dtype_name(scale)} {tuple(scale.shape)}")
    return scale.reshape(1)


def nvfp4_kv_quantize(input, global_scale):
    """x [M, K] -> codes [M, K / 2] and e4m3 scales [M, K / 16] as bytes: x ~ code * block scale * global_scale, [1]."""
    M, K = check(input, "input").shape
    if K % BLOCK:
        raise InvalidShapeError(f"flashinfer: nvfp4_kv_quantize: K {K} is not a multiple of {BLOCK}")
    codes, scales = _packed(input[:, None], _tensor_scale("global_scale", global_scale))
    return codes[:, 0], scales[:, 0]


def nvfp4_kv_dequantize(fp4_data, block_scales, global_scale, output_dtype=None):
    """codes [M, K / 2] with scales [M, K / 16] -> [M, K] in output_dtype, bfloat16 if it is not given."""
    like = empty((0,), check(fp4_data, "fp4_data"), dtype_like("bfloat16", fp4_data) if output_dtype is None else output_dtype)
    return unpacked(fp4_data, block_scales, like, _tensor_scale("global_scale", global_scale))


def nvfp4_kv_dequantize_paged(paged_kv_cache, kv_cache_sf, block_tables, seq_lens, k_scale, v_scale, output_k, output_v, kv_layout="NHD"):
    """output_k, output_v [B, most, Hkv, D] = the keys and values of each request by its row of block_tables; places from seq_lens on stay."""
    hnd = is_hnd(kv_layout)
    for cache, sf, scale, out in zip(pages_of(paged_kv_cache, hnd), pages_of(kv_cache_sf, hnd, "kv_cache_sf"), (k_scale, v_scale), (output_k, output_v)):
        size, (B, most) = cache.shape[2 if hnd else 1], check(out, "output").shape[:2]
        scale = _tensor_scale("k_scale, v_scale", scale)
        if block_tables.shape[0] != B or seq_lens.shape[0] != B or block_tables.shape[1] * size < most:
            raise InvalidShapeError(f"flashinfer: block_tables column count insufficient: {tuple(block_tables.shape)} of pages of {size}, with {seq_lens.shape[0]} lengths, for outputs of {B} x {most} places")
        at = arange(0, most, out, "int64")
        seen = at[None] < seq_lens[:, None]
        page, place = (block_tables[:, at // size].clip(0, cache.shape[0] - 1) * seen).reshape(-1), ((at % size)[None] * (block_tables[:, :1] * 0 + 1)).reshape(-1)
        if math.prod(out.shape):
            values = unpacked(gathered(cache, hnd, page, place), gathered(sf, hnd, page, place), out, scale)
            out[...] = where(seen[..., None, None], values.reshape(out.shape), out)
