"""A small set of calls for compute-sanitizer: every op, each set of ports and dtypes once, dense and unaligned,
eager (a graph runs the same kernels, and the tools launch kernels of their own while one is captured). Usage: compute-sanitizer --tool TOOL python tests/gpu/sanitized.py ROWS TOOL
[--share I/N] [--drawn N] [OP ...], of the cases every N-th from the I-th on;
with --drawn N calls an op that tests/differential draws, in place of the cases.

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


def calls(names, count):
    """Drawn calls of kernels of the table: what lies beyond it would have to be compiled here."""
    from tests.differential.domain import Unfit
    from tests.differential.draw import DEVICE, draw
    from tests.differential.kernels import Kernels
    from tests.differential.run import prepare

    kernels = Kernels(0)
    for op in names:
        found = 0
        for number in range(40 * count):
            try:
                call = draw(op, f"sanitized.{number}", DEVICE)
            except Unfit:
                continue
            if found < count and kernels.of(call) in kernels.table:
                found += 1
                ready, data = prepare(call)
                yield op, ready.case, data


def main():
    rows, tool, named = sys.argv[1], sys.argv[2], sys.argv[3:]
    first, step = 0, 1
    if named[:1] == ["--share"]:
        first, step = map(int, named[1].split("/"))
        named = named[2:]
    drawn = 0
    if named[:1] == ["--drawn"]:
        drawn, named = int(named[1]), named[2:]
    done, spent = [], {}
    cases = ((op, case, None) for op in named or TABLE for case in reference(op).CASES) if not drawn else calls(named or TABLE, drawn)
    for op, case, data in list(cases)[first::step]:
        begin = time.monotonic()
        data = contents(op, case, case.distributions[0]) if data is None else data
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
