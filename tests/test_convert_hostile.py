"""vivace convert on files that break their formats: thousands of mutations of hub folders, GGUF, CTranslate2 and Orbax trees. Each
either converts or is a vivace.Error, and leaves nothing behind. Files beside the weights that are no files, links that lead
out, and a process that is stopped in the middle."""
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import vivace
from tests import test_ct2, test_orbax
from tests.fuzz.fuzz_text import mutate_bytes, mutate_json
from tests.test_files import UNREADABLE
from vivace import orbax
from vivace.convert import GGUF_DTYPES, convert

TINY = Path(__file__).parent / "fixtures" / "tiny"
FAMILIES = ["llama", "llama_linear", "qwen3_yarn", "gemma3", "gemma3_params", "mixtral", "qwen3_moe", "gpt2", "qwen2"]
VALUES = [None, True, -1, 0, 1, 2**31, 2**64, 1e308, 1e-320, "x", "\ud83d", [], {}, {"a": 1}, ["a"], 0.5, "yarn", "llama3", "linear"]
BEYOND = {"n_layer": 2, "n_embd": 8, "n_inner": 3, "num_experts": 2, "sliding_window": 4, "rope_parameters": {"rope_type": "yarn"}, "query_pre_attn_scalar": 0,
          "rope_scaling": {"rope_type": "llama3"}, "layer_types": ["full_attention"], "head_dim": 3, "rope_local_base_freq": 0, "norm_topk_prob": 1}


def parsed(file):
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def with_header(header, body):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def hub_case(rng, folder, kept):
    family = rng.choice(FAMILIES)
    if family not in kept:
        kept[family] = (json.loads((TINY / family / "config.json").read_text()), *parsed(TINY / family / "model.safetensors"))
    config, header, body = kept[family]
    for _ in range(rng.choice((0, 1, 1, 2))):
        config = mutate_json(config, rng)
    if isinstance(config, dict) and rng.random() < 0.5:
        config = {**config, (key := rng.choice(list(BEYOND))): rng.choice([BEYOND[key], *VALUES])}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if rng.random() < 0.3:
        header = mutate_json(header, rng)
    if rng.random() < 0.1 and isinstance(header, dict):  # a tensor more, of any kind
        header = {**header, "model.more": {"dtype": rng.choice(["I64", "BOOL", "U8", "F64", "F32"]), "shape": rng.choice([[], [0], [1, 0]]), "data_offsets": [len(body)] * 2}}
    data = with_header(header, body)
    (folder / "model.safetensors").write_bytes(mutate_bytes(data, rng, 200) if rng.random() < 0.1 else data)
    if rng.random() < 0.3:
        tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
        (folder / "tokenizer.json").write_text(json.dumps(mutate_json(tokenizer, rng)))
        for name, value in (("tokenizer_config.json", {"bos_token": "a", "chat_template": "x"}), ("generation_config.json", {"eos_token_id": [0, 1]})):
            (folder / name).write_text(json.dumps(mutate_json(value, rng)))
    return folder, rng.choice([*GGUF_DTYPES, "e4m3", "e2m1", "auto"])


def gguf_case(rng, folder, kept):
    family = rng.choice([f for f in FAMILIES if f not in ("gemma3_params", "llama")])
    if family not in kept:
        convert(TINY / family, folder.with_name(f"{family}.gguf"), dtype="f32")
        kept[family] = folder.with_name(f"{family}.gguf").read_bytes()
    folder.mkdir()
    data, at = bytearray(kept[family]), None
    for _ in range(rng.choice((0, 1, 1, 2))):
        data = bytearray(mutate_bytes(bytes(data), rng, 3000))
    if rng.random() < 0.7:  # the value of a key
        at = data.find(rng.choice([b"scale", b"freq_base", b"eps", b"count", b"length", b"factor", b"pattern", b"window", b"architecture"]))
        if at > 0:
            at += rng.randint(8, 24)
            data[at:at + 4] = rng.choice([b"\0\0\0\0", b"\xff\xff\xff\xff", struct.pack("<f", 1e-40), struct.pack("<f", float("nan")), b"\x80\0\0\0"])
    (folder / "m.gguf").write_bytes(data)
    return folder / "m.gguf", rng.choice(["f32", "bf16", "e4m3", "e2m1"])


