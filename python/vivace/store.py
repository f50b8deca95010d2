"""Models on this machine by name: those that Vivace keeps, and those in Hugging Face hub caches, which are read and never written.

Kept models lie below fetch.cache_dir(): the files of vivace.fetch, and in pulled/ a folder for each model that `vivace pull`
copied, with a manifest of its files' digests. Nothing here opens a connection; only vivace.fetch does, and only for its names.
"""
from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vivace import fetch, files
from vivace.cache import private_folder
from vivace.errors import CorruptDataError, Error, InvalidArgumentError, IoError, NotFoundError, UnsupportedError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
ENDS = (".safetensors", ".gguf", ".json", ".jinja", ".txt", ".model")  # of files that a model is; nothing else is copied
MANIFEST, JOURNAL = "vivace-manifest.json", ".journal"
MAX_FILES = 4096


def pulled_dir() -> Path:
    return fetch.cache_dir() / "pulled"


def _folder_of(name: str) -> Path:
    """Where a pulled model of this name is. Errors: InvalidArgumentError for what is no name."""
    if not NAME.fullmatch(name) or "--" in name:
        raise InvalidArgumentError(f"{files.printable(name, 100)!r}: wanted a name of letters, digits, '.', '_' and '-' (no '--'), or two with a slash between")
    if name.lower() in fetch.MODELS:
        raise InvalidArgumentError(f"{name}: that is the name of a model that vivace.fetch knows; give another --name")
    return pulled_dir() / name.replace("/", "--")


# ---- what is there ---------------------------------------------------------------------------------

def find(name: str) -> str | None:
    """The path of a pulled model, or of one in a hub cache; None where there is none. Errors: CorruptDataError for a pulled one
    whose files are not what they were."""
    if not NAME.fullmatch(name) or "--" in name:
        return None
    if (folder := pulled_dir() / name.replace("/", "--")).is_dir():
        if changed := _changed(folder, _manifest(folder), whole=False):
            raise CorruptDataError(f"{folder}: {changed}; run vivace rm {name} and pull it again")
        return str(weights(folder))
    snapshot = next((s for n, s in hub_models() if n == name), None)
    return None if snapshot is None else str(weights(snapshot))


def weights(folder: Path) -> Path:
    """What load_model takes: the folder, or its .gguf where it has one and no config.json. Errors: NotFoundError."""
    if (folder / "config.json").exists():
        return folder
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        raise NotFoundError(f"{files.printable(str(folder), 4096)}: wanted a config.json or one .gguf file, got {len(found)} of them{': give the path of one' if found else ''}")
    return found[0]


def hub_caches() -> list[Path]:
    """Folders where Hugging Face's tools keep what they downloaded."""
    env, home = os.environ, os.path.expanduser("~")
    base = env.get("HF_HOME") or os.path.join(env.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "huggingface")
    found = [env.get("HF_HUB_CACHE"), env.get("HUGGINGFACE_HUB_CACHE"), os.path.join(base, "hub")]
    return [p for p in dict.fromkeys(Path(f) for f in found if f) if p.is_dir()]


def hub_models() -> Iterator[tuple[str, Path]]:
    """(name, folder of the revision that `main` means, or of the only one there is) of each model in the caches."""
    for cache in hub_caches():
        try:
            entries = sorted(os.listdir(cache))
        except OSError:
            continue  # not ours to read
        for entry in entries:
            name = entry.removeprefix("models--").replace("--", "/", 1)
            if entry.startswith("models--") and NAME.fullmatch(name) and (snapshot := _snapshot(cache / entry)):
                yield name, snapshot


def _snapshot(model: Path) -> Path | None:
    try:
        revision = files.read_text(model / "refs/main", most=256).strip()
    except Error:
        revision = ""
    try:
        there = sorted(os.listdir(model / "snapshots"))
    except OSError:
        return None
    if revision not in there:
        revision = there[0] if len(there) == 1 else ""
    return model / "snapshots" / revision if revision else None


