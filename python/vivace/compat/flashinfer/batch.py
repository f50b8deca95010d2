"""Attention of several requests: plan() lays out tables, run() attends."""
import numpy as np

from vivace.compat import arrays
from vivace.compat.arrays import beside, cast, check, copy_into, dtype_name, into, on_host, rows_dense, with_rows
from vivace.compat.flashinfer.call import Positions, attend, bits_of, is_hnd, masks_of_plan, only_ignored, readable, widened
from vivace.compat.flashinfer.fp4 import inner_dense, unpacked
from vivace.compat.flashinfer.page import gathered, get_seq_lens, pages_of
from vivace.compat.flashinfer.single import with_lse
from vivace.errors import FailedPreconditionError, InvalidArgumentError, InvalidShapeError, LimitExceededError, UnsupportedError

TABLE = 1 << 25  # entries of a page table that later plans of a graph may fill, at most: 128 MB
# From this many slots on no kernel of a decode step spreads a request's keys over thread blocks (tests/kernels/attention_cuts_test.cc).
UNSPLIT_SLOTS = 264
PREFILL_TOKENS = 65  # ops.attention's class of prefill begins here, where the tokens are more than the slots


def unsplit(fixed_split_size, disable_split_kv):
    """Whether plan() asks for bits that do not depend on the batch. Keys in one stretch are that, whatever the size of a split."""
    if fixed_split_size is not None and (int(fixed_split_size) < 1 and int(fixed_split_size) != -1):
        raise InvalidArgumentError(f"flashinfer: plan: fixed_split_size is a number of keys or pages from 1 on, or -1 for none, got {fixed_split_size}")
    return bool(disable_split_kv) or fixed_split_size is not None and int(fixed_split_size) > 0


