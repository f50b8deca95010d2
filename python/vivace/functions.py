"""The semantic names of the op table (`vivace ops` lists them as aliases), each a function that returns what it computes.

    from vivace import functions
    y = functions.rms_norm_fp8(x, weight=w, out_scale=s)     # e4m3, as the name says

A function holds the call to its name, and makes what the op writes beside its inputs: NumPy arrays, torch tensors or vivace.array's. Ports that the
op updates (a residual, a state, a cache, scratch) and optional outputs are the caller's arrays, written in place; `out=` takes the result's.
vivace.ops has the same names in the other form, without the name's contract. Errors of every function: InvalidArgumentError (the name wants a
port that is not given, or excludes one that is), InvalidDTypeError (another type than the name says), and the op's own.

What a name's words say:

    fp8          e4m3: the result, of a product its two factors           fp16, bf16       the other arrays' type
    bf16out ...  the result's type                                        static           out_scale is given
    noweight     no weight; no_affine: no bias either                     inplace          the result is written over the input
    merged       gate and up are one array x; split: two arrays           residual, res    residual is given (and updated by a norm)
    gate, bias   those are given                                          ada, adarms      scale is given
    kvcache      the caches are given                                     padded, seqused  lengths are given
"""
from vivace import _core, ops
from vivace.errors import InvalidArgumentError, InvalidDTypeError
from vivace.functional import Form

_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "int32": "i32", "int64": "i64", "int8": "i8", "uint8": "u8"}
_LONG = {short: long for long, short in _TYPES.items()}
_TYPE_WORDS = {"fp16": "f16", "bf16": "bf16", "fp32": "f32"}
_OUT_WORDS = {"bf16out": "bf16", "f32out": "f32"}


class Contract:
    """What a name says: types {port: dtype}, ports that a call needs or may not have, the port that the result is written over."""

    def __init__(self, name, op):
        words = name.split("_")
        self.types, self.needs, self.without, self.over = {}, set(), set(), None
        plain = [_TYPE_WORDS[w] for w in words if w in _TYPE_WORDS]
        product, fp8 = op in ("gemm", "grouped_gemm"), "fp8" in words
        inputs = {"gemm": ("x", "w"), "grouped_gemm": ("x", "w"), "attention": ("q", "k"), "qkv_rope": ("qkv",), "act_mul": ("x", "gate"), "act_mul_block_scaled": ("x", "gate"), "fill": ()}.get(op, ("x",))
        if fp8:
            self.types |= dict.fromkeys(inputs if product else ("out",), "e4m3")
        if plain:
            self.types |= dict.fromkeys(("out",) if product and fp8 else inputs, plain[0])
            if not fp8 and op not in ("quantize", "quantize_tensor", "act_mul_block_scaled"):
                self.types["q" if op == "qkv_rope" else "out"] = plain[-1]
        self.types |= {"out": _OUT_WORDS[w] for w in words if w in _OUT_WORDS}

        given = set(words)
        self.needs |= {"out_scale"} if "static" in given else set()
        self.needs |= {"residual"} if {"residual", "res"} & given and op in ("norm", "gate_residual") else set()
        self.needs |= {"gate"} if "gate" in given and op in ("norm", "gate_residual") else set()
        self.needs |= {"bias"} if "bias" in given else set()
        self.needs |= {"table"} if "pos" in given and op == "gate_residual" else set()
        self.needs |= {"scale"} if {"ada", "adarms"} & given else set()
        self.needs |= {"x"} if "merged" in given else {"gate", "up"} if "split" in given and op == "act_mul" else set()
        self.needs |= {"length"} if {"padded", "seqused"} & given else set()
        if op == "qkv_rope":
            self.needs |= {"inv_freq"} if "rope" in given else set()
            self.needs |= {"k_cache", "v_cache"} if "kvcache" in given else {"k_out", "v_out"}
            self.without |= set() if "rope" in given else {"inv_freq"}
        self.without |= {"weight"} if "noweight" in given else {"weight", "bias"} if "affine" in given else set()
        if "inplace" in given:
            self.over = "gate" if op == "act_mul" else "x"
            self.without |= {"up", "x"} if op == "act_mul" else set()

    def check(self, name, inputs):
        for port in sorted(self.needs - inputs.keys()):
            raise InvalidArgumentError(f"functions.{name}: {port} is missing, which the name says is there")
        for port in sorted(self.without & inputs.keys()):
            raise InvalidArgumentError(f"functions.{name}: {port} is given, which the name excludes; vivace.ops has the op with all of its ports")
        for port, wanted in self.types.items():
            if port in inputs and type_of(inputs[port]) != wanted:
                raise InvalidDTypeError(f"functions.{name}: {port} is {type_of(inputs[port])}, and the name says {wanted}")


