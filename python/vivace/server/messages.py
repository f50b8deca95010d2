"""Messages of a conversation as templates take them."""
from __future__ import annotations

from vivace.server import tools
from vivace.server.errors import bad

ROLES = {"developer": "system"}  # where the checkpoint's template has no name for it


def conversation(asked: list, template: str | None, limits, *, calls: str | None = None, sees: bool = False) -> list[dict]:
    """Text parts are joined. `calls`: how this checkpoint writes calls of tools, None where it knows none. `sees`: whether its messages may show images."""
    if not 1 <= len(asked) <= limits.messages:
        raise bad(f"messages: wanted 1 to {limits.messages}, got {len(asked)}", "messages", "invalid_value")
    out, images = [], 0
    for i, m in enumerate(asked):
        at, content = f"messages[{i}]", m.content
        if isinstance(content, list):
            for k, part in enumerate(content):
                if sees and part.type == "image_url":
                    continue
                if part.type != "text" or part.text is None:
                    raise bad(f"{at}.content[{k}]: this model takes parts of type 'text' with a text, got {part.type[:40]!r}", f"{at}.content[{k}]", "invalid_value")
            shown = [part for part in content if part.type == "image_url"]
            images += len(shown)
            if images > limits.images:
                raise bad(f"{at}.content: more than {limits.images} images in a request", f"{at}.content", "invalid_value")
            content = [_part(part) for part in content] if shown else "\n".join(part.text for part in content)
        if (m.tool_calls or m.role == "tool") and calls is None:
            raise bad(f"{at}: this model's chat template knows no calls of tools", at, "unsupported_parameter")
        if content is None and not m.tool_calls:
            raise bad(f"{at}: it has no content", f"{at}.content", "invalid_value")
        named = f"'{m.role}'" in (template or "") or f'"{m.role}"' in (template or "")
        said = {"role": m.role if named else ROLES.get(m.role, m.role), "content": content if content is not None else ""}
        for name, value in (("name", m.name), ("tool_call_id", m.tool_call_id), ("reasoning_content", m.reasoning_content)):
            if value is not None:
                said[name] = value
        if m.tool_calls:
            said["tool_calls"] = tools.called(m.tool_calls, at)
        out.append(said)
    return out


def _part(part) -> dict:
    return {"type": "text", "text": part.text} if part.type == "text" else {"type": "image_url", "image_url": part.image_url}
