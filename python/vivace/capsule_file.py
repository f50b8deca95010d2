"""A capsule as a file: header, table of sections, sections; sealed with a MAC (HMAC-SHA256), bound to a model, its plan and this build.

    0     header: HEADER below, then the MAC of header and table, 32 bytes
    ...   table: for each section its kind, where it lies, its bytes, its SHA-256
    4096  sections, each at a multiple of 4096: state (JSON), tokens (i32), blocks (keys and values; behind them a recurrent state)
"""
from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from vivace import files
from vivace.errors import CorruptDataError, InvalidArgumentError, UnsupportedError

MAGIC, VERSION, ALIGN, MAC_BYTES = b"VVCAPSUL", 1, 4096, 32
HEADER = struct.Struct("<8sIIQ32s32s32sIIIIQQQ")  # magic, version, sections, file's bytes; digests of model, plan, build; a block's positions, tokens, positions, pure; a block's bytes, begin and end of its life (s)
SECTION = struct.Struct("<IIQQ32s")  # kind, 0, offset, bytes, SHA-256
STATE, TOKENS, BLOCKS = KINDS = (1, 2, 3)
MAX_STATE, MAX_TOKENS, MAX_FILE = 16 << 20, 1 << 24, 1 << 40
KEY_BYTES = (16, 1024)


@dataclass(frozen=True)
class Bound:
    """What keys and values are worth anything with: digests."""

    model: bytes
    plan: bytes
    build: bytes
    page: int  # positions of a block
    block_bytes: int
    state_bytes: int = 0  # of the recurrent state behind the blocks, as the model's digest has it


@dataclass(frozen=True)
class Content:
    state: dict
    tokens: list[int]
    positions: int  # of the tokens, whose keys and values are there
    pure: int       # of these, the first that steps of prompts wrote
    blocks: bytes   # and behind them the recurrent state, where the model has one
    expires: int = 0  # seconds since 1970; 0: never


