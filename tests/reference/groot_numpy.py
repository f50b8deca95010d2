"""GR00T N1.7 and N1.6 in float64 NumPy, from the papers and the golden data alone; no code of the engine. Arithmetic as policy_numpy's Exact and Rounded; with eight bits
in what runs once an observation, but for what vision's attention leaves."""
import math

import numpy as np

from tests.reference.policy_numpy import Exact, gelu, silu

_erf = np.vectorize(math.erf, otypes=[np.float64])


def layer_norm(x, eps, weight=1, bias=0):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * weight + bias


def rms_norm(x, eps, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def turn(x, angles):
    """[T, heads, D] by halves; angles [T, D / 2]."""
    half, c, s = x.shape[-1] // 2, np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([x[..., :half] * c - x[..., half:] * s, x[..., half:] * c + x[..., :half] * s], -1)


def attend(q, k, v, seen):
    """[T, Hq, D] over [L, Hkv, D]; seen [T, L]. What sees nothing is 0."""
    k, v = (np.repeat(t, q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = np.where(seen, np.einsum("thd,lhd->htl", q, k) / np.sqrt(q.shape[-1]), -np.inf)
    p = np.exp(s - np.maximum(s.max(-1, keepdims=True, initial=-np.inf), -1e300))
    return np.einsum("htl,lhd->thd", p / np.maximum(p.sum(-1, keepdims=True), 1e-300), v)


def resized(table, lines, columns):
    """[grid, grid, H] scaled to [lines, columns, H] as an image: bilinear with antialiasing, corners on corners."""
    def shares(places, count):
        step = count / places
        wide = max(step, 1.0)
        middles = step * (np.arange(places) + 0.5)
        s = np.maximum(0, 1 - np.abs((np.arange(count) + 0.5 - middles[:, None]) / wide))
        return s / s.sum(1, keepdims=True)
    return np.einsum("rj,ck,jkh->rch", shares(lines, table.shape[0]), shares(columns, table.shape[1]), table)


class Groot:
    language_at, last_norm = "backbone.model.model.language_model.", False
    whole = False  # what runs is a model's first layers, whose last is heard before the tower's level is added

    def __init__(self, weights, config, arithmetic=None):
        self.w = {k: v.astype(np.float64) for k, v in weights.items()}
        self.c, self.a = config, arithmetic or Exact()
        self.of_context = self.a
        self.text, self.vision = config["backbone"]["text"], config["backbone"]["vision"]

    def linear(self, x, name, weight=None, bias=None, act=None, raw=False):
        """raw: a product whose operands the plan leaves in f32."""
        keep = (lambda v: v) if raw else self.a.weight
        w = keep(self.w[name + ".weight"] if weight is None else weight)
        b = self.w.get(name + ".bias") if bias is None else bias
        y = (x if raw else self.a.enters(x)) @ w.T + (0 if b is None else b if raw else self.a.value(b))
        return self.a.value(act(y) if act else y)

    def norm(self, x, name, eps):
        return self.a.value(layer_norm(x, eps, self.w[name + ".weight"], self.w[name + ".bias"]))

    def places(self, lines, columns):
        """Patches in the order in which tokens take them: of each token line by line."""
        m = self.vision["spatial_merge_size"]
        return np.array([(r * m + i, c * m + j) for r in range(lines // m) for c in range(columns // m) for i in range(m) for j in range(m)])

    def tower(self, image):
        """(tokens of an image, [deepstack levels])."""
        v, at, a = self.vision, "backbone.model.model.visual.", self.a
        p, heads, width = v["patch_size"], v["num_heads"], v["hidden_size"]
        lines, columns = image.shape[0] // p, image.shape[1] // p
        places = self.places(lines, columns)
        pixels = a.value(image / 255 * 2 - 1)
        patches = np.stack([pixels[r * p:(r + 1) * p, c * p:(c + 1) * p].transpose(2, 0, 1).ravel() for r, c in places])
        grid = math.isqrt(v["num_position_embeddings"])
        table, learned = self.w[at + "pos_embed.weight"].reshape(grid, grid, -1), []
        for r, c in places:
            y, x = (i * (grid - 1) / (n - 1) if n > 1 else 0.0 for i, n in ((r, lines), (c, columns)))
            i, j = int(y + 1e-6), int(x + 1e-6)
            y, x, i2, j2 = y - i, x - j, min(i + 1, grid - 1), min(j + 1, grid - 1)
            learned.append(table[i, j] * (1 - y) * (1 - x) + table[i, j2] * (1 - y) * x + table[i2, j] * y * (1 - x) + table[i2, j2] * y * x)
        kernel = a.value(self.w[at + "patch_embed.proj.weight"].sum(2).reshape(width, -1))
        h = a.value(patches @ kernel.T + a.value(self.w[at + "patch_embed.proj.bias"]) + a.value(np.stack(learned)))
        quarter = width // heads // 4
        freq = 1e4 ** (-np.arange(quarter) / quarter)
        angles = np.concatenate([places[:, :1] * freq, places[:, 1:] * freq], 1)
        everything, levels = np.ones((len(h), len(h)), bool), []
        for i in range(v["depth"]):
            b = f"{at}blocks.{i}."
            qkv = self.linear(self.norm(h, b + "norm1", 1e-6), b + "attn.qkv").reshape(len(h), 3, heads, -1)
            q, k = (a.value(turn(qkv[:, n], angles)) for n in (0, 1))
            h = a.value(h + self._bare(a.value(attend(q, k, qkv[:, 2], everything)).reshape(h.shape), b + "attn.proj", wide=True))
            h = a.value(h + self._bare(self.linear(self.norm(h, b + "norm2", 1e-6), b + "mlp.linear_fc1", act=gelu), b + "mlp.linear_fc2"))
            if i in v["deepstack_visual_indexes"]:
                name = f"{at}deepstack_merger_list.{len(levels)}"
                levels.append(self.merge(self.norm(h.reshape(-1, 4 * width), name + ".norm", 1e-6), name))
        return self.merge(self.norm(h, at + "merger.norm", 1e-6).reshape(-1, 4 * width), at + "merger"), levels

    def _bare(self, x, name, wide=False):
        """A product that joins the residual stream before it is rounded."""
        a, b = self.a.in_expert() if wide else self.a, self.w.get(name + ".bias")
        return a.enters(x) @ a.weight(self.w[name + ".weight"]).T + (0 if b is None else a.value(b))

    def merge(self, x, name):
        return self.linear(self.linear(x, name + ".linear_fc1", act=lambda y: y / 2 * (1 + _erf(y / math.sqrt(2)))), name + ".linear_fc2")

    def language(self, images, tokens):
        """(features [T, H], which rows are images') of tokens in which each image is one."""
        t, at, a, pad = self.text, self.language_at, self.a, self.c["backbone"]["image_token_id"]
        seen, p = [self.tower(i) for i in images], self.token_side()
        rows, turns, is_image, now, which = [], [], [], 0, 0
        for token in tokens:
            if token != pad:
                rows.append(a.value(self.w[at + "embed_tokens.weight"][token]))
                turns.append((now,) * 3)
                is_image.append(False)
                now += 1
                continue
            lines, columns = images[which].shape[0] // p, images[which].shape[1] // p
            rows += list(seen[which][0])
            turns += self.turns(now, lines, columns)
            is_image += [True] * (lines * columns)
            now, which = now + self.beyond(lines, columns), which + 1
        h, turns, is_image = np.stack(rows), np.array(turns), np.array(is_image)
        levels = [np.concatenate([s[1][n] for s in seen]) for n in range(len(seen[0][1]))] if seen else []
        half = t["head_dim"] // 2
        sections = t.get("mrope_section", [half, 0, 0])
        axis = np.array([i % 3 if i % 3 and i < 3 * sections[i % 3] else 0 for i in range(half)])
        angles = turns[:, axis] * t["rope_theta"] ** (-np.arange(half) / half)
        before, eps = np.tri(len(h), dtype=bool), t["rms_norm_eps"]
        for i in range(self.c["select_layer"]):
            b = f"{at}layers.{i}."
            x = a.value(rms_norm(h, eps, self.w[b + "input_layernorm.weight"]))
            q, k, v = (self.linear(x, f"{b}self_attn.{n}_proj").reshape(len(h), -1, t["head_dim"]) for n in "qkv")
            q, k = (a.value(turn(rms_norm(y, eps, self.w[f"{b}self_attn.{n}_norm.weight"]), angles)) for n, y in (("q", q), ("k", k)))
            h = a.value(h + self._bare(a.value(attend(q, k, v, before)).reshape(len(h), -1), b + "self_attn.o_proj"))
            x = a.value(rms_norm(h, eps, self.w[b + "post_attention_layernorm.weight"]))
            gate, up = (a.enters(x) @ a.weight(self.w[f"{b}mlp.{n}_proj.weight"]).T for n in ("gate", "up"))
            h = a.value(h + self._bare(a.value(silu(gate) * up), b + "mlp.down_proj"))
            if i < len(levels) and (self.whole or i + 1 < self.c["select_layer"]):
                h = h.copy()
                h[is_image] = a.value(h[is_image] + levels[i])
        if self.last_norm:
            h = a.value(rms_norm(h, eps, self.w[at + "norm.weight"]))
        return h, is_image

    def token_side(self):
        return self.vision["patch_size"] * self.vision["spatial_merge_size"]

    @staticmethod
    def turns(now, lines, columns):
        """By time, line and column, of an image's tokens."""
        return [(now, now + r, now + c) for r in range(lines) for c in range(columns)]

    @staticmethod
    def beyond(lines, columns):
        return max(lines, columns)

    def transformer(self, h, b, heads, keys, normed, seen):
        """A block of diffusers' kind."""
        a = self.a
        q = self.linear(normed, b + "attn1.to_q").reshape(len(normed), heads, -1)
        if keys is not normed:  # what crosses is made once an observation
            self.a = self.of_context
        k, v = (self.linear(keys, f"{b}attn1.to_{n}").reshape(len(keys), heads, -1) for n in "kv")
        self.a = a
        return a.value(h + self._bare(a.value(attend(q, k, v, seen)).reshape(h.shape), b + "attn1.to_out.0"))

    def own(self, name, embodiment):
        return self.w[name + ".W"][embodiment].T, self.w[name + ".b"][embodiment]

    def mlp(self, x, name, embodiment, raw):
        (w1, b1), (w2, b2) = (self.own(f"{name}.layer{n}", embodiment) for n in (1, 2))
        y = x @ (w1 if raw else self.a.weight(w1)).T + self.a.value(b1)
        return self.a.value(np.maximum(y, 0)) @ self.a.weight(w2).T + self.a.value(b2)

    def actions(self, images, tokens, state, noise, embodiment, steps, prev=None, overlap=0, frozen=0):
        self.a = self.of_context
        return self.flow(*self.language(images, tokens), state, noise, embodiment, steps, prev, overlap, frozen)

    def flow(self, h, is_image, state, noise, embodiment, steps, prev=None, overlap=0, frozen=0):
        c, a, at = self.c, self.a, "action_head."
        h = self.norm(h, at + "vlln", 1e-5)
        everything = np.ones((len(h), len(h)), bool)
        for i in range((c.get("vl_self_attention_cfg") or {"num_layers": 0})["num_layers"]):
            b = f"{at}vl_self_attention.transformer_blocks.{i}."
            n = self.norm(h, b + "norm1", 1e-5)
            h = self.transformer(h, b, c["vl_self_attention_cfg"]["num_attention_heads"], n, n, everything)
            h = a.value(h + self._bare(self.linear(self.norm(h, b + "norm3", 1e-5), b + "ff.net.0.proj", act=gelu), b + "ff.net.2"))
        a = self.a = self.of_context.in_expert()
        dit, D = c["diffusion_model_cfg"], c["input_embedding_dim"]
        padded = np.zeros(c["max_state_dim"])
        padded[:len(state)] = state
        first = a.value(self.mlp(padded[None], at + "state_encoder", embodiment, True))
        x, hold = noise.astype(np.float64), np.ones(len(noise))
        if overlap:
            x = np.concatenate([prev[len(prev) - overlap:], x[overlap:]])
            ramp = 1 - np.exp(-6 * np.linspace(0, 1, overlap - frozen + 2))
            hold[:frozen], hold[frozen:overlap] = 0, (ramp / ramp[-1])[1:-1]
        for s in range(steps):
            t = math.floor(s * c["num_timestep_buckets"] / steps)
            angles = t * np.exp(-np.log(10000) * np.arange(128) / 127)
            m = at + "model.timestep_encoder.timestep_embedder."
            emb = silu(np.concatenate([np.cos(angles), np.sin(angles)]) @ self.w[m + "linear_1.weight"].T + self.w[m + "linear_1.bias"]) @ self.w[m + "linear_2.weight"].T + self.w[m + "linear_2.bias"]
            tau = t * np.exp(-np.log(10000) * np.arange(D // 2) / (D // 2))
            (w1, b1), (w2, b2), (w3, b3) = (self.own(f"{at}action_encoder.W{n}", embodiment) for n in (1, 2, 3))
            y = a.value(x @ w1.T + a.value(b1))
            y = a.value(silu(y @ a.weight(w2[:, :D]).T + w2[:, D:] @ np.concatenate([np.sin(tau), np.cos(tau)]) + b2))
            y = a.value(y @ a.weight(w3).T + a.value(b3) + a.value(self.w[at + "position_embedding.weight"][:len(x)]))
            h2 = np.concatenate([first, y])
            for i in range(dit["num_layers"]):
                b = f"{at}model.transformer_blocks.{i}."
                scale, shift = np.split(a.value(silu(emb) @ self.w[b + "norm1.linear.weight"].T + self.w[b + "norm1.linear.bias"]), 2)
                n = a.value(layer_norm(h2, 1e-5) * (1 + scale) + shift)
                if i % 2:
                    h2 = self.transformer(h2, b, dit["num_attention_heads"], n, n, np.ones((len(h2), len(h2)), bool))
                else:
                    keys = h[~is_image] if i % (2 * c["attend_text_every_n_blocks"]) == 0 else h[is_image]
                    h2 = self.transformer(h2, b, dit["num_attention_heads"], keys, n, np.ones((len(h2), len(keys)), bool))
                h2 = a.value(h2 + self._bare(self.linear(a.value(layer_norm(h2, 1e-5)), b + "ff.net.0.proj", act=gelu), b + "ff.net.2"))
            shift, scale = np.split(a.value(silu(emb) @ self.w[at + "model.proj_out_1.weight"].T + self.w[at + "model.proj_out_1.bias"]), 2)
            out = self.linear(a.value(layer_norm(h2, 1e-6) * (1 + scale) + shift), at + "model.proj_out_2")
            x = x + self.mlp(out[1:], at + "action_decoder", embodiment, False) * hold[:, None] / steps
        return x


class Groot16(Groot):
    """N1.6: SigLIP2 and Qwen3, joined as Eagle joins them, and the head without an adapter."""
    language_at, last_norm, merge_side = "backbone.model.language_model.model.", True, 2

    def token_side(self):
        return self.vision["patch_size"] * self.merge_side

    @staticmethod
    def turns(now, lines, columns):
        return [(now + i,) * 3 for i in range(lines * columns)]

    @staticmethod
    def beyond(lines, columns):
        return lines * columns

    def tower(self, image):
        v, at, a, m = self.vision, "backbone.model.vision_model.vision_model.", self.a, self.merge_side
        p, heads, width = v["patch_size"], v["num_attention_heads"], v["hidden_size"]
        lines, columns = image.shape[0] // p, image.shape[1] // p
        pixels = a.value(image / 255 * 2 - 1)
        patches = pixels.reshape(lines, p, columns, p, 3).transpose(0, 2, 1, 3, 4).reshape(lines * columns, -1)
        grid = math.isqrt(v["num_patches"])
        learned = resized(self.w[at + "embeddings.position_embedding.weight"].reshape(grid, grid, -1), lines, columns).reshape(-1, width)
        kernel, bias = (a.value(self.w[at + f"embeddings.patch_embedding.{n}"]) for n in ("weight", "bias"))
        h = a.value(patches @ kernel.T + bias + a.value(learned))
        everything = np.ones((len(h), len(h)), bool)
        for i in range(v["num_hidden_layers"]):
            b = f"{at}encoder.layers.{i}."
            x = self.norm(h, b + "layer_norm1", 1e-6)
            q, k, val = (self.linear(x, f"{b}self_attn.{n}_proj").reshape(len(h), heads, -1) for n in "qkv")
            h = a.value(h + self._bare(a.value(attend(q, k, val, everything)).reshape(h.shape), b + "self_attn.out_proj", wide=True))
            h = a.value(h + self._bare(self.linear(self.norm(h, b + "layer_norm2", 1e-6), b + "mlp.fc1", act=gelu), b + "mlp.fc2"))
        h = self.norm(h, at + "post_layernorm", 1e-6).reshape(lines // m, m, columns // m, m, width)
        tokens = h.transpose(0, 2, 4, 1, 3).reshape(lines * columns // (m * m), -1)  # a channel's four patches side by side
        tokens, at = self.norm(tokens, "backbone.model.mlp1.0", 1e-5), "backbone.model.mlp1."
        return self.linear(self.linear(tokens, at + "1", act=lambda y: y / 2 * (1 + _erf(y / math.sqrt(2)))), at + "3"), []


def reference(weights, config, arithmetic=None):
    return (Groot16 if config.get("model_type") == "Gr00tN1d6" else Groot)(weights, config, arithmetic)