def ct2_case(rng, folder, kept):
    variables = test_ct2.whisper()
    for _ in range(rng.choice((0, 1, 1, 2))):
        key = rng.choice(list(variables))
        w = variables[key]
        variables[key] = rng.choice([w.reshape(-1), w[None], w.T, np.float32(np.nan), w.astype(np.int8), np.zeros((0, *w.shape[1:]), w.dtype), w.astype(np.int32), np.full_like(w, 40, np.int16), np.zeros(3, np.float32)])
        if rng.random() < 0.2:
            variables.pop(key)
    folder.mkdir()
    data = test_ct2.model_bin(variables)
    (folder / "model.bin").write_bytes(mutate_bytes(data, rng, 3000) if rng.random() < 0.4 else data)
    if rng.random() < 0.5:
        (folder / "config.json").write_text(json.dumps(mutate_json({"alignment_heads": [[1, 1]], "suppress_ids": [1], "suppress_ids_begin": [2]}, rng)))
    return folder, rng.choice(["auto", "f32", "bf16"])


def orbax_case(rng, folder, kept):
    """The tree's arrays alone, not tensorstore's files: those are its own reader's."""
    if not kept:
        for name in ("pi05_tiny", "pi0_tiny", "pi0_fast_tiny"):
            kept[name] = test_orbax.tree_of(test_orbax.weights_of(name))
    tree = dict(kept[rng.choice(list(kept))])
    for _ in range(rng.choice((1, 1, 2))):
        leaf = rng.choice(list(tree))
        w = tree[leaf]
        tree[leaf] = rng.choice([w.reshape(-1), w[None], w[:0], w.T, np.float32(1.0), np.zeros((1,) * w.ndim, np.float32), w[..., :1], np.zeros((2, 3), np.int32)])
        if rng.random() < 0.2:
            tree.pop(leaf)
    (folder / "params").mkdir(parents=True)
    (folder / "params" / "manifest.ocdbt").touch()
    kept.setdefault("trees", {})
    return folder, rng.choice(["auto", "f16", "f32"]), tree


class Tree(orbax._Tree):
    """A tree whose arrays are here."""

    arrays_of = None

    def __init__(self, folder):
        self._folder, self._kept, self.arrays = folder, (None, None), {k: Array(v) for k, v in Tree.arrays_of.items()}


class Array:
    def __init__(self, w):
        self.w, self.shape = np.asarray(w), np.shape(w)

    def read(self):
        return self

    def result(self):
        return self.w


