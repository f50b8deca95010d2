"""SmolVLA in float64 NumPy, from the paper, lerobot's configuration and tests/reference/make_tiny_smolvla.py; no code of the engine.
`arithmetic`: as policy_numpy has it."""
import numpy as np

from tests.reference.policy_numpy import Policy, attend, rope, silu


class SmolVla(Policy):
    def __init__(self, weights, config, arithmetic=None):
        names = (("vlm_with_expert.vlm.model.vision_model.", "paligemma_with_expert.paligemma.model.vision_tower.vision_model."), ("vlm_with_expert.vlm.model.text_model.", "paligemma_with_expert.paligemma.model.language_model."),
                 ("vlm_with_expert.vlm.model.connector.", "connector."), ("vlm_with_expert.lm_expert.", "paligemma_with_expert.gemma_expert.model."))
        own = {}
        for name, value in weights.items():
            name = name.removeprefix("model.")
            for old, new in names:
                name = new + name.removeprefix(old) if name.startswith(old) else name
            own[name] = value
        super().__init__(own, (config["vision"]["num_heads"], config["text"]["num_heads"]), config["text"]["head_dim"], arithmetic)
        self.every, self.shuffle, self.layers, self.state_dim = config["self_attn_every_n_layers"], config["vision"]["scale_factor"], config["text"]["depth"], config["max_state_dim"]

    def vision(self, pictures):
        """A token of each square of shuffle x shuffle patches, line by line."""
        rows, s = self.seen(pictures), self.shuffle
        side, width = int(np.sqrt(len(rows) // len(pictures))) // s, rows.shape[1]
        return self.product(rows.reshape(-1, side, s, side, s, width).transpose(0, 1, 3, 2, 4, 5).reshape(-1, s * s * width), "connector.modality_projection.proj")

    def _rms(self, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def _normed(self, h, name):
        return self.a.value(self._rms(h) * self.w[name + ".weight"])

    def _mlp(self, x, layer, plus=0.0):
        gated = silu(self.a.enters(x) @ self.a.weight(self.w[layer + "mlp.gate_proj.weight"]).T) * (self.a.enters(x) @ self.a.weight(self.w[layer + "mlp.up_proj.weight"]).T)
        return self.product(self.a.value(gated), layer + "mlp.down_proj", plus=plus)

    def prefix(self, pictures, tokens, state):
        a = self.a
        embed = a.value(self.w[self.paligemma + "language_model.embed_tokens.weight"])
        wide = np.sqrt(embed.shape[1])
        padded = np.zeros(self.state_dim)
        padded[:len(state)] = state
        h = np.concatenate([a.value(self.vision(pictures) * wide), a.value(embed[tokens] * wide), a.value(self.exact(padded[None], "state_proj"))])
        pos, cache = np.arange(len(h)), []
        for i in range(self.layers):
            p = f"{self.paligemma}language_model.layers.{i}."
            q, k, v = self._qkv(self._normed(h, p + "input_layernorm"), p, pos)
            cache.append((k, v))
            mixed = np.concatenate([attend(q[:-1], k[:-1], v[:-1]), attend(q[-1:], k, v)])  # the state sees the others, and they do not see it
            h = self.product(a.value(mixed).reshape(len(h), -1), p + "self_attn.o_proj", plus=h)
            h = self._mlp(self._normed(h, p + "post_attention_layernorm"), p, plus=h)
        return cache, h

    def _velocity(self, x, t, cache, state):
        a, n, horizon = self.a, len(cache[0][0]), len(x)
        w = a.value(self.w["action_time_mlp_in.weight"])
        E = len(w)
        angle = 2 * np.pi * t[:, None] / (4e-3 * (4.0 / 4e-3) ** (np.arange(E // 2) / (E // 2 - 1)))
        time = np.concatenate([np.sin(angle), np.cos(angle)], 1)
        h = a.value(self.exact(x, "action_in_proj"))
        mixed = a.value(silu(h @ w[:, :E].T + time @ w[:, E:].T + self.w["action_time_mlp_in.bias"]))
        h = a.value(mixed @ a.value(self.w["action_time_mlp_out.weight"]).T + self.w["action_time_mlp_out.bias"])
        own = np.arange(horizon)
        for i, (k0, v0) in enumerate(cache):
            p = f"{self.expert}layers.{i}."
            y = self._normed(h, p + "input_layernorm")
            if self.every and i % self.every == 0:
                q, k, v = self._qkv(y, p, n + own)
                k, v = np.concatenate([k0, k]), np.concatenate([v0, v])
                mixed = np.concatenate([attend(q[j:j + 1], k[:n + j + 1], v[:n + j + 1]) for j in range(horizon)])
            else:
                q = a.value(rope(self.product(y, p + "self_attn.q_proj").reshape(horizon, -1, self.head_dim), own))
                k, v = (self.product(c.reshape(n, -1), f"{p}self_attn.{part}_proj").reshape(n, -1, self.head_dim) for c, part in ((k0, "k"), (v0, "v")))
                mixed = attend(q, k, v)
            h = self.product(a.value(mixed).reshape(horizon, -1), p + "self_attn.o_proj", plus=h)
            h = self._mlp(self._normed(h, p + "post_attention_layernorm"), p, plus=h)
        return self._normed(h, self.expert + "norm") @ a.value(self.w["action_out_proj.weight"]).T + self.w["action_out_proj.bias"]

    def actions(self, pictures, tokens, noise, steps, state):
        cache, x = self.prefix(pictures, tokens, state)[0], noise.astype(np.float64)
        for s in range(steps):
            x = x - self.velocity(x, 1 - s / steps, cache) / steps
        return x
