"""Which calls of the CUDA driver wait for the whole device? A stream stands at a shut gate, each call runs in a thread, and those that are not back in
time waited for it. Run by hand: `python tests/gpu/driver_waits.py [--seconds 2] [name ...]`; needs libcuda alone. vivace/device/waits.h tells what is
made of the answer."""
import argparse
import ctypes as c
import os
import threading
import time

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

# What the scheduler's code takes for granted: `waits` says that a call may wait, and the table marks where the driver says otherwise.
WAITS = {"cuCtxSynchronize", "cuMemFree", "cuMemFree of a used one", "cuMemFreeHost", "cuMemFreeHost 64 MiB", "cuMemHostUnregister", "cuLibraryUnload",
         "cuModuleUnload", "first launch of a kernel with deep local memory"}

PTX = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry plain(.param .u64 p)
{
  ret;
}
.visible .entry deep(.param .u64 p)
{
  .local .align 16 .b8 a[%d];
  .reg .b64 %%rd<9>;
  .reg .b32 %%r<5>;
  ld.param.u64 %%rd1, [p];
  cvta.to.global.u64 %%rd1, %%rd1;
  mov.u32 %%r1, %%tid.x;
  mov.u32 %%r2, %%ctaid.x;
  mul.wide.u32 %%rd2, %%r1, 4;
  mul.wide.u32 %%rd3, %%r2, 4;
  mov.u64 %%rd4, a;
  add.s64 %%rd5, %%rd4, %%rd2;
  add.s64 %%rd6, %%rd4, %%rd3;
  st.local.u32 [%%rd5], %%r1;
  ld.local.u32 %%r3, [%%rd6];
  st.global.u32 [%%rd1], %%r3;
  ret;
}
\0"""

P, U64, U32, I = c.c_void_p, c.c_uint64, c.c_uint32, c.c_int


class Op(c.Structure):
    _fields_ = [("operation", U32), ("pad", U32), ("address", U64), ("value", U64), ("flags", U32), ("pad2", U32), ("alias", U64), ("rest", U64)]


class Location(c.Structure):
    _fields_ = [("type", I), ("id", I)]


class Prop(c.Structure):
    _fields_ = [("type", I), ("handles", I), ("location", Location), ("win", P), ("flags", c.c_ubyte * 8)]


class Access(c.Structure):
    _fields_ = [("location", Location), ("flags", I)]


class CudaError(RuntimeError):
    pass


class Cuda:
    """`cuda.cuMemFree_v2(ptr)`: raises where it fails."""

    def __init__(self):
        self.lib = c.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        fn = getattr(self.lib, name)

        def call(*args):
            if r := fn(*args):
                text = c.c_char_p()
                self.lib.cuGetErrorName(r, c.byref(text))
                raise CudaError(f"{name}: {(text.value or b'?').decode()}")
        return call


cu = Cuda()
MIB = 1 << 20


def made(type_, call, *args):
    out = type_()
    call(c.byref(out), *args)
    return out


def stream():
    return made(P, cu.cuStreamCreateWithPriority, U32(1), I(0))


def memory(n=MIB):
    return made(U64, cu.cuMemAlloc_v2, c.c_size_t(n))


def pinned(n=MIB):
    return made(P, cu.cuMemHostAlloc, c.c_size_t(n), U32(1))


def mem_op(to, wait, address, value=0):
    op = Op(1 if wait else 2, 0, address, value, 1 if wait else 0)
    cu.cuStreamBatchMemOp_v2(to, U32(1), c.byref(op), U32(0))


def launch(function, to, p):
    arg = U64(p.value if hasattr(p, "value") else p)
    args = (P * 1)(c.cast(c.byref(arg), P))
    cu.cuLaunchKernel(function, U32(1), U32(1), U32(1), U32(32), U32(1), U32(1), U32(0), to, args, None)


def module(local=256):
    return made(P, cu.cuModuleLoadData, PTX % local)


def function(m, name=b"plain"):
    return made(P, cu.cuModuleGetFunction, m, name)


def library(local=256):
    return made(P, cu.cuLibraryLoadData, PTX % local, None, None, U32(0), None, None, U32(0))


class Bench:
    """What the calls use: made while nothing stands."""

    def __init__(self):
        cu.cuInit(0)
        self.device = made(I, cu.cuDeviceGet, 0)
        self.context = made(P, cu.cuDevicePrimaryCtxRetain, self.device)
        cu.cuCtxSetCurrent(self.context)
        self.word = pinned(4096)
        self.shut = U32.from_address(self.word.value)
        self.parked, self.other, self.third = stream(), stream(), stream()
        self.module = module()
        self.plain = function(self.module)
        self.data, self.side = memory(64 * MIB), memory(MIB)
        launch(self.plain, self.other, self.data)
        self.prop = Prop(1, 0, Location(1, self.device.value))
        self.page = made(c.c_size_t, cu.cuMemGetAllocationGranularity, c.byref(self.prop), I(1)).value
        self.gated = self.captured(True)
        self.done = made(P, cu.cuEventCreate, U32(2))
        cu.cuCtxSynchronize()

    def captured(self, gate=False):
        graph = self.graph(gate)
        exec_ = made(P, cu.cuGraphInstantiateWithFlags, graph, U64(0))
        cu.cuGraphUpload(exec_, self.third)
        cu.cuStreamSynchronize(self.third)
        return exec_

    def graph(self, gate=False):
        cu.cuStreamBeginCapture_v2(self.third, I(1))
        if gate:
            mem_op(self.third, True, self.word.value)
        launch(self.plain, self.third, self.side)
        return made(P, lambda graph, s: cu.cuStreamEndCapture(s, graph), self.third)

    def run(self, exec_):
        cu.cuGraphLaunch(exec_, self.third)
        cu.cuStreamSynchronize(self.third)
        return exec_

    def park(self, how):
        self.shut.value = 1
        if how == "graph":
            cu.cuGraphLaunch(self.gated, self.parked)
        else:
            mem_op(self.parked, True, self.word.value)
        launch(self.plain, self.parked, self.side)
        cu.cuEventRecord(self.done, self.parked)
        time.sleep(0.01)

    def open(self):
        self.shut.value = 0

    def mapped(self):
        """Pages at an address, as the pool has them."""
        n = c.c_size_t(self.page)
        at = made(U64, cu.cuMemAddressReserve, n, c.c_size_t(0), U64(0), U64(0))
        handle = made(U64, cu.cuMemCreate, n, c.byref(self.prop), U64(0))
        cu.cuMemMap(at, n, c.c_size_t(0), handle, U64(0))
        access = Access(Location(1, self.device.value), 3)
        cu.cuMemSetAccess(at, n, c.byref(access), c.c_size_t(1))
        cu.cuMemsetD8Async(at, c.c_ubyte(1), n, self.other)
        cu.cuStreamSynchronize(self.other)
        return at, handle


def cases(b):
    """name -> (made before, the call)."""
    n = c.c_size_t
    host = c.create_string_buffer(64 * MIB)
    kept = b.kept = [host]
    pin = pinned(64 * MIB)
    page = b.page

    def used():
        p = memory()
        launch(b.plain, b.other, p)
        cu.cuMemsetD8Async(p, c.c_ubyte(1), n(MIB), b.other)
        cu.cuStreamSynchronize(b.other)
        return p

    def registered():
        buffer = c.create_string_buffer(MIB)
        kept.append(buffer)
        cu.cuMemHostRegister_v2(buffer, n(MIB), U32(1))
        return buffer

    def unmapped():
        at, handle = b.mapped()
        cu.cuMemUnmap(at, n(page))
        return at, handle

    def released():
        at, handle = unmapped()
        cu.cuMemRelease(handle)
        return at

    def copy(to, from_, size):
        cu.cuMemcpyAsync(U64(to), U64(from_), n(size), b.other)
        cu.cuStreamSynchronize(b.other)

    def set_access(x):
        access = Access(Location(1, b.device.value), 3)
        cu.cuMemMap(x[0], n(page), n(0), x[1], U64(0))
        cu.cuMemSetAccess(x[0], n(page), c.byref(access), n(1))

    def launched(function_):
        launch(function_, b.other, b.data)
        cu.cuStreamSynchronize(b.other)

    def event():
        e = made(P, cu.cuEventCreate, U32(2))
        cu.cuEventRecord(e, b.other)
        return e

    def kernel(lib, name=b"plain"):
        k = made(P, cu.cuLibraryGetKernel, lib, name)
        return made(P, cu.cuKernelGetFunction, k)

    def desc():
        one = (c.c_ubyte * 144)()
        cu.cuDeviceGetDevResource(b.device, one, I(1))
        part, groups = (c.c_ubyte * 144)(), U32(1)
        cu.cuDevSmResourceSplitByCount(part, c.byref(groups), one, None, U32(0), U32(32))
        return made(P, cu.cuDevResourceGenerateDesc, part, U32(1))

    def green():
        return made(P, cu.cuGreenCtxCreate, desc(), b.device, U32(1))

    def green_stream():
        g = green()
        s = made(P, cu.cuGreenCtxStreamCreate, g, U32(1), I(0))
        cu.cuMemsetD8Async(b.data, c.c_ubyte(1), n(65536), s)
        cu.cuStreamSynchronize(s)
        return g, s

    none, h = lambda: None, c.addressof(host)
    return {
        "cuCtxSynchronize": (none, lambda _: cu.cuCtxSynchronize()),
        "cuStreamSynchronize of another": (none, lambda _: cu.cuStreamSynchronize(b.other)),
        "cuMemGetInfo": (none, lambda _: cu.cuMemGetInfo_v2(c.byref(n()), c.byref(n()))),
        "cuMemAlloc": (none, lambda _: memory()),
        "cuMemAlloc 256 MiB": (none, lambda _: memory(256 * MIB)),
        "cuMemFree": (memory, cu.cuMemFree_v2),
        "cuMemFree of a used one": (used, cu.cuMemFree_v2),
        "cuMemHostAlloc": (none, lambda _: pinned(4096)),
        "cuMemHostAlloc 64 MiB": (none, lambda _: pinned(64 * MIB)),
        "cuMemFreeHost": (lambda: pinned(4096), cu.cuMemFreeHost),
        "cuMemFreeHost 64 MiB": (lambda: pinned(64 * MIB), cu.cuMemFreeHost),
        "cuMemHostRegister": (none, lambda _: registered()),
        "cuMemHostUnregister": (registered, cu.cuMemHostUnregister),
        "cuMemAddressReserve": (none, lambda _: made(U64, cu.cuMemAddressReserve, n(page), n(0), U64(0), U64(0))),
        "cuMemCreate": (none, lambda _: made(U64, cu.cuMemCreate, n(page), c.byref(b.prop), U64(0))),
        "cuMemMap, cuMemSetAccess": (unmapped, set_access),
        "cuMemUnmap": (b.mapped, lambda x: cu.cuMemUnmap(x[0], n(page))),
        "cuMemRelease": (unmapped, lambda x: cu.cuMemRelease(x[1])),
        "cuMemAddressFree": (released, lambda x: cu.cuMemAddressFree(x, n(page))),
        "copy from pageable": (none, lambda _: copy(b.data.value, h, 65536)),
        "copy from pageable 64 MiB": (none, lambda _: copy(b.data.value, h, 64 * MIB)),
        "copy to pageable": (none, lambda _: copy(h, b.data.value, 65536)),
        "copy to pageable 64 MiB": (none, lambda _: copy(h, b.data.value, 64 * MIB)),
        "copy from pinned 64 MiB": (none, lambda _: copy(b.data.value, pin.value, 64 * MIB)),
        "copy to pinned 64 MiB": (none, lambda _: copy(pin.value, b.data.value, 64 * MIB)),
        "cuMemcpy (legacy stream)": (none, lambda _: cu.cuMemcpy(b.data, U64(h), n(65536))),
        "cuMemsetD8 (legacy stream)": (none, lambda _: cu.cuMemsetD8_v2(b.data, c.c_ubyte(1), n(65536))),
        "cuMemsetD8Async of another": (none, lambda _: (cu.cuMemsetD8Async(b.data, c.c_ubyte(1), n(65536), b.other), cu.cuStreamSynchronize(b.other))),
        "cuEventRecord (legacy stream)": (event, lambda e: (cu.cuEventRecord(e, P(1)), cu.cuEventSynchronize(e))),
        "cuStreamCreateWithPriority": (none, lambda _: stream()),
        "cuStreamDestroy": (stream, cu.cuStreamDestroy_v2),
        "cuGreenCtxCreate": (none, lambda _: green()),
        "cuStreamDestroy, cuGreenCtxDestroy": (green_stream, lambda x: (cu.cuStreamDestroy_v2(x[1]), cu.cuGreenCtxDestroy(x[0]))),
        "cuEventCreate": (none, lambda _: made(P, cu.cuEventCreate, U32(2))),
        "cuEventDestroy": (event, cu.cuEventDestroy_v2),
        "capture": (none, lambda _: b.graph(True)),
        "cuGraphInstantiate": (lambda: b.graph(True), lambda g: made(P, cu.cuGraphInstantiateWithFlags, g, U64(0))),
        "cuGraphUpload": (lambda: made(P, cu.cuGraphInstantiateWithFlags, b.graph(), U64(0)),
                          lambda e: (cu.cuGraphUpload(e, b.third), cu.cuStreamSynchronize(b.third))),
        "cuGraphLaunch of another": (b.captured, b.run),
        "cuGraphExecDestroy": (lambda: b.run(b.captured()), cu.cuGraphExecDestroy),
        "cuGraphExecDestroy of one with gates": (lambda: b.run(b.captured(True)), cu.cuGraphExecDestroy),
        "cuGraphDestroy": (b.graph, cu.cuGraphDestroy),
        "cuModuleLoadData": (none, lambda _: module(260)),
        "cuModuleGetFunction": (lambda: module(264), function),
        "cuModuleUnload": (module, cu.cuModuleUnload),
        "cuLibraryLoadData": (none, lambda _: library(268)),
        "cuLibraryGetKernel, cuKernelGetFunction": (lambda: library(272), kernel),
        "cuFuncLoad": (lambda: kernel(library(276)), cu.cuFuncLoad),
        "cuFuncSetAttribute": (lambda: function(module(280)), lambda f: cu.cuFuncSetAttribute(f, I(8), I(65536))),
        "cuLibraryUnload": (library, cu.cuLibraryUnload),
        "first launch of a function": (lambda: function(module(284)), launched),
        "first launch of a library's kernel": (lambda: kernel(library(288)), launched),
        "first launch of a kernel with deep local memory": (lambda: function(module(8192), b"deep"), launched),
    }


class Call(threading.Thread):
    def __init__(self, context, what):
        super().__init__(daemon=True)
        self.context, self.what, self.error, self.seconds = context, what, None, 0.0
        self.start()

    def run(self):
        begun = time.perf_counter()
        try:
            cu.cuCtxSetCurrent(self.context)
            begun = time.perf_counter()
            self.what()
        except Exception as e:
            self.error = str(e)
        self.seconds = time.perf_counter() - begun


def one(b, name, how, seconds):
    """-> (waited, text)."""
    before, what = cases_of[name]
    try:
        given = before()
        cu.cuStreamSynchronize(b.other)
    except Exception as e:
        return False, f"not made: {e}"
    b.park(how)
    call = Call(b.context, lambda: what(given))
    call.join(seconds)
    waited, behind = call.is_alive(), []
    if waited:  # who else stands behind a lock of the driver meanwhile?
        beside = {"launch": lambda: launch(b.plain, b.third, b.side), "memop": lambda: mem_op(b.third, False, b.side.value, 0),
                  "synchronize": lambda: cu.cuStreamSynchronize(b.other), "query": lambda: cu.cuStreamQuery(b.other),
                  "bind": lambda: cu.cuCtxSetCurrent(b.context)}
        for thing, do in beside.items():
            other = Call(b.context, do)
            other.join(0.3)
            if other.is_alive():
                behind.append(thing)
    b.open()
    call.join(10)
    if call.is_alive():
        print(f"{name}: not back 10 s after the gate was opened; the rest cannot be asked", flush=True)
        os._exit(2)
    cu.cuStreamSynchronize(b.parked)
    cu.cuCtxSynchronize()
    text = "WAITS" + (f" (behind it: {', '.join(behind)})" if behind else "") if waited else f"{call.seconds * 1e3:.2f} ms"
    return waited, text + (f" ({call.error})" if call.error else "")


def aliases(b, count=80):
    """Which of `count` streams, made one after the other, stand still with the first, the middle and the last one of them: they share a hardware queue."""
    many = [made(P, cu.cuStreamCreateWithPriority, U32(1), I(-5 if i % 8 == 7 else 0)) for i in range(count)]
    ends = [made(P, cu.cuEventCreate, U32(2)) for _ in many]
    for at in (0, count // 2, count - 1):
        b.shut.value = 1
        mem_op(many[at], True, b.word.value)
        time.sleep(0.01)
        stuck = []
        for i, (s, e) in enumerate(zip(many, ends)):
            if i != at:
                call = Call(b.context, lambda s=s, e=e: (mem_op(s, False, b.side.value), cu.cuEventRecord(e, s)))
                call.join(1)
                if call.is_alive():
                    stuck.append(i)
        time.sleep(0.05)
        held = [i for i, e in enumerate(ends) if i != at and cu.lib.cuEventQuery(e) == 600]
        b.open()
        for s in many:
            cu.cuStreamSynchronize(s)
        print(f"stream {at} of {count} stands (32 queues asked for, every 8th is urgent): held with it: {held}; their submitter waited: {stuck}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2, help="a call that is not back by then waits")
    parser.add_argument("names", nargs="*", help="cases whose name holds one of these; all without")
    asked = parser.parse_args()
    bench = Bench()
    cases_of = cases(bench)
    others = 0
    print(f"{'call':50s} {'a stream stands':34s} a graph's replay stands")
    for name in cases_of:
        if asked.names and not any(n in name for n in asked.names):
            continue
        got = [one(bench, name, how, asked.seconds) for how in ("stream", "graph")]
        waited = any(w for w, _ in got)
        other = waited != (name in WAITS)
        others += other
        print(f"{name:50s} {got[0][1]:34s} {got[1][1]}{'   <- NOT as taken for granted' if other else ''}", flush=True)
    print(f"{others} answers are not as taken for granted")
    if not asked.names:
        aliases(bench)
