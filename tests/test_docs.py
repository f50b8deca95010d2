"""Snippets in the docs work. A fence marked `<!-- run -->` on the line above it is run in an empty
folder, one marked `<!-- run in root -->` in the repository root; every other python and sh fence must parse."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?:<!-- (?P<mark>run(?: in root)?) -->\n)?```(?P<lang>python|sh)\n(?P<code>.*?)^```$", re.M | re.S)


def _snippets():
    for page in PAGES:
        body = page.read_text()
        for m in FENCE.finditer(body):
            line = body.count("\n", 0, m.start("code")) + 1
            yield pytest.param(m["lang"], m["mark"], m["code"], id=f"{page.relative_to(ROOT)}:{line}")


def _run(lang: str, code: str, cwd: Path) -> subprocess.CompletedProcess:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-"] if lang == "python" else ["bash", "-euo", "pipefail", "-s"]
    return subprocess.run(command, input=code, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("lang,mark,code", list(_snippets()))
def test_snippet(lang, mark, code, tmp_path):
    if mark is None:
        if lang == "python":
            ast.parse(code)
        else:
            got = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True)
            assert got.returncode == 0, got.stderr
        return
    got = _run(lang, code, ROOT if mark == "run in root" else tmp_path)
    assert got.returncode == 0, f"{code}\n--- said:\n{got.stdout}\n{got.stderr}"


def test_the_program_of_the_cpp_page_is_the_example_that_is_built():
    """tests/capi/installed_package.sh compiles and runs it."""
    program = (ROOT / "examples/cpp/generate_ids/generate_ids.cc").read_text()
    assert f"```cpp\n{program}```" in (ROOT / "docs/cpp.md").read_text()


def test_cpp_pages_show_code_of_examples():
    """What begins with an include or is indented is part of an example, which installed_package.sh builds; the rest is a call or two."""
    page, sources = (ROOT / "docs/cpp.md").read_text(), [f.read_text() for f in (ROOT / "examples/cpp").rglob("*.c[cu]")]
    shown = [code for code in re.findall(r"^```cpp\n(.*?)^```$", page, re.M | re.S) if code.startswith(("//", "  "))]
    assert len(shown) == 2 and all(any(code in source for source in sources) for code in shown)
    assert page.index("int main(") < page.index("## Linking")  # the page begins with a program


def test_a_broken_snippet_would_fail(tmp_path):
    assert _run("python", "raise SystemExit(3)", tmp_path).returncode == 3
    assert _run("sh", "false\ntrue\n", tmp_path).returncode != 0


def test_every_error_code_has_a_row():
    codes = re.findall(r"^\s+k(\w+)\b.*//", re.search(r"enum class Code.*?\{(.*?)\};", (ROOT / "vivace/base/status.h").read_text(), re.S)[1], re.M)
    table = (ROOT / "docs/errors.md").read_text()
    assert len(codes) > 15 and [c for c in codes if f"| `{c}` |" not in table] == []


def _documented() -> list[re.Pattern]:
    """The messages of docs/errors.md's tables; X, Y, Z, N, M, KEY and ... stand for anything."""
    cells = re.findall(r"^\| (`.*?) \| ", (ROOT / "docs/errors.md").read_text(), re.M)
    texts = [re.sub(r"^(?:port|slot|tensor) [XN]: ", "", t) for cell in cells for t in re.findall(r"`([^`]+)`", cell)]
    return [re.compile(re.sub(r"\\\.\\\.\\\.|\b(?:[XYZNM]|KEY)\b", ".*", re.escape(t).replace("\\ ", " "))) for t in texts]


# Whose messages must all be in the tables, and the constructors that make them.
DESCRIBED = ["vivace/engine/checkpoint/*.cc", "vivace/serve/batcher.cc", "vivace/serve/engine_loop.cc", "vivace/capi/*.cc", "vivace/serve/policy_*.cc", "vivace/serve/robot_client.cc", "vivace/serve/wire/*.cc", "vivace/models/vla/robots.cc"]


def test_messages_of_readers_requests_and_the_c_abi_are_described():
    documented, missing, seen = _documented(), [], 0
    for file in (f for pattern in DESCRIBED for f in sorted(ROOT.glob(pattern))):
        for body in re.findall(r"(?:corrupt|Status)\(((?:[^;]){0,400}?);", re.sub(r'"\s*\n\s*"', "", file.read_text())):
            text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', body)).replace('\\"', '"')
            if len(re.sub(r"%\w+|\W", "", text)) < 8:
                continue  # put together elsewhere
            seen += 1
            said = re.sub(r"%[-\w.]+?[sdulfgzc]+", "1", text)
            if not any(p.search(said) for p in documented):
                missing.append(f"{file.name}: {text}")
    assert seen > 60 and not missing, "docs/errors.md lacks:\n" + "\n".join(missing)
