"""What a checkpoint's generation_config.json says of how its answers are drawn."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vivace import files, options
from vivace.errors import CorruptDataError, Error

FILE = "generation_config.json"
MAX_BYTES = 1 << 20


def _between(low: float, high: float, *, above: bool = False) -> Callable:
    def read(value):
        n = options.number(value)
        if not low <= n <= high or (above and n == low):
            raise options.Bad(f"a number {'above' if above else 'from'} {low} to {high}")
        return n

    return read


# As transformers reads them: drawn from only where do_sample is true.
DRAWN = {"temperature": _between(0, 100), "top_k": options.whole(0, (1 << 31) - 1), "top_p": _between(0, 1, above=True), "min_p": _between(0, 1)}
ALWAYS = {"repetition_penalty": _between(0, 100, above=True)}


def read(path: str) -> dict:
    """Options of generate() that the file beside the checkpoint sets: {} without a file, and for GGUF, which has none.
    Errors: CorruptDataError names the value."""
    place = Path(path)
    file = (place if place.is_dir() else place.parent) / FILE
    if path.endswith(".gguf") or (source := files.read_optional(file, most=MAX_BYTES)) is None:
        return {}
    try:
        said = files.json_object(files.text_of(source, file), file)
        sample = said.get("do_sample")
        wanted = ALWAYS | (DRAWN if options.one(FILE, "do_sample", options.maybe(options.flag), sample) else {})
        found = {name: options.one(FILE, name, check, said[name]) for name, check in wanted.items() if said.get(name) is not None}
    except Error as e:
        raise CorruptDataError(f"{files.printable(str(file), 4096)}: {e}; load_model(generation_config=False) does not read it") from e
    if sample:
        found.setdefault("temperature", 1.0)
    if found.get("temperature") == 0:
        found = {name: v for name, v in found.items() if name in ALWAYS}  # greedy
    return found