class Planned:
    """What the batch wrappers share: buffers that keep their address, and the settings of plan()."""
    _decodes = False  # the class of ops.attention that plans with bits of their own are held to: decode or prefill

    def __init__(self, float_workspace_buffer=None, kv_layout="NHD", use_cuda_graph=False, backend="auto", jit_args=None, jit_kwargs=None, **buffers):
        if backend == "cudnn":
            raise UnsupportedError("flashinfer: backend cudnn: its tables count elements, not rows; plan with any other backend's")
        # The one variant by source that is served is the well-known one of sinks, by its name and arguments.
        self._sinks = jit_args is not None and len(jit_args) > 11 and (list(jit_args[7]), list(jit_args[9]), jit_args[11]) == (["sink"], ["sm_scale"], "AttentionSink")
        if jit_args is not None and not self._sinks:
            raise UnsupportedError("flashinfer: jit_args: a variant of attention is an expression here, docs/attention-variants.md")
        self._hnd, self._fixed = is_hnd(kv_layout), use_cuda_graph
        self._like, self._buffers, self._gather, self._settings, self._tokens = float_workspace_buffer, {}, {}, None, None
        self._most_pages = next((b.shape[0] for name, b in buffers.items() if b is not None and "indices" in name), 0)
        if float_workspace_buffer is not None:
            check(float_workspace_buffer, "float_workspace_buffer")

    @property
    def is_cuda_graph_enabled(self):
        return self._fixed

    def reset_workspace_buffer(self, float_workspace_buffer, *_):
        self._like = float_workspace_buffer

    def end_forward(self):
        """Nothing is held that a next plan() does not replace."""

    def workspace_size(self, *_, **__):
        raise UnsupportedError("flashinfer: workspace_size: workspaces are ignored, Vivace owns its own")

    def _by_position(self, values, named):
        """Arguments of run() by position: the scales of queries, keys and values, or those of the sink variant."""
        if not values:
            return named
        if self._sinks and len(values) == 2:
            return named | {"sinks": values[0], "sm_scale": values[1]}
        if self._sinks or len(values) != 3:
            raise UnsupportedError(f"flashinfer: run: {len(values)} arguments by position after keys and values; served are none, or the scales of q, k and v")
        return named | dict(zip(("q_scale", "k_scale", "v_scale"), values))

    def _keep(self, held, name, host, most=None, fill=-1):
        """held[name] = host on the device; with a graph at the address that the first plan made, of `most` columns (or entries), of which
        those beyond the host's are `fill` in a vector and old in a table, where nothing reads them."""
        old, host = held.get(name), np.ascontiguousarray(host, np.int32)
        if not self._fixed:
            if old is not None and tuple(old.shape) == host.shape:
                copy_into(old, host)
            else:
                held[name] = beside(host, self._like)
            return
        if old is None:
            wide = max(host.shape[-1], most or 0)
            old = held[name] = beside(np.full((*host.shape[:-1], wide), fill, np.int32), self._like)
        if old.shape[:-1] != host.shape[:-1] or old.shape[-1] < host.shape[-1]:
            raise LimitExceededError(f"flashinfer: plan: {name} has room for {tuple(old.shape)} since the first plan, which a captured graph has seen, and now needs {host.shape}; "
                                     "give buffers of the largest size, or plan the largest first")
        if host.ndim == 1:
            host = np.pad(host, (0, old.shape[0] - host.shape[0]), constant_values=fill)
        copy_into(old[..., : host.shape[-1]], host)

    def _plan(self, qo_indptr, bounds, lens, indices, page_size, masks, causal, heads, head_dim, pos_encoding_mode, rope_scale=None, rope_theta=None, kv_data_type=None, invariant=False,
              **settings):
        """Per token: position and request. Per request: keys, and pages as a table where they are given. With `invariant` each call is of
        the wrapper's class and splits no keys, by slots without keys or tokens without a slot: bits do not depend on the batch."""
        queries, bounds, lens = np.diff(qo_indptr), bounds.astype(np.int64), np.asarray(lens, np.int64)
        if (queries < 0).any() or (np.diff(bounds) < 0).any() or len(queries) != len(bounds) - 1 or len(lens) != len(queries):
            raise InvalidShapeError(f"flashinfer: plan: qo_indptr has {len(queries)} requests and kv_indptr {len(bounds) - 1}, each rising; got {queries.tolist()}, {np.diff(bounds).tolist()}")
        n, T = len(queries), int(qo_indptr[-1])
        if not self._fixed or self._tokens is None:
            self._tokens = T
        elif T > self._tokens:
            raise LimitExceededError(f"flashinfer: plan: {T} queries, and the first plan, which a captured graph has seen, had {self._tokens}; plan the largest first")
        self._slots, tokens = n, T
        if invariant and self._decodes:
            self._slots = max(UNSPLIT_SLOTS, T)
        elif invariant:
            tokens = max(PREFILL_TOKENS, T, n + 1)
        more_tokens, more_slots = (0, tokens - T), (0, self._slots - n)
        self._keep(self._buffers, "pos", np.pad(np.arange(T) - np.repeat(qo_indptr[:-1], queries) + np.repeat(lens - queries, queries), more_tokens))
        self._keep(self._buffers, "slot", np.pad(np.repeat(np.arange(n), queries), more_tokens, constant_values=-1))
        self._keep(self._buffers, "length", np.pad(lens, more_slots))
        self._host = (bounds, lens, indices, page_size)
        if indices is not None:
            pages = np.diff(bounds)
            wide = max(1, int(pages.max(initial=0)))
            at = bounds[:-1, None] + np.arange(wide)
            inside = np.arange(wide) < pages[:, None]
            if len(indices) < bounds[-1]:
                raise InvalidShapeError(f"flashinfer: plan: {len(indices)} page indices, and kv_indptr ends at {bounds[-1]}")
            table = np.where(inside, indices[np.where(inside, at, 0)], -1) if len(indices) else np.full((n, wide), -1)
            self._keep(self._buffers, "page_table", np.pad(table, (more_slots, (0, 0)), constant_values=-1), min(self._most_pages, max(wide, TABLE // max(self._slots, 1))))
        if masks is None:
            self._buffers.pop("bits", None)
        else:
            self._keep(self._buffers, "bits", np.pad(bits_of(masks, int(lens.max(initial=0))), (more_tokens, (0, 0))), fill=0)
        self._positions = Positions(pos_encoding_mode, heads, head_dim, self._like, rope_scale, rope_theta)
        self._queries = queries
        self._settings = settings | {"causal": causal and masks is None, "slopes": self._positions.slopes}
        if self._gather or self._positions.inv_freq is not None or kv_data_type is not None and dtype_name(kv_data_type) in ("uint8", "float8_e5m2"):
            self._plan_gather()

    def _plan_gather(self):
        """Where each key of each request lies, and its position: for runs that need copies of the keys."""
        bounds, lens, indices, size = self._host
        start = np.cumsum([0, *lens])
        place = np.arange(start[-1]) - np.repeat(start[:-1], lens)
        most = self._most_pages * (size or 1)
        self._keep(self._gather, "k_offsets", np.pad(start, (0, self._slots + 1 - len(start)), mode="edge"))
        self._keep(self._gather, "pos", place, most, 0)
        if indices is None:
            self._keep(self._gather, "row", np.repeat(bounds[:-1], lens) + place, most, 0)
            return
        self._keep(self._gather, "page", indices[np.repeat(bounds[:-1], lens) + place // size] if len(place) else place, most, 0)
        self._keep(self._gather, "place", place % size, most, 0)

    def _rows(self, x, q, sf, rotate):
        """Keys or values of all requests, one after another, unpacked and turned: [1, N, Hkv, D]."""
        at = self._gather
        def take(x):
            return gathered(x, self._hnd, at["page"], at["place"]) if "page" in at else x[at["row"]]

        if sf is not None:
            inner_dense("codes", x), inner_dense("kv_cache_sf", sf)
        x = take(x) if sf is None else unpacked(take(x), take(sf), q)
        x = cast(x, q.dtype) if self._positions.inv_freq is not None else readable(x, q)  # keys and values have one type
        return (self._positions.rotated(x, at["pos"]) if rotate else x)[None]

    def _run(self, q, k, v, hnd, out, lse, return_lse, kv_cache_sf=None, window_left=None, sm_scale=None, **more):
        if self._settings is None:
            raise FailedPreconditionError("flashinfer: run before plan")
        if check(q, "q").shape[0] != self._tokens:
            raise InvalidShapeError(f"flashinfer: run: plan had {self._tokens} queries ({self._queries[0] if len(self._queries) else 0} of the first request: q_len_per_req, qo_indptr), q has {q.shape[0]}")
        tokens, settings = q.shape[0], dict(self._settings)
        if tokens < self._buffers["pos"].shape[0]:
            q = with_rows(widened(q, settings.get("out_dtype")), self._buffers["pos"].shape[0])
        if window_left is not None:
            settings["window_left"] = window_left
        if sm_scale is not None:
            settings["sm_scale"] = sm_scale
        rotate, ports = self._positions.inv_freq is not None, dict(self._buffers)
        if rotate:
            q = self._positions.rotated(widened(q, settings.get("out_dtype")), ports["pos"])
        if rotate or kv_cache_sf is not None or "page_table" in ports and not all(rows_dense(x) and readable(x[:0], q).dtype == x.dtype for x in (k, v)):
            if not self._gather:
                self._plan_gather()
            sf = (None, None) if kv_cache_sf is None else pages_of(kv_cache_sf, self._hnd, "kv_cache_sf")
            k, v, hnd = self._rows(k, widened(q), sf[0], rotate), self._rows(v, widened(q), sf[1], False), False
            ports = {name: b for name, b in ports.items() if name != "page_table"} | {"k_offsets": self._gather["k_offsets"]}
        if q.shape[0] == tokens:
            return attend(q, k, v, hnd, out=out, lse=lse, return_lse=return_lse, **settings, **ports, **more)
        results = attend(q, k, v, hnd, return_lse=return_lse, **settings, **ports, **more)
        kept = [into(given, x[:tokens]) for given, x in zip((out, lse), results if return_lse else (results,))]
        return tuple(kept) if return_lse else kept[0]


class BatchPrefillWithPagedKVCacheWrapper(Planned):
    """Queries of several requests, [T, Hq, D] one after another, against pages."""

    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim_qk, page_size, head_dim_vo=None, custom_mask=None,
             packed_custom_mask=None, causal=False, pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None, rope_scale=None,
             rope_theta=None, kv_data_type=None, o_data_type=None, fixed_split_size=None, disable_split_kv=False, **others):
        bounds, queries = on_host(paged_kv_indptr), on_host(qo_indptr)
        if self._like is None:
            self._like = paged_kv_indices
        lens = get_seq_lens(bounds, on_host(paged_kv_last_page_len), page_size)
        masks = masks_of_plan(custom_mask, packed_custom_mask, others, np.diff(queries), lens)
        only_ignored("plan", others)
        self._plan(queries, bounds, lens, on_host(paged_kv_indices), page_size, masks, causal, num_qo_heads, head_dim_qk,
                   pos_encoding_mode, rope_scale, rope_theta, kv_data_type, unsplit(fixed_split_size, disable_split_kv), sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap, out_dtype=o_data_type)

    begin_forward = plan

    def run(self, q, paged_kv_cache, *scales, out=None, lse=None, return_lse=False, q_scale=None, k_scale=None, v_scale=None, sinks=None, window_left=None, enable_pdl=None,
            kv_cache_sf=None, **others):
        """`scales` by position are those of float8 queries, keys and values: each one a head, or one number."""
        only_ignored("run", others)
        k, v = pages_of(paged_kv_cache, self._hnd)
        named = self._by_position(scales, {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "sinks": sinks})
        return self._run(q, k, v, self._hnd, out, lse, return_lse, kv_cache_sf, window_left, **named)

    run_return_lse = with_lse(run)

    def forward(self, q, paged_kv_cache, causal=None, pos_encoding_mode="NONE", use_fp16_qk_reduction=False, k_scale=None, v_scale=None, window_left=-1, logits_soft_cap=None,
                sm_scale=None, rope_scale=None, rope_theta=None, return_lse=False):
        """run() with settings given here, not in plan()."""
        if self._settings is None:
            raise FailedPreconditionError("flashinfer: forward before plan")
        if pos_encoding_mode != "NONE":
            raise UnsupportedError("flashinfer: forward: pos_encoding_mode is a setting of plan()")
        self._settings |= {"window_left": window_left, "logits_soft_cap": logits_soft_cap, "sm_scale": sm_scale} | ({} if causal is None else {"causal": causal})
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale, return_lse=return_lse)

    forward_return_lse = with_lse(forward)


class BatchDecodeWithPagedKVCacheWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """A query a request, or q_len_per_req of them, [B * q_len_per_req, Hq, D], against pages."""
    _decodes = True

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, use_tensor_cores=False, **more):
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, **more)
        self._q_len, self._tensor_cores, self._backend = None, use_tensor_cores, more.get("backend", "auto")

    use_tensor_cores = property(lambda self: self._tensor_cores)

    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None,
             q_data_type=None, kv_data_type=None, data_type=None, sm_scale=None, rope_scale=None, rope_theta=None, q_len_per_req=1, o_data_type=None, **others):
        indptr, q_len = on_host(indptr), int(q_len_per_req)
        if q_len < 1:
            raise InvalidArgumentError(f"flashinfer: plan: q_len_per_req is 1 or more, got {q_len}")
        if self._fixed and self._q_len not in (None, q_len):
            raise InvalidArgumentError(f"flashinfer: plan: q_len_per_req is frozen at {self._q_len} by the first plan, which a captured graph has seen; got {q_len}")
        lens = get_seq_lens(indptr, on_host(last_page_len), page_size)
        if q_len > 1 and (lens < q_len).any():
            raise InvalidArgumentError(f"flashinfer: plan: q_len_per_req {q_len} and a request of {lens.min()} keys: its first queries would see an empty KV range")
        self._q_len = q_len
        super().plan(np.arange(len(indptr), dtype=np.int64) * q_len, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, causal=True,
                     pos_encoding_mode=pos_encoding_mode, sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap, rope_scale=rope_scale, rope_theta=rope_theta,
                     kv_data_type=kv_data_type if kv_data_type is not None else data_type, o_data_type=o_data_type, **others)

    begin_forward = plan

    def run(self, q, paged_kv_cache, *scales, q_len_per_req=None, **more):
        if q_len_per_req is not None and self._q_len is not None and q_len_per_req != self._q_len:
            raise InvalidArgumentError(f"flashinfer: run: q_len_per_req {q_len_per_req}, plan had {self._q_len}")
        return super().run(q, paged_kv_cache, *scales, **more)

    run_return_lse = with_lse(run)

    def forward(self, q, paged_kv_cache, pos_encoding_mode="NONE", q_scale=None, k_scale=None, v_scale=None, window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None,
                rope_theta=None, return_lse=False):
        return super().forward(q, paged_kv_cache, None, pos_encoding_mode, False, k_scale if q_scale is None else (k_scale or 1.0) * q_scale, v_scale, window_left, logits_soft_cap, sm_scale,
                               rope_scale, rope_theta, return_lse)

    forward_return_lse = with_lse(forward)


