"""The handlers that XLA calls, called here as XLA would: frames made by hand, no JAX. The structures are those of XLA's C API 0.3."""
import ctypes
import platform

import ml_dtypes
import numpy as np
import pytest

import vivace
from vivace import _core, ops

P, I32, I64, SIZE, TEXT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t, ctypes.c_char_p
TYPES = {np.dtype(d): t for d, t in ((np.bool_, 1), (np.int8, 2), (np.int16, 3), (np.int32, 4), (np.int64, 5), (np.uint8, 6), (np.uint32, 8), (np.float16, 10), (np.float32, 11), (np.float64, 12), (ml_dtypes.bfloat16, 16),
                                            (ml_dtypes.float8_e5m2, 19), (ml_dtypes.float8_e4m3fn, 20))}


def struct(**fields):
    return type("Struct", (ctypes.Structure,), {"_fields_": list(fields.items())})


Head = {"size": SIZE, "extensions": P}
Version = struct(**Head, major=I32, minor=I32)
Metadata = struct(size=SIZE, version=Version, traits=ctypes.c_uint32, state_type=I64)
MetadataExtension = struct(size=SIZE, type=I32, next=P, metadata=ctypes.POINTER(Metadata))
Buffer = struct(**Head, type=I32, data=P, rank=I64, dims=ctypes.POINTER(I64))
Span = struct(data=TEXT, length=SIZE)
Scalar = struct(type=I32, value=P)
Operands = struct(**Head, count=I64, types=ctypes.POINTER(I32), items=ctypes.POINTER(P))
Attributes = struct(**Head, count=I64, types=ctypes.POINTER(I32), names=ctypes.POINTER(P), items=ctypes.POINTER(P))
ErrorCreate = struct(**Head, message=TEXT, code=I32)
MAKE, FUNCTION = ctypes.CFUNCTYPE(P, ctypes.POINTER(ErrorCreate)), ctypes.CFUNCTYPE(P, P)
StreamGet = struct(**Head, context=P, stream=P)
Api = struct(**Head, version=Version, internal=P, error_create=MAKE, error_get_message=FUNCTION, error_destroy=FUNCTION, handler_register=FUNCTION, stream_get=FUNCTION)
Frame = struct(**Head, api=ctypes.POINTER(Api), context=P, stage=I32, arguments=Operands, results=Operands, attributes=Attributes, future=P)
INITIALIZE, EXECUTE = 2, 3


def handler(platform, stage="execute"):
    capsule = _core.xla_handlers()[platform][stage]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = P, (ctypes.py_object, TEXT)
    return ctypes.CFUNCTYPE(P, ctypes.POINTER(Frame))(pointer(capsule, None))


class Call:
    """One frame, and what keeps its parts alive. call() returns None or (code, message). XLA's stream is `stream`; without one XLA has an error
    for who asks."""

    def __init__(self, arguments, results, platform="cpu", stage=EXECUTE, stream=None, **attributes):
        self.kept, self.failed, self.function, self.stream = [], None, handler(platform), stream
        self.api = Api(size=ctypes.sizeof(Api), error_create=MAKE(self.fail), stream_get=FUNCTION(self.tell), error_destroy=FUNCTION(lambda args: 0))
        self.frame = Frame(size=ctypes.sizeof(Frame), api=ctypes.pointer(self.api), stage=stage, arguments=self.operands(arguments), results=self.operands(results), attributes=self.attributes(attributes))

    def fail(self, create):
        self.failed = create.contents.code, create.contents.message.decode()
        return 1

    def tell(self, asked):
        StreamGet.from_address(asked).stream = self.stream
        return None if self.stream else 1

    def keep(self, x):
        self.kept.append(x)
        return ctypes.cast(ctypes.pointer(x), P).value

    def array(self, kind, values):
        made = (kind * max(len(values), 1))(*values)
        self.kept.append(made)
        return made

    def operands(self, arrays):
        items = []
        for a in arrays:
            self.kept.append(a)
            items.append(self.keep(Buffer(type=TYPES.get(a.dtype, 99), data=a.ctypes.data if a.size else None, rank=a.ndim, dims=self.array(I64, a.shape))))
        return Operands(count=len(arrays), types=self.array(I32, [1] * len(arrays)), items=self.array(P, items))

    def span(self, text):
        return Span(data=text.encode(), length=len(text))

    def attributes(self, values):
        names, types, items = [], [], []
        for name, value in sorted(values.items()):
            names.append(self.keep(self.span(name)))
            types.append(4 if isinstance(value, str) else 1 if isinstance(value, list) else 3)
            if isinstance(value, str):
                items.append(self.keep(self.span(value)))
            else:
                number = np.atleast_1d(np.asarray(value))
                self.kept.append(number)
                items.append(self.keep(Scalar(type=TYPES[number.dtype], value=number.ctypes.data)))
        return Attributes(count=len(names), types=self.array(I32, types), names=self.array(P, names), items=self.array(P, items))

    def __call__(self):
        returned = self.function(ctypes.byref(self.frame))
        assert (returned is None) == (self.failed is None)
        return self.failed


X = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)


def norm(out, x=X, vivace_ports="x,out", **more):
    return Call([x], [out], vivace_op="norm", vivace_ports=vivace_ports, **more)


@pytest.mark.parametrize("platform, traits", [("cpu", 0), ("CUDA", 1)])
def test_says_what_it_is(platform, traits):
    """Version, and that a CUDA graph may hold it. Nothing else of such a frame is read."""
    said = Metadata(size=ctypes.sizeof(Metadata))
    extension = MetadataExtension(size=ctypes.sizeof(MetadataExtension), type=1, metadata=ctypes.pointer(said))
    frame = Frame(size=ctypes.sizeof(Frame), extensions=ctypes.cast(ctypes.pointer(extension), P), stage=EXECUTE)
    assert handler(platform)(ctypes.byref(frame)) is None
    assert (said.version.major, said.version.minor, said.traits, said.state_type) == (0, 3, traits, 0)
    assert set(_core.xla_handlers()[platform]) == ({"execute"} if platform == "cpu" else {"initialize", "execute"})


def test_runs_an_op_with_attributes_of_every_type():
    for eps in (1e-3, np.float32(1e-3), 0):
        got, want = np.zeros_like(X), np.zeros_like(X)
        assert norm(got, eps=eps, kind="layer")() is None
        ops.norm(X, out=want, eps=float(eps), kind="layer")
        assert np.array_equal(got, want)
    got, want, w = np.zeros_like(X), np.zeros_like(X), X[0].copy()
    for one in (True, np.int32(1), np.int64(1)):
        assert Call([w, X], [got], vivace_op="norm", vivace_ports="weight,x,out", weight_plus_one=one)() is None
        ops.norm(X, weight=w, out=want, weight_plus_one=True)
        assert np.array_equal(got, want)


def test_reads_bytes_as_another_dtype():
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 64, (8, 2 * 34), np.uint8)
    codes[:, 1::34] &= 0x3B
    got, want = np.zeros((3, 8), np.float32), np.zeros((3, 8), np.float32)
    assert Call([X, codes], [got], vivace_op="gemm", vivace_ports="x,w:q8_0,out")() is None
    ops.gemm(X, vivace.view(codes, dtype="q8_0", shape=(8, 64)), out=want)
    assert np.array_equal(got, want) and want.any()


def cache_call(k_out=None):
    k = np.full((2, 1, 8), 2.0, np.float32)
    kc, vc, pos = np.zeros((1, 4, 1, 8), np.float32), np.zeros((1, 4, 1, 8), np.float32), np.array([1, 3], np.int32)
    call = Call([k, k, pos, kc, vc], [kc if k_out is None else k_out, vc], vivace_op="kv_append", vivace_ports="k,v,pos,k_cache,v_cache,k_cache,v_cache")
    return call, kc


def test_what_is_updated_is_one_buffer():
    call, kc = cache_call()
    assert call() is None and np.array_equal(kc[0, :, 0, 0], [0, 2, 0, 2])
    call, _ = cache_call(np.zeros((1, 4, 1, 8), np.float32))
    code, message = call()
    assert code == 13 and "k_cache: XLA gave what is updated two buffers" in message


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the floating-point environment of x86")
def test_keeps_subnormals_where_the_caller_flushes_them():
    """And leaves the caller's floating-point environment as it was."""
    libm, environment = ctypes.CDLL("libm.so.6"), (ctypes.c_uint8 * 32)()
    libm.fegetenv(environment)
    before = bytes(environment)
    mxcsr = int.from_bytes(before[28:], "little") | 0x8040  # flush to zero, denormals are zero
    small, out = np.full((1, 8), 1e-40, np.float32), np.zeros((1, 8), np.float32)
    call = Call([small, small], [out], vivace_op="euler_step", vivace_ports="x,v,out", dt=1.0)
    libm.fesetenv((ctypes.c_uint8 * 32)(*before[:28], *mxcsr.to_bytes(4, "little")))
    try:
        failed = call()
        libm.fegetenv(environment)
    finally:
        libm.fesetenv((ctypes.c_uint8 * 32)(*before))
    assert failed is None and out.min() > 1.9e-40
    assert int.from_bytes(bytes(environment)[28:], "little") & 0x8040 == 0x8040


