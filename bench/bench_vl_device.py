#!/usr/bin/env python3
"""Qwen3-VL-2B's shape on a GPU, random weights: an image of 448 x 448 and 32 tokens. bench/results/<chip>/vl.json.

    python bench/bench_vl_device.py [--precisions bf16,fp8] [--calls 50] [--side 448]

metric=first: from the request, whose image no call saw before, to the first token on the host: pixels to the device, the vision tower, the prompt. metric=step: a token
behind it, the mean of an answer's. Floors count each product of vision tower and language model by what limits it, attention not; a step's
counts weights and cache once. Goals (issue 26): first token 12 ms, a step 1.3 times its floor. --config and --device cpu try the script itself; then no receipt is written.
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from bench.bench_llm_device import COPY_RATE, PRODUCT_RATE  # noqa: E402
from tools.receipt import Receipt  # noqa: E402

WORDS, TOKENS = 32, 64
SOURCES = ["vivace/models/decoder/*.cc", "vivace/models/decoder/*.h", "vivace/models/vision/*.cc", "vivace/models/vision/*.h", "vivace/serve/*.cc", "vivace/engine/*.cc", "vivace/kernels/**/*.cuh", "vivace/ops/*.h",
           "bench/bench_vl_device.py", "bench/configs/qwen3-vl-2b/config.json", "python/vivace/model.py"]


def floors(config, side, precision) -> tuple[float, float]:
    """us of the first token and of a step."""
    v, t = config["vision_config"], config["text_config"]
    size = 1 if precision.startswith("fp8") else 2
    rate = PRODUCT_RATE[precision]
    product = lambda rows, params: max(2 * rows * params / rate, params * size / COPY_RATE)  # noqa: E731
    patches = (side // v["patch_size"]) ** 2
    merged, h = v["spatial_merge_size"] ** 2 * v["hidden_size"], v["hidden_size"]
    tower = v["depth"] * (product(patches, 4 * h * h) + product(patches, 2 * h * v["intermediate_size"])) + product(patches, h * 3 * v["temporal_patch_size"] * v["patch_size"] ** 2)
    tower += (1 + len(v["deepstack_visual_indexes"])) * product(patches // v["spatial_merge_size"] ** 2, merged * merged + merged * v["out_hidden_size"])
    attended, kv = t["num_attention_heads"] * t["head_dim"], t["num_key_value_heads"] * t["head_dim"]
    layer = [(attended + 2 * kv) * t["hidden_size"], attended * t["hidden_size"], 3 * t["hidden_size"] * t["intermediate_size"]]
    rows = patches // v["spatial_merge_size"] ** 2 + WORDS
    head = t["vocab_size"] * t["hidden_size"] * 2 / COPY_RATE
    cache = rows * t["num_hidden_layers"] * 2 * kv * 2
    prompt = t["num_hidden_layers"] * sum(product(rows, p) for p in layer) + head
    return (tower + prompt) * 1e6, ((t["num_hidden_layers"] * sum(layer) * size + cache) / COPY_RATE + head) * 1e6


def measure(model, side, calls) -> tuple[list[float], list[float]]:
    """us of first tokens and of later ones."""
    from vivace.images import ImagePrompt

    limits, rng = model._live.limits()["images"], np.random.default_rng(0)
    count = (side // limits["side"]) ** 2
    first, later = [], []
    for call in range(calls + 5):
        words = [int(n) for n in rng.integers(10, 100, WORDS)]
        pixels = rng.integers(0, 256, (side, side, 3), np.uint8).tobytes()
        prompt = ImagePrompt([*words[:8], *[limits["token"]] * count, *words[8:]], [(pixels, side, side, 8)])
        time.sleep(0.02)
        begin, at = time.perf_counter(), []
        for event in model._stream(prompt, None, max_tokens=TOKENS, temperature=0.0):
            at += [time.perf_counter()] * (event.token is not None)
        if call >= 5:
            first.append((at[0] - begin) * 1e6)
            later.append((at[-1] - at[8]) / (len(at) - 9) * 1e6)  # steps are queued ahead, so single gaps say little
    return first, later


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--precisions", default="bf16,fp8")
    p.add_argument("--calls", type=int, default=50)
    p.add_argument("--side", type=int, default=448, help="pixels of the image's sides")
    p.add_argument("--config", default=str(ROOT / "bench/configs/qwen3-vl-2b"))
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    import vivace

    receipt = None
    if args.device != "cpu":
        from vivace import device

        info, state = device.info(), device.state()
        receipt = Receipt("vl", chip=info["name"], sm=info["arch"], driver=str(state["driver"]), clocks_mhz={"sm": state["sm_mhz"], "mem": state["memory_mhz"]}, commit=os.environ.get("VIVACE_COMMIT", "dirty"),
                          command="python bench/bench_vl_device.py", versions={"vivace": vivace.__version__}, sources=SOURCES, limits={"copy_bytes_per_s": COPY_RATE})
    config = json.loads((Path(args.config) / "config.json").read_text())
    for precision in args.precisions.split(","):
        with vivace.load_model(args.config, device=args.device, precision=precision, random_weights=True, context=512, prefill_chunk=256, max_image_tokens=256) as model:
            report = model.report()
            for metric, values, floor in zip(("first", "step"), measure(model, args.side, args.calls), floors(config, args.side, precision)):
                case = f"model={Path(args.config).name},image={args.side}x{args.side},words={WORDS},metric={metric}"
                q = {name: float(np.quantile(values, at)) for name, at in (("p50_us", 0.5), ("p99_us", 0.99))} | {"n": len(values)}
                print(f"{case:<70} {precision:<6} p50 {q['p50_us']:>9.1f} us  p99 {q['p99_us']:>9.1f} us  limit {floor:>9.1f}  {q['p50_us'] / floor:.2f} x", flush=True)
                if receipt:
                    receipt.row(op="e2e", case=case, dtype=precision, tactic=f"launches={report['launches']} max_in_flight_steps={report['max_in_flight_steps']}", tool="host clock", **q, limit_us=floor)
    if receipt:
        print(receipt.write("bench").relative_to(ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
