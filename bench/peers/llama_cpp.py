"""Times llama.cpp on one GGUF file and prints one JSON object; the peer row beside our own.

Run with the Python of an environment that has `llama-cpp-python` 0.3.36 built from its sdist on this
very machine (CPU, native flags).  It calls the C API, so no Python sampler or logits copy is timed:
a decode step is llama_decode of one token plus the argmax of its 1 x V logits.

    python bench/peers/llama_cpp.py --gguf MODEL.gguf --threads 2 --prompt-tokens 128 --decode 256
"""
from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import sys
import time


def percentile(sorted_values: list[float], p: float) -> float:
    """Nearest rank: the smallest value with at least p percent of the values at or below it."""
    rank = max(1, -(-len(sorted_values) * p // 100))
    return sorted_values[int(rank) - 1]


class Peer:
    def __init__(self, gguf: str, threads: int, context: int):
        # This file has the package's name and its folder comes first on the path of a script.
        sys.path = [p for p in sys.path if os.path.abspath(p) != os.path.dirname(os.path.abspath(__file__))]
        import llama_cpp
        import numpy

        self.lib, self.np, self.version = llama_cpp, numpy, llama_cpp.__version__
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)  # kept alive: C holds it
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        start = time.perf_counter()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(gguf.encode(), params)
        if not self.model:
            sys.exit(f"llama.cpp could not load {gguf}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = context
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.context:
            sys.exit(f"llama.cpp could not make a context of {context} tokens")
        self.load_s = time.perf_counter() - start
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def reset(self) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def step(self, ids: list[int]) -> int:
        """Appends ids to the KV cache and returns the greedy next token."""
        tokens = (self.lib.llama_token * len(ids))(*ids)
        code = self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(tokens, len(ids)))
        if code:
            sys.exit(f"llama_decode of {len(ids)} tokens returned {code}")
        logits = self.lib.llama_get_logits_ith(self.context, -1)
        return int(self.np.argmax(self.np.ctypeslib.as_array(logits, shape=(self.vocab,))))

    def tokenize(self, text: str) -> list[int]:
        raw = text.encode()
        ids = (self.lib.llama_token * (len(raw) + 8))()
        n = self.lib.llama_tokenize(self.lib.llama_model_get_vocab(self.model), raw, len(raw), ids, len(ids), False, False)
        return list(ids[:n])

    def nll(self, ids: list[int]) -> float:
        """Sum of -log p of ids[1:], each after all before it, in one window."""
        np, batch = self.np, self.lib.llama_batch_init(len(ids), 0, 1)
        self.reset()
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        if code := self.lib.llama_decode(self.context, batch):
            sys.exit(f"llama_decode of {len(ids)} tokens returned {code}")
        total = 0.0
        for i, wanted in enumerate(ids[1:]):
            logits = np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.context, i), shape=(self.vocab,)).astype(np.float64)
            top = logits.max()
            total += float(np.log(np.exp(logits - top).sum()) + top - logits[wanted])
        self.lib.llama_batch_free(batch)
        return total


def perplexity(args) -> None:
    """Reads {"text", "windows": [[ids]]} and prints {"tokens": ids of the text, "nll": [a sum a window]}."""
    with open(args.perplexity) as f:
        task = json.load(f)
    peer = Peer(args.gguf, args.threads, max(map(len, task["windows"])))
    print(json.dumps({"binding": f"llama-cpp-python {peer.version}", "tokens": peer.tokenize(task["text"]), "nll": [peer.nll(w) for w in task["windows"]]}))


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--gguf", required=True)
    ap.add_argument("--threads", type=int, required=True)
    ap.add_argument("--prompt-tokens", type=int, default=128, help="length of a made-up prompt")
    ap.add_argument("--prompt-ids", help="comma-separated ids to use instead of a made-up prompt")
    ap.add_argument("--decode", type=int, default=256, help="timed decode steps")
    ap.add_argument("--warmup", type=int, default=8, help="untimed decode steps before a fresh start")
    ap.add_argument("--context", type=int, default=0, help="context size; 0: what the run needs")
    ap.add_argument("--perplexity", metavar="TASK.json", help="instead of timing: the log likelihood of given windows of tokens")
    args = ap.parse_args()
    if args.perplexity:
        return perplexity(args)
    if args.decode < 1 or args.threads < 1 or args.prompt_tokens < 1:
        ap.error("--decode, --threads and --prompt-tokens must be at least 1")

    if args.prompt_ids:
        prompt = [int(s) for s in args.prompt_ids.split(",")]
    else:  # spread over the vocabulary, the same on every run and machine
        prompt = [1000 + (i * 7919) % 20000 for i in range(args.prompt_tokens)]
    context = args.context or len(prompt) + max(args.decode, args.warmup) + 1
    peer = Peer(args.gguf, args.threads, context)

    token = peer.step(prompt)
    for _ in range(args.warmup):
        token = peer.step([token])

    peer.reset()
    start = time.perf_counter()
    token = peer.step(prompt)
    prefill_s = time.perf_counter() - start
    tokens, steps_us = [token], []
    for _ in range(args.decode):
        start = time.perf_counter()
        token = peer.step([token])
        steps_us.append((time.perf_counter() - start) * 1e6)
        tokens.append(token)

    ordered = sorted(steps_us)
    print(json.dumps({
        "peer": "llama.cpp", "binding": f"llama-cpp-python {peer.version}", "gguf": os.path.basename(args.gguf),
        "threads": args.threads, "prompt_tokens": len(prompt), "decode_steps": args.decode,
        "context": context, "load_s": round(peer.load_s, 4), "prefill_s": round(prefill_s, 6),
        "prefill_tokens_per_s": round(len(prompt) / prefill_s, 1),
        "step_us": {"p50": round(percentile(ordered, 50), 1), "p99": round(percentile(ordered, 99), 1),
                    "min": round(ordered[0], 1), "max": round(ordered[-1], 1),
                    "mean": round(sum(ordered) / len(ordered), 1)},
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "tokens": tokens}))


if __name__ == "__main__":
    main()
