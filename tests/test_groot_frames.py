"""GR00T's cameras of any size: what the vision tower sees of a frame against the processors' own arithmetic (tests/reference/groot_frames.py, rows that lerobot computed, OpenCV where it is installed)."""
import json
import shutil

import numpy as np
import pytest

import vivace
from tests.packed import packed_tensors
from tests.reference import groot_frames as reference
from tests.test_groot import DEVICE, FIXTURE, IMAGE
from tests.test_groot_n16 import FIXTURE as N16

SIZES = FIXTURE.parent / "preprocess"
RELEASED = dict(image_target_size=[256, 256], image_crop_size=[230, 230], shortest_image_edge=256, crop_fraction=0.95, use_albumentations=True)
RULES = {
    "released": RELEASED,
    "letterbox": RELEASED | dict(letter_box_transform=True),
    "small edge": dict(shortest_image_edge=97, crop_fraction=0.9, use_albumentations=True),  # few ties; Qwen3-VL's processor wants 256 x 256 pixels at least
    "lerobot": dict(image_target_size=[256, 256], image_crop_size=[230, 230]),
    "not square": dict(image_target_size=[224, 320], shortest_image_edge=200, crop_fraction=0.9, letter_box_transform=True),
}


def policy(tmp_path, rules, fixture=FIXTURE, **options):
    """The fixture beside a processor's rules; None: without the file."""
    path = tmp_path / "checkpoint"
    if not path.exists():
        shutil.copytree(fixture, path)
    (path / "processor_config.json").unlink(missing_ok=True)
    if rules is not None:
        (path / "processor_config.json").write_text(json.dumps({"processor_kwargs": rules}))
    return vivace.load_model(path, **{"statistics": "none", "precision": "f32", "num_views": 1, "device": DEVICE, "threads": 2 * (DEVICE == "cpu"), "embodiment": 0, **options})


def given(*frames, state=20):
    return dict(images=list(frames), prompt=[5, *[IMAGE] * sum(f is not None for f in frames), 6], state=np.zeros(state, np.float32), seed=0)


