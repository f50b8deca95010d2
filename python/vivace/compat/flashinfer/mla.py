"""FlashInfer's names of multi-head latent attention over ops.latent_attention."""
import numpy as np

from vivace import ops
from vivace.compat.arrays import arange, as_i32, cast, check, dense, dtype_name, empty, f32, into, is_torch, joined, on_host, repeat, side_by_side, taken, with_rows
from vivace.compat.flashinfer.batch import Planned
from vivace.compat.flashinfer.call import LOG2E, only_ignored
from vivace.errors import FailedPreconditionError, InvalidArgumentError, InvalidDTypeError, InvalidShapeError, UnsupportedError

BLOCKS = 264  # thread blocks that fill a large GPU: two for each of 132 multiprocessors
ROWS, RUN = 64, 128  # heads of a thread block; places that a run has at least


def _runs(tokens, heads, places):
    """Runs of places: few tokens alone would leave most of a GPU idle."""
    blocks = max(1, tokens * -(-heads // ROWS))
    return max(1, min(BLOCKS // blocks, places // RUN, 64))


def _attend(q, cache, width, runs, out, lse, return_lse, base_e=False, **call):
    """ops.latent_attention of q [T, Hq, E] over latent rows, of which the first `width` elements are the values; the logarithm to base 2."""
    T, heads, _ = q.shape
    for name, given, wanted in (("out", out, (T, heads, width)), ("lse", lse, (T, heads))):
        if given is not None and tuple(given.shape) != wanted:
            raise InvalidShapeError(f"flashinfer: {name} is {list(given.shape)}, wanted {list(wanted)}")
    if 0 in q.shape:
        runs = 1
    parts = empty((T, runs, heads, width), q)
    sums = empty((T, runs, heads), q, f32(q)) if return_lse or lse is not None or runs > 1 else None
    ops.latent_attention(q, cache, out=parts, lse=sums, **call)
    if runs > 1:
        whole, total = empty((T, heads, width), q), empty((T, heads), q, f32(q))
        ops.merge_states(parts, sums, out=whole, lse=total)
    else:
        whole, total = parts[:, 0], None if sums is None else sums[:, 0]
    result = into(out, whole)
    if total is None:
        return result
    total = into(lse, total if base_e else total * LOG2E)
    return (result, total) if return_lse else result


def _same(where, wanted, **arrays):
    for name, x in arrays.items():
        if dtype_name(check(x, name)) != dtype_name(wanted):
            raise InvalidDTypeError(f"flashinfer: {where}: {name} is {dtype_name(x)} and the queries are {dtype_name(wanted)}: latent attention reads one type")


class BatchMLAPagedAttentionWrapper(Planned):
    """Queries of several requests, with the key projection absorbed into them, against pages of latent rows. Heads share the rows."""

    def __init__(self, float_workspace_buffer=None, use_cuda_graph=False, qo_indptr=None, kv_indptr=None, kv_indices=None, kv_len_arr=None, backend="auto"):
        if backend == "cutlass":
            raise UnsupportedError("flashinfer: backend cutlass: it takes kv_len and page_table in run(), not in plan(); plan with any other backend's name")
        super().__init__(float_workspace_buffer, "NHD", use_cuda_graph, backend, kv_indices=kv_indices)
        self._separate, self._parts = {}, None

    def plan(self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, head_dim_kpe, page_size, causal, sm_scale, q_data_type=None, kv_data_type=None,
             use_profiler=False):
        """kv_len_arr [requests] are the keys of each; sm_scale is that of the heads before absorption, 1 / sqrt(128 + 64) for DeepSeek's."""
        if not sm_scale > 0:
            raise InvalidArgumentError(f"flashinfer: plan: sm_scale must be positive, got {sm_scale}")
        if self._like is None:
            self._like = kv_indices
        bounds, lens = on_host(kv_indptr).astype(np.int64), on_host(kv_len_arr).astype(np.int64)
        if len(lens) != len(bounds) - 1 or (lens < 0).any() or (lens > np.diff(bounds) * page_size).any():
            raise InvalidShapeError(f"flashinfer: plan: kv_len_arr {lens.tolist()} does not fit into {np.diff(bounds).tolist()} pages of {page_size}")
        indices = on_host(kv_indices)[: bounds[-1]]
        self._plan(on_host(qo_indptr), bounds, lens, indices, page_size, None, causal, num_heads, head_dim_ckv + head_dim_kpe, "NONE", sm_scale=sm_scale)
        self._dims = (num_heads, head_dim_ckv, head_dim_kpe, page_size)
        # The runs stay as they were when a graph was captured: they are a shape.
        if not self._fixed or self._parts is None:
            self._parts = _runs(self._tokens, num_heads, self._buffers["page_table"].shape[1] * page_size if self._fixed else int(lens.max(initial=0)))
        if self._separate:
            self._plan_copies()

    def _plan_copies(self):
        """Where latents and rotated keys are arrays of their own: the pages of all requests, one after another, and the table of these."""
        bounds, _, indices, _ = self._host
        self._keep(self._separate, "pages", indices, self._most_pages, 0)
        table = self._buffers["page_table"]
        wide = int(np.diff(bounds).max(initial=0)) or 1
        at = bounds[:-1, None] + np.arange(wide)
        self._keep(self._separate, "page_table", np.where(at < bounds[1:, None], at, -1), table.shape[1])

    def _rows(self, ckv, kpe, like, scales):
        """(cache, page table): one array of both where they are parts of it, else a copy of the pages that the requests have; of e4m3 a copy in
        the type of `like`, times the scales."""
        whole = side_by_side(ckv, kpe) if scales is None else None
        if whole is not None:
            return whole, self._buffers["page_table"]
        if not self._separate:
            self._plan_copies()
        if ckv.shape[0] == 0:  # no request has a key: a page that nobody reads
            nothing = empty((1, ckv.shape[1], ckv.shape[2] + kpe.shape[2]), like)
            nothing[...] = 0
            return nothing, self._separate["page_table"]
        pages = self._separate["pages"]
        pages = pages.long() if is_torch(pages) else pages
        ckv, kpe = taken(ckv, pages), taken(kpe, pages)
        if scales is not None:
            ckv_scale, ckv_scale_arr, kpe_scale = scales
            factor = float(ckv_scale) if ckv_scale_arr is None else repeat(taken(ckv_scale_arr, pages), 128, -1)
            ckv, kpe = (cast(cast(x, f32(x)) * by, like.dtype) for x, by in ((ckv, factor), (kpe, float(kpe_scale))))
        return joined(ckv, kpe), self._separate["page_table"]

    def _scales(self, ckv_cache, kpe_cache, ckv_scale, ckv_scale_arr, kpe_scale):
        """Those of e4m3 latents, checked; None for latents of the queries' type."""
        given = (ckv_scale, ckv_scale_arr, kpe_scale)
        if dtype_name(check(ckv_cache, "ckv_cache")) != "float8_e4m3fn":
            if any(x is not None for x in given):
                raise InvalidArgumentError(f"flashinfer: run: ckv_scale, ckv_scale_arr and kpe_scale belong to latents of e4m3, ckv_cache is {dtype_name(ckv_cache)}")
            return None
        _same("run", ckv_cache, kpe_cache=kpe_cache)
        if (ckv_scale is None) == (ckv_scale_arr is None) or kpe_scale is None:
            raise InvalidArgumentError("flashinfer: run: Exactly one of ckv_scale or ckv_scale_arr, and kpe_scale, are wanted for latents of e4m3")
        for name, x in (("ckv_scale", ckv_scale), ("kpe_scale", kpe_scale)):
            if x is not None and not 0 < float(x) < float("inf"):
                raise InvalidArgumentError(f"flashinfer: run: {name} must be positive and finite, got {x}")
        if ckv_scale_arr is not None:
            wanted = (*ckv_cache.shape[:-1], ckv_cache.shape[-1] // 128)
            if dtype_name(check(ckv_scale_arr, "ckv_scale_arr")) != "float32" or tuple(ckv_scale_arr.shape) != wanted or ckv_cache.shape[-1] % 128:
                raise InvalidShapeError(f"flashinfer: run: Invalid shape of ckv_scale_arr: {dtype_name(ckv_scale_arr)} {list(ckv_scale_arr.shape)}, wanted float32 {list(wanted)}")
        return given

    def run(self, q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False, profiler_buffer=None, kv_len=None, page_table=None, return_lse_base_on_e=False, o_scale=None, *,
            ckv_scale=None, ckv_scale_arr=None, kpe_scale=None, **others):
        """q_nope [T, Hq, ckv] and q_pe [T, Hq, kpe] over ckv_cache [pages, size, ckv] and kpe_cache [pages, size, kpe]: [T, Hq, ckv], and with
        return_lse the log-sum-exp [T, Hq], to base 2 or e. The caches are read as they lie where they are one array's parts. Of e4m3 they are copied,
        times ckv_scale or ckv_scale_arr [pages, size, ckv / 128] and kpe_scale, and rounded to the queries' type."""
        only_ignored("run", others | {"kv_len": kv_len, "page_table": page_table, "o_scale": o_scale})
        if self._settings is None:
            raise FailedPreconditionError("flashinfer: run before plan")
        heads, ckv, kpe, size = self._dims
        scales = self._scales(ckv_cache, kpe_cache, ckv_scale, ckv_scale_arr, kpe_scale)
        _same("run", check(q_nope, "q_nope"), q_pe=q_pe, **({} if scales else {"ckv_cache": ckv_cache, "kpe_cache": kpe_cache}))
        tokens = self._tokens
        for name, x, wanted in (("q_nope", q_nope, (tokens, heads, ckv)), ("q_pe", q_pe, (tokens, heads, kpe))):
            if tuple(x.shape) != wanted:
                raise InvalidShapeError(f"flashinfer: run: {name} is {list(x.shape)}, wanted {list(wanted)} as planned")
        for name, x, width in (("ckv_cache", ckv_cache, ckv), ("kpe_cache", kpe_cache, kpe)):
            if x.ndim != 3 or tuple(x.shape[1:]) != (size, width):
                raise InvalidShapeError(f"flashinfer: run: {name} is {list(x.shape)}, wanted [pages, {size}, {width}] as planned")
        if ckv_cache.shape[0] != kpe_cache.shape[0]:
            raise InvalidShapeError(f"flashinfer: run: ckv_cache has {ckv_cache.shape[0]} pages and kpe_cache {kpe_cache.shape[0]}")
        cache, table = self._rows(ckv_cache, kpe_cache, q_nope, scales)
        q, at = joined(q_nope, q_pe), self._buffers
        call = {"pos": at["pos"], "slot": at["slot"], "length": at["length"], "page_table": table, "mask": "causal" if self._settings["causal"] else "full",
                "scale": float(self._settings["sm_scale"])}
        return _attend(q, cache, ckv, self._parts, out, lse, return_lse, return_lse_base_on_e, **call)


def trtllm_batch_decode_with_kv_cache_mla(query, kv_cache, workspace_buffer, qk_nope_head_dim, kv_lora_rank, qk_rope_head_dim, block_tables, seq_lens, max_seq_len, sparse_mla_top_k=0, out=None,
                                          bmm1_scale=1.0, bmm2_scale=1.0, sinks=None, skip_softmax_threshold_scale_factor=None, enable_pdl=None, backend="auto", **others):
    """query [B, q_len, Hq, E], the last q_len of seq_lens [B] keys each, over kv_cache [pages, size, E] or [pages, 1, size, E], read as it
    lies, with block_tables [B, pages a request]: [B, q_len, Hq, kv_lora_rank]. bmm1_scale is the whole factor of q . key, bmm2_scale that of
    the result, both numbers. It waits for nothing."""
    where = "trtllm_batch_decode_with_kv_cache_mla"
    only_ignored(where, others | {"sparse_mla_top_k": sparse_mla_top_k, "sinks": sinks, "skip_softmax_threshold_scale_factor": skip_softmax_threshold_scale_factor})
    for name, scale in (("bmm1_scale", bmm1_scale), ("bmm2_scale", bmm2_scale)):
        if hasattr(scale, "shape"):
            raise UnsupportedError(f"flashinfer: {where}: {name} as an array: it is a number here")
    E = kv_lora_rank + qk_rope_head_dim
    if check(query, "query").ndim != 4 or query.shape[3] != E:
        raise InvalidShapeError(f"flashinfer: {where}: query is {list(query.shape)}, wanted [B, q_len, heads, {E}]")
    cache = check(kv_cache, "kv_cache")
    cache = cache[:, 0] if cache.ndim == 4 and cache.shape[1] == 1 else cache
    if cache.ndim != 3 or cache.shape[2] != E:
        raise InvalidShapeError(f"flashinfer: {where}: kv_cache is {list(kv_cache.shape)}, wanted [pages, size, {E}] or [pages, 1, size, {E}]")
    _same(where, query, kv_cache=kv_cache)
    B, n, heads, _ = query.shape
    length, table = as_i32(check(seq_lens, "seq_lens")), as_i32(check(block_tables, "block_tables"))
    last = arange(0, n, query) - n
    pos = (length[:, None] + last[None]).reshape(-1)
    result = _attend(dense(query.reshape(B * n, heads, E)), cache, kv_lora_rank, _runs(B * n, heads, min(int(max_seq_len), table.shape[1] * cache.shape[1])), None, None, False,
                     slot=repeat(arange(0, B, query), n, 0), pos=pos, length=length, page_table=table, scale=float(bmm1_scale))
    result = result.reshape(B, n, heads, kv_lora_rank)
    if bmm2_scale != 1:
        result = result * bmm2_scale
    return result if out is None else into(out, result.reshape(out.shape))


def concat_mla_k(k, k_nope, k_rope):
    """k [T, Hq, nope + rope] gets k_nope [T, Hq, nope] and, in every head, k_rope [T, 1, rope]."""
    T, heads, width = check(k, "k").shape
    nope, rope = check(k_nope, "k_nope").shape[-1], check(k_rope, "k_rope").shape[-1]
    if nope + rope != width or tuple(k_nope.shape) != (T, heads, nope) or tuple(k_rope.shape) != (T, 1, rope):
        raise InvalidShapeError(f"flashinfer: concat_mla_k: k {list(k.shape)}, k_nope {list(k_nope.shape)}, k_rope {list(k_rope.shape)}: wanted [T, H, a + b], [T, H, a] and [T, 1, b]")
    k[..., :nope], k[..., nope:] = k_nope, k_rope
