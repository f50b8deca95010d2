"""Every decoder family in float64 NumPy, from config.json and hub weights alone: a whole sequence at once, no cache, no code of
the engine. tests/reference/test_reference.py holds it to transformers' values. `arithmetic` (policy_numpy.Exact, Rounded, ...)
rounds values between parts and what products read, as a precision plan does.
"""
import numpy as np

from tests.reference import rope
from tests.reference.policy_numpy import Exact, gelu, silu

ROPE_KEYS = ("rope_parameters", "rope_scaling")


class Summed(Exact):
    """Values and sums of products in float32: each sum a term after the other, in an order that rng draws."""

    def __init__(self, rng):
        self.rng = rng

    def value(self, x):
        grid = self.rng.uniform(1, 2)
        return (x * grid).astype(np.float32).astype(np.float64) / grid

    def product(self, x, w):
        x, w = np.asarray(x, np.float32), np.asarray(w, np.float32)
        sums = np.zeros((len(x), len(w)), np.float32)
        for k in self.rng.permutation(x.shape[1]):
            sums += x[:, k, None] * w[:, k]
        return sums.astype(np.float64)


class Decoder:
    """config: of config.json; weights: hub name -> array."""

    def __init__(self, config, weights, arithmetic=None):
        self.c, self.a = config, arithmetic or Exact()
        self.w = {k.removeprefix("model.").removeprefix("transformer."): v.astype(np.float64) for k, v in weights.items()}
        self.kind = config["model_type"]
        self.plain, self.gemma, self.hybrid = self.kind == "gpt2", self.kind == "gemma3_text", self.kind.startswith(("qwen3_5", "qwen3_next"))
        get = (lambda key, other: config[other]) if self.plain else (lambda key, other: config[key])
        self.layers, self.hidden = get("num_hidden_layers", "n_layer"), get("hidden_size", "n_embd")
        self.heads = get("num_attention_heads", "n_head")
        self.kv = config.get("num_key_value_heads", self.heads)
        self.dim = config.get("head_dim") or self.hidden // self.heads
        self.eps = config.get("layer_norm_epsilon", 1e-5) if self.plain else config.get("rms_norm_eps", 1e-6)
        if self.kind == "qwen3_next":
            self.of_key_heads()
        self.closest = []  # of the last logits(): how near each row came to other experts

    def of_key_heads(self):
        """Qwen3-Next keeps together what is a key head's, in two matrices a layer: its query, key, values and gates; b and a."""
        Hk, Hv, D, Dv = (self.c[f"linear_{n}"] for n in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
        wide, flat = Hv // Hk * Dv, lambda w: w.reshape(-1, w.shape[-1])
        for name in [k for k in self.w if k.endswith("in_proj_qkvz.weight")]:
            p = name.removesuffix("qkvz.weight")
            q, k, v, z = np.split(self.w.pop(name).reshape(Hk, 2 * (D + wide), self.hidden), np.cumsum([D, D, wide]), 1)
            b, a = np.split(self.w.pop(p + "ba.weight").reshape(Hk, 2 * Hv // Hk, self.hidden), 2, 1)
            self.w |= {p + "qkv.weight": np.concatenate([flat(t) for t in (q, k, v)]), p + "z.weight": flat(z), p + "b.weight": flat(b), p + "a.weight": flat(a)}

    # ---- parts ----

    def product(self, x, w, bias=None, narrow=True):
        """`narrow` is false for what no plan of 8 bits touches, and "weights" where rows stay as they are: of experts."""
        a = self.a.weights_alone() if narrow == "weights" else self.a if narrow else self.a.in_expert()
        y = a.product(a.enters(x), a.weight(w))
        return y if bias is None else y + self.a.value(bias)

    def norm(self, x, name):
        w = self.w[name + ".weight"]
        if self.plain:
            y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self.eps)
            return self.a.value(y * w + self.w[name + ".bias"])
        return self.a.value(x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * (w + 1 if self.gemma or self.hybrid else w))

    def local(self, i):
        if not self.gemma:
            return False
        types = self.c.get("layer_types")
        return types[i] == "sliding_attention" if types else (i + 1) % self.c.get("sliding_window_pattern", 6) != 0

    def angles(self, i, T):
        """cos and sin [T, D / 2]."""
        scaling = next((self.c[k] for k in ROPE_KEYS if self.c.get(k)), None)
        base = self.c.get("rope_theta", 1e6 if self.gemma else 10000.0)
        if self.gemma:
            nested = scaling if scaling and "full_attention" in scaling else {}
            own = nested.get("sliding_attention" if self.local(i) else "full_attention")
            if self.local(i):
                base, scaling = (own or {}).get("rope_theta", self.c.get("rope_local_base_freq", 10000.0)), None
            elif nested:
                base, scaling = own.get("rope_theta", base), own
        base = (scaling or {}).get("rope_theta", base)
        turning = int(self.dim * (scaling or self.c)["partial_rotary_factor"]) if self.hybrid else self.dim
        freq, factor = rope.frequencies(float(base), turning, None if self.hybrid else scaling)
        angle = np.arange(T)[:, None] * freq
        return np.cos(angle) * factor, np.sin(angle) * factor

    def recurrent(self, i, x, p):
        """The gated delta rule, a token after the other."""
        a, T, p = self.a, len(x), p + "linear_attn."
        Hk, Hv, D, Dv = (self.c[f"linear_{n}"] for n in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
        mixed, z, beta, time = (a.value(self.product(x, self.w[f"{p}in_proj_{n}.weight"], narrow=len(n) > 1 or n == "z")) for n in ("qkv", "z", "b", "a"))
        taps = a.value(self.w[p + "conv1d.weight"][:, 0])
        line = np.concatenate([np.zeros((taps.shape[1] - 1, mixed.shape[1])), mixed])
        mixed = a.value(silu(sum(line[k : k + T] * taps[:, k] for k in range(taps.shape[1]))))
        q, k, v = (t.reshape(T, -1, d) for t, d in zip(np.split(mixed, [Hk * D, 2 * Hk * D], 1), (D, D, Dv)))
        q, k = (np.repeat(t / np.sqrt((t * t).sum(-1, keepdims=True) + 1e-6), Hv // Hk, 1) for t in (q, k))
        kept = np.exp(-np.exp(self.w[p + "A_log"]) * np.logaddexp(0, time + self.w[p + "dt_bias"]))
        beta, state, out = 1 / (1 + np.exp(-beta)), np.zeros((Hv, D, Dv)), np.empty((T, Hv, Dv))
        for t in range(T):
            state = state * kept[t][:, None, None]
            state = state + k[t][:, :, None] * (beta[t][:, None] * (v[t] - np.einsum("hdc,hd->hc", state, k[t])))[:, None]
            out[t] = np.einsum("hdc,hd->hc", state, q[t]) / np.sqrt(D)
        out = a.value(out)
        out = out / np.sqrt((out * out).mean(-1, keepdims=True) + self.eps) * self.w[p + "norm.weight"] * silu(z.reshape(T, Hv, Dv))
        return self.product(a.value(out).reshape(T, -1), self.w[p + "out_proj.weight"])

    def attention(self, i, x, p):
        a, T = self.a, len(x)
        if self.plain:
            q, k, v = np.split(self.product(x, self.w[p + "attn.c_attn.weight"].T, self.w[p + "attn.c_attn.bias"]), 3, 1)
        else:
            q, k, v = (self.product(x, self.w[f"{p}self_attn.{n}_proj.weight"], self.w.get(f"{p}self_attn.{n}_proj.bias")) for n in "qkv")
        if self.hybrid:
            q, gate = (t.reshape(T, -1) for t in np.split(q.reshape(T, -1, 2 * self.dim), 2, 2))
        q, k, v = (a.value(t).reshape(T, -1, self.dim) for t in (q, k, v))
        if p + "self_attn.q_norm.weight" in self.w:
            q, k = self.norm(q, p + "self_attn.q_norm"), self.norm(k, p + "self_attn.k_norm")
        if not self.plain:
            cos, sin = self.angles(i, T)
            n = 2 * cos.shape[-1]
            q, k = (a.value(np.concatenate([rope.rotate(t[..., :n], cos, sin, False), t[..., n:]], -1)) for t in (q, k))
        at = np.arange(T)
        sees = at[:, None] >= at
        if self.local(i):
            sees &= at[:, None] - at < self.c["sliding_window"]
        scale = self.c.get("query_pre_attn_scalar", 256) if self.gemma else self.dim
        out = np.empty_like(q)
        for h in range(self.heads):
            g = h * self.kv // self.heads
            s = np.where(sees, q[:, h] @ k[:, g].T / np.sqrt(scale), -np.inf)
            w = np.exp(s - s.max(1, keepdims=True))
            out[:, h] = w / w.sum(1, keepdims=True) @ v[:, g]
        out = a.value(out).reshape(T, -1)
        if self.hybrid:
            out = a.value(out / (1 + np.exp(-a.value(gate))))
        return self.product(out, self.w[p + "attn.c_proj.weight"].T, self.w[p + "attn.c_proj.bias"]) if self.plain else self.product(out, self.w[p + "self_attn.o_proj.weight"])

    def gated(self, x, gate, up, down, narrow=True):
        act = gelu if self.gemma else silu
        return self.product(self.a.value(act(self.product(x, gate, narrow=narrow)) * self.product(x, up, narrow=narrow)), down, narrow=narrow)

    def mlp(self, x, p):
        if self.plain:
            inner = self.a.value(gelu(self.product(x, self.w[p + "mlp.c_fc.weight"].T, self.w[p + "mlp.c_fc.bias"])))
            return self.product(inner, self.w[p + "mlp.c_proj.weight"].T, self.w[p + "mlp.c_proj.bias"])
        used = self.c.get("num_experts_per_tok")
        if not used:
            return self.gated(x, *(self.w[f"{p}mlp.{n}_proj.weight"] for n in ("gate", "up", "down")))
        mixtral = self.kind == "mixtral"
        block, names = ("block_sparse_moe.", ("w1", "w3", "w2")) if mixtral else ("mlp.", ("gate_proj", "up_proj", "down_proj"))
        z = x @ self.w[f"{p}{block}gate.weight"].T
        prob = np.exp(z - z.max(1, keepdims=True))
        prob /= prob.sum(1, keepdims=True)
        order = np.sort(z, 1)[:, ::-1]
        if used < z.shape[1]:
            self.closest = np.minimum(self.closest, order[:, used - 1] - order[:, used])
        chosen = np.argsort(-prob, 1, kind="stable")[:, :used]
        out = np.zeros_like(x)
        for e in np.unique(chosen):
            rows, _ = np.nonzero(chosen == e)
            weight = prob[rows, e]
            if mixtral or self.c.get("norm_topk_prob", self.hybrid):
                weight = weight / np.take_along_axis(prob, chosen, 1)[rows].sum(1)
            if p + "mlp.experts.gate_up_proj" in self.w:
                matrices = (*np.split(self.w[p + "mlp.experts.gate_up_proj"][e], 2), self.w[p + "mlp.experts.down_proj"][e])
            else:
                matrices = (self.w[f"{p}{block}experts.{e}.{n}.weight"] for n in names)
            out[rows] += weight[:, None] * self.a.value(self.gated(x[rows], *matrices, narrow="weights"))
        if self.hybrid:  # the expert that every token takes is one of them where it is as wide
            shared = [self.w[f"{p}mlp.shared_expert.{n}_proj.weight"] for n in ("gate", "up", "down")]
            out = out + self.gated(x, *shared, narrow="weights" if len(shared[0]) == self.c["moe_intermediate_size"] else False) / (1 + np.exp(-(x @ self.w[p + "mlp.shared_expert_gate.weight"].T)))
        return out

    # ---- the whole ----

    def residual(self, ids):
        """[T, H] in front of the final norm; `closest` gets, a row, the least distance of its last expert from the first that was left out."""
        a, ids = self.a, np.asarray(ids)
        self.closest = np.full(len(ids), np.inf)
        table = self.w["wte.weight" if self.plain else "embed_tokens.weight"]
        x = a.value(table)[ids] * (np.sqrt(self.hidden) if self.gemma else 1)
        if self.plain:
            x = x + a.value(self.w["wpe.weight"])[:len(ids)]
        x = a.value(x)
        names = ("ln_1", "ln_2", "ln_f") if self.plain else ("input_layernorm", "pre_feedforward_layernorm" if self.gemma else "post_attention_layernorm", "norm")
        for i in range(self.layers):
            p = f"h.{i}." if self.plain else f"layers.{i}."
            carries = p + "linear_attn.in_proj_qkv.weight" in self.w
            y = (self.recurrent if carries else self.attention)(i, self.norm(x, p + names[0]), p)
            x = a.value(x + (self.norm(a.value(y), p + "post_attention_layernorm") if self.gemma else y))
            y = self.mlp(self.norm(x, p + names[1]), p)
            x = a.value(x + (self.norm(a.value(y), p + "post_feedforward_layernorm") if self.gemma else y))
        return x

    def head(self, x):
        return self.product(x, self.w.get("lm_head.weight", self.w["wte.weight" if self.plain else "embed_tokens.weight"]))

    def logits(self, ids):
        """[T, V] of every token; `closest`: see residual()."""
        x = self.residual(ids)
        return self.head(self.norm(x, "ln_f" if self.plain else "norm"))

    def drafts(self, ids, count, normed=True):
        """What the draft layer of a hybrid makes of `ids`: [count, V], of what may follow them, what may follow those and its first guess, and
        so on. Position p goes on from what the model made of token p, behind its final norm or before it, and token p + 1; behind the last, from
        what it made itself."""
        x = self.residual(ids)
        heard, ids, out = list((self.norm(x, "norm") if normed else x)[:-1]), list(ids), []
        for _ in range(count):
            embedded = self.a.value(self.w["embed_tokens.weight"])[np.asarray(ids[1:])]
            both = np.concatenate([self.norm(embedded, "mtp.pre_fc_norm_embedding"), self.norm(np.array(heard), "mtp.pre_fc_norm_hidden")], 1)
            x = self.product(both, self.w["mtp.fc.weight"])
            self.closest = np.full(len(x), np.inf)
            x = x + self.attention(0, self.norm(x, "mtp.layers.0.input_layernorm"), "mtp.layers.0.")
            x = x + self.mlp(self.norm(x, "mtp.layers.0.post_attention_layernorm"), "mtp.layers.0.")
            y = self.norm(x, "mtp.norm")
            out.append(self.head(y[-1]))
            heard.append((y if normed else x)[-1])
            ids.append(int(np.argmax(out[-1])))
        return np.array(out)
