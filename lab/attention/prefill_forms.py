#!/usr/bin/env python3
"""A folder for VIVACE_KERNEL_DIR in which the op's attention_prefill_tma has a form of prefill_forms.cuh: so its tests and benches run
with it.

    python lab/attention/prefill_forms.py build/one-span [--form kOneSpan]
    VIVACE_KERNEL_DIR=build/one-span python -m pytest ...
"""
import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.planting import places, replaced  # noqa: E402

KERNEL, CHOICE = "vivace/kernels/attention/prefill_tma.cuh", "int kForm = 0"
FORMS = ("kAsItIs", "kOneSpan")


def write(folder: Path, form: str) -> Path:
    source = (ROOT / "lab/attention/prefill_forms.cuh").read_text()
    assert len(places(source, CHOICE)) == 3  # of the kernel, what it runs, and its struct
    to = folder / KERNEL
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(replaced(source, CHOICE, f"int kForm = {form}"))
    return to


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder", type=Path)
    p.add_argument("--form", default="kOneSpan", choices=FORMS)
    args = p.parse_args()
    print(write(args.folder, args.form))


if __name__ == "__main__":
    main()
