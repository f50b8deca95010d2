"""Files that others wrote, read with care, and files of our own, whole or not there.

What lies beside weights (tokenizer.json, config.json, chat_template.jinja, statistics) comes with a download: it may be
a link to a device, a pipe that never answers, a folder, a link to itself, or larger than memory. Every such file is
read through read_bytes(); the C++ reader (engine/checkpoint/mapped_file.h) keeps the same rules.
"""
from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
from contextlib import contextmanager
from pathlib import Path

from vivace.errors import CorruptDataError, Error, InvalidArgumentError, IoError, LimitExceededError, NotFoundError, UnsupportedError

MAX_BYTES = 64 << 20  # of a file beside the weights
_GONE = (errno.ENOENT, errno.ENOTDIR)


def printable(text: str, most: int = 200) -> str:
    """Text of a file as a terminal may be given it: control characters escaped, cut to `most` characters."""
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\u{ord(c):04x}" for c in text[:most + 1])
    return text if len(text) <= most else text[:most] + "..."


def system_error(what, e: OSError) -> IoError | NotFoundError:
    """A system call's refusal as an error of ours that names the file."""
    kind = NotFoundError if e.errno in _GONE else IoError
    return kind(f"{printable(os.fspath(what), 4096)}: {e.strerror or e}")


