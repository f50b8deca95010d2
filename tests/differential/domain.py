"""What a reference says of its op's valid calls beyond the table: `DOMAIN = Domain(...)` in tests/ref/<op>.py.

The op table has ports, symbolic shapes, dtypes, optional ports and attributes. A Domain adds the rest, once an op, as facts and
not as cases: which ports exclude or need each other (`fit`), what integers and scales may be (`contents`), and which values
of a real or integer attribute mean something (`attrs`). tests/differential draws calls from both.
"""
from dataclasses import dataclass, field
from typing import Callable

import numpy as np

from tests.ref.common import DISTRIBUTIONS

# Sizes at which something changes: powers of two and their neighbours, tiles of 8 to 512, page and group sizes, primes, and
# the widths of real models.
EDGES = sorted({1, 2, 3, 4, 5, 6, 7, 11, 13, 37, 61, 101, 251, 509, 1021, 2039} | {p + d for p in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536) for d in (-1, 0, 1)}
               | {24, 40, 48, 56, 72, 80, 96, 97, 100, 112, 136, 144, 160, 192, 193, 200, 224, 264, 300, 320, 384, 448, 520, 544, 640, 720, 900, 968, 1000, 1032}
               | {576, 768, 896, 960, 1152, 1280, 1536, 1600, 2000, 2304, 2560, 3072, 3584, 4304, 4864, 5120, 6144, 8960, 9216, 9728, 11008, 12288, 14336, 18944, 28672, 32001, 49152, 50257, 128256, 151936})
HEADS = (1, 1, 1, 2, 2, 3, 4, 5, 8)                       # of keys and values
GROUPS = (1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 12, 16, 16, 32)  # heads of queries that share one
HEAD_SIZES = (8, 16, 24, 32, 40, 48, 64, 64, 64, 72, 80, 96, 128, 128, 128, 128, 192, 256, 256, 33, 120, 320, 512)
PAGES = (1, 2, 3, 4, 5, 7, 8, 8, 9, 16, 16, 16, 17, 32, 32, 48, 64, 64, 128, 256)
BLOCKS = {"q4_0": 32, "q4_1": 32, "q5_0": 32, "q5_1": 32, "q8_0": 32, "q4_k": 256, "q5_k": 256, "q6_k": 256, "e2m1": 2, "i4": 2}


def block_of(dtype):
    """Elements of a row come in multiples of this."""
    return BLOCKS.get(dtype, 1)


class Unfit(Exception):
    """The draft cannot be made a valid call; another is drawn."""


@dataclass(frozen=True)
class Domain:
    """Facts of one op."""

    fit: Callable = lambda d: None                 # makes a Draft valid: ports, dtypes, attributes, dims, shapes
    contents: Callable = lambda d, rng: {}         # port -> array, of integer ports and of floats that are no free values
    ranges: dict = field(default_factory=dict)     # port -> (low, high), as in Case
    positive: tuple = ()                           # scales, as in Case
    attrs: dict = field(default_factory=dict)      # real or integer attribute -> values to draw from
    sizes: dict = field(default_factory=dict)      # symbol -> sizes to draw from; others: EDGES
    distributions: tuple = DISTRIBUTIONS           # of the other float ports
    unread: Callable = lambda d, values: {}        # port -> boolean array over leading axes: what no call of these contents may read
    work: Callable = lambda d: 0                   # multiply-adds of the reference, where they are more than its elements
    indices: tuple = ()                            # integer ports of which any content has an answer that the reference knows
    weight: float = 1.0                            # how often it is drawn, against other ops
    tokens: dict | None = None                     # where a token's results do not depend on others: port that is not a row a token -> f(tokens, rows) -> its rows for these tokens
    aligned: bool = False                          # ports lie at multiples of 16 bytes: a kernel that takes no others
    whole: dict = field(default_factory=dict)      # port -> symbols: what lies between its rows is a multiple of their product, for the same reason
    never: tuple = ()                              # facts of differential/tally.py that the table allows and the op refuses


