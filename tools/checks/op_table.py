"""Every row of the op table has all its files, and no name carries what belongs in an argument."""

import re
from pathlib import Path

from . import source

PURPOSE = "ops.def rows have spec, CPU code, reference; op names carry no dtype, chip, model, version"
TABLE, ALIASES = "vivace/ops/ops.def", "vivace/ops/aliases.def"
ROW = re.compile(r"^[ \t]*(OP|COMPOSITE|ALIAS)\(\s*(\w+)\s*(?:,\s*(\w+))?", re.M)

DTYPE = r"f(?:64|32|16)|fp(?:64|32|16|8|6|4)|bf16|half|e4m3|e5m2|e2m1|(?:nv|mx)fp\d|[iu](?:64|32|16|8|4)" \
        r"|u?int\d+|w\d+a\d+|q\d"
CHIP = r"sm\d+[af]?|[abhl]\d00?|gb?\d{3}|hopper|blackwell|ampere|orin|thor|rtx\d*"
MODEL = r"llama\d*|smollm\d*|qwen\d*|gemma\d*|paligemma|mistral|whisper|siglip|pi0\w*|pi05|groot|smolvla"
VERSION = r"v\d+|old|new|final|tmp"
BANNED = re.compile(rf"^(?:(?P<dtype>{DTYPE})|(?P<chip>{CHIP})|(?P<model>{MODEL})|(?P<version>{VERSION}))$")
# Files of kernels may say fp8, nvfp4, sm90 or wgmma where that is what they are; a model or a version they may not.
FILE_KINDS = {"model", "version"}


def rows(root: Path, name: str = TABLE) -> list[tuple[str, str, str]]:
    """(kind, name, second argument or '') for each row of a table, in its order."""
    table = source.cpp_code(source.text(root, name))
    return [(m.group(1), m.group(2), m.group(3) or "") for m in ROW.finditer(table)]


def bad_word(name: str, kinds=("dtype", "chip", "model", "version")) -> str | None:
    """The first word of a snake_case name that belongs in an argument instead."""
    for word in name.lower().split("_"):
        if m := BANNED.match(word):
            kind = next(k for k, v in m.groupdict().items() if v)
            if kind in kinds:
                return f"'{word}' ({kind})"
    return None


def _shares(root: Path, name: str) -> bool:
    """Whether an op's header names the arguments of another op of the table as its own: then it runs that op's
    kernels with some options left out, and has none."""
    header = root / "vivace/ops" / f"{name}.h"
    text = header.read_text() if header.is_file() else ""
    others = {other for kind, other, _ in rows(root) if kind == "OP" and other != name}
    used = set(re.findall(r'#include "vivace/kernels/\w+/(\w+)\.h"', text))
    return "using Args = kernels::" in text and bool(used & others)


def _gaps(root: Path, kind: str, name: str) -> list[tuple[str, bool]]:
    """Missing files of one row as (what, required)."""
    have = source.files(root)
    gaps = [(f, True) for f in (f"vivace/ops/{name}.h", f"tests/ref/{name}.py") if f not in have]
    if kind == "COMPOSITE":
        return gaps
    kernel = [f for f in have if re.fullmatch(rf"vivace/kernels/\w+/{name}\.h", f)]
    if not kernel and _shares(root, name):
        return gaps
    if not kernel:
        return gaps + [(f"vivace/kernels/<group>/{name}.h", True)]
    group = kernel[0].split("/")[2]
    if f"vivace/cpu/{group}/{name}.cc" not in have:
        gaps.append((f"vivace/cpu/{group}/{name}.cc", True))
    if f"vivace/kernels/{group}/{name}.cuh" not in have:
        gaps.append((f"vivace/kernels/{group}/{name}.cuh", False))
    return gaps


def run(root: Path) -> list[str]:
    out = []
    table, aliases = rows(root), rows(root, ALIASES)
    ops = [name for _, name, _ in table]
    names = [name for _, name, _ in table + aliases]
    out += [f"{TABLE}: {n} is listed twice, {ALIASES} counted in" for n in sorted({n for n in names if names.count(n) > 1})]
    out += [f"{file}: {kind}({name}) belongs in the other table" for file, found in ((TABLE, table), (ALIASES, aliases)) for kind, name, _ in found if (kind == "ALIAS") != (file == ALIASES)]
    out += [f"{ALIASES}: ALIAS({name}, {target}): {target} is no op of the table" for _, name, target in aliases if target not in ops]
    for kind, name, _ in table:
        if word := bad_word(name):
            out.append(f"{TABLE}: {kind}({name}): {word} belongs in a template argument or a row")
        for what, required in _gaps(root, kind, name):
            if required:
                out.append(f"{TABLE}: {kind}({name}): {what} is missing")
    for folder in ("vivace/ops/", "vivace/kernels/", "vivace/cpu/"):
        for name in source.files(root, folder):
            if word := bad_word(Path(name).stem, FILE_KINDS):
                out.append(f"{name}: {word} belongs in a template argument or a row, not in a file name")
    # A reference or CPU file that no row names is dead.
    for name in source.files(root, "tests/ref/", (".py",)):
        stem = Path(name).stem
        if table and stem not in {"__init__", "common", *ops}:
            out.append(f"{name}: no row of {TABLE} has this name")
    return out


def notes(root: Path) -> list[str]:
    return [
        f"{kind}({name}): {what} is missing: CPU only so far"
        for kind, name, _ in rows(root)
        for what, required in _gaps(root, kind, name)
        if not required
    ]
