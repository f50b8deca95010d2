"""Attention of one request."""
from vivace.compat.arrays import arange, beside, cast, check
from vivace.compat.flashinfer.call import Positions, attend, bits_of, is_hnd, masks_of, widened
from vivace.compat.flashinfer.fp4 import unpacked
from vivace.errors import UnsupportedError


def _rotated_keys(positions, k, hnd):
    """k [L, Hkv, D] (hnd: [Hkv, L, D]) turned by its places."""
    if positions.inv_freq is None:
        return k
    at = arange(0, k.shape[1 if hnd else 0], k)
    return positions.rotated(k.swapaxes(0, 1), at).swapaxes(0, 1) if hnd else positions.rotated(k, at)


def single_decode_with_kv_cache(q, k, v, kv_layout="NHD", pos_encoding_mode="NONE", use_tensor_cores=False, q_scale=None, k_scale=None, v_scale=None, window_left=-1,
                                logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None, return_lse=False):
    """q [Hq, D] against k, v [L, Hkv, D] (HND: [Hkv, L, D]) -> [Hq, D], with return_lse also [Hq]."""
    got = single_prefill_with_kv_cache(check(q, "q")[None], k, v, kv_layout=kv_layout, pos_encoding_mode=pos_encoding_mode, scale_q=q_scale, scale_k=k_scale, scale_v=v_scale,
                                       window_left=window_left, logits_soft_cap=logits_soft_cap, sm_scale=sm_scale, rope_scale=rope_scale, rope_theta=rope_theta, return_lse=return_lse)
    return (got[0][0], got[1][0]) if return_lse else got[0]


def single_prefill_with_kv_cache(q, k, v, scale_q=None, scale_k=None, scale_v=None, o_dtype=None, custom_mask=None, packed_custom_mask=None, causal=False, kv_layout="NHD",
                                 pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None, rope_scale=None, rope_theta=None,
                                 backend="auto", return_lse=False, kv_cache_sf=None, k_scale=None, v_scale=None):
    """q [T, Hq, D] against k, v [L, Hkv, D] (HND: [Hkv, L, D]); query t is at L - T + t. A custom mask replaces causal.
    With kv_cache_sf, a pair of block scales, k and v are NVFP4 codes and k_scale, v_scale their tensor scales."""
    hnd = is_hnd(kv_layout)
    T, L = check(q, "q").shape[0], check(k, "k").shape[1 if hnd else 0]
    if kv_cache_sf is not None:
        k, v = (unpacked(x, sf, q) for x, sf in zip((k, v), kv_cache_sf))
    elif k_scale is not None or v_scale is not None:
        raise UnsupportedError("flashinfer: single_prefill: k_scale and v_scale belong to NVFP4 keys, with kv_cache_sf; those of other types are scale_k and scale_v")
    masks = masks_of(custom_mask, packed_custom_mask, [T], [L])
    positions, pos = Positions(pos_encoding_mode, q.shape[1], q.shape[-1], q, rope_scale, rope_theta), arange(L - T, L, q)
    if positions.inv_freq is not None:
        q = widened(q, o_dtype)
        q, k, v = positions.rotated(q, pos), _rotated_keys(positions, cast(k, q.dtype), hnd), cast(v, q.dtype)
    return attend(q, k[None], v[None], hnd, return_lse=return_lse, causal=causal and masks is None, window_left=window_left, logits_soft_cap=logits_soft_cap, out_dtype=o_dtype,
                  q_scale=scale_q, k_scale=scale_k if k_scale is None else k_scale, v_scale=scale_v if v_scale is None else v_scale, sm_scale=sm_scale, slopes=positions.slopes,
                  pos=pos, bits=None if masks is None else beside(bits_of(masks, L), q))


def with_lse(f):
    def g(*args, **kwargs):
        return f(*args, **kwargs, return_lse=True)

    g.__doc__ = f.__doc__
    return g


single_prefill_with_kv_cache_return_lse = with_lse(single_prefill_with_kv_cache)
