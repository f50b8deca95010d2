"""Conversations: what a caller's messages must be, and their ids through a checkpoint's chat template."""
from __future__ import annotations

from vivace.encoder import check_text
from vivace.errors import InvalidArgumentError, NotFoundError

# Roles are no words: templates compare them, and some write them into the names of control tokens. Others are taken
# where the template names them, as words.
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation", "model")
MAX_DEPTH = 64
OWN = ("bos_token", "eos_token")  # of the values that a template sees: the checkpoint's


def check_messages(messages, template: str, images: bool = False) -> None:
    """InvalidArgumentError names the message and what is wrong with it. `images`: whether parts may be images, whose pictures are elsewhere."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidArgumentError(f"messages: wanted a list of dicts with role and content, got {'an empty one' if isinstance(messages, (list, tuple)) else type(messages).__name__}")
    for i, message in enumerate(messages):
        at = f"messages[{i}]"
        if not isinstance(message, dict):
            raise InvalidArgumentError(f"{at}: wanted a dict with role and content, got {type(message).__name__}")
        _check_plain(message, at, 0)
        role = message.get("role")
        if not isinstance(role, str):
            raise InvalidArgumentError(f"{at}: wanted a role, a string, got {'none' if role is None else type(role).__name__}")
        if role not in ROLES and not any(f"{q}{role}{q}" in template for q in "'\""):
            raise InvalidArgumentError(f"{at}.role: wanted one of {', '.join(ROLES)}, or one that the checkpoint's chat template names, got {role[:40]!r}")
        _check_content(message, at, images)


def _check_content(message: dict, at: str, images: bool) -> None:
    content = message.get("content")
    if content is None:
        if not message.get("tool_calls"):
            raise InvalidArgumentError(f"{at}: it has no content; only a message with tool_calls may go without")
    elif isinstance(content, list):
        for i, part in enumerate(content):
            if part == {"type": "image"} and images:
                continue
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            if kind != "text" or not isinstance(part.get("text"), str):
                raise InvalidArgumentError(f"{at}.content[{i}]: wanted {{'type': 'text', 'text': a string}}, got {str(kind)[:40]}; language models take text")
    elif not isinstance(content, str):
        raise InvalidArgumentError(f"{at}.content: wanted a string or a list of parts, got {type(content).__name__}")


def _check_plain(value, at: str, depth: int) -> None:
    """Plain data whose strings are text."""
    if isinstance(value, str):
        return check_text(value, at)
    if depth > MAX_DEPTH:
        raise InvalidArgumentError(f"{at[:80]}: nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        for key, item in value.items():
            check_text(key, f"{at}: a key")
            _check_plain(item, f"{at}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _check_plain(item, f"{at}[{i}]", depth + 1)
    elif not (value is None or isinstance(value, (bool, int, float))):
        raise InvalidArgumentError(f"{at}: wanted plain data (dicts, lists, strings, numbers), got {type(value).__name__}")


def _written(*args, **values):
    from vivace import template

    return template.render_words(*args, **values)


class Chat:
    """A chat template with the tokens that it writes."""

    def __init__(self, template: str | None, bos: str, eos: str):
        self.template, self._own, self._takes_parts = template, dict(zip(OWN, (bos, eos))), None

    def render(self, messages, values: dict, images: bool = False) -> tuple[str, list[tuple[int, int]]]:
        """The text, and which stretches of it are the caller's words. `values`: more that the template may ask for. `images`: see check_messages()."""
        if not self.template:
            raise NotFoundError("this checkpoint has no chat template; call generate with a plain prompt")
        check_messages(messages, self.template, images)
        for key, value in values.items():
            if key in OWN or key == "messages":
                raise InvalidArgumentError(f"{key}: the checkpoint's own, or given already")
            _check_plain(value, key, 0)
        parts = next((i for i, m in enumerate(messages) if isinstance(m.get("content"), list)), None)
        if parts is not None and not self._parts():
            raise InvalidArgumentError(f"messages[{parts}].content: this checkpoint's chat template takes a string; join the parts' text")
        return _written(self.template, OWN, ROLES, **{"tools": None, "documents": None, **values, "messages": list(messages), **self._own})

    def _parts(self) -> bool:
        """Whether the template takes content in parts: it writes the text of one as it writes a string."""
        from vivace import template
        from vivace.errors import Error

        if self._takes_parts is None:
            def written(content):
                messages = [{"role": "user", "content": content}]
                return template.render(self.template, **{"tools": None, "documents": None, "add_generation_prompt": True, "messages": messages, **self._own})
            try:
                self._takes_parts = written([{"type": "text", "text": "words"}]) == written("words")
            except Error:
                self._takes_parts = False
        return self._takes_parts
