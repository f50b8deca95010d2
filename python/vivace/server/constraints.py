"""What an answer has to keep to, of a request's fields, as options of the engine: response_format, and calls that must be made."""
from __future__ import annotations

import json

from vivace import _core
from vivace.server import forced, tools
from vivace.server.errors import bad, unsupported

CALLS = "// calls of tools\nstart:"  # how a grammar of calls begins
FORMATS = {"json_schema": "json_schema", "regex": "regex", "grammar": "grammar"}  # response_format.type -> where its text is


def of_format(given: dict | None) -> dict:
    """Options of response_format; {} for plain text. Errors: ApiError 400."""
    kind = (given or {"type": "text"}).get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}
    if kind not in FORMATS:
        raise bad(f"response_format.type: wanted text, json_object, json_schema, regex or grammar, got {str(kind)[:40]!r}", "response_format", "invalid_value")
    value = given.get(FORMATS[kind])
    if kind == "json_schema":
        value = value.get("schema") if isinstance(value, dict) else None
    wanted = dict if kind == "json_schema" else str
    if not isinstance(value, wanted):
        raise bad(f"response_format: wanted {'json_schema.schema, an object' if kind == 'json_schema' else f'{kind}, a text'}", "response_format", "invalid_value")
    return {kind: value}


def behind_thought(options: dict, reasoning: str) -> dict:
    """The same for a reply that begins inside reasoning: this first, free, and then what must come. Errors: ApiError 400."""
    close = _core.reasoning_markers(reasoning)[1]
    (kind, value), = options.items()
    before = f"start: thought space body\nthought[suffix={json.dumps(close)}]: /(?s:.*)/\nspace: /[ \\n]{{0,2}}/\n"
    if kind == "grammar" and value.startswith(CALLS):
        return {"grammar": before + "body:" + value.removeprefix(CALLS)}
    body = f"%json {forced.styled(value)}" if kind == "json_schema" else f"/{value.replace('/', chr(92) + '/')}/" if kind == "regex" else None
    if body is None:
        raise unsupported("response_format", "a grammar of one's own beside this model's reasoning; say it inside the grammar, or use json_schema")
    return {"grammar": f"{before}body: {body}\n"}


def held(engine, choice, asked: list, given: list[dict], keeps: dict, *, one_call: bool) -> tuple[list[dict], dict, bool]:
    """Tools that the model is told of, what its reply has to keep to, and whether that is a call of one tool by its name. `asked`: the tools as
    they came, `given`: as tools.checked() has them. Errors: ApiError 400."""
    told, must, named = tools.choice(choice, asked, given, engine)
    if must and keeps:
        raise bad("response_format: not beside a call that must be made", "response_format", "invalid_value")
    return told, calls(engine, told, must, several=not (one_call or named)) if must else keeps, named


def calls(engine, given: list[dict], names: list[str], *, several: bool) -> dict:
    """A grammar of one call or several of the tools `names`, as the model's family writes them. Errors: ApiError 400."""
    special = {name for _, name, special in engine.text.added() if special or name[0] + name[-1] == "<>"}  # llguidance takes added <names> for such
    chosen = [t["function"] for t in given if t["function"]["name"] in names]
    return {"grammar": CALLS + forced.calls(_core.call_form(engine.calls), chosen, special, several=several)}
