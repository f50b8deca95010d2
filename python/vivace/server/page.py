"""GET /: one page that chats with this server. It asks nobody else, and a browser lets it run nothing but its own script."""
from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from vivace.server.web import Call

HTML = resources.files("vivace.server").joinpath("page.html").read_bytes()


def _hash(tag: str) -> str:
    body, = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), HTML, re.S)
    return f"'sha256-{base64.b64encode(hashlib.sha256(body).digest()).decode()}'"


HEADERS = {
    "content-security-policy": f"default-src 'none'; script-src {_hash('script')}; style-src {_hash('style')}; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin", "cache-control": "no-cache",
}


async def page(call: Call, engine) -> None:
    await call.whole(HTML, b"text/html; charset=utf-8", headers=HEADERS)
