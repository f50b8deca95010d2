"""`resize_pad` against what openpi's client (Pillow) and lerobot (torch) made of the same frames; with `--device cuda` on
a GPU. What it makes of sizes and types of its own is in tests/ref/resize_pad.py."""
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import vivace
from tests.op_data import device
from tests.packed import packed_tensors
from vivace import ops

PRE = Path(__file__).parent / "fixtures" / "vla" / "preprocess"
SIZES = ["480x640", "200x123", "150x250", "224x224"]


def picture(size):
    if size == "480x640":
        return np.concatenate([packed_tensors(PRE / f"image_{size}_{part}.safetensors")["rows"] for part in ("top", "bottom")])
    return packed_tensors(PRE / "inputs.safetensors")[f"image_{size}"]


def resized(frames, shape, dtype, **attrs):
    """Images of frames [T, H, W, C], computed where the tests run."""
    out = np.empty(shape, dtype)
    if device is None:
        ops.resize_pad(x=frames, out=out, **attrs)
        return out
    import torch

    there = torch.from_numpy(out).cuda()
    ops.resize_pad(x=torch.from_numpy(np.ascontiguousarray(frames)).cuda(), out=there, **attrs)
    return there.cpu().numpy()


@pytest.mark.parametrize("size", SIZES)
def test_frames_match_both_references(size):
    rows = load_file(PRE / "expected.safetensors")
    frame = picture(size)[None]
    openpi, lerobot = (resized(frame, (1, 224, 224, 3), t, filter=f)[0] for t, f in ((np.uint8, "triangle"), (np.float32, "linear")))
    assert (openpi[rows["u8_rows"]] == packed_tensors(PRE / "expected_openpi.safetensors")[f"{size}.openpi_u8_rows"]).all()
    np.testing.assert_allclose(lerobot[rows["float_rows"]], packed_tensors(PRE / "expected_lerobot.safetensors")[f"{size}.lerobot_f32_rows"], rtol=0, atol=2e-6)


@pytest.mark.parametrize("frame, out, message", [
    ((1, 129, 9, 3), (1, 1, 1, 3), "shrinks at most 128 times, 129 x 9 to 1 x 1 is 129; shrink in two calls"),
    ((1, 0, 9, 3), (1, 4, 4, 3), "port x: wanted a pixel and a channel at least, got 0 x 9 of 3"),
    ((1, 9, 9, 3), (1, 4, 0, 3), "port out: wanted a pixel and a channel at least, got 4 x 0 of 3"),
])
def test_what_cannot_be_resized(frame, out, message):
    with pytest.raises((vivace.UnsupportedError, vivace.InvalidShapeError), match=message):
        resized(np.zeros(frame, np.uint8), out, np.uint8)
