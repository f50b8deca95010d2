"""Chat templates. A template is a program that comes with a file, so it runs in a process of its own, with jinja2's
sandbox inside: what it may take of time, memory, depth and output is bounded whatever it does."""
from __future__ import annotations

from vivace.bounded import BoundedProcess
from vivace.errors import CorruptDataError, InvalidArgumentError, LimitExceededError, UnsupportedError

MAX_TEMPLATE_CHARS = 64 << 10
MAX_RENDERED_CHARS = 4 << 20
MAX_SECONDS = 2.0  # of the processor
MAX_BYTES = 512 << 20  # of address space, Python itself included

_worker = BoundedProcess("template_worker.py", "chat template", MAX_BYTES)


def warm() -> None:
    """Starts the process ahead of the first template; it gets ready while the caller goes on."""
    _worker.warm()


def render(template: str, **values) -> str:
    """The template's text over `values` (plain data). Errors: CorruptDataError for what jinja2 refuses, InvalidArgumentError
    for what the template itself refuses (raise_exception), LimitExceededError beyond a limit of this module."""
    return _render(template, values)["text"]


def render_words(template: str, own, roles, **values) -> tuple[str, list[tuple[int, int]]]:
    """The same text, and which stretches of it are words of the caller's: all strings of `values` are, but those named in
    `own`, and the roles of messages among `roles`. UnsupportedError where the template does what cannot be followed."""
    answer = _render(template, values, own=list(own), roles=list(roles))
    return answer["text"], [(a, b) for a, b in answer["words"]]


def _render(template: str, values: dict, **how) -> dict:
    if len(template) > MAX_TEMPLATE_CHARS:
        raise LimitExceededError(f"chat template: {len(template)} characters, at most {MAX_TEMPLATE_CHARS} are accepted")
    try:
        answer = _worker.ask({"template": template, "values": values, "most_chars": MAX_RENDERED_CHARS, **how}, MAX_SECONDS)
    except (TypeError, ValueError) as e:  # of json.dumps
        raise InvalidArgumentError(f"messages: wanted plain data (dicts, lists, strings, numbers): {e}") from None
    for key, error, what in (("limit", LimitExceededError, ""), ("error", CorruptDataError, ""), ("refused", InvalidArgumentError, "it refuses these messages: "),
                             ("lost", UnsupportedError, "whose words are whose is lost in it (pass token ids): ")):
        if key in answer:
            raise error(f"chat template: {what}{answer[key]}")
    return answer
