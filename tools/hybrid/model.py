"""A small Qwen3.5 in PyTorch: gated DeltaNet by chunks, gated attention, SwiGLU, and the draft layer of multi-token prediction. Parameters have
the names of a hub folder, so that what trains is what is saved."""
import math
from functools import lru_cache

import torch
import torch.nn.functional as F

CHUNK = 64  # tokens that the delta rule takes at once
GROUP = 16  # columns that share a scale of FP4
LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of e2m1


def config(hidden=128, layers=8, mlp=256, vocab=1024, heads=4, kv=2, dim=32, k_heads=2, v_heads=4, delta=32, context=4096) -> dict:
    """config.json of a text model whose every fourth layer attends."""
    return {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": mlp, "vocab_size": vocab,
            "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim, "max_position_embeddings": context, "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "attn_output_gate": True,
            "layer_types": ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(layers)], "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": delta,
            "linear_value_head_dim": delta, "linear_num_key_heads": k_heads, "linear_num_value_heads": v_heads, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
            "tie_word_embeddings": True, "mtp_num_hidden_layers": 1, "mtp_hidden_state": "after_norm", "torch_dtype": "bfloat16"}


def shapes(c) -> dict:
    """Hub name -> shape."""
    H, M, D = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * D, c["num_key_value_heads"] * D
    keys, heads = c["linear_num_key_heads"] * c["linear_key_head_dim"], c["linear_num_value_heads"]
    values = heads * c["linear_value_head_dim"]
    mlp = {"input_layernorm.weight": (H,), "post_attention_layernorm.weight": (H,), "mlp.gate_proj.weight": (M, H), "mlp.up_proj.weight": (M, H), "mlp.down_proj.weight": (H, M)}
    attend = mlp | {f"self_attn.{n}": s for n, s in {"q_proj.weight": (2 * q, H), "k_proj.weight": (kv, H), "v_proj.weight": (kv, H), "o_proj.weight": (H, q), "q_norm.weight": (D,), "k_norm.weight": (D,)}.items()}
    carry = mlp | {f"linear_attn.{n}": s for n, s in {"in_proj_qkv.weight": (2 * keys + values, H), "in_proj_z.weight": (values, H), "in_proj_b.weight": (heads, H), "in_proj_a.weight": (heads, H),
                   "conv1d.weight": (2 * keys + values, 1, c["linear_conv_kernel_dim"]), "A_log": (heads,), "dt_bias": (heads,), "norm.weight": (c["linear_value_head_dim"],), "out_proj.weight": (H, values)}.items()}
    out = {"model.embed_tokens.weight": (c["vocab_size"], H), "model.norm.weight": (H,)}
    for i, kind in enumerate(c["layer_types"]):
        out |= {f"model.layers.{i}.{n}": s for n, s in (attend if kind == "full_attention" else carry).items()}
    out |= {f"mtp.{n}.weight": (H,) for n in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")} | {"mtp.fc.weight": (H, 2 * H)}
    return out | {f"mtp.layers.0.{n}": s for n, s in attend.items()}


def parameters(c, device, seed=0) -> dict:
    """Fresh ones in f32. Norms are stored less 1, but the one behind the delta rule."""
    g, out = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes(c).items():
        if name.endswith("A_log"):
            value = torch.log(torch.empty(shape).uniform_(1, 16, generator=g))
        elif name.endswith("dt_bias"):
            step = torch.exp(torch.empty(shape).uniform_(math.log(1e-3), math.log(0.1), generator=g))
            value = step + torch.log(-torch.expm1(-step))  # softplus of it is the step
        elif name.endswith("linear_attn.norm.weight"):
            value = torch.ones(shape)
        elif len(shape) == 1:
            value = torch.zeros(shape)
        elif "conv1d" in name:
            value = torch.empty(shape).uniform_(-0.5, 0.5, generator=g)
        else:
            into = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
            std = 0.02 * (1 / math.sqrt(2 * c["num_hidden_layers"]) if into else 1) * (1 if "embed" in name else math.sqrt(256 / c["hidden_size"]))
            value = torch.randn(shape, generator=g) * std
        out[name] = value.to(device).requires_grad_()
    return out


def narrow(name, shape) -> bool:
    """Whether a matrix is kept as FP4; the others stay 16-bit, as the engine has them."""
    return len(shape) == 2 and shape[1] % GROUP == 0 and ".layers." in name and "in_proj_a" not in name and "in_proj_b" not in name


@lru_cache
def values(device, numbers):
    """A tensor of them, made once: a graph that is being captured takes none from the host."""
    return torch.tensor(numbers, device=device)


def fp4(w):
    """(codes [N, K], e4m3 scales [N, K / 16], the whole's scale) of a matrix, as ModelOpt stores it."""
    blocks = w.detach().float().reshape(len(w), -1, GROUP)
    most = blocks.abs().amax(-1)
    whole = (most.max() / (6 * 448)).clamp(min=1e-30)
    scale = (most / 6 / whole).clamp(2**-6, 448).to(torch.float8_e4m3fn)
    x = blocks / (scale.float() * whole)[..., None]
    levels = values(w.device, LEVELS)
    near = torch.bucketize(x.abs(), (levels[1:] + levels[:-1]) / 2)
    return (near + 8 * (x < 0)).reshape(w.shape).to(torch.uint8), scale, whole


def on_grid(w):
    """What the codes stand for."""
    codes, scale, whole = fp4(w)
    levels = values(w.device, LEVELS + tuple(-x for x in LEVELS))
    return (levels[codes.long()].reshape(len(w), -1, GROUP) * (scale.float() * whole)[..., None]).reshape(w.shape)


class Hybrid:
    """p: parameters. `rounded`: matrices act as the FP4 that they are saved as; gradients pass as if they were not."""

    def __init__(self, c, p, rounded=False):
        self.c, self.p, self.rounded = c, p, rounded

    def w(self, name):
        w = self.p[name]
        return w + (on_grid(w) - w).detach() if self.rounded and narrow(name, w.shape) else w

    def norm(self, x, name, plus=1.0):
        x = x.float()
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * (self.p[name + ".weight"] + plus)

    def product(self, x, name):
        return F.linear(x, self.w(name + ".weight"))

    def recurrent(self, x, of):
        c, (B, T) = self.c, x.shape[:2]
        Hk, Hv, D, Dv = (c[f"linear_{n}"] for n in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
        mixed = self.product(x, of + "in_proj_qkv").transpose(1, 2)
        taps = self.p[of + "conv1d.weight"]
        mixed = F.silu(F.conv1d(F.pad(mixed, (taps.shape[2] - 1, 0)), taps.to(mixed.dtype), groups=len(taps))).transpose(1, 2).float()
        q, k, v = (t.reshape(B, T, h, d) for t, h, d in zip(mixed.split([Hk * D, Hk * D, Hv * Dv], -1), (Hk, Hk, Hv), (D, D, Dv)))
        q, k = (t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
        q, k = (t.repeat_interleave(Hv // Hk, 2).transpose(1, 2) for t in (q * D**-0.5, k))
        beta = torch.sigmoid(self.product(x, of + "in_proj_b").float()).transpose(1, 2)
        decay = (-self.p[of + "A_log"].exp() * F.softplus(self.product(x, of + "in_proj_a").float() + self.p[of + "dt_bias"])).transpose(1, 2)
        with torch.autocast(x.device.type, enabled=False):  # the state is f32 under every plan
            out = delta_rule(q, k, v.transpose(1, 2), decay, beta).transpose(1, 2)
        out = out * torch.rsqrt((out * out).mean(-1, keepdim=True) + c["rms_norm_eps"]) * self.p[of + "norm.weight"]
        out = out * F.silu(self.product(x, of + "in_proj_z").float().reshape(B, T, Hv, Dv))
        return self.product(out.reshape(B, T, -1), of + "out_proj")

    def attention(self, x, of):
        c, (B, T) = self.c, x.shape[:2]
        D, Hq, Hkv = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
        q, gate = self.product(x, of + "q_proj").reshape(B, T, Hq, 2 * D).split(D, -1)
        k, v = (self.product(x, of + f"{n}_proj").reshape(B, T, Hkv, D) for n in "kv")
        turning = int(D * c["rope_parameters"]["partial_rotary_factor"])
        angle = torch.arange(T, device=x.device)[:, None] * c["rope_parameters"]["rope_theta"] ** (-torch.arange(0, turning, 2, device=x.device) / turning)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]

        def turned(t, name):
            t = self.norm(t, of + name)
            a, b, rest = t.split([turning // 2, turning // 2, D - turning], -1)
            return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1).transpose(1, 2)

        q, k, v = turned(q, "q_norm"), turned(k, "k_norm"), v.transpose(1, 2)
        k, v = (t.repeat_interleave(Hq // Hkv, 1) for t in (k, v))
        out = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True).transpose(1, 2)
        return self.product((out * torch.sigmoid(gate)).reshape(B, T, -1), of + "o_proj")

    def layer(self, x, of):
        normed = self.norm(x, of + "input_layernorm")
        carries = of + "linear_attn.A_log" in self.p
        x = x + (self.recurrent(normed, of + "linear_attn.") if carries else self.attention(normed, of + "self_attn."))
        normed = self.norm(x, of + "post_attention_layernorm")
        return x + self.product(F.silu(self.product(normed, of + "mlp.gate_proj")) * self.product(normed, of + "mlp.up_proj"), of + "mlp.down_proj")

    def hidden(self, ids):
        """[B, T, H] behind the final norm."""
        x = self.p["model.embed_tokens.weight"][ids]
        for i in range(self.c["num_hidden_layers"]):
            x = self.layer(x, f"model.layers.{i}.")
        return self.norm(x, "model.norm")

    def logits(self, hidden):
        return F.linear(hidden, self.p["model.embed_tokens.weight"])

    def drafts(self, hidden, following):
        """Logits of what comes behind `following`, the tokens behind the positions of `hidden`."""
        both = torch.cat([self.norm(self.p["model.embed_tokens.weight"][following], "mtp.pre_fc_norm_embedding"), self.norm(hidden, "mtp.pre_fc_norm_hidden")], -1)
        return self.logits(self.norm(self.layer(self.product(both, "mtp.fc"), "mtp.layers.0."), "mtp.norm"))


def unit_inverse(below):
    """The inverse of 1 + below, of matrices [..., n, n] that are zero from the diagonal up: halves of halves, and 16 by products of powers, which
    are exact and cannot grow far. Many small triangular systems are slow on a GPU."""
    n = below.shape[-1]
    if n <= 16:
        power, out = -below, torch.eye(n, device=below.device) - below
        for _ in range(3):
            power = power @ power
            out = out + out @ power
        return out
    h = n // 2
    first, second = unit_inverse(torch.stack([below[..., :h, :h], below[..., h:, h:]]))
    corner = -second @ (below[..., h:, :h] @ first)
    return torch.cat([torch.cat([first, torch.zeros_like(first)], -1), torch.cat([corner, second], -1)], -2)


def delta_rule(q, k, v, decay, beta):
    """The gated delta rule of [B, H, T, D] in f32, chunk by chunk from a state of zeros: in each a triangular system, between them the state."""
    T = q.shape[2]
    pad = -T % CHUNK
    q, k, v = (F.pad(t, (0, 0, 0, pad)) for t in (q, k, v))
    decay, beta = F.pad(decay, (0, pad)), F.pad(beta, (0, pad))
    state, out = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]), []
    below = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    q, k, v, decay, beta = (t.unflatten(2, (-1, CHUNK)) for t in (q, k, v, decay, beta))  # what needs no state, of all chunks at once
    G = decay.cumsum(-1)
    kept = torch.exp((G[..., :, None] - G[..., None, :]).masked_fill(~below, -torch.inf))  # of what token i wrote, at token t
    solved = unit_inverse((beta[..., None] * kept * (k @ k.mT)).tril(-1)) * beta[..., None, :]
    own, carried, seen, faded = solved @ v, solved @ (G.exp()[..., None] * k), kept * (q @ k.mT), G.exp()[..., None] * q
    left, last = torch.exp(G[..., -1:] - G)[..., None] * k, G[..., -1].exp()[..., None, None]
    for i in range(q.shape[2]):
        written = own[:, :, i] - carried[:, :, i] @ state
        out.append(faded[:, :, i] @ state + seen[:, :, i] @ written)
        state = last[:, :, i] * state + left[:, :, i].mT @ written
    return torch.cat(out, 2)[:, :, :T]
