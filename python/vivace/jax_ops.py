"""The ops as functions of JAX arrays: inputs go in, new arrays come out. One function each, made from the op table at import.

    import jax, vivace.jax_ops as vv
    y = jax.jit(lambda x, w: vv.norm(x, weight=w, eps=1e-5))(x, w)

Importing it registers one target of XLA's foreign function interface, `vivace.op`, for the CPU and for CUDA. The functions work inside and
outside of jit, under vmap, and in command buffers. What an op updates (a cache, a state) is returned anew; a donated buffer is updated where it
is. Nothing has a derivative of its own: jax.custom_vjp gives one.
"""
import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.custom_batching import custom_vmap

from vivace import _core, jit
from vivace.errors import InvalidArgumentError, InvalidDTypeError, InvalidShapeError, NotFoundError
from vivace.functional import Form

_JAX = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
        "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8, "bool": np.bool_}
_NAMES = {np.dtype(of): name for name, of in _JAX.items()}
_DTYPES = {row["name"]: row for row in _core.dtype_table()}

# Ops whose rows know nothing of each other nor of their number: vmap makes one call of more rows of them. What follows are ports that end this.
_BY_ROW = {
    "norm": {"gate", "scale", "shift"}, "rms_rows": {"scale"}, "rms_scale": set(), "gemm": {"gate"}, "gated_gemm": set(), "embedding": set(),
    "act_mul": set(), "delta_gates": set(), "merge_states": set(), "rope": set(), "softmax": set(), "argmax": set(), "renorm_probs": set(),
    "cast": set(), "gate_residual": {"table", "gate"}, "gate_heads": set(), "quantize": set(), "dequantize": set(), "reduce": set(), "euler_step": set(),
}


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Packed:
    """Bytes that an op reads as another dtype: see packed()."""

    array: jax.Array
    dtype: str

    def tree_flatten(self):
        return (self.array,), self.dtype

    @classmethod
    def tree_unflatten(cls, dtype, children):
        return cls(children[0], dtype)


def packed(array, dtype: str) -> Packed:
    """The uint8 or int8 array [..., bytes] as an input of `dtype`: a block format of GGUF (q8_0, q4_k, ...), two 4-bit values a byte (e2m1, i4), or
    8-bit floats (e4m3, e5m2). Errors: InvalidDTypeError, InvalidShapeError (rows that are no whole blocks)."""
    array = jnp.asarray(array)
    if dtype not in _DTYPES:
        raise InvalidDTypeError(f"packed: dtype is one of {', '.join(_DTYPES)}, got {dtype!r}")
    if array.dtype not in (np.uint8, np.int8) or array.ndim == 0:
        raise InvalidDTypeError(f"packed: wanted a uint8 or int8 array [..., bytes], got {array.dtype}{list(array.shape)}")
    if array.shape[-1] % _DTYPES[dtype]["bytes"]:
        raise InvalidShapeError(f"packed: rows of {array.shape[-1]} bytes are no whole blocks of {dtype}, {_DTYPES[dtype]['bytes']} bytes each")
    return Packed(array, dtype)


