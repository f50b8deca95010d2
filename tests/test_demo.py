"""`vivace demo reach`: the policy does what the words say, as PyTorch would with its weights, and its picture is one.
On a GPU, in every precision, over 500 seeds: tools/reach/measure.py."""
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import vivace
from vivace.cache import CacheWarning
from vivace.demo import arm, picture, reach, weights

DEVICE = os.environ.get("VIVACE_TEST_DEVICE", "cpu")
DEVICE = DEVICE if DEVICE.startswith("cuda") else "cpu"
THREADS = 2 * (DEVICE == "cpu")
FIXTURE = json.loads((Path(__file__).parent / "fixtures" / "reach.json").read_text())


def demo(*args):
    return subprocess.run([sys.executable, "-m", "vivace.cli", "demo", "reach", *args], capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def policy():
    with reach.load(DEVICE, "f32", threads=THREADS) as p:
        yield p


def observation(seed, **more):
    scene = arm.scene(seed)
    return dict(images=list(arm.Cameras(reach.SIDE).frames(scene, scene.start)[0]), prompt=reach.words_of(scene), state=scene.start[0], **more)


def test_actions_are_those_of_pytorch(policy):
    for seed, ids, want in zip(FIXTURE["seeds"], FIXTURE["ids"], FIXTURE["actions"]):
        given = observation(seed, noise=np.random.default_rng(seed).standard_normal((reach.HORIZON, 8)).astype(np.float32))
        assert policy._tokens(given["prompt"], given["state"]) == ids
        policy.predict(**given)
        np.testing.assert_allclose(policy.normalized(), want, rtol=0, atol=1e-4)  # seen 4e-6


def test_it_reaches_what_it_is_told_to(policy):
    episodes, seconds = reach.run(policy, range(30))
    assert sum(e.reached for e in episodes) >= 27
    for e in episodes:  # what is said to be reached was, after moves an arm can make
        path = np.array(e.path)
        assert (path >= arm.LOW).all() and (path <= arm.HIGH).all() and abs(np.diff(path, axis=0)).max() <= arm.STEP + 1e-9
        inside = np.linalg.norm(arm.tip(np, path) - e.scene.things[0, 0], axis=-1) < arm.RADIUS
        assert inside[-1] == e.reached and not inside[:-1].any()
    assert len(seconds) == sum(-(-e.steps // reach.USED) for e in episodes)


def test_the_words_decide(policy):
    episodes, _ = reach.run(policy, range(6), told=1)
    assert sum(e.reached for e in episodes) <= 1
    near = [np.linalg.norm(arm.tip(np, e.path[-1]) - e.scene.things[0, 1]) < 2 * arm.RADIUS for e in episodes]
    assert sum(near) >= 5


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_it_reaches_in_fewer_bits(precision):
    with reach.load(DEVICE, precision, threads=THREADS) as p:
        episodes, _ = reach.run(p, range(6))
    assert sum(e.reached for e in episodes) >= 5


def test_an_episode_depends_on_its_seed_alone(policy):
    alone, _ = reach.run(policy, [4])
    with reach.load(DEVICE, "f32", batch=3, threads=THREADS) as several:
        together, _ = reach.run(several, [3, 4, 5], batch=3)
    assert np.array_equal(alone[0].path, together[1].path)


def test_scenes_can_be_solved():
    made = arm.scenes(np, np.random.default_rng(0).random((500, arm.NUMBERS)))
    np.testing.assert_allclose(arm.tip(np, made.goal), made.things[:, 0], atol=1e-12)
    assert all(len(set(c)) == arm.THINGS for c in made.colour.tolist())
    q = made.start
    for _ in range(reach.STEPS):
        q = arm.turned(q, arm.chunk(np, q, made.goal, 1)[:, 0])
    assert np.linalg.norm(arm.tip(np, q) - made.things[:, 0], axis=-1).max() < arm.RADIUS
    colours = list(arm.COLOURS)
    for seed in range(20):
        asked = arm.scene(seed, colours.index("purple"))
        assert asked.colour[0, 0] == colours.index("purple") and len(set(asked.colour[0].tolist())) == arm.THINGS


def test_the_second_camera_sees_what_the_first_cannot():
    """A thing moved along the first camera's axis stays where it was there, and moves in the second."""
    scene, cameras = arm.scene(0), arm.Cameras(64)
    moved = scene._replace(things=scene.things + 0.3 * cameras.turn[0, 2])
    colour = np.array(list(arm.COLOURS.values()))[scene.colour[0, 0]]

    def middles(s):  # of the named thing's colour in each view, in pixels
        return [np.argwhere(np.abs(view.astype(float) - colour).max(-1) < 60).mean(0) for view in cameras.frames(s, s.start)[0]]

    (before, above), (before_now, above_now) = middles(scene), middles(moved)
    assert np.abs(before - before_now).max() < 2.5 < 5 < np.abs(above - above_now).max()


def decoded(data):
    """Frames of an animated PNG, composed as a viewer does; the wait of each."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, []
    while at < len(data):
        n, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + n]
        assert struct.unpack(">I", data[at + 8 + n:at + 12 + n])[0] == zlib.crc32(kind + body)
        parts.append((kind, body))
        at += 12 + n
    (_, head), (act, counts) = parts[:2]
    w, h, *depth = struct.unpack(">IIBBBBB", head)
    assert depth == [8, 6, 0, 0, 0] and act == b"acTL" and parts[-1] == (b"IEND", b"")
    canvas, frames, waits, order = np.zeros((h, w, 4), np.uint8), [], [], 0
    for (kind, control), (kind_of_data, body) in zip(parts[2:-1:2], parts[3:-1:2]):
        number, fw, fh, x, y, wait, unit, dispose, blend = struct.unpack(">IIIIIHHBB", control)
        assert kind == b"fcTL" and number == order and unit == 1000 and dispose == 0
        order += 1
        if kind_of_data == b"fdAT":
            assert struct.unpack(">I", body[:4])[0] == order
            order, body = order + 1, body[4:]
        rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(fh, 1 + fw * 4)
        pixels = rows[:, 1:].reshape(fh, fw, 4)
        assert set(rows[:, 0]) <= {0, 1}
        pixels = np.where(rows[:, :1, None] == 1, np.cumsum(pixels, 1, dtype=np.uint8), pixels)
        place = canvas[y:y + fh, x:x + fw]
        place[:] = np.where((pixels[..., 3:] == 0) & (blend == 1), place, pixels)
        frames.append(canvas[..., :3].copy())
        waits.append(wait)
    assert struct.unpack(">II", counts) == (len(frames), 0)
    return frames, waits


def test_a_picture_holds_the_frames_it_was_given(tmp_path):
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (9, 14, 3), np.uint8)]
    for box in (np.s_[2:5, 3:9], np.s_[8:9, 13:14], np.s_[0:0, 0:0], np.s_[:, :]):
        frames.append(frames[-1].copy())
        frames[-1][box] = rng.integers(0, 256, frames[-1][box].shape, np.uint8)
    size = picture.write(tmp_path / "a.png", frames, [10, 20, 30, 40, 50])
    data = (tmp_path / "a.png").read_bytes()
    got, waits = decoded(data)
    assert size == len(data) and waits == [10, 20, 30, 40, 50]
    assert all(np.array_equal(a, b) for a, b in zip(got, frames, strict=True))


def test_the_command(tmp_path):
    out = tmp_path / "arm.apng"
    told = demo("--device", "cpu", "--threads", "2", "--episodes", "2", "--seed", "1", "--goal", "blue", "--out", str(out))
    assert told.returncode == 0, told.stderr
    assert 'reach the blue ' in told.stdout and "p50" in told.stdout and "#" in told.stdout
    frames, _ = decoded(out.read_bytes())
    facts = json.loads(demo("--device", "cpu", "--threads", "2", "--episodes", "2", "--seed", "1", "--goal", "blue", "--json").stdout)
    assert len(frames) == sum(e["steps"] + 1 for e in facts["episodes"]) and facts["success"] == np.mean([e["reached"] for e in facts["episodes"]])
    assert not np.array_equal(frames[0], frames[1])


@pytest.mark.parametrize("args,said", [
    (["--goal", "pink"], "goal: wanted one of red, green"),
    (["--episodes", "0"], "episodes: wanted 1 to"),
    (["--seed", "-1"], "argument --seed: wanted a whole number from 0 to"),
    (["--out", "arm.gif"], "ends with .apng or .png"),
    (["--out", "no/such/folder/arm.png"], "there is no folder"),
    (["--device", "tpu"], "tpu"),
    (["--precision", "f8"], "precision: wanted auto, f32"),
])
def test_bad_input_is_refused_before_anything_runs(args, said):
    got = demo(*args)
    assert got.returncode == (2 if said.startswith("argument ") else 1)  # 2: the command line itself
    assert said in got.stderr and "Traceback" not in got.stderr and not got.stdout, got.stderr


def test_a_picture_that_cannot_be_written(tmp_path):
    (tmp_path / "a.png").mkdir()
    with pytest.raises(vivace.InvalidArgumentError, match="is a folder"):
        reach.check_out(tmp_path / "a.png")
    with pytest.raises(vivace.IoError, match="a.png: Is a directory"):
        picture.write(tmp_path / "a.png", [np.zeros((2, 2, 3), np.uint8)], [10])


def test_no_gpu_is_an_error_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    got = demo("--device", "cuda")
    assert got.returncode == 1 and "driver" in got.stderr and "Traceback" not in got.stderr and not got.stdout


@pytest.mark.parametrize("size,patch", [(112, 15), (8192, 16), (0, 14)])
def test_sizes_of_pictures_that_cannot_be(tmp_path, size, patch):
    for file in weights.unpacked(reach.FOLDER).iterdir():
        shutil.copy(file, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision"] |= {"image_size": size, "patch_size": patch}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(vivace.CorruptDataError, match="image_size"):
        reach.load("cpu", "f32", folder=tmp_path)


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A folder with packed weights, which are bytes of no meaning, and a cache of its own."""
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / weights.NAME).write_bytes(bytes(range(256)) * 300)
    assert weights.unpacked(folder) == folder and not (tmp_path / "cache").exists()
    assert weights.pack(folder) == (folder / f"{weights.NAME}.xz").stat().st_size < 2000
    (folder / weights.NAME).unlink()
    return folder


def test_packed_weights_are_unpacked_once(packed):
    first = weights.unpacked(packed)
    assert {f.name: f.read_bytes() for f in first.iterdir()} == {"config.json": b"{}", weights.NAME: bytes(range(256)) * 300}
    made = (first / weights.NAME).stat().st_mtime_ns
    assert weights.unpacked(packed) == first and (first / weights.NAME).stat().st_mtime_ns == made
    assert sorted(first.parent.iterdir()) == [first, first.with_name(f"{first.name}.digest")]
    (packed / "config.json").write_text("[]")  # other files are another folder
    assert weights.unpacked(packed) != first


@pytest.mark.parametrize("spoil", [lambda data: data[:-40], lambda data: data[:200] + b"\1\2\3" + data[203:], lambda data: b"PK" + data])
def test_packed_weights_that_are_broken(packed, spoil):
    file = packed / f"{weights.NAME}.xz"
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(vivace.CorruptDataError, match="install Vivace again"):
        weights.unpacked(packed)
    assert not list((packed.parent / "cache").rglob(weights.NAME))


def test_packed_weights_and_a_cache_that_cannot_be_written(packed):
    (packed.parent / "cache").write_text("a file, where a folder is wanted")
    with pytest.warns(CacheWarning, match="is not used"):
        folder = weights.unpacked(packed)
    assert (folder / weights.NAME).read_bytes() == bytes(range(256)) * 300 and packed.parent not in folder.parents


def test_the_weights_are_on_the_grid_of_8_bits():
    """A row's largest is e4m3's largest times a power of two, and four bits of the mantissa are zeros: nothing is lost in fp8."""
    data = (weights.unpacked(reach.FOLDER) / weights.NAME).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    head, seen = json.loads(data[8:8 + size]), 0
    for name, about in head.items():
        if name == "__metadata__" or len(about["shape"]) < 2 or (count := int(np.prod(about["shape"]))) < 1 << 12:
            continue
        bits = np.frombuffer(data, np.uint16, count, 8 + size + about["data_offsets"][0])
        rows = np.abs((bits.astype(np.uint32) << 16).view(np.float32)).reshape(about["shape"][0], -1)
        most = rows.max(1)
        assert about["dtype"] == "BF16" and not (bits & 15).any(), name
        assert set(np.frexp(most[most > 0])[0]) == {0.875}, name  # 448 = 0.875 * 2^9
        seen += count
    assert seen > 4_900_000
