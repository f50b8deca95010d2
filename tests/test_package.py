"""The package as installed: errors, import time and what an import brings, help, what the module links."""
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vivace
from vivace import _core, errors, ops

ROOT = Path(__file__).resolve().parent.parent


def python(code, **environment):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_errors_are_the_codes():
    header = (ROOT / "vivace/base/status.h").read_text()
    codes = re.findall(r"^  k(\w+)(?: = \d+)?,", header[: header.index("kCodeCount")], re.M)
    by_code = {getattr(errors, n).code: getattr(errors, n) for n in errors.__all__}
    assert set(by_code) == set(codes) - {"Ok"} | {""}
    for code, cls in by_code.items():
        if code:
            assert cls.__name__ == (code if code.endswith("Error") else code + "Error")
            assert issubclass(cls, vivace.Error) and getattr(vivace, cls.__name__) is cls
            assert cls.__module__ == "vivace"


@pytest.mark.parametrize("name, builtin", [
    ("InvalidShapeError", ValueError), ("InvalidDTypeError", TypeError), ("NotFoundError", LookupError),
    ("OutOfMemoryError", MemoryError), ("IoError", OSError), ("UnsupportedError", NotImplementedError), ("Error", RuntimeError),
])
def test_errors_are_builtins_too(name, builtin):
    cls = getattr(vivace, name)
    assert issubclass(cls, builtin)
    assert str(cls("op: port 'x'")) == "op: port 'x'"


def test_import_is_light():
    """<= 0.3 s, and neither NumPy nor the tokenizer is imported."""
    code = "import time; t = time.perf_counter(); import vivace, sys; vivace.ops; s = time.perf_counter() - t; " \
           "print(s, [m for m in ('numpy', 'tokenizers', 'jinja2', 'json') if m in sys.modules])"
    best = min(float(python(code).split()[0]) for _ in range(3))
    assert best <= 0.3, f"import takes {best:.3f} s"
    assert python(code).split(maxsplit=1)[1] == "[]"


def test_ops_work_without_numpy_imported():
    """An error, not a crash, when no NumPy is there to give arrays."""
    assert python("import vivace\ntry: vivace.ops.norm([1.0])\nexcept vivace.InvalidDTypeError as e: print('ok', e)").startswith("ok norm: port x")


def test_fork_gets_its_own_pool():
    code = """
import os, numpy as np, vivace
x, y = np.ones((64, 512), np.float32), np.zeros((64, 512), np.float32)
vivace.set_threads(2); vivace.ops.norm(x, out=y)
with vivace.Capture() as c: vivace.ops.norm(x, out=y)
pid = os.fork()
if pid == 0:  # the parent's captures belong to threads that are not here
    try: c.replay()
    except vivace.FailedPreconditionError: pass
    else: os._exit(3)
y[:] = 0; vivace.ops.norm(x, out=y); assert np.allclose(y, 1)
if pid: print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert python(code) == "0"


def test_module_links_only_the_system():
    needed = subprocess.run(["readelf", "-d", _core.__file__], capture_output=True, text=True, check=True).stdout
    libraries = set(re.findall(r"\(NEEDED\).*\[(.+?)\]", needed))
    extra = {n for n in libraries if not re.match(r"(libc|libm|libpthread|libdl|librt|ld-linux[\w-]*)\.so", n)}
    assert not extra, f"the module loads {sorted(extra)}"
    assert "RPATH" not in needed and "RUNPATH" not in needed


def test_module_exports_only_its_init():
    table = subprocess.run(["nm", "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in table.splitlines()}
    assert names == {"PyInit__core"}, f"also exported: {sorted(names - {'PyInit__core'})[:5]}"


def test_package_is_small():
    """<= 15 MB in all, the module stripped."""
    package = Path(vivace.__file__).parent
    size = sum(f.stat().st_size for f in package.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
    assert size <= 15e6, f"{size / 1e6:.1f} MB"
    sections = subprocess.run(["readelf", "-SW", _core.__file__], capture_output=True, text=True, check=True).stdout
    assert ".symtab" not in sections and ".debug_info" not in sections


def test_functions_have_signatures_and_help():
    for row in ops.ops_table()["ops"]:
        f = getattr(ops, row["name"])
        parameters = inspect.signature(f).parameters
        assert list(parameters) == [p["name"] for p in row["ports"]] + [a["name"] for a in row["attrs"]]
        for a in row["attrs"]:
            assert parameters[a["name"]].default == a["default"]
        for p in row["ports"]:
            assert parameters[p["name"]].default is (None if p["optional"] else inspect.Parameter.empty)
        for text in (row["brief"], row["formula"], row["source"], *(x["doc"] for x in row["ports"] + row["attrs"])):
            assert text in f.__doc__
    for alias in ops.ops_table()["aliases"]:
        fixed = {s.split("=")[0] for s in alias["attrs"].split(",") if s}
        assert not fixed & set(inspect.signature(getattr(ops, alias["name"])).parameters)


def test_table_is_plain_data():
    table = ops.ops_table()
    assert json.loads(json.dumps(table)) == table
    assert set(ops.__all__) == {r["name"] for r in table["ops"] + table["aliases"]} | {"checked", "constant_weights", "cost", "fp4_scale_bytes", "ops_table", "workspace_size"}


def test_unknown_names_are_attribute_errors():
    for owner in (vivace, ops):
        with pytest.raises(AttributeError, match="no_such_thing"):
            owner.no_such_thing


def test_every_name_of_the_package_is_there():
    """S2-6, S2-7: `import vivace` is enough for its parts, and brings none of them in by itself."""
    code = """
import sys, vivace
early = [m for m in ("numpy", "vivace.policy", "vivace.control", "vivace.model") if m in sys.modules]
assert not early, early
for name in ("policy", "control", "calibrate", "verify"): assert getattr(vivace, name).__name__ == "vivace." + name
assert vivace.policy.load_policy and vivace.control.Loop and not callable(vivace.array)
from vivace.model import TextModel
assert issubclass(TextModel, vivace.Model) and issubclass(vivace.policy.Policy, vivace.Model)
names = {}
exec("from vivace import *", names)
missing = [n for n in vivace.__all__ if n not in names or getattr(vivace, n) is not names[n]]
assert not missing and set(dir(vivace)) == set(vivace.__all__), missing
try: vivace.nothing
except AttributeError as e: print(e)
"""
    assert python(code) == "module 'vivace' has no attribute 'nothing'"
