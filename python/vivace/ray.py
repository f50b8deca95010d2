"""`vivace serve` as an application of Ray Serve: replicas, affinity by `x-session-id`, drain (docs/deploy.md). Needs pip install 'vivace[ray,serve]'."""
from __future__ import annotations

import math
from pathlib import Path

from vivace.errors import InvalidArgumentError, UnsupportedError

DRAIN_MORE_S = 10.0  # for handlers to end behind their answers
ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"


def _serve():
    try:
        from ray import serve
        from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
    except ImportError as e:
        raise UnsupportedError(f"vivace.ray: {e.name or e} is not installed; pip install 'vivace[ray,serve]'") from e
    return serve, AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig


BETWEEN = "seconds_between_answers"


class ByWait:
    """Ray's autoscaling policy: as many replicas as keep a request that comes now from waiting longer than `wait_s`: those that wait already, over the answers
    that end in a second. Of a replica that is not full nobody knows its rate; it takes who waits. Fewer when all that run fit into fewer."""

    def __init__(self, wait_s: float, max_batch: int):
        self._wait_s, self._max_batch = wait_s, max_batch

    def __call__(self, ctx):
        waiting, between = ctx.total_queued_requests, (ctx.aggregated_metrics or {}).get(BETWEEN, {}).values()
        wanted = self.replicas(ctx.target_num_replicas, waiting, ctx.total_num_requests - waiting, list(between))
        return min(max(wanted, ctx.capacity_adjusted_min_replicas), ctx.capacity_adjusted_max_replicas), ctx.policy_state

    def replicas(self, now: int, waiting: float, running: float, between: list[float]) -> int:
        """`between`: seconds between two answers' ends of each replica that is full, 0 of others. At most twice as many as now."""
        if waiting <= 0:
            return min(now, max(1, math.ceil(running / self._max_batch)))
        rate = sum(1 / s for s in between if s > 0)
        if not rate:  # no answer has ended yet
            return now + (running >= now * self._max_batch)
        return min(2 * now, max(now, math.ceil(now * waiting / rate / self._wait_s)))


class Replica:
    """One process with one model. Ray makes it, and asks its health."""

    def __init__(self, model: str, name: str, keys: list, limits: list[str], max_batch: int, max_waiting: int, drawn: dict, load: dict):
        import vivace
        from vivace.server.auth import Keys
        from vivace.server.engine import Engine
        from vivace.server.limits import parse
        from vivace.server.metrics import Metrics
        from vivace.server.sampling import Defaults

        self._model = vivace.load_model(model, max_batch=max_batch, max_waiting=max_waiting, logit_bias=True, **load)
        defaults = Defaults.of(self._model.drawn, temperature=drawn.get("temperature"), top_p=drawn.get("top_p"), seed=drawn.get("seed"))
        self._engine = Engine(self._model, name, parse(limits), max_batch=max_batch, max_waiting=max_waiting, metrics=Metrics(), defaults=defaults)
        self._keys = Keys(keys)

    def __serve_build_asgi_app__(self):
        from vivace.server.app import make_app

        return make_app(self._engine, keys=self._keys)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What ByWait goes by; Ray asks for it."""
        return {BETWEEN: float(self._model._live.retry_after())}

    def check_health(self) -> None:
        """Raises where work waits and no step came for long; Ray then replaces the replica."""
        from vivace.server.others import STUCK_S, state

        age = state(self._engine)["last_step_s"]
        if age is not None and age > STUCK_S:
            raise RuntimeError(f"no step for {age} s, and answers wait for one")

    def __del__(self):
        if (engine := getattr(self, "_engine", None)) is not None:
            engine.draining = True
            engine.close()
        if (model := getattr(self, "_model", None)) is not None:
            model.close()


def app(model: str, *, name: str | None = None, replicas: int = 1, max_replicas: int | None = None, max_batch: int = 4, max_waiting: int = 64, wait_s: float = 2.0, keys: list[str] | tuple[str, ...] = (), limits: list[str] | tuple[str, ...] = (),
        num_cpus: float = 1.0, num_gpus: float = 0.0, drain_s: float = 30.0, temperature: float | None = None, top_p: float | None = None, seed: int | None = None, **load):
    """An application for ray.serve.run() and `serve run`. A replica has `max_batch` requests at a time; up to `max_waiting` more wait in front of it, in each of Ray's proxies, and are lost
    with no replica. `max_replicas` above `replicas`: Ray adds some where a request would wait longer than `wait_s` (ByWait). `keys`: of clients; without, whoever reaches Ray's proxy is served. `num_gpus`: a part of a GPU is book-keeping of Ray's; bound the memory with num_kv_blocks and context. `load`: options of load_model().
    Errors: InvalidArgumentError, UnsupportedError without ray."""
    if not 1 <= replicas <= (max_replicas or replicas):
        raise InvalidArgumentError(f"vivace.ray: wanted 1 <= replicas <= max_replicas, got {replicas} and {max_replicas}")
    if not wait_s > 0 or not math.isfinite(wait_s):
        raise InvalidArgumentError(f"vivace.ray: wait_s: wanted seconds above 0, got {wait_s}")
    serve, AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig = _serve()
    from vivace.server.auth import Keys
    from vivace.server.limits import parse

    Keys(keys), parse(list(limits))  # said here, not in a replica's log
    scaled = {"num_replicas": replicas} if not max_replicas or max_replicas == replicas else {
        "autoscaling_config": AutoscalingConfig(min_replicas=replicas, max_replicas=max_replicas, initial_replicas=replicas, policy=AutoscalingPolicy(policy_function=ByWait, policy_kwargs={"wait_s": wait_s, "max_batch": max_batch}))}
    deployment = serve.deployment(
        name="vivace", max_ongoing_requests=max_batch, max_queued_requests=max_waiting, health_check_period_s=5, health_check_timeout_s=30, graceful_shutdown_wait_loop_s=1, graceful_shutdown_timeout_s=drain_s + DRAIN_MORE_S,
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus}, request_router_config=RequestRouterConfig(request_router_class=ROUTER), **scaled)(serve.ingress()(Replica))
    drawn = {k: v for k, v in (("temperature", temperature), ("top_p", top_p), ("seed", seed)) if v is not None}
    return deployment.bind(model, name or Path(model.rstrip("/")).name.removesuffix(".gguf"), list(keys), list(limits), max_batch, max_waiting, drawn, load)
