"""Attention with a full mask, which kernels of their own serve where tokens of a slot see the same: the bits of the kernel that looks at each
token, which a prefix mask picks whose prefix is all places. Needs --device cuda."""
import pytest

from tests.op_data import device

if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

import torch  # noqa: E402

from vivace import _core, ops  # noqa: E402

BF16, F16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
I32 = {"dtype": torch.int32, "device": "cuda"}
HOPPER = torch.cuda.get_device_capability() == (9, 0)
TALL, TMA = "attention_prefill_tall<", "attention_prefill_tma<"
RUNS = (37, 100, 1, 250, 64, 3, 129, 90, 2, 31, 256, 255, 257)
# Queries, slots, places, query and kv heads, head size, the kernel.
SHAPES = {
    "Whisper's encoder": (1500, 1, 1500, 20, 20, 64, TALL),
    "8 windows of it": (12000, 8, 1500, 20, 20, 64, TALL),
    "a query less": (1499, 1, 1500, 12, 12, 64, TALL),
    **{f"{T} queries": (T, 1, 1024, 15, 15, 64, TALL) for T in (1279, 1280, 1281)},  # beside five tiles
    "grouped": (1040, 1, 1100, 32, 2, 64, TALL),
    "tokens across tiles": (1030, 1, 1025, 17, 1, 64, TALL),
    "three windows": (3100, 3, 1200, 6, 6, 64, TALL),
    "few tiles": (1500, 1, 1500, 5, 5, 64, TMA),
    "SigLIP": (512, 2, 256, 16, 16, 72, TMA),
    "SigLIP, three views": (768, 3, 256, 16, 16, 72, TMA),
    "heads of 128": (700, 2, 500, 32, 8, 128, TMA),
    "Gemma's prefix": (576, 1, 576, 8, 1, 256, TMA),
    "heads of 256, many tiles": (3000, 3, 400, 8, 2, 256, TMA),
}


def call(name, dtype=BF16, slots=False, lengths=None, out=None, rows=None, **more):
    """Arguments without mask and outputs; what lies beyond a length is NaN."""
    T, S, L, Hq, Hkv, D, _ = SHAPES[name]
    g = torch.Generator(device="cuda").manual_seed(T + L)
    rand = lambda *shape: torch.randn(*shape, generator=g, device="cuda").to(dtype)  # noqa: E731
    given = {"q": rand(T, Hq, D), "k": rand(S, L, Hkv, D), "v": rand(S, L, Hkv, D)} | more
    if slots == "runs":  # in any order, one of no slot among them
        counts = torch.tensor(RUNS * (T // sum(RUNS) + 1), device="cuda")
        given["slot"] = (torch.arange(len(counts), **I32) * 5 % (S + 1)).repeat_interleave(counts)[:T].contiguous()
    elif slots or S > 1:
        given["slot"] = torch.arange(S, **I32).repeat_interleave(T // S + 1)[:T].contiguous()
    if lengths:
        given["length"] = torch.tensor([lengths[s % len(lengths)] for s in range(S)], **I32)
        for s in range(S):
            for x in (given["k"], given["v"]):
                x[s, lengths[s % len(lengths)] :] = torch.nan
    if out:
        given["out_scale"] = torch.tensor([0.011], device="cuda")
    if rows is not None:
        given["rows"] = torch.tensor([rows], **I32)
    return given


def both(name, dtype=BF16, out=None, **how):
    T, S, L, Hq, _, D, kernel = SHAPES[name]
    given = call(name, dtype, out=out, **how)
    results = []
    for mask in ({"mask": "prefix", "prefix": torch.full((S,), L, **I32)}, *[{"mask": "full"}] * 3):
        outs = {"out": torch.full((T, Hq, D), 7.0, device="cuda").to(out or dtype), "lse": torch.full((T, Hq), 7.0, device="cuda")}
        if HOPPER:
            picked = _core.picked_kernel("attention", 90, **given, **outs, **mask)
            assert (kernel if mask["mask"] == "full" else TMA) in picked, picked
        ops.attention(**given, **outs, **mask)
        torch.cuda.synchronize()
        results.append([x.view(torch.uint8) for x in outs.values()])
        assert not any(x.float().isnan().any() for x in outs.values())
    for again in results[1:]:
        for port, x, y in zip(("out", "lse"), results[0], again):
            assert torch.equal(x, y), f"{port}: {(x != y).sum()} of {x.numel()} bytes are others"


@pytest.mark.parametrize("name", SHAPES)
def test_bits(name):
    both(name)
    both(name, slots=True)


@pytest.mark.parametrize("name", SHAPES)
def test_bits_of_runs(name):
    """Tiles with many runs, less rows than queries, lengths of all kinds."""
    T, _, L, *_ = SHAPES[name]
    both(name, slots="runs", rows=T - 5)
    both(name, slots="runs", lengths=(129, 0, 1, L, 17, L - 1))


@pytest.mark.parametrize("length", [0, 1, 2, 80, 81, 127, 128, 129, 255, 256, 257])
@pytest.mark.parametrize("name", ["a query less", "tokens across tiles", "SigLIP", "Gemma's prefix"])
def test_bits_beside_blocks(name, length):
    both(name, lengths=(min(length, SHAPES[name][2]),))


@pytest.mark.parametrize("name", ["Whisper's encoder", "grouped", "SigLIP", "heads of 128", "Gemma's prefix"])
@pytest.mark.parametrize("dtype, out", [(BF16, E4M3), (F16, None), (F16, E4M3)])
def test_bits_of_types(name, dtype, out):
    both(name, dtype, out=out, sinks=torch.linspace(-3, 3, SHAPES[name][3], device="cuda"))


@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 1499, 1500, 4000])
def test_bits_of_rows(rows):
    both("Whisper's encoder", rows=rows)
