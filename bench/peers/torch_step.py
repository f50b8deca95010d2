"""A decode step of a published shape in PyTorch, as one CUDA graph: what a foreign stream beside a policy looks like.

No program of its own: bench/bench_colocate.py replays it. Products, norms, attention over a filled cache; random weights.
"""
import json
import threading
from pathlib import Path

import torch
import torch.nn.functional as F


class Step:
    """Replays without a pause on a thread and a stream of its own, at most two at a time, from start() to stop()."""

    def __init__(self, folder: Path, position: int):
        c = json.loads((folder / "config.json").read_text())
        h, m, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
        self.heads, self.kv, self.d = c["num_attention_heads"], c["num_key_value_heads"], d
        weight = lambda n, k: torch.randn(n, k, dtype=torch.bfloat16, device="cuda").mul_(k ** -0.5)  # noqa: E731
        wide = (self.heads + 2 * self.kv) * d
        self.layers = [(weight(wide, h), weight(h, self.heads * d), weight(2 * m, h), weight(h, m), torch.randn(2, 1, self.kv, position, d, dtype=torch.bfloat16, device="cuda"))
                       for _ in range(c["num_hidden_layers"])]
        self.head, self.ones, self.x = weight(c["vocab_size"], h), torch.ones(h, dtype=torch.bfloat16, device="cuda"), torch.randn(1, h, dtype=torch.bfloat16, device="cuda")
        self.stream, self.done, self._over, self._thread = torch.cuda.Stream(), 0, threading.Event(), None
        with torch.no_grad(), torch.cuda.stream(self.stream):
            for _ in range(2):
                self.step()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.token = self.step()
        torch.cuda.synchronize()

    def step(self):
        x, norm = self.x, lambda v: F.rms_norm(v, (v.shape[-1],), self.ones, 1e-6)
        for qkv, out, up, down, (k, v) in self.layers:
            q = F.linear(norm(x), qkv)[:, : self.heads * self.d].view(1, self.heads, 1, self.d)
            x = x + F.linear(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).reshape(1, -1), out)
            gate, y = F.linear(norm(x), up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * y, down)
        return F.linear(norm(x), self.head).argmax(-1)

    def start(self) -> None:
        def replay():
            marks = [torch.cuda.Event() for _ in range(2)]
            with torch.cuda.stream(self.stream):
                while not self._over.is_set():
                    mark = marks[self.done % 2]
                    mark.synchronize()
                    self.graph.replay()
                    mark.record()
                    self.done += 1

        self._over.clear()
        self._thread = threading.Thread(target=replay, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        torch.cuda.synchronize()
