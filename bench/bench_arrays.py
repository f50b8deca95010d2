#!/usr/bin/env python3
"""Times vivace.array beside CuPy and PyTorch in one process: bench/results/<chip>/arrays.json. On the CPU beside NumPy.

    python bench/bench_arrays.py --facts FILE --out DIR [--seconds 150] [--device cpu] [--tiny]

host      `c = a + b` of few elements, its memory included, as its caller sees it; beside a bare launch. Its bar is the launch + 1.5 us
loop      ten thousand of these: no memory of the driver's is asked for
dlpack    an array to torch and back
map, fold calls on arrays of 256 MB, beside copying as many bytes
chain     five functions in one kernel, beside torch eager and torch.compile
matmul    A @ B, bf16, B row-major and a transposed view, beside torch (cuBLASLt)
order     a sort, a running sum, a transposed copy
first     a function's first call: it compiles, or comes from the disk cache
Rows of a result that is not the peer's are rows that do not pass. The device is asleep until a row's calls are all queued, so that none of them
waits for the host; peers run in turn with ours.
"""
import argparse
import ctypes
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from tools.receipt import CUT, Receipt  # noqa: E402
from vivace import array  # noqa: E402

SOURCES = ["vivace/array/*.cc", "vivace/array/*.h", "vivace/kernels/map/*", "vivace/cpu/map/*.cc", "python/src/array*.cc", "python/vivace/array/*.py", "bench/bench_arrays.py"]
FIRST = """
import json, sys, time
from vivace import array
device = sys.argv[1]
x, y = (array.ones((8, 256), dtype=dtype, device=device) for dtype in ("f32", "bf16"))
array.negative(x).numpy()
def took(f):
    start = time.perf_counter_ns()
    f().numpy()
    return (time.perf_counter_ns() - start) / 1e3
print(json.dumps({name: took(f) for name, f in {"f32_add": lambda: x + x, "bf16_add": lambda: y + y, "f32_exp": lambda: array.exp(x), "f32_sum": lambda: x.sum(axis=1), "bf16_max": lambda: y.max(axis=0)}.items()}))
"""


def at(times, q):
    times = sorted(times)
    return times[min(len(times) - 1, int(q * len(times)))]


