"""The same work in PyTorch, by op and variant: functions of a call's tensors by port name, which return what is written."""
import torch
import torch.nn.functional as F


def _rms(x, weight):
    h = x.float()
    return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def _fp8(y, scale):
    return (y.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def _add_rms(x, residual, weight):
    r = residual + x
    return r, _rms(r, weight)


def _add_rms_fp8(x, residual, weight, out_scale):
    r, y = _add_rms(x, residual, weight)
    return r, _fp8(y, out_scale)


def _rms_fp8_row(x, weight):
    y = _rms(x, weight).float()
    scale = y.abs().amax(-1, keepdim=True) / 448
    return _fp8(y, scale), scale


def _fp8_by_groups(x, width):
    y = x.float().unflatten(-1, (-1, width))
    scale = y.abs().amax(-1, keepdim=True) / 448
    return _fp8(y, scale).flatten(-2), scale.squeeze(-1)


def _swiglu(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def _rotate(x, inv_freq, pos):
    angle = pos[:, None].float() * inv_freq
    c, s = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)


def _qkv(qkv, q, k_out, inv_freq, pos, q_norm=None, k_norm=None):
    D = inv_freq.numel() * 2
    heads, kv = q.numel() // qkv.shape[0] // D, k_out.numel() // qkv.shape[0] // D
    q, k, v = qkv.view(qkv.shape[0], -1, D).split((heads, kv, kv), 1)
    if q_norm is not None:
        q, k = _rms(q, q_norm), _rms(k, k_norm)
    return _rotate(q, inv_freq, pos), _rotate(k, inv_freq, pos), v.contiguous()


def _patches(x, scale, offset):
    pixels = x.permute(0, 3, 1, 2).float() * scale[:, None, None] + offset[:, None, None]
    rows = pixels.unflatten(3, (-1, 14)).unflatten(2, (-1, 14)).permute(0, 2, 4, 1, 3, 5)  # N, OH, OW, C, 14, 14
    return F.pad(rows.flatten(3), (0, 4)).bfloat16()


def _windows(x):
    padded = F.pad(x[:, 0], (0, 0, 1, 1))
    return torch.cat((padded[:, :-2], padded[:, 1:-1], padded[:, 2:]), -1)


PEERS = {
    ("im2col", "patches"): lambda x, scale, offset, **_: _patches(x, scale, offset),
    ("im2col", "conv1d"): lambda x, **_: _windows(x),
    ("repeat_heads", "4x"): lambda x, **_: x.repeat_interleave(4, 1),
    ("norm", "rms"): lambda x, weight, **_: F.rms_norm(x, (x.shape[-1],), weight, 1e-6),
    ("norm", "add_rms"): lambda x, residual, weight, **_: _add_rms(x, residual, weight),
    ("norm", "add_rms_fp8"): lambda x, residual, weight, out_scale, **_: _add_rms_fp8(x, residual, weight, out_scale),
    ("norm", "rms_fp8_row"): lambda x, weight, **_: _rms_fp8_row(x, weight),
    ("norm", "layer"): lambda x, weight, bias, **_: F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-6),
    ("act_mul", "swiglu"): lambda x, **_: _swiglu(x),
    ("act_mul", "swiglu_fp8"): lambda x, out_scale, **_: _fp8(_swiglu(x), out_scale),
    ("act_mul", "gelu_split"): lambda gate, up, **_: F.gelu(gate, approximate="tanh") * up,
    ("cast", "copy"): lambda x, **_: x.clone(),
    ("cast", "fp8"): lambda x, **_: x.clamp(-448, 448).to(torch.float8_e4m3fn),
    ("cast", "f32"): lambda x, **_: x.float(),
    ("softmax", "rows"): lambda x, **_: torch.softmax(x, -1),
    ("rope", "half"): lambda x, inv_freq, pos, **_: _rotate(x.view(len(pos), -1, 2 * inv_freq.numel()), inv_freq, pos),
    ("qkv_rope", "split"): lambda qkv, q, k_out, inv_freq, pos, **_: _qkv(qkv, q, k_out, inv_freq, pos),
    ("qkv_rope", "norm"): lambda qkv, q, k_out, inv_freq, pos, q_norm, k_norm, **_: _qkv(qkv, q, k_out, inv_freq, pos, q_norm, k_norm),
    ("quantize", "tensor"): lambda x, out_scale, **_: _fp8(x, out_scale),
    ("quantize", "row"): lambda x, **_: _fp8_by_groups(x, x.shape[-1]),
    ("quantize", "block"): lambda x, **_: _fp8_by_groups(x, 128),
    ("dequantize", "row"): lambda x, row_scale, **_: (x.float() * row_scale[:, None]).bfloat16(),
    ("gate_residual", "add"): lambda x, residual, **_: residual + x,
    ("gate_residual", "gated"): lambda x, residual, gate, **_: (residual.float() + gate.float() * x.float()).to(x.dtype),
    ("reduce", "amax"): lambda x, **_: x.abs().amax(-1).float(),
    ("reduce", "sum"): lambda x, **_: x.float().sum(-1),
    ("fill", "value"): lambda out, **_: torch.full_like(out, 1.5),
    ("embedding", "bf16"): lambda table, ids, **_: F.embedding(ids.flatten(), table),
}
