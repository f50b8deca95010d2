"""FlashInfer's names of sampling over ops.sample, ops.renorm_probs, ops.softmax and ops.sample_chain.

A row's noise follows from (seed, row, offset): the same three give the same token on every device. Without a seed one is drawn from
`generator`, a torch.Generator or a numpy.random.Generator, or from the library's own.
"""
import numpy as np

from vivace import ops
from vivace.compat.arrays import beside, cast, check, dense, dtype_like, empty, f32, is_torch, moved, where
from vivace.errors import InvalidArgumentError, InvalidShapeError

GATHERED = 1 << 28  # values of rows that a call gathers at once for its indices
_SEED, _ROW, _OFFSET = (int(np.uint64(n).astype(np.int64)) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _i64(x, like):
    """[1] or [T] i64 of a number or an array."""
    if not hasattr(x, "shape"):
        return beside(np.array([int(x) & (1 << 64) - 1], np.uint64).view(np.int64), like)
    if len(x.shape) > 1:
        raise InvalidShapeError(f"flashinfer: seed and offset: wanted a number or [1] or [rows], got {list(x.shape)}")
    return cast(x.reshape(-1), dtype_like("int64", like))


def _drawn(generator, like):
    if is_torch(like):
        import torch

        return torch.randint(0, 1 << 62, (1,), generator=generator, device=like.device if generator is None else generator.device).to(like.device)
    bits = np.random.randint(0, 1 << 62, 1, np.int64) if generator is None else generator.integers(0, 1 << 62, 1)
    return np.asarray(bits, np.int64)


def _noise(T, like, generator, seed, offset, stream=0):
    """Ports seed [T] i64 and step [T] i32 of ops.sample. `stream`: which of one call's several draws."""
    if seed is None and offset is not None:
        raise InvalidArgumentError("flashinfer: offset without seed: give both or neither")
    base = _drawn(generator, like) if seed is None else _i64(seed, like)
    shift = _i64(0 if offset is None else offset, like)
    for name, x in (("seed", base), ("offset", shift)):
        if x.shape[0] not in (1, T):
            raise InvalidShapeError(f"flashinfer: {name} has {x.shape[0]} entries for {T} rows: wanted 1 or {T}")
    with np.errstate(over="ignore"):
        rows = beside(np.arange(T, dtype=np.int64), like) if not is_torch(like) else _rows(T, like)
        key = base * _SEED + (rows + stream * (1 << 40)) * _ROW + (shift >> 31) * _OFFSET
        step = cast(shift & 0x7FFFFFFF, dtype_like("int32", like)) + cast(rows * 0, dtype_like("int32", like))
    return {"seed": key, "step": step}


def _rows(T, like):
    import torch

    return torch.arange(T, dtype=torch.int64, device=like.device)


def _matrix(x, name):
    if len(check(x, name).shape) != 2:
        raise InvalidShapeError(f"flashinfer: {name} is {list(x.shape)}: wanted [rows, vocabulary]")
    return x


def _by_row(value, T, like, kind, name):
    """[T] of a number or of an array of one a row; None where it narrows nothing."""
    if value is None:
        return None
    if hasattr(value, "shape") and len(value.shape) > 0:
        if len(value.shape) != 1:
            raise InvalidShapeError(f"flashinfer: Expected a 1D tensor or scalar for {name}, got {list(value.shape)}")
        if value.shape[0] != T:
            raise InvalidShapeError(f"flashinfer: {name} has {value.shape[0]} entries for {T} rows")
        return cast(value, dtype_like(kind, like))
    if is_torch(like):
        import torch

        return torch.full((T,), min(float(value), 2.0**31 - 1) if kind == "float32" else min(int(value), 2**31 - 1), dtype=getattr(torch, kind), device=like.device)
    return np.full(T, value if kind == "float32" else min(int(value), 2**31 - 1), kind)


def _refuse_nan(x, name, wanted):
    if wanted and bool((x != x).any()):
        raise InvalidArgumentError(f"flashinfer: Input {name} contains NaN.")


def _ones(T, like):
    return _by_row(1.0, T, like, "float32", "temperature")


def _draw(logits, indices, noise, check_valid=False, **narrow):
    """Tokens [T] by the logits' softmax; with indices, row t draws from row indices[t], of which as many are gathered at once as GATHERED values hold."""
    V, T = logits.shape[1], (logits if indices is None else indices).shape[0]
    token = empty((T,), logits, dtype_like("int32", logits))
    ports = {n: _by_row(v, T, logits, "int32" if n == "top_k" else "float32", n) for n, v in narrow.items()}
    ports = {n: p for n, p in ports.items() if p is not None} | {"temperature": _ones(T, logits), "token": token} | (_noise(T, logits, *noise) if T else {})
    at = None if indices is None else cast(moved(indices, logits), dtype_like("int64", logits))
    step = T if at is None else max(1, GATHERED // max(1, V))
    for begin in range(0, T, max(1, step)):
        some = slice(begin, min(T, begin + step))
        ops.sample(dense(logits if at is None else logits[at[some]]), **{n: p[some] for n, p in ports.items()})
    token = token if indices is None else cast(token, indices.dtype)
    return (where(token < 0, token * 0, token), token >= 0) if check_valid else token


def _logs(probs):
    """Logits of probabilities; of 0 those of tokens that cannot come."""
    probs = cast(probs, f32(probs))
    if is_torch(probs):
        return probs.log()
    with np.errstate(divide="ignore"):
        return np.log(probs)


def softmax(logits, temperature=None, enable_pdl=None, **workspace):
    """[T, V] in f32: softmax(logits / temperature), a number or one a row."""
    x, out = _matrix(logits, "logits"), empty(tuple(logits.shape), logits, f32(logits))
    scale = 1.0
    if hasattr(temperature, "shape"):
        x = cast(x, f32(x)) / _by_row(temperature, x.shape[0], x, "float32", "temperature")[:, None]
    elif temperature is not None:
        if not temperature > 0:
            raise InvalidArgumentError(f"flashinfer: temperature: wanted more than 0, got {temperature}")
        scale = 1.0 / temperature
    if 0 not in x.shape:
        ops.softmax(dense(x), out=out, scale=scale)
    return out


def sampling_from_logits(logits, indices=None, deterministic=True, generator=None, check_nan=False, seed=None, offset=None):
    """A token a row [T] i32, by softmax(logits)."""
    _refuse_nan(_matrix(logits, "logits"), "logits", check_nan)
    return _draw(logits, indices, (generator, seed, offset))


def _kept(probs, top_k=None, top_p=None, min_p=None):
    """What the limits leave of each row, judged by the probabilities as they are: logarithms of near ones are equal. A NaN
    stays, so that its row gives no token."""
    x = cast(probs, f32(probs))
    if 0 in x.shape or all(v is None for v in (top_k, top_p, min_p)):
        return x
    if min_p is None:
        limits = {"top_k": ("int32", top_k), "top_p": ("float32", top_p)}
        kept = _renormed(x, **{n: _by_row(v, x.shape[0], x, kind, n) for n, (kind, v) in limits.items() if v is not None})
    else:
        most = x.amax(-1) if is_torch(x) else x.max(-1)
        kept = where(x >= (_by_row(min_p, x.shape[0], x, "float32", "min_p").clip(max=1) * most)[:, None], x, x * 0)
    return where(x != x, x, kept)


def _from_probs(probs, indices, noise, check_nan, return_valid, **narrow):
    _refuse_nan(_matrix(probs, "probs"), "probs", check_nan)
    if indices is not None and any(hasattr(v, "shape") and len(v.shape) > 0 for v in narrow.values()):  # limits of the draws, not of the rows
        probs, indices = probs[cast(moved(indices, probs), dtype_like("int64", probs))], None
    return _draw(_logs(_kept(probs, **narrow)), indices, noise, return_valid)


def sampling_from_probs(probs, indices=None, deterministic=True, generator=None, check_nan=False, seed=None, offset=None, return_valid=False):
    """A token a row [T] i32, by probs [rows, V], which need not sum to 1; -1 where a row has nothing to draw. return_valid:
    (tokens, whether there was something to draw), and 0 where there was not."""
    return _from_probs(probs, indices, (generator, seed, offset), check_nan, return_valid)


def top_p_sampling_from_probs(probs, top_p, indices=None, deterministic=True, generator=None, check_nan=False, seed=None, offset=None, return_valid=False):
    """The same from the fewest most probable tokens with a share of top_p, a number or one a row."""
    return _from_probs(probs, indices, (generator, seed, offset), check_nan, return_valid, top_p=top_p)


def top_k_sampling_from_probs(probs, top_k, indices=None, deterministic=True, generator=None, check_nan=False, seed=None, offset=None, return_valid=False):
    """The same from the top_k most probable tokens, ties to the lower id."""
    return _from_probs(probs, indices, (generator, seed, offset), check_nan, return_valid, top_k=top_k)


def min_p_sampling_from_probs(probs, min_p, indices=None, deterministic=True, generator=None, check_nan=False, seed=None, offset=None, return_valid=False):
    """The same from tokens of at least min_p times the most probable one's."""
    return _from_probs(probs, indices, (generator, seed, offset), check_nan, return_valid, min_p=min_p)


def _joint(probs, top_p, order):
    """probs, or, where both limits are of the whole distribution, what top_p keeps: top_k then takes the first of these."""
    if order not in ("top_k_first", "joint"):
        raise InvalidArgumentError(f"flashinfer: filter_apply_order is top_k_first or joint, got {order!r}")
    return top_p_renorm_probs(probs, top_p) if order == "joint" else probs


def top_k_top_p_sampling_from_probs(probs, top_k, top_p, indices=None, filter_apply_order="top_k_first", deterministic=True, generator=None, check_nan=False, seed=None, offset=None, return_valid=False):
    """Both: top_p of what top_k keeps, or, "joint", each of the whole distribution. With indices, top_k and top_p are of the draws; joint takes none then."""
    if filter_apply_order == "joint" and indices is not None:
        probs, indices = probs[cast(indices, dtype_like("int64", probs))], None
    kept = _joint(probs, top_p, filter_apply_order)
    return _from_probs(kept, indices, (generator, seed, offset), check_nan, return_valid, top_k=top_k, top_p=top_p if kept is probs else None)


def top_k_top_p_sampling_from_logits(logits, top_k, top_p, indices=None, filter_apply_order="top_k_first", deterministic=True, generator=None, check_nan=False, seed=None, offset=None):
    """top_k_top_p_sampling_from_probs() of softmax(logits)."""
    if filter_apply_order == "top_k_first":
        _refuse_nan(_matrix(logits, "logits"), "logits", check_nan)
        return _draw(logits, indices, (generator, seed, offset), top_k=top_k, top_p=top_p)
    return top_k_top_p_sampling_from_probs(softmax(logits), top_k, top_p, indices, filter_apply_order, deterministic, generator, check_nan, seed, offset)


def _renormed(probs, **narrow):
    x = cast(_matrix(probs, "probs"), f32(probs))
    out = empty(tuple(x.shape), x)
    if 0 not in x.shape:
        ops.renorm_probs(dense(x), out=out, **narrow)
    return cast(out, probs.dtype)


def top_p_renorm_probs(probs, top_p, is_deterministic=False):
    """The fewest most probable tokens with a share of top_p, over their sum; 0 elsewhere."""
    return _renormed(probs, top_p=_by_row(top_p, _matrix(probs, "probs").shape[0], probs, "float32", "top_p"))


def top_k_renorm_probs(probs, top_k):
    """The top_k most probable tokens, ties to the lower id, over their sum; 0 elsewhere."""
    return _renormed(probs, top_k=_by_row(top_k, _matrix(probs, "probs").shape[0], probs, "int32", "top_k"))


def top_k_mask_logits(logits, top_k):
    """logits with -inf below the top_k largest of a row; equals of the last of them stay. By the array library's sort."""
    T, V = _matrix(logits, "logits").shape
    k = cast(_by_row(top_k, T, logits, "int32", "top_k"), dtype_like("int64", logits)).clip(1, V)[:, None] - 1
    if is_torch(logits):
        least = logits.sort(-1, descending=True).values.gather(1, k)
    else:
        least = np.take_along_axis(np.sort(logits, -1)[:, ::-1], k, 1)
    return logits.masked_fill(logits < least, float("-inf")) if is_torch(logits) else np.where(logits < least, np.array(-np.inf, logits.dtype), logits)


def chain_speculative_sampling(draft_probs, draft_token_ids, target_probs, maybe_output_accepted_token_num=None, maybe_output_emitted_draft_token_num=None, deterministic=True,
                               generator=None, seed=None, offset=None):
    """(tokens [B, N + 1], accepted [B], emitted [B]): the accepted prefix of draft_token_ids [B, N], the token after it, then -1; how many of
    the draft would be accepted each for itself; the prefix's length. Counts that are given are added to in place."""
    B, N, V = check(draft_probs, "draft_probs").shape
    draft, i32 = cast(draft_token_ids, dtype_like("int32", draft_probs)), dtype_like("int32", draft_probs)
    tokens, emitted = empty((B, N + 1), draft_probs, i32), empty((B,), draft_probs, i32)
    noise = (generator, seed, offset) if seed is not None else (None, _drawn(generator, draft_probs), None)
    q, p = cast(draft_probs, f32(draft_probs)), cast(target_probs, f32(target_probs))
    if B > 0:
        ops.sample_chain(dense(draft), dense(q), dense(p), tokens=tokens, accepted=emitted, **_noise(B, q, *noise))
    accepted = emitted
    if B > 0 and N > 0:
        # Tokens behind the first that was refused are judged for themselves: a draw of two outcomes each.
        at = cast(draft, dtype_like("int64", q)).clip(0, V - 1)[..., None]
        p_at, q_at = ((x.gather(2, at) if is_torch(x) else np.take_along_axis(x, at, 2)).reshape(-1) for x in (p[:, :N], q))
        ratio = where(q_at > 0, (p_at / where(q_at > 0, q_at, q_at + 1)).clip(0, 1), cast(p_at > 0, f32(q)))
        both = empty((B * N, 2), q)
        both[:, 0], both[:, 1] = ratio, 1 - ratio
        each = [x if x is None or not hasattr(x, "shape") or x.shape[0] == 1 else x.repeat_interleave(N) if is_torch(x) else np.repeat(x, N) for x in noise[1:]]
        yes = empty((B * N,), q, i32)
        ops.sample(_logs(both), token=yes, temperature=_ones(B * N, q), **_noise(B * N, q, noise[0], *each, stream=1))
        later = _rows(N, q) if is_torch(q) else np.arange(N)
        accepted = cast(emitted + cast((yes.reshape(B, N) == 0) & (later[None] > emitted[:, None]), i32).sum(-1), i32)
    out = []
    for given, x in ((maybe_output_accepted_token_num, accepted), (maybe_output_emitted_draft_token_num, emitted)):
        if given is None:
            out.append(x)
        else:
            given += cast(x, given.dtype)
            out.append(given)
    return tokens, *out
