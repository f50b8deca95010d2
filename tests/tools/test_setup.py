"""tools/setup.sh on machines this one is not: no rights, sudo, a failing step. Commands are stand-ins on PATH."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def machine(tmp_path):
    """run(script, **commands): the script after setup.sh, in an empty folder, with stand-in commands."""

    def run(script: str, **commands: str):
        bin_folder = tmp_path / "bin"
        bin_folder.mkdir(exist_ok=True)
        for name, body in commands.items():
            path = bin_folder / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return subprocess.run(
            ["bash", "-c", f"set -euo pipefail; . {ROOT}/tools/setup.sh; {script}"], cwd=tmp_path,
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
            env=os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"})

    return run


def test_without_rights_it_prints_the_one_line(machine):
    got = machine("system_packages g++ cmake", dpkg_query='[ "$3" = cmake ] && echo install ok installed',
                  id="echo 1000", sudo="exit 1")
    assert got.returncode == 1
    assert "  apt-get update && apt-get install -y --no-install-recommends g++\n" in got.stderr


def test_nothing_missing_touches_nothing(machine):
    got = machine("system_packages g++ cmake; echo done", dpkg_query="echo install ok installed",
                  apt_get="echo called >&2; exit 1", sudo="exit 1")
    assert (got.returncode, got.stdout, got.stderr) == (0, "done\n", "")


def test_root_installs_only_what_is_missing(machine):
    got = machine("system_packages g++ cmake", dpkg_query='[ "$3" = g++ ] && echo install ok installed',
                  id="echo 0", apt_get='echo "$@" >>calls')
    assert got.returncode == 0, got.stderr
    assert "installing: cmake\n" in got.stderr


def test_sudo_without_password_is_used(machine, tmp_path):
    got = machine("system_packages cmake", dpkg_query="exit 1", id="echo 1000",
                  sudo=f'echo "sudo $*" >>{tmp_path}/calls')
    assert got.returncode == 0, got.stderr
    assert "apt-get" in (tmp_path / "calls").read_text()


def test_a_failing_step_shows_the_end_of_its_log(machine):
    got = machine("quietly 'a step' sh -c 'echo the reason; exit 3'; echo not reached")
    assert got.returncode == 1 and got.stdout == ""
    assert "a step: failed" in got.stderr and "the reason" in got.stderr


def test_an_old_python_is_refused(machine):
    got = machine("virtual_environment", python3='[ "$1" = -V ] && echo Python 3.9.2; exit 1')
    assert got.returncode == 1 and "python3 is Python 3.9.2, wanted 3.11" in got.stderr


def test_digest_follows_content_and_names(machine, tmp_path):
    for name in ("vivace/a.h", "python/b.py", "CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    digest = lambda: machine("sources_digest").stdout  # noqa: E731
    first = digest()
    os.utime(tmp_path / "vivace/a.h", (0, 0))
    assert digest() == first and len(first) == 65
    (tmp_path / "vivace/a.h").write_text("y")
    assert digest() != first
    (tmp_path / "vivace/a.h").write_text("x")
    (tmp_path / "python/b.py").rename(tmp_path / "python/c.py")
    assert digest() != first


@pytest.mark.parametrize("script", ["quickstart", "test", ".ci/run"])
def test_entry_points_are_executable_bash(script):
    assert os.access(ROOT / script, os.X_OK)
    assert subprocess.run(["bash", "-n", ROOT / script]).returncode == 0
