"""FlashInfer's names of matrix products over ops.gemm, ops.batched_gemm and ops.grouped_gemm."""
from vivace import ops
from vivace.compat.arrays import as_i32, cast, check, dense, dtype_like, dtype_name, empty, is_torch, moved, repeat
from vivace.compat.flashinfer.norm import one
from vivace.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError


def _turned(x):
    """x with its last two axes exchanged: of a column-major array rows that lie dense, of another a copy."""
    return dense(x.transpose(-1, -2) if is_torch(x) else x.swapaxes(-1, -2))


def _result(shape, like, dtype, out):
    if out is None:
        return empty(shape, like, dtype)
    if tuple(out.shape) != shape:
        raise InvalidShapeError(f"flashinfer: out is {list(out.shape)}, wanted {list(shape)}")
    return out


def _ranks(rank, **arrays):
    for name, x in arrays.items():
        if len(check(x, name).shape) != rank:
            raise InvalidShapeError(f"flashinfer: {name} is {list(x.shape)}: wanted {rank} axes")


def _wide(x):
    """e5m2 in float16, which holds each of its values."""
    return cast(x, dtype_like("float16", x)) if dtype_name(x) == "float8_e5m2" else x


def _pair(a, b):
    """Factors of types that meet: where one is e5m2, both are in float16."""
    x, y = _wide(a), _wide(b)
    return (x, y) if x is a and y is b else tuple(cast(f, dtype_like("float16", f)) for f in (x, y))


def _bf16(like, given):
    return dtype_like("bfloat16", like) if given is None else given


def mm_bf16(a, b, bias=None, pdl=False, out=None, out_dtype=None, backend="auto"):
    """a [m, k] times b [k, n], column-major (a row-major one is copied), plus bias [n]: [m, n] in out_dtype, bf16 by default."""
    _ranks(2, a=a, b=b)
    result = _result((a.shape[0], b.shape[1]), a, _bf16(a, out_dtype), out)
    ops.gemm(dense(a), _turned(b), out=result, **({} if bias is None else {"bias": bias}))
    return result


def bmm_bf16(A, B, out=None, out_dtype=None, backend="auto"):
    """A [b, m, k] times B [b, k, n], column-major: [b, m, n] in out_dtype, bf16 by default."""
    _ranks(3, A=A, B=B)
    result = _result((A.shape[0], A.shape[1], B.shape[2]), A, _bf16(A, out_dtype), out)
    ops.batched_gemm(dense(A), _turned(B), out=result)
    return result


def bmm_fp8(A, B, A_scale, B_scale, dtype, out=None, backend="auto"):
    """A [b, m, k] times B [b, k, n], column-major, both float8, times A_scale and B_scale: [b, m, n] in dtype. A launch an entry."""
    _ranks(3, A=A, B=B)
    result = _result((A.shape[0], A.shape[1], B.shape[2]), A, dtype, out)
    x, w = _pair(A, B)
    w, scales = _turned(w), {"x_scale": one(A_scale, A), "w_scale": one(B_scale, A)}
    for i in range(A.shape[0]):
        ops.gemm(dense(x[i]), w[i], out=result[i], **scales)
    return result


def gemm_fp8_nt_groupwise(a, b, a_scale, b_scale, scale_major_mode=None, mma_sm=1, scale_granularity_mnk=(1, 128, 128), out=None, out_dtype=None, backend="auto"):
    """a [m, k] times b [n, k] in e4m3, with a factor of each 128 columns of a and each 128 x 128 of b: a_scale [m, k / 128] and b_scale
    [n / 128, k / 128] in mode "K", both turned in "MN": [m, n] in out_dtype, bf16 by default."""
    _ranks(2, a=a, b=b, a_scale=a_scale, b_scale=b_scale)
    if tuple(scale_granularity_mnk) != (1, 128, 128):
        raise UnsupportedError(f"flashinfer: scale_granularity_mnk {tuple(scale_granularity_mnk)}: (1, 128, 128) is served")
    if scale_major_mode not in ("K", "MN"):
        raise InvalidArgumentError(f"flashinfer: scale_major_mode is K or MN, got {scale_major_mode!r}")
    if scale_major_mode == "MN":
        a_scale, b_scale = _turned(a_scale), _turned(b_scale)
    result = _result((a.shape[0], b.shape[0]), a, _bf16(a, out_dtype), out)
    ops.gemm(dense(a), dense(b), x_block_scale=dense(a_scale), w_block_scale=dense(b_scale), out=result)
    return result


def gemm_fp8_nt_blockscaled(a, b, a_scale, b_scale, scale_major_mode="MN", mma_sm=1, out=None, out_dtype=None):
    """gemm_fp8_nt_groupwise() with a factor of each 128 x 128 of a too: it is repeated for each row."""
    _ranks(2, a=a, a_scale=a_scale)
    axis = 1 if scale_major_mode == "MN" else 0
    rows = repeat(a_scale, 128, axis)
    rows = rows[:, :a.shape[0]] if axis else rows[:a.shape[0]]
    return gemm_fp8_nt_groupwise(a, b, rows, b_scale, scale_major_mode, mma_sm, out=out, out_dtype=out_dtype)


class SegmentGEMMWrapper:
    """Products of runs of rows with one matrix a run, by ops.grouped_gemm. The workspace and the backend are ignored."""

    def __init__(self, float_workspace_buffer=None, backend="auto"):
        pass

    def reset_workspace_buffer(self, float_workspace_buffer=None, int_workspace_buffer=None):
        pass

    def run(self, x, weights, batch_size, weight_column_major, out=None, seg_lens=None, seg_indptr=None, weight_indices=None):
        """x [sum of the runs, k] and weights [E, n, k] (weight_column_major) or [E, k, n], of which a copy is made: [rows, n] in x's type.
        Runs are given by seg_lens or seg_indptr; run i takes weights[weight_indices[i]] or weights[i]. These three may lie on the host."""
        _ranks(2, x=x)
        _ranks(3, weights=weights)
        if (seg_lens is None) == (seg_indptr is None):
            raise InvalidArgumentError("flashinfer: SegmentGEMMWrapper.run: give one of seg_lens and seg_indptr")
        if seg_indptr is None:
            ends = as_i32(moved(seg_lens, x).cumsum(0))
            seg_indptr = empty((ends.shape[0] + 1,), ends)
            seg_indptr[0], seg_indptr[1:] = 0, ends
        if seg_indptr.shape[0] != batch_size + 1:
            raise InvalidShapeError(f"flashinfer: SegmentGEMMWrapper.run: {seg_indptr.shape[0] - 1} runs, batch_size says {batch_size}")
        w = dense(weights) if weight_column_major else _turned(weights)
        if weight_indices is not None:
            w = w[cast(moved(weight_indices, w), dtype_like("int64", w))]
        if w.shape[0] != batch_size:
            raise InvalidShapeError(f"flashinfer: SegmentGEMMWrapper.run: {w.shape[0]} matrices for {batch_size} runs")
        result = _result((x.shape[0], w.shape[1]), x, x.dtype, out)
        if 0 not in result.shape:
            ops.grouped_gemm(dense(x), w, as_i32(moved(seg_indptr, x)), out=result)
        return result

    forward = run
