#!/usr/bin/env python3
"""Writes what a receipt says of a GPU machine: chip, driver, clocks, CUDA, measured limits. device_facts.py FILE"""
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import vivace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.receipt import host  # noqa: E402


def smi(*fields):
    """Values of nvidia-smi's fields for the first GPU that this process sees, [] where it does not run."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    try:
        done = subprocess.run(["nvidia-smi", "-i", gpu, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [v.strip() for v in done.stdout.strip().split(",")] if done.returncode == 0 else []


def timed(f, repeat=12):
    """Median milliseconds of f on the device."""
    times = []
    for i in range(repeat):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        f()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b))
    return sorted(times[2:])[len(times[2:]) // 2]


def main():
    n = 2 << 30
    a, b = torch.randint(0, 255, (n,), dtype=torch.uint8, device="cuda"), torch.empty(n, dtype=torch.uint8, device="cuda")
    copy = 2 * n / timed(lambda: b.copy_(a)) / 1e9
    read = n / timed(lambda: a.view(torch.float32).sum()) / 1e9
    m, w = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16), torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    flops = 2 * 8192**3 / timed(lambda: m @ w, 8) / 1e9
    driver = smi("driver_version")
    clocks = smi("clocks.sm", "clocks.mem")  # right after work, as the suites see them
    name = torch.cuda.get_device_name()
    facts = {
        "chip": name, "sm": "{}.{}".format(*torch.cuda.get_device_capability()), "driver": driver[0] if driver else None, "cuda": torch.version.cuda,
        "clocks_mhz": {"sm": int(clocks[0]), "mem": int(clocks[1])} if len(clocks) == 2 and clocks[0].isdigit() else None,
        "commit": os.environ.get("VIVACE_COMMIT", "dirty"), "versions": {"vivace": vivace.__version__, "torch": torch.__version__},
        "host": host(), "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),  # a receipt may be put together elsewhere, later
        "limits": {"copy_TBs": round(copy, 3), "read_TBs": round(read, 3), "bf16_TFLOPs": round(flops, 1)},
    }
    with open(sys.argv[1], "w") as f:
        json.dump(facts, f, indent=1)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