def test_other_stages_and_empty_calls_do_nothing():
    out = np.full_like(X, 7)
    for stage in (0, 1, INITIALIZE):
        call = norm(out)
        call.frame.stage = stage
        assert call() is None and (out == 7).all()
    for stage in (INITIALIZE, EXECUTE):  # no elements: no stream and no device is asked for
        assert Call([X[:0]], [out[:0]], "CUDA", stage, vivace_op="norm", vivace_ports="x,out")() is None
    assert norm(out[:0], X[:0])() is None


OUT = np.zeros_like(X)


@pytest.mark.parametrize("call, code, says", [
    (lambda: Call([X], [OUT], vivace_ports="x,out"), 3, "no string attribute vivace_op"),
    (lambda: Call([X], [OUT], vivace_op=1.0, vivace_ports="x,out"), 3, "no string attribute vivace_op"),
    (lambda: Call([X], [OUT], vivace_op="nrom", vivace_ports="x,out"), 5, "NotFound: vivace.op: no op 'nrom'"),
    (lambda: norm(OUT, vivace_ports="x"), 3, "2 buffers, and as many ports are not named"),
    (lambda: norm(OUT, vivace_ports="x,out,weight"), 3, "2 buffers, and as many ports are not named"),
    (lambda: norm(OUT, vivace_ports="y,out"), 5, "no port 'y'"),
    (lambda: norm(OUT, vivace_ports="x:q9,out"), 3, "port x: no dtype 'q9'"),
    (lambda: norm(OUT, X[:, :5].copy(), vivace_ports="x:q8_0,out"), 3, "port x: rows of 20 bytes are no whole blocks of q8_0"),
    (lambda: norm(OUT, eps=[1.0]), 3, "attribute eps is neither a number nor a string"),
    (lambda: norm(OUT, eps=np.float16(1)), 3, "eps: wanted a bool"),
    (lambda: norm(OUT, epz=1.0), 5, "no attribute 'epz'"),
    (lambda: norm(OUT, kind="rmsx"), 3, "kind takes one of rms|layer"),
    (lambda: norm(OUT[:2].copy()), 3, "InvalidShape: norm: port out"),
    (lambda: norm(OUT.astype(np.int32)), 3, "InvalidDType: norm: port out"),
    (lambda: norm(OUT.astype(np.uint32)), 3, "XLA's element type 8 is none of the op table"),
    (lambda: norm(OUT, np.zeros((1,) * 7, np.float32)), 3, "wanted at most 6 axes, got 7"),
])
def test_errors_have_xlas_code_and_our_words(call, code, says):
    got, message = call()()
    assert got == code and says in message


def test_the_check_without_memory():
    ports = [("x", "f32", [3, 64]), ("weight", "bf16", [64]), ("out", "e4m3", [3, 64]), ("out_scale", "f32", [1])]
    _core.check_call("norm", ports, {"eps": 1e-5, "kind": "rms"})
    for name, row in ((r["name"], r) for r in ops.ops_table()["ops"]):
        with pytest.raises(vivace.Error, match=name):  # no ports at all: every op says so, and reads nothing
            _core.check_call(name, [], {})
    for wrong, error in (([("x", "f33", [3, 64])], vivace.InvalidDTypeError), ([("x", "f32", [1] * 7)], vivace.InvalidShapeError), ([*ports[:3]], vivace.InvalidArgumentError),
                         ([*ports, ("bias", "f32", [64])], vivace.InvalidDTypeError)):
        with pytest.raises(error, match="norm"):
            _core.check_call("norm", wrong, {})
    with pytest.raises(vivace.NotFoundError, match="no op 'nrom'"):
        _core.check_call("nrom", ports, {})
