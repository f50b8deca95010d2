"""vivace.files and vivace.cache: what others wrote is read with care, what is written here is whole or not there."""
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

import vivace
from vivace import cache, calibrate, files
from vivace.cache import Cache, CacheWarning, kept_folder

UNREADABLE = {
    "zero": (lambda p: p.symlink_to("/dev/zero"), vivace.InvalidArgumentError),
    "urandom": (lambda p: p.symlink_to("/dev/urandom"), vivace.InvalidArgumentError),
    "pipe": (lambda p: os.mkfifo(p), vivace.InvalidArgumentError),
    "folder": (lambda p: p.mkdir(), vivace.InvalidArgumentError),
    "loop": (lambda p: p.symlink_to(p), vivace.IoError),
    "nowhere": (lambda p: p.symlink_to(p.with_name("gone")), vivace.NotFoundError),
    "sparse": (lambda p: os.truncate(os.open(p, os.O_CREAT | os.O_WRONLY), 1 << 40), vivace.LimitExceededError),
}


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.timeout(20)
def test_what_is_no_file_of_sane_size_is_a_typed_error(kind, tmp_path):
    make, error = UNREADABLE[kind]
    file = tmp_path / "tokenizer.json"
    make(file)
    for read in (files.read_bytes, files.read_optional, files.read_text, files.read_json):
        with pytest.raises(error, match="tokenizer.json"):
            read(file)


def test_a_file_is_read_whole_up_to_the_limit(tmp_path):
    file = tmp_path / "f"
    file.write_bytes(bytes(range(100)))
    (tmp_path / "link").symlink_to(file)  # as a hub's cache has them
    assert files.read_bytes(tmp_path / "link", most=100) == bytes(range(100))
    with pytest.raises(vivace.LimitExceededError, match="100 bytes, at most 99 are accepted"):
        files.read_bytes(file, most=99)
    assert files.read_optional(tmp_path / "gone") is None
    assert len(files.read_bytes("/proc/self/status")) > 100  # its size says 0
    with pytest.raises(vivace.LimitExceededError):
        files.read_bytes("/proc/self/status", most=50)


def test_text_and_json(tmp_path):
    for data, what in ((b"\xff{}", "no UTF-8"), (b"[1]", "wanted an object, got list"), (b"{", "Expecting"), (b"[" * 100_000, "recursion")):
        (tmp_path / "f").write_bytes(data)
        with pytest.raises(vivace.CorruptDataError, match=what):
            files.read_json(tmp_path / "f")
    assert files.printable("a\x1b[31mb\x07\u202e") == r"a\x1b[31mb\x07\u202e" and files.printable("x" * 300) == "x" * 200 + "..."


def test_holes_count_nothing_and_a_file_counts_once(tmp_path):
    (tmp_path / "a").write_bytes(b"1" * 10_000)
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").symlink_to(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    assert files.stored_bytes(tmp_path) == files.stored_bytes(tmp_path, tmp_path / "a") == 10_000
    assert files.stored_bytes(tmp_path / "gone") == 0


# ---- written whole ---------------------------------------------------------------------------------

@pytest.mark.parametrize("fault", [KeyboardInterrupt, ValueError, OSError(errno.ENOSPC, "No space left on device")])
def test_what_is_interrupted_leaves_nothing(tmp_path, fault):
    (tmp_path / "old").write_bytes(b"as it was")
    with pytest.raises(vivace.IoError if isinstance(fault, OSError) else fault):
        with files.new_file(tmp_path / "old") as f:
            f.write(b"half")
            raise fault
    with pytest.raises(vivace.IoError if isinstance(fault, OSError) else fault):
        with files.new_folder(tmp_path / "folder") as folder:
            (folder / "x").write_bytes(b"half")
            raise fault
    (tmp_path / "empty").mkdir()
    with pytest.raises(vivace.IoError if isinstance(fault, OSError) else fault):
        with files.new_folder(tmp_path / "empty") as folder:
            (folder / "x").write_bytes(b"half")
            raise fault
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["empty", "old"] and (tmp_path / "old").read_bytes() == b"as it was"


def test_what_ends_is_there_whole(tmp_path):
    for target in (tmp_path / "deep" / "er" / "new", tmp_path):
        with files.new_folder(target) as folder:
            (folder / "sub").mkdir()
            (folder / "sub" / "y").write_text("y")
            files.write_text(folder / "x", "x")
        assert (target / "x").read_text() + (target / "sub" / "y").read_text() == "xy"
    (tmp_path / "link").symlink_to(tmp_path / "x")
    files.write_text(tmp_path / "link", "through")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "x").read_text() == "through"
    files.write_text("/dev/null", "a device is written as it is")
    for bad, error in ((tmp_path / "gone" / "x", vivace.NotFoundError), (tmp_path, vivace.IoError), ("/proc/x", vivace.Error), ("/dev/full", vivace.IoError)):
        with pytest.raises(error, match=str(bad)):
            files.write_text(bad, "x")
    assert not [p for p in tmp_path.rglob("*") if p.name.endswith(".part")]


