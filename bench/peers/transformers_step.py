"""Decode steps of transformers on a GPU: StaticCache, torch.compile, and the compiled step as one CUDA graph.

No program of its own: bench/bench_llm_device.py --parts peers runs it in turn with our steps. The graph is captured
here and not by the compiler's own mode, which pays host time each step: that is the peer at its best.
"""
from pathlib import Path

import torch
import transformers


class Peer:
    """Random weights of a published shape in bf16, one sequence, `position` tokens in its cache."""

    def __init__(self, folder: Path, position: int, room: int = 128):
        self.name = f"transformers {transformers.__version__} + compile + CUDA graph, torch {torch.__version__}"
        config = transformers.AutoConfig.from_pretrained(folder)
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("cuda"):
                self.model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
        finally:
            torch.set_default_dtype(torch.float32)
        self.first, self.token = position, torch.ones(1, 1, dtype=torch.long, device="cuda")
        self.cache = transformers.StaticCache(config=config, max_cache_len=position + room)  # attention reads all of it
        with torch.no_grad():
            self.model(torch.ones(1, position, dtype=torch.long, device="cuda"), past_key_values=self.cache, logits_to_keep=1)

            def step():
                logits = self.model(self.token, past_key_values=self.cache).logits
                return logits[:, -1].argmax(-1, keepdim=True)

            compiled = torch.compile(step, fullgraph=True, dynamic=False)
            for _ in range(3):
                compiled()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.token.copy_(compiled())

    @torch.no_grad()
    def steps(self, count: int) -> list[float]:
        """us of each of `count` steps, replayed back to back."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.first)  # on the device: the step itself counts on
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        self.graph.replay()
        marks[0].record()
        for mark in marks[1:]:
            self.graph.replay()
            mark.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e3 for a, b in zip(marks, marks[1:])]
