"""Reference of `decode_layers`: float64, layer by layer, without the roundings between; the bound follows them."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to, rounding
from tests.ref.rope import frequencies, rotate

SPLITS = 16


def words_of(H, A, kv, M):
    lines = lambda n: -(-n // 32) * 32  # noqa: E731
    return 32 + 2 * (2 * lines(H) + lines(M) + lines(A) + lines(A + 2 * kv) + A * SPLITS * 2)


def place_of(cache, slot, pos, page_table):
    """(block, place) of a position, or None."""
    blocks, places = cache.shape[1:3]
    if page_table is None:
        return (slot, pos) if 0 <= slot < blocks and 0 <= pos < places else None
    slots, pages = page_table.shape
    if not (0 <= slot < slots and 0 <= pos < pages * places):
        return None
    block = page_table[slot, pos // places]
    return (block, pos % places) if 0 <= block < blocks else None


def norm(x, var, weight, eps):
    """x / rms(x) * weight, and the variance of what it is off by: x weight is rounded to bf16, x and the root to 15 bits."""
    inv = 1 / np.sqrt((x * x).mean() + eps)
    y = x * weight * inv
    return y, var * (weight * inv) ** 2 + unit(y, 8) + unit(y, 16)


def unit(x, bits):
    """Variance of a rounding of x to so many significant bits, a tie's other side included."""
    return (np.abs(x) * 2.0 ** (1 - bits)) ** 2 / 12


def matrix(inputs, port, n):
    """Of layer n, with its rows' scales."""
    scale = inputs.get(port + "_scale")
    return inputs[port][n] if scale is None else inputs[port][n] * scale[n][:, None]


def times(w, x, var):
    """A product and its variance: f32 sums are off by less than the words that pass them on."""
    y = w @ x
    return y, (w * w) @ var + unit(y, 16)


def rotated(x, var, weight, inputs, eps, factor):
    """Heads [n, D] normed and rotated, and their variance."""
    if weight is not None:
        inv = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        # What a head is off by changes its root, too: along the head itself the norm takes it out again, so that this is more than enough.
        x, var = x * inv * weight, var * (inv * weight) ** 2
    pos = inputs["pos"][:1]
    freq = inputs["inv_freq"]
    half = x.shape[-1] // 2
    angle = (pos[0].astype(np.float32) * freq.astype(np.float32)).astype(np.float64)
    c, s = (np.cos(angle) * factor) ** 2, (np.sin(angle) * factor) ** 2
    var = np.concatenate([var[:, :half] * c + var[:, half:] * s, var[:, half:] * c + var[:, :half] * s], 1)
    x = rotate(x[None], freq, pos, "half", factor)[0]
    return x, var + unit(x, 8) + (np.abs(x).max(-1, keepdims=True) * 2e-6) ** 2