def test_a_disk_that_is_full_in_the_middle(tmp_path):
    """RLIMIT_FSIZE refuses the write as a full disk does."""
    program = f"""
import resource, signal, sys
from vivace import files, cache
import vivace, warnings
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    files.write_text({str(tmp_path / 'x')!r}, "x" * 5000)
    sys.exit("written")
except vivace.IoError as e:
    assert {str(tmp_path / 'x')!r} in str(e), e
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    kept = cache.Cache({str(tmp_path / 'cache')!r})
    assert not kept.write("a", b"x" * 5000) and not kept.write("b", b"x" * 5000) and kept.read("a") is None
assert len(seen) == 1 and issubclass(seen[0].category, cache.CacheWarning), seen
assert kept.write("small", b"x") and kept.read("small") == b"x"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["small"]


# ---- the cache -------------------------------------------------------------------------------------

PLANTED = [b"", b"null", b"[]", b"5", b'"x"', b"[" * 100_000, b'{"act_scales": [1e30]}', b'{"act_scales": []}', b'{"act_scales": [NaN]}', b"\xff" * 60]


def test_entries_are_private_and_come_back(tmp_path):
    kept = Cache(tmp_path / "a" / "b")
    assert kept.read("x") is None and kept.write("x", b"body\nof two lines") and kept.read("x") == b"body\nof two lines"
    assert kept.folder.stat().st_mode & 0o777 == 0o700 and (kept.folder / "x").stat().st_mode & 0o777 == 0o600
    os.rename(kept.folder / "x", kept.folder / "y")  # an entry of another name
    assert kept.read("y") is None and not list(kept.folder.iterdir())


def test_every_changed_byte_and_planted_entry_is_removed(tmp_path):
    kept, entry = Cache(tmp_path / "c"), tmp_path / "c" / "x"
    kept.write("x", b"0123456789")
    good = entry.read_bytes()
    for bad in [*(good[:i] + bytes([good[i] ^ 16]) + good[i + 1:] for i in range(len(good))), good[:-1], good + b"x", *PLANTED]:
        entry.write_bytes(bad)
        assert kept.read("x") is None and not entry.exists()
    for plant in ("zero", "pipe", "loop", "nowhere"):
        UNREADABLE[plant][0](entry)
        assert kept.read("x") is None and not os.path.lexists(entry)


@pytest.fixture
def warned(monkeypatch):
    """Warnings of this test, none of which was given before."""
    monkeypatch.setattr(cache, "_warned", set())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield seen


UNUSABLE = {
    "file": lambda p: p.write_text("a file"),
    "link": lambda p: p.symlink_to(p.parent),
    "writable": lambda p: (p.mkdir(), p.chmod(0o777)),
    "foreign": lambda p: (p.mkdir(), os.chown(p, 12345, 12345)),
    "proc": lambda p: p.symlink_to("/proc/self"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_folder_that_cannot_be_used_costs_one_warning(kind, tmp_path, warned):
    if kind == "foreign" and os.geteuid() != 0:
        pytest.skip("only root can make a folder of somebody else")
    UNUSABLE[kind](tmp_path / "c")
    kept = Cache(tmp_path / "c")
    for _ in range(3):
        assert kept.read("x") is None and not kept.write("x", b"body")
    assert [w.category for w in warned] == [CacheWarning] and str(tmp_path / "c") in str(warned[0].message)

    def make(folder):
        folder.mkdir()
        (folder / "f").write_text("whole")

    folder = kept_folder(tmp_path / "c", "n", make)
    assert (folder / "f").read_text() == "whole" and tmp_path not in folder.parents


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_read_only_disk(tmp_path):
    """In a mount namespace of its own; skipped where there may be none."""
    program = f"""
import warnings
from vivace import cache
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    kept = cache.Cache({str(tmp_path / 'c')!r})
    assert not kept.write("x", b"body") and not kept.write("y", b"body") and kept.read("x") is None