def type_of(x) -> str:
    """The op table's name of an array's type."""
    if not hasattr(x, "dtype"):
        raise InvalidDTypeError(f"functions: wanted NumPy arrays, torch tensors or vivace arrays, got {type(x).__name__}")
    word = str(x.dtype).rsplit(".", 1)[-1]
    return _TYPES.get(word, word)


def _made(shape, dtype, like):
    """A new array beside `like`."""
    if dtype not in _LONG:
        raise InvalidDTypeError(f"functions: a result of {dtype}: the op table has {', '.join(_LONG)}")
    home = type(like).__module__.split(".")[0]
    if home == "torch":
        import torch

        return torch.empty(shape, dtype=getattr(torch, _LONG[dtype]), device=like.device)
    if isinstance(like, _core.Array):
        from vivace import array

        return array.empty(shape, dtype, like.device)
    if home != "numpy":
        raise InvalidDTypeError(f"functions: wanted NumPy arrays, torch tensors or vivace arrays, got {type(like).__module__}.{type(like).__name__}; or give out=")
    import numpy as np

    if dtype in ("bf16", "e4m3", "e5m2"):
        import ml_dtypes

        return np.empty(shape, getattr(ml_dtypes, _LONG[dtype]))
    return np.empty(shape, _LONG[dtype])


def _function(alias, row):
    name, form, contract = alias["name"], Form(row), Contract(alias["name"], row["name"])
    call, written = getattr(ops, name), [p["name"] for p in (*form.outs, *form.optional_outs)]
    positional = [p["name"] for p in form.inputs if not p["optional"]] or [p["name"] for p in form.inputs if p["name"] == (contract.over or ("x" if "x" in contract.needs else "gate"))]

    def function(*args, **named):
        if len(args) > len(positional):
            raise InvalidArgumentError(f"functions.{name}: {len(args)} arrays by position, wanted {', '.join(positional) or 'none'}; the rest by name")
        outs = {n: named.pop(n) for n in written if named.get(n) is not None}
        inputs, attrs, dtype, shapes = form.split((), dict(zip(positional, args)) | named)
        types = {n: type_of(x) for n, x in inputs.items()}
        contract.check(name, inputs | outs)
        if contract.over is not None and contract.over in inputs:
            outs.setdefault("out", inputs[contract.over])
        missing = [p["name"] for p in form.outs if p["name"] not in outs]
        if missing:
            like = next((x for x in inputs.values() if not isinstance(x, _core.View)), None)
            if like is None:
                raise InvalidArgumentError(f"functions.{name}: nothing is given to make {', '.join(missing)} beside; give it")
            results = form.results({n: (tuple(x.shape), types[n]) for n, x in inputs.items()}, dtype or contract.types.get("out"), shapes)
            outs |= {n: _made(*results[n], like) for n in missing}
            contract.check(name, inputs | outs)
        call(**inputs, **outs, **attrs)
        results = tuple(outs[p["name"]] for p in form.outs)
        return results[0] if len(results) == 1 else results

    function.__name__ = function.__qualname__ = name
    fixed = f"{row['name']} with {alias['attrs']}" if alias["attrs"] else row["name"]
    says = [f"{port} is {dtype}" for port, dtype in contract.types.items()] + [f"{p} is given" for p in sorted(contract.needs)] + [f"no {p}" for p in sorted(contract.without)]
    says += [f"the result is written over {contract.over}"] if contract.over else []
    listed = "; ".join(f"{p['name']} [{p['shape']}] {p['dtypes']}" for p in row["ports"])
    says = "; ".join(["", *says])
    function.__doc__ = f"{name}({', '.join([*positional, '*', '...'])}): {row['brief']} The op is {fixed}{says}.\n\nPorts: {listed}.\n\n{row['formula']}"
    function.contract = contract
    return function


_rows = {row["name"]: row for row in _core.op_table()}
_functions = {alias["name"]: _function(alias, _rows[alias["op"]]) for alias in _core.alias_table()}
globals().update(_functions)
__all__ = [*_functions]
