"""Paged caches: where a token goes, appends, and rows gathered from pages."""
import numpy as np

from vivace import ops
from vivace.compat.arrays import arange, as_i32, beside, check, copy_into, dense, is_torch, on_host, rows_dense, where
from vivace.compat.flashinfer.call import is_hnd
from vivace.errors import InvalidShapeError


def pages_of(cache, hnd, name="paged_kv_cache"):
    """(k, v) of a paged cache, a pair or one array [pages, 2, ...]; without an axis of places a page has one."""
    k, v = cache if isinstance(cache, (tuple, list)) else (check(cache, name)[:, 0], cache[:, 1])
    for x in (k, v):
        if check(x, name).ndim not in (3, 4):
            raise InvalidShapeError(f"flashinfer: {name}: keys and values of pages have 3 or 4 axes, got {tuple(x.shape)}")
    return tuple(x if x.ndim == 4 else x[:, :, None] if hnd else x[:, None] for x in (k, v))


def get_seq_lens(kv_indptr, kv_last_page_len, page_size):
    """Keys of each request: its pages but the last are full."""
    pages = kv_indptr[1:] - kv_indptr[:-1]
    return ((pages - 1) * page_size + kv_last_page_len) * (pages > 0)


def get_batch_indices_positions(append_indptr, seq_lens, nnz, batch_indices=None, positions=None):
    """(request, position) of each appended token: a request's tokens are the last of its `seq_lens`. Entries beyond the tokens are -1.
    Written to batch_indices and positions, [nnz], where they are given."""
    bounds, lens = on_host(append_indptr).astype(np.int64), on_host(seq_lens).astype(np.int64)
    counts = np.diff(bounds)
    batch, pos = np.full(nnz, -1, np.int32), np.full(nnz, -1, np.int32)
    n = int(bounds[-1])
    if n > nnz:
        raise InvalidShapeError(f"flashinfer: get_batch_indices_positions: append_indptr ends at {n}, nnz is {nnz}")
    batch[:n] = np.repeat(np.arange(len(counts)), counts)
    pos[:n] = np.arange(n) - np.repeat(bounds[:-1], counts) + np.repeat(lens - counts, counts)
    for name, to, host in (("batch_indices", batch_indices, batch), ("positions", positions, pos)):
        if to is not None:
            if tuple(to.shape) != (nnz,):
                raise InvalidShapeError(f"flashinfer: get_batch_indices_positions: {name} is {tuple(to.shape)}, wanted ({nnz},)")
            copy_into(to, host)
    return beside(batch, append_indptr) if batch_indices is None else batch_indices, beside(pos, append_indptr) if positions is None else positions


def target(batch_indices, positions, kv_indices, kv_indptr, size):
    """(page, place in it) of each token, on the device; page -1 where the request or the position is negative."""
    valid = (batch_indices >= 0) & (positions >= 0)
    at = (kv_indptr[batch_indices * valid] + positions * valid // size) * valid
    last = kv_indices.shape[0] - 1
    if last < 0:
        return as_i32(-1 * ~valid - 1 * valid), as_i32(positions * 0)
    return as_i32(kv_indices[at.clip(0, last)] * valid - 1 * ~valid), as_i32(positions * valid % size)


def scatter(cache, hnd, page, place, rows):
    """cache[page, place] = rows (hnd: cache[page, :, place]) whatever the strides, without a wait; page -1 writes nothing. A row that
    writes nothing does what the first that writes does once more, and without any the cache gets what it has."""
    n = rows.shape[0]
    if n == 0:
        return
    page, place = (x.long() if is_torch(x) else x.astype(np.int64) for x in (page, place))
    valid = page >= 0
    order = arange(0, n, page, "int64")
    first = (valid * 1).argmax() if not is_torch(valid) else valid.int().argmax()
    source = where(valid, order, first)
    page, place = (page[source] * valid.any(), place[source] * valid.any())
    index = (page, slice(None), place) if hnd else (page, place)
    cache[index] = where(valid.any(), rows[source], cache[index])


def gathered(cache, hnd, page, place):
    """[N, Hkv, D]: the rows at (page, place), in a new array."""
    return cache[page, :, place] if hnd else cache[page, place]


def append_paged_kv_cache(append_key, append_value, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr, kv_last_page_len, kv_layout="NHD"):
    """Writes token i to place positions[i] of request batch_indices[i], on the device. Negative requests write nothing."""
    hnd = is_hnd(kv_layout)
    k, v = pages_of(paged_kv_cache, hnd)
    page, place = target(batch_indices, positions, kv_indices, kv_indptr, k.shape[2 if hnd else 1])
    check(append_key, "append_key")
    if rows_dense(k) and rows_dense(v):
        ops.kv_append(dense(append_key), dense(append_value), pos=place, slot=page, k_cache=k, v_cache=v, layout="hnd" if hnd else "nhd")
        return
    for rows, cache in ((append_key, k), (append_value, v)):
        if rows.dtype != cache.dtype or rows.shape[1:] != (cache.shape[1 if hnd else 2], cache.shape[3]):
            raise InvalidShapeError(f"flashinfer: append: rows of {rows.dtype} {tuple(rows.shape)} into a strided cache of {cache.dtype} {tuple(cache.shape)}: the same type, heads and head size are wanted")
        scatter(cache, hnd, page, place, rows)


def append_paged_mla_kv_cache(append_ckv, append_kpe, batch_indices, positions, ckv_cache, kpe_cache, kv_indices, kv_indptr, kv_last_page_len):
    """Rows [T, D] of latents and of rotated keys to caches [pages, size, D], as append_paged_kv_cache; a cache that is None gets nothing."""
    for rows, cache in ((append_ckv, ckv_cache), (append_kpe, kpe_cache)):
        if cache is None:
            continue
        if check(rows, "append").dtype != check(cache, "cache").dtype or rows.shape[1:] != cache.shape[2:]:
            raise InvalidShapeError(f"flashinfer: append: rows of {rows.dtype} {tuple(rows.shape)} into a cache of {cache.dtype} {tuple(cache.shape)}: the same type and size are wanted")
        page, place = target(batch_indices, positions, kv_indices, kv_indptr, cache.shape[1])
        scatter(cache, False, page, place, rows)
