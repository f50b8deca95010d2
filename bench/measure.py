"""What benches on a GPU share: calls timed in CUDA graphs, alone or in turn with their peers, and a receipt that names the machine."""
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from tools.receipt import Receipt  # noqa: E402


def graph_of(calls):
    """The calls, in their order, captured; each has run once before."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())  # a position that is written while a call reads it can leave its warps waiting for each other
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        for call in calls:
            call()
    return graph


def in_turn(work, replays=9):
    """{name: calls} -> {name: sorted us a call}: graphs that are replayed in turn, so that all meet the machine in the same state.
    Two replays of each before do not count."""
    graphs, taken = {name: graph_of(calls) for name, calls in work.items()}, {name: [] for name in work}
    for i in range(replays + 2):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if i >= 2:
                taken[name].append(1e3 * begin.elapsed_time(end) / len(work[name]))
    return {name: sorted(us) for name, us in taken.items()}


def graph_times(calls, replays=9):
    """Sorted us a call of one graph."""
    return in_turn({"": calls}, replays)[""]


def gpu_receipt(suite, command, sources):
    """A receipt of this process's first GPU; VIVACE_COMMIT: whose sources the installed module was built from."""
    import vivace
    from vivace import device

    info, state = device.info(), device.state()
    return Receipt(suite, chip=info["name"], sm=info["arch"], driver=str(state["driver"]), clocks_mhz={"sm": state["sm_mhz"], "mem": state["memory_mhz"]},
                   commit=os.environ.get("VIVACE_COMMIT", "dirty"), command=command, versions={"vivace": vivace.__version__, "torch": torch.__version__}, sources=sources)
