"""Weights of experts in the forms that cutlass_fused_moe takes, and products of rows with them by ops.grouped_gemm.

The op reads 16-bit, float32 and GGUF's block weights. Others are widened before it, those of some experts at a time: e4m3 and
NVFP4 to 16 bits, which hold each value; int4 and e4m3 of blocks, with their scales, to float32."""
import math

from vivace import ops
from vivace.compat.arrays import arange, cast, check, dense, dtype_like, dtype_name, empty, f32, is_torch, repeat, seen_as, taken, where, with_rows
from vivace.compat.flashinfer.fp4 import BLOCK, unpacked
from vivace.errors import InvalidDTypeError, InvalidShapeError, UnsupportedError

PLAIN = ("float32", "float16", "bfloat16")
_WIDENED = 1 << 26  # values at a time: what a captured graph or a step needs beside the codes
_E4M3_MAX = 448.0


class Layer:
    """One of the two products of each of E experts, [E, N, K]. read(which) gives weights of the experts that a slice or an index
    array names, enter(rows, expert) rows as the product takes them, and scale [E, 1] or [E, N] is a float32 factor of its sums.
    Without read the op takes the weights as they lie, and rows and sums are of the caller's type."""

    def __init__(self, weights, shape, read=None, enter=None, scale=None):
        self.weights, self.shape, self.read, self.enter, self.scale = weights, shape, read, enter, scale

    def product(self, rows, offsets, expert, out, bias=None):
        """out [A, N] = the products of rows [A, K] with their expert's weights; those of no expert stay, or are 0 in what is returned.
        Scale and bias are applied in float32 before the one rounding; what is returned is then a new array of out's type."""
        if self.scale is None and bias is None:
            self._multiply(rows, offsets, expert, out)
            return out
        wide = empty(tuple(out.shape), out, f32(out))
        wide[...] = 0
        self._multiply(rows, offsets, expert, wide)
        if self.scale is not None:
            wide = wide * of_rows(self.scale, expert)
        return cast(wide if bias is None else wide + of_rows(bias, expert), out.dtype)

    def _multiply(self, rows, offsets, expert, out):
        if self.read is None:
            ops.grouped_gemm(rows, dense(self.weights), offsets, out=out)
            return
        x, (E, N, K) = dense(self.enter(rows, expert)), self.shape
        few = x.shape[0] < E  # then a row is a group, and no other expert is widened
        if few:
            place = arange(0, x.shape[0] + 1, offsets)
            offsets = where(place < offsets[E:], place, offsets[E:])
            expert = expert.clip(0, E - 1)
        groups, step = x.shape[0] if few else E, max(1, _WIDENED // (N * K))
        for at in range(0, groups, step):
            end = min(groups, at + step)
            ops.grouped_gemm(x, self.read(expert[at:end] if few else slice(at, end)), offsets[at : end + 1], out=out)


def of_rows(values, expert):
    """values [E, ...] of each row's expert, 0 for rows of no expert: what such an expert's values are is not read."""
    return with_rows(values, values.shape[0] + 1)[expert]


def swapped(x, *axes):
    return x.permute(axes) if is_torch(x) else x.transpose(axes)


def scale_of_experts(name, scale, E, N=None):
    """A float32 number, or one of each expert ([E]; with N also [E, N], one of each row) as [E, 1] or [E, N]."""
    wanted = {(): 1, (1,): 1, (E,): 1} | ({(E, N): N} if N else {})
    shape = tuple(check(scale, name).shape)
    if dtype_name(scale) != "float32":
        raise InvalidDTypeError(f"flashinfer: quant_scales: {name} is {dtype_name(scale)}, wanted float32")
    if shape not in wanted:
        raise InvalidShapeError(f"flashinfer: quant_scales: {name} is {list(shape)}, wanted {' or '.join(str(list(s)) for s in wanted if s != (1,))}")
    return repeat(scale.reshape(1, 1), E, 0) if math.prod(shape) == 1 else scale.reshape(E, wanted[shape])


def counted(scales, n, what):
    if scales is None or len(scales) != n:
        raise InvalidShapeError(f"flashinfer: quant_scales: {0 if scales is None else len(scales)} of them, wanted {n}: {what}")
    return list(scales)


def to_e4m3(x, back):
    """float32 x rounded to e4m3, saturating, in the type `back`, which holds each value."""
    return cast(cast(x.clip(-_E4M3_MAX, _E4M3_MAX), dtype_like("float8_e4m3fn", x)), back)


def tensor_e4m3(weights, quant_scales):
    """Both in e4m3, rows of the first product too: its scale, the second's rows' reciprocal scale, its scale, the input's scale, which
    is in the first of them already."""
    one, enter, two, _ = counted(quant_scales, 4, "fc1's scale, fc2's activation scale, fc2's scale, the input's scale")
    half, E = dtype_like("float16", one), weights[0].shape[0]
    inverse = scale_of_experts("fc2's activation scale", enter, E)
    enters = (lambda rows, _: cast(rows, half), lambda rows, expert: to_e4m3(rows * of_rows(inverse, expert), half))
    return [Layer(w, tuple(w.shape), lambda which, w=w: cast(taken(w, which), half), go, scale_of_experts(name, s, E, w.shape[1]))
            for w, go, name, s in zip(weights, enters, ("fc1's scale", "fc2's scale"), (one, two))]


def block_e4m3(weights, quant_scales):
    """e4m3 with a float32 factor of each 128 x 128; rows stay as they are."""
    layers = []
    for w, s, name in zip(weights, counted(quant_scales, 2, "block scales of fc1 and of fc2"), ("fc1", "fc2")):
        E, N, K = w.shape
        blocks = (E, -(-N // 128), -(-K // 128))
        if dtype_name(check(s, name)) != "float32":
            raise InvalidDTypeError(f"flashinfer: quant_scales: {name}'s block scales are {dtype_name(s)}, wanted float32")
        if tuple(s.shape) != blocks:
            raise InvalidShapeError(f"flashinfer: quant_scales: {name}'s block scales are {list(s.shape)}, wanted {list(blocks)} of weights {[E, N, K]}")

        def read(which, w=w, s=s, N=N, K=K):
            codes = taken(w, which)
            out = empty((codes.shape[0] * N, K), s)
            ops.dequantize(dense(codes).reshape(-1, K), out=out, block_scale=dense(repeat(s[which], 128, 1)[:, :N]).reshape(-1, s.shape[2]))
            return out.reshape(-1, N, K)

        layers.append(Layer(w, (E, N, K), read, lambda rows, _: cast(rows, f32(rows))))
    return layers


def interleave_moe_weights_for_sm90_mixed_gemm(weight, quant_type="fp4"):
    """int4 weights [E, N, K / 2], two a byte, in the order of FlashInfer's kernels for sm_90: of 16 rows and 64 columns, words of four
    columns of rows i and i + 8 lie beside one another. N is a multiple of 16, K of 64."""
    if quant_type != "int4":
        raise UnsupportedError(f"flashinfer: interleave_moe_weights_for_sm90_mixed_gemm: quant_type {quant_type!r}: int4 is served")
    return _words(weight, (2, 8, 2, 2, 4), (0, 1, 6, 3, 4, 5, 7, 2, 8))


def _words(weight, split, axes):
    """weight [E, N, K / 2] of bytes, its 16-bit words reordered within 16 rows and 64 columns."""
    if dtype_name(check(weight, "weight")) != "uint8":
        raise InvalidDTypeError(f"flashinfer: int4 weights are uint8, two a byte, got {dtype_name(weight)}")
    if len(weight.shape) != 3 or weight.shape[1] % 16 or weight.shape[2] % 32:
        raise InvalidShapeError(f"flashinfer: int4 weights {list(weight.shape)}: wanted [E, N, K / 2] with N a multiple of 16 and K of 64")
    E, N, bytes_ = weight.shape
    a, b, c, d, e = split
    return dense(swapped(weight.reshape(E, N // 16, a, b, bytes_ // 32, c, d, e, 2), *axes)).reshape(E, N, bytes_)


def _plain_words(weight):
    """Undoes interleave_moe_weights_for_sm90_mixed_gemm()."""
    return _words(weight, (2, 8, 2, 4, 2), (0, 1, 7, 3, 4, 5, 2, 6, 8))


def interleave_moe_scales_for_sm90_mixed_gemm(scales, group_size=32):
    """16-bit scales [E, N, K / 128] of groups of 128 columns in FlashInfer's folded form [E, N / 64, K / 128, 8, 8]: of 64 rows, row
    8 i + j is at [j, i]. N is a multiple of 64."""
    if group_size != 128:
        raise UnsupportedError(f"flashinfer: interleave_moe_scales_for_sm90_mixed_gemm: group_size {group_size}: 128 is served, that of int4")
    if dtype_name(check(scales, "scales")) not in PLAIN[1:]:
        raise InvalidDTypeError(f"flashinfer: scales are {dtype_name(scales)}, wanted bfloat16 or float16")
    if len(scales.shape) != 3 or scales.shape[1] % 64:
        raise InvalidShapeError(f"flashinfer: scales {list(scales.shape)}: wanted [E, N, K / 128] with N a multiple of 64")
    E, N, groups = scales.shape
    return dense(swapped(scales.reshape(E, N // 64, 8, 8, groups), 0, 1, 4, 3, 2))


def grouped_int4(weights, quant_scales):
    """int4, two a byte, with a scale of each group of columns. Scales in the folded form (bits of bfloat16, whatever the type says) are of
    interleaved weights; scales [E, N, K / group] of any plain type are of weights in the order of their columns."""
    scales = counted(quant_scales, 8, "weight scales, activation scales, zeros and alphas, of fc1 and of fc2 each")
    layers = []
    for w, name, s, enter, zeros, alpha in zip(weights, ("fc1", "fc2"), *(scales[i : i + 2] for i in range(0, 8, 2))):
        if zeros is not None and math.prod(zeros.shape):
            raise UnsupportedError(f"flashinfer: quant_scales: {name}'s zeros are not served: int4 is signed")
        E, N, K = w.shape[0], w.shape[1], 2 * w.shape[2]
        folded = len(check(s, name).shape) == 5
        if dtype_name(s) not in (PLAIN[1:] if folded else PLAIN):
            raise InvalidDTypeError(f"flashinfer: quant_scales: {name}'s weight scales are {dtype_name(s)}: wanted bfloat16 or float16{'' if folded else ', or float32'}")
        groups = K // 128 if folded else max(1, s.shape[-1])
        if tuple(s.shape) != ((E, N // 64, groups, 8, 8) if folded else (E, N, groups)) or K % groups or folded and (N % 64 or K % 128):
            raise InvalidShapeError(f"flashinfer: quant_scales: {name}'s weight scales are {list(s.shape)}, wanted [E, N, K / group] or [E, N / 64, K / 128, 8, 8] of weights {[E, N, K]}")
        codes = _plain_words(w) if folded else w
        factors = swapped(seen_as(s, "bfloat16"), 0, 1, 4, 3, 2).reshape(E, N, groups) if folded else s

        def read(which, codes=codes, factors=factors, groups=groups, N=N, K=K):
            bytes_ = codes[which]
            values = empty((*bytes_.shape, 2), factors, f32(factors))
            values[..., 0], values[..., 1] = (bytes_ & 15 ^ 8), (bytes_ >> 4 ^ 8)
            values -= 8
            return (values.reshape(-1, N, groups, K // groups) * cast(factors[which], f32(factors))[..., None]).reshape(-1, N, K)

        def go(rows, _, enter=enter, K=K, name=name):
            rows = cast(rows, f32(rows))
            return rows if enter is None or not math.prod(enter.shape) else to_e4m3(rows * cast(enter.reshape(-1), f32(rows)), f32(rows))

        if enter is not None and math.prod(enter.shape) not in (0, K):
            raise InvalidShapeError(f"flashinfer: quant_scales: {name}'s activation scales are {list(enter.shape)}, wanted {[K]} or none")
        layers.append(Layer(w, (E, N, K), read, go, None if alpha is None or not math.prod(alpha.shape) else scale_of_experts(f"{name}'s alpha", alpha, E)))
    return layers


def _linear(name, scales, rows, columns):
    """Swizzled e4m3 scales [G, padded rows, padded columns] in the order of their blocks: [G, rows, columns]."""
    padded = (-(-rows // 128) * 128, -(-columns // 4) * 4)
    if tuple(scales.shape[1:]) != padded:
        raise InvalidShapeError(f"flashinfer: {name}: scales {list(scales.shape)} of {rows} rows and {columns} blocks: wanted {[scales.shape[0], *padded]} bytes, swizzled")
    tiles = scales.reshape(-1, padded[0] // 128, padded[1] // 4, 32, 4, 4)
    out = empty((tiles.shape[0], rows, columns), scales)
    out[...] = swapped(tiles, 0, 1, 4, 3, 2, 5).reshape(-1, *padded)[:, :rows, :columns]
    return out


def as_bytes(name, x):
    """Bytes of codes or scales that may be seen as wider integers or as e4m3."""
    if dtype_name(check(x, name)) not in ("uint8", "int32", "int64", "float8_e4m3fn"):
        raise InvalidDTypeError(f"flashinfer: {name} is {dtype_name(x)}: wanted uint8, or these bytes as int32, int64 or float8_e4m3fn")
    return seen_as(dense(x), "uint8")


def nvfp4_rows(x, sf, swizzled, like):
    """Quantized input [T, H / 2] with its block scales -> the values, without the tensor's scale, in the type of `like`."""
    codes, scales = as_bytes("input", x), as_bytes("input_sf", sf)
    T, blocks = codes.shape[0], 2 * codes.shape[1] // BLOCK
    if swizzled:
        padded = (-(-T // 128) * 128, -(-blocks // 4) * 4)
        if math.prod(scales.shape) != math.prod(padded):
            raise InvalidShapeError(f"flashinfer: input_sf has {math.prod(scales.shape)} bytes, wanted {list(padded)} of input {[T, 2 * codes.shape[1]]}, swizzled")
        scales = _linear("input_sf", scales.reshape(1, *padded), T, blocks)[0]
    return unpacked(codes, scales.reshape(T, -1), like)


def nvfp4(weights, quant_scales, like, quantized_input):
    """FP4 (e2m1) codes, an e4m3 scale of each 16 columns, and factors of each expert; rows are quantized too, times their tensor's scale."""
    scales = counted(quant_scales, 6, "activation scale, block scales and scale, of fc1 and of fc2 each")
    layers = []
    for w, name, enter, blocks, s in zip(weights, ("fc1", "fc2"), *(scales[i::3] for i in range(3))):
        codes = as_bytes(f"{name}_expert_weights", w)
        E, N, K = codes.shape[0], codes.shape[1], 2 * codes.shape[2]
        if K % BLOCK:
            raise InvalidShapeError(f"flashinfer: {name}_expert_weights: K {K} is not a multiple of {BLOCK}")
        blocks = as_bytes(f"{name}'s block scales", blocks)
        if len(blocks.shape) != 3 or blocks.shape[0] != E:
            raise InvalidShapeError(f"flashinfer: quant_scales: {name}'s block scales are {list(blocks.shape)}, wanted [E, N, K / 16] of weights {[E, N, K]}, padded and swizzled")
        linear = _linear(f"quant_scales: {name}'s block scales", blocks, N, K // BLOCK)
        factor = scale_of_experts(f"{name}'s activation scale", enter, E)

        def go(rows, expert, factor=factor):
            rows = cast(rows, f32(rows)) * of_rows(factor, expert)
            codes, scales = empty((rows.shape[0], rows.shape[1] // 2), rows, dtype_like("uint8", rows)), empty((rows.shape[0] * rows.shape[1] // BLOCK,), rows, dtype_like("uint8", rows))
            ops.quantize_block_scaled(dense(rows), tensor_scale=arange(1, 2, rows, "float32"), out=codes, scales=seen_as(scales, "float8_e4m3fn"))
            return unpacked(codes, scales.reshape(rows.shape[0], -1), like)

        layers.append(Layer(w, (E, N, K), lambda which, codes=codes, linear=linear: unpacked(codes[which], linear[which], like),
                            (lambda rows, _: rows) if quantized_input and name == "fc1" else go, scale_of_experts(f"{name}'s scale", s, E)))
    return layers