@pytest.mark.parametrize("make, count", [(hub_case, 1000), (gguf_case, 600), (ct2_case, 500), (orbax_case, 100)])
def test_every_mutation_converts_or_is_an_error_of_ours(make, count, tmp_path, monkeypatch, request):
    """~2,200 cases in about 30 s and 100 MB. A failure names its seed; one that would take memory out of proportion to these small files is one."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_AS, before))
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), before[1]))
    monkeypatch.setattr(orbax, "_Tree", Tree)
    kept, raw, outcomes = {}, [], {True: 0, False: 0}
    for seed in range(count):
        rng = random.Random(seed)
        folder = tmp_path / "case"
        source, dtype, *tree = make(rng, folder, kept)
        Tree.arrays_of = tree[0] if tree else None
        kept.pop("trees", None)
        target = tmp_path / "out" / ("m.gguf" if make is hub_case and dtype in (*GGUF_DTYPES, "auto") else "m")
        target.parent.mkdir()
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                convert(source, target, dtype=dtype)
                outcomes[True] += 1
            except vivace.Error as e:
                outcomes[False] += 1
                if left := list(target.parent.iterdir()):
                    raw.append(f"seed {seed}: {e} left {left}")
                if not str(e).isprintable():
                    raw.append(f"seed {seed}: control characters: {str(e)!r}")
            except Exception as e:
                raw.append(f"seed {seed}: {type(e).__name__}: {e} at {e.__traceback__.tb_next and [(f.tb_frame.f_code.co_name, f.tb_lineno) for f in frames(e)][-2:]}")
        shutil.rmtree(target.parent)
        shutil.rmtree(folder)
    assert not raw, f"{len(raw)} of {count}:\n" + "\n".join(raw[:20])
    assert outcomes[True] > count / 50 and outcomes[False] > count / 4, outcomes


def frames(e):
    at = e.__traceback__
    while at:
        yield at
        at = at.tb_next


# ---- files that are no files -----------------------------------------------------------------------

@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors"])
@pytest.mark.timeout(30)
def test_what_is_no_file_is_an_error(kind, name, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(TINY / "llama", source)
    (source / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}')
    (source / name).unlink(missing_ok=True)
    UNREADABLE[kind][0](source / name)
    for target, dtype in ((tmp_path / "m.gguf", "q8_0"), (tmp_path / "folder", "e4m3")):
        with pytest.raises(vivace.Error):
            convert(source, target, dtype=dtype)
        assert not target.exists()


def test_nothing_foreign_is_copied(tmp_path):
    source, secret = tmp_path / "source", tmp_path / "secret.txt"
    shutil.copytree(TINY / "llama", source)
    secret.write_text("private")
    (source / "notes.txt").symlink_to(secret)
    (source / "extra.json").write_text("{}")
    convert(source, tmp_path / "out", dtype="e4m3")
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    (source / "vocab.txt").symlink_to(secret)
    with pytest.raises(vivace.UnsupportedError, match="vocab.txt: it is a link that leads out of the folder"):
        convert(source, tmp_path / "again", dtype="e4m3")
    assert not (tmp_path / "again").exists()


def test_the_links_of_a_hubs_cache_are_files(tmp_path):
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "abc", tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in (TINY / "llama").iterdir():
        shutil.copyfile(file, blobs / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    (blobs / "t").write_text("{}")
    (snapshot / "special_tokens_map.json").symlink_to("../../blobs/t")
    convert(snapshot, tmp_path / "out", dtype="e4m3")
    assert (tmp_path / "out" / "special_tokens_map.json").read_text() == "{}"


def test_assets_of_orbax_stay_inside(tmp_path, monkeypatch):
    monkeypatch.setattr(orbax, "_Tree", Tree)
    Tree.arrays_of = test_orbax.tree_of(test_orbax.weights_of("pi05_tiny"))
    source = tmp_path / "pi05"
    (source / "params").mkdir(parents=True)
    (source / "params" / "manifest.ocdbt").touch()
    (source / "assets" / "robot").mkdir(parents=True)
    (source / "assets" / "robot" / "norm_stats.json").write_text("{}")
    convert(source, tmp_path / "out", dtype="f32")
    assert (tmp_path / "out" / "assets" / "robot" / "norm_stats.json").read_text() == "{}"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "key").write_text("private")
    for link in ("file", "folder", "assets"):
        place = source / "assets" / "robot" / "key"
        if link == "assets":
            shutil.rmtree(source / "assets")
            (source / "assets").symlink_to(tmp_path / "elsewhere")
        else:
            place.unlink(missing_ok=True)
            place.symlink_to(tmp_path / "elsewhere" / ("key" if link == "file" else ""))
        with pytest.raises(vivace.UnsupportedError, match="leads out of the folder"):
            convert(source, tmp_path / "again", dtype="f32")
        assert not (tmp_path / "again").exists()


# ---- stopped in the middle -------------------------------------------------------------------------

@pytest.mark.parametrize("target, dtype", [("m.gguf", "q4_k"), ("folder", "e4m3")])
def test_ctrl_c_leaves_nothing(target, dtype, tmp_path):
    # Whoever runs the tests may ignore the signal, and children would too.
    program = "import signal, sys, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nfrom vivace import convert as c, gguf\n" \
              "slow = lambda f: lambda *a: (print('half', flush=True), time.sleep(30), f(*a))[2]\n" \
              "gguf.narrow = c.narrow = slow(c.narrow)\nfrom vivace.cli import main\nsys.exit(main(sys.argv[1:]))"
    with subprocess.Popen([sys.executable, "-c", program, "convert", str(TINY / "llama"), str(tmp_path / target), "--dtype", dtype], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "half\n"
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=30)
        assert running.returncode == 130 and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_fetched_name_is_a_source(monkeypatch, tmp_path):
    from vivace import fetch

    convert(TINY / "qwen3", tmp_path / "m.gguf", dtype="f32")
    monkeypatch.setattr(fetch, "path_of", lambda name: str(tmp_path / "m.gguf"))
    assert convert("smollm2-135m-instruct", tmp_path / "out")["tensors"] > 0
    assert os.listdir(tmp_path / "out")
