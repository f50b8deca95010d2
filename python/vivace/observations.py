"""Observations in files: what `vivace run`, `verify`, `calibrate` and `serve-policy` show a robot's policy.

A file is NAME.npz with fields by the robot's names (docs/robots.md), `prompt` among them as a text or not at all, or the record of an
episode, NAME.npz beside NAME.json as RobotClient(record=...) writes it: then each of its questions is an observation."""
from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

from vivace import files
from vivace.errors import CorruptDataError, InvalidArgumentError, LimitExceededError

MOST_BYTES = 1 << 30  # of a file's arrays, unpacked
MOST = 4096           # observations of a call


def read(paths, images=(), prompt=None) -> list[dict]:
    """Dicts of fields, as Policy.infer() takes them. images: NAME=FILE each, pictures that join every observation; prompt: takes the place of the
    files' own. Without a file there is one observation, of the pictures. Errors: NotFoundError, CorruptDataError, InvalidArgumentError,
    LimitExceededError name the file."""
    seen = [fields for path in paths for fields in _of_file(Path(path))] or [{}]
    if len(seen) > MOST:
        raise LimitExceededError(f"observations: {len(seen)} in all, at most {MOST} are taken")
    shown = {}
    for text in images:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise InvalidArgumentError(f"image: wanted NAME=FILE, got {files.printable(text, 80)!r}")
        shown[name] = _picture(file)
    return [fields | shown | ({} if prompt is None else {"prompt": prompt}) for fields in seen]


def questions(base: Path):
    """(row, fields, own, answer) of each question of a record: its row of NAME.json, its fields, what stood under `vivace`, and the answer's arrays.
    Errors: NotFoundError, CorruptDataError, LimitExceededError."""
    record = files.read_json(base.with_suffix(".json"))
    rows = record.get("questions") if isinstance(record, dict) else None
    if not isinstance(rows, list) or not all(isinstance(r, dict) and isinstance(r.get("question"), dict) for r in rows):
        raise CorruptDataError(f"{base}.json: no record of an episode")
    arrays = _arrays(base.with_suffix(".npz"))
    for i, row in enumerate(rows):
        both = row["question"] | {k.split(".", 1)[1]: v for k, v in arrays.items() if k.startswith(f"q{i}.")}
        own = {k.removeprefix("vivace/"): v for k, v in both.items() if k.startswith("vivace/")}
        yield row, {k: v for k, v in both.items() if not k.startswith("vivace/")}, own, {k.split(".", 1)[1]: v for k, v in arrays.items() if k.startswith(f"a{i}.")}


def _of_file(path: Path):
    if path.suffix == ".json" or (path.suffix == ".npz" and path.with_suffix(".json").exists()):
        return [fields for _, fields, _, _ in questions(path.with_suffix(""))]
    return [{name: str(v) if v.dtype.kind == "U" and v.ndim == 0 else v for name, v in _arrays(path).items()}]


def _arrays(path: Path) -> dict:
    import numpy as np

    with open(files.open_regular(path), "rb") as f:
        try:
            with zipfile.ZipFile(f) as archive:
                if (size := sum(m.file_size for m in archive.infolist())) > MOST_BYTES:
                    raise LimitExceededError(f"{path}: {size} bytes of arrays, at most {MOST_BYTES} are read")
            f.seek(0)
            with np.load(f, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, SyntaxError, zlib.error, MemoryError) as e:
            raise CorruptDataError(f"{path}: no .npz of plain arrays: {files.printable(str(e), 200)}") from None


def _picture(file: str):
    import numpy as np

    from vivace import images

    return np.asarray(images.rgb(file))
