"""FlashInfer's names of rotary embeddings over ops.rope; those with a table of cosines and sines by the array library."""
import functools
import math

from vivace import ops
from vivace.compat.arrays import arange, as_i32, cast, check, dense, empty, f32, is_torch, repeat, rows_dense
from vivace.errors import InvalidArgumentError, InvalidShapeError


@functools.lru_cache(maxsize=64)
def _host_freqs(dim, theta, scale, llama31):
    """Radians a position of each pair, in f64."""
    freqs = [theta ** (-2 * i / dim) for i in range(dim // 2)]
    if llama31 is None:
        return [f / scale for f in freqs]
    low, high, old = llama31
    out = []
    for f in freqs:  # Llama 3.1: long waves are stretched, short ones stay, and between them both are mixed
        smooth = min(max((old * f / (2 * math.pi) - low) / (high - low), 0.0), 1.0)
        out.append((1 - smooth) * f / scale + smooth * f)
    return out


@functools.lru_cache(maxsize=64)
def _torch_freqs(device, dim, theta, scale, llama31):
    import torch

    return torch.tensor(_host_freqs(dim, theta, scale, llama31), dtype=torch.float32, device=device)


def _freqs(like, *settings):
    """In f32 beside `like`; of torch made once a device, so that a captured call copies nothing."""
    if is_torch(like):
        return _torch_freqs(like.device, *settings)
    import numpy as np

    return np.float32(_host_freqs(*settings))


def _positions(q, indptr, offsets):
    """[nnz] i32: a token's offset plus its place in its request. Nothing waits for the GPU."""
    nnz, begins = q.shape[0], as_i32(indptr)
    if begins.shape[0] != offsets.shape[0] + 1:
        raise InvalidShapeError(f"flashinfer: indptr has {begins.shape[0]} entries for {offsets.shape[0]} offsets: wanted one more")
    shift, lengths = as_i32(offsets) - begins[:-1], begins[1:] - begins[:-1]
    spread = shift.repeat_interleave(lengths, output_size=nnz) if is_torch(shift) else repeat(shift, lengths, 0)
    return as_i32(spread + arange(0, nnz, q))


def _turn(q, k, pos, out, rotary_dim, interleave, rope_scale, rope_theta, llama31=None):
    """Rotates q and k [nnz, heads, D] into `out`, two arrays, which may be theirs."""
    for name, x in (("q", q), ("k", k)):
        if len(check(x, name).shape) != 3:
            raise InvalidShapeError(f"flashinfer: {name} is {list(x.shape)}: wanted [nnz, heads, head_dim]")
    dim = q.shape[-1] if rotary_dim is None else int(rotary_dim)
    if dim < 2 or dim % 2 or dim > q.shape[-1] or dim > k.shape[-1]:
        raise InvalidArgumentError(f"flashinfer: rotary_dim {dim}: wanted an even number up to the heads' size, {q.shape[-1]} and {k.shape[-1]}")
    freqs = _freqs(q, dim, float(rope_theta), float(rope_scale), llama31)
    for x, to in zip((q, k), out):
        if x.shape[0] == 0 or x.shape[1] == 0:
            continue
        direct = to if rows_dense(to) else empty(tuple(x.shape), x)
        ops.rope(dense(x), freqs, as_i32(pos), out=direct, style="interleaved" if interleave else "half")
        if direct is not to:
            to[...] = direct
    return out


def _new(q, k):
    return empty(tuple(q.shape), q), empty(tuple(k.shape), k)


def apply_rope(q, k, indptr, offsets, rotary_dim=None, interleave=False, rope_scale=1, rope_theta=1e4):
    """q [nnz, Hq, D] and k [nnz, Hkv, D] of requests that begin at indptr, their positions at offsets: (q, k) rotated."""
    return _turn(q, k, _positions(q, indptr, offsets), _new(q, k), rotary_dim, interleave, rope_scale, rope_theta)


def apply_rope_inplace(q, k, indptr, offsets, rotary_dim=None, interleave=False, rope_scale=1, rope_theta=1e4):
    """apply_rope() in place."""
    _turn(q, k, _positions(q, indptr, offsets), (q, k), rotary_dim, interleave, rope_scale, rope_theta)


def apply_rope_pos_ids(q, k, pos_ids, rotary_dim=None, interleave=False, rope_scale=1, rope_theta=1e4):
    """The same with a position a token, pos_ids [nnz]."""
    return _turn(q, k, pos_ids, _new(q, k), rotary_dim, interleave, rope_scale, rope_theta)


def apply_rope_pos_ids_inplace(q, k, pos_ids, rotary_dim=None, interleave=False, rope_scale=1, rope_theta=1e4):
    """apply_rope_pos_ids() in place."""
    _turn(q, k, pos_ids, (q, k), rotary_dim, interleave, rope_scale, rope_theta)


def apply_llama31_rope(q, k, indptr, offsets, rotary_dim=None, interleave=False, rope_scale=8, rope_theta=5e5, low_freq_factor=1, high_freq_factor=4, old_context_len=8192):
    """apply_rope() with Llama 3.1's frequencies."""
    return _turn(q, k, _positions(q, indptr, offsets), _new(q, k), rotary_dim, interleave, rope_scale, rope_theta, (low_freq_factor, high_freq_factor, old_context_len))


def apply_llama31_rope_inplace(q, k, indptr, offsets, rotary_dim=None, interleave=False, rope_scale=8, rope_theta=5e5, low_freq_factor=1, high_freq_factor=4, old_context_len=8192):
    """apply_llama31_rope() in place."""
    _turn(q, k, _positions(q, indptr, offsets), (q, k), rotary_dim, interleave, rope_scale, rope_theta, (low_freq_factor, high_freq_factor, old_context_len))


def apply_llama31_rope_pos_ids(q, k, pos_ids, rotary_dim=None, interleave=False, rope_scale=8, rope_theta=5e5, low_freq_factor=1, high_freq_factor=4, old_context_len=8192):
    """apply_rope_pos_ids() with Llama 3.1's frequencies."""
    return _turn(q, k, pos_ids, _new(q, k), rotary_dim, interleave, rope_scale, rope_theta, (low_freq_factor, high_freq_factor, old_context_len))


def apply_llama31_rope_pos_ids_inplace(q, k, pos_ids, rotary_dim=None, interleave=False, rope_scale=8, rope_theta=5e5, low_freq_factor=1, high_freq_factor=4, old_context_len=8192):
    """apply_llama31_rope_pos_ids() in place."""
    _turn(q, k, pos_ids, (q, k), rotary_dim, interleave, rope_scale, rope_theta, (low_freq_factor, high_freq_factor, old_context_len))


def _by_table(x, positions, table, head_size, is_neox, out):
    """x [nnz, heads * head_size] by a table [positions, 2R] of cosines, then sines, in f32."""
    nnz, width = check(x, "query and key").shape
    if width % head_size or table.shape[-1] % 2 or table.shape[-1] > head_size:
        raise InvalidShapeError(f"flashinfer: rows of {width}, heads of {head_size}, a cos_sin_cache of {table.shape[-1]}: wanted whole heads, and an even number of at most their size")
    half = table.shape[-1] // 2
    row = cast(table[positions], f32(x))
    cos, sin = row[:, None, :half], row[:, None, half:]
    heads, to = x.reshape(nnz, width // head_size, head_size), empty((nnz, width // head_size, head_size), x)
    to[...] = heads
    pair = (slice(0, half), slice(half, 2 * half)) if is_neox else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    a, b = (cast(heads[..., p], f32(x)) for p in pair)
    to[..., pair[0]] = cast(a * cos - b * sin, x.dtype)
    to[..., pair[1]] = cast(b * cos + a * sin, x.dtype)
    out[...] = to.reshape(nnz, width)
    return out


def apply_rope_with_cos_sin_cache(positions, query, key, head_size, cos_sin_cache, is_neox=True):
    """query and key [nnz, heads * head_size] rotated by rows of cos_sin_cache [positions, rotary_dim], in new arrays. By the
    array library, several launches: where the table is the plain one, apply_rope_pos_ids() is one."""
    return tuple(_by_table(x, positions, cos_sin_cache, head_size, is_neox, empty(tuple(x.shape), x)) for x in (query, key))


def apply_rope_with_cos_sin_cache_inplace(positions, query, key, head_size, cos_sin_cache, is_neox=True):
    """apply_rope_with_cos_sin_cache() in place."""
    for x in (query, key):
        _by_table(x, positions, cos_sin_cache, head_size, is_neox, x)