def walk(inputs, attrs):
    """(row, its variance, caches and the variances of what is new in them) behind all layers, or None where nothing is written."""
    eps, factor = attrs.get("eps", 1e-6), attrs.get("attn_factor", 1.0)
    if not len(inputs["x"]):
        return None
    pos, slot, table = int(inputs["pos"][0]), int(inputs["slot"][0]) if "slot" in inputs else 0, inputs.get("page_table")
    place = place_of(inputs["k_cache"], slot, pos, table)
    if place is None:
        return None
    k_cache, v_cache = inputs["k_cache"].copy(), inputs["v_cache"].copy()
    k_var, v_var = np.zeros_like(k_cache), np.zeros_like(v_cache)
    N, _, _, Hkv, D = k_cache.shape
    A = inputs["o"].shape[2]
    seen = [(j, p) for j in range(pos + 1) if (p := place_of(k_cache, slot, j, table)) is not None]
    at = tuple(np.array([p for _, p in seen]).T)
    r, var = inputs["x"][0], np.zeros(inputs["x"].shape[1])
    for n in range(N):
        weight = lambda port: inputs[port][n] if port in inputs else None  # noqa: E731
        y, off = norm(r, var, inputs["attn_norm"][n], eps)
        qkv, off = times(matrix(inputs, "qkv", n), y, off)
        if "qkv_bias" in inputs:
            qkv = qkv + inputs["qkv_bias"][n]
            off = off + unit(qkv, 16)
        part = lambda x, first, last: x[first:last].reshape(-1, D)  # noqa: E731
        q, q_off = rotated(part(qkv, 0, A), part(off, 0, A), weight("q_norm"), inputs, eps, factor)
        k, k_off = rotated(part(qkv, A, A + Hkv * D), part(off, A, A + Hkv * D), weight("k_norm"), inputs, eps, factor)
        v, v_off = part(qkv, A + Hkv * D, None), part(off, A + Hkv * D, None)
        v_off = v_off + unit(v, 8)
        k_cache[n][place], v_cache[n][place], k_var[n][place], v_var[n][place] = k, v, k_off, v_off
        keys, values, keys_off, values_off = (c[n][at] for c in (k_cache, v_cache, k_var, v_var))
        out, out_off = np.zeros((A // D, D)), np.zeros((A // D, D))
        for h in range(A // D):
            g = h // (A // D // Hkv)
            s = keys[:, g] @ q[h] / np.sqrt(D)
            p = np.exp(s - s.max())
            p /= p.sum()
            out[h] = p @ values[:, g]
            away = p[:, None] * (values[:, g] - out[h])
            moves = away.T @ keys[:, g] / np.sqrt(D)  # of out by q
            score = keys_off[:, g] @ (q[h] ** 2) / D + (np.abs(s) * 2.0**-15) ** 2 / 12 + 2.0**-34  # variance, of keys and of masses
            out_off[h] = (moves**2) @ q_off[h] + (away**2).T @ score + (p**2) @ values_off[:, g] + unit(out[h], 8) + unit(np.abs(out[h]) + np.abs(values[:, g]).max(0), 15)
        o, o_off = times(matrix(inputs, "o", n), out.reshape(-1), out_off.reshape(-1))
        r, var = r + o, var + o_off
        y, off = norm(r, var, inputs["mlp_norm"][n], eps)
        both, off = times(matrix(inputs, "gate_up", n), y, off)
        gate, up = both[::2], both[1::2]
        with np.errstate(over="ignore"):
            half = 1 / (1 + np.exp(-gate))
        hidden = gate * half * up
        off = off[::2] * (up * half * (1 + gate * (1 - half))) ** 2 + off[1::2] * (gate * half) ** 2 + unit(hidden, 8) + unit(hidden, 15)
        d, d_off = times(matrix(inputs, "down", n), hidden, off)
        r, var = r + d, var + d_off
    return r, var, {"k_cache": (k_cache, k_var), "v_cache": (v_cache, v_var)}


def ref(*, dtypes, eps=1e-6, attn_factor=1.0, **inputs):
    done = walk(inputs, {"eps": eps, "attn_factor": attn_factor})
    if done is None:
        return {"out": np.full(inputs["x"].shape, np.nan), "k_cache": inputs["k_cache"], "v_cache": inputs["v_cache"]}
    r, _, caches = done
    return {"out": round_to(r, dtypes["out"])[None]} | {p: round_to(c, dtypes[p]) for p, (c, _) in caches.items()}


def bound(port, value, dtype, inputs):
    """Roundings are many and fall independently of each other: their variances go through the layers to first order (a product's by its squared
    weights, a softmax's by its derivative), and a value is off by at most ten standard deviations of them, and its own rounding. What only
    one or two roundings make has no ten deviations: none is off by more than 3.5."""
    done = walk(inputs, inputs.attrs)
    if done is None:
        return np.zeros_like(value)
    var = done[1][None] if port == "out" else done[2][port][1]
    return 10 * np.sqrt(var) + np.where(var > 0, rounding(value, dtype), 0) + (1e-30 if port == "out" else 0)


def left_alone(port, case):
    """A position without a place: nothing is written."""
    if port != "out" or "pos" not in case.values:
        return None
    pos, slot = int(case.values["pos"][0]), int(case.values["slot"][0]) if "slot" in case.dtypes else 0
    cache = np.empty((1, case.dims["B"], case.dims["L"]))
    gone = place_of(cache, slot, pos, np.asarray(case.values["page_table"]) if "page_table" in case.dtypes else None) is None
    return np.full(case.dims["T"], gone)


def weights(rng, shape):
    """As a model's: rows whose products are about as large as what enters them."""
    return rng.standard_normal(shape) / np.sqrt(shape[-1])


def codes(rng, shape):
    return rng.standard_normal(shape) * 20


def near_one(rng, shape):
    return 1 + 0.2 * rng.standard_normal(shape)


def of_codes(dims):
    """What e4m3 matrices hold, and their scales: rows of one matrix up to 16 times as large as others."""
    row = lambda columns: lambda rng, shape: 0.5 ** rng.uniform(1, 5, shape) / 5 / np.sqrt(columns)  # noqa: E731
    return {p: codes for p in COLUMNS} | {p + "_scale": row(dims[k]) for p, k in COLUMNS.items()}


COLUMNS = {"qkv": "H", "o": "A", "gate_up": "H", "down": "M"}
E4M3 = dict.fromkeys(COLUMNS, "e4m3") | {p + "_scale": "f32" for p in COLUMNS}

DRAWN = {"qkv": weights, "o": weights, "gate_up": weights, "down": weights, "attn_norm": near_one, "mlp_norm": near_one, "q_norm": near_one, "k_norm": near_one, "inv_freq": frequencies}
ALWAYS = {"x": "bf16", "attn_norm": "bf16", "qkv": "bf16", "o": "bf16", "mlp_norm": "bf16", "gate_up": "bf16", "down": "bf16", "inv_freq": "f32", "k_cache": "bf16", "v_cache": "bf16", "pos": "i32", "words": "i32", "out": "bf16"}
NORMS, SCRATCH = {"q_norm": "bf16", "k_norm": "bf16"}, ("words",)


def dims_of(N, H, Hq, Hkv, D, M, L, *, B=1, S=None, P=None):
    return {"T": 1, "N": N, "H": H, "Q": (Hq + 2 * Hkv) * D, "A": Hq * D, "M": M, "D": D, "Hkv": Hkv, "B": B, "L": L, "R": D // 2, "W": words_of(H, Hq * D, Hkv * D, M), **({"S": S, "P": P} if P else {})}


def derived_dims(dims, case):
    """What follows from other dims, for searches of calls."""
    Hkv, D = dims["Hkv"], dims["D"]
    A = case.dims["A"] // (case.dims["Hkv"] * case.dims["D"]) * Hkv * D
    return dims | {"T": 1, "N": case.dims["N"], "A": A, "Q": A + 2 * Hkv * D, "R": D // 2, "W": words_of(dims["H"], A, Hkv * D, dims["M"])}


def case(shape, pos, attrs=None, *, ports=None, slot=None, table=None, **options):
    """`table`: pages of a slot, which `shape` counts."""
    values = {**DRAWN, **(of_codes(shape) if ports and "qkv_scale" in ports else {}), "pos": np.array([pos]), "words": lambda rng, shape: np.zeros(shape, int)} | ({"slot": np.array([slot])} if slot is not None else {}) | ({"page_table": np.array(table)} if table is not None else {})
    dtypes = {**ALWAYS, **(ports or {})} | ({"slot": "i32"} if slot is not None else {}) | ({"page_table": "i32"} if table is not None else {}) | ({"rows": "i32"} if "rows" in options else {})
    return Case(shape, dtypes, attrs or {}, values={p: v for p, v in values.items() if p in dtypes}, **{"distributions": ("normal",), **options})


CASES = [
    case(dims_of(2, 128, 4, 2, 64, 192, 90), 70, distributions=("normal", "tiny", "zero", "edges")),
    case(dims_of(3, 64, 4, 1, 64, 64, 64), 0, {"eps": 1e-5}, ports=NORMS, note="the first position of a sequence, an odd number of layers"),
    case(dims_of(2, 192, 3, 3, 64, 320, 130, B=3), 127, ports={**NORMS, "qkv_bias": "f32"}, slot=2, note="biases; the last position of a stage of keys"),
    case(dims_of(1, 128, 8, 2, 128, 256, 64, B=7, S=2, P=3), 191, {"attn_factor": 1.2}, ports={"qkv_bias": "bf16"}, slot=1, table=[[6, 3, 1], [2, 5, 0]], note="pages, the last position of them"),
    case(dims_of(2, 128, 4, 2, 64, 128, 128, B=9, S=2, P=4), 300, slot=0, table=[[6, -1, 1, -1], [2, 5, 0, 9]], ports=NORMS, note="large pages, of which some do not exist"),
    case(dims_of(1, 64, 2, 2, 64, 64, 200, B=2), 200, slot=1, note="a position without a place"),
    case(dims_of(1, 64, 2, 2, 64, 64, 80, B=2), 64, slot=1, rows=1),
    case(dims_of(2, 576, 9, 3, 64, 1536, 256), 200, note="SmolLM2-135M"),
    case(dims_of(2, 128, 4, 2, 64, 192, 90), 70, ports=E4M3, distributions=("normal", "zero")),
    case(dims_of(2, 576, 9, 3, 64, 1536, 256), 200, ports=E4M3, note="rows of e4m3 that are no whole number of lines"),
    case(dims_of(1, 1024, 16, 8, 128, 3072, 300), 250, ports={**E4M3, **NORMS}, note="stages of keys are larger than those of e4m3 weights"),
    case(dims_of(1, 896, 14, 2, 64, 4864, 80), 65, ports={**E4M3, "qkv_bias": "f32"}, note="e4m3; a last piece of a row that is shorter"),
    case(dims_of(1, 2048, 32, 8, 64, 8192, 70), 66, ports=E4M3, note="Llama-3.2-1B in e4m3"),
    case(dims_of(1, 1024, 16, 8, 128, 3072, 1100), 1030, ports=NORMS, note="Qwen3-0.6B: a head's splits have one stage each, and one has two"),
    case(dims_of(1, 2048, 32, 8, 64, 8192, 70), 66, note="Llama-3.2-1B: a kernel of the gate's list"),
    case(dims_of(1, 896, 14, 2, 64, 4864, 80), 65, ports={"qkv_bias": "bf16"}, note="Qwen2.5-0.5B: seven query heads a kv head, a last piece of a row that is shorter"),
]


def fit(d):
    """Shapes that the kernel takes."""
    d.dims["T"], d.dims["R"] = 1, d.dims["D"] // 2
    d.together("q_norm", "k_norm")
    d.together(*(p + "_scale" for p in COLUMNS))
    for p in COLUMNS:
        d.dtypes[p] = "e4m3" if d.has("qkv_scale") else "bf16"
    group = d.pick((1, 2, 3, 4, 4, 7, 8))
    d.dims["A"] = group * d.dims["Hkv"] * d.dims["D"]
    d.dims["Q"] = d.dims["A"] + 2 * d.dims["Hkv"] * d.dims["D"]
    for s in "HM":
        d.multiple(s, 64)
    d.dims["W"] = words_of(d.dims["H"], d.dims["A"], d.dims["Hkv"] * d.dims["D"], d.dims["M"])
    if d.has("page_table"):
        d.dims["L"] = 64 * d.pick((1, 1, 1, 2))
        d.dims["B"] = max(1, d.dims["S"] * d.dims["P"] + d.pick((-1, 0, 0, 1)))
    else:
        d.dims["L"] *= d.pick((1, 4, 16))


def contents(d, rng):
    """Weights as a model has them, a position of the cache or just behind it, pages of one owner."""
    from tests.op_data import shape_of
    from tests.differential.draw import case_of
    made = case_of(d, 0)
    drawn = DRAWN | (of_codes(d.dims) if d.has("qkv_scale") else {})
    out = {p: f(rng, shape_of("decode_layers", p, made)) for p, f in drawn.items() if d.has(p)}
    out["words"] = np.zeros(d.dims["W"], np.int64)
    slots = d.dims["S"] if d.has("page_table") else d.dims["B"]
    places = d.dims["L"] * (d.dims["P"] if d.has("page_table") else 1)
    out["pos"] = np.array([rng.integers(0, places) if rng.random() < 0.8 else rng.choice([0, min(63, places - 1), min(64, places - 1), places - 1, places, -1])])
    out["slot"] = np.array([rng.integers(0, slots) if rng.random() < 0.9 else rng.choice([-1, slots])])
    if d.has("page_table"):
        table = rng.permutation(max(d.dims["B"], d.dims["S"] * d.dims["P"]))[: d.dims["S"] * d.dims["P"]].reshape(d.dims["S"], d.dims["P"])
        out["page_table"] = np.where(rng.random(table.shape) < 0.1, -1, table) if rng.random() < 0.3 else table
    return out


DOMAIN = Domain(fit=fit, contents=contents, attrs={"eps": (1e-5,), "attn_factor": (1.2, 0.9)}, sizes={"N": (1, 2, 3), "H": (64, 128, 192, 320, 576), "M": (64, 128, 320, 576), "D": (64, 64, 128), "Hkv": (1, 2, 3), "B": (1, 2, 3), "S": (1, 2, 3), "P": (1, 2, 5), "L": (20, 64, 65), "T": (1,), **dict.fromkeys("QARW", (1,))},
                distributions=("normal", "normal", "tiny", "edges", "zero"), aligned=True, whole={"k_cache": ("Hkv", "D"), "v_cache": ("Hkv", "D")},
                work=lambda d: d.dims["N"] * (d.dims["H"] * (d.dims["Q"] + d.dims["A"] + 3 * d.dims["M"]) + d.dims["A"] * d.dims["L"] * (d.dims["P"] if d.has("page_table") else 1) * 8), weight=2)
