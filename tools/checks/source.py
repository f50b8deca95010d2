"""What every checker needs: the list of files, their text, and code without its comments."""

import functools
import os
import re
import subprocess
from pathlib import Path

CPP = (".h", ".hpp", ".cc", ".cpp", ".c", ".cu", ".cuh", ".def")
SCRIPTS = ("test", "quickstart", ".ci/run", "tools/check")
CODE = CPP + (".py", ".sh", ".cmake")
SKIPPED_FOLDERS = {".git", ".venv", "build", "dist", "__pycache__", ".pytest_cache"}


def _git(root: Path) -> list[str] | None:
    if not (root / ".git").exists():
        return None
    # Untracked files count too: a violation should show before it is committed.
    got = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"],
        capture_output=True, text=True,
    )
    return sorted(set(got.stdout.split("\0")) - {""}) if got.returncode == 0 else None


def _walk(root: Path) -> list[str]:
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS]
        found += [(Path(folder) / n).relative_to(root).as_posix() for n in names]
    return sorted(found)


@functools.lru_cache(maxsize=8)
def _files(root: Path) -> tuple[str, ...]:
    listed = _git(root)
    return tuple(f for f in (_walk(root) if listed is None else listed) if (root / f).is_file())


def files(root: Path, under: str = "", ends: tuple[str, ...] = ("",)) -> list[str]:
    """Paths relative to root: tracked files and those git does not ignore."""
    return [f for f in _files(Path(root)) if f.startswith(under) and f.endswith(ends)]


def code_files(root: Path) -> list[str]:
    names = files(root, ends=CODE)
    return names + [f for f in SCRIPTS if f in _files(Path(root))]


@functools.lru_cache(maxsize=None)
def _text(path: Path) -> str | None:
    data = path.read_bytes()
    if b"\0" in data[:8192]:
        return None
    return data.decode("utf-8", "replace")


def text(root: Path, name: str) -> str:
    """The file as text; binary files read as empty."""
    return _text(Path(root) / name) or ""


# A raw string, a string, a character, a line comment or a block comment, whichever comes first.
_CPP_TOKENS = re.compile(
    r'R"(?P<d>[^()\s\\]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|(?<![\w])\'(?:\\.|[^\'\\\n])+\''
    r"|//(?:\\\n|[^\n])*|/\*.*?\*/",
    re.S,
)


def cpp_code(source: str, strings: bool = True) -> str:
    """C++ with comments blanked, line numbers kept; strings=False blanks string literals too."""

    def blank(m: re.Match) -> str:
        token = m.group(0)
        if token.startswith(("//", "/*")):
            return re.sub(r"[^\n]", " ", token)
        return token if strings else '""' + "\n" * token.count("\n")

    return _CPP_TOKENS.sub(blank, source)


def clear_cache() -> None:
    """For tests that change a tree between two runs."""
    _files.cache_clear()
    _text.cache_clear()