def fast_decode_plan(wrapper, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *settings, global_override_indptr_cpu=None, **more):
    """A decode wrapper's plan() from an indptr that is on the host already, after a first plan()."""
    if wrapper._settings is None:
        raise FailedPreconditionError("flashinfer: fast_decode_plan wants a prior plan() of the wrapper")
    BatchDecodeWithPagedKVCacheWrapper.plan(wrapper, indptr if global_override_indptr_cpu is None else global_override_indptr_cpu, indices, last_page_len, num_qo_heads, num_kv_heads,
                                            head_dim, page_size, *settings, **more)


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """The same with buffers that keep their address: replan between replays, within indices_buffer's number of pages."""

    def __init__(self, workspace_buffer, indptr_buffer=None, indices_buffer=None, last_page_len_buffer=None, kv_layout="NHD", use_tensor_cores=False, **_):
        super().__init__(workspace_buffer, kv_layout, True, use_tensor_cores, indices_buffer=indices_buffer)


class BatchPrefillWithRaggedKVCacheWrapper(Planned):
    """Queries, keys and values of several requests, each one after another; the keys of request r are rows
    [kv_indptr[r], kv_indptr[r + 1])."""

    def plan(self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False, pos_encoding_mode="NONE",
             use_fp16_qk_reduction=False, window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None, kv_data_type=None, o_data_type=None,
             fixed_split_size=None, disable_split_kv=False, **others):
        bounds, queries = on_host(kv_indptr).astype(np.int64), on_host(qo_indptr)
        if self._like is None:
            self._like = kv_indptr
        lens = np.diff(bounds)
        masks = masks_of_plan(custom_mask, packed_custom_mask, others, np.diff(queries), lens)
        only_ignored("plan", others)
        self._plan(queries, bounds, lens, None, None, masks, causal, num_qo_heads, head_dim_qk, pos_encoding_mode, rope_scale,
                   rope_theta, invariant=unsplit(fixed_split_size, disable_split_kv), sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap, out_dtype=o_data_type)
        self._keep(self._buffers, "k_offsets", bounds)

    begin_forward = plan

    def run(self, q, k, v, *scales, out=None, lse=None, return_lse=False, q_scale=None, k_scale=None, v_scale=None, sinks=None, enable_pdl=None, kv_cache_sf=None, **others):
        only_ignored("run", others)
        if self._hnd:
            raise UnsupportedError("flashinfer: ragged keys are [rows, Hkv, D], which is NHD")
        named = self._by_position(scales, {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "sinks": sinks})
        if kv_cache_sf is not None:
            k, v = (unpacked(x, sf, widened(q)) for x, sf in zip((k, v), kv_cache_sf))
        if self._settings is not None and self._positions.inv_freq is None:
            k, v = k[None], v[None]
        return self._run(q, k, v, False, out, lse, return_lse, **named)

    run_return_lse = with_lse(run)
