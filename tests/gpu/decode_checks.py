"""What decode_layers and decode_layers_cross promise alike, of a Step of either (decode_case.py, cross_case.py): their tests beside this."""
import pytest
import torch

from tests.gpu.decode_case import bits_apart
from tests.op_data import device
from vivace.errors import UnsupportedError


def same(a, b, what):
    assert torch.equal(a.view(torch.int16), b.view(torch.int16)), f"{what}: other bits, {(a.view(torch.int16) != b.view(torch.int16)).sum()} of {a.numel()}"


def rms(x):
    return x.float().pow(2).mean().sqrt()


def one_place_differs(step, want, context):
    """The caches are the host's but for one place, where roundings have gone the other way."""
    for cache in ("k_cache", "v_cache"):
        a, b = step.given[cache].cpu(), want[cache]
        there = (a.view(torch.int16) != b.view(torch.int16)).reshape(a.shape[0], a.shape[1], a.shape[2], -1).any(-1).any(0)
        assert there.sum() <= 1, f"context {context}: {cache} differs at {there.nonzero().tolist()}"
        assert (a.float() - b.float()).abs().max() < 0.06 * b.float().abs().max()


def same_bits_each_time(step, layers, context, behind):
    """`behind`: contexts of steps whose places lie behind this one's."""
    first = step(context).clone()
    outs = [step(context, torch.full_like(first, 7)) for _ in range(300)]
    for i, out in enumerate(outs):
        same(out, first, f"step {i}")
    for other in behind:
        step(other)
    same(step(context), first, "behind others")
    step.given["words"].zero_()
    step.given["words"][0] = -5
    for i in range(5):
        same(step(context), first, f"turn {-5 + i * layers}")


def replayed(op, step, contexts):
    """Two steps in a graph, an eager one between replays."""
    first = {context: step(context).clone() for context in contexts}
    out = {context: torch.zeros_like(first[context]) for context in first}
    pos = {context: torch.tensor([context - 1], dtype=torch.int32, device="cuda") for context in first}
    with device.Capture() as graph:
        for context in first:
            op(**step.given | {"pos": pos[context], "out": out[context]})
    for turn in range(40):
        for o in out.values():
            o.fill_(3)
        graph.replay()
        for context in first:
            same(out[context], first[context], f"replay {turn}")
        same(step(contexts[0]), first[contexts[0]], f"behind replay {turn}")


def onto_its_own_row(op, step):
    want = step(200).clone()
    row = step.given["x"].clone()
    op(**step.given | {"x": row, "out": row})
    same(row, want, "in place")


def held_up(shape, bits, folder, script):
    """The bits of steps whose warps are held up three ways, each its own."""
    want, counts = bits(shape), [n << 16 for n in (17, 18, 19)]
    for count, got in zip(counts, bits_apart(shape, counts, folder, script), strict=True):
        assert got == want, f"other bits with the delays from turn {count} on"


def only_its_place_is_written(step, context, page, unseen=()):
    """What lies behind the position, and `unseen`, holds no numbers, and pages behind it are not there; all but one place stays as it was."""
    want = step(context).clone()
    table, caches = step.given["page_table"], (step.given["k_cache"], step.given["v_cache"])
    pages, at = -(-context // page), (context - 1) % page
    others = torch.ones(caches[0].shape[1], dtype=torch.bool, device="cuda")
    others[table[1, :pages].long()] = False
    last = int(table[1, pages - 1])
    for cache in caches:
        cache[:, others] = float("nan")
        cache[:, last, at:] = float("nan")
    for part in unseen:
        part.fill_(float("nan"))
    table[0] = -1
    table[1, pages:] = -1
    before = [cache.clone() for cache in caches]
    same(step(context), want, "with no numbers behind the position")
    for cache, old in zip(caches, before):
        changed = (cache.view(torch.int16) != old.view(torch.int16)).reshape(*cache.shape[:3], -1).any(-1)
        assert changed.any(0).nonzero().tolist() == [[last, at]] and changed[:, last, at].all()


def nothing_without_a_place(op, step, rows, written, **changed):
    """`changed`: ports and what they hold for a step that leaves `written` as it is; the next has its bits."""
    want = step(100).clone()
    held, kept = ({p: step.given[p].clone() for p in ports} for ports in (written, changed))
    for p, v in changed.items():
        step.given[p].fill_(v)
    op(**step.given, rows=torch.tensor([rows], dtype=torch.int32, device="cuda"))
    for p, before in held.items():
        assert torch.equal(step.given[p].view(torch.int16), before.view(torch.int16)), f"{p} has changed"
    for p, before in kept.items():
        step.given[p].copy_(before)
    same(step(100), want, "behind it")


def refuses_a_row_off_16_bytes(op, step):
    odd = step.given | {"x": torch.empty(1, 129, dtype=torch.bfloat16, device="cuda")[:, 1:]}
    with pytest.raises(UnsupportedError, match="16 bytes"):
        op(**odd)