assert len(seen) == 1 and "Read-only" in str(seen[0].message), seen
"""
    command = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path} && {sys.executable} - <<'E'\n{program}E"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, timeout=60)
    if "mount:" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


def test_eight_threads_and_two_processes_write_one_entry(tmp_path):
    errors, kept = [], Cache(tmp_path / "c")

    def work(i):
        try:
            for n in range(40):
                assert kept.write("x", bytes([65 + i]) * 1000)
                body = kept.read("x")
                assert body is not None and len(set(body)) == 1 and len(body) == 1000
                folder = kept_folder(tmp_path / "f", f"n{n % 3}", lambda whole: (whole.mkdir(), (whole / "w").write_bytes(b"w" * 5000)))
                assert (folder / "w").read_bytes() == b"w" * 5000 and folder.parent == tmp_path / "f"
        except BaseException as e:
            errors.append(e)

    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        work(20)
        os._exit(len(errors))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert os.waitpid(pid, 0)[1] == 0 and errors == []
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == sorted(f"n{n}{end}" for n in range(3) for end in ("", ".digest"))


def test_files_of_killed_writers_go(tmp_path):
    kept = Cache(tmp_path / "c")
    kept.write("x", b"1")
    for name in ("old", "new"):
        (kept.folder / f".tmp-{name}").write_bytes(b"half")
        (kept.folder / f".tmp-{name}-folder").mkdir()
    for name in ("old", "old-folder"):
        os.utime(kept.folder / f".tmp-{name}", (1, 1))
    kept.write("x", b"2")
    assert sorted(p.name for p in kept.folder.iterdir()) == [".tmp-new", ".tmp-new-folder", "x"]


def test_a_kept_folder_whose_files_changed_is_made_again(tmp_path):
    made = []

    def make(folder):
        made.append(folder)
        folder.mkdir()
        (folder / "w").write_bytes(b"weights")

    first = kept_folder(tmp_path / "k", "n", make)
    assert kept_folder(tmp_path / "k", "n", make) == first and len(made) == 1
    for spoil in (lambda: (first / "w").write_bytes(b"weightz"), lambda: (first / "w").unlink(), lambda: (first / "more").write_text("x"),
                  lambda: (tmp_path / "k" / "n.digest").write_text("null")):
        spoil()
        assert kept_folder(tmp_path / "k", "n", make) == first and [f.name for f in first.iterdir()] == ["w"]
    assert (first / "w").read_bytes() == b"weights" and len(made) == 5


# ---- calibration -----------------------------------------------------------------------------------

TINY = Path(__file__).parent / "fixtures" / "tiny" / "llama_untied"


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_scales_and_digests_are_made_again(planted, tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate, "cache_dir", lambda: tmp_path)
    want = calibrate.act_scales(TINY, [[1, 2, 3]], device="cpu")
    entries = sorted((tmp_path / "calibration").iterdir())
    assert len(entries) == 2
    whole = [e.read_bytes() for e in entries]
    for name in entries:
        name.write_bytes(planted)
    assert calibrate.act_scales(TINY, [[1, 2, 3]], device="cpu") == want
    assert [e.read_bytes() for e in entries] == whole
    # The same with a digest that is right: nothing of it is believed but positive finite numbers.
    kept = Cache(tmp_path / "calibration")
    for name in entries:
        kept.write(name.name, planted)
    got = calibrate.act_scales(TINY, [[1, 2, 3]], device="cpu")
    assert got == want or planted == b'{"act_scales": [1e30]}'


def test_a_calibration_that_cannot_be_kept_is_used(tmp_path, monkeypatch, warned):
    (tmp_path / "calibration").write_text("a file")
    monkeypatch.setattr(calibrate, "cache_dir", lambda: tmp_path)
    with vivace.load_model(TINY, device="cpu", precision="fp8_static", calibration=[[1, 2, 3]]) as model:
        assert len(model.generate_ids([1, 2], max_tokens=3).tokens) == 3
    assert [w.category for w in warned] == [CacheWarning]


def test_a_checkpoint_folder_with_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(vivace.InvalidArgumentError, match="x.json: wanted a regular file"):
        calibrate.checkpoint_digest(str(tmp_path))


def test_digest_of_an_entry_is_over_its_name_and_body(tmp_path):
    kept = Cache(tmp_path / "c")
    kept.write("n", b"b")
    head, _, body = (tmp_path / "c" / "n").read_bytes().partition(b"\n")
    assert body == b"b" and head.split()[1].decode() == hashlib.sha256(b"n\0b").hexdigest() and json.dumps(head.decode())


# ---- beside the weights ----------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"])
@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.timeout(20)
def test_files_beside_the_weights_are_read_with_care(name, kind, tmp_path):
    from vivace.text import load_text

    if name != "tokenizer.json":
        (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}')
    UNREADABLE[kind][0](tmp_path / name)
    with pytest.raises(vivace.Error, match=name) as e:
        load_text(str(tmp_path), {})
    assert e.type is UNREADABLE[kind][1]


def test_holes_give_a_tokenizer_no_room(tmp_path):
    from vivace.text import load_text

    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {f"t{i}": i for i in range(300_000)}, "merges": []}}))
    with pytest.raises(vivace.LimitExceededError, match="would take more than"):
        (tmp_path / "model.safetensors").touch()
        os.truncate(tmp_path / "model.safetensors", 1 << 40)
        load_text(str(tmp_path), {})
