"""Perplexity of a GGUF model on a fixed text, ours beside llama.cpp's: tests/results/cpu/perplexity.json.

    python tests/reference/perplexity.py --gguf MODEL.gguf --peer-python PEER_ENV/bin/python

Both get the same tokens in the same windows, without overlap; the first token of a window is given, the others count.
The text is of the public domain: the Declaration of Independence (1776, spelling of the original print), the
Gettysburg Address (1863, Bliss copy) and Lincoln's second inaugural address (1865), from tests/fixtures/text.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
TEXT = ROOT / "tests/fixtures/text/founding.txt"
ROWS = 64  # logits of so many positions are made at once


def nll(core, ids: list[int]) -> float:
    """Sum of -log p of ids[1:], each after all before it."""
    core.start(0)
    total = 0.0
    for at in range(0, len(ids) - 1, ROWS):
        rows = [(t, at + i, 0, True) for i, t in enumerate(ids[at:at + ROWS]) if at + i < len(ids) - 1]
        core.step(rows)
        raw, n, vocab = core.logits()
        logits = np.frombuffer(raw, np.float32).reshape(n, vocab).astype(np.float64)
        wanted = np.array(ids[at + 1:at + 1 + n])
        top = logits.max(axis=1)
        total += float((np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top - logits[np.arange(n), wanted]).sum())
    return total


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gguf", required=True)
    p.add_argument("--peer-python", required=True)
    p.add_argument("--name", default="smollm2-135m-instruct")
    p.add_argument("--window", type=int, default=512)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = p.parse_args()

    import vivace
    from tools.receipt import Receipt

    text = TEXT.read_text()
    with vivace.load_model(args.gguf) as model:
        ids = model.text.encode(text)
    windows = [ids[i:i + args.window] for i in range(0, len(ids), args.window)]
    windows = [w for w in windows if len(w) > 1]
    count = sum(len(w) - 1 for w in windows)

    with tempfile.NamedTemporaryFile("w", suffix=".json") as task:
        json.dump({"text": text, "windows": windows}, task)
        task.flush()
        peer = json.loads(subprocess.run([args.peer_python, str(ROOT / "bench/peers/llama_cpp.py"), "--gguf", args.gguf, "--threads", str(args.threads),
                                          "--perplexity", task.name], check=True, capture_output=True, text=True).stdout)
    if peer["tokens"] != ids:
        first = next((i for i, (a, b) in enumerate(zip(peer["tokens"], ids)) if a != b), min(len(ids), len(peer["tokens"])))
        sys.exit(f"llama.cpp's tokens of the text differ from token {first} on")
    theirs = math.exp(sum(peer["nll"]) / count)

    r = Receipt("perplexity", chip="cpu", command="python tests/reference/perplexity.py", versions={"vivace": vivace.__version__, "peer": peer["binding"]},
                sources=["tests/reference/perplexity.py", "tests/fixtures/text/*.txt", "vivace/cpu/**/*.cc", "vivace/cpu/**/*.h", "vivace/models/decoder/*.cc"])
    for precision in ("q8", "f32"):
        with vivace.load_model(args.gguf, precision=precision, threads=args.threads, context=args.window, max_batch=ROWS, chunk=ROWS) as model:
            ours = math.exp(sum(nll(model._core, w) for w in windows) / count)
        error = abs(ours / theirs - 1)
        r.row(op="e2e", case=f"model={args.name},window={args.window},metric=perplexity", dtype=precision, tool="perplexity.py", max_err=error, bound=0.01,
              note=f"{ours:.4f} against llama.cpp's {theirs:.4f} over {count} of {len(ids)} tokens, tokenised alike", **{"pass": error <= 0.01})
        print(f"{precision}: {ours:.4f}, llama.cpp {theirs:.4f}, {100 * error:.3f} % apart, {count} tokens")
    if not all(row["pass"] for row in r.data["rows"]):
        sys.exit("more than 1 % apart")
    print(r.write("tests").relative_to(ROOT))


if __name__ == "__main__":
    main()
