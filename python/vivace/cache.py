"""Folders below the cache that hold what was made here: scales of calibrations, unpacked weights.

The rules are those of the kernels' cache (vivace/jit/cache.h): a folder of mode 0700 that belongs to this user and that
nobody else can write, no links, entries with a digest over their name and content, written under a name of their own
and renamed. An entry that is not whole is removed and made again. A folder that cannot be used (rights, a full or
read-only disk) costs one warning and is gone without: what was computed is used all the same.
"""
from __future__ import annotations

import atexit
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from vivace import files
from vivace.errors import Error, FailedPreconditionError

MAX_ENTRY_BYTES = 16 << 20
_MAGIC = b"VVKEPT01 "  # the first line of an entry, with the digest over name, 0, body in hex; the body follows
_STALE_S = 3600  # a temporary file this old belongs to a process that died
_warned: set[str] = set()


class CacheWarning(RuntimeWarning):
    """A cache that cannot be used; nothing is lost but time."""


def private_folder(path) -> int:
    """A descriptor of the folder, made with mode 0700 if need be. Errors: FailedPreconditionError for one that is a link, of
    another user or writable by others, with what to do; IoError."""
    path = os.path.abspath(path)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileExistsError, NotADirectoryError):
        raise FailedPreconditionError(f"{path} is a symbolic link or a file: a cache must be a real folder; set VIVACE_CACHE to one") from None
    except OSError as e:
        raise files.system_error(path, e) from e
    try:
        _check_owner(os.fstat(fd), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_owner(s: os.stat_result, path) -> None:
    if s.st_uid != os.geteuid():
        raise FailedPreconditionError(f"{path} belongs to user {s.st_uid}, not {os.geteuid()}: it is not read; set VIVACE_CACHE to a folder of your own")
    if s.st_mode & 0o022:
        raise FailedPreconditionError(f"{path} has mode {stat.S_IMODE(s.st_mode):03o}, so others can write to it: it is not read; run chmod go-w on it, after checking who did")


def _go_without(folder, why) -> None:
    """Says once a folder that it is not used."""
    if str(folder) not in _warned:
        _warned.add(str(folder))
        warnings.warn(f"the cache in {folder} is not used: {why}", CacheWarning, stacklevel=4)


class Cache:
    """Entries of one folder by name. Several processes and threads may use one. No call raises for the disk's sake."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def read(self, name: str) -> bytes | None:
        """The body of an entry; None where there is none, or none that is whole and ours."""
        try:
            fd = private_folder(self.folder)
        except Error as e:
            return _go_without(self.folder, e)
        try:
            return self._read(fd, name)
        finally:
            os.close(fd)

    def _read(self, folder: int, name: str) -> bytes | None:
        where = self.folder / name
        try:
            with open(files.open_regular(name, folder=folder, follow=False), "rb") as f:
                _check_owner(os.fstat(f.fileno()), where)
                data = f.read(MAX_ENTRY_BYTES + 1)
        except FailedPreconditionError as e:
            return _go_without(where, e)  # what another user put there is not ours to remove
        except (Error, OSError):
            if os.path.lexists(where):
                self._remove(folder, name)
            return None
        head, _, body = data.partition(b"\n")
        if head == _MAGIC + _digest(name, body) and len(data) <= MAX_ENTRY_BYTES:
            return body
        self._remove(folder, name)
        return None

    def write(self, name: str, body: bytes) -> bool:
        """Whether it was kept."""
        temp = f".tmp-{secrets.token_hex(8)}-{name}"
        try:
            fd = private_folder(self.folder)
        except Error as e:
            _go_without(self.folder, e)
            return False
        try:
            self._remove_stale(fd)
            with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=fd), "wb") as f:
                f.write(_MAGIC + _digest(name, body) + b"\n" + body)
                f.flush()
                os.fsync(f.fileno())
            os.rename(temp, name, src_dir_fd=fd, dst_dir_fd=fd)
            os.fsync(fd)
            return True
        except BaseException as e:
            self._remove(fd, temp)
            if not isinstance(e, OSError):
                raise
            _go_without(self.folder, e.strerror or e)
            return False
        finally:
            os.close(fd)

    @staticmethod
    def _remove(folder: int, name: str) -> None:
        try:
            os.unlink(name, dir_fd=folder)
        except OSError:
            pass  # gone already, a folder, or a disk that is read-only: the next write says so

    def _remove_stale(self, folder: int) -> None:
        for name in os.listdir(folder):
            try:
                old = name.startswith(".tmp-") and time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > _STALE_S
            except FileNotFoundError:
                continue
            if old:
                self._remove(folder, name)
                shutil.rmtree(self.folder / name, ignore_errors=True)


def _digest(name: str, body: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + body).hexdigest().encode()


def kept_folder(parent, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` that make() fills, from the cache where it is there and every file in it is as make() left it, else
    made anew; in a temporary folder, removed when the process ends, where the cache cannot be used."""
    parent = Path(parent)
    sums, digests, target = Cache(parent), f"{name}.digest", parent / name
    try:
        os.close(private_folder(parent))
        if target.is_dir() and sums.read(digests) == _sums(target):
            return target
        with tempfile.TemporaryDirectory(dir=parent, prefix=f".tmp-{secrets.token_hex(8)}-") as own:
            make(whole := Path(own) / name)
            sums.write(digests, found := _sums(whole))  # before the folder has its name: who finds it can look at it
            try:
                os.rename(whole, target)
            except OSError:
                if target.is_dir() and _sums(target) == found:  # another process was first
                    return target
                os.rename(target, Path(own) / "old")
                os.rename(whole, target)
        return target
    except (FailedPreconditionError, OSError) as e:
        _go_without(parent, getattr(e, "strerror", None) or e)
    own = Path(tempfile.mkdtemp(prefix="vivace-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    make(own / name)
    return own / name


def _sums(folder: Path) -> bytes:
    """A line a file: its digest and name."""
    lines = []
    for file in sorted(folder.iterdir()):
        with open(files.open_regular(file, follow=False), "rb") as f:
            digest = hashlib.sha256()
            while block := f.read(1 << 20):
                digest.update(block)
        lines.append(f"{digest.hexdigest()} {file.name}\n")
    return "".join(lines).encode()
