"""pi0.5 in PyTorch, of any size, over a dict of parameters whose names are those of openpi's converted checkpoints.

What `vivace.load_model(folder, config="pi05")` runs, written a second time for training: tests/test_demo.py holds the two
to each other. B observations; V views; T actions of A numbers a chunk; K chunks of an observation, which share its prefix.
"""
import math

import torch
import torch.nn.functional as F

TOP = "paligemma_with_expert."
TEXT, EXPERT = TOP + "paligemma.model.language_model.", TOP + "gemma_expert.model."
VISION, PROJECTOR = TOP + "paligemma.model.vision_tower.vision_model.", TOP + "paligemma.model.multi_modal_projector.linear"
EMBED = TOP + "paligemma.lm_head.weight"
LARGEST = 448  # of e4m3


def shapes(config: dict, vocab: int) -> dict[str, tuple]:
    """Name -> shape of every tensor that the engine reads: of the last layer of the prefix only keys and values."""
    out = {}

    def dense(name, n, k, bias=True):
        out[name + ".weight"] = (n, k)
        if bias:
            out[name + ".bias"] = (n,)

    v, t, e = config["vision"], config["text"], config["expert"]
    w = v["width"]
    out |= {VISION + "embeddings.patch_embedding.weight": (w, 3, v["patch_size"], v["patch_size"]), VISION + "embeddings.patch_embedding.bias": (w,),
            VISION + "embeddings.position_embedding.weight": ((v["image_size"] // v["patch_size"]) ** 2, w)}
    norms = [f"{VISION}encoder.layers.{i}.layer_norm{k}" for i in range(v["depth"]) for k in (1, 2)] + [VISION + "post_layernorm"]
    out |= {f"{name}.{part}": (w,) for name in norms for part in ("weight", "bias")}
    for i in range(v["depth"]):
        layer = f"{VISION}encoder.layers.{i}."
        for key in ("q_proj", "k_proj", "v_proj", "out_proj"):
            dense(f"{layer}self_attn.{key}", w, w)
        dense(layer + "mlp.fc1", v["mlp_dim"], w)
        dense(layer + "mlp.fc2", w, v["mlp_dim"])
    dense(PROJECTOR, t["width"], w)
    out[EMBED] = (vocab, t["width"])
    for at, c, adaptive in ((TEXT, t, False), (EXPERT, e, True)):
        w, q, kv = c["width"], c["num_heads"] * c["head_dim"], c["num_kv_heads"] * c["head_dim"]

        def norm(name):
            if adaptive:
                dense(name + ".dense", 3 * w, w)
            else:
                out[name + ".weight"] = (w,)

        for i in range(c["depth"]):
            layer, keys_only = f"{at}layers.{i}.", not adaptive and i + 1 == c["depth"]
            norm(layer + "input_layernorm")
            for key, n in (("k", kv), ("v", kv)) if keys_only else (("q", q), ("k", kv), ("v", kv)):
                dense(f"{layer}self_attn.{key}_proj", n, w, False)
            if keys_only:
                continue
            dense(layer + "self_attn.o_proj", w, q, False)
            norm(layer + "post_attention_layernorm")
            for key, n, k in (("gate", c["mlp_dim"], w), ("up", c["mlp_dim"], w), ("down", w, c["mlp_dim"])):
                dense(f"{layer}mlp.{key}_proj", n, k, False)
        if adaptive:
            norm(at + "norm")
    w = e["width"]
    for key, n, k in (("action_in_proj", w, config["action_dim"]), ("action_out_proj", config["action_dim"], w), ("time_mlp_in", w, w), ("time_mlp_out", w, w)):
        dense(key, n, k)
    return out


def parameters(config: dict, vocab: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Fresh ones."""
    g, out = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes(config, vocab).items():
        if "norm" in name:
            # LayerNorm multiplies by its weight, Gemma's norms by 1 + theirs, adaptive ones by 1 + what the time says.
            p = torch.full(shape, float(name.startswith(VISION) and name.endswith("weight")))
            if name.endswith("layernorm.dense.bias"):
                p[2 * shape[0] // 3:] = 1  # gates begin open
        elif name.endswith("bias"):
            p = torch.zeros(shape)
        elif name == EMBED:
            p = torch.randn(shape, generator=g) * shape[1] ** -0.5
        elif "position" in name:
            p = torch.randn(shape, generator=g) * 0.02
        else:
            p = torch.randn(shape, generator=g) * math.prod(shape[1:]) ** -0.5
            if name.endswith(("o_proj.weight", "out_proj.weight", "fc2.weight", "down_proj.weight")):
                p *= 0.5
        out[name] = p
    return out


class Rounded(torch.autograd.Function):
    """What a function makes of x; gradients pass as if it were x."""

    @staticmethod
    def forward(ctx, x, how):
        return how(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def in_codes(x):
    """x as the engine's "fp8" rounds what enters a product: e4m3, a scale a row."""
    scale = torch.linalg.vector_norm(x, ord=math.inf, dim=-1, keepdim=True).float().clamp(min=1e-20) / LARGEST
    return ((x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale).to(x.dtype)


def on_grid(w):
    """w as e4m3's numbers times a power of two a row, in which the largest of a row is e4m3's largest: "fp8" then finds that
    power as the row's scale and loses nothing, and bf16 ends in zeros, which pack."""
    rows = w.flatten(1)
    most = rows.abs().amax(1, keepdim=True)
    power = torch.log2(most.clamp(min=1e-20) / LARGEST).round().int()
    unit = ((power + 127) << 23).view(torch.float32)
    codes = torch.where(rows.abs() == most, rows.sign() * LARGEST, (rows / unit).clamp(-LARGEST, LARGEST))
    return (codes.to(torch.float8_e4m3fn).float() * unit).view_as(w)


def has_grid(w):
    return w.dim() > 1 and w.numel() >= 1 << 12


def takes_codes(name):
    """Whether "fp8" read this dense layer's weights in e4m3 when tiny-pi05 was trained; since then it reads 16 bits in all of the expert up to 64 rows."""
    return name.startswith(TOP) and not name.endswith((".dense", "out_proj", "patch_embedding")) and not (name.startswith(EXPERT) and name.endswith("o_proj"))


class Pi05:
    rounded = False  # whether products are those of "fp8", of weights that are on their grid

    def __init__(self, p: dict[str, torch.Tensor], config: dict):
        self.p, self.c = p, config
        half = config["expert"]["width"] // 2
        self.periods = 4e-3 * (4.0 / 4e-3) ** (torch.arange(half, dtype=torch.float64) / (half - 1))
        self.frequencies = 10000.0 ** (-torch.arange(config["text"]["head_dim"] // 2, dtype=torch.float64) * 2 / config["text"]["head_dim"])

    def to(self, device):
        self.p = {k: v.to(device) for k, v in self.p.items()}
        self.periods, self.frequencies = self.periods.to(device), self.frequencies.to(device)
        return self

    def dense(self, x, name):
        w = self.p[name + ".weight"].flatten(1)
        if self.rounded and takes_codes(name):
            x = Rounded.apply(x.to(torch.bfloat16) if x.is_cuda else x, in_codes)  # w is on e4m3's grid as it is
        return F.linear(x, w, self.p.get(name + ".bias"))

    def layer_norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.p[name + ".weight"], self.p[name + ".bias"], 1e-6)

    @staticmethod
    def rms(x):
        return F.rms_norm(x.float(), x.shape[-1:], eps=1e-6)

    def rope(self, x, pos):
        """[B, heads, L, D] by halves, at places [L]."""
        angle = pos[:, None].double() * self.frequencies
        c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def heads(self, x, name, tower):
        return self.dense(x, name).unflatten(-1, (-1, self.c[tower]["head_dim"])).transpose(1, 2)

    def images(self, pixels):
        """u8 [B, V, S, S, 3] -> image tokens [B, V * tokens, width of the language model]."""
        b, v, s, _, _ = pixels.shape
        c = self.c["vision"]
        n, side = s // c["patch_size"], c["patch_size"]
        x = pixels.float().div(127.5).sub(1).view(b * v, n, side, n, side, 3).permute(0, 1, 3, 5, 2, 4).reshape(b * v, n * n, -1)
        at = VISION + "embeddings."
        h = self.dense(x, at + "patch_embedding") + self.p[at + "position_embedding.weight"]
        for i in range(c["depth"]):
            at = f"{VISION}encoder.layers.{i}."
            x = self.layer_norm(h, at + "layer_norm1")
            q, k, w = (self.dense(x, f"{at}self_attn.{t}_proj").unflatten(-1, (c["num_heads"], -1)).transpose(1, 2) for t in "qkv")
            h = h + self.dense(F.scaled_dot_product_attention(q, k, w).transpose(1, 2).flatten(2), at + "self_attn.out_proj")
            x = self.dense(self.layer_norm(h, at + "layer_norm2"), at + "mlp.fc1")
            h = h + self.dense(F.gelu(x, approximate="tanh"), at + "mlp.fc2")
        return self.dense(self.layer_norm(h, VISION + "post_layernorm"), PROJECTOR).view(b, v * n * n, -1)

    def mlp(self, x, at):
        return self.dense(F.gelu(self.dense(x, at + "gate_proj"), approximate="tanh") * self.dense(x, at + "up_proj"), at + "down_proj")

    def prefix(self, pixels, ids):
        """Keys and values of every layer [B, kv heads, L, D], and what the last token knows [B, width]."""
        seen = self.images(pixels)
        words = F.embedding(ids, self.p[EMBED]) * self.c["text"]["width"] ** 0.5
        h = torch.cat([seen, words.to(seen.dtype)], 1)
        pos, cache = torch.arange(h.shape[1], device=h.device), []
        for i in range(self.c["text"]["depth"]):
            at = f"{TEXT}layers.{i}."
            x = self.rms(h) * (1 + self.p[at + "input_layernorm.weight"])
            k, v = self.rope(self.heads(x, at + "self_attn.k_proj", "text"), pos), self.heads(x, at + "self_attn.v_proj", "text")
            cache.append((k, v))
            if i + 1 == self.c["text"]["depth"]:
                return cache, h[:, -1]
            q = self.rope(self.heads(x, at + "self_attn.q_proj", "text"), pos)
            h = h + self.dense(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2), at + "self_attn.o_proj")
            h = h + self.mlp(self.rms(h) * (1 + self.p[at + "post_attention_layernorm.weight"]), at + "mlp.")

    def velocity(self, cache, x, t):
        """Of chunks x [B, K, T, A] at times t [B, K]."""
        b, chunks, n, _ = x.shape
        angle = 2 * math.pi * t[..., None].double() / self.periods
        cond = torch.cat([angle.sin(), angle.cos()], -1).float()
        for name in ("time_mlp_in", "time_mlp_out"):
            cond = F.silu(self.dense(cond, name))

        def ada(h, name):
            scale, shift, gate = self.dense(cond, name + ".dense")[:, :, None].chunk(3, -1)  # [B, K, 1, H]
            return self.rms(h) * (1 + scale) + shift, gate

        h = self.dense(x, "action_in_proj")
        length = cache[0][0].shape[2]
        pos = length + torch.arange(n, device=x.device).repeat(chunks)
        own = torch.arange(chunks, device=x.device).repeat_interleave(n)
        sees = F.pad(own[:, None] == own[None], (length, 0), value=True)  # the prefix, and its own chunk
        for i in range(self.c["expert"]["depth"]):
            at = f"{EXPERT}layers.{i}."
            y, gate = ada(h, at + "input_layernorm")
            q, k, v = (self.heads(y.flatten(1, 2), f"{at}self_attn.{part}_proj", "expert") for part in "qkv")
            k, v = torch.cat([cache[i][0], self.rope(k, pos)], 2), torch.cat([cache[i][1], v], 2)
            group = q.shape[1] // k.shape[1]
            y = F.scaled_dot_product_attention(self.rope(q, pos), k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), attn_mask=sees)
            h = h + gate * self.dense(y.transpose(1, 2).flatten(2), at + "self_attn.o_proj").view(h.shape)
            y, gate = ada(h, at + "post_attention_layernorm")
            h = h + gate * self.mlp(y, at + "mlp.")
        return self.dense(ada(h, EXPERT + "norm")[0], "action_out_proj")

    def actions(self, pixels, ids, noise, steps=10):
        """Normalised actions [B, T, A] of noise of that shape, by Euler's rule."""
        (cache, _), x = self.prefix(pixels, ids), noise[:, None]
        for s in range(steps):
            x = x - self.velocity(cache, x, torch.full(x.shape[:2], 1 - s / steps, device=x.device)) / steps
        return x[:, 0]