def models(*, verify: bool = False) -> list[dict]:
    """A row a model: name, kind (fetched, pulled, hub cache, to fetch), bytes, path, state. `verify` reads kept files whole."""
    rows = []
    for name, model in sorted(fetch.MODELS.items()):
        there = [(f, path) for f in model.files if (path := fetch.cache_dir() / f.filename).is_file()]
        if len(there) < len(model.files):
            rows.append(_row(name, "to fetch", sum(f.bytes for f in model.files), None, "incomplete" if there else "absent"))
            continue
        good = all(path.stat().st_size == f.bytes and (not verify or fetch.sha256(path) == f.sha256) for f, path in there)
        rows.append(_row(name, "fetched", sum(path.stat().st_size for _, path in there), model.where(fetch.cache_dir()), "whole" if good else "changed"))
    for folder in sorted(p for p in pulled_dir().glob("*") if p.is_dir() and not p.name.startswith(".")):
        try:
            kept = _manifest(folder)
            changed = _changed(folder, kept, whole=verify)
        except Error:
            kept, changed = {"name": folder.name.replace("--", "/", 1), "files": []}, "no manifest"
        rows.append(_row(kept["name"], "pulled", sum(f["bytes"] for f in kept["files"]), folder, "changed" if changed else "whole"))
    for name, snapshot in hub_models():
        rows.append(_row(name, "hub cache", files.stored_bytes(snapshot), snapshot, "whole" if not _missing(snapshot) else "incomplete"))
    return rows


def _row(name, kind, size, path, state) -> dict:
    return {"name": name, "kind": kind, "bytes": size, "path": None if path is None else str(path), "state": state}


def _missing(folder: Path) -> list[str]:
    """Files that a folder in Hugging Face's layout lacks."""
    try:
        if (folder / "model.safetensors.index.json").exists():
            mapped = files.read_json(folder / "model.safetensors.index.json").get("weight_map")
            shards = {str(v) for v in mapped.values()} if isinstance(mapped, dict) else {"model.safetensors"}
            return sorted(s for s in shards if not (folder / s).is_file())
    except Error as e:
        return [str(e)]
    return [] if any(f.is_file() for end in ("*.safetensors", "*.gguf") for f in folder.glob(end)) else ["weights (.safetensors or .gguf)"]


# ---- the manifest ----------------------------------------------------------------------------------

def _manifest(folder: Path) -> dict:
    kept = files.read_json(folder / MANIFEST)
    rows = kept.get("files")
    right = isinstance(kept.get("name"), str) and isinstance(rows, list) and all(
        isinstance(r, dict) and isinstance(r.get("name"), str) and os.path.basename(r["name"]) == r["name"] and type(r.get("bytes")) is int
        and type(r.get("mtime_ns")) is int and isinstance(r.get("sha256"), str) for r in rows)
    if not right:
        raise CorruptDataError(f"{folder}/{MANIFEST}: it is no manifest that vivace pull wrote")
    return kept


def digest_of(rows: list[dict]) -> str:
    """One digest of all files: of a line `sha256  name` each, in the names' order."""
    return hashlib.sha256("".join(f"{r['sha256']}  {r['name']}\n" for r in sorted(rows, key=lambda r: r["name"])).encode()).hexdigest()


def _changed(folder: Path, kept: dict, *, whole: bool) -> str | None:
    """What is not as it was pulled. Without `whole` a file is read only where its time says that somebody wrote to it."""
    for row in kept["files"]:
        try:
            s = os.stat(folder / row["name"])
        except OSError:
            return f"{row['name']} is gone"
        if s.st_size != row["bytes"]:
            return f"{row['name']} has {s.st_size} bytes, and had {row['bytes']}"
        if (whole or s.st_mtime_ns != row["mtime_ns"]) and (got := fetch.sha256(folder / row["name"])) != row["sha256"]:
            return f"{row['name']}: sha256 is {got}, and was {row['sha256']}"
    return None


# ---- pull ------------------------------------------------------------------------------------------

