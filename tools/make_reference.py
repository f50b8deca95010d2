#!/usr/bin/env python3
"""Writes what is made from the op table: type stubs and one reference page an op.

    python tools/make_reference.py [folder]      # default: build/reference

<folder>/stubs/vivace/ops.pyi     for type checkers (point stubPath or MYPYPATH at <folder>/stubs)
<folder>/docs/ops/<op>.md         ports, attributes, formula, aliases, source; index.md lists all
Needs vivace installed: the table comes from the module, so pages say what that build does.
"""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUB_HEAD = '''from typing import Any, Literal, Protocol, TypedDict

from numpy.typing import NDArray
from vivace import View

class SupportsDLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

Tensor = NDArray[Any] | View | SupportsDLPack

class Table(TypedDict):
    ops: list[dict[str, Any]]
    aliases: list[dict[str, str]]
    dtypes: list[dict[str, Any]]

def ops_table() -> Table: ...
def cost(op: str, **ports_and_attributes: Any) -> tuple[int, int] | None: ...
'''
DIRECTION = {"in": "read", "out": "written", "inout": "updated"}


def settings(alias):
    """{"kind": "rms"} of an alias row."""
    return dict(s.split("=") for s in alias["attrs"].split(",") if s)


def attr_type(attr):
    if attr["kind"] == "choice":
        return "Literal[" + ", ".join(repr(c) for c in attr["choices"]) + "]"
    return {"real": "float", "integer": "int", "boolean": "bool"}[attr["kind"]]


def stub(row, name, fixed):
    """One function. From the first optional port on, ports go by keyword: Python has no required
    positional parameter after an optional one."""
    parameters, starred = [], False
    for p in row["ports"]:
        if p["optional"] and not starred:
            parameters.append("*")
            starred = True
        parameters.append(f"{p['name']}: Tensor" + (" | None = None" if p["optional"] else ""))
    for a in row["attrs"]:
        if a["name"] in fixed:
            continue
        if not starred:
            parameters.append("*")
            starred = True
        parameters.append(f"{a['name']}: {attr_type(a)} = {a['default']!r}")
    body = ",\n    ".join(parameters)
    return f'def {name}(\n    {body},\n) -> None:\n    """{row["brief"]}"""\n'


def cell(text):
    return text.replace("|", "\\|")


def page(row, aliases):
    """The Markdown page of one op."""
    out = [f"# {row['name']}", "", row["brief"], "", "## Formula", "", "```text", row["formula"].replace("; ", ";\n"), "```", "", "## Ports", "",
           "| port | | shape | dtypes | |", "| --- | --- | --- | --- | --- |"]
    for p in row["ports"]:
        how = ("optional, " if p["optional"] else "") + DIRECTION[p["io"]]
        dtypes = f"that of `{p['dtypes'][1:]}`" if p["dtypes"].startswith("=") else " ".join(p["dtypes"].split("|"))
        doc = p["doc"] + (f"; may be `{p['inplace']}` itself" if p["inplace"] else "")
        out.append(f"| `{p['name']}` | {how} | `[{p['shape']}]` | {dtypes} | {cell(doc)} |")
    if row["attrs"]:
        out += ["", "## Attributes", "", "| attribute | type | default | |", "| --- | --- | --- | --- |"]
        for a in row["attrs"]:
            kind = " ".join(f"`{c}`" for c in a["choices"]) or a["kind"]
            out.append(f"| `{a['name']}` | {kind} | `{a['default']}` | {cell(a['doc'])} |")
    mine = [a for a in aliases if a["op"] == row["name"]]
    if mine:
        out += ["", "## Aliases", ""]
        out += [f"- `{a['name']}`: " + (", ".join(f"`{k}={v}`" for k, v in settings(a).items()) or "the same") for a in mine]
    needed = ", ".join(f"{p['name']}={p['name']}" for p in row["ports"] if not p["optional"])
    out += ["", "## Call", "", "```python", f"vivace.ops.{row['name']}({needed})", "```", "",
            "All axes but the outermost are dense; outputs overlap nothing but what is named above. "
            + ("A decomposition into other ops." if row["composite"] else f"CPU, and CUDA from {row['min_arch']}."), "", f"Source: {row['source']}", ""]
    return "\n".join(out)


def write(folder):
    """Writes everything below `folder`; returns the paths."""
    from vivace.ops import ops_table

    table = ops_table()
    rows = {r["name"]: r for r in table["ops"]}
    pages = {f"docs/ops/{r['name']}.md": page(r, table["aliases"]) for r in table["ops"]}
    index = ["# Ops", ""]
    for group in sorted({r["group"] for r in table["ops"]}):
        index += [f"## {group}", ""] + [f"- [{r['name']}]({r['name']}.md): {r['brief']}" for r in table["ops"] if r["group"] == group] + [""]
    pages["docs/ops/index.md"] = "\n".join(index)
    functions = [stub(r, r["name"], {}) for r in table["ops"]]
    functions += [stub(rows[a["op"]], a["name"], settings(a)) for a in table["aliases"]]
    pages["stubs/vivace/ops.pyi"] = "\n".join([STUB_HEAD, *functions])
    for name, text in pages.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [Path(folder) / name for name in pages]


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "reference"
    print(f"{len(write(target))} files below {target}")
