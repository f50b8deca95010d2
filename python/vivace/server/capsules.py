"""/v1/capsules: conversations as they stood, with what was computed of them."""
from __future__ import annotations

import msgspec

from vivace import capsule, capsule_file
from vivace.capsule import Capsule
from vivace.errors import CorruptDataError, Error
from vivace.server.errors import bad, of_engine, unsupported
from vivace.server.kept import Talk
from vivace.server.messages import conversation
from vivace.server.schema import CAPSULE, Message
from vivace.server.web import Call

BYTES = b"application/octet-stream"


def described(talk: Talk) -> dict:
    c = talk.capsule
    return {"id": talk.ident, "object": "capsule", "created_at": int(talk.created), "tokens": len(c.tokens), "computed_tokens": c.positions, "bytes": c.bytes, "tier": c.tier}


async def _off(engine, work, *args):
    try:
        return await engine.with_engine(work, *args)
    except CorruptDataError as e:
        raise bad(str(e), None, "invalid_capsule") from None
    except Error as e:
        raise of_engine(e, began=False) from None


def _made(engine, talk: Talk, limits, tier: str) -> Capsule:
    """On a thread of the pool: it waits for the engine's step."""
    said = conversation(talk.messages, engine.text.template, limits, calls=engine.calls)
    ids = engine.text.chat_ids(said, add_generation_prompt=False, owner=talk.salt)
    state = {"kind": "response", "messages": msgspec.to_builtins(talk.messages)}
    made = capsule.make(engine.model, state, ids, talk.salt)
    return made.to_host() if tier == "host" else made


async def create(call: Call, engine) -> None:
    asked = await call.read(CAPSULE)
    owner = call.identity.name
    talk = engine.kept.previous(asked.response_id, owner) if asked.response_id.startswith("cap_") else engine.kept.response(asked.response_id, owner, "response_id")
    if asked.tier not in (None, "device", "host"):
        raise bad(f"tier: wanted device or host, got {asked.tier[:40]!r}", "tier", "invalid_value")
    engine.kept.check_room()
    made = await _off(engine, _made, engine, talk, call.limits, asked.tier or "device")
    await call.json(described(engine.kept.seal(talk, made, owner)), 201)


async def every(call: Call, engine) -> None:
    await call.json({"object": "list", "data": [described(t) for t in engine.kept.capsules(call.identity.name)]})


def _one(call: Call, engine) -> Talk:
    return engine.kept.capsule(call.scope["path_params"]["id"], call.identity.name)


async def one(call: Call, engine) -> None:
    await call.json(described(_one(call, engine)))


async def fork(call: Call, engine) -> None:
    talk = _one(call, engine)
    await call.json(described(engine.kept.seal(talk, talk.capsule.fork(), call.identity.name)), 201)


async def drop(call: Call, engine) -> None:
    ident = call.scope["path_params"]["id"]
    engine.kept.drop(ident, call.identity.name)
    await call.json({"id": ident, "object": "capsule", "deleted": True})


def _key(engine) -> bytes:
    if engine.capsule_key is None:
        raise unsupported("capsules", "they leave this server only where it was started with --capsule-key-file")
    return engine.capsule_key


async def take(call: Call, engine) -> None:
    """The file, for another replica."""
    talk, key = _one(call, engine), _key(engine)

    def encoded() -> bytes:
        return b"".join(capsule_file.encode(talk.capsule.content(), capsule.bound(engine.model), key))
    await call.whole(await _off(engine, encoded), BYTES)


async def put(call: Call, engine) -> None:
    """Another replica's file. Its keys and values are found by who brought it, and by nobody else."""
    key = _key(engine)
    engine.kept.check_room()
    data, salt = await call.body(BYTES, call.limits.capsule_bytes), call.identity.salt

    def decoded() -> tuple[Talk, Capsule]:
        found = capsule_file.decode(data, capsule.bound(engine.model), key, "capsule")
        try:
            messages = msgspec.convert(found.state.get("messages"), list[Message])
        except msgspec.ValidationError:
            raise bad("capsule: its state is not a conversation", None, "invalid_value") from None
        return Talk("", "", salt, messages), Capsule(engine.model, found.state, found.tokens, salt, host=found.blocks, positions=found.positions, pure=found.pure)
    await call.json(described(engine.kept.seal(*await _off(engine, decoded), call.identity.name)), 201)
