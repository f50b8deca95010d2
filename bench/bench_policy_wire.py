#!/usr/bin/env python3
"""What the wire costs a robot on loopback, over the policy's own time: bench/results/cpu/policy_wire.json.

    python bench/bench_policy_wire.py [--calls 2000] [--receipt]

Two cameras of 224 x 224 and of 480 x 640 go to a policy and a chunk comes back, asked by the websockets library as openpi's client asks. metric=over: the round trip less
what the answer says that the policy took (of the peer with its reading of words and frames, which of ours counts as the wire's), in turn with the peer in blocks of 100: a server of openpi's shape, one asyncio loop that unpacks, infers and packs in Python, here
over the same policy loaded by the same options. Servers are processes of their own, one thread each; nothing else should run on the machine. metric=trip: the whole.
Goals (issue 26): 2 x 224 x 224 over the model p50 0.6 ms and p99.9 1.5 ms, 2 x 480 x 640 2 ms.
"""
import argparse
import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import msgpack
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.receipt import Receipt  # noqa: E402

FRAMES, BLOCK = ((224, 224), (480, 640)), 100
CAMERAS = ("front", "above")
SOURCES = ["vivace/serve/policy_*.cc", "vivace/serve/policy_*.h", "vivace/serve/wire/*.cc", "vivace/serve/wire/*.h", "vivace/models/vla/*.cc", "vivace/models/vla/*.h", "python/vivace/policy.py", "python/vivace/policy_host.py",
           "python/src/policy.cc", "python/src/robot.cc", "bench/bench_policy_wire.py"]


def packed(value) -> bytes:
    def array(a):
        if isinstance(a, np.generic):
            return {b"__npgeneric__": True, b"data": a.item(), b"dtype": a.dtype.str}
        return {b"__ndarray__": True, b"data": a.tobytes(), b"dtype": a.dtype.str, b"shape": a.shape}
    return msgpack.packb(value, default=array)


def unpacked(data):
    def array(m):
        if b"__ndarray__" in m:
            return np.ndarray(buffer=m[b"data"], dtype=np.dtype(m[b"dtype"]), shape=m[b"shape"])
        return m
    return msgpack.unpackb(data, object_hook=array)


def load():
    from vivace.demo import reach

    return reach.load(device="cpu", threads=1, steps=1)


# ---- servers: processes of their own ------------------------------------------------------------------------------------------------

def serve_ours() -> None:
    import vivace

    with load() as policy, vivace.PolicyHost(policy, cameras=CAMERAS, port=0, deadline=10.0) as host:
        print(host.port, flush=True)
        sys.stdin.read()


def serve_peer() -> None:
    from websockets.asyncio.server import serve

    with load() as policy:
        async def robot(ws):
            await ws.send(packed({}))
            async for message in ws:
                observation = unpacked(message)
                begin = time.monotonic()
                answer = policy.infer(observation, robot="any", cameras=CAMERAS)
                await ws.send(packed(answer | {"server_timing": {"infer_ms": (time.monotonic() - begin) * 1e3}}))

        async def main():
            async with serve(robot, "127.0.0.1", 0, compression=None, max_size=None) as server:
                print(server.sockets[0].getsockname()[1], flush=True)
                await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        asyncio.run(main())


# ---- the client ----------------------------------------------------------------------------------------------------------------------

class Client:
    def __init__(self, kind):
        from websockets.sync.client import connect

        self.process = subprocess.Popen([sys.executable, __file__, "--serve", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
        self.ws = connect(f"ws://127.0.0.1:{int(self.process.stdout.readline())}", compression=None, max_size=None, proxy=None).__enter__()
        self.ws.recv(60)

    def ask(self, observation) -> tuple[float, float]:
        """us of the round trip, and of infer()."""
        begin = time.perf_counter()
        self.ws.send(packed(observation))
        answer = unpacked(self.ws.recv())
        took = (time.perf_counter() - begin) * 1e6
        assert answer["actions"].shape[1] == 3
        return took, answer["server_timing"]["infer_ms"] * 1e3

    def close(self):
        self.ws.close()
        self.process.stdin.close()
        self.process.wait(30)


def quantiles(values) -> dict:
    return {name: float(np.quantile(values, q)) for name, q in (("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999))} | {"n": len(values)}


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--calls", type=int, default=2000, help="of each server and size")
    p.add_argument("--receipt", action="store_true")
    p.add_argument("--serve", choices=("ours", "peer"), help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.serve:
        return (serve_ours if args.serve == "ours" else serve_peer)()
    rng, clients = np.random.default_rng(0), {kind: Client(kind) for kind in ("ours", "peer")}
    receipt = Receipt("policy_wire", chip="cpu", sources=SOURCES, command="python bench/bench_policy_wire.py" + f" --calls {args.calls}" * (args.calls != 2000), kernels=False)
    for height, width in FRAMES:
        observation = {"images": {c: rng.integers(0, 256, (height, width, 3), np.uint8) for c in CAMERAS}, "state": rng.standard_normal(3), "prompt": "reach the red ball"}
        seen = {kind: [] for kind in clients}
        for client in clients.values():
            for _ in range(20):
                client.ask(observation)
        while len(seen["ours"]) < args.calls:
            for kind, client in clients.items():
                seen[kind] += [client.ask(observation) for _ in range(min(BLOCK, args.calls))]
        for metric, of in (("over", lambda one: one[0] - one[1]), ("trip", lambda one: one[0])):
            ours, theirs = (quantiles([of(one) for one in seen[kind]]) for kind in ("ours", "peer"))
            case = f"model=tiny-pi05,frames=2x{height}x{width},metric={metric}"
            print(f"{case:<60} p50 {ours['p50_us']:>8.0f} us  p99 {ours['p99_us']:>8.0f}  p99.9 {ours['p999_us']:>8.0f}   openpi's shape p50 {theirs['p50_us']:>8.0f}  p99.9 {theirs['p999_us']:>8.0f}")
            receipt.row(op="e2e", case=case, **ours, peer="asyncio server of openpi's shape, the same policy", peer_p50_us=theirs["p50_us"], note=f"the peer's p99.9 {theirs['p999_us']:.0f} us")
    for client in clients.values():
        client.close()
    if args.receipt:
        print(receipt.write("bench"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
