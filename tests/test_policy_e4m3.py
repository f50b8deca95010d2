"""Policies from folders whose matrices are e4m3 or FP4 with scales: the actions of the 16-bit values that these stand for, bit for bit. Small drawn
pi0, pi0.5, pi0-FAST and GR00T. On the host or (`pytest --device cuda`) on a GPU. About 10 s."""
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.random_models import e4m3, groot, groot_checks, policy, policy_checks
from tests.test_calibrate import DEVICE
from tests.test_fp4 import read
from tests.test_nvfp4 import quantized, values_of

KINDS = {"pi0": (policy, policy_checks, lambda c: c["family"] == "pi0"), "pi05": (policy, policy_checks, lambda c: c["family"] == "pi05"), "pi0fast": (policy, policy_checks, lambda c: c["family"] == "pi0fast"),
         "groot n1.6": (groot, groot_checks, lambda c: c["n16"]), "groot n1.7": (groot, groot_checks, lambda c: not c["n16"])}
LAYOUTS = ("compressed channel", "compressed f16", "modelopt tensor", "compressed block", "weight_scale_inv", "modelopt fp4", "compressed fp4")


def drawn(kind):
    source, _, wanted = KINDS[kind]
    return next(c for c in map(source.draw, range(1000)) if wanted(c) and len(c["observations"]) > 1)


def stored(name, w, layout, rng):
    """(tensors of a matrix as the layout has them, the 16-bit values)."""
    if layout.endswith("fp4"):
        whole = np.float32(2.0 ** -rng.integers(7, 11))
        codes, block = quantized(w, whole)
        value = values_of(codes, block.astype(np.float32) * whole).astype(ml_dtypes.bfloat16)
        if layout == "modelopt fp4":
            return {name: codes, name + "_scale": block, name + "_scale_2": np.array(whole)}, value
        return {name + "_packed": codes, name + "_scale": block, name + "_global_scale": np.array([1 / whole], np.float32)}, value
    codes, scale = e4m3.quantized(w, "compressed block" if layout == "weight_scale_inv" else layout, rng)
    value = e4m3.values_of(codes, scale).astype(np.float16 if scale.dtype == np.float16 else ml_dtypes.bfloat16)
    return {name: codes, name + ("_scale_inv" if layout == "weight_scale_inv" else "_scale"): scale}, value


def folders(tmp_path, kind, layout):
    """(a folder with scales, one of values, how many matrices are narrow). Of attention, MLPs and projections, as tools choose them."""
    case, rng = drawn(kind), np.random.default_rng(3)
    paths = tmp_path / "narrow", tmp_path / "values"
    for path in paths:
        path.mkdir()
        KINDS[kind][0].write(case, path)
    narrow, values, count = {}, {}, 0
    for name, w in load_file(paths[0] / "model.safetensors").items():
        some = w.ndim == 2 and name.endswith(".weight") and not any(n in name for n in ("embed", "position", "lm_head")) and not (layout.endswith("fp4") and w.shape[1] % 16)
        held, value = stored(name, w.astype(np.float32), layout, rng) if some else ({name: w}, w)
        count += some
        narrow |= held
        values[name] = value
    for path, tensors in zip(paths, (narrow, values)):
        save_file(tensors, path / "model.safetensors")
    return case, *paths, count


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_actions_of_the_values(tmp_path, kind, layout):
    case, narrow, values, count = folders(tmp_path, kind, layout)
    _, checks, _ = KINDS[kind]
    assert count > 8
    for precision in ("f32", "bf16", "fp8"):
        got, want = (checks.ask(checks.load(case | {"precision": precision}, path, DEVICE), case, case["observations"][:1]) for path in (narrow, values))
        assert all(map(policy_checks.equal, got, want)), precision


@pytest.mark.parametrize("kind", ["pi05", "groot n1.7"])
@pytest.mark.parametrize("change, error, match", [
    (lambda t, k: t.pop(k + "_scale"), vivace.UnsupportedError, "is e4m3 without scales in"), (lambda t, k: t.update({k + "_scale": t[k + "_scale"][1:].copy()}), vivace.InvalidShapeError, "weight_scale, a scale a row"),
    (lambda t, k: t.update({k + "_scale": -t[k + "_scale"]}), vivace.CorruptDataError, "wanted positive finite scales"), (lambda t, k: t.update({k + "_scale": np.full_like(t[k + "_scale"], np.nan)}), vivace.CorruptDataError, "wanted positive finite scales"),
    (lambda t, k: t.update({k: t[k][1:].copy()}), vivace.InvalidShapeError, "wanted")])
def test_bad_scales(tmp_path, kind, change, error, match):
    case, narrow, _, _ = folders(tmp_path, kind, "compressed channel")
    tensors = read(narrow / "model.safetensors")
    change(tensors, next(k for k in tensors if k.endswith("q_proj.weight")))
    save_file(tensors, narrow / "model.safetensors")
    with pytest.raises(error, match=match):
        KINDS[kind][1].load(case, narrow, DEVICE)
