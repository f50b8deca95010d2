"""The small routes: models, tokens, health, metrics."""
from __future__ import annotations

import time

from vivace.errors import Error
from vivace.server import schema
from vivace.server.messages import conversation
from vivace.server.errors import ApiError, bad, of_engine
from vivace.server.fields import known
from vivace.server.web import Call


def _models(engine) -> dict[str, dict]:
    """What is served, by its name: the language model comes first."""
    rows = [] if engine.model is None else [(engine.name, {"max_model_len": engine.context})]
    rows += [] if engine.speech is None else [(engine.speech.name, {})]
    return {name: {"id": name, "object": "model", "created": engine.created, "owned_by": "vivace", **more} for name, more in reversed(rows)}


async def models(call: Call, engine) -> None:
    await call.json({"object": "list", "data": [*reversed(_models(engine).values())]})


async def model(call: Call, engine) -> None:
    name, rows = call.scope["path_params"]["id"], _models(engine)
    if name not in rows:
        known(name, engine)
    await call.json(rows[name])


async def tokenize(call: Call, engine) -> None:
    """Names of control tokens are words here as in prompts, but for those that the chat template writes around messages."""
    asked = await call.read(schema.TOKENIZE)
    if asked.model is not None:
        known(asked.model, engine)
    given = [k for k in ("prompt", "messages", "content") if getattr(asked, k) is not None]
    if len(given) != 1:
        raise bad(f"wanted one of prompt, messages and content, got {', '.join(given) or 'none'}", "prompt", "invalid_value")
    try:
        if asked.messages is not None:
            said, add = conversation(asked.messages, engine.text.template, call.limits), asked.add_generation_prompt
            ids = await engine.prepare(lambda: engine.text.chat_ids(said, add_generation_prompt=add is None or add, owner=call.identity.salt))
        else:
            text = asked.prompt if asked.prompt is not None else asked.content
            ids = await engine.prepare(engine.text.encode if asked.add_special_tokens is False else engine.text.prompt_ids, text)
    except Error as e:
        raise of_engine(e, began=False) from None
    await call.json({"tokens": ids, "count": len(ids), "max_model_len": engine.context})


async def detokenize(call: Call, engine) -> None:
    asked = await call.read(schema.DETOKENIZE)
    if asked.model is not None:
        known(asked.model, engine)
    wrong = next((t for t in asked.tokens if not 0 <= t < engine.vocab), None)
    if wrong is not None:
        raise bad(f"tokens: {wrong} is outside the vocabulary [0, {engine.vocab})", "tokens", "invalid_value")
    text = await engine.prepare(engine.text.decode, asked.tokens)
    await call.json({"prompt": text, "content": text})


STUCK_S = 120.0  # without a step while somebody waits: the engine hangs


def state(engine) -> dict:
    if engine.model is None:
        asked = engine.speech.asked
        return {"ready": not engine.draining, "answering": min(asked, 1), "waiting": max(0, asked - 1), "realtime_sessions": engine.speech.sessions, "last_step_s": None}
    steps, last = engine.model._live.steps()
    pending = engine.model._live.pending()
    age = (time.monotonic_ns() - max(last, engine.idle_since_ns)) * 1e-9
    return {"ready": not engine.draining, "answering": min(pending, engine.max_batch), "waiting": max(0, pending - engine.max_batch), "steps": steps,
            "last_step_s": round(age, 3) if pending else None, "moved_to_host": engine.model._live.parked()}


async def live(call: Call, engine) -> None:
    """Not alive: work waits, and no step of any kind came for long."""
    now = state(engine)
    if now["last_step_s"] is not None and now["last_step_s"] > STUCK_S:
        raise ApiError(503, f"no step for {now['last_step_s']} s, and {now['answering']} answers wait for one", code="stuck")
    await call.json({"status": "ok"})


async def ready(call: Call, engine) -> None:
    if engine.draining:
        raise ApiError(503, "the server is shutting down", code="shutting_down")
    await call.json({"status": "ok"})


async def progress(call: Call, engine) -> None:
    await call.json(state(engine))


SHOWN_S, MOST_SPANS = 2.0, 4000  # of tenants()


async def tenants(call: Call, engine) -> None:
    """Who shares the device, and what each did of late: [tenant's place, kind, us before now at which it began, us]. Nobody where no scheduler runs."""
    if engine.scheduler is None:
        return await call.json({"seconds": SHOWN_S, "tenants": [], "spans": []})
    now, stats = 1e6 * time.monotonic(), engine.scheduler.stats()
    place = {name: i for i, name in enumerate(stats)}
    spans = [[place[name], kind, round(now - at), round(us)] for name, kind, at, us in engine.scheduler.trace(SHOWN_S)[-MOST_SPANS:] if name in place]
    rows = [{"name": name, "class": s["class"], "share": round(s["share"], 4), "promised": s["promised"], "calls": s["calls"], "missed": s["missed"], "response_p99_us": s["response_us"]["p99"]} for name, s in stats.items()]
    await call.json({"seconds": SHOWN_S, "tenants": rows, "spans": spans})


async def metrics(call: Call, engine) -> None:
    now = state(engine)
    shared = {"vivace_streams_open": ("Streams that are open", engine.streams), "vivace_draining": ("1 while the server shuts down", int(engine.draining))}
    if engine.speech is not None:
        shared |= {"vivace_transcriptions": ("Sound files that are heard or wait", engine.speech.asked), "vivace_realtime_sessions": ("Realtime sessions that are open", engine.speech.sessions)}
    tenants = b"" if engine.scheduler is None else engine.scheduler.metrics().encode()
    kind = b"text/plain; version=0.0.4; charset=utf-8"
    if engine.model is None:
        return await call.whole(engine.metrics.text(shared, None) + tenants, kind)
    count, available, remembered = engine.model._live.blocks()
    gauges = {
        "vivace_requests_answering": ("Answers (choices) that are made", now["answering"]), "vivace_requests_waiting": ("Answers (choices) that wait for a slot", now["waiting"]),
        **shared,
        "vivace_slots": ("Answers that can be made at once", engine.max_batch), "vivace_queue_age_seconds": ("Since the oldest request came that has no token yet; 0: there is none", round(engine.queue_age(), 3)), "vivace_queue_capacity": ("Answers that may be made or wait", engine.most), "vivace_steps": ("Steps of the engine so far", now["steps"]),
        "vivace_kv_blocks": ("Blocks of keys and values; 0: each slot has its own places", count), "vivace_kv_blocks_available": ("Blocks that are free or only remembered", available),
        "vivace_kv_blocks_remembered": ("Blocks that only prompts which begin alike may need", remembered), "vivace_moved_to_host": ("Answers that moved to host memory so far", now["moved_to_host"]),
    }
    await call.whole(engine.metrics.text(gauges, engine.outbox.stats()) + tenants, kind)
