#!/usr/bin/env python3
"""What PyTorch answers with tiny-pi05's weights, for the tests of Vivace: tests/fixtures/reach.json.

    python tools/reach/golden.py
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
from tools.train_reach import CONFIG, Pi05, Prompts  # noqa: E402

from vivace.demo import arm, reach  # noqa: E402
from vivace.demo.weights import unpacked  # noqa: E402

SEEDS = (0, 1, 2, 3)


def main():
    model = Pi05({k: v.float() for k, v in load_file(unpacked(reach.FOLDER) / "model.safetensors").items()}, CONFIG)
    scene = arm.join([arm.scene(s) for s in SEEDS])
    frames = torch.tensor(arm.Cameras(reach.SIDE).frames(scene, scene.start))
    low, high = np.array(arm.LOW), np.array(arm.HIGH)
    state = torch.tensor((scene.start - low) / (high - low + 1e-6) * 2 - 1)
    ids = Prompts(reach.FOLDER, "cpu")(torch.tensor(scene.colour[:, 0]), torch.tensor(scene.block[:, 0]), state)
    noise = torch.tensor(np.stack([np.random.default_rng(s).standard_normal((reach.HORIZON, CONFIG["action_dim"])) for s in SEEDS]), dtype=torch.float32)
    with torch.no_grad():
        actions = model.actions(frames, ids, noise)
    data = {"torch": torch.__version__, "seeds": SEEDS, "ids": ids.tolist(), "actions": [[[round(float(v), 7) for v in row] for row in chunk] for chunk in actions]}
    (ROOT / "tests/fixtures/reach.json").write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    main()
