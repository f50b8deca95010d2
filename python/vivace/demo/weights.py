"""Weights that are kept packed: model.safetensors.xz, which `xz -d` unpacks too, as an ordinary folder of a checkpoint."""
from __future__ import annotations

import hashlib
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


def unpacked(folder) -> Path:
    """A folder that can be loaded: the one given, or, where its weights are packed, one in the cache with the same files, named by
    what they hold and made where it is not there. Errors: CorruptDataError, and FailedPreconditionError where nothing can be written."""
    folder = Path(folder)
    packed = folder / f"{NAME}.xz"
    if (folder / NAME).exists() or not packed.exists():
        return folder
    files, seen = sorted(f for f in folder.iterdir() if f.is_file()), hashlib.sha256()
    for file in files:
        data = file.read_bytes()
        seen.update(f"{file.name} {len(data)} ".encode() + data)

    def make(whole: Path) -> None:
        whole.mkdir()
        for file in files:
            if file != packed:
                shutil.copyfile(file, whole / file.name)
        with lzma.open(packed) as source, open(whole / NAME, "wb") as sink:
            shutil.copyfileobj(source, sink)

    try:
        return kept_folder(cache_dir() / "unpacked", f"{folder.name}-{seen.hexdigest()[:32]}", make)
    except (lzma.LZMAError, EOFError) as e:
        raise CorruptDataError(f"{packed}: {e}; install Vivace again") from e
    except OSError as e:
        raise FailedPreconditionError(f"{packed}: {e.strerror or e}, and it has to be unpacked, in the cache or in the temporary folder; set VIVACE_CACHE to a folder you may write") from e
