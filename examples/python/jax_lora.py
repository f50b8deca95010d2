"""A LoRA of two layers, trained in JAX over frozen weights: once with bf16 products, once with fp8 products of Vivace.

    python jax_lora.py [steps]          # needs: pip install vivace jax; CPU or CUDA, whichever JAX has

The forward product is fp8 (e4m3 codes, one static scale a tensor), the backward one bf16: the derivative of what the codes stand for, the rounding
passed through. Prints both losses every 50 steps.
"""
import sys

import jax
import jax.numpy as jnp

from vivace.compat.flashrt import fp8_gemm_bf16_out, quantize_fp8_static

K, RANK, BATCH = 128, 4, 64


@jax.custom_vjp
def fp8_linear(x, codes, x_scale, w_scale):
    """bf16 [T, N] of bf16 x [T, K] and e4m3 codes [K, N]."""
    return fp8_gemm_bf16_out(quantize_fp8_static(x, x_scale), codes, x_scale, w_scale)


def forward(x, codes, x_scale, w_scale):
    return fp8_linear(x, codes, x_scale, w_scale), (codes, w_scale)


def backward(kept, g):
    codes, w_scale = kept
    return g @ (codes.astype(jnp.bfloat16) * w_scale.astype(jnp.bfloat16)).T, None, None, None  # weights and scales are frozen


fp8_linear.defvjp(forward, backward)


def layer(x, lora, product):
    a, b = (m.astype(jnp.bfloat16) for m in lora)
    return product(x) + x @ a @ b


def model(loras, x, products):
    return layer(jax.nn.relu(layer(x, loras[0], products[0])), loras[1], products[1]).astype(jnp.float32)


def train(products, x, y, steps):
    """Losses of plain gradient descent with momentum, from the same start."""
    keys = jax.random.split(jax.random.key(1), 2)
    loras = [(jax.random.normal(k, (K, RANK)) / K**0.5, jnp.zeros((RANK, K))) for k in keys]
    velocity = jax.tree.map(jnp.zeros_like, loras)

    def loss(loras):
        return jnp.mean((model(loras, x, products) - y) ** 2)

    @jax.jit
    def step(loras, velocity):
        value, gradient = jax.value_and_grad(loss)(loras)
        velocity = jax.tree.map(lambda v, g: 0.9 * v - 1.0 * g, velocity, gradient)
        return value, jax.tree.map(jnp.add, loras, velocity), velocity

    losses = []
    for _ in range(steps):
        value, loras, velocity = step(loras, velocity)
        losses.append(float(value))
    return losses


def main(steps=200):
    keys = jax.random.split(jax.random.key(0), 5)
    weights = [(jax.random.normal(k, (K, K)) / K**0.5).astype(jnp.bfloat16) for k in keys[:2]]
    x = jax.random.normal(keys[2], (BATCH, K)).astype(jnp.bfloat16)
    wanted = [w + (0.5 * jax.random.normal(k, (K, RANK)) @ jax.random.normal(k, (RANK, K)) / K**0.5 / RANK).astype(jnp.bfloat16) for w, k in zip(weights, keys[3:])]
    y = (jax.nn.relu(x @ wanted[0]) @ wanted[1]).astype(jnp.float32)  # what is to be learnt: the weights moved by matrices of low rank

    def scale(t):
        return jnp.abs(t).max().astype(jnp.float32) / 448

    hidden = jax.nn.relu(x @ weights[0])
    coded = [(quantize_fp8_static(w, scale(w)), 2 * scale(t), scale(w)) for w, t in zip(weights, (x, hidden))]
    plain = train([lambda x, w=w: x @ w for w in weights], x, y, steps)
    fp8 = train([lambda x, c=c: fp8_linear(x, *c) for c in coded], x, y, steps)
    for i in sorted({*range(0, steps, 50), steps - 1}):
        print(f"step {i:4}: loss {plain[i]:.4f} with bf16, {fp8[i]:.4f} with fp8")
    return plain, fp8


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