class Place:
    """Where it runs, the libraries beside ours, and how calls are timed there."""

    def __init__(self, device, tiny):
        self.device, self.tiny, self.gpu = device, tiny, device != "cpu"
        self.side = 256 if tiny else 8192 if self.gpu else 1024
        self.rounds = 2 if tiny else 9
        self.torch, self.cupy = (self.found(n) if self.gpu else None for n in ("torch", "cupy"))

    @staticmethod
    def found(name):
        try:
            return importlib.import_module(name)
        except ImportError:
            return None

    def wait(self):
        if self.gpu:
            self.torch.cuda.synchronize()

    def draw(self, shape, dtype, seed):
        """{library: an array}, the same memory in all of them."""
        if not self.gpu:
            ours = array.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), device="cpu").astype(dtype)
            return {"ours": ours} | ({"numpy": np.from_dlpack(ours)} if dtype == "f32" else {})
        torch = self.torch
        g = torch.Generator(device="cuda").manual_seed(seed)
        t = torch.randn(shape, generator=g, device="cuda").to({"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
        got = {"ours": array.from_dlpack(t), "torch": t}
        if self.cupy and dtype == "f32":
            got["cupy"] = self.cupy.from_dlpack(t)
        return got

    def time(self, calls, n):
        """{name: us a call, sorted} of n calls in a row; the libraries in turn, the first turn not counted."""
        taken = {name: [] for name in calls}
        for i in range(self.rounds + 1):
            for name, call in calls.items():
                us = self.on_device(call, n) if self.gpu else self.on_host(call, n)
                if i:
                    taken[name].append(us)
        return {name: sorted(us) for name, us in taken.items()}

    def on_device(self, call, n):
        cuda = self.torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda._sleep(2_000_000)
        begin.record()
        for _ in range(n):
            call()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / n

    def on_host(self, call, n):
        """What the caller's thread spends; a GPU has nothing to do when it begins."""
        self.wait()
        start = time.perf_counter_ns()
        for _ in range(n):
            call()
        return (time.perf_counter_ns() - start) / n / 1e3

    def host_times(self, calls, n, rounds):
        taken = {name: [] for name in calls}
        for i in range(rounds + 1):
            for name, call in calls.items():
                us = self.on_host(call, n)
                if i:
                    taken[name].append(us)
        return {name: sorted(us) for name, us in taken.items()}


def bare_launch():
    """A launch of an empty kernel by the driver's C function, and what ctypes takes of such a call (measured on one that does nothing)."""
    cuda, c = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint
    module, function, driver = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    text = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\n"
    for status in (cuda.cuModuleLoadData(ctypes.byref(module), text), cuda.cuModuleGetFunction(ctypes.byref(function), module, b"empty")):
        if status:
            raise RuntimeError(f"the empty kernel: CUDA error {status}")
    given = (c(1), c(1), c(1), c(256), c(1), c(1), c(0), ctypes.c_void_p(1), None, None)
    return lambda: cuda.cuLaunchKernel(function, *given), lambda: cuda.cuDriverGetVersion(ctypes.byref(driver), *given)


class Bench:
    def __init__(self, place, limits, end):
        self.place, self.limits, self.end, self.rows = place, limits or {}, end, []

    def row(self, op, case, us, *, peers=None, dtype=None, bytes=None, flops=None, ok=True, note=""):
        peers = {k: v for k, v in (peers or {}).items() if v}
        best = min(peers, key=lambda k: at(peers[k], 0.5), default=None)
        limit = max(bytes / self.limits["copy_TBs"] / 1e6 if bytes else 0, flops / self.limits["bf16_TFLOPs"] / 1e6 if flops else 0) if self.limits else 0
        row = {"op": op, "case": case, "dtype": dtype, "p50_us": at(us, 0.5), "p99_us": at(us, 0.99), "n": len(us), "bytes": bytes, "flops": flops, "limit_us": limit or None,
               "peer": best, "peer_p50_us": at(peers[best], 0.5) if best else None, "pass": ok, "note": " ".join([note, *(f"{k}_us={at(v, 0.5):.2f}" for k, v in peers.items())]).strip()}
        self.rows.append(row)
        share = f"{row['limit_us'] / row['p50_us']:6.2f}" if row["limit_us"] else " " * 6
        ratio = f"{row['peer_p50_us'] / row['p50_us']:6.2f}x {best}" if best else ""
        print(f"{op:<8} {case:<44} {row['p50_us']:10.2f} us {share} {ratio}  {row['note']}{'' if ok else '  WRONG'}", flush=True)

    def attempt(self, part):
        """A part that breaks is a row that says so; the others go on."""
        name = part.__name__
        if time.monotonic() > self.end:
            self.rows.append({"op": name, "case": f"part={name}", "pass": False, "note": f"{CUT}: no time left"})
            return
        try:
            part()
        except Exception as e:  # noqa: BLE001 - it becomes a row
            self.rows.append({"op": name, "case": f"part={name}", "pass": False, "note": f"{type(e).__name__}: {str(e)[:300]}"})
            print(f"{name}: {self.rows[-1]['note']}", flush=True)

    # What callers wait for.

    def host(self):
        p, n = self.place, 20 if self.place.tiny else 100
        operands = [p.draw((16,), "f32", seed) for seed in (0, 1)]
        calls = {name: lambda a=operands[0][name], b=operands[1][name]: a + b for name in operands[0]}
        if p.gpu:
            calls["launch"], calls["ctypes"] = bare_launch()
        times = p.host_times(calls, n, 2 if p.tiny else 60)
        ours, note = times.pop("ours"), f"{n} in a row"
        if p.gpu:
            bare = at(times.pop("launch"), 0.5) - at(times.pop("ctypes"), 0.5)
            note += f" bare_launch_us={bare:.2f} above_it_us={at(ours, 0.5) - bare:.2f}"
        self.row("host", "call=add,n=16", ours, peers=times, dtype="f32", note=note)

    def loop(self):
        p, n = self.place, 100 if self.place.tiny else 10_000
        a, b = (array.ones((1 << 16,), dtype="f32", device=p.device) for _ in range(2))
        c = a + b
        asked = (lambda: array.pool_stats()["maps"]) if p.gpu else (lambda: 0)
        p.wait()
        before, start = asked(), time.perf_counter_ns()
        for _ in range(n):
            c = a + b
        us, maps = (time.perf_counter_ns() - start) / n / 1e3, asked() - before
        p.wait()
        self.row("loop", f"call=add,calls={n}", [us], dtype="f32", ok=maps == 0 and float(c.max()) == 2.0, note=f"driver_allocations={maps}")

    def dlpack(self):
        p = self.place
        x = array.ones((16,), dtype="f32", device=p.device)
        there = p.torch.from_dlpack if p.gpu else np.from_dlpack
        times = p.host_times({"ours": lambda: array.from_dlpack(there(x))}, 20 if p.tiny else 100, 2 if p.tiny else 30)
        self.row("dlpack", f"with={'torch' if p.gpu else 'numpy'},n=16", times["ours"], dtype="f32", note="out and in")

    # What the device does.

    def same(self, ours, theirs, tolerance):
        """Of the first 64 rows or so: enough for a wrong kernel, little for the bus."""
        cut = (slice(0, 64),) * len(ours.shape)
        theirs = theirs[cut].float().cpu().numpy() if self.place.gpu else np.asarray(theirs[cut], np.float32)
        return np.allclose(ours[cut].astype("f32").numpy(), theirs, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(theirs).max(initial=0))))

    def timed(self, op, case, f, operands, *, dtype, bytes=None, flops=None, tolerance=1e-5, more=None, note=""):
        """f(library, *operands) of each library, its functions under the names of the standard."""
        p = self.place
        library = {"ours": array, "torch": p.torch, "cupy": p.cupy, "numpy": np}
        calls = {name: lambda name=name: f(library[name], *(o[name] for o in operands)) for name in operands[0]} | (more or {})
        peer = "torch" if p.gpu else "numpy"
        ok = self.same(calls["ours"](), calls[peer](), tolerance) if peer in calls else True
        for call in calls.values():
            call()
        times = p.time(calls, 1 if p.tiny else 10)
        self.row(op, case, times.pop("ours"), peers=times, dtype=dtype, bytes=bytes, flops=flops, ok=bool(ok), note=note)

    def map(self):
        side = self.place.side
        for dtype in ("f32", "bf16"):
            x, y, w = (self.place.draw((side, side), dtype, seed) for seed in (2, 3, 4))
            size = side * side * (4 if dtype == "f32" else 2)
            row, column = ({k: (v[:1] if cut else v[:, :1]) for k, v in y.items()} for cut in (True, False))
            turned = {k: v.T for k, v in y.items()}
            tolerance = 1e-5 if dtype == "f32" else 0.02
            for call, count, f, operands in (
                ("negative", 2, lambda m, x: m.negative(x), [x]), ("exp", 2, lambda m, x: m.exp(x), [x]), ("add", 3, lambda m, x, y: m.add(x, y), [x, y]),
                ("where", 3, lambda m, x, y: m.where(x < y, x, y), [x, y]), ("add_row", 2, lambda m, x, y: m.add(x, y), [x, row]),
                ("add_column", 2, lambda m, x, y: m.add(x, y), [x, column]), ("add_transposed", 3, lambda m, x, y: m.add(x, y), [x, turned]),
            ):
                if call == "where":  # two kernels: the comparison writes and reads a byte an element more
                    self.timed("map", f"call=where,M={side},N={side}", f, operands, dtype=dtype, bytes=5 * size + 2 * side * side, tolerance=tolerance)
                else:
                    self.timed("map", f"call={call},M={side},N={side}", f, operands, dtype=dtype, bytes=count * size, tolerance=tolerance)

    def fold(self):
        side = self.place.side
        for dtype in ("f32", "bf16"):
            x = self.place.draw((side, side), dtype, 5)
            for call in ("sum", "max"):
                for axis in (1, 0, None):
                    def f(m, x, call=call, axis=axis):
                        if call == "max" and m is self.place.torch:
                            return x.max() if axis is None else x.amax(axis)
                        return getattr(x, call)() if axis is None else getattr(x, call)(axis=axis)
                    self.timed("fold", f"call={call},axis={'all' if axis is None else axis},M={side},N={side}", f, [x], dtype=dtype, bytes=side * side * (4 if dtype == "f32" else 2),
                               tolerance=1e-4 if dtype == "f32" else 0.02)

    def chain(self):
        p = self.place
        m, n = (p.side // 2, p.side)
        x, w, b, s, r = (p.draw((n, m), "bf16" if p.gpu else "f32", seed) for seed in (6, 7, 8, 9, 10))
        dtype = x["ours"].dtype
        ours = array.fuse(lambda x, w, b, s, r: array.maximum(x * w + b, 0.0) * s + r)

        def f(library, x, w, b, s, r):
            if library is array:
                return ours(x, w, b, s, r)
            return (library.maximum(x * w + b, 0) if library is np else library.relu(x * w + b)) * s + r

        operands, more, note = [{k: v for k, v in o.items() if k != "cupy"} for o in (x, w, b, s, r)], {}, ""
        if p.gpu:
            compiled = p.torch.compile(lambda x, w, b, s, r: p.torch.relu(x * w + b) * s + r, dynamic=False)
            more["torch_compile"] = lambda: compiled(*(o["torch"] for o in operands))
            try:
                more["torch_compile"]()
            except Exception as e:  # noqa: BLE001 - a peer that does not run is a note, not our failure
                more, note = {}, f"torch_compile_failed={type(e).__name__}"
        self.timed("chain", f"call=relu_xw_b_s_r,M={n},N={m}", f, operands, dtype=str(dtype), bytes=6 * m * n * (2 if p.gpu else 4), tolerance=0.05, more=more, note=note)

    def matmul(self):
        p, side = self.place, 64 if self.place.tiny else 4096 if self.place.gpu else 256
        dtype = "bf16" if p.gpu else "f32"
        a, b = (p.draw((side, side), dtype, seed) for seed in (11, 12))
        a, b = ({k: v for k, v in o.items() if k != "cupy"} for o in (a, b))
        turned = {k: v.T for k, v in b.items()}
        for layout, right in (("row_major", b), ("transposed", turned)):
            self.timed("matmul", f"B={layout},M={side},N={side},K={side}", lambda _, a, b: a @ b, [a, right], dtype=dtype, flops=2 * side**3, tolerance=0.02)

    def order(self):
        """Rows of f32: a sort, a running sum, a gather of rows, and a transposed copy; bytes are the least, not what passes move."""
        p, n = self.place, 4096 if self.place.tiny else 1 << 20
        x = p.draw((1, n), "f32", 13)
        side = 64 if p.tiny else 4096
        square = p.draw((side, side), "bf16" if p.gpu else "f32", 14)
        item = 2 if p.gpu else 4
        sort = lambda m, x: x.sort(dim=-1)[0] if m is p.torch else m.sort(x, axis=-1)  # noqa: E731
        total = lambda m, x: x.cumsum(-1) if m is p.torch else m.cumulative_sum(x, axis=-1) if m is array or m is np else m.cumsum(x, axis=-1)  # noqa: E731
        turn = lambda m, x: x.T.contiguous() if m is p.torch else np.ascontiguousarray(x.T) if m is np else x.T.copy()  # noqa: E731
        self.timed("order", f"call=sort,N={n}", sort, [x], dtype="f32", bytes=8 * n)
        self.timed("order", f"call=cumulative_sum,N={n}", total, [{k: abs(v) for k, v in x.items()}], dtype="f32", bytes=8 * n, tolerance=1e-3)
        self.timed("order", f"call=transposed_copy,M={side},N={side}", turn, [{k: v for k, v in square.items() if k != "cupy"}], dtype="bf16" if p.gpu else "f32", bytes=2 * side * side * item)

    def first(self):
        if not self.place.gpu:
            return  # nothing compiles on a CPU
        with tempfile.TemporaryDirectory() as folder:
            for cache in ("cold", "disk"):
                done = subprocess.run([sys.executable, "-c", FIRST, self.place.device], cwd=ROOT, env=os.environ | {"VIVACE_CACHE": folder}, capture_output=True, text=True)
                if done.returncode:
                    raise RuntimeError(done.stderr[-300:])
                for name, us in json.loads(done.stdout.splitlines()[-1]).items():
                    self.row("first", f"call={name},cache={cache}", [us], dtype=name.split("_")[0], note="with the copy of a few KB to the host")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--facts", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True, help="folder under which bench/results/<chip> is written")
    p.add_argument("--seconds", type=float, default=float("inf"), help="begin no part after so many; what is left is a row that says so")
    p.add_argument("--device", default="cuda")
    p.add_argument("--tiny", action="store_true", help="small arrays and few calls: whether it runs")
    args = p.parse_args()
    facts = json.loads(args.facts.read_text())
    bench = Bench(Place(args.device, args.tiny), facts["limits"], time.monotonic() + args.seconds)
    array.set_default_device(args.device)
    for part in (bench.host, bench.loop, bench.dlpack, bench.map, bench.fold, bench.chain, bench.matmul, bench.order, bench.first):
        bench.attempt(part)
    place = bench.place
    facts["versions"] = facts["versions"] | {"numpy": np.__version__} | {m.__name__: m.__version__ for m in (place.torch, place.cupy) if m}
    words = [*(["--device", args.device] if args.device != "cuda" else []), *(["--tiny"] if args.tiny else [])]
    receipt = Receipt("arrays", sources=SOURCES, command=" ".join(["python bench/bench_arrays.py", *words]), kernels=False, **facts)
    for row in bench.rows:
        receipt.row(**row)
    receipt.root = args.out
    print(receipt.write("bench"))
    wrong = [row for row in bench.rows if row["pass"] is False]
    print(f"{len(bench.rows)} rows, {len(wrong)} failed", *(f"{row['op']} {row['case']}: {row['note']}" for row in wrong), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
