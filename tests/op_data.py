"""Memory and contents for op tests: guarded, poisoned, oddly laid out arrays, made from the op table.

`pytest --device cuda` puts the same arrays into GPU memory (tests/gpu/memory.py).
"""
import functools
import importlib
import inspect
import math
import os

import gguf
import ml_dtypes
import numpy as np

import vivace
from tests.ref.common import DISTRIBUTIONS, FLOATS, Inputs, round_to
from vivace import ops

if os.environ.get("VIVACE_TEST_DEVICE", "cpu") == "cpu":
    device = None
else:
    from tests.gpu import memory as device

OPS = {row["name"]: row for row in ops.ops_table()["ops"]}
TABLE = {name: row for name, row in OPS.items() if device is None or row["gpu"]}  # on a GPU those with kernels of their own
DTYPES = {row["name"]: row for row in ops.ops_table()["dtypes"]}
NUMPY = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "i64": np.int64, "i32": np.int32,
    "i16": np.int16, "i8": np.int8, "u8": np.uint8, "bool": np.bool_,
}
PAIRS = ("e2m1", "i4")  # two elements a byte
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
LAYOUTS = ("dense", "unaligned", "strided")
COLUMNS = "columns"  # another, for matrices that may: column after column, which lie apart, at multiples of 16 bytes
COLUMN_GAP = 32      # bytes between them
PITCHED = "pitched"  # a fourth, for ports whose second axis may be strided: entries of both axes lie apart, all at multiples of 16 bytes
GUARD = 64          # bytes before and after each port's memory
GUARD_FILL = 0xFF   # NaN in every float format, -1 as an integer: reading it shows in the result
NAN_FILL, BIG_FILL = 0xFF, 0x7F  # two poisons for outputs: neither can pass for a result of both runs


@functools.cache
def reference(op):
    """The reference module of an op, or None if there is none."""
    try:
        return importlib.import_module(f"tests.ref.{op}")
    except ModuleNotFoundError as e:
        if e.name != f"tests.ref.{op}":
            raise
        return None


@functools.cache
def ports(op):
    return {p["name"]: p for p in OPS[op]["ports"]}


@functools.cache
def sizes(shape):
    """The expressions of a shape, compiled."""
    return tuple(compile(expression.strip().replace("/", "//"), expression, "eval") for expression in shape.split(","))


def shape_of(op, port, case):
    """Shape of a port under the case's dims: "(Hq+2*Hkv)*D" is evaluated."""
    given = case.shapes.get(port, ports(op)[port]["shape"])
    if not isinstance(given, str):
        return tuple(given)
    try:
        return tuple(int(eval(size, {"__builtins__": {}}, case.dims)) for size in sizes(given))
    except (NameError, SyntaxError) as e:
        raise ValueError(f"{op}: case {case.id} gives no size for port {port}, {given}: {e}") from None


def pitched(op, port, case):
    """Whether the second axis of the port may be strided in this case: with layout=hnd it is the heads', which may not."""
    return ports(op)[port]["pitched"] and case.attrs.get("layout") != "hnd"


def by_column(op, port, case):
    """Whether the port may lie column after column in this case."""
    return ports(op)[port]["columns"] and reference(op).by_column(port, case)


def is_block(dtype):
    return DTYPES[dtype]["block"] > 1


def row_bytes(dtype, shape):
    """Bytes of one entry of the outermost axis."""
    d = DTYPES[dtype]
    return math.prod(shape[1:]) // d["block"] * d["bytes"]


