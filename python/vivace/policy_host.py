"""A policy behind a websocket, in openpi's words: `vivace serve-policy`, or

    host = vivace.PolicyHost(policy, robot="droid")      # policy: what load_model() gave
    print(host.port)
    host.close()

docs/robots.md says what robots send, and what they are told."""
from __future__ import annotations

import threading
from pathlib import Path

from vivace import _core
from vivace.errors import Error, InvalidArgumentError
from vivace.options import HOST, checked, wrong

MOST_KEY = 4096  # characters


class PolicyHost:
    """Serves robots from threads of its own, which never wait for Python. Use as a context manager or close() it.

    policy: a vivace.policy.Policy, which nobody else may call until close(), or None: robots may connect already, and are answered
    once serve() has it. robot: whose names and units robots use, "aloha", "aloha_sim", "droid", "libero", or "any" with `cameras`, the names under
    "images" in order of the policy's slots; "auto": the checkpoint's, by its statistics and config.json. address: who can reach it; 127.0.0.1 is this machine alone. port: 0 is one that is free.
    key: what robots must bring (openpi's api_key). prompt: of requests without one. metadata: a dict that joins what robots are told first.
    max_clients: robots at once. deadline: s after its arrival by which an answer counts as due where the request says nothing; the earliest is
    served first. idle: s of silence before a ping, and again before a connection is closed. seed: of noise, with the numbers of connection and request.
    Errors: InvalidArgumentError (an option; a robot that the checkpoint is not of), IoError (the port), NotFoundError and UnsupportedError (the tokenizer)."""

    def __init__(self, policy=None, *, robot="auto", cameras=(), tokenizer=None, metadata=None, address="127.0.0.1", port=8000, key="", prompt="", max_clients=16, deadline=0.1, idle=20.0, seed=0):
        given = checked("PolicyHost", HOST, dict(address=address, port=port, key=key, prompt=prompt, max_clients=max_clients, deadline=deadline, idle=idle, seed=seed))
        if len(given["key"]) > MOST_KEY or not given["key"].isascii() or not given["key"].isprintable() or " " in given["key"]:
            raise InvalidArgumentError(f"PolicyHost: key: wanted printable ASCII without spaces, {MOST_KEY} characters at most")  # never the key itself
        self._ready = False
        self._core = _core.PolicyHost.start(**given)
        if policy is None:
            return
        try:
            self.serve(policy, robot=robot, cameras=cameras, tokenizer=tokenizer, metadata=metadata)
        except BaseException:
            self.close()
            raise

    def serve(self, policy, *, robot="auto", cameras=(), tokenizer=None, metadata=None) -> None:
        """Begins to answer with this policy; options are the class's."""
        from vivace.policy import Policy

        if not isinstance(policy, Policy):
            raise wrong("PolicyHost", "policy", "a policy that load_model(config=...) gave", policy)
        given = checked("PolicyHost", HOST, dict(robot=robot, cameras=cameras, metadata=metadata, tokenizer=tokenizer))
        where = given["tokenizer"] or policy.tokenizer_path
        name, names = policy.robot_of(given["robot"], given["cameras"])
        self._core.serve(policy=policy._live, robot=name, cameras=names, tokenizer=str(Path(where)), state_words=policy.state_in_prompt, metadata=_core.pack_message(given["metadata"] or {}))
        self.robot = name
        self._ready = True

    def fail(self, why: str) -> None:
        """There will be no policy: who is connected, or comes, is told so."""
        self._core.fail(str(why))

    @property
    def port(self) -> int:
        return self._core.port

    def metrics(self) -> str:
        """What /metrics says."""
        return self._core.metrics(self._ready)

    def close(self) -> None:
        """Tells robots that it goes, ends the call that is on its way, and frees policy and port."""
        self._ready = False
        self._core.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def serve(load, *, ended=None, say=lambda line: None, robot="auto", cameras=(), tokenizer=None, metadata=None, **options) -> None:
    """What `vivace serve-policy` does: opens the door, loads the policy (`load()`), answers until `ended` (a threading.Event) is set or Ctrl-C.
    Robots that came too early wait, or are told why there is no policy."""
    ended = ended or threading.Event()
    with PolicyHost(**options) as host:
        say(f"listening on {options.get('address', '127.0.0.1')} port {host.port}; loading")
        try:
            policy = load()
        except Error as e:
            host.fail(str(e))
            raise
        with policy:
            try:
                host.serve(policy, robot=robot, cameras=cameras, tokenizer=tokenizer, metadata=metadata)
            except Error as e:
                host.fail(str(e))
                raise
            facts = policy.report()
            say(f"ready: {facts['family']} on {facts['device']}, {facts['precision']}, robot {host.robot}, chunks of {facts['action_horizon']}")
            try:
                while not ended.wait(0.5):
                    pass
            except KeyboardInterrupt:
                pass
            say("closing")
            host.close()
