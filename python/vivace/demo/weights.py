"""Weights that are kept packed: model.safetensors.xz, which `xz -d` unpacks too, as an ordinary folder of a checkpoint."""
from __future__ import annotations

import hashlib
import json
import lzma
import shutil
from pathlib import Path

from vivace.cache import kept_folder
from vivace.errors import CorruptDataError, FailedPreconditionError
from vivace.fetch import cache_dir

NAME = "model.safetensors"
# Numbers of two bytes, of which the second ends in zeros: places and contexts go by two.
_WAY = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 1, "lp": 1, "pb": 1}]


def pack(folder) -> int:
    """Writes model.safetensors.xz beside model.safetensors; returns its bytes."""
    data = lzma.compress((Path(folder) / NAME).read_bytes(), check=lzma.CHECK_SHA256, filters=_WAY)
    (Path(folder) / f"{NAME}.xz").write_bytes(data)
    return len(data)


def unpacked(folder, base=None) -> Path:
    """A folder that can be loaded: the one given, or, where its weights are packed, one in the cache with the same files, named by
    what they hold and made where it is not there. base: a folder whose files count where `folder` has none of that name, and whose
    tensors where its weights have none. Errors: CorruptDataError, and FailedPreconditionError where nothing can be written."""
    folder = Path(folder)
    packed = folder / f"{NAME}.xz"
    if (folder / NAME).exists() or not packed.exists():
        return folder
    files, seen = {}, hashlib.sha256()
    for where in (folder,) if base is None else (Path(base), folder):
        for file in sorted(f for f in where.iterdir() if f.is_file()):
            data = file.read_bytes()
            seen.update(f"{file.name} {len(data)} ".encode() + data)
            files[file.name] = file
    layers = [packed] if base is None else [Path(base) / packed.name, packed]

    def make(whole: Path) -> None:
        whole.mkdir()
        for name, file in files.items():
            if name != packed.name:
                shutil.copyfile(file, whole / name)
        if len(layers) == 1:
            with lzma.open(packed) as source, open(whole / NAME, "wb") as sink:
                shutil.copyfileobj(source, sink)
        else:
            (whole / NAME).write_bytes(_over(*(lzma.decompress(f.read_bytes()) for f in layers)))

    try:
        return kept_folder(cache_dir() / "unpacked", f"{folder.name}-{seen.hexdigest()[:32]}", make)
    except (lzma.LZMAError, EOFError, ValueError, KeyError) as e:
        raise CorruptDataError(f"{packed}: {e}; install Vivace again") from e
    except OSError as e:
        raise FailedPreconditionError(f"{packed}: {e.strerror or e}, and it has to be unpacked, in the cache or in the temporary folder; set VIVACE_CACHE to a folder you may write") from e


def _tensors(data: bytes) -> dict:
    """Name -> its line of the head, its bytes."""
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8:8 + size])
    head.pop("__metadata__", None)
    return {name: (about, data[8 + size + about["data_offsets"][0]:8 + size + about["data_offsets"][1]]) for name, about in head.items()}


def _over(below: bytes, above: bytes) -> bytes:
    """A safetensors file with the tensors of `below`, of which those that `above` has are above's."""
    old, new = _tensors(below), _tensors(above)
    for name, (about, _) in new.items():
        if name not in old or any(old[name][0][k] != about[k] for k in ("shape", "dtype")):
            raise ValueError(f"{name} is no tensor of what it is changed in")
    head, at, parts = {}, 0, []
    for name, (about, data) in (old | new).items():
        head[name] = about | {"data_offsets": [at, at + len(data)]}
        at += len(data)
        parts.append(data)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)
