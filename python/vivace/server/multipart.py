"""A form with files (RFC 7578), held in memory: what it may cost is bounded by its caller's body and by the numbers here."""
from __future__ import annotations

import re
from dataclasses import dataclass

from vivace.server.errors import ApiError, bad

KIND = b"multipart/form-data"
PARTS, HEAD = 64, 4096  # of a form; bytes of a part's head
_BOUNDARY = re.compile(rb'(?:^|;)\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s";,]{1,70}))\s*(?:;|$)', re.I)
_NAME = re.compile(rb';\s*(name|filename)="((?:[^"\\]|\\.)*)"', re.I)


@dataclass(frozen=True)
class Part:
    name: str
    filename: str | None
    value: memoryview


def boundary(content_type: bytes) -> bytes:
    """Errors: ApiError 400."""
    found = _BOUNDARY.search(content_type.partition(b";")[2])
    if found is None:
        raise bad("content-type: a multipart/form-data without a boundary", code="invalid_form")
    return found[1] or found[2]


def parts(body: bytes, mark: bytes) -> list[Part]:
    """Views of the body. Errors: ApiError 400."""
    line, at, out = b"--" + mark, 0, []
    if not body.startswith(line):
        raise bad("the form does not begin with its boundary", code="invalid_form")
    at = len(line)
    while body[at:at + 2] != b"--":
        if body[at:at + 2] != b"\r\n":
            raise bad("a boundary of the form is not followed by a line's end", code="invalid_form")
        if len(out) == PARTS:
            raise bad(f"the form has more than {PARTS} parts", code="invalid_form")
        head = body.find(b"\r\n\r\n", at, at + HEAD)
        end = body.find(b"\r\n" + line, head + 2) if head >= 0 else -1
        if head < 0 or end < 0:
            raise bad("the form is cut, or a part's head is longer than 4096 bytes", code="invalid_form")
        begin = min(head + 4, end + 2) if end < head + 4 else head + 4
        out.append(_part(body[at:head], memoryview(body)[begin:max(begin, end)]))
        at = end + 2 + len(line)
    return out


def _part(head: bytes, value: memoryview) -> Part:
    for line in head.split(b"\r\n"):
        key, _, rest = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            names = {k.lower(): v for k, v in _NAME.findall(rest)}
            if b"name" in names:
                read = lambda v: re.sub(rb"\\(.)", rb"\1", v).decode("utf-8", "backslashreplace")[:200]  # noqa: E731
                return Part(read(names[b"name"]), read(names[b"filename"]) if b"filename" in names else None, value)
    raise bad("a part of the form has no name", code="invalid_form")


def too_many(name: str) -> ApiError:
    return bad(f"{name}: given more than once", name, "invalid_value")