@dataclass(frozen=True)
class _Call:
    """What of a call is not an array."""

    form: Form
    ports: tuple      # (name, dtype that the bytes are read as, or "") of each array
    attributes: tuple  # (name, value)
    dtype: str | None
    shapes: tuple     # (output, shape)
    outputs: tuple    # optional outputs

    def operands(self, arrays):
        """(arrays as XLA passes them, [name or name:dtype], {name: (shape, dtype)})."""
        passed, entries, given = [], [], {}
        for (name, read_as), x in zip(self.ports, arrays):
            if not read_as and x.dtype == np.int32 and self._port(name)["dtypes"] == "i64":  # JAX without x64
                x, read_as = jnp.stack([x, x >> 31], -1).reshape(*x.shape[:-1], -1), "i64"
            shape, of = x.shape, read_as or _NAMES.get(np.dtype(x.dtype))
            if of is None:
                raise InvalidDTypeError(f"{self.form.name}: port {name}: wanted {self._port(name)['dtypes']}, got JAX's {x.dtype}; cast it, or pass bytes by packed()")
            if read_as:
                row = _DTYPES[read_as]
                shape = (*shape[:-1], shape[-1] * x.dtype.itemsize // row["bytes"] * row["block"])
            passed.append(x)
            entries.append(f"{name}:{read_as}" if read_as else name)
            given[name] = (shape, of)
        return passed, entries, given

    def _port(self, name):
        return next(p for p in self.form.ports if p["name"] == name)

    def run(self, *arrays):
        """One call of the target. Everything that shapes and dtypes can say is checked here, while it is traced."""
        form = self.form
        passed, entries, given = self.operands(arrays)
        for name, (shape, _) in given.items():
            if not all(isinstance(d, int) for d in shape):
                raise InvalidShapeError(f"{form.name}: port {name}: wanted sizes that are known when the call is traced, got [{', '.join(map(str, shape))}]")
        results = form.results(given, self.dtype, dict(self.shapes), self.outputs)
        updated = [p["name"] for p in (*form.updates, *form.optional_updates) if p["name"] in given]
        _core.check_call(form.name, [(n, of, list(shape)) for n, (shape, of) in (given | results).items()], dict(self.attributes))
        at = {entry.split(":")[0]: i for i, entry in enumerate(entries)}
        made = [jax.ShapeDtypeStruct(shape, _JAX[of]) for shape, of in results.values()]
        made += [jax.ShapeDtypeStruct(passed[at[n]].shape, passed[at[n]].dtype) for n in updated]
        target = jax.ffi.ffi_call("vivace.op", made, input_output_aliases={at[n]: len(results) + i for i, n in enumerate(updated)})
        ports = ",".join([*entries, *results, *(entries[at[n]] for n in updated)])
        return tuple(target(*passed, vivace_op=form.name, vivace_ports=ports, **dict(self.attributes)))

    def by_row(self, batched) -> bool:
        """Whether a batch of calls is one call of more rows."""
        names = {name for name, _ in self.ports}
        led = {p["name"] for p in self.form.ports if p["shape"].split(",")[0] == "T"}
        ties = _BY_ROW.get(self.form.name)
        written = {p["name"] for p in self.form.outs} | set(self.outputs)
        return (ties is not None and not names & (ties | {"rows"}) and not self.shapes and written <= led
                and all(name in led for (name, _), one in zip(self.ports, batched) if one))

    def several(self, size, batched, *arrays):
        """vmap's rule: all at once where rows are independent, one after the other where they are not."""
        function = _traced(self)
        if self.by_row(batched):
            led = [self._port(name)["shape"].split(",")[0] == "T" for name, _ in self.ports]
            whole = [x if one or not rows else jnp.broadcast_to(x, (size, *x.shape)) for x, one, rows in zip(arrays, batched, led)]
            T = next(x.shape[1] for x, rows in zip(whole, led) if rows)
            made = function(*(x.reshape(size * T, *x.shape[2:]) if rows else x for x, rows in zip(whole, led)))
            made = tuple(y.reshape(size, T, *y.shape[1:]) for y in made)
        else:
            def one(xs):
                xs = iter(xs)
                return function(*(next(xs) if b else x for x, b in zip(arrays, batched)))

            made = jax.lax.map(one, [x for x, b in zip(arrays, batched) if b])
        return made, (True,) * len(made)


@functools.lru_cache(maxsize=4096)
def _traced(call: _Call):
    function = custom_vmap(call.run)
    function.def_vmap(call.several)
    return jax.jit(function)


def _dtype_name(op, dtype):
    if dtype is None or dtype in _DTYPES:
        return dtype
    try:
        return _NAMES[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise InvalidArgumentError(f"{op}: dtype: wanted one of {', '.join(_JAX)}, got {dtype!r}") from None


class _Function:
    """One op, or an alias of it with some attributes fixed."""

    def __init__(self, form: Form, name: str, fixed: dict):
        self.form, self.name, self.fixed = form, name, fixed
        self.kinds = {a["name"]: a["kind"] for a in form.attrs}
        self.required = [p["name"] for p in form.inputs if not p["optional"]]
        self.arrays = {p["name"] for p in (*form.inputs, *form.optional_updates)}
        self.asked = {p["name"] for p in form.optional_outs}
        self.long = {p["name"] for p in form.inputs if p["dtypes"] == "i64"}

    def __call__(self, *args, outputs=(), **named):
        if len(args) > len(self.required):
            raise InvalidArgumentError(f"{self.name}: {len(args)} positional arguments for {len(self.required)} required inputs ({', '.join(self.required)}); the rest go by name")
        given, attributes, dtype, shapes = self.form.split(args, named)
        outputs = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        if wrong := [n for n in outputs if n not in self.asked]:
            raise NotFoundError(f"{self.name}: no optional output {', '.join(map(repr, wrong))}; it has {', '.join(sorted(self.asked)) or 'none'}")
        if twice := set(self.required[: len(args)]) & set(named):
            raise InvalidArgumentError(f"{self.name}: port {', '.join(sorted(twice))} is given twice")
        if missing := [n for n in self.required if n not in given]:
            raise InvalidArgumentError(f"{self.name}: port {', '.join(missing)} is missing")
        if not given:
            raise InvalidArgumentError(f"{self.name}: no input is given; its inputs are {', '.join(sorted(self.arrays))}")
        ports, arrays = [], []
        for name, x in given.items():
            if isinstance(x, np.ndarray) and x.dtype == np.int64 and x.ndim and not jax.config.jax_enable_x64 and name in self.long:
                x = Packed(jnp.asarray(np.ascontiguousarray(x).view(np.int32)), "i64")  # JAX would cut it to 32 bits
            ports.append((name, x.dtype if isinstance(x, Packed) else ""))
            arrays.append(x.array if isinstance(x, Packed) else jnp.asarray(x))
        call = _Call(self.form, tuple(ports), tuple(sorted((self.fixed | {n: self.value(n, v) for n, v in attributes.items()}).items())),
                     _dtype_name(self.name, dtype), tuple((n, tuple(map(int, s))) for n, s in shapes.items()), tuple(sorted(outputs)))
        made = _traced(call)(*arrays)
        return made[0] if len(made) == 1 else made

    def value(self, name, value):
        """An attribute as XLA passes it. The core says what is wrong with the number or the choice itself."""
        if name in self.fixed:
            raise NotFoundError(f"{self.name}: attribute {name} is fixed by this name; call {self.form.name} to choose it")
        if name not in self.kinds:
            hint = f"; {name} is returned, see outputs=" if name in {p["name"] for p in self.form.ports} else ""
            raise NotFoundError(f"{self.name}: no input or attribute {name!r}{hint}; inputs: {', '.join(sorted(self.arrays))}; attributes: {', '.join(self.kinds) or 'none'}")
        if self.kinds[name] == "choice":
            if not isinstance(value, str):
                raise InvalidArgumentError(f"{self.name}: attribute {name} takes a string, got {type(value).__name__}")
            return value
        try:
            if isinstance(value, (str, jax.core.Tracer)):
                raise TypeError
            return float(value)
        except (TypeError, ValueError):
            raise InvalidArgumentError(f"{self.name}: attribute {name} takes a number that is known when the call is traced, got {type(value).__name__}") from None

    def documentation(self, row) -> str:
        inputs = [*(p for p in self.form.inputs if not p["optional"]), *(p for p in (*self.form.inputs, *self.form.optional_updates) if p["optional"])]
        line = {p["name"]: f"  {p['name']}: {'optional ' if p['optional'] else ''}[{p['shape']}] {p['dtypes']}. {p['doc']}\n" for p in self.form.ports}
        said = [f"{n}_shape" + ("=None" if may else "") for n, may in self.form.shaped.items()]
        words = [*self.required, "*", *said, *(f"{p['name']}=None" for p in inputs if p["optional"]), *(f"{a['name']}={a['default']!r}" for a in self.form.attrs if a["name"] not in self.fixed)]
        words += ["dtype=None"] if self.form.typed else []
        words += ["outputs=()"] if self.asked else []
        returned = [p["name"] for p in (*self.form.outs, *self.form.updates)]
        text = f"{self.name}({', '.join(words).removesuffix(', *')}) -> {', '.join(returned)}\n\n{row['brief']}\n"
        text += f"\n{self.form.name} with {', '.join(f'{k}={v}' for k, v in self.fixed.items())}.\n" if self.fixed else ""
        text += f"\nFormula: {row['formula']}\n\nInputs:\n" + "".join(line[p["name"]] for p in inputs)
        text += "\nReturned, in this order:\n" + "".join(line[p["name"]] for p in (*self.form.outs, *self.form.optional_outs, *self.form.updates, *self.form.optional_updates))
        text += "Optional outputs are there if `outputs` names them, updates if they were given.\n" if self.asked or self.form.optional_updates else ""
        if attrs := [a for a in self.form.attrs if a["name"] not in self.fixed]:
            text += "\nAttributes, known when the call is traced:\n" + "".join(f"  {a['name']}: {a['doc']}\n" for a in attrs)
        return text


def _functions() -> dict:
    rows = {row["name"]: row for row in _core.op_table()}
    forms = {name: form for name, form in ((n, Form(row)) for n, row in rows.items()) if form.inputs and name != "fill"}  # jax.numpy.full is fill

    def made(op, name, settings=""):
        form, fixed = forms[op], {}
        kinds = {a["name"]: a["kind"] for a in form.attrs}
        for one in filter(None, settings.split(",")):
            key, value = one.split("=")
            fixed[key] = value if kinds[key] == "choice" else float(value)
        inner = _Function(form, name, fixed)

        def function(*args, **named):
            return inner(*args, **named)

        function.__name__, function.__qualname__, function.__module__, function.__doc__ = name, name, __name__, inner.documentation(rows[op])
        return function

    return {n: made(n, n) for n in forms} | {a["name"]: made(a["op"], a["name"], a["attrs"]) for a in _core.alias_table() if a["op"] in forms}


def _register():
    jit.find_nvrtc()  # kernels that no cache has are compiled on XLA's threads, which cannot ask Python where NVRTC is
    for platform, stages in _core.xla_handlers().items():
        jax.ffi.register_ffi_target("vivace.op", stages, platform=platform)


_register()
_made = _functions()
globals().update(_made)
__all__ = [*_made, "Packed", "packed"]