class Draft:
    """A call in the making. `dtypes` and `dims` have an entry for every port and symbol of the op, present or not."""

    def __init__(self, op, row, rng):
        self.op, self.row, self.rng = op, row, rng
        self.spec = {p["name"]: p for p in row["ports"]}
        self.ports, self.dtypes, self.attrs, self.dims, self.shapes, self.rows = set(), {}, {}, {}, {}, None
        self.typical = False

    def has(self, *ports):
        return all(p in self.ports for p in ports)

    def add(self, *ports):
        self.ports.update(ports)

    def drop(self, *ports):
        self.ports.difference_update(ports)

    def pick(self, values):
        return self.rng.choice(tuple(values))

    def chance(self, p):
        return self.rng.random() < p

    def one_of(self, *ports):
        """Exactly one of them."""
        there = [p for p in ports if p in self.ports] or ports
        chosen = self.pick(there)
        self.drop(*ports)
        self.add(chosen)
        return chosen

    def at_most_one(self, *ports):
        there = sorted(p for p in ports if p in self.ports)
        if len(there) > 1:
            self.drop(*ports)
            self.add(self.pick(there))

    def together(self, *ports):
        """All or none."""
        (self.add if self.has(self.pick(ports)) else self.drop)(*ports)

    def needs(self, port, *others):
        """`port` comes with the others only."""
        if self.has(port) and not self.has(*others):
            if self.chance(0.5):
                self.add(*others)
            else:
                self.drop(port)

    def quantized_out(self, scales, out="out"):
        """An e4m3 out takes exactly one of `scales`, any other none."""
        if self.dtypes[out] == "e4m3":
            self.one_of(*scales)
        else:
            self.drop(*scales)

    def attr(self, name):
        given = self.attrs.get(name)
        return next(a["default"] for a in self.row["attrs"] if a["name"] == name) if given is None else given

    def multiple(self, symbol, of):
        """The nearest multiple, one at least."""
        self.dims[symbol] = max(1, round(self.dims[symbol] / of)) * of

    def at_least(self, symbol, least):
        self.dims[symbol] = max(self.dims[symbol], least)

    def heads(self, Hq="Hq", Hkv="Hkv", most=64):
        """Grouped heads."""
        self.dims[Hkv] = self.pick((1, 2, 2, 4, 4, 8) if self.typical else HEADS)
        self.dims[Hq] = self.dims[Hkv] * self.pick([g for g in ((1, 2, 4, 5, 7, 8, 8, 16) if self.typical else GROUPS) if g * self.dims[Hkv] <= most])

    @property
    def valid(self):
        """Valid rows."""
        T = self.dims.get("T", 0)
        return T if self.rows is None or not self.has("rows") else min(max(self.rows, 0), T)


def nearest(tokens, rows):
    """Rows of a table with a row a token, or fewer: the last for those behind it."""
    return tokens if rows is None else np.minimum(tokens, rows - 1)


def rows_of_table(d, symbol="R"):
    """Rows of an adaptive table: one for all, one a token, or some."""
    d.dims[symbol] = d.pick([1, 1, max(d.dims["T"], 1), max(d.dims["T"], 1), 2, 3, 7])


def entries(rng, count, low, high, outside=True):
    """Integers in [low, high), with duplicates, in one of several orders; `outside`: now and then just beyond."""
    high = max(high, low + 1)
    kind = rng.integers(0, 5)
    if kind == 0 and high - low >= count:
        values = low + rng.permutation(high - low)[:count]
    elif kind == 1:
        values = np.full(count, rng.integers(low, high))
    elif kind == 2:
        values = np.sort(rng.integers(low, high, count))
    elif kind == 3:
        values = low + np.arange(count) % (high - low)
    else:
        values = rng.integers(low, high, count)
    if outside and count and rng.random() < 0.2:
        values = values.copy()
        values[rng.random(count) < 0.1] = low - 1 if rng.random() < 0.5 else high
    return values.astype(np.int64)


def counts_that_sum(rng, groups, total):
    """Sizes of `groups` runs, many of them empty, that make `total`."""
    if groups == 0:
        return np.zeros(0, np.int64)
    kind = rng.integers(0, 3)
    if kind == 0:
        return np.bincount(rng.integers(0, groups, total), minlength=groups)
    if kind == 1:  # one has all
        return np.bincount(np.full(total, rng.integers(0, groups)), minlength=groups)
    few = rng.integers(0, groups, max(1, groups // 3))
    return np.bincount(rng.choice(few, total), minlength=groups)


def offsets_of(rng, groups, total, whole=True):
    """Rising offsets of `groups` runs within [0, total]; `whole`: they begin at 0 and end at total."""
    held = total if whole else int(rng.integers(0, total + 1))
    first = 0 if whole else int(rng.integers(0, total - held + 1))
    return first + np.concatenate([[0], np.cumsum(counts_that_sum(rng, groups, held))]).astype(np.int64)
