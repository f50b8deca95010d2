"""What every op reference is written with: `Case`, rounding to a dtype, and the size of one rounding.

A reference module `tests/ref/<op>.py` holds:

    ref(<ports>, *, <attributes>, dtypes[, dims, valid]) -> {port: array}   every written port, as the formula says; valid: rows
    bound(port, value, dtype, inputs)             -> largest allowed |got - value| of a float port
    CASES = [Case(...), ...]         at least three, which together use every port, dtype and choice
    SCRATCH = ("scratch",)           optional: inout ports whose content means nothing
    chosen(port, got, want, inputs)  optional: of several answers that the documents allow the nearest to what came
    JUDGED = ("out", "scales")       optional: written ports that, where all are there, judged(got, inputs) -> excess judges together
    TOGETHER = True                 optional: a call's rows are parts of one thing, and none can be left out
    WHOLE = ("order",)               optional: ports whose rows depend on how many rows there are
    DOMAIN = Domain(...)             what a valid call is beyond the table (tests/differential/domain.py)

Float and block-quantized ports arrive as float64 (dequantized), integer ports as int64, absent ones not
at all. A port whose outermost axis is T arrives with the valid rows only, so `rows` never does.
`inputs` is the same dict; `inputs.attrs` and `inputs.case` tell the rest.
"""
from dataclasses import dataclass, field

import numpy as np

# dtype -> (significant bits, exponent of the smallest normal number, largest finite value, saturates)
FLOATS = {
    "f64": (53, -1022, np.finfo(np.float64).max, False),
    "f32": (24, -126, float(np.finfo(np.float32).max), False),
    "f16": (11, -14, 65504.0, False),
    "bf16": (8, -126, (2 - 2.0**-7) * 2.0**127, False),
    "e4m3": (4, -6, 448.0, True),
    "e5m2": (3, -14, 57344.0, True),
}
E4M3_MAX = 448.0
E5M2_MAX = 57344.0

# What random float ports are drawn from. Every case runs with all of these unless it says otherwise.
#   normal     N(0, 1)                    large   64 * N(0, 1)
#   tiny       2^-20 * N(0, 1)            zero    all zeros
#   edges      N(0, 1), the first and last of each row 30 times larger
#   subnormal  below the dtype's smallest normal number
#   nonfinite  N(0, 1) with some +inf, -inf and NaN (only where a case asks for it)
DISTRIBUTIONS = ("normal", "large", "tiny", "subnormal", "zero", "edges")


@dataclass(frozen=True)
class Case:
    """One call of an op: which ports are present, how large, of which dtype, and what they hold."""

    dims: dict                                      # symbol -> size: {"T": 7, "H": 1000}
    dtypes: dict                                    # port -> dtype; a port not listed is absent
    attrs: dict = field(default_factory=dict)       # only those that differ from the default
    ranges: dict = field(default_factory=dict)      # port -> (low, high): integers or floats in [low, high)
    positive: tuple = ()                            # float ports drawn from [0.5, 2)
    rows: int | None = None                         # content of the `rows` port (which `dtypes` must list)
    values: dict = field(default_factory=dict)      # port -> array, or f(rng, shape) -> array: exact content
    shapes: dict = field(default_factory=dict)      # port -> shape or "T*H/16", where the spec says "?"
    distributions: tuple = DISTRIBUTIONS            # of the float ports that nothing above fixes
    seed: int = 0
    note: str = ""                                  # why this case exists, where that is not plain

    @property
    def id(self) -> str:
        """"T=7,H=1000,x=bf16,eps=1e-05": also the case of benchmark rows."""
        parts = [f"{k}={v}" for k, v in self.dims.items()]
        parts += [f"{k}={v}" for k, v in self.dtypes.items() if k != "rows"]
        parts += [f"{k}={v}" for k, v in self.attrs.items()]
        return ",".join(parts + ([f"rows={self.rows}"] if self.rows is not None else []))


class Inputs(dict):
    """Ports as the reference sees them, with the call's attributes and case beside them."""

    def __init__(self, ports, case):
        super().__init__(ports)
        self.case, self.attrs = case, case.attrs


def rounding(value, dtype):
    """One unit in the last place of `dtype` at `value`.

    Why a whole unit and not half: an f32 result that is off by little may fall on the other side of a
    tie, and the two nearest neighbours of a tie are one unit apart.
    """
    if dtype not in FLOATS:
        return np.zeros_like(np.asarray(value, np.float64))
    bits, emin, biggest, _ = FLOATS[dtype]
    magnitude = np.minimum(np.abs(np.nan_to_num(np.asarray(value, np.float64), nan=0.0, posinf=biggest, neginf=-biggest)), biggest)
    exponent = np.where(magnitude > 0, np.frexp(magnitude)[1] - 1, emin)
    return np.ldexp(1.0, np.maximum(exponent, emin) - (bits - 1))


def nearer(got, one, other):
    """Of two answers the one that is nearer to what came, elementwise."""
    with np.errstate(invalid="ignore"):
        return np.where((np.abs(got - other) < np.abs(got - one)) | (got == other) | (np.isnan(got) & np.isnan(other)), other, one)


def round_to(value, dtype):
    """float64 -> the nearest value of `dtype` (ties to even), as float64; integers pass unchanged.

    Beyond the largest finite value: infinity for f16, bf16 and f32; the largest value for e4m3 and e5m2.
    """
    if dtype not in FLOATS:
        return np.asarray(value)
    value = np.asarray(value, np.float64)
    if dtype == "f64":
        return value
    _, _, biggest, saturates = FLOATS[dtype]
    unit = rounding(value, dtype)
    finite = np.isfinite(value)
    rounded = np.where(finite, np.rint(np.where(finite, value, 0.0) / unit) * unit, value)
    over = np.abs(rounded) > biggest
    return np.where(over, np.copysign(biggest if saturates else np.inf, value), rounded)