def open_regular(file, *, folder: int | None = None, follow: bool = True) -> int:
    """A descriptor of a regular file, opened to be read. Errors: NotFoundError, IoError, InvalidArgumentError for anything
    else: opening a pipe does not wait for its writer, and nothing of a device is read."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW), dir_fd=folder)
    except OSError as e:
        raise system_error(file, e) from e
    except ValueError as e:  # a NUL in the name
        raise InvalidArgumentError(f"{printable(os.fspath(file))}: {e}") from e
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise InvalidArgumentError(f"{printable(os.fspath(file), 4096)}: wanted a regular file, got {'a directory' if stat.S_ISDIR(mode) else 'a pipe or device'}")
    return fd


def read_bytes(file, *, most: int = MAX_BYTES) -> bytes:
    """All of a regular file of at most `most` bytes. Errors: those of open_regular(); LimitExceededError."""
    with open(open_regular(file), "rb", buffering=0) as f:
        size, blocks, got = os.fstat(f.fileno()).st_size, [], 0
        if size <= most:
            try:
                while got <= most and (block := f.read(min(most + 1, max(size, 4096) + 1) - got or 1)):  # a size may lie
                    blocks.append(block)
                    got += len(block)
            except OSError as e:
                raise system_error(file, e) from e
        if (size := max(size, got)) > most:
            raise LimitExceededError(f"{printable(os.fspath(file), 4096)}: {size} bytes, at most {most} are accepted")
    return b"".join(blocks)


def read_optional(file, *, most: int = MAX_BYTES) -> bytes | None:
    """read_bytes(), or None where there is no such file. A link that leads nowhere or to itself is an error."""
    return read_bytes(file, most=most) if os.path.lexists(file) else None


def inside(folder, name: str) -> str:
    """The real path of a file of `folder` that is to be copied. Errors: UnsupportedError for a link that leads out of
    the folder (a hub's cache, where files are links into blobs/ beside snapshots/, counts as one): what it leads to is not the folder's to give."""
    folder = os.path.realpath(folder)
    file, above = os.path.join(folder, name), os.path.dirname(folder)
    real = os.path.realpath(file)
    within = [folder, *([os.path.join(os.path.dirname(above), "blobs")] if os.path.basename(above) == "snapshots" else [])]
    if os.path.lexists(file) and not any(real.startswith(f"{i}/") for i in within):
        raise UnsupportedError(f"{printable(file, 4096)}: it is a link that leads out of the folder, and is not followed; put the file itself there")
    return real


def read_own(folder, name: str, *, most: int = MAX_BYTES) -> bytes | None:
    """A file of `folder` that is to be copied, or None where there is none. Errors: those of inside() and read_bytes()."""
    inside(folder, name)
    return read_optional(os.path.join(os.path.realpath(folder), name), most=most)


def text_of(data: bytes, file) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise CorruptDataError(f"{printable(os.fspath(file), 4096)}: it is no UTF-8 text: {e}") from None


def read_text(file, *, most: int = MAX_BYTES) -> str:
    return text_of(read_bytes(file, most=most), file)


def json_object(source: str, file) -> dict:
    """An object of JSON. Errors: CorruptDataError."""
    try:
        value = json.loads(source)
    except (ValueError, RecursionError) as e:
        raise CorruptDataError(f"{printable(os.fspath(file), 4096)}: {printable(str(e))}") from None
    if not isinstance(value, dict):
        raise CorruptDataError(f"{printable(os.fspath(file), 4096)}: wanted an object, got {type(value).__name__}")
    return value


def read_json(file, *, most: int = MAX_BYTES) -> dict:
    return json_object(read_text(file, most=most), file)


def stored_bytes(*places) -> int:
    """What the files, and the regular files of the folders, take on disk: holes of sparse files do not count, a file with
    two names counts once, and what cannot be looked at counts nothing."""
    found = {}
    for place in places:
        try:
            entries = [os.path.join(place, n) for n in os.listdir(place)] if os.path.isdir(place) else [place]
        except OSError:
            continue
        for file in entries:
            try:
                s = os.stat(file)
            except OSError:
                continue
            if stat.S_ISREG(s.st_mode):
                found[s.st_dev, s.st_ino] = min(s.st_size, s.st_blocks * 512)
    return sum(found.values())


# ---- written whole ---------------------------------------------------------------------------------

@contextmanager
def new_file(path):
    """A binary file to write, which takes `path`'s place when the block ends, on the disk with all its bytes, and leaves
    nothing behind when it ends otherwise (Ctrl-C too). Devices and pipes are written as they are. Errors: IoError and
    NotFoundError name the path."""
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        with _refused(path), open(path, "wb") as f:
            yield f
        return
    temp = f"{os.path.dirname(path)}/.{os.path.basename(path)[:200]}.{secrets.token_hex(8)}.part"
    with _refused(path):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        try:
            with open(temp, "xb") as f:
                yield f
                f.flush()
                os.fsync(f.fileno())
            os.replace(temp, path)
            _sync(os.path.dirname(path))
        except BaseException:
            _remove(temp)
            raise


@contextmanager
def new_folder(path):
    """A folder to fill, which takes `path`'s place (absent, or an empty folder) when the block ends and leaves nothing
    behind when it ends otherwise."""
    path = os.path.realpath(path)
    inside = os.path.isdir(path)  # it may be a mount point, which nothing can take the place of
    temp = f"{path if inside else os.path.dirname(path)}/.{os.path.basename(path)[:200]}.{secrets.token_hex(8)}.part"
    with _refused(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            os.mkdir(temp)
            yield Path(temp)
            for base, _, names in os.walk(temp):
                for name in names:
                    _sync(os.path.join(base, name))
                _sync(base)
            if not inside:
                os.rename(temp, path)
                _sync(os.path.dirname(path))
                return
            for name in sorted(os.listdir(temp), key=lambda n: (n.endswith(".safetensors"), n)):  # weights last: without them it is no model
                os.rename(os.path.join(temp, name), os.path.join(path, name))
            os.rmdir(temp)
            _sync(path)
        except BaseException:
            _remove(temp)
            raise


def write_text(path, text: str) -> None:
    with new_file(path) as f:
        f.write(text.encode())


@contextmanager
def _refused(path):
    try:
        yield
    except OSError as e:
        if isinstance(e, Error):
            raise
        raise system_error(path, e) from e


def _sync(path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(path) -> None:
    try:
        os.unlink(path)
    except IsADirectoryError:
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass  # it was never made
