"""Names that NumPy or the standard has and this module refuses, each with the way out."""
from __future__ import annotations

from vivace.errors import UnsupportedError

COMPLEX = "no dtype here is complex; keep real and imaginary parts in two arrays"
DECOMPOSED = "decompositions are other libraries': numpy(), or CuPy by from_dlpack(), without a copy"
REFUSED = {
    **dict.fromkeys(("argwhere", "flatnonzero"), "nonzero() says where, an Array an axis"),
    **dict.fromkeys(("compress", "extract"), "x[mask] takes what a mask picks; where() keeps the shape"),
    "unique": "unique_values(), unique_counts(), unique_inverse() or unique_all() say what comes back",
    **dict.fromkeys(("bincount", "histogram"), "unique_counts() counts the values that there are; numpy() goes on on the host"),
    **dict.fromkeys(("complex64", "complex128", "imag", "angle"), COMPLEX),
    "linalg": DECOMPOSED,
    "fft": "Fourier transforms are other libraries': numpy(), or CuPy by from_dlpack(); vivace.audio has those of speech",
    "dot": "its rank rules surprise; matmul(), vecdot() or tensordot() say which product",
    "object_": "elements are numbers",
    "str_": "elements are numbers",
    "datetime64": "elements are numbers; keep seconds in f64 or nanoseconds in i64",
    "median": "sort() the axis and take the middle",
    "quantile": "sort() the axis and take() the places",
    "percentile": "sort() the axis and take() the places",
    "vectorize": "write the function with arrays",
    "ma": "keep a mask in a bool array and where()",
}


def __getattr__(name: str):
    """For the package: AttributeError, so that hasattr() and getattr(default) work; it says why."""
    if name in REFUSED:
        raise RefusedName(f"vivace.array.{name}: refused: {REFUSED[name]}", name=name)
    raise AttributeError(f"module 'vivace.array' has no attribute {name!r}", name=name)


class RefusedName(UnsupportedError, AttributeError):
    """A name that is refused on purpose: an UnsupportedError and an AttributeError."""

    def __init__(self, text: str, name: str):
        super().__init__(text)
        self.name = name
