"""attention.variant() of expressions on host arrays: NumPy, in float32, one query at a time. What a variant means,
for tests and for machines without a GPU; not fast."""
import numpy as np

from vivace import ops
from vivace.attention_expression import HostTensor, on_host
from vivace.errors import InvalidArgumentError, NotFoundError

_MASKS = ("causal", "prefix", "full", "state")


def run(variant, arguments):
    extra = {}
    for f in variant.fields.values():
        if f.name not in arguments:
            raise InvalidArgumentError(f"attention variant: extra {f.name} is missing")
        extra[f.name] = HostTensor(np.asarray(arguments[f.name])) if f.tensor else np.float32(arguments[f.name]) if f.dtype == "f32" else int(arguments[f.name])
    call = {k: v for k, v in arguments.items() if k not in variant.fields and v is not None}
    if not variant.softmax and ("lse" in call or "sinks" in call):
        raise InvalidArgumentError("attention variant: ports lse and sinks belong to the softmax, which this variant does without")
    ops.cost("attention", **call)  # checks ports and attributes
    _attend(variant, extra, **call)


def _attend(variant, extra, q, k, v, out, pos=None, slot=None, length=None, prefix=None, page_table=None, k_offsets=None, sinks=None, head_scale=None, slopes=None,
            bits=None, bits_from=None, lse=None, rows=None, mask="causal", layout="nhd", window=0, softcap=0.0, scale=0.0):
    if mask not in _MASKS:
        raise NotFoundError(f"attention: mask is one of {', '.join(_MASKS)}, got {mask!r}")
    T = len(q) if rows is None else int(np.clip(rows[0], 0, len(q)))
    if layout == "hnd":
        k, v = np.swapaxes(k, 1, 2), np.swapaxes(v, 1, 2)
    Hq, D = q.shape[1:]
    L, Hkv = k.shape[1:3]
    factor = np.float32(scale or 1 / np.sqrt(D)) * (np.ones(Hq, np.float32) if head_scale is None else head_scale)
    heads = np.arange(Hq)[:, None]
    for t in range(T):
        s, p = (0 if slot is None else int(slot[t])), (t if pos is None else int(pos[t]))
        none = not 0 <= s < (len(k_offsets) - 1 if k_offsets is not None else len(k) if page_table is None else len(page_table))  # such a slot: nothing is visible
        s = 0 if none else s
        keys, values = _places(k, v, s, page_table, k_offsets)
        j = np.arange(len(keys))
        see = j < (0 if none else len(j) if length is None else length[s])
        if mask == "causal" or (mask == "state" and p == prefix[s]):
            see &= j <= p
        elif mask == "prefix":
            see &= (j <= p) | (j < prefix[s])
        elif mask == "state" and p < prefix[s]:
            see &= j < prefix[s]
        if window:
            see &= j > p - window
        if bits is not None:
            b = j - (0 if bits_from is None else bits_from[s])
            word = bits[t].view(np.uint32)[np.clip(b // 32, 0, bits.shape[1] - 1)]
            see &= (b < 0) | ((b // 32 < bits.shape[1]) & (word >> (b % 32).astype(np.uint32) & 1).astype(bool))
        at = extra | {"t": t, "pos": p, "slot": s, "h": heads, "kv": heads // (Hq // Hkv), "j": j[None]}
        x = _edited(variant, "query", q[t].astype(np.float32), at | {"d": np.arange(D)[None]})
        y = _edited(variant, "key", keys.astype(np.float32), {**extra, "slot": s, "kv": np.arange(Hkv)[None, :, None], "j": j[:, None, None], "d": np.arange(D)})
        y, z = (np.repeat(a, Hq // Hkv, 1) for a in (y, values.astype(np.float32)))
        score = np.einsum("hd,jhd->hj", x, y) * factor[:, None]
        if slopes is not None:
            score = score + slopes[:, None] * (j - p).astype(np.float32)
        if softcap:
            score = np.float32(softcap) * np.tanh(score / np.float32(softcap))
        seen = np.broadcast_to(see, score.shape)
        if "mask" in variant.hooks:
            seen = seen & np.asarray(on_host(variant.hooks["mask"], at), bool)
        score = np.broadcast_to(_edited(variant, "logits", score, at, "s"), seen.shape).astype(np.float32)
        weight, total = np.where(seen, score, np.float32(0)), None
        if variant.softmax:
            weight, total = _softmax(np.where(seen, score, -np.inf), sinks)
        result = np.einsum("hj,jhd->hd", weight, np.where(see[:, None, None], z, 0))
        result = _edited(variant, "output", result, at | {"d": np.arange(v.shape[-1])[None]})
        out[t] = result.astype(out.dtype)
        if lse is not None:
            lse[t] = total


def _places(k, v, slot, page_table, k_offsets):
    """Keys and values of a slot by place; zeros where a page does not exist."""
    if k_offsets is not None:
        first, past = (int(x) for x in k_offsets[slot : slot + 2])
        rows = slice(first, past) if first >= 0 else slice(0)
        return k[0, rows], v[0, rows]
    if page_table is None:
        return k[slot], v[slot]
    pages = np.asarray(page_table[slot])
    held = (pages >= 0) & (pages < len(k))

    def gather(a):
        picked = np.where(held[:, None, None, None], a[np.where(held, pages, 0)].astype(np.float32), 0)
        return picked.reshape(-1, *a.shape[2:])

    return gather(k), gather(v)


def _softmax(score, sinks):
    with np.errstate(all="ignore"):
        top = score.max(-1, initial=-np.inf)
        base = np.where(np.isneginf(top), 0, top)
        p = np.exp(score - base[:, None])
        mass = p.sum(-1)
        lse = base + np.log(mass)
        whole = mass if sinks is None else mass + np.exp(sinks - base)
        return np.where(mass[:, None] > 0, p / whole[:, None], 0).astype(np.float32), lse


def _edited(variant, hook, value, at, name="x"):
    return on_host(variant.hooks[hook], at | {name: value}) if hook in variant.hooks else value
