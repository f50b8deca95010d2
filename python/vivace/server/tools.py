"""Tools of a request, as templates and the reply's parser take them, and calls of tools in messages."""
from __future__ import annotations

import re
from typing import Any

import msgspec

from vivace.server.errors import bad, unsupported
from vivace.server.forced import string_kind

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def depth(value, most: int) -> bool:
    """Whether it is nested deeper than `most`."""
    level = [value]
    for _ in range(most + 1):
        level = [v for x in level if isinstance(x, (dict, list)) for v in (x.values() if isinstance(x, dict) else x)]
        if not level:
            return False
    return True


def checked(given: list, limits) -> list[dict]:
    """Functions as OpenAI's {"type": "function", "function": {...}}. Errors: ApiError 400."""
    if len(given) > limits.tools:
        raise bad(f"tools: {len(given)}, at most {limits.tools}", "tools", "invalid_value")
    out = []
    for i, tool in enumerate(given):
        at = f"tools[{i}]"
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(function := tool.get("function"), dict):
            raise bad(f"{at}: wanted {{'type': 'function', 'function': {{...}}}}; other tools are not served", at, "invalid_value")
        if not isinstance(name := function.get("name"), str) or not NAME.fullmatch(name):
            raise bad(f"{at}.function.name: wanted 1 to 64 letters, digits, '_', '-' and '.'", f"{at}.function.name", "invalid_value")
        parameters = function.get("parameters")
        if not (parameters is None or isinstance(parameters, dict)):
            raise bad(f"{at}.function.parameters: wanted a JSON schema, an object", f"{at}.function.parameters", "invalid_type")
        if len(msgspec.json.encode(function)) > limits.schema_bytes or depth(parameters, limits.schema_depth):
            raise bad(f"{at}.function: more than {limits.schema_bytes} bytes, or nested deeper than {limits.schema_depth}", f"{at}.function", "invalid_value")
        if not (function.get("strict") is None or isinstance(function["strict"], bool)):
            raise bad(f"{at}.function.strict: wanted true or false", f"{at}.function.strict", "invalid_type")
        out.append({"type": "function", "function": {"name": name, "description": function.get("description") or "", "parameters": parameters or {"type": "object", "properties": {}}}})
    names = [t["function"]["name"] for t in out]
    if len(set(names)) < len(names):
        raise bad("tools: two of one name", "tools", "invalid_value")
    return out


def kinds(tools: list[dict], held: bool = False) -> list[tuple[str, list[tuple[str, str]]]]:
    """Names, and how values of each parameter are read where a family writes them without quotes. `held`: as forced.calls() holds the model to them."""
    def kind(schema: Any) -> str:
        if held:
            known = string_kind(schema)
            return {"string": "string", "enum": "string", "either": "either"}.get(known, "other")
        types = schema.get("type") if isinstance(schema, dict) else None
        types = types if isinstance(types, list) else [types]
        return "other" if "string" not in types else "string" if types == ["string"] else "either" if set(types) == {"string", "null"} else "other"

    def properties(tool):
        found = tool["function"]["parameters"].get("properties")
        return found if isinstance(found, dict) else {}
    return [(t["function"]["name"], [(k, kind(v)) for k, v in properties(t).items()]) for t in tools]


def choice(given, asked: list, tools: list[dict], engine) -> tuple[list[dict], list[str], bool]:
    """Tools that the model is told of, those of which it must call one, and whether that is one by its name. `asked`: the tools as they
    came. Errors: ApiError 400."""
    if not tools or given == "none":
        if given not in (None, "none", "auto"):
            raise bad("tool_choice: there are no tools", "tool_choice", "invalid_value")
        return [], [], False
    if engine.calls is None:
        raise unsupported("tools", "this model's chat template writes no tools, so that it would never learn of them")
    names = [t["function"]["name"] for t in tools]
    if given in (None, "auto"):
        if any((t.get("function") or t).get("strict") for t in asked):
            raise unsupported("tools", "strict functions are held to their schema where a call is forced: send tool_choice 'required' or a name with them, or leave strict out")
        return tools, [], False
    if given == "required":
        return tools, names, False
    name = given.get("function", {}).get("name") if isinstance(given, dict) and given.get("type") == "function" and isinstance(given.get("function"), dict) else None
    if name not in names:
        raise bad("tool_choice: wanted 'none', 'auto', 'required' or {'type': 'function', 'function': {'name': one of the tools}}", "tool_choice", "invalid_value")
    return tools, [name], True


def called(given: list, at: str) -> list[dict]:
    """Calls of an assistant's message, with their arguments as templates want them: an object. Errors: ApiError 400."""
    out = []
    for i, call in enumerate(given):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad(f"{at}.tool_calls[{i}]: wanted {{'id', 'type': 'function', 'function': {{'name', 'arguments'}}}}", f"{at}.tool_calls[{i}]", "invalid_value")
        arguments = function.get("arguments")
        try:
            arguments = msgspec.json.decode(arguments or "{}") if isinstance(arguments, str) or arguments is None else arguments
        except (msgspec.DecodeError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise bad(f"{at}.tool_calls[{i}].function.arguments: wanted a JSON object, as a string", f"{at}.tool_calls[{i}].function.arguments", "invalid_value")
        out.append({"id": str(call.get("id", "")), "type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return out