def seen(model, frame, h, w, side):
    """What the vision tower sees, [h, w, 3], put together from patches in their order."""
    patch = side // 2
    patches = {name: v for name, _, v in model.observe(**given(frame, state=20 if side == 32 else 10))}["pixels"][:h * w // patch ** 2]
    return patches.reshape(h // side, w // side, 2, 2, patch, patch, 3).transpose(0, 2, 4, 1, 3, 5, 6).reshape(h, w, 3)


def frame(rng, h, w):
    """Coarse blocks below fine noise: filters differ in both."""
    coarse = rng.integers(0, 200, (h // 16 + 1, w // 16 + 1, 3)).repeat(16, 0).repeat(16, 1)[:h, :w]
    return (coarse + rng.integers(0, 56, (h, w, 3))).astype(np.uint8)


def expected(x, rules, n16, **more):
    kind = "area" if rules.get("use_albumentations") else "bilinear" if n16 else "bicubic"
    side = 28 if n16 else 32
    return reference.processed(x, kind, side, 4 * side * side if n16 else 65536, **rules, **more), side


def drawn(rng, n, most=1.7):
    """Sizes of cameras: about as many upright as wide, none wider than 16 : 9 or so."""
    for _ in range(n):
        short, ratio = int(rng.integers(40, 700)), rng.uniform(1, most)
        size = (short, int(short * ratio))
        yield size[::-1] if rng.random() < 0.5 else size


@pytest.mark.parametrize("name,fixture", [(name, FIXTURE) for name in RULES] + [("released", N16), ("bilinear", N16)], ids=lambda v: v if isinstance(v, str) else v.name)
def test_against_float64(tmp_path, name, fixture):
    """Of drawn sizes. A sum in f32 may fall on the other side of a tie: one level here and there, which the next steps spread over neighbours."""
    n16, rng = fixture == N16, np.random.default_rng(11)
    rules = RULES.get(name) or dict(image_target_size=[224, 252], image_crop_size=[201, 230])
    with policy(tmp_path, rules, fixture) as model:
        assert model.report()["resize"] == ("area" if rules.get("use_albumentations") else "bilinear" if n16 else "bicubic")
        for h, w in [(480, 640), (256, 256), *drawn(rng, 6)]:
            x = frame(rng, h, w)
            want, side = expected(x, rules, n16)
            got = seen(model, x, *want.shape[:2], side)
            off = np.abs(got.astype(int) - want)
            assert off.max() <= 2 and (off > 0).mean() < 0.02, (h, w, off.max(), (off > 0).mean())


def test_against_lerobot(tmp_path):
    """Level by level: rows that lerobot's two ways made (torch 2.6, OpenCV)."""
    want, images = packed_tensors(SIZES / "expected_groot.safetensors"), packed_tensors(SIZES / "inputs.safetensors")
    images["image_480x640"] = np.concatenate([packed_tensors(SIZES / f"image_480x640_{part}.safetensors")["rows"] for part in ("top", "bottom")])
    rules = RULES["lerobot"]
    with policy(tmp_path, rules) as torch, policy(tmp_path, rules | dict(use_albumentations=True)) as opencv:
        for size in ("224x224", "480x640", "200x123"):
            got = seen(torch, images[f"image_{size}"], 256, 256, 32)[want["rows"]]
            off = np.abs(got.astype(int) - want[f"{size}.torch"])
            assert off.max() <= 1 and off.sum() <= 1, size  # a tie in f32
        assert np.array_equal(seen(opencv, images["image_224x224"], 256, 256, 32)[want["rows"]], want["224x224.area"])
        rows = reference.pillow(want["480x640.area"], len(want["rows"]), 352, reference.Image.Resampling.BICUBIC)  # 341 wide: to the language model's tokens, columns alone
        assert np.array_equal(seen(opencv, images["image_480x640"], 256, 352, 32)[want["rows"]], rows)


@pytest.mark.parametrize("name", ["released", "letterbox", "small edge"])
def test_against_opencv(tmp_path, name):
    """Bit for bit, where it is installed (pip install opencv-python-headless; seen with 5.0)."""
    cv2 = pytest.importorskip("cv2")
    rng = np.random.default_rng(12)
    with policy(tmp_path, RULES[name]) as model:
        for h, w in [(480, 640), (512, 512), (768, 768), (97, 97), (194, 194), (256, 300), *drawn(rng, 30)]:
            x = frame(rng, h, w)
            want, side = expected(x, RULES[name], False, area=lambda x, h, w: cv2.resize(x, (w, h), interpolation=cv2.INTER_AREA))
            assert np.array_equal(seen(model, x, *want.shape[:2], side), want), (h, w)


def test_frames_of_every_form(tmp_path):
    """Rows with room between them, several sizes in a call and a batch, and each image token standing: the same as one dense frame."""
    rng = np.random.default_rng(13)
    x, y = frame(rng, 300, 400), frame(rng, 200, 180)
    with policy(tmp_path, RELEASED, num_views=2, batch=2) as model:
        want = model.predict(**given(x, y))
        wide = np.zeros((300, 500, 3), np.uint8)
        wide[:, 50:450] = x
        assert np.array_equal(model.predict(**given(wide[:, 50:450], y)), want)
        both = model.predict_batch([given(x, y), given(None, x)])
        assert np.array_equal(both[0], want) and np.array_equal(both[1], model.predict(**given(None, x)))
        each = [5, *[IMAGE] * (8 * 11), *[IMAGE] * (9 * 8), 6]  # 256 x 352 and 288 x 256 pixels
        assert np.array_equal(model.predict(**given(x, y) | {"prompt": each}), want)
        with pytest.raises(vivace.InvalidArgumentError, match="161 times.* each of their 160 tokens"):
            model.predict(**given(x, y) | {"prompt": [*each, IMAGE]})


def test_the_networks_own_size_goes_the_same_way(tmp_path):
    """A frame of 256 x 256 is cropped as all are, unless it is asked not to be."""
    x = frame(np.random.default_rng(14), 256, 256)
    with policy(tmp_path, RELEASED) as cropped, policy(tmp_path, RELEASED, resize="none") as raw, policy(tmp_path, None) as bare, policy(tmp_path, {}) as silent:
        assert [m.report()["resize"] for m in (cropped, raw, bare, silent)] == ["area", "none", "none", "none"]
        assert np.array_equal(seen(raw, x, 256, 256, 32), x) and np.array_equal(raw.predict(**given(x)), bare.predict(**given(x)))
        assert not np.array_equal(cropped.predict(**given(x)), raw.predict(**given(x)))
        assert cropped.report()["image"] == [256, 448] and raw.report()["image"] == [256, 256]
    with policy(tmp_path, RELEASED, resize="bicubic") as other:
        assert other.report()["resize"] == "bicubic"


@pytest.mark.parametrize("h,w,message", [(1, 4096, "becomes more pixels"), (4096, 1, "becomes more pixels"), (200, 500, "more pixels than 256 x 448"), (4097, 16, "1 to 4096 rows"), (16, 4097, "1 to 4096 rows")])
def test_frames_that_it_cannot_take(tmp_path, h, w, message):
    with policy(tmp_path, RELEASED) as model:
        with pytest.raises(vivace.InvalidShapeError, match=message):
            model.predict(**given(np.zeros((h, w, 3), np.uint8)))
        with pytest.raises(vivace.InvalidShapeError, match="frame"):
            model.predict(**given(np.zeros((0, w, 3), np.uint8)))
        assert np.isfinite(model.predict(**given(np.zeros((48, 64, 3), np.uint8)))).all()


def test_slivers_in_a_square(tmp_path):
    """A letterbox takes any shape."""
    with policy(tmp_path, RULES["letterbox"]) as model:
        for h, w in ((1, 1), (1, 700), (700, 1)):
            x = frame(np.random.default_rng(15), h, w)
            want, side = expected(x, RULES["letterbox"], False)
            assert np.abs(seen(model, x, 256, 256, side).astype(int) - want).max() <= 2, (h, w)


@pytest.mark.parametrize("rules,options,error,message", [
    (RELEASED | dict(image_target_size=[256]), {}, vivace.CorruptDataError, r"image_target_size.*wanted \[height, width\]"),
    (RELEASED | dict(image_target_size=[256, 0]), {}, vivace.CorruptDataError, "wanted 1 to 4096 pixels, got 0"),
    (RELEASED | dict(image_crop_size="x"), {}, vivace.CorruptDataError, "image_crop_size"),
    (RELEASED | dict(shortest_image_edge=5000), {}, vivace.CorruptDataError, "shortest_image_edge"),
    (RELEASED | dict(shortest_image_edge=4096), {}, vivace.CorruptDataError, "more than 4096 pixels"),
    (RELEASED | dict(crop_fraction=1.5), {}, vivace.CorruptDataError, r"crop_fraction.*share in \(0, 1\]"),
    (RELEASED | dict(crop_fraction=float("nan")), {}, vivace.CorruptDataError, "."),
    (RELEASED | dict(use_albumentations="yes"), {}, vivace.CorruptDataError, "use_albumentations"),
    (dict(image_target_size=[256, 256], image_crop_size=[300, 256]), dict(resize="bilinear"), vivace.CorruptDataError, "image_crop_size is beyond"),
    (RELEASED, dict(resize="openpi"), vivace.InvalidArgumentError, "groot_n17 has auto, none, area, bicubic and bilinear"),
    (dict(shortest_image_edge=256), dict(resize="bicubic"), vivace.NotFoundError, "bicubic needs image_target_size of processor_kwargs"),
    (None, dict(resize="area"), vivace.NotFoundError, 'or shortest_image_edge.*resize="none"'),
])
def test_rules_that_are_wrong(tmp_path, rules, options, error, message):
    with pytest.raises(error, match=message):
        policy(tmp_path, rules, **options)
