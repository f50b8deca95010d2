"""FlashInfer's names of gated activations over ops.act_mul."""
from vivace import ops
from vivace.compat.arrays import check, empty, matrices
from vivace.errors import InvalidShapeError


def _gated(x, out, act):
    """act(x[..., :H]) * x[..., H:] of x [..., 2H]."""
    shape = tuple(check(x, "input").shape)
    if len(shape) == 0 or shape[-1] % 2:
        raise InvalidShapeError(f"flashinfer: input is {list(shape)}: wanted [..., 2 * hidden_size]")
    wanted = (*shape[:-1], shape[-1] // 2)
    out = empty(wanted, x) if out is None else out
    if tuple(out.shape) != wanted:
        raise InvalidShapeError(f"flashinfer: out is {list(out.shape)}, wanted {list(wanted)}")
    for rows, to in matrices(x, out):
        ops.act_mul(rows, out=to, act=act)
    return out


def silu_and_mul(input, out=None, enable_pdl=None):
    """silu(input[..., :H]) * input[..., H:]."""
    return _gated(input, out, "silu")


def gelu_tanh_and_mul(input, out=None, enable_pdl=None):
    """gelu(input[..., :H]) * input[..., H:], gelu by tanh."""
    return _gated(input, out, "gelu_tanh")


def gelu_and_mul(input, out=None, enable_pdl=None):
    """gelu(input[..., :H]) * input[..., H:], gelu by erf."""
    return _gated(input, out, "gelu_erf")