def pull(source: str, *, name: str | None = None, digest: str | None = None) -> dict:
    """Puts a model among the kept ones and says where; one that is there already is looked at and left. A pull that was
    stopped goes on where it was. Errors: NotFoundError, UnsupportedError, CorruptDataError for other files than `digest` says."""
    if digest is not None and not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise InvalidArgumentError(f"--digest: wanted 64 hexadecimal digits, got {files.printable(digest, 80)!r}")
    if not os.path.lexists(source) and source.lower() in fetch.MODELS:
        return _fetched(source.lower(), name, digest)
    place, name = _source(source, name)
    target = _folder_of(name)
    os.close(private_folder(fetch.cache_dir()))
    os.close(private_folder(pulled_dir()))
    with _locked(target):
        part = target.with_name(f".{target.name}.part")
        if target.is_dir():
            kept = _manifest(target)
            if changed := _changed(target, kept, whole=True):
                raise CorruptDataError(f"{target}: {changed}; run vivace rm {name} and pull it again")
            if digest not in (None, kept["digest"]):
                raise CorruptDataError(f"{name}: what is kept under this name has digest {kept['digest']}, wanted {digest}; vivace rm {name}, or give another --name")
            return _facts(kept, target)
        os.makedirs(part, mode=0o700, exist_ok=True)
        rows = _copied(place, _names(place), part)
        kept = {"name": name, "digest": digest_of(rows), "files": rows}
        if digest not in (None, kept["digest"]):
            shutil.rmtree(part)
            raise CorruptDataError(f"{files.printable(source, 4096)}: its files have digest {kept['digest']}, wanted {digest}; nothing was kept")
        files.write_text(part / MANIFEST, json.dumps(kept, indent=1) + "\n")
        (part / JOURNAL).unlink()
        os.rename(part, target)
        return _facts(kept, target)


def _facts(kept: dict, target: Path) -> dict:
    return {"name": kept["name"], "path": str(weights(target)), "bytes": sum(r["bytes"] for r in kept["files"]), "digest": kept["digest"]}


def _fetched(known: str, name: str | None, digest: str | None) -> dict:
    model = fetch.MODELS[known]
    if name not in (None, known):
        raise InvalidArgumentError(f"--name: {known} keeps its own name")
    own = digest_of([{"name": f.filename, "sha256": f.sha256} for f in model.files])
    if digest not in (None, own):
        raise CorruptDataError(f"{known}: its digest is {own}, wanted {digest}")
    return {"name": known, "path": str(fetch.fetch(known)), "bytes": sum(f.bytes for f in model.files), "digest": own}


def _source(source: str, name: str | None) -> tuple[Path, str]:
    if os.path.lexists(source):
        place = Path(os.path.abspath(source))
        return place, name or (place.name if place.is_dir() else place.stem)
    if (snapshot := next((s for n, s in hub_models() if n == source), None)) is not None:
        return snapshot, name or source
    raise NotFoundError(f"{files.printable(source, 4096)}: no such file or folder, and no model of a Hugging Face cache here. "
                        f"By name there are {', '.join(sorted(fetch.MODELS))}. Vivace downloads nothing from a hub: run `hf download ORG/NAME` first")


def _names(place: Path) -> list[str]:
    """The files of a model, weights last. Errors: UnsupportedError, LimitExceededError, NotFoundError name what is wrong."""
    if not place.is_dir():
        if not place.name.endswith((".gguf", ".safetensors")):
            raise UnsupportedError(f"{files.printable(str(place), 4096)}: wanted a folder in Hugging Face's layout, a .gguf or a .safetensors file")
        return [place.name]
    if missing := _missing(place):
        raise NotFoundError(f"{files.printable(str(place), 4096)}: it lacks {files.printable(', '.join(missing[:4]), 400)}; a download that was stopped? Finish it first")
    found = sorted((n for n in os.listdir(place) if n.endswith(ENDS) and not n.startswith(".") and n != MANIFEST and not (place / n).is_dir()), key=lambda n: (n.endswith((".safetensors", ".gguf")), n))
    if len(found) > MAX_FILES or any(not n.isprintable() for n in found):
        raise UnsupportedError(f"{files.printable(str(place), 4096)}: {len(found)} files, at most {MAX_FILES} with printable names are taken")
    return found