def own_key() -> bytes:
    """This user's, made when it is asked for first; nobody else may read it."""
    from vivace import fetch
    from vivace.cache import private_folder

    folder = fetch.cache_dir().parent
    private_folder(folder)
    path = Path(folder) / "capsule.key"
    try:
        with open(path, "xb", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
            f.write(secrets.token_bytes(32))
    except FileExistsError:
        pass
    if path.stat().st_mode & 0o077:
        raise InvalidArgumentError(f"{path}: others can read this key of capsules; chmod 600 {path}, or remove it and save them anew")
    return _key(files.read_bytes(path, most=KEY_BYTES[1]))


def _key(key: bytes) -> bytes:
    if not isinstance(key, (bytes, bytearray)) or not KEY_BYTES[0] <= len(key) <= KEY_BYTES[1]:
        raise InvalidArgumentError(f"capsule: key: wanted {KEY_BYTES[0]} to {KEY_BYTES[1]} bytes")
    return bytes(key)


def _aligned(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def encode(content: Content, bound: Bound, key: bytes) -> list[bytes]:
    """The file, piece by piece."""
    state = json.dumps(content.state, ensure_ascii=False, allow_nan=False).encode()
    sections = [(STATE, state), (TOKENS, struct.pack(f"<{len(content.tokens)}i", *content.tokens)), (BLOCKS, content.blocks)]
    at, table, body = _aligned(HEADER.size + MAC_BYTES + len(sections) * SECTION.size), b"", []
    size = at
    for kind, data in sections:
        table += SECTION.pack(kind, 0, size, len(data), hashlib.sha256(data).digest())
        body += [data, bytes(_aligned(len(data)) - len(data))]
        size += _aligned(len(data))
    header = HEADER.pack(MAGIC, VERSION, len(sections), size, bound.model, bound.plan, bound.build, bound.page, len(content.tokens), content.positions, content.pure, bound.block_bytes, int(time.time()), content.expires)
    mac = hmac.digest(_key(key), header + table, "sha256")
    return [header, mac, table, bytes(at - len(header) - len(mac) - len(table)), *body]


def decode(data: bytes, bound: Bound, key: bytes, name: str) -> Content:
    """Errors: CorruptDataError for what is cut, changed, or sealed with another key; UnsupportedError for another version; InvalidArgumentError for a capsule of another
    model, plan or build, or one whose time is over."""
    def corrupt(why):
        return CorruptDataError(f"{name}: {why}; save it again")

    if len(data) < HEADER.size + MAC_BYTES or data[:8] != MAGIC:
        raise corrupt("this is no capsule, or only the beginning of one")
    _, version, count, size, model, plan, build, page, tokens, positions, pure, block_bytes, _, expires = HEADER.unpack_from(data)
    if version != VERSION:
        raise UnsupportedError(f"{name}: a capsule of version {version}, this build reads {VERSION}; save it again")
    if count != len(KINDS) or size != len(data):
        raise corrupt(f"its header says {count} sections and {size} bytes, it has {len(data)} bytes")
    begin = HEADER.size + MAC_BYTES
    table = data[begin:begin + count * SECTION.size]
    if not hmac.compare_digest(hmac.digest(_key(key), data[:HEADER.size] + table, "sha256"), data[HEADER.size:begin]):
        raise corrupt("its seal is not of this key, or what it seals was changed")
    parts, end = {}, _aligned(begin + len(table))
    for i in range(count):
        kind, zero, offset, length, digest = SECTION.unpack_from(table, i * SECTION.size)
        if kind != KINDS[i] or zero or offset != end or length > size - offset:
            raise corrupt(f"section {i} is not where it must be")
        parts[kind], end = data[offset:offset + length], _aligned(offset + length)
        if hashlib.sha256(parts[kind]).digest() != digest:
            raise corrupt(f"section {i} is not what was sealed")
    needed = -(-positions // page) if page else 0
    if end != size or len(parts[TOKENS]) != 4 * tokens or tokens > MAX_TOKENS or len(parts[STATE]) > MAX_STATE or not pure <= positions <= tokens or len(parts[BLOCKS]) < needed * block_bytes:
        raise corrupt("its sections are not as long as its header says")
    for what, theirs, ours in (("model", model, bound.model), ("precision plan", plan, bound.plan), ("build of vivace", build, bound.build)):
        if theirs != ours:
            raise InvalidArgumentError(f"{name}: it is of another {what} ({theirs.hex()[:12]}) than this ({ours.hex()[:12]}), whose keys and values differ; load that one, or begin anew")
    if (page, block_bytes) != (bound.page, bound.block_bytes):
        raise InvalidArgumentError(f"{name}: its blocks have {page} positions and {block_bytes} bytes, those of this model {bound.page} and {bound.block_bytes}")
    if len(parts[BLOCKS]) != needed * block_bytes + (bound.state_bytes if needed else 0):
        raise corrupt("its blocks are not as long as its header says")
    if expires and time.time() > expires:
        raise InvalidArgumentError(f"{name}: its time is over")
    try:
        state = json.loads(parts[STATE].decode())
    except (ValueError, RecursionError) as e:
        raise corrupt(f"its state is no JSON ({type(e).__name__})") from None
    if not isinstance(state, dict):
        raise corrupt("its state is no JSON object")
    return Content(state, list(struct.unpack(f"<{tokens}i", parts[TOKENS])), positions, pure, parts[BLOCKS], expires)


def save(path, content: Content, bound: Bound, key: bytes | None) -> None:
    """Whole or not at all, for this user alone."""
    pieces = encode(content, bound, own_key() if key is None else key)
    with files.new_file(path) as f:
        if stat.S_ISREG(os.fstat(f.fileno()).st_mode):  # a pipe or a device keeps its own
            os.fchmod(f.fileno(), 0o600)
        for piece in pieces:
            f.write(piece)


def read(path, bound: Bound, key: bytes | None) -> Content:
    return decode(files.read_bytes(path, most=MAX_FILE), bound, own_key() if key is None else key, files.printable(os.fspath(path), 4096))
