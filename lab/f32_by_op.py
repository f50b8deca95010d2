"""Which op of a tiny hybrid errs in f32: each op's values against float64 of what entered it, and of the whole chain, here and on the host.

    python -m lab.f32_by_op [--device cuda] [NAME...]     # qwen35_moe qwen35; 20 s

own: of the op alone, relative to the norm of its values; all: largest absolute error of the chain so far. `orders` is what float32
products summed in eight orders make of the same chain (standard deviation, the tests' bound is 1e-4). With several
models only lines are shown of which the device errs by half more than the host.
"""
import argparse
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import vivace
from tests.reference import rope
from tests.reference.decoder_numpy import Decoder, Summed
from tests.reference.policy_numpy import silu
from vivace import _core

TINY = Path(__file__).parent.parent / "tests/fixtures/tiny"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Stages(Decoder):
    """Stages in order, each a function of the values before it: (name, f(values) -> [T, n])."""

    def parts(self, T, ids):
        w, c = self.w, self.c
        D, Dv, Hk, Hv = (c[f"linear_{n}"] for n in ("key_head_dim", "value_head_dim", "num_key_heads", "num_value_heads"))
        yield "x", lambda v: w["embed_tokens.weight"][ids]
        for i in range(self.layers):
            p = f"layers.{i}."
            yield f"{i} norm", lambda v, p=p: self.norm(v["x"], p + "input_layernorm")
            n = f"{i} norm"
            if p + "linear_attn.in_proj_qkv.weight" in w:
                q = p + "linear_attn."
                for part in ("qkv", "z", "b", "a"):
                    yield f"{i} {part}", lambda v, n=n, q=q, part=part: v[n] @ w[f"{q}in_proj_{part}.weight"].T
                yield f"{i} conv", lambda v, i=i, q=q: self.conv(v[f"{i} qkv"], w[q + "conv1d.weight"][:, 0])
                yield f"{i} delta", lambda v, i=i, q=q: self.delta(v[f"{i} conv"], v[f"{i} a"], v[f"{i} b"], q, T, Hk, Hv, D, Dv)
                yield f"{i} gated", lambda v, i=i, q=q: self.gate_norm(v[f"{i} delta"], v[f"{i} z"], q, T, Hv, Dv)
                yield "x", lambda v, i=i, q=q: v["x"] + v[f"{i} gated"] @ w[q + "out_proj.weight"].T
            else:
                q = p + "self_attn."
                yield f"{i} q", lambda v, n=n, q=q: (v[n] @ w[q + "q_proj.weight"].T).reshape(T, self.heads, 2, -1)[:, :, 0].reshape(T, -1)
                yield f"{i} gate", lambda v, n=n, q=q: (v[n] @ w[q + "q_proj.weight"].T).reshape(T, self.heads, 2, -1)[:, :, 1].reshape(T, -1)
                for part in "kv":
                    yield f"{i} {part}", lambda v, n=n, q=q, part=part: v[n] @ w[f"{q}{part}_proj.weight"].T
                yield f"{i} attended", lambda v, i=i, q=q: self.attend(*(v[f"{i} {n}"].reshape(T, -1, self.dim) for n in "qkv"), i, q, T)
                yield f"{i} gated", lambda v, i=i: v[f"{i} attended"] * sigmoid(v[f"{i} gate"])
                yield "x", lambda v, i=i, q=q: v["x"] + v[f"{i} gated"] @ w[q + "o_proj.weight"].T
            yield f"{i} norm2", lambda v, p=p: self.norm(v["x"], p + "post_attention_layernorm")
            if self.c.get("num_experts_per_tok"):
                yield f"{i} router", lambda v, i=i, p=p: v[f"{i} norm2"] @ w[p + "mlp.gate.weight"].T
                yield f"{i} shared inner", lambda v, i=i, p=p: silu(v[f"{i} norm2"] @ w[p + "mlp.shared_expert.gate_proj.weight"].T) * (v[f"{i} norm2"] @ w[p + "mlp.shared_expert.up_proj.weight"].T)
            else:
                yield f"{i} inner", lambda v, i=i, p=p: silu(v[f"{i} norm2"] @ w[p + "mlp.gate_proj.weight"].T) * (v[f"{i} norm2"] @ w[p + "mlp.up_proj.weight"].T)
            yield "x", lambda v, i=i, p=p: v["x"] + self.open_mlp(v[f"{i} norm2"], p)
        yield "norm", lambda v: self.norm(v["x"], "norm")
        yield "logits", lambda v: self.head(v["norm"])

    def open_mlp(self, x, p):
        self.closest = np.full(len(x), np.inf)
        return self.mlp(x, p)

    def conv(self, mixed, taps):
        line = np.concatenate([np.zeros((taps.shape[1] - 1, mixed.shape[1])), mixed])
        return silu(sum(line[k:k + len(mixed)] * taps[:, k] for k in range(taps.shape[1])))

    def delta(self, conv, a, b, q, T, Hk, Hv, D, Dv):
        query, key, value = (t.reshape(T, -1, d) for t, d in zip(np.split(conv, [Hk * D, 2 * Hk * D], 1), (D, D, Dv)))
        query, key = (np.repeat(t / np.sqrt((t * t).sum(-1, keepdims=True) + 1e-6), Hv // Hk, 1) for t in (query, key))
        kept, beta = np.exp(-np.exp(self.w[q + "A_log"]) * np.logaddexp(0, a + self.w[q + "dt_bias"])), sigmoid(b)
        state, out = np.zeros((Hv, D, Dv)), np.empty((T, Hv, Dv))
        for t in range(T):
            state = state * kept[t][:, None, None]
            state = state + key[t][:, :, None] * (beta[t][:, None] * (value[t] - np.einsum("hdc,hd->hc", state, key[t])))[:, None]
            out[t] = np.einsum("hdc,hd->hc", state, query[t]) / np.sqrt(D)
        return out.reshape(T, -1)

    def gate_norm(self, delta, z, q, T, Hv, Dv):
        x = delta.reshape(T, Hv, Dv)
        return (x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[q + "norm.weight"] * silu(z.reshape(T, Hv, Dv))).reshape(T, -1)

    def attend(self, query, key, value, i, q, T):
        query, key = self.norm(query, q + "q_norm"), self.norm(key, q + "k_norm")
        cos, sin = self.angles(i, T)
        n = 2 * cos.shape[-1]
        query, key = (np.concatenate([rope.rotate(t[..., :n], cos, sin, False), t[..., n:]], -1) for t in (query, key))
        sees, out = np.arange(T)[:, None] >= np.arange(T), np.empty_like(query)
        for h in range(self.heads):
            g = h * self.kv // self.heads
            s = np.where(sees, query[:, h] @ key[:, g].T / np.sqrt(self.dim), -np.inf)
            p = np.exp(s - s.max(1, keepdims=True))
            out[:, h] = p / p.sum(1, keepdims=True) @ value[:, g]
        return out.reshape(T, -1)


def observed(folder, device, ids):
    """[(op, values [T, n])] of one prompt's step, in order."""
    vivace.load_model(folder, device=device, precision="f32", kv_dtype="f32").close()  # finds NVRTC
    core = _core.load_text_model(str(folder), device=device, precision="f32", kv_dtype="f32", threads=2, context=0, max_batch=len(ids), prefill_chunk=128, eager=False)
    core.start(0)
    seen = core.observe([(t, i, 0, True) for i, t in enumerate(ids)])
    return [(op, np.frombuffer(raw, np.float32).reshape(shape[0], -1)[:len(ids)].astype(np.float64)) for op, _, raw, shape, _ in seen if len(raw) == 4 * int(np.prod(shape)) and shape[0] >= len(ids)]


def find(seen, at, wanted):
    """(index, op, values) of the first that is near `wanted`, perhaps some columns of it."""
    n, size = wanted.shape[1], np.linalg.norm(wanted)
    for i in range(at, len(seen)):
        op, v = seen[i]
        for c in range(v.shape[1] - n + 1):
            if abs(v[-1, c] - wanted[-1, 0]) <= 1e-3 * size and np.linalg.norm(v[:, c:c + n] - wanted) < 1e-3 * size:
                return i, op, v[:, c:c + n]
    return None


def follow(stages, seen, ids):
    """{stage: (op, own relative error, largest error of the chain, values)}; of a stage inside a fused op nothing."""
    here, exact, at, out = {}, {}, 0, {}
    for k, (name, f) in enumerate(stages.parts(len(ids), ids)):
        own, exact[name] = f(here), f(exact)
        hit = find(seen, max(0, at - 8), own)  # parts of one input may lie in another order
        here[name] = own if hit is None else hit[2]
        if hit is not None:
            at = max(at, hit[0])
            out[k, name] = hit[1], np.linalg.norm(hit[2] - own) / np.linalg.norm(own), np.abs(hit[2] - exact[name]).max(), np.abs(exact[name]).max()
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("names", nargs="*", default=["qwen35_moe", "qwen35"])
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    for name in args.names:
        config = json.loads((TINY / name / "config.json").read_text())
        config = config.get("text_config", config)
        weights = {k.replace("model.language_model.", "model."): v for f in sorted((TINY / name).glob("model*.safetensors")) for k, v in load_file(f).items()}
        ids = load_file(TINY / name / "expected.safetensors")["prompt_ids"].tolist()
        sides = [follow(Stages(config, weights), observed(TINY / name, d, ids), ids) for d in (args.device, "cpu")]
        right = Decoder(config, weights).logits(ids)
        orders = [np.abs(Decoder(config, weights, Summed(np.random.default_rng(s))).logits(ids) - right).max() for s in range(8)]
        print(f"{name}: orders err by {np.sqrt(np.mean(np.square(orders))):.1e} (most {max(orders):.1e}); {args.device} | cpu: own, all; largest value")
        for key, (op, own, far, size) in sides[0].items():
            host = sides[1].get(key)
            if host is None or own > 1.5 * host[1] or key[1] == "logits" or len(args.names) == 1:
                print(f"  {key[1]:14} {op:12} {own:.1e} {far:.1e} | " + (f"{host[1]:.1e} {host[2]:.1e} own x {own / max(host[1], 1e-12):.1f}" if host else "not apart") + f"; {size:.1f}")
        print("  fused on the device: " + ", ".join(k[1] for k in sides[1] if k not in sides[0]))


if __name__ == "__main__":
    main()
