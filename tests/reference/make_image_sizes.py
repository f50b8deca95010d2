"""Writes tests/fixtures/images/smart_resize.json: the sizes that transformers' processor of Qwen2-VL and Qwen3-VL resizes pictures to.

    python -m tests.reference.make_image_sizes        # needs transformers and torchvision's stand-in as README.md says

[[least, most, side, [[height, width, resized height, resized width], ...]], ...], drawn.
"""
import json
import random
from pathlib import Path

from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

FILE = Path(__file__).resolve().parents[1] / "fixtures" / "images" / "smart_resize.json"


def main():
    draw, out = random.Random(5), []
    for least, most, side in ((65536, 16777216, 32), (65536, 1280 * 1024, 32), (3136, 12845056, 28), (128, 640, 8), (256, 1 << 16, 16)):
        cases = []
        while len(cases) < 60:
            h, w = (int(2 ** draw.uniform(0, 12.5)) for _ in range(2))
            if max(h, w) > 200 * min(h, w):
                continue
            cases.append([h, w, *smart_resize(h, w, side, least, most)])
        out.append([least, most, side, cases])
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
