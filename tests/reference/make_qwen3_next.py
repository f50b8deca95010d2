"""Writes tests/fixtures/qwen3_next.safetensors: what transformers makes of the drawn folders of tests/test_qwen3_next.py, in float64.

    python -m tests.reference.make_qwen3_next        # needs torch and transformers beside what the tests need (README.md)

Of each case NAME: NAME.logits [8, V] f32 at rows 0, 7, 14, ... of the prompt, NAME.greedy [32] i32, each token recomputed from the whole
sequence. A folder's weights follow from its case, so only their digest is stored, NAME.weights [32] u8. No greedy step is a near tie.
"""
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

from tests.reference.make_tiny_checkpoints import float64_throughout
from tests.test_qwen3_next import CASES, FIXTURE, PROMPT, ROWS, digest, written

MIN_GAP = 0.01


def main():
    out = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            weights = written(Path(folder), case)
            model, said = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
        assert not said["missing_keys"] and not said["unexpected_keys"] and type(model).__name__ == "Qwen3NextForCausalLM", said
        with torch.no_grad(), float64_throughout("qwen3_next"):
            ids, gaps = list(PROMPT), []
            logits = model(torch.tensor([ids])).logits[0].numpy()
            for _ in range(32):
                last = model(torch.tensor([ids])).logits[0, -1].numpy()
                second, first = np.partition(last, -2)[-2:]
                gaps.append(first - second)
                ids.append(int(last.argmax()))
        assert min(gaps) > MIN_GAP, (name, min(gaps))
        out |= {f"{name}.logits": logits[ROWS].astype(np.float32), f"{name}.greedy": np.array(ids[len(PROMPT):], np.int32), f"{name}.weights": digest(weights)}
    save_file(out, FIXTURE)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: {FIXTURE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
