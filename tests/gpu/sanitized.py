"""A small set of calls for compute-sanitizer: every op, each set of ports and dtypes once, dense and unaligned,
eager (a graph runs the same kernels, and the tools launch kernels of their own while one is captured). Usage: compute-sanitizer --tool TOOL python tests/gpu/sanitized.py ROWS TOOL
[--share I/N] [OP ...], of the cases every N-th from the I-th on.

initcheck wants memory that was written before it is read: slots are uploaded whole. racecheck gets the
kernels of tool_views.py, which says why.
"""
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["VIVACE_TEST_DEVICE"] = "cuda"
from tests.gpu import tool_views  # noqa: E402

if sys.argv[2] in tool_views.VIEWS:  # before anything reads the kernels
    view = tempfile.TemporaryDirectory()
    tool_views.write(view.name, sys.argv[2], os.environ.get("VIVACE_KERNEL_DIR"))
    os.environ["VIVACE_KERNEL_DIR"] = view.name

import pytest  # noqa: E402
import torch  # noqa: E402

from tests.op_data import TABLE, contents, reference  # noqa: E402
from tests.op_run import Run  # noqa: E402


def main():
    rows, tool, named = sys.argv[1], sys.argv[2], sys.argv[3:]
    first, step = 0, 1
    if named[:1] == ["--share"]:
        first, step = map(int, named[1].split("/"))
        named = named[2:]
    done, spent = [], {}
    for op, case in [(op, case) for op in named or TABLE for case in reference(op).CASES][first::step]:
        begin = time.monotonic()
        data = contents(op, case, case.distributions[0])
        try:
            for layout in ("dense", "unaligned"):
                Run(op, case, data, layout=layout).call()
        except pytest.skip.Exception:
            continue  # no kernel serves this case
        done.append({"op": op, "case": case.id, "tool": tool, "pass": True})
        spent[op] = spent.get(op, 0) + time.monotonic() - begin
        if time.monotonic() - begin > 5:
            print(f"{op} {case.id}: {time.monotonic() - begin:.0f} s", flush=True)
    torch.cuda.synchronize()
    print(f"{len(done)} cases under {tool}; seconds:", *(f"{op} {seconds:.0f}" for op, seconds in spent.items()))
    with open(rows, "w") as f:  # the sanitizer's exit status says whether it reported anything; the runner checks it
        f.writelines(json.dumps(d) + "\n" for d in done)


if __name__ == "__main__":
    main()
