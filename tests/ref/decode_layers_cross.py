"""Reference of `decode_layers_cross`: float64, layer by layer, without the roundings between; the bound follows them."""
from math import erf

import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to, rounding
from tests.ref.decode_layers import SPLITS, left_alone as place_left_alone, near_one, place_of, times, unit, weights

D = 64
_erf = np.vectorize(erf, otypes=[float])


def words_of(H, M):
    lines = lambda n: -(-n // 32) * 32  # noqa: E731
    return 32 + 2 * (6 * lines(H) + lines(3 * H) + lines(M) + 2 * H * SPLITS * 2)


def norm(x, var, weight, bias, eps):
    """The layer norm, and the variance of what it is off by: x is rounded to 15 bits, its mean falls with it, what comes out is rounded to bf16."""
    away = x - x.mean()
    inv = 1 / np.sqrt((away * away).mean() + eps)
    y = away * inv * weight + bias
    var = var + unit(x, 16)
    # To first order the norm takes out what lies along 1 and along the row itself, so that each part alone is more than enough; f32 sums of squares give 20 bits.
    return y, (var + var.mean()) * (weight * inv) ** 2 + unit(away * inv * weight, 16) + unit(y, 8)


def attend(q, q_off, keys, values, keys_off, values_off):
    """Heads [n, D] over keys [places, n, D], and their variance: as in decode_layers."""
    out, off = np.zeros_like(q), np.zeros_like(q)
    for h in range(len(q)):
        s = keys[:, h] @ q[h] / np.sqrt(D)
        p = np.exp(s - s.max())
        p /= p.sum()
        out[h] = p @ values[:, h]
        away = p[:, None] * (values[:, h] - out[h])
        moves = away.T @ keys[:, h] / np.sqrt(D)  # of out by q
        score = keys_off[:, h] @ (q[h] ** 2) / D + (np.abs(s) * 2.0**-15) ** 2 / 12 + 2.0**-34
        off[h] = (moves**2) @ q_off[h] + (away**2).T @ score + (p**2) @ values_off[:, h] + unit(out[h], 8) + unit(np.abs(out[h]) + np.abs(values[:, h]).max(0), 15)
    return out.reshape(-1), off.reshape(-1)


def parts_of(inputs):
    """{part: [N, ...]} of the joined ports."""
    H, M = inputs["x"].shape[1], inputs["up"].shape[1]
    ends = np.cumsum([3 * H, H, H, H, M])
    return {n: inputs["norms"].reshape(-1, 3, H)[:, i] for i, n in enumerate(NORMS)} | {n + "_bias": inputs["norm_biases"].reshape(-1, 3, H)[:, i] for i, n in enumerate(NORMS)} | \
        {m + "_bias": b for m, b in zip(MATRICES, np.split(inputs["biases"], ends, axis=1))}


def gone(inputs):
    slot, window = (int(inputs[p][0]) if p in inputs else 0 for p in ("slot", "window"))
    return place_of(inputs["k_cache"], slot, int(inputs["pos"][0]), inputs.get("page_table")) is None or not 0 <= window < inputs["cross_k"].shape[1]


def walk(inputs, attrs):
    """(row, its variance, what else is written with its variance) behind all layers, or None where nothing is."""
    eps = attrs.get("eps", 1e-5)
    if not len(inputs["x"]) or gone(inputs):
        return None
    pos, table = int(inputs["pos"][0]), inputs.get("page_table")
    slot, window = (int(inputs[p][0]) if p in inputs else 0 for p in ("slot", "window"))
    place = place_of(inputs["k_cache"], slot, pos, table)
    k_cache, v_cache = inputs["k_cache"].copy(), inputs["v_cache"].copy()
    k_var, v_var = np.zeros_like(k_cache), np.zeros_like(v_cache)
    N, H = len(inputs["qkv"]), inputs["x"].shape[1]
    small = parts_of(inputs)
    seen = [(j, p) for j in range(pos + 1) if (p := place_of(k_cache, slot, j, table)) is not None]
    at = tuple(np.array([p for _, p in seen]).T)
    queries, q_var = np.zeros((N, 1, H)), np.zeros((N, 1, H))
    r, var = inputs["x"][0] + (inputs["add"][0] if "add" in inputs else 0), np.zeros(H)

    def product(port, n, y, off):
        y, off = times(inputs[port][n], y, off)
        y = y + small[port + "_bias"][n]
        return y, off + unit(y, 16)

    def normed(port, n):
        return norm(r, var, small[port][n], small[port + "_bias"][n], eps)

    for n in range(N):
        qkv, off = product("qkv", n, *normed("attn_norm", n))
        (q, k, v), (q_off, k_off, v_off) = (x.reshape(3, -1, D) for x in (qkv, off + unit(qkv, 8)))
        k_cache[n][place], v_cache[n][place], k_var[n][place], v_var[n][place] = k, v, k_off, v_off
        out, off = product("o", n, *attend(q, q_off, *(c[n][at] for c in (k_cache, v_cache, k_var, v_var))))
        r, var = r + out, var + off
        q, off = product("cross_q", n, *normed("cross_norm", n))
        off = off + unit(q, 8)
        queries[n, 0], q_var[n, 0] = q, off
        heard = [inputs[p][n, window] for p in ("cross_k", "cross_v")]
        none = np.zeros_like(heard[0])
        out, off = product("cross_o", n, *attend(q.reshape(-1, D), off.reshape(-1, D), *heard, none, none))
        r, var = r + out, var + off
        u, off = product("up", n, *normed("mlp_norm", n))
        half = (1 + _erf(u / np.sqrt(2))) / 2
        # The kernel's error function is within 1.5e-7, its exponential and reciprocal within 2^-22.
        off = off * (half + u * np.exp(-u * u / 2) / np.sqrt(2 * np.pi)) ** 2 + unit(u * half, 8) + unit(u * half, 15) + (u * 4e-7) ** 2
        out, off = product("down", n, u * half, off)
        r, var = r + out, var + off
    return r, var, {"k_cache": (k_cache, k_var), "v_cache": (v_cache, v_var), "queries": (queries, q_var)}


def ref(*, dtypes, eps=1e-5, **inputs):
    done = walk(inputs, {"eps": eps})
    written = [p for p in ("k_cache", "v_cache", "queries") if p in dtypes]
    if done is None:
        return {"out": np.full(inputs["x"].shape, np.nan)} | {p: inputs[p] if p in inputs else np.full((len(inputs["qkv"]), 1, inputs["x"].shape[1]), np.nan) for p in written}
    return {"out": round_to(done[0], dtypes["out"])[None]} | {p: round_to(done[2][p][0], dtypes[p]) for p in written}


def bound(port, value, dtype, inputs):
    """As decode_layers': ten standard deviations of roundings that are many and fall independently of each other, and the value's own rounding."""
    done = walk(inputs, inputs.attrs)
    if done is None:
        return np.zeros_like(value)
    var = done[1][None] if port == "out" else done[2][port][1]
    return 10 * np.sqrt(var) + np.where(var > 0, rounding(value, dtype), 0) + (0 if port in ("k_cache", "v_cache") else 1e-30)


def left_alone(port, case):
    """A position or window without a place: nothing is written."""
    if port not in ("out", "queries") or "pos" not in case.values:
        return None
    deaf = "window" in case.dtypes and not 0 <= int(case.values["window"][0]) < case.dims["C"]
    placeless = place_left_alone("out", case)
    none = bool(placeless[0]) or deaf
    return np.full(case.dims["T"], none) if port == "out" else np.full(case.dims["N"], none or (case.rows is not None and case.rows <= 0))


MATRICES = ("qkv", "o", "cross_q", "cross_o", "up", "down")
NORMS = ("attn_norm", "cross_norm", "mlp_norm")


def small(rng, shape):
    return 0.1 * rng.standard_normal(shape)


DRAWN = {**{m: weights for m in MATRICES}, "norms": near_one, "norm_biases": small, "biases": small}
ALWAYS = {"x": "bf16", "norms": "f32", "norm_biases": "f32", "biases": "bf16", **{m: "bf16" for m in MATRICES}, **{p: "bf16" for p in ("k_cache", "v_cache", "cross_k", "cross_v")}, "pos": "i32", "words": "i32", "out": "bf16"}
SCRATCH, MORE = ("words",), {"add": "bf16", "queries": "bf16"}


def dims_of(N, heads, M, L, F, *, C=1, B=1, S=None, P=None):
    H = heads * D
    return {"T": 1, "N": N, "H": H, "M": M, "Hq": heads, "D": D, "B": B, "L": L, "C": C, "F": F, "V": 7 * H + M, "W": words_of(H, M), **({"S": S, "P": P} if P else {})}


def derived_dims(dims, case):
    """What follows from other dims, for searches of calls."""
    return dims | {"T": 1, "N": case.dims["N"], "H": dims["Hq"] * D, "D": D, "V": 7 * dims["Hq"] * D + dims["M"], "W": words_of(dims["Hq"] * D, dims["M"])}


def case(shape, pos, attrs=None, *, ports=None, slot=None, window=None, table=None, **options):
    """`table`: pages of a slot, which `shape` counts."""
    given = {"slot": slot, "window": window}
    values = {**DRAWN, "pos": np.array([pos]), "words": lambda rng, shape: np.zeros(shape, int)} | {p: np.array([v]) for p, v in given.items() if v is not None} | ({"page_table": np.array(table)} if table is not None else {})
    dtypes = {**ALWAYS, **(ports or {})} | {p: "i32" for p, v in given.items() if v is not None} | ({"page_table": "i32"} if table is not None else {}) | ({"rows": "i32"} if "rows" in options else {})
    return Case(shape, dtypes, attrs or {}, values={p: v for p, v in values.items() if p in dtypes}, **{"distributions": ("normal",), **options})


SCATTERED = [[(7 * i + 3) % 96 for i in range(96)]]  # pages of one place, anywhere
CASES = [
    case(dims_of(2, 2, 192, 90, 100), 70, ports=MORE, distributions=("normal", "tiny", "edges"), note="a stage of what is heard that ends within"),
    case(dims_of(3, 1, 64, 64, 64), 0, {"eps": 1e-6}, note="the first position of a sequence, an odd number of layers"),
    case(dims_of(2, 3, 320, 1, 130, B=96, S=1, P=96, C=3), 77, ports=MORE, slot=0, window=2, table=SCATTERED, note="pages of one place, as Whisper's; the last of three windows"),
    case(dims_of(1, 2, 192, 16, 33, B=7, S=2, P=3), 47, ports=MORE, slot=1, table=[[6, 3, 1], [2, 5, 0]], note="pages, the last position of them"),
    case(dims_of(2, 2, 192, 32, 70, B=9, S=2, P=4), 75, slot=0, table=[[6, -1, 1, -1], [2, 5, 0, 9]], note="pages of which some do not exist"),
    case(dims_of(1, 2, 192, 80, 64, B=2), 80, ports=MORE, slot=1, note="a position without a place"),
    case(dims_of(1, 2, 192, 80, 64, B=2, C=2), 8, ports=MORE, slot=1, window=2, note="a window that is not there"),
    case(dims_of(1, 2, 192, 80, 64, B=2), 64, ports=MORE, slot=1, rows=1),
    case(dims_of(2, 6, 1536, 448, 1500), 30, ports=MORE, note="tiny: a row whose warps have no equal shares"),
    case(dims_of(1, 20, 5120, 100, 1500), 99, ports=MORE, note="large and turbo"),
    case(dims_of(1, 16, 4096, 70, 300), 66, note="medium: a kernel of the gate's list"),
    case(dims_of(1, 12, 3072, 70, 300), 9, note="small: a kernel of the gate's list"),
    case(dims_of(1, 8, 2048, 70, 1030), 65, note="base: a head's splits have one stage each, and one has two"),
]


def fit(d):
    """Shapes that the op takes."""
    d.dims["T"], d.dims["D"], d.dims["H"] = 1, D, d.dims["Hq"] * D
    d.multiple("M", 64)
    d.dims["V"], d.dims["W"] = 7 * d.dims["H"] + d.dims["M"], words_of(d.dims["H"], d.dims["M"])
    if d.has("page_table"):
        d.dims["L"] = d.pick((1, 1, 16, 20))
        d.dims["B"] = max(1, d.dims["S"] * d.dims["P"] + d.pick((-1, 0, 0, 1)))
    else:
        d.dims["L"] *= d.pick((1, 4, 16))


def contents(d, rng):
    """Weights as a model has them, a position of the cache or just behind it, pages of one owner."""
    from tests.op_data import shape_of
    from tests.differential.draw import case_of
    made = case_of(d, 0)
    out = {p: f(rng, shape_of("decode_layers_cross", p, made)) for p, f in DRAWN.items() if d.has(p)}
    out["words"] = np.zeros(d.dims["W"], np.int64)
    slots = d.dims["S"] if d.has("page_table") else d.dims["B"]
    places = d.dims["L"] * (d.dims["P"] if d.has("page_table") else 1)
    within = lambda n: rng.integers(0, n) if rng.random() < 0.9 else rng.choice([-1, n])  # noqa: E731
    out |= {p: np.array([within(n)]) for p, n in (("pos", places), ("slot", slots), ("window", d.dims["C"])) if d.has(p)}
    if d.has("page_table"):
        table = rng.permutation(max(d.dims["B"], d.dims["S"] * d.dims["P"]))[: d.dims["S"] * d.dims["P"]].reshape(d.dims["S"], d.dims["P"])
        out["page_table"] = np.where(rng.random(table.shape) < 0.1, -1, table) if rng.random() < 0.3 else table
    return out


DOMAIN = Domain(fit=fit, contents=contents, attrs={"eps": (1e-6,)}, sizes={"N": (1, 2, 3), "Hq": (1, 2, 3, 5), "M": (64, 128, 320, 576), "D": (64,), "B": (1, 2, 3), "S": (1, 2, 3), "P": (1, 2, 5), "L": (20, 64, 65), "C": (1, 2), "F": (1, 63, 64, 65, 200), "T": (1,), **dict.fromkeys("HVW", (1,))},
                distributions=("normal", "normal", "tiny", "edges", "zero"), aligned=True, whole={"cross_k": ("Hq", "D"), "cross_v": ("Hq", "D")},
                work=lambda d: d.dims["N"] * (d.dims["H"] * (6 * d.dims["H"] + 2 * d.dims["M"]) + d.dims["H"] * (d.dims["F"] + d.dims["L"] * (d.dims["P"] if d.has("page_table") else 1)) * 8), weight=2)
