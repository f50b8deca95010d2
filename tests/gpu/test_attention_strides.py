"""Attention of models' shapes over keys and values in the rows of the product that made them: the bits of dense copies, by every
kernel that takes both. Needs --device cuda."""
import pytest

from tests.op_data import device

if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

import torch  # noqa: E402

from vivace import _core, ops  # noqa: E402

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
# Rows, slots of as many rows (0: ragged), query and kv heads, head size, queries a slot (None: all rows), dtypes of queries and keys, attributes.
SHAPES = {
    "Whisper's encoder": (3000, 2, 20, 20, 64, None, BF16, BF16, {"mask": "full"}),
    "Whisper's encoder, one window": (1500, 1, 20, 20, 64, None, F16, F16, {"mask": "full"}),
    "GR00T's actions": (51, 1, 32, 32, 48, None, BF16, BF16, {"mask": "full"}),
    "GR00T's actions of two": (102, 2, 32, 32, 48, None, BF16, BF16, {"mask": "full"}),
    "SigLIP": (512, 2, 16, 16, 72, None, BF16, BF16, {"mask": "full"}),
    "adapter, ragged": (620, 0, 32, 32, 64, None, BF16, BF16, {"mask": "full"}),
    "causal, grouped": (700, 1, 32, 8, 128, None, BF16, BF16, {}),
    "steps": (4096, 4, 32, 8, 128, 1, BF16, BF16, {"mask": "full"}),
    "steps over e4m3": (4096, 4, 32, 8, 128, 1, BF16, torch.float8_e4m3fn, {"mask": "full"}),
    "steps with a soft cap": (1024, 4, 8, 2, 128, 1, BF16, BF16, {"mask": "full", "softcap": 20.0}),
    "prefill with a soft cap": (300, 1, 8, 2, 128, None, BF16, BF16, {"softcap": 20.0}),
    "f32": (130, 1, 4, 2, 64, None, F32, F32, {}),
}


@pytest.mark.parametrize("page", [0, 8, 16, 64])
@pytest.mark.parametrize("name", SHAPES)
def test_of_one_product(name, page):
    """page: keys are pages of as many places, which lie apart like them."""
    T, slots, Hq, Hkv, D, queries, dtype, kv, attrs = SHAPES[name]
    if page and (slots == 0 or T // slots % page != 0):
        pytest.skip("no whole pages")
    torch.manual_seed(T)
    qkv = torch.randn(T, (Hq + 2 * Hkv) * D, device="cuda")
    wide = qkv.to(dtype)
    q = wide[:, : Hq * D].view(T, Hq, D)
    k, v = (x.unflatten(1, (Hkv, D)) for x in (qkv if kv == F32 else qkv.to(kv))[:, Hq * D :].split(Hkv * D, 1))
    i32 = {"dtype": torch.int32, "device": "cuda"}
    given = {}
    if slots == 0:
        given = {"k_offsets": torch.tensor([0, 100, 100, T], **i32), "slot": torch.tensor([0, 2], **i32).repeat_interleave(torch.tensor([100, T - 100], device="cuda"))}
    elif slots > 1:
        given = {"slot": torch.arange(slots, **i32).repeat_interleave(queries or T // slots)}
    if queries:
        q = q[: slots * queries]
    if page:
        given["page_table"] = torch.randperm(T // page, device="cuda").to(torch.int32).view(slots, -1)
    block = lambda x: x.unflatten(0, (-1, page) if page else (max(slots, 1), -1))  # noqa: E731
    results, kernels = [], []
    capability = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
    for copy in (lambda x: x, lambda x: x.contiguous()):
        parts = [copy(q), copy(block(k)), copy(block(v))]
        out, lse = torch.full((len(q), Hq, D), torch.nan, dtype=dtype, device="cuda"), torch.full((len(q), Hq), torch.nan, device="cuda")
        call = dict(q=parts[0], k=parts[1], v=parts[2], out=out, lse=lse, **given, **attrs)
        kernels.append(_core.picked_kernel("attention", capability, **call))
        ops.attention(**call)
        torch.cuda.synchronize()
        assert out.float().isfinite().all()
        results.append((out, lse))
    if kernels[0] == kernels[1]:
        assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    else:  # stream takes dense positions alone
        assert "attention_stream" in kernels[1]
        torch.testing.assert_close(*(r[0] for r in results), rtol=2**-7, atol=2**-7)
        torch.testing.assert_close(*(r[1] for r in results), rtol=1e-4, atol=1e-4)
