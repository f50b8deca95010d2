"""Calls of tools as grammars, each family's own way of writing them: what a reply that must call is held to."""
from __future__ import annotations

import json

from vivace.errors import InvalidArgumentError
from vivace.server.errors import bad, unsupported
from vivace.structured import JSON_STYLE, schema_text

SAYS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}  # keywords of a schema that hold nothing
OBJECT = SAYS | {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema", "$id", "strict"}  # what arguments without JSON's braces may say
END = "</parameter>"


def styled(schema: dict) -> str:
    """A schema inside a grammar, checked as one by itself. Errors: InvalidArgumentError."""
    return json.dumps({**json.loads(schema_text(schema)), "x-guidance": JSON_STYLE})


def string_kind(schema) -> str | None:
    """Of a value that may be any text: "string"; or null besides: "either"; of one of some texts: "enum"."""
    if not isinstance(schema, dict) or (held := set(schema) - SAYS - {"type"}) - {"enum", "const"}:
        return None
    types = schema.get("type") if isinstance(schema.get("type"), list) else [schema.get("type")]
    if not held:
        return "string" if types == ["string"] else "either" if set(types) == {"string", "null"} else None
    words = schema["enum"] if "enum" in schema else [schema["const"]]
    fine = types == ["string"] and len(held) == 1 and isinstance(words, list) and words and all(isinstance(w, str) and END not in w and w == w.strip() for w in words)
    return "enum" if fine else None


class _Rules:
    """Rules of one call. `mark`: how a family's marker is written in a grammar."""

    def __init__(self, function: dict, at: int, row: dict, mark):
        self.name, self.schema, self._at, self.row, self.mark = function["name"], function["parameters"], at, row, mark
        self.lines: list[str] = []

    def add(self, body: str, attributes: str = "") -> str:
        name = f"c{self._at}_{len(self.lines)}"
        self.lines.append(f"{name}{attributes}: {body}")
        return name

    def json(self, schema) -> str:
        """Any value of a schema, as JSON. Errors: ApiError 400."""
        schema = {} if schema is True else schema
        if not isinstance(schema, dict):
            raise bad(f"tools: {self.name}: the schema of a parameter is no object", "tools", "invalid_value")
        if '"$ref"' in json.dumps(schema):
            schema = {**schema, **{k: self.schema[k] for k in ("$defs", "definitions") if k in self.schema}}
        try:
            return self.add(f"%json {styled(schema)}")
        except InvalidArgumentError as e:
            raise bad(f"tools: {self.name}: {e}", "tools", "invalid_value") from None

    def parameters(self) -> list[tuple[str, object, bool]]:
        """Names, schemas, and which must be there. Errors: ApiError 400 for what these forms cannot keep."""
        schema = self.schema
        if extra := sorted(set(schema) - OBJECT):
            raise unsupported("tools", f"{self.name}: {extra[0]} of all arguments together cannot be kept in this model's form of calls; say it of single parameters, or send tool_choice 'auto'")
        properties, required, more = schema.get("properties", {}), schema.get("required", []), schema.get("additionalProperties", True)
        if schema.get("type", "object") != "object" or not isinstance(properties, dict) or not (isinstance(required, list) and all(isinstance(r, str) for r in required)):
            raise bad(f"tools: {self.name}: wanted the schema of an object, with properties and required", "tools", "invalid_value")
        properties = properties | {r: more for r in required if r not in properties}
        if none := [k for k in required if properties[k] is False]:
            raise bad(f"tools: {self.name}: {none[0]!r} is required, and nothing may stand there", "tools", "invalid_value")
        return [(k, v, k in required) for k, v in properties.items() if v is not False]


def plain(name: str) -> bool:
    """Whether a key is written as it is: the reader's may_name(), and no part of a form."""
    return 0 < len(name.encode()) <= 256 and not any(ord(c) <= 0x20 or c in '\x7f<>{}"' for c in name)


def _json_call(rules: _Rules) -> str:
    row, schema = rules.row, rules.schema
    opens, closes = ("", "") if row["bare"] else (f"{rules.mark(row['open'])} \"\\n\"", f"\"\\n\" {rules.mark(row['close'])}")
    before = f'{{"name": {json.dumps(rules.name)}, "{row["arguments"]}": '
    arguments = rules.json(schema if "type" in schema or "$ref" in schema or "anyOf" in schema else {"type": "object", **schema})
    return f"{opens} {json.dumps(before)} {arguments} \"}}\" {closes}"


def _xml_call(rules: _Rules) -> str:
    parts = []
    for key, schema, required in rules.parameters():
        if not plain(key):
            raise unsupported("tools", f"{rules.name}: a parameter {key[:40]!r} cannot be written in this model's form of calls")
        kind = string_kind(schema)
        if kind == "enum":
            value = rules.add(" | ".join(json.dumps(f"{w}\n{END}", ensure_ascii=False) for w in (schema["enum"] if "enum" in schema else [schema["const"]])))
        elif kind is not None:  # anything up to the end, and the line end before it is no part of it
            value = rules.add("/(?s:.*)/", f"[suffix={json.dumps(END)}]")
        else:
            value = f'{rules.json(schema)} {json.dumps(chr(10) + END)}'
        one = rules.add(f'{json.dumps(f"<parameter={key}>" + chr(10))} {value} "\\n"')
        parts.append(one if required else f"{one}?")
    return f'{rules.mark(rules.row["open"])} {json.dumps(chr(10) + f"<function={rules.name}>" + chr(10))} {" ".join(parts)} {json.dumps("</function>" + chr(10))} {rules.mark(rules.row["close"])}'


def _braces_call(rules: _Rules) -> str:
    quote = rules.mark(rules.row["quote"])
    if quote.startswith("<"):  # a token, which no text has
        text = rules.add(f"{quote} /(?s:.+)/? {quote}")
    else:
        text = rules.add(f"{quote} {rules.add('/(?s:.*)/', f'[suffix={quote}]')}")
    first, later = '""', '""'  # what may follow where nothing came yet, and where something did
    for key, schema, required in reversed(rules.parameters()):
        kind = string_kind(schema)
        if kind == "enum" and rules.row["quote"] not in json.dumps(schema, ensure_ascii=False):
            value = rules.add(" | ".join(f"{quote} {json.dumps(w, ensure_ascii=False)} {quote}" for w in (schema["enum"] if "enum" in schema else [schema["const"]])))
        else:
            value = text if kind == "string" else f'({text} | "null")' if kind == "either" else rules.json(schema)
        one = rules.add(f'{json.dumps((key if plain(key) and "," not in key and ":" not in key else json.dumps(key)) + ":")} {value}')
        first = rules.add(f"{one} {later}" if required else f"{one} {later} | {first}")
        later = rules.add(f'"," {one} {later}' if required else f'("," {one})? {later}')
    return f'{rules.mark(rules.row["open"])} {json.dumps(f"call:{rules.name}" + "{")} {first} "}}" {rules.mark(rules.row["close"])}'


FORMS = {"json": (_json_call, '"\\n"'), "xml": (_xml_call, '"\\n"'), "braces": (_braces_call, '""')}  # a call, and what stands between two


def calls(row: dict, functions: list[dict], special: set[str], *, several: bool) -> str:
    """Rules of one call or several of these functions; the first one is `start`'s body. `row`: of _core.call_form(); `special`: markers that are
    tokens of their own. Errors: ApiError 400."""
    write, between = FORMS[row["form"]]
    made = []
    for i, function in enumerate(functions):
        rules = _Rules(function, i, row, lambda marker: marker if marker in special else json.dumps(marker))
        made += [f"call_{i}: {write(rules)}", *rules.lines]
    between = '"; "' if row["bare"] else between
    body = f"call ({between} call)*" if several else "call"
    return "\n".join([f" {body}", f"call: {' | '.join(f'call_{i}' for i in range(len(functions)))}", *made]) + "\n"
