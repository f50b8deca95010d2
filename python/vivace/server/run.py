"""`vivace serve`: from the command line to a server that ends when it is told to."""
from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import json
import logging
import os
import signal
import sys

import uvicorn

from vivace import capsule_file, files
from vivace.errors import InvalidArgumentError
from vivace.server.app import make_app
from vivace.server.auth import Keys
from vivace.server.engine import Engine
from vivace.server.hearing import Hearing
from vivace.server.limits import Limits, parse
from vivace.server.metrics import Metrics
from vivace.server.protocol import protocol
from vivace.server.sampling import Defaults
from vivace.server.sockets import Sockets
from vivace.server.speech import Speech

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
AFTER_DRAIN_S = 5.0  # for handlers to end once their answers are cancelled


def loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def capsule_key(file: str) -> bytes:
    """What capsules that leave the server are sealed with; replicas share it. Errors: InvalidArgumentError."""
    if (mode := os.stat(file).st_mode) & 0o077:
        raise InvalidArgumentError(f"{file}: mode {mode & 0o777:o}, others can read the key; chmod 600 {file}")
    key = files.read_bytes(file, most=capsule_file.KEY_BYTES[1]).strip()
    if len(key) < capsule_file.KEY_BYTES[0]:
        raise InvalidArgumentError(f"{file}: wanted at least {capsule_file.KEY_BYTES[0]} bytes, got {len(key)}")
    return key


def check(args, keys: list) -> Limits:
    """What can be said of the command line before a model is loaded. Errors: InvalidArgumentError."""
    Keys(keys)
    if not keys and not loopback(args.host) and not args.no_auth:
        raise InvalidArgumentError(f"--host {args.host}: without a key whoever reaches this machine could use it; give --api-key-file, or say --no-auth")
    for name, low, high in (("temperature", 0, 2), ("top_p", 0, 1), ("linger", 0, 3600), ("drain", 0, 86400)):
        if getattr(args, name) is not None and not low <= getattr(args, name) <= high:
            raise InvalidArgumentError(f"--{name.replace('_', '-')}: wanted {low} to {high}, got {getattr(args, name)}")
    if args.capsule_key_file:
        capsule_key(args.capsule_key_file)
    return parse(args.limit)


class Server(uvicorn.Server):
    """Drains: at SIGTERM or SIGINT /readyz says no and new work is refused, `linger_s` later nothing is accepted, answers in
    progress have `drain_s` to end and are cancelled then. A second SIGINT ends it at once."""

    def __init__(self, config, engine: Engine, *, linger_s: float, drain_s: float, started):
        super().__init__(config)
        self._engine, self._linger_s, self._drain_s, self._on_start = engine, linger_s, drain_s, started
        self.signal: int | None = None
        self._lingering = False

    @contextlib.contextmanager
    def capture_signals(self):
        before = {s: signal.signal(s, self.handle_exit) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for s, handler in before.items():
                signal.signal(s, handler)

    def handle_exit(self, sig, frame):
        if self.signal is not None:
            self.force_exit |= sig == signal.SIGINT
            self.should_exit = True
            return
        self.signal = sig
        self._engine.draining = True

    async def on_tick(self, counter):
        if self.signal is not None and not self._lingering:
            self._lingering = True
            asyncio.get_running_loop().call_later(self._linger_s, self._stop)
        return await super().on_tick(counter)

    def _stop(self):
        self.should_exit = True

    async def startup(self, sockets=None):
        await super().startup(sockets)
        if self.started:
            gc.collect()
            gc.freeze()  # what is there now stays: no pass over it later
            sys.setswitchinterval(1e-4)  # a thread that computes gives the loop its turn soon
            self._on_start(self.servers[0].sockets[0].getsockname())

    async def shutdown(self, sockets=None):
        self._engine.draining = True
        late = asyncio.get_running_loop().call_later(self._drain_s, self._engine.cancel_all, "shutdown")
        await super().shutdown(sockets)
        late.cancel()


def serve(model, args, *, name: str, keys: list, limits: Limits, speech=None, scheduler=None) -> int:
    """Serves until a signal; the exit status. model: a language model; None: `speech` alone is served, as `name`. `args`: of the command line.
    scheduler: a vivace.Scheduler whose counts /metrics has too."""
    known, host = Keys(keys), args.host
    hears = None if speech is None else Speech(speech, name if model is None else os.path.basename(args.speech.rstrip("/")))
    if model is None:
        engine = Hearing(hears, limits, metrics=Metrics())
    else:
        defaults = Defaults.of(model.drawn, temperature=args.temperature, top_p=args.top_p, seed=args.seed)
        engine = Engine(model, name, limits, max_batch=args.max_batch, max_waiting=args.max_waiting, metrics=Metrics(), defaults=defaults)
        engine.speech = hears
    engine.scheduler = scheduler
    asked_as = None if known or args.no_auth else LOOPBACK_NAMES | {h.lower() for h in args.allow_host} | ({host} if not loopback(host) else set())
    if args.capsule_key_file and model is not None:
        engine.capsule_key = capsule_key(args.capsule_key_file)
    app = make_app(engine, keys=known, hosts=asked_as, origins=args.cors_origin)
    config = uvicorn.Config(app, host=host, port=args.port, http=protocol(limits, engine.metrics.refused), ws=Sockets, ws_max_size=limits.realtime_bytes, ws_per_message_deflate=False, lifespan="off", log_config=None, access_log=False, server_header=False,
                            proxy_headers=False, timeout_keep_alive=int(limits.idle_s), timeout_graceful_shutdown=int(args.drain + AFTER_DRAIN_S), backlog=256)

    def started(address):
        url = f"http://{'[' + address[0] + ']' if ':' in address[0] else address[0]}:{address[1]}"
        said = {"url": url, "model": name, "auth": bool(known)}
        print(json.dumps(said) if args.json else f"vivace serves {name} at {url}/v1 (OpenAI's API){'' if known else ', without a key'}; Ctrl-C ends it", flush=True)

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    server = Server(config, engine, linger_s=args.linger, drain_s=args.drain, started=started)
    try:
        server.run()
    finally:
        if engine.speech is not None:
            engine.speech.close()
        engine.close()
        gc.unfreeze()
    return 130 if server.signal == signal.SIGINT else 0