class Slot:
    """One port's memory: guard, rows (with gaps if strided; `pitched`: also between entries of the second axis; or,
    of `columns`, columns with gaps), guard.

    On a GPU `array` is device memory and `memory`, `bytes` are its copy here, which push() and pull() move.
    """

    def __init__(self, dtype, shape, layout="dense", gap=3, pitched=False, columns=False):
        self.dtype, self.shape = dtype, tuple(shape)
        unit, count = DTYPES[dtype]["bytes"], shape[0]
        if columns and layout == COLUMNS:
            self.pitch = count * unit + COLUMN_GAP
            form, self.steps, size = (count, shape[1], unit), (unit, self.pitch, 1), self.pitch * shape[1]
        else:
            space = (gap * unit if layout == "strided" else 32 if layout == PITCHED and pitched else 0) if len(shape) > 1 else 0
            parts, part = (shape[1], row_bytes(dtype, shape[1:])) if pitched else (1, row_bytes(dtype, shape))
            step = part + (space if pitched else 0)
            self.pitch = parts * step + space
            form, self.steps, size = ((count, parts, part), (self.pitch, step, 1), self.pitch * count) if pitched else ((count, part), (self.pitch, 1), self.pitch * count)
        # One element off the 64 bytes that allocations usually give; 2 bytes for block formats.
        skew = 0 if layout in ("dense", PITCHED, COLUMNS) else 2 if is_block(dtype) else unit
        raw = np.full(-(-(2 * GUARD + skew + size + 64) // 64) * 64, GUARD_FILL, np.uint8)
        self.store = device and device.allocate(raw.size)
        address = self.store.data_ptr() if device else raw.ctypes.data
        self.start = GUARD + -(address + GUARD) % 64 + skew
        self.memory = raw
        self.bytes = np.ndarray(form, np.uint8, raw, self.start, self.steps)
        self.array = self._array()
        self.push()

    def push(self):
        if self.store is not None:
            device.upload(self.store, self.memory)

    def pull(self):
        if self.store is not None:
            device.download(self.memory, self.store)

    def put(self, value):
        """Writes what a call returned where the call did not write itself."""
        if device:
            self.array.copy_(value)
        else:
            self.array[...] = value

    def _array(self):
        if is_block(self.dtype):
            rows = device.rows(self) if device else self.bytes
            return vivace.view(rows, dtype=self.dtype, shape=self.shape)
        if device:
            return device.typed(self)
        return np.ndarray(self.shape, NUMPY[self.dtype], self.memory, self.start, self.strides())

    def strides(self):
        """In bytes, of a plain dtype."""
        unit, dense = DTYPES[self.dtype]["bytes"], []
        for dim in reversed(self.shape):
            dense.insert(0, unit)
            unit *= dim
        outer = self.steps[:-1]
        return [*outer, *dense[len(outer) :]]

    def fill(self, value):
        self.bytes[...] = value
        self.push()
        return self

    def surroundings(self):
        """Everything but the data: guards and the gaps between rows."""
        copy = self.memory.copy()
        np.ndarray(self.bytes.shape, np.uint8, copy, self.start, self.steps)[...] = 0
        return copy


def pairs(values, dtype):
    """Codes of the nearest values, two a byte, the first in the low nibble."""
    if dtype == "i4":
        codes = np.clip(np.rint(values), -8, 7).astype(np.int64) & 15
    else:
        codes = np.abs(np.abs(values)[..., None] - E2M1[:8]).argmin(-1) + 8 * np.signbit(values)
    codes = codes.reshape(len(values), -1).astype(np.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4


def encode(values, dtype):
    """float64 or integer array -> bytes [rows, row bytes] of the nearest values of `dtype`."""
    values = np.asarray(values)
    if dtype in PAIRS:
        return pairs(values, dtype)
    if is_block(dtype):
        packed = quantize(values.astype(np.float32).reshape(-1, values.shape[-1]), dtype)
        return packed.reshape(len(values), -1)
    if dtype in FLOATS:
        values = round_to(values, dtype)
    with np.errstate(all="ignore"):
        plain = np.ascontiguousarray(values.astype(NUMPY[dtype]))
    return plain.reshape(-1).view(np.uint8).reshape(len(values), row_bytes(dtype, values.shape))


def decode(data, dtype, shape):
    """The reverse: float64 for floats and block formats, int64 for integers."""
    data = np.ascontiguousarray(data)
    if dtype in PAIRS:
        codes = np.stack([data & 15, data >> 4], -1).reshape(shape)
        return E2M1[codes] if dtype == "e2m1" else ((codes.astype(np.int64) ^ 8) - 8).astype(np.float64)
    if is_block(dtype):
        flat = data.reshape(int(np.prod(shape[:-1])), -1)
        return gguf.quants.dequantize(flat, gguf.GGMLQuantizationType[dtype.upper()]).astype(np.float64).reshape(shape)
    plain = data.reshape(-1).view(NUMPY[dtype]).reshape(shape)
    return plain.astype(np.float64 if dtype in FLOATS else np.int64)


def quantize(rows, dtype):
    """f32 [N, K] -> bytes [N, row bytes]. The k-quants have no NumPy encoder: theirs are random codes
    with scales that give values of the same size as the rows."""
    if dtype not in ("q4_k", "q5_k", "q6_k"):
        return gguf.quants.quantize(rows, gguf.GGMLQuantizationType[dtype.upper()])
    d = DTYPES[dtype]
    blocks = rows.reshape(-1, d["block"])
    rng = np.random.default_rng(np.frombuffer(blocks.tobytes()[:64], np.uint8).astype(np.uint64))
    packed = rng.integers(0, 256, (len(blocks), d["bytes"]), np.uint8)
    amax = np.abs(blocks).max(-1) if blocks.size else np.zeros(len(blocks))
    if dtype == "q6_k":  # d at the end; values are d * scale (int8) * [-32, 32)
        packed[:, -2:] = (amax / (127 * 32)).astype(np.float16)[:, None].view(np.uint8)
    else:  # d and dmin lead; values are d * scale (6 bits) * q - dmin * min (6 bits)
        top = 63 * (15 if dtype == "q4_k" else 31)
        packed[:, 0:2] = (2 * amax / top).astype(np.float16)[:, None].view(np.uint8)
        packed[:, 2:4] = (amax / 63).astype(np.float16)[:, None].view(np.uint8)
    return packed.reshape(len(rows), -1)


def draw(distribution, dtype, shape, rng):
    """float64 array of one of the DISTRIBUTIONS, or "nonfinite"."""
    normal = rng.standard_normal(shape)
    if distribution == "large":
        return 64.0 * normal
    if distribution == "tiny":
        return 2.0**-20 * normal
    if distribution == "zero":
        return np.zeros(shape)
    if distribution == "edges":
        normal[..., [0, -1]] *= 30.0
        return normal
    if distribution == "subnormal":
        bits, emin, _, _ = FLOATS[dtype if dtype in FLOATS else "f16"]
        return np.ldexp(rng.integers(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1), shape).astype(np.float64), emin - bits + 1)
    if distribution == "nonfinite":
        odd = rng.choice([np.inf, -np.inf, np.nan], shape)
        return np.where(rng.random(shape) < 0.02, odd, normal)
    assert distribution == "normal", distribution
    return normal


def is_random(op, case, port):
    """Whether the distribution decides what this port holds."""
    dtype = case.dtypes[port]
    fixed = port in case.ranges or port in case.positive or port in case.values
    return ports(op)[port]["io"] != "out" and not fixed and (dtype in FLOATS or is_block(dtype))


def distributions(op, case):
    """Those that make a difference for this case."""
    return case.distributions if any(is_random(op, case, p) for p in case.dtypes) else case.distributions[:1]


def contents(op, case, distribution, most=None):
    """port -> bytes for every port that is read. Deterministic. Of random ports of more than `most` elements the rows repeat, an
    odd number of them."""
    rng = np.random.default_rng([case.seed, (*DISTRIBUTIONS, "nonfinite").index(distribution)])
    out = {}
    for port, dtype in case.dtypes.items():
        shape = shape_of(op, port, case)
        if ports(op)[port]["io"] == "out":
            continue
        if port == "rows":
            value = np.array([case.rows])
        elif port in case.values:
            given = case.values[port]
            value = np.asarray(given(rng, shape) if callable(given) else given).reshape(shape)
        elif port in case.ranges:
            low, high = case.ranges[port]
            value = rng.uniform(low, high, shape) if dtype in FLOATS else rng.integers(low, high, shape)
        elif port in case.positive:
            value = np.exp2(rng.uniform(-1, 1, shape))
        elif dtype in FLOATS or is_block(dtype):
            held = shape[0] if most is None or np.prod(shape) <= most else min(shape[0], max(1, most * shape[0] // int(np.prod(shape))) | 1)
            rows = encode(draw(distribution, dtype, (held, *shape[1:]), rng), dtype)
            out[port] = rows if held == shape[0] else rows[np.arange(shape[0]) % held]
            continue
        elif 0 in shape:
            value = np.zeros(shape)
        else:
            raise ValueError(f"{op}: case {case.id}: integer port {port} needs ranges or values")
        out[port] = encode(value, dtype)
    return out


def by_row(op, port):
    """Whether the port has one entry a token, so that a device-side row count cuts it."""
    return ports(op)[port]["shape"].split(",")[0] == "T"


def valid_rows(case):
    T = case.dims.get("T", 0)
    return T if case.rows is None else min(max(case.rows, 0), T)


def expected(op, case, data):
    """What the reference says each written port holds: {port: float64 or int64 array}, valid rows only."""
    n, inputs = valid_rows(case), {}
    for port, raw in data.items():
        if port != "rows":
            shape = shape_of(op, port, case)
            value = decode(raw, case.dtypes[port], shape)
            inputs[port] = value[:n] if by_row(op, port) else value
    inputs = Inputs(inputs, case)
    ref = reference(op).ref
    extra = {name: value for name, value in (("dims", case.dims), ("valid", n)) if name in inspect.signature(ref).parameters}
    with np.errstate(all="ignore"):
        written = ref(**{k: v.copy() for k, v in inputs.items()}, **case.attrs, **extra, dtypes=case.dtypes)
    return inputs, written