def _copied(place: Path, names: list[str], part: Path) -> list[dict]:
    """Copies what an earlier call did not; a row a file. The journal has a line for each file that is there whole."""
    journal, done = part / JOURNAL, {}
    for line in files.read_text(journal).splitlines() if journal.exists() else []:
        try:
            row = json.loads(line)
            done[row["name"]] = row
        except (ValueError, KeyError, TypeError):
            pass  # the line that was being written when it was stopped
    folder = place if place.is_dir() else place.parent
    sizes = {n: os.stat(files.inside(folder, n)).st_size for n in names}
    left = sum(size for n, size in sizes.items() if n not in done)
    if (free := shutil.disk_usage(part).free) < left:
        raise IoError(f"{part.parent}: {left / 1e6:.0f} MB more are needed, {free / 1e6:.0f} MB are free; free some space or set VIVACE_CACHE to another folder, then run the same command: it goes on")
    rows = []
    for name in names:
        row, source = done.get(name), files.inside(folder, name)
        if row is None or not _as_noted(part / name, source, row):
            row = _copy(source, part / name, name)
            with open(journal, "a") as f:
                f.write(json.dumps(row) + "\n")
        rows.append({k: row[k] for k in ("name", "bytes", "mtime_ns", "sha256")})
    return rows


def _as_noted(copy: Path, source: str, row: dict) -> bool:
    """Whether the copy is the one that the journal means, of a source that has not changed since."""
    s = os.stat(source)
    return [s.st_size, s.st_mtime_ns] == [row.get("bytes"), row.get("source_mtime_ns")] and copy.is_file() and fetch.sha256(copy) == row.get("sha256")


def _copy(source: str, target: Path, name: str) -> dict:
    digest, git = hashlib.sha256(), hashlib.sha1(usedforsecurity=False)
    with open(files.open_regular(source), "rb") as f, files.new_file(target) as out, fetch.Progress(f"copying {name}", size := os.fstat(f.fileno()).st_size, out.tell):
        before = os.fstat(f.fileno())
        git.update(b"blob %d\0" % size)
        while block := f.read(1 << 20):
            out.write(block)
            digest.update(block)
            git.update(block)
        copied, after = out.tell(), os.fstat(f.fileno())
        if copied != size or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise CorruptDataError(f"{files.printable(source, 4096)}: it changed while it was copied; run the same command again")
        _check_blob(source, digest.hexdigest(), git.hexdigest())
    return {"name": name, "bytes": size, "mtime_ns": os.stat(target).st_mtime_ns, "sha256": digest.hexdigest(), "source_mtime_ns": before.st_mtime_ns}


def _check_blob(source: str, sha256: str, git: str) -> None:
    """In a hub's cache a file is named by its digest: sha256, or git's own for small ones."""
    path = Path(source)
    wanted = path.name if path.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", path.name) else None
    if wanted not in (None, sha256, git):
        raise CorruptDataError(f"{files.printable(source, 4096)}: its digest is {sha256 if len(wanted) == 64 else git}, not the one it is named by; download it again")


# ---- rm --------------------------------------------------------------------------------------------

def remove(name: str) -> dict:
    """Removes a kept model, or what a stopped pull left. Errors: NotFoundError; UnsupportedError for one of a hub's cache."""
    if name.lower() in fetch.MODELS:
        there = [path for f in fetch.MODELS[name.lower()].files if (path := fetch.cache_dir() / f.filename).exists()]
        if not there:
            raise NotFoundError(f"{name}: it was not fetched, or was removed already")
        size = sum(path.stat().st_size for path in there)
        for path in there:
            path.unlink()
        return {"name": name.lower(), "bytes": size}
    target = _folder_of(name)
    part = target.with_name(f".{target.name}.part")
    if not target.is_dir() and not part.is_dir():
        if any(n == name for n, _ in hub_models()):
            raise UnsupportedError(f"{name}: it is in a Hugging Face cache, which Vivace only reads; remove it with that hub's own tool (hf cache)")
        raise NotFoundError(f"{name}: no kept model of this name; `vivace list` has them")
    with _locked(target):
        size = 0
        for folder in (target, part):
            if folder.is_dir():
                size += files.stored_bytes(folder)
                gone = folder.with_name(f".{target.name}.gone")
                os.rename(folder, gone)  # at once, so that nobody loads a half of it
                shutil.rmtree(gone)
    return {"name": name, "bytes": size}


@contextmanager
def _locked(target: Path):
    try:
        with open(target.with_name(f".{target.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as e:
        if isinstance(e, Error):
            raise
        raise files.system_error(e.filename or target, e) from e
