"""A way to a policy host that is slow, uneven, loses segments and breaks: a socket that carries bytes on as late as a fault says."""
from __future__ import annotations

import random
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass

RETRANSMIT = 0.2  # s that TCP waits before it sends a lost segment again; what comes behind waits as well


@dataclass(frozen=True)
class Fault:
    delay: float = 0.0   # s each way
    jitter: float = 0.0  # s, up to which is added to that, drawn for every piece
    loss: float = 0.0    # share of the pieces that come RETRANSMIT later, as a lost segment does over TCP
    cut: float = 0.0     # s after which each connection breaks; 0: never


FAULTS = {
    "clean": Fault(),
    "far": Fault(delay=0.03, jitter=0.02),
    "lossy": Fault(delay=0.015, jitter=0.01, loss=0.05),
    "cut": Fault(delay=0.015, jitter=0.01, cut=0.9),
}


class Link:
    """Listens on 127.0.0.1, `port`, and carries every connection to `host_port` there with the fault that is set when its bytes come. `pace`:
    of the robot's seconds a second, in which faults are measured."""

    def __init__(self, host_port: int, fault: Fault = FAULTS["clean"], *, seed=0, pace=1.0):
        self.fault, self._host_port, self._pace, self._seed = fault, host_port, pace, seed
        self._pairs, self._carriers, self._lock, self._closed, self.broken, self.lost = [], [], threading.Lock(), False, 0, 0
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        number = 0
        while True:
            try:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self._host_port))
            except OSError:
                return
            for s in (near, far):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self._closed:
                    near.close()
                    far.close()
                    return
                self._pairs.append((near, far))
            number += 1
            there, back = (_Carrier(self, a, b, random.Random(f"{self._seed} {number} {way}")) for way, (a, b) in enumerate(((near, far), (far, near))))
            there.dies_in(self.fault.cut / self._pace if self.fault.cut else None)
            with self._lock:
                self._carriers = [there]
            there.start()
            back.start()

    def begin(self, fault: Fault) -> None:
        """Sets the fault; with `cut`, connections that are there break after that time too."""
        self.fault = fault
        with self._lock:
            carriers = list(self._carriers)
        for c in carriers:
            c.dies_in(fault.cut / self._pace if fault.cut else None)

    def _end(self, *sockets):
        for s in sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        """Ends the door and what goes through it. Twice is fine."""
        with self._lock:
            self._closed = True
            pairs, self._pairs = self._pairs, []
        self._end(self._door)
        self._door.close()
        for pair in pairs:
            self._end(*pair)
            for s in pair:
                s.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class _Carrier:
    """One direction of a connection: one thread reads and says when a piece is due, another sends it then. Order is kept."""

    def __init__(self, link, a, b, rng):
        self._link, self._a, self._b, self._rng, self._dies = link, a, b, rng, None
        self._waiting, self._more = deque(), threading.Condition()

    def dies_in(self, seconds):
        """After so long the connection breaks, whatever is on its way; None: never."""
        with self._more:
            self._dies = None if seconds is None else time.monotonic() + seconds
            self._more.notify()

    def start(self):
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._send, daemon=True).start()

    def _read(self):
        last = 0.0
        while True:
            try:
                data = self._a.recv(1 << 16)
            except OSError:
                data = b""
            fault, late = self._link.fault, 0.0
            if data:
                late = fault.delay + self._rng.random() * fault.jitter
                if self._rng.random() < fault.loss:
                    late += RETRANSMIT
                    self._link.lost += 1
            last = max(last, time.monotonic() + late / self._link._pace)
            with self._more:
                self._waiting.append((last, data))
                self._more.notify()
            if not data:
                return

    def _send(self):
        while True:
            with self._more:
                while not self._waiting:
                    wait = None if self._dies is None else self._dies - time.monotonic()
                    if wait is not None and wait <= 0:
                        break
                    self._more.wait(wait)
                due, data = self._waiting.popleft() if self._waiting else (0.0, None)
                dies = self._dies
            if dies is not None and (data is None or due >= dies):
                time.sleep(max(0.0, dies - time.monotonic()))
                self._link.broken += 1
                data = b""
            if data:
                time.sleep(max(0.0, due - time.monotonic()))
                try:
                    self._b.sendall(data)
                    continue
                except OSError:
                    pass
            self._link._end(self._a, self._b)
            return
